"""What can happen to a run on a cluster: each fault strikes once, at its moment, and some heal after a while."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from resource import RLIM_INFINITY, RLIMIT_AS, prlimit
from typing import ClassVar

import psutil
from distributed import Client

from tests.support.chaos.disks import Disk, flip, list_chunks, why_no_disks
from tests.support.chaos.fleet import Fleet
from tests.support.chaos.programs import Program, why_no_clock
from tests.support.hosts import why_not_split

POLL_S = 0.003
"""Seconds between two looks for a moment that has come."""
ASK_S = 10.0
"""Seconds for a scheduler to do what it is asked."""
ROOM_BYTES = 1 << 20
"""What a process may still take that has no memory left."""

PHASES = {"join": 0.3, "load": 0.15, "start": 0.3, "iterate": None, "checkpoint": 0.02, "residual": 0.05}
"""Phases of a run in which faults strike, and within how many seconds of their begin; None for as long as they last."""


@dataclass(frozen=True)
class Moment:
    """When a fault strikes."""

    phase: str
    """Of `PHASES`; `checkpoint` begins when a state is being written."""
    part: float
    """Of the seconds of `PHASES`, from 0 to 1."""

    def __str__(self) -> str:
        return f"{self.phase} {self.part:.0%}"


@dataclass(frozen=True)
class Scene:
    """A run that is going on, and all that can be hurt of it."""

    fleet: Fleet
    driver: Program
    matrix: Disk
    """Has `matrix.zarr`."""
    place: Disk
    """Has the checkpoint, `run.zarr`."""
    iterating_s: float
    """Seconds of the iterations of a run without faults."""

    @property
    def store(self) -> Path:
        return self.matrix.folder / "matrix.zarr"

    @property
    def checkpoint(self) -> Path:
        return self.place.folder / "run.zarr"

    def find(self, name: str) -> Program:
        """The program of a name: `driver`, `scheduler`, `w0` and so on."""
        return self.driver if name == "driver" else self.fleet.programs[name]

    def list_states(self) -> list[Path]:
        """States of the checkpoint, the first one first, also those that are not whole."""
        return sorted(self.checkpoint.glob("states/s*"))

    def has_come(self, phase: str) -> bool:
        """Whether a phase of the run has begun."""
        if phase == "checkpoint":
            return any(not _is_whole(state) for state in self.list_states())
        return self.driver.has_told(phase)


@dataclass(frozen=True)
class Fault(ABC):
    """What is done to a run."""

    moment: Moment
    is_harmless: ClassVar[bool] = False
    """Whether a run must not end for it."""
    heal_s: float | None = field(default=None, kw_only=True)
    """Seconds after which it is undone; None for never, while the run goes on."""

    @abstractmethod
    def strike(self, scene: Scene) -> None:
        """Do it."""

    def heal(self, scene: Scene) -> None:  # noqa: B027 (most have nothing to undo)
        """Undo it, as far as that can be done."""

    @abstractmethod
    def describe(self) -> str:
        """In a few words."""

    @staticmethod
    def why_not() -> str:
        """Why it cannot be done here; empty where it can."""
        return ""

    def __str__(self) -> str:
        lasting = "" if self.heal_s is None else f" for {self.heal_s:.1f} s"
        return f"{self.describe()}{lasting} ({self.moment})"


@dataclass(frozen=True)
class Kill(Fault):
    """SIGKILL. Of a worker with a nanny the process below it, which the nanny starts again."""

    target: str

    def strike(self, scene: Scene) -> None:
        scene.find(self.target).send(signal.SIGKILL)

    def describe(self) -> str:
        return f"kill {self.target}"


@dataclass(frozen=True)
class Interrupt(Fault):
    """Ctrl-C for the program."""

    def strike(self, scene: Scene) -> None:
        scene.driver.send(signal.SIGINT)

    def describe(self) -> str:
        return "interrupt driver"


@dataclass(frozen=True)
class Stop(Fault):
    """SIGSTOP, and SIGCONT."""

    target: str

    def strike(self, scene: Scene) -> None:
        scene.find(self.target).send(signal.SIGSTOP)

    def heal(self, scene: Scene) -> None:
        scene.find(self.target).send(signal.SIGCONT)

    def describe(self) -> str:
        return f"stop {self.target}"


@dataclass(frozen=True)
class Starve(Fault):
    """A process gets no memory any more."""

    target: str

    def strike(self, scene: Scene) -> None:
        with suppress(ProcessLookupError, psutil.NoSuchProcess):
            pid = scene.find(self.target).find_computing()
            prlimit(pid, RLIMIT_AS, (psutil.Process(pid).memory_info().vms + ROOM_BYTES, RLIM_INFINITY))

    def heal(self, scene: Scene) -> None:
        with suppress(ProcessLookupError):
            prlimit(scene.find(self.target).find_computing(), RLIMIT_AS, (RLIM_INFINITY, RLIM_INFINITY))

    def describe(self) -> str:
        return f"starve {self.target}"


@dataclass(frozen=True)
class Cut(Fault):
    """A host is cut off from the network; nobody is told."""

    target: str

    def strike(self, scene: Scene) -> None:
        scene.find(self.target).launch.host.cut()

    def heal(self, scene: Scene) -> None:
        scene.find(self.target).launch.host.join()

    def describe(self) -> str:
        return f"cut off {self.target}"

    @staticmethod
    def why_not() -> str:
        return why_not_split()


@dataclass(frozen=True)
class Slow(Fault):
    """The link of a host is slow."""

    target: str
    kbit_per_s: int

    def strike(self, scene: Scene) -> None:
        scene.find(self.target).launch.host.slow(self.kbit_per_s)

    def heal(self, scene: Scene) -> None:
        scene.find(self.target).launch.host.hasten()

    def describe(self) -> str:
        return f"slow link of {self.target}, {self.kbit_per_s} kbit/s"

    @staticmethod
    def why_not() -> str:
        return why_not_split()


@dataclass(frozen=True)
class Fill(Fault):
    """The disk of the checkpoint is full."""

    is_harmless = True

    def strike(self, scene: Scene) -> None:
        scene.place.fill()

    def heal(self, scene: Scene) -> None:
        scene.place.empty()

    def describe(self) -> str:
        return "full disk"

    @staticmethod
    def why_not() -> str:
        return why_no_disks()


@dataclass(frozen=True)
class Forbid(Fault):
    """The disk of the checkpoint, or of the matrix, is read-only."""

    is_harmless = True
    is_matrix: bool = False

    def strike(self, scene: Scene) -> None:
        self._find(scene).forbid()

    def heal(self, scene: Scene) -> None:
        self._find(scene).permit()

    def _find(self, scene: Scene) -> Disk:
        return scene.matrix if self.is_matrix else scene.place

    def describe(self) -> str:
        return f"read-only {'matrix' if self.is_matrix else 'checkpoint'}"

    @staticmethod
    def why_not() -> str:
        return why_no_disks()


@dataclass(frozen=True)
class FlipMatrix(Fault):
    """A bit of a chunk of the matrix is another one."""

    chunk: float
    """Which, from 0 to less than 1."""
    where: float
    """In it, likewise."""
    bit: int

    def strike(self, scene: Scene) -> None:
        chunks = list_chunks(scene.store)
        with suppress(OSError):  # another fault has made it read-only
            flip(chunks[int(self.chunk * len(chunks))], self.where, self.bit)

    def describe(self) -> str:
        return "flip a bit of the matrix"


@dataclass(frozen=True)
class FlipState(Fault):
    """A bit of the last state that is whole is another one, where there is one before it."""

    is_harmless = True
    file: float
    """Which, from 0 to less than 1."""
    where: float
    """In it, likewise."""
    bit: int

    def strike(self, scene: Scene) -> None:
        while scene.driver.exit_code is None:
            whole = [state for state in scene.list_states() if _is_whole(state)]
            with suppress(OSError):  # it has gone, and there are others; or it is read-only
                if len(whole) > 1:
                    files = sorted(path for path in whole[-1].rglob("*") if path.is_file())
                    flip(files[int(self.file * len(files))], self.where, self.bit)
                    return
            time.sleep(POLL_S)

    def describe(self) -> str:
        return "flip a bit of the checkpoint"


@dataclass(frozen=True)
class Jump(Fault):
    """The wall clock of a process jumps."""

    is_harmless = True
    target: str
    offset_s: int

    def strike(self, scene: Scene) -> None:
        scene.find(self.target).set_clock(self.offset_s)

    def heal(self, scene: Scene) -> None:
        scene.find(self.target).set_clock(0)

    def describe(self) -> str:
        return f"clock of {self.target} {self.offset_s:+d} s"

    @staticmethod
    def why_not() -> str:
        return why_no_clock()


@dataclass(frozen=True)
class Retire(Fault):
    """A worker is taken out of the cluster by its scheduler."""

    target: str

    def strike(self, scene: Scene) -> None:
        with suppress(Exception):  # of a scheduler that another fault has struck
            asyncio.run(_retire(scene.fleet.address, self.target))

    def describe(self) -> str:
        return f"retire {self.target}"


@dataclass(frozen=True)
class Add(Fault):
    """One more worker comes."""

    is_harmless = True

    def strike(self, scene: Scene) -> None:
        scene.fleet.add_worker(f"w{len(scene.fleet.workers)}")

    def describe(self) -> str:
        return "add a worker"


async def _retire(address: str, name: str) -> None:
    async with (
        asyncio.timeout(ASK_S),
        Client(address, asynchronous=True, timeout=ASK_S, set_as_default=False) as client,
    ):
        await client.retire_workers(names=[name], close_workers=True)


def _is_whole(state: Path) -> bool:
    with suppress(FileNotFoundError, NotADirectoryError):
        return "mgspmv_state" in (state / "zarr.json").read_text()
    return False


class Strikes:
    """Lets faults strike a run, each in a thread of its own, and heals what is left of them in the end."""

    def __init__(self, faults: tuple[Fault, ...], scene: Scene) -> None:
        self._faults, self._scene = faults, scene
        self._is_over = threading.Event()
        self.struck: dict[int, str] = {}
        """When each has struck, by its number: seconds of the run, and the last that it had told."""
        self.failures: list[BaseException] = []
        """Of faults that could not strike or heal, which says nothing of the run."""
        self._lasting: list[int] = []
        self._began_s = time.monotonic()
        self._threads = [threading.Thread(target=self._follow, args=pair) for pair in enumerate(faults)]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """The run has ended: nothing strikes any more, and all is healed, the last fault first."""
        self._is_over.set()
        for thread in self._threads:
            thread.join()
        for number in reversed(self._lasting):
            self._faults[number].heal(self._scene)

    def _follow(self, number: int, fault: Fault) -> None:
        try:
            if self._await(fault.moment):
                fault.strike(self._scene)
                self.struck[number] = self._describe_now()
                if fault.heal_s is None or self._is_over.wait(fault.heal_s):
                    self._lasting.append(number)
                else:
                    fault.heal(self._scene)
        except Exception as error:
            self.failures.append(error)

    def _await(self, moment: Moment) -> bool:
        """Whether the moment came before the end."""
        while not self._scene.has_come(moment.phase):
            if self._is_over.wait(POLL_S):
                return False
        lasting_s = PHASES[moment.phase]
        return not self._is_over.wait(moment.part * (self._scene.iterating_s if lasting_s is None else lasting_s))

    def _describe_now(self) -> str:
        told = self._scene.driver.read_told()
        last = f"{told[-1]['phase']} {told[-1]['done']}" if told else "nothing told"
        return f"{time.monotonic() - self._began_s:.1f} s, {last}"
