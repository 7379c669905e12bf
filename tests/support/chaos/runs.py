"""A run that faults strike, what goes on where it ended, and what is to be thought of both."""

from __future__ import annotations

import shutil
import signal
import tempfile
import time
import warnings
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np

import mgspmv as mg
from mgspmv.checkpoints import Checkpoints
from mgspmv.errors import CheckpointError, MgspmvError
from mgspmv.results import load_solution
from tests.support.chaos.faults import Kill, Scene, Strikes
from tests.support.chaos.fleet import Fleet, Shape
from tests.support.chaos.plans import Plan
from tests.support.chaos.programs import Program
from tests.support.chaos.verdicts import Ending, Verdict, Wanted, judge
from tests.support.hosts import Network, why_not_split
from tests.support.waiting import HANG_S, wait_for

N_VERTICES = 6000
DEGREE = 6
ALPHA = 0.9999
"""Near 1, so that ranks change for thousands of iterations, and a run that made one too few has others."""
ITERATIONS = {"supersteps": 1200, "tasks": 60}
"""Iterations of a run that take some seconds, by executor."""
ITERATING_S = 4.0
"""About what these take."""
TIMEOUT_S = 6.0
CHECKPOINT_EVERY_S = 0.2
TRIES = 4
"""Of a run to be struck, by faults that are earlier each time."""
DUMP_S = 1.0
"""Seconds for a run that hangs to write where."""


def make_graph(store: Path, n_vertices: int) -> None:
    """Arcs at random between the first third of the vertices and the others: ranks go to and fro between these."""
    rng, n_first = np.random.default_rng(7), n_vertices // 3
    first = rng.integers(0, n_first, DEGREE * n_vertices // 2)
    second = rng.integers(n_first, n_vertices, first.size)
    back = rng.permutation(first)
    arcs = np.concatenate([first, second]), np.concatenate([second, back])
    mg.ingest(arcs, store, n_vertices=n_vertices, duplicates="first")


@dataclass(frozen=True)
class Undisturbed:
    """What runs without faults give."""

    store: Path
    wanted: dict[str, Wanted]
    """By executor."""

    @classmethod
    def compute(cls, store: Path) -> Undisturbed:
        """Make the graph, and rank it in this process."""
        make_graph(store, N_VERTICES)
        wanted = {}
        with mg.open_matrix(store) as A:
            for executor, iterations in ITERATIONS.items():
                solution = mg.pagerank(A, alpha=ALPHA, norm="fixed", max_iter=iterations)
                wanted[executor] = Wanted(solution.digest(), tuple(solution.changes))
        return cls(store, wanted)


@dataclass(frozen=True)
class Record:
    """What became of a run."""

    faults: list[str]
    struck: list[str]
    """When each had struck; empty where the run had ended before."""
    verdict: str
    is_right: bool
    """Whether it, and what went on after it, ended as it may."""
    said: str
    """The error, in a line."""
    resumed: str
    """Where it went on, and what became of that; empty where that was not needed."""


class StrikeError(Exception):
    """A fault could not strike or heal, which says nothing of mgspmv."""


def run_plan(plan: Plan, undisturbed: Undisturbed, parent: Path) -> Record:
    """Let it happen, and judge. A run that ended before any fault had struck is made again, with earlier ones.

    Parameters
    ----------
    parent : the folder of the run is made in it, and stays when something is wrong

    Raises
    ------
    StrikeError : a fault could not strike, or none did, which says nothing of mgspmv
    StartError : a cluster did not start, likewise
    """
    for _ in range(TRIES):
        record = _play(plan, undisturbed, parent)
        if any(record.struck) or not record.is_right or not plan.faults:
            return record
        plan = plan.hasten()
    raise StrikeError(f"the run ended {TRIES} times before any fault had struck")


def _play(plan: Plan, undisturbed: Undisturbed, parent: Path) -> Record:
    folder = Path(tempfile.mkdtemp(prefix="run-", dir=parent))
    with Stage(plan, undisturbed, folder) as stage:
        record = stage.play()
    if record.is_right:
        shutil.rmtree(folder)
    return record


class Stage(AbstractContextManager["Stage"]):
    """Hosts and a cluster for a run, and for what goes on after it."""

    def __init__(self, plan: Plan, undisturbed: Undisturbed, folder: Path) -> None:
        self._plan, self._undisturbed, self._folder = plan, undisturbed, folder
        self._stack = ExitStack()

    def __enter__(self) -> Stage:
        with ExitStack() as stack:
            self._fleet = stack.enter_context(_start_fleet(self._folder / "first", self._plan.shape))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()

    def play(self) -> Record:
        """Let the run go on until its end, with its faults, and judge it and what goes on after it."""
        plan, undisturbed = self._plan, self._undisturbed
        driver = self._start(self._fleet, "driver")
        scene = Scene(self._fleet, driver, self._checkpoint, ITERATING_S)
        strikes = Strikes(plan.faults, scene)
        try:
            has_ended = _await(driver)
        finally:
            strikes.end()
        if strikes.failures:
            raise StrikeError(f"a fault did not strike: {strikes.failures[0]!r}") from strikes.failures[0]
        ending = self._observe(driver, has_ended)
        struck = [fault for number, fault in enumerate(plan.faults) if number in strikes.struck]
        was_killed = any(isinstance(fault, Kill) and fault.target == "driver" for fault in struck)
        verdict = judge(ending, undisturbed.wanted[plan.executor], was_killed=was_killed, must_be_exact=not struck)
        is_whole = verdict in (Verdict.EXACT, Verdict.HANG)
        resumed, resumed_verdict = ("", verdict) if is_whole else self._go_on()
        return Record(
            [str(fault) for fault in plan.faults],
            [strikes.struck.get(number, "") for number in range(len(plan.faults))],
            str(verdict),
            verdict.is_right and resumed_verdict.is_right,
            ending.describe(),
            resumed,
        )

    def _go_on(self) -> tuple[str, Verdict]:
        """Go on where the run ended; where, and what became of that, and the verdict."""
        if self._plan.goes_on == "again" and self._fleet.programs["scheduler"].exit_code is None:
            ending = self._resume(self._fleet, "again")
            verdict = judge(ending, self._undisturbed.wanted[self._plan.executor])
            if verdict is not Verdict.ERROR:
                return f"again: {verdict}", verdict
            said = f"again: {ending.describe()}; "
        else:
            said = ""
        if self._plan.goes_on == "here":
            ending = self._resume(self._fleet, "here")
        else:
            with _start_fleet(self._folder / "afresh", Shape()) as fleet:
                ending = self._resume(fleet, "afresh")
        verdict = judge(ending, self._undisturbed.wanted[self._plan.executor], must_be_exact=True)
        where = "here" if self._plan.goes_on == "here" else "afresh"
        return f"{said}{where}: {verdict} {ending.describe()}".rstrip(), verdict

    def _resume(self, fleet: Fleet, name: str) -> Ending:
        program = self._start(fleet, name, "--resume", "--overwrite")
        return self._observe(program, _await(program))

    def _start(self, fleet: Fleet, name: str, *more: str) -> Program:
        """Start the program; `here` names that which needs no cluster."""
        executor = self._plan.executor
        given = {"--alpha": ALPHA, "--max-iter": ITERATIONS[executor], "--backend": "cpu"}
        given |= {"--checkpoint": self._checkpoint, "--output": self._ranks}
        settings = {"norm": "fixed", "checkpoint_every": CHECKPOINT_EVERY_S}
        if name != "here":
            given["--scheduler"] = fleet.address
            settings |= {"executor": executor, "timeout": TIMEOUT_S}
        options = [f"{word}" for pair in given.items() for word in pair]
        options += [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", f"{value}")]
        return fleet.start_mgspmv(name, "pagerank", str(self._undisturbed.store), "--json", *options, *more)

    @property
    def _checkpoint(self) -> Path:
        return self._folder / "run.zarr"

    @property
    def _ranks(self) -> Path:
        return self._folder / "ranks.zarr"

    def _observe(self, program: Program, has_ended: bool) -> Ending:
        """What there is to be seen of a run that has ended, or is ended now."""
        code = program.exit_code if has_ended else None
        if not has_ended:
            program.send(signal.SIGUSR1)
            time.sleep(DUMP_S)
        has_left = has_ended and not wait_for(lambda: not program.list_session())
        left = tuple(program.list_session()) if has_left else ()
        program.end()
        kept = [0, *(told["done"] for told in program.read_told() if told["phase"] == "checkpoint")]
        said = program.read("out"), program.read("err")
        return Ending(code, *said, left, find_saved(self._ranks), kept[-1], self._find_restored())

    def _find_restored(self) -> int:
        """Iteration of the checkpoint that is there; 0 for none."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                restored = Checkpoints(str(self._checkpoint)).restore()
            except CheckpointError:
                return 0
        return 0 if restored is None else restored.reached.iteration


def find_saved(ranks: Path) -> str | None:
    """Digest of ranks that were written; empty where they cannot be read, None where there are none."""
    if not ranks.exists():
        return None
    try:
        return load_solution(ranks).digest()
    except MgspmvError:
        return ""


def _start_fleet(folder: Path, shape: Shape) -> AbstractContextManager[Fleet]:
    return Fleet(Network(is_split=not why_not_split()), folder, shape)


def _await(program: Program) -> bool:
    """Whether it ended in time."""
    program.process.join(HANG_S)
    return program.exit_code is not None
