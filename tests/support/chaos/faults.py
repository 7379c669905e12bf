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

from distributed import Client

from tests.support.chaos.fleet import Fleet
from tests.support.chaos.programs import Program
from tests.support.hosts import why_not_split

POLL_S = 0.003
"""Seconds between two looks for a moment that has come."""
ASK_S = 10.0
"""Seconds for a scheduler to do what it is asked."""

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
    checkpoint: Path
    iterating_s: float
    """Seconds of the iterations of a run without faults."""

    def find(self, name: str) -> Program:
        """The program of a name: `driver`, `scheduler`, `w0` and so on."""
        return self.driver if name == "driver" else self.fleet.programs[name]

    def has_come(self, phase: str) -> bool:
        """Whether a phase of the run has begun."""
        if phase == "checkpoint":
            return any(not _is_whole(state) for state in self.checkpoint.glob("states/s*"))
        return self.driver.has_told(phase)


@dataclass(frozen=True)
class Fault(ABC):
    """What is done to a run."""

    moment: Moment
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
class Retire(Fault):
    """A worker is taken out of the cluster by its scheduler."""

    target: str

    def strike(self, scene: Scene) -> None:
        with suppress(Exception):  # of a scheduler that another fault has struck
            asyncio.run(_retire(scene.fleet.address, self.target))

    def describe(self) -> str:
        return f"retire {self.target}"


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
