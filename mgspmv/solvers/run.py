"""The run of an iteration, from its first step to its result: on the host, on a device, or on the workers of a cluster.

run                 start, iterate, bound the error, collect; checkpoints and times between
  Execution         where the iterations are made: `LocalExecution` in this process, others in `mgspmv.cluster`
    a loop          which iterations are made: `Loop` (PageRank), `Batch`, `PowerLoop`
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from mgspmv.model import Event, Progress, Recovery, Stability, Status, Underflow, ignore
from mgspmv.solvers.checkpointing import Checkpointer, Writers


@dataclass(frozen=True, eq=False)
class Outcome:
    """Outcome of a run."""

    values: Any
    """(n,) float32 or float64: the vector; of a batch the list of its endings."""
    status: Status
    """Status at the end: converged, or the reason why not."""
    error_bound_l1: float
    """Bound on ||values - exact ranks||_1; infinite where ranks are not finite, or no error is bounded."""
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
    """Vertices whose rank is 0 by underflow, see `mgspmv.solvers.pagerank`; None where none was found."""


class Execution(ABC):
    """Iterations of a run, in this process or on workers.

    Parameters
    ----------
    hardware : description of the hardware

    Attributes
    ----------
    status : at the end; None before that
    seconds : of phases other than products and exchanges, after `collect`; those of `compile` are within `start`
    memory, transport : as in `Outcome`, after `collect`
    stability : proven stability of the highest vertices, at the end; None where none was proven
    writers : processes that hold the ranks, and write them to checkpoints; None where there are no checkpoints
    """

    def __init__(self, hardware: str, writers: Writers | None = None) -> None:
        self.hardware, self.writers = hardware, writers
        self.status: Status | None = None
        self.stability: Stability | None = None
        self.transport: str | None = None
        self.seconds: dict[str, float] = {}
        self.memory: dict[str, list[int]] = {}

    @abstractmethod
    def start(self) -> None:
        """Prepare the first iteration."""

    @abstractmethod
    def iterate(self) -> Iterator[tuple[Event, bool]]:
        """Iterate to the end; yield the event of each iteration, and whether the ranks are those of that iteration."""

    def measure(self) -> float:
        """Bound |G(x) - x| in L1 of the ranks x, where G is a step. No more iterations can be made after it."""
        raise NotImplementedError

    @abstractmethod
    def collect(self) -> Any:
        """Return the values of the outcome."""


class LocalExecution(Execution):
    """Iterations of a loop in this process.

    Parameters
    ----------
    loop : `Loop`, `Batch` or `PowerLoop`, with `start`, `advance`, `status` and `seconds`
    collect : returns the values of the outcome
    """

    def __init__(self, hardware: str, loop: Any, collect: Callable[[], Any]) -> None:
        super().__init__(hardware)
        self._loop, self._collect = loop, collect

    def start(self) -> None:
        self._loop.start()

    def iterate(self) -> Iterator[tuple[Event, bool]]:
        for event in self._loop.advance():
            self.status = self._loop.status
            yield event, True

    def collect(self) -> Any:
        self.seconds = self._loop.seconds
        return self._collect()


def run(
    execution: Execution,
    emit: Callable[[Event], None],
    alpha: float | None = None,
    keeper: Checkpointer | None = None,
    report: Progress = ignore,
    on_start: Callable[[], None] = lambda: None,
) -> Outcome:
    """Iterate to the end, bound the error and return the outcome.

    Parameters
    ----------
    emit : called with the event of each iteration
    alpha : damping; None where no error is bounded
    keeper : of the run's checkpoints; None for none
    report : called when the error is bounded
    on_start : called when the iterations begin

    Raises
    ------
    CorruptionError : the ranks are corrupted
    """
    events, changes, writers = list[Event](), list[float](), execution.writers
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
        if keeper is not None and writers is not None and is_reached and execution.status is None:
            keeper.look(writers, changes)
    status = execution.status
    assert status is not None
    if keeper is not None and writers is not None:
        keeper.end(writers, changes, status)
    iterated = time.perf_counter()
    kept_s = 0.0 if keeper is None else keeper.blocked_s - before_s
    bound = math.inf
    # Before `collect`, which releases the memory of a device.
    if alpha is not None:
        report("residual", 0, None)
        bound = bound if status == Status.NON_FINITE else bound_error(execution.measure(), alpha)
    measured = time.perf_counter()
    values = execution.collect()
    collected = time.perf_counter()
    if keeper is not None and writers is not None:
        keeper.finish(writers)
    seconds = sum_seconds(events) | execution.seconds
    compile_s = seconds.get("compile", 0.0)
    seconds["schedule"] = max(0.0, iterated - started - kept_s - (sum(seconds.values()) - compile_s))
    seconds |= {"start": max(0.0, started - began - compile_s), "collect": collected - measured}
    seconds |= {} if alpha is None else {"residual": measured - iterated}
    seconds |= {} if keeper is None else {"checkpoint": keeper.blocked_s - before_s}
    told = (execution.hardware, seconds, execution.memory, execution.transport, execution.stability)
    return Outcome(values, status, bound, *told)


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
