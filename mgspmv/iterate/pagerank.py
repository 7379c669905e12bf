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
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from mgspmv.checkpoints import BEGINNING, Reached, SliceWriter
from mgspmv.exchange.transport import LocalTransport, Transport
from mgspmv.iterate.balance import Balance, Tolerance, check_rows, find_tolerance
from mgspmv.iterate.keeping import Keeper, Writers
from mgspmv.iterate.options import PageRankOptions
from mgspmv.iterate.stable import Gather, Rounding, Watch
from mgspmv.kernels.rank_steps import RankRules, RankSteps, RankVectors
from mgspmv.kernels.select import BoundKernel
from mgspmv.model import (
    FIXED_POINT,
    Event,
    Progress,
    Recovery,
    RowCheck,
    Stability,
    Status,
    StepSums,
    Underflow,
    ignore,
)

if TYPE_CHECKING:
    from mgspmv.iterate.power import PowerOptions

STEPS_AT_ONCE = 20
"""Most steps of a device before the host reads their results."""
CHECK_S = 5.0
"""Seconds between checks of the ranks for corruption, in runs of this process."""


def choose_steps_at_once(*, streams: bool) -> int:
    """Choose the number of device steps between two looks; 1 where a device streams rows, so that steps are slow.

    Parameters
    ----------
    streams : whether any of the devices streams rows
    """
    return 1 if streams else STEPS_AT_ONCE


@dataclass(eq=False)
class Rows:
    """Kernel and vectors of a row block between steps; vectors are of its rows, and where the block is."""

    kernel: BoundKernel
    """Kernel bound to the block."""
    x: Any
    """(n_rows,) ranks, float32 or float64; overwritten by each step."""
    weight: Any
    """(n_rows,) float64 out-weights; 0 for dangling vertices."""
    dangling: Any
    """(n_rows,) or (1,) float64: d."""
    personalization: Any
    """(n_rows,) or (1,) float64: p."""
    n_dangling: int
    """Number of dangling vertices among the rows."""

    @property
    def start(self) -> int:
        return self.kernel.block.row_offset

    @property
    def stop(self) -> int:
        return self.start + self.kernel.block.n_rows

    @property
    def rounding(self) -> Rounding:
        """Rounding of steps of these rows."""
        indptr = self.kernel.block.indptr
        longest = int((indptr[1:] - indptr[:-1]).max()) if self.kernel.block.n_rows else 0
        return Rounding(longest, self.kernel.block.nnz, self.n_dangling)

    @property
    def nbytes(self) -> int:
        """Bytes of block and vectors."""
        vectors = (self.x, self.weight, self.dangling, self.personalization)
        return int(self.kernel.block.nbytes + sum(v.nbytes for v in vectors))


@dataclass(frozen=True)
class Times:
    """Times and bytes of a step; each tuple has an element for each worker, and the fields are those of `Event`."""

    product_s: tuple[float, ...]
    exchange_s: tuple[float, ...]
    wait_s: tuple[float, ...]
    exchanged_bytes: tuple[int, ...]
    memory_bytes: tuple[int, ...]


Made = tuple[StepSums, Times]
"""Sums of a step over all processes, and its times."""


class Steps(Protocol):
    """Steps of a run: made in this process, with peers, or on workers that this process drives."""

    def scale(self) -> StepSums:
        """Compute z from the first x; return the sums of x."""
        ...

    def advance(self, mass: float, n: int) -> Sequence[Made]:
        """Make n steps on all rows, or fewer; `mass` is the sum over dangling vertices of the x before them."""
        ...

    def ranks(self) -> np.ndarray:
        """Copy the ranks of the rows that this process sees to the host, (n,)."""
        ...


class LocalSteps:
    """Steps of this process, with the slices of others from a transport.

    Parameters
    ----------
    rows : those of this process; `x` holds the start and, after each step, the ranks
    transport : for vectors of the kernels' `z_dtype`; None where these are all rows
    """

    def __init__(self, rows: Rows, options: PageRankOptions, transport: Transport | None = None) -> None:
        self.rows, self._alpha, self._is_relative = rows, options.alpha, options.is_relative
        kernel = rows.kernel
        self._transport = transport or LocalTransport(kernel.block.n_cols, kernel.z_dtype, kernel.zeros)
        self._watch: Watch | None = None

    def compile(self) -> None:
        """Compile the kernels, so that no step is timed with it."""
        self.rows.kernel.compile(is_relative=self._is_relative)

    def scale(self) -> StepSums:
        r, transport = self.rows, self._transport
        return transport.exchange_columns([r.kernel.scale(r.x, r.weight, transport.slot())])[0]

    def advance(self, mass: float, n: int) -> Sequence[Made]:
        return [self.step(mass)]

    def step(self, mass: float) -> Made:
        """Make one step; `mass` as for `advance`."""
        transport = self._transport
        [sums], times = time_step(transport, lambda: [self._multiply(mass)])
        watched = 0 if self._watch is None else self._watch.nbytes
        return sums, replace(times, memory_bytes=(self.rows.nbytes + transport.nbytes + watched,))

    def ranks(self) -> np.ndarray:
        ranks = self.collect()
        return ranks.copy() if ranks is self.rows.x else ranks

    def collect(self) -> np.ndarray:
        """Return the ranks, without a copy where they are on the host. No more steps can be made after it."""
        return self.rows.kernel.get(self.rows.x)

    def describe(self) -> str:
        """Describe the hardware."""
        return self.rows.kernel.describe()

    def watch(self, options: PageRankOptions, gather: Gather | None = None, growth: float = 1.0) -> Watch | None:
        """Make the watch of the ranks for `stop="topk:..."`; None for other criteria.

        Parameters
        ----------
        gather, growth : as for `Watch`
        """
        if options.top is None:
            return None
        r = self.rows
        weight, dangling, personalization = map(r.kernel.get, (r.weight, r.dangling, r.personalization))
        self._watch = Watch(options, weight == 0, dangling, personalization, r.rounding, gather, growth)
        return self._watch

    def check_rows(self) -> RowCheck:
        """Sum the ranks of these rows, and count rows whose z does not match the ranks."""
        r = self.rows
        return r.kernel.check_rows(r.x, r.weight, self._transport.get_own())

    def find_tolerance(self) -> Tolerance:
        """Bound the rounding error of the sum of the ranks of these rows."""
        kernel, weight = self.rows.kernel, self.rows.kernel.get(self.rows.weight)
        return find_tolerance(self.rows.rounding, weight, kernel.precision, has_values=kernel.block.data is not None)

    def measure(self, mass: float) -> float:
        """Compute `residual`, together with all owners of rows. No more steps can be made after it."""
        self.begin_residual()
        return self.residual(mass)

    def begin_residual(self) -> None:
        """Compute z from the ranks in float64. No more steps can be made after it."""
        self.rows = replace(self.rows, kernel=self.rows.kernel.with_precision("float64"))
        self._transport.restart(np.dtype(np.float64))
        self.scale()

    def residual(self, mass: float) -> float:
        """Compute this process's part of a bound on |G(x) - x| in L1, where G is a step; after `begin_residual`.

        G is evaluated in float64; added are a bound on the rounding of that, and one of the dangling mass: half a unit
        of fixed point for each vertex.
        """
        r = self.rows
        residual = r.kernel.residual(self._transport.z, r.x, self._alpha, mass, r.dangling, r.personalization)
        return float(residual + self._alpha * bound_mass_rounding(r.n_dangling))

    def _multiply(self, mass: float) -> StepSums:
        r = self.rows
        vectors = (self._transport.z, r.x, self._transport.slot(), r.weight)
        shares = (r.dangling, r.personalization)
        return r.kernel.step(*vectors, self._alpha, mass, *shares, is_relative=self._is_relative)


def time_step(panel: Transport, multiply: Callable[[], list[StepSums]]) -> tuple[list[StepSums], Times]:
    """Time a step; return its sums over all processes, one per column, and its times, without the bytes held.

    Parameters
    ----------
    multiply : fills the slots of a panel, and returns the sums of this process
    """
    received, waited = panel.exchanged_bytes, panel.waited_s
    began = time.perf_counter()
    own = multiply()
    multiplied = time.perf_counter()
    sums = panel.exchange_columns(own)
    exchanged_s = time.perf_counter() - multiplied
    wait_s = min(exchanged_s, panel.waited_s - waited)
    moved = panel.exchanged_bytes - received
    return sums, Times((multiplied - began,), (exchanged_s - wait_s,), (wait_s,), (moved,), (0,))


class DeviceSteps:
    """Steps that a device makes in batches; the host reads their results afterwards.

    Parameters
    ----------
    device : has the whole matrix, or the rows of a worker
    vectors : start of the run
    at_once : most steps between two looks, the same on all devices of a run; None for the device's default
    is_counted : whether the out-weights of a pattern are counts
    """

    def __init__(
        self,
        device: RankSteps,
        vectors: RankVectors,
        options: PageRankOptions,
        threshold: float,
        at_once: int | None = None,
        *,
        is_counted: bool = True,
    ) -> None:
        self._device, self._vectors, self._alpha = device, vectors, options.alpha
        self._at_once = at_once or choose_steps_at_once(streams=device.streams)
        self._rules = RankRules(options.alpha, threshold, options.by_largest, options.is_relative, is_counted)

    def compile(self) -> None:
        """Compile the kernels; see `LocalSteps.compile`."""
        self._device.compile(self._rules)

    def scale(self) -> StepSums:
        return self._device.start(self._vectors, self._rules)

    def advance(self, mass: float, n: int) -> Sequence[Made]:
        device = self._device
        sums = device.advance(min(n, self._at_once))
        assert sums, "the device has stopped, and the loop has not"
        rest = ((0.0,), (device.received_bytes,), (device.nbytes,))
        times = [Times((product_s,), (exchange_s,), *rest) for product_s, exchange_s in device.seconds]
        return list(zip(sums, times, strict=True))

    def ranks(self) -> np.ndarray:
        return self._device.ranks()

    def collect(self) -> np.ndarray:
        """Return the ranks; see `LocalSteps.collect`."""
        ranks = self._device.ranks()
        self._device.release()
        return ranks

    def describe(self) -> str:
        """Describe the device."""
        return self._device.describe()

    def measure(self, mass: float) -> float:
        """Bound |G(x) - x| in L1; see `LocalSteps.measure`."""
        return self._device.residual(mass) + self._alpha * bound_mass_rounding(self._rounding.n_dangling)

    def watch(self, options: PageRankOptions, gather: Gather | None = None, growth: float = 1.0) -> Watch | None:
        """Make the watch of the ranks; see `LocalSteps.watch`."""
        if options.top is None:
            return None
        vectors, is_dangling = self._vectors, self._vectors.weight == 0
        return Watch(options, is_dangling, vectors.dangling, vectors.personalization, self._rounding, gather, growth)

    def check_rows(self) -> RowCheck:
        """Check the rows of the device; see `LocalSteps.check_rows`."""
        return self._device.check_rows()

    def find_tolerance(self) -> Tolerance:
        """Bound the rounding error of the sum of the ranks; see `LocalSteps.find_tolerance`."""
        device = self._device
        return find_tolerance(self._rounding, self._vectors.weight, device.precision, has_values=device.has_values)

    @property
    def _rounding(self) -> Rounding:
        device, n_dangling = self._device, int(np.count_nonzero(self._vectors.weight == 0))
        longest = nnz = device.layout.nnz  # upper bound: the layout does not store the lengths of its rows
        return Rounding(longest, nnz, n_dangling, device.entry_rounding)


class Loop:
    """Loop of iterations to the end. All processes that run it with the same sums make the same iterations.

    Parameters
    ----------
    threshold : of the change, from `PageRankOptions.threshold`
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
        options: PageRankOptions,
        threshold: float,
        run: str = "",
        watch: Watch | None = None,
        before: Reached = BEGINNING,
        balance: Balance | None = None,
    ) -> None:
        self._steps, self._options, self._threshold, self._run = steps, options, threshold, run
        self._watch = watch
        self._is_wrong = self.is_ahead = False
        self.balance = balance
        self.iteration, self._epoch = before.iteration, before.epoch + 1
        self.mass = 0.0
        self.status: Status | None = None
        if before.changes:
            self.status = judge(options, threshold, before.iteration, before.changes[-1], False)

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
            made = self._steps.advance(self.mass, min(last - self.iteration, self._count_to_look()))
            for k, (sums, times) in enumerate(made, 1):
                self.is_ahead = k < len(made)
                change = self._take(sums)
                yield Event(self._run, self._epoch, self.iteration, change, **vars(times))

    def _take(self, sums: StepSums) -> float:
        """Count an iteration with these sums, set the status, and return its change."""
        self.balance = None if self.balance is None else self.balance.step(self.mass)
        self.iteration, self.mass = self.iteration + 1, sums.dangling / FIXED_POINT
        change = self._options.measure(sums)
        is_wrong = self._is_wrong or sums.n_wrong > 0
        if self._watch is not None and not is_wrong and self._watch.wants(self.iteration):
            self._watch.see(self.iteration, self._steps.ranks(), self.mass)
        self.status = self._judge(change, is_wrong)
        return change

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of the phase `look`, where a watch examines the ranks."""
        return {} if self._watch is None else {"look": self._watch.elapsed_s}

    @property
    def stability(self) -> Stability | None:
        """Proven stability of the highest vertices; None before it is proven."""
        return None if self._watch is None else self._watch.found

    def _count_to_look(self) -> int:
        """Count iterations until the watch examines the ranks next."""
        return self._options.max_iter if self._watch is None else self._watch.count_steps(self.iteration)

    def _judge(self, change: float, is_wrong: bool) -> Status | None:
        if self.stability is not None and not is_wrong:
            return Status.STABLE
        return judge(self._options, self._threshold, self.iteration, change, is_wrong)


def judge(
    options: PageRankOptions | PowerOptions, threshold: float, iteration: int, change: float, is_wrong: bool
) -> Status | None:
    """Return the status of a run that ends after `iteration` iterations with this change; None if it continues."""
    is_fixed = options.tol_mode == "fixed"
    if is_wrong:
        return Status.NON_FINITE
    if not is_fixed and change < threshold:
        return Status.CONVERGED
    if iteration < options.max_iter:
        return None
    return Status.COMPLETED if is_fixed else Status.MAX_ITER


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
    """Transport of slices between workers: `direct`, `nccl`, `peer` or `scheduler`; None in one process."""
    stability: Stability | None = None
    """Proven stability of the highest vertices; None where nothing was proven."""
    recoveries: tuple[Recovery, ...] = ()
    """Recoveries of the run, each of which continued it with other workers."""
    underflow: Underflow | None = None
    """Vertices whose rank is 0 by underflow, see `mgspmv.iterate.underflow`; None where none was found."""


def bound_mass_rounding(n_dangling: int) -> float:
    """Bound the rounding of the sum of the ranks of `n_dangling` dangling vertices: half a unit each."""
    return n_dangling * 0.5 / FIXED_POINT


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
        return None

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
    keeper: Keeper | None = None,
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
    options: PageRankOptions,
    threshold: float,
    emit: Callable[[Event], None],
    *,
    run: str = "",
    growth: float = 1.0,
    keeper: Keeper | None = None,
    balance: Balance | None = None,
) -> Outcome:
    """Iterate in this process over all rows of the matrix.

    Parameters
    ----------
    steps : of all rows
    emit : called with the event of each iteration
    growth : of `Start`
    keeper : of the run's checkpoints, with the last of which the rows start; None for none
    balance : of `Start`; None where the sum of the ranks is unknown

    Raises
    ------
    CorruptionError : the ranks are corrupted
    """
    began = time.perf_counter()
    steps.compile()
    compiled = time.perf_counter()
    loop = Loop(steps, options, threshold, run, steps.watch(options, growth=growth), find_before(keeper), balance)
    here = _Here(steps, loop)
    try:
        outcome = run_to_end(here, options.alpha, emit, keeper)
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
        self._steps, self._loop, self.status = steps, loop, loop.status

    def close(self) -> None:
        """Stop writing checkpoints."""
        self._writer.close()

    def start(self) -> None:
        loop, steps = self._loop, self._steps
        loop.start()
        self._tolerance, self._due_s = steps.find_tolerance(), time.monotonic() + CHECK_S
        if loop.balance is not None:
            loop.balance = loop.balance.begin_at(steps.check_rows().sum)

    def iterate(self) -> Iterator[tuple[Event, bool]]:
        loop = self._loop
        for event in loop.advance():
            self.status = loop.status
            is_due = loop.status is not None or time.monotonic() >= self._due_s
            if is_due and not loop.is_ahead:
                self._check()
            yield event, not loop.is_ahead
        self.seconds = loop.seconds

    def find_stability(self) -> Stability | None:
        return self._loop.stability

    def measure(self) -> float:
        return self._steps.measure(self._loop.mass)

    def collect(self) -> np.ndarray:
        return self._steps.collect()

    def _check(self) -> None:
        loop = self._loop
        if loop.status != Status.NON_FINITE:
            found = self._steps.check_rows()
            check_rows(found, loop.mass, loop.balance, self._tolerance.find_slack(found.sum), loop.iteration)
        self._due_s = time.monotonic() + CHECK_S

    def _copy_ranks(self) -> np.ndarray:
        self._check()
        return self._steps.ranks()


def find_before(keeper: Keeper | None) -> Reached:
    """Return the progress that a run resumes from."""
    return BEGINNING if keeper is None else keeper.before
