"""PageRank by power iteration, in fused steps.

    z = x / w (0 where w = 0);   m = sum of x over dangling vertices
    x' = alpha (A z + m d) + (1 - alpha) p;   stop on |x' - x|

A holds the in-edges of each vertex in its row, w the out-weights, p the personalization, d the distribution of the rank
of dangling vertices. Page, Brin, Motwani, Winograd: The PageRank Citation Ranking (1999); differs from it in that
dangling vertices stay in the graph, as in NetworkX and cuGraph.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

import numpy as np

from mgspmv.checkpoints import BEGINNING, RunProgress, SliceWriter
from mgspmv.model import FIXED_POINT, Event, Progress, Recovery, Stability, Status, StepSums, Underflow, ignore
from mgspmv.solvers.checkpointing import Checkpointer, Writers
from mgspmv.solvers.mass_check import MassCheck, check_rows
from mgspmv.solvers.options import RankTask, check_status
from mgspmv.solvers.steps import DeviceSteps, LocalSteps, Steps
from mgspmv.solvers.topk_certificate import TopkCertificate

CHECK_S = 5.0
"""Seconds between checks of the ranks for corruption, in runs of this process."""


class Loop:
    """Loop of iterations to the end. All processes that run it with the same sums make the same iterations.

    Parameters
    ----------
    watch : examines the ranks during the run
    before : progress of the run that this one resumes
    balance : expected sum of the first ranks; None where it is unknown

    Attributes
    ----------
    balance : expected sum of the ranks after the last iteration
    iteration : iterations made, including those before
    mass : sum of the ranks over dangling vertices
    status : at the end; None before that
    is_ahead : whether steps were made after the last reported iteration, so that the ranks are later ones
    """

    def __init__(
        self,
        steps: Steps,
        task: RankTask,
        watch: TopkCertificate | None = None,
        before: RunProgress = BEGINNING,
        balance: MassCheck | None = None,
    ) -> None:
        self._steps, self._task, self._options, self._watch = steps, task, task.options, watch
        self._is_wrong = self.is_ahead = False
        self.balance = balance
        self.iteration, self._epoch = before.iteration, before.epoch + 1
        self.mass = 0.0
        self.status: Status | None = None
        if before.changes:
            self.status = check_status(task.options, task.threshold, before.iteration, before.changes[-1], False)

    def start(self) -> None:
        """Compute the first z."""
        first = self._steps.scale()
        if self._watch is not None:
            self._watch.start()
        self.mass, self._is_wrong = first.dangling / FIXED_POINT, first.n_wrong > 0
        if self._watch is not None:
            self._watch.see(0, self._steps.ranks(), self.mass)

    def advance(self, n: int | None = None) -> Iterator[Event]:
        """Iterate to the end, or n times if that is less; yield the event of each iteration."""
        last = self._options.max_iter if n is None else self.iteration + n
        while self.status is None and self.iteration < last:
            left, watch = last - self.iteration, self._watch
            n_steps = left if watch is None else min(left, watch.count_steps(self.iteration))
            made = self._steps.advance(self.mass, n_steps)
            # A device makes steps in batches: the ranks in its memory are those of the last step of a batch.
            for k, (sums, times) in enumerate(made, 1):
                self.is_ahead = k < len(made)
                change = self._take(sums)
                yield Event(self._task.run, self._epoch, self.iteration, change, **vars(times))

    def _take(self, sums: StepSums) -> float:
        """Count an iteration with these sums, set the status, and return its change."""
        self.balance = None if self.balance is None else self.balance.step(self.mass)
        self.iteration, self.mass = self.iteration + 1, sums.dangling / FIXED_POINT
        change = self._options.measure(sums)
        is_wrong = self._is_wrong or sums.n_wrong > 0
        if self._watch is not None and not is_wrong and self._watch.wants(self.iteration):
            self._watch.see(self.iteration, self._steps.ranks(), self.mass)
        self.status = check_status(self._options, self._task.threshold, self.iteration, change, is_wrong)
        if self.stability is not None and not is_wrong:
            self.status = Status.STABLE
        return change

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of the phase `look`, where a watch examines the ranks."""
        return {} if self._watch is None else {"look": self._watch.elapsed_s}

    @property
    def stability(self) -> Stability | None:
        """Proven stability of the highest vertices; None before it is proven."""
        return None if self._watch is None else self._watch.found


@dataclass(frozen=True, eq=False)
class Outcome:
    """Outcome of a run."""

    values: np.ndarray
    """(n,) float32 or float64: the ranks."""
    status: Status
    """Status at the end: converged, or the reason why not."""
    error_bound_l1: float
    """Bound on ||values - exact ranks||_1; infinite where ranks are not finite."""
    hardware: str
    """Description of the hardware."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds by phase."""
    memory: dict[str, list[int]] = field(default_factory=dict)
    """Bytes by kind, one element per worker; see `Solution.memory`."""
    transport: str | None = None
    """Transport of slices between workers: `ipc`, `nccl`, `peer` or `client`; None in one process."""
    stability: Stability | None = None
    """Proven stability of the highest vertices; None where nothing was proven."""
    recoveries: tuple[Recovery, ...] = ()
    """Recoveries of the run, each of which continued it with other workers."""
    underflow: Underflow | None = None
    """Vertices whose rank is 0 by underflow, see `mgspmv.solvers.underflow`; None where none was found."""


def bound_error(residual: float, alpha: float) -> float:
    """Bound the L1 distance of x to the solution: a step G shrinks L1 distances by alpha, so
    |x - x*| <= |G(x) - x| / (1 - alpha)."""
    return float(residual / (1.0 - alpha))


def widen_bound(bound: float, alpha: float, growth: float) -> float:
    """Widen a bound of `bound_error` where a step shrinks distances by alpha * growth and not by alpha."""
    return bound * (1.0 - alpha) / (1.0 - alpha * growth) if alpha * growth < 1.0 else math.inf


def add_event(events: list[Event], event: Event) -> None:
    """Append an event to those of a run, and remove earlier events of iterations that are repeated."""
    while events and events[-1].iteration >= event.iteration:
        events.pop()
    events.append(event)


def sum_seconds(events: Sequence[Event]) -> dict[str, float]:
    """Sum the seconds of all iterations: in `product` those of the slowest worker each time, which the others wait for;
    in `exchange` the mean of the workers, which begin and end it together up to clocks and scheduling."""
    return {
        "product": sum(max(e.product_s) for e in events),
        "exchange": sum(fmean(e.exchange_s) for e in events),
    }


class Execution(ABC):
    """Iterations of a run, in this process or on workers.

    Parameters
    ----------
    hardware : description of the hardware
    writers : processes that hold the ranks

    Attributes
    ----------
    status : at the end; None before that
    seconds : of phases of iterations other than steps
    memory, transport : as in `Outcome`, after `collect`
    """

    _loop: Loop
    """Loop of the iterations, if this process has it."""

    def __init__(self, hardware: str, writers: Writers) -> None:
        self.hardware, self.writers = hardware, writers
        self.status: Status | None = None
        self.transport: str | None = None
        self.seconds: dict[str, float] = {}
        self.memory: dict[str, list[int]] = {}

    @abstractmethod
    def start(self) -> None:
        """Compute the first z."""

    @abstractmethod
    def iterate(self) -> Iterator[tuple[Event, bool]]:
        """Iterate to the end; yield the event of each iteration, and whether the ranks are those of that iteration.

        Raises
        ------
        CorruptionError : the ranks are corrupted
        """

    def find_stability(self) -> Stability | None:
        """Return the proven stability of the highest vertices; None where none was proven."""
        return self._loop.stability

    @abstractmethod
    def measure(self) -> float:
        """Bound |G(x) - x| in L1 of the ranks x, where G is a step. No more iterations can be made after it."""

    @abstractmethod
    def collect(self) -> np.ndarray:
        """Return the ranks, (n,)."""


def run_to_end(
    execution: Execution,
    alpha: float | None,
    emit: Callable[[Event], None],
    keeper: Checkpointer | None = None,
    report: Progress = ignore,
    on_start: Callable[[], None] = lambda: None,
) -> Outcome:
    """Iterate to the end, bound the error and return the outcome with the ranks.

    Parameters
    ----------
    alpha : damping; None where no error is bounded
    emit : called with the event of each iteration
    keeper : of the run's checkpoints; None for none
    report : called when the error is bounded
    on_start : called when the iterations begin

    Raises
    ------
    CorruptionError : the ranks are corrupted
    """
    events, changes = list[Event](), list[float]()
    before_s = 0.0 if keeper is None else keeper.blocked_s
    began = time.perf_counter()
    execution.start()
    started = time.perf_counter()
    on_start()
    if keeper is not None:
        keeper.begin()
    for event, is_reached in execution.iterate():
        events.append(event)
        changes.append(event.change)
        emit(event)
        if keeper is not None and is_reached and execution.status is None:
            keeper.look(execution.writers, changes)
    status = execution.status
    assert status is not None
    if keeper is not None:
        keeper.end(execution.writers, changes, status)
    iterated = time.perf_counter()
    kept_s = 0.0 if keeper is None else keeper.blocked_s - before_s
    stability = execution.find_stability()
    bound = math.inf
    # Before `collect`, which releases the memory of a device.
    if alpha is not None:
        report("residual", 0, None)
        bound = bound if status == Status.NON_FINITE else bound_error(execution.measure(), alpha)
    measured = time.perf_counter()
    values = execution.collect()
    collected = time.perf_counter()
    if keeper is not None:
        keeper.finish(execution.writers)
    seconds = sum_seconds(events) | execution.seconds
    seconds["schedule"] = max(0.0, iterated - started - kept_s - sum(seconds.values()))
    seconds |= {"start": started - began, "collect": collected - measured}
    seconds |= {} if alpha is None else {"residual": measured - iterated}
    seconds |= {} if keeper is None else {"checkpoint": keeper.blocked_s - before_s}
    told = (execution.hardware, seconds, execution.memory, execution.transport, stability)
    return Outcome(values, status, bound, *told)


def run_here(
    steps: LocalSteps | DeviceSteps,
    task: RankTask,
    emit: Callable[[Event], None],
    *,
    growth: float = 1.0,
    keeper: Checkpointer | None = None,
    balance: MassCheck | None = None,
) -> Outcome:
    """Iterate in this process over all rows of the matrix.

    Parameters
    ----------
    steps : of all rows
    emit : called with the event of each iteration
    growth : of `RunInputs`
    keeper : of the run's checkpoints, with the last of which the rows start; None for none
    balance : of `RunInputs`; None where the sum of the ranks is unknown

    Raises
    ------
    CorruptionError : the ranks are corrupted
    """
    began = time.perf_counter()
    steps.compile()
    compiled = time.perf_counter()
    loop = Loop(steps, task, steps.watch(task.options, growth=growth), find_before(keeper), balance)
    here = _Here(steps, loop)
    try:
        outcome = run_to_end(here, task.options.alpha, emit, keeper)
    finally:
        here.close()
    outcome.seconds["compile"] = compiled - began
    return outcome


class _Here(Execution):
    """Iterations of this process. The ranks are checked for corruption periodically, and before they are written to a
    checkpoint or returned.

    Parameters
    ----------
    steps : of all rows
    loop : of these
    """

    def __init__(self, steps: LocalSteps | DeviceSteps, loop: Loop) -> None:
        self._writer = SliceWriter(self._copy_ranks)
        super().__init__(steps.describe(), self._writer)
        self._steps, self._loop = steps, loop
        self.status = loop.status

    def close(self) -> None:
        """Stop writing checkpoints."""
        self._writer.close()

    def start(self) -> None:
        loop, steps = self._loop, self._steps
        loop.start()
        self._due_s = time.monotonic() + CHECK_S
        if loop.balance is not None:
            total = steps.check_rows()[0].sum
            loop.balance = replace(loop.balance, low=total, high=total)

    def iterate(self) -> Iterator[tuple[Event, bool]]:
        loop = self._loop
        for event in loop.advance():
            self.status = loop.status
            is_due = loop.status is not None or time.monotonic() >= self._due_s
            # The ranks of a later step do not match the mass and the sum of this iteration.
            if is_due and not loop.is_ahead:
                self._check()
            yield event, not loop.is_ahead
        self.seconds = loop.seconds

    def measure(self) -> float:
        return self._steps.measure(self._loop.mass)

    def collect(self) -> np.ndarray:
        return self._steps.collect()

    def _check(self) -> None:
        loop = self._loop
        if loop.status != Status.NON_FINITE:
            found, slack = self._steps.check_rows()
            check_rows(found, loop.mass, loop.balance, slack, loop.iteration)
        self._due_s = time.monotonic() + CHECK_S

    def _copy_ranks(self) -> np.ndarray:
        self._check()
        return self._steps.ranks()


def find_before(keeper: Checkpointer | None) -> RunProgress:
    """Return the progress that a run resumes from."""
    return BEGINNING if keeper is None else keeper.before
