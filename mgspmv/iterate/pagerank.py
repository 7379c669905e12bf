"""PageRank by power iteration, in fused steps.

    z = x / w (0 where w = 0);   m = sum of x over dangling vertices
    x' = alpha (A z + m d) + (1 - alpha) p;   stop on |x' - x|

A holds the in-edges of each vertex in its row, w the out-weights, p the personalization, d where the rank of dangling
vertices goes. Page, Brin, Motwani, Winograd: The PageRank Citation Ranking (1999); differs from it in that dangling
vertices stay in the graph, as in NetworkX and cuGraph.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any, Protocol, Self

import numpy as np

from mgspmv.checkpoints import Reached
from mgspmv.exchange.transport import LocalTransport, Panel, Transport
from mgspmv.iterate.balance import Balance, Tolerance, check_rows, find_tolerance
from mgspmv.iterate.keeping import Keeper, OwnWriter
from mgspmv.iterate.options import PageRankOptions
from mgspmv.iterate.stable import Gather, Rounding, Watch
from mgspmv.kernels.bound import BoundKernel
from mgspmv.kernels.ranges import Range
from mgspmv.kernels.rank_steps import RankRules, RankSteps, RankVectors
from mgspmv.model import FIXED_POINT, Event, Recovery, RowCheck, Stability, Status, StepSums

STEPS_AT_ONCE = 20
"""Most steps of a device between two looks at what they did."""
CHECK_S = 5.0
"""Seconds in this process from one look at whether the ranks are what they must be to the next."""


def choose_steps_at_once(*, streams: bool) -> int:
    """Steps between two looks; one where rows come by, for which a step takes long.

    Parameters
    ----------
    streams : whether rows come by on any of the devices
    """
    return 1 if streams else STEPS_AT_ONCE


@dataclass(eq=False)
class Rows:
    """What the owner of a block keeps from step to step; all vectors are of its rows, and where the block is."""

    kernel: BoundKernel
    """Bound to the block."""
    x: Any
    """(n_rows,) ranks, float32 or float64; overwritten by each step."""
    weight: Any
    """(n_rows,) float64 out-weights; 0 for dangling vertices."""
    dangling: Any
    """(n_rows,) or (1,) float64: d."""
    personalization: Any
    """(n_rows,) or (1,) float64: p."""
    n_dangling: int
    """Dangling vertices among the rows."""

    @property
    def start(self) -> int:
        return self.kernel.block.row_offset

    @property
    def stop(self) -> int:
        return self.start + self.kernel.block.n_rows

    @property
    def rounding(self) -> Rounding:
        """What rounding does to steps of these rows."""
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
    """What a step took; each tuple has an element for each worker, and the fields are those of `Event`."""

    product_s: tuple[float, ...]
    exchange_s: tuple[float, ...]
    wait_s: tuple[float, ...]
    exchanged_bytes: tuple[int, ...]
    memory_bytes: tuple[int, ...]


class Steps(Protocol):
    """A way to make the steps of a run: in this process, with peers, or on workers that this process drives."""

    def scale(self) -> StepSums:
        """Make z of the first x; the sums that belong to x."""
        ...

    def step(self, mass: float) -> tuple[StepSums, Times]:
        """Make one step on all rows; `mass` is the sum over dangling vertices of the x before it."""
        ...

    def ranks(self) -> np.ndarray:
        """(n,) a copy of the ranks of the rows that this process looks at, on the host."""
        ...


class LocalSteps:
    """Steps of this process, with the slices of others from a transport.

    Parameters
    ----------
    rows : the blocks of this process; their `x` hold the start and, after each step, the ranks
    transport : for vectors of the kernels' `z_dtype`
    is_relative : as for `BoundKernel.step`
    """

    def __init__(self, rows: Sequence[Rows], transport: Transport, alpha: float, *, is_relative: bool = False) -> None:
        self.rows, self._transport, self._alpha, self._is_relative = rows, transport, alpha, is_relative
        self._watch: Watch | None = None

    def scale(self) -> StepSums:
        return self._transport.exchange_columns([_scale(self.rows, self._transport)])[0]

    def step(self, mass: float) -> tuple[StepSums, Times]:
        transport = self._transport
        [sums], times = time_step(transport, lambda: [self._multiply(mass)])
        watched = 0 if self._watch is None else self._watch.nbytes
        return sums, replace(times, memory_bytes=(sum(r.nbytes for r in self.rows) + transport.nbytes + watched,))

    def ranks(self) -> np.ndarray:
        held = [r.kernel.get(r.x) for r in self.rows]
        return held[0] if len(held) == 1 and held[0] is not self.rows[0].x else np.concatenate(held)

    def watch(self, options: PageRankOptions, gather: Gather | None = None, growth: float = 1.0) -> Watch | None:
        """What looks at the ranks for `stop="topk:..."`; None where nothing is to.

        Parameters
        ----------
        gather, growth : as for `Watch`
        """
        if options.top is None:
            return None
        weight, dangling, personalization = (self._join(n) for n in ("weight", "dangling", "personalization"))
        self._watch = Watch(options, weight == 0, dangling, personalization, self._rounding, gather, growth)
        return self._watch

    def check_rows(self) -> RowCheck:
        """What the ranks of these rows sum to, and where z is not what they give."""
        own = [self._transport.get_own(r.start, r.stop) for r in self.rows]
        found = (r.kernel.check_rows(r.x, r.weight, z) for r, z in zip(self.rows, own, strict=True))
        return sum(found, RowCheck())

    def find_tolerance(self) -> Tolerance:
        """What rounding may do to the sum of the ranks of these rows."""
        kernel, weights = self.rows[0].kernel, [r.kernel.get(r.weight) for r in self.rows]
        return find_tolerance(self._rounding, weights, kernel.precision, has_values=kernel.block.data is not None)

    def begin_residual(self) -> None:
        """Make z of the ranks in float64. No more steps can be made after it."""
        self.rows = [replace(r, kernel=r.kernel.with_precision("float64")) for r in self.rows]
        self._transport.restart(np.dtype(np.float64))
        self._transport.exchange_columns([_scale(self.rows, self._transport)])

    def residual(self, mass: float) -> float:
        """This process's part of a bound on |G(x) - x| in L1, where G is a step; after `begin_residual`.

        G is evaluated in float64, and a bound on the rounding of doing so is added, and of the dangling mass: half a
        unit of fixed point for each vertex.
        """
        vectors = [(self._transport.z, r.x, self._alpha, mass, r.dangling, r.personalization) for r in self.rows]
        residual = sum(r.kernel.residual(*v) for r, v in zip(self.rows, vectors, strict=True))
        mass_rounding = bound_mass_rounding(sum(r.n_dangling for r in self.rows))
        return float(residual + self._alpha * mass_rounding)

    @property
    def _rounding(self) -> Rounding:
        return sum((r.rounding for r in self.rows[1:]), self.rows[0].rounding)

    def _join(self, name: str) -> np.ndarray:
        """(n,) a vector of all blocks, on the host."""
        each = [r.kernel.get(getattr(r, name)) for r in self.rows]
        shapes = [(r.kernel.block.n_rows,) for r in self.rows]
        return np.concatenate([np.broadcast_to(v, shape) for v, shape in zip(each, shapes, strict=True)])

    def _multiply(self, mass: float) -> StepSums:
        sums = StepSums()
        for r in self.rows:
            slot = self._transport.slot(r.start, r.stop)
            vectors = (self._transport.z, r.x, slot, r.weight)
            shares = (r.dangling, r.personalization)
            sums += r.kernel.step(*vectors, self._alpha, mass, *shares, is_relative=self._is_relative)
        return sums


def time_step(panel: Panel, multiply: Callable[[], list[StepSums]]) -> tuple[list[StepSums], Times]:
    """Everybody's sums of a step, of each column, and what it took, but for the bytes held.

    Parameters
    ----------
    multiply : fills the slots of a panel, and gives the sums of this process
    """
    received, waited = panel.exchanged_bytes, panel.waited_s
    began = time.perf_counter()
    with Range("product"):
        own = multiply()
    multiplied = time.perf_counter()
    with Range("exchange"):
        sums = panel.exchange_columns(own, multiplied - began)
    exchanged_s = time.perf_counter() - multiplied
    wait_s = min(exchanged_s, panel.waited_s - waited)
    moved = panel.exchanged_bytes - received
    return sums, Times((multiplied - began,), (exchanged_s - wait_s,), (wait_s,), (moved,), (0,))


class DeviceSteps:
    """Steps that a device makes by the dozen; the host learns afterwards what they did.

    Parameters
    ----------
    device : has the whole matrix
    vectors : what the run starts with
    at_once : most steps between two looks, the same on all devices of a run
    is_counted : whether the out-weights of a pattern are counts
    n_before : iterations that were made before the vectors were these
    """

    def __init__(
        self,
        device: RankSteps,
        vectors: RankVectors,
        options: PageRankOptions,
        threshold: float,
        at_once: int = STEPS_AT_ONCE,
        *,
        is_counted: bool = True,
        n_before: int = 0,
    ) -> None:
        self._device, self._vectors, self._at_once = device, vectors, at_once
        self._left = options.max_iter - n_before
        self._rules = make_rules(options, threshold, is_counted=is_counted)
        self._made: list[tuple[StepSums, Times]] = []
        self._pauses: Callable[[], int] | None = None

    def pause(self, count: Callable[[], int]) -> None:
        """Let the host have the ranks after as many steps, or fewer, as this says each time."""
        self._pauses = count

    @property
    def is_ahead(self) -> bool:
        """Whether the device has made steps that nobody asked for yet, so that its ranks are later ones."""
        return bool(self._made)

    def scale(self) -> StepSums:
        return self._device.start(self._vectors, self._rules)

    def step(self, mass: float) -> tuple[StepSums, Times]:
        if not self._made:
            device = self._device
            most = self._at_once if self._pauses is None else min(self._at_once, self._pauses())
            sums = device.advance(min(most, self._left))
            assert sums, "the device has stopped, and the loop has not"
            rest = ((0.0,), (device.received_bytes,), (device.nbytes,))
            times = [Times((product_s,), (exchange_s,), *rest) for product_s, exchange_s in device.seconds]
            self._made = list(zip(sums, times, strict=True))[::-1]
        self._left -= 1
        return self._made.pop()

    def ranks(self) -> np.ndarray:
        return self._device.ranks()

    def watch(self, options: PageRankOptions, gather: Gather | None = None, growth: float = 1.0) -> Watch | None:
        """As `LocalSteps.watch`."""
        if options.top is None:
            return None
        vectors, is_dangling = self._vectors, self._vectors.weight == 0
        return Watch(options, is_dangling, vectors.dangling, vectors.personalization, self._rounding, gather, growth)

    def check_rows(self) -> RowCheck:
        """As `LocalSteps.check_rows`, of the rows of the device."""
        return self._device.check_rows()

    def find_tolerance(self) -> Tolerance:
        """As `LocalSteps.find_tolerance`."""
        device = self._device
        return find_tolerance(self._rounding, [self._vectors.weight], device.precision, has_values=device.has_values)

    @property
    def _rounding(self) -> Rounding:
        device, n_dangling = self._device, int(np.count_nonzero(self._vectors.weight == 0))
        longest = nnz = device.layout.nnz  # the layout does not tell of its rows
        return Rounding(longest, nnz, n_dangling, device.entry_rounding)


def make_rules(options: PageRankOptions, threshold: float, *, is_counted: bool = True) -> RankRules:
    """What a device has to know of a run; parameters as for `DeviceSteps`."""
    return RankRules(options.alpha, threshold, options.by_largest, options.is_relative, is_counted)


class Loop:
    """Iterates to the end. Everybody who goes through it with the same sums makes the same iterations.

    Parameters
    ----------
    threshold : of the change, from `PageRankOptions.threshold`
    watch : looks at the ranks on the way
    before : what the first ranks were reached by; None for none
    balance : what the first ranks sum to; None where nothing is known

    Attributes
    ----------
    balance : what the ranks sum to after the last iteration
    iteration : iterations made, also before
    mass : sum of the ranks over dangling vertices
    status : how the iteration ended; None before that
    """

    def __init__(
        self,
        steps: Steps,
        options: PageRankOptions,
        threshold: float,
        run: str = "",
        watch: Watch | None = None,
        before: Reached | None = None,
        balance: Balance | None = None,
    ) -> None:
        self._steps, self._options, self._threshold, self._run = steps, options, threshold, run
        self._watch = watch
        self._is_wrong = False
        self._last = options.max_iter
        self.balance = balance
        self.iteration, self._epoch = (0, 0) if before is None else (before.iteration, before.epoch + 1)
        self.mass = 0.0
        self.status: Status | None = None
        if before is not None and before.changes:
            self.status = judge(options, threshold, before.iteration, before.changes[-1], False)

    def start(self) -> None:
        """Make the first z."""
        first = self._steps.scale()
        if self._watch is not None:
            self._watch.start()
            if isinstance(self._steps, DeviceSteps):
                self._steps.pause(self._count_to_look)
        self.mass, self._is_wrong = first.dangling / FIXED_POINT, first.n_wrong > 0
        if self._watch is not None:
            self._watch.see(0, self._steps.ranks(), self.mass)

    def advance(self, n: int | None = None) -> Iterator[Event]:
        """Iterate to the end, or n times if that is less; what each iteration did."""
        self._last = self._options.max_iter if n is None else self.iteration + n
        while self.status is None and self.iteration < self._last:
            self.balance = None if self.balance is None else self.balance.step(self.mass)
            sums, times = self._steps.step(self.mass)
            self.iteration, self.mass = self.iteration + 1, sums.dangling / FIXED_POINT
            change = self._options.measure(sums)
            is_wrong = self._is_wrong or sums.n_wrong > 0
            if self._watch is not None and not is_wrong and self._watch.wants(self.iteration):
                self._watch.see(self.iteration, self._steps.ranks(), self.mass)
            self.status = self._judge(change, is_wrong)
            yield Event(self._run, self._epoch, self.iteration, change, **vars(times))

    def stay_here(self) -> None:
        """Let no device go beyond the iterations of one `advance`, after which its ranks are then those reached."""
        if isinstance(self._steps, DeviceSteps):
            self._steps.pause(lambda: min(self._last - self.iteration, self._count_to_look()))

    @property
    def seconds(self) -> dict[str, float]:
        """`look`, where ranks are looked at on the way."""
        return {} if self._watch is None else {"look": self._watch.elapsed_s}

    @property
    def stability(self) -> Stability | None:
        """What is proven of the highest vertices; None where nothing is."""
        return None if self._watch is None else self._watch.found

    def _count_to_look(self) -> int:
        """Iterations until the ranks are looked at next."""
        return self._options.max_iter if self._watch is None else self._watch.count_steps(self.iteration)

    def _judge(self, change: float, is_wrong: bool) -> Status | None:
        if self.stability is not None and not is_wrong:
            return Status.STABLE
        return judge(self._options, self._threshold, self.iteration, change, is_wrong)


def judge(options: PageRankOptions, threshold: float, iteration: int, change: float, is_wrong: bool) -> Status | None:
    """How a run ends after so many iterations, of which the last had this change; None when it goes on."""
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
    """How a run ended."""

    values: np.ndarray
    """(n,) float32 or float64: the ranks."""
    status: Status
    """Converged, or why not."""
    error_bound_l1: float
    """||values - exact ranks||_1 is at most this; infinite where ranks are not finite."""
    hardware: str
    """What computed."""
    seconds: dict[str, float] = field(default_factory=dict)
    """By phase."""
    memory: dict[str, list[int]] = field(default_factory=dict)
    """Bytes, each of one element for each worker; see `Solution.memory`."""
    transport: str | None = None
    """How slices went from worker to worker: `direct`, `nccl`, `peer` or `scheduler`; None in one process."""
    stability: Stability | None = None
    """What was proven of the highest vertices; None where nothing was."""
    recoveries: tuple[Recovery, ...] = ()
    """How the run went on with other workers than before."""


def bound_mass_rounding(n_dangling: int) -> float:
    """Upper bound on the rounding of the sum of the ranks of so many dangling vertices: half a unit each."""
    return n_dangling * 0.5 / FIXED_POINT


def bound_error(residual: float, alpha: float) -> float:
    """Upper bound on the L1 distance of x to the solution: a step G shrinks L1 distances by alpha, so
    |x - x*| <= |G(x) - x| / (1 - alpha)."""
    return float(residual / (1.0 - alpha))


def widen_bound(bound: float, alpha: float, growth: float) -> float:
    """What `bound_error` gave, where a step shrinks distances by alpha * growth and not by alpha."""
    return bound * (1.0 - alpha) / (1.0 - alpha * growth) if alpha * growth < 1.0 else math.inf


def add_event(events: list[Event], event: Event) -> None:
    """Put an event at the end of those of a run, of which iterations that are made again are then gone."""
    while events and events[-1].iteration >= event.iteration:
        events.pop()
    events.append(event)


def sum_seconds(events: Sequence[Event]) -> dict[str, float]:
    """Seconds of all iterations: in `product` those of the slowest worker each time, which the others wait for; in
    `exchange` the mean of the workers, who begin and end it together but for what clocks and threads do."""
    return {
        "product": sum(max(e.product_s) for e in events),
        "exchange": sum(fmean(e.exchange_s) for e in events),
    }


def run_embedded(
    rows: Sequence[Rows],
    options: PageRankOptions,
    threshold: float,
    emit: Callable[[Event], None],
    *,
    run: str = "",
    growth: float = 1.0,
    keeper: Keeper | None = None,
    balance: Balance | None = None,
) -> Outcome:
    """Iterate in this process over rows that make up the whole matrix.

    Parameters
    ----------
    emit : gets an event for each iteration
    growth : of `Start`
    keeper : of the run's states, the last of which the rows have; None where none are kept
    balance : of `Start`; None where nothing is known of the sum of the ranks

    Raises
    ------
    CorruptionError : the ranks are not what they must be
    """
    began = time.perf_counter()
    kernel = rows[0].kernel
    kernel.compile(is_relative=options.is_relative)
    compiled = time.perf_counter()
    transport = LocalTransport(kernel.block.n_cols, kernel.z_dtype, kernel.zeros)
    steps = LocalSteps(rows, transport, options.alpha, is_relative=options.is_relative)
    loop = Loop(steps, options, threshold, run, steps.watch(options, growth=growth), find_before(keeper), balance)

    def measure(mass: float) -> float:
        steps.begin_residual()
        return steps.residual(mass)

    def collect() -> np.ndarray:  # without a copy on the host, where there is one block
        return kernel.get(rows[0].x) if len(rows) == 1 else np.concatenate([kernel.get(r.x) for r in rows])

    outcome = _run_to_the_end(loop, steps, emit, keeper, options.alpha, measure, collect)
    outcome.seconds["compile"] = compiled - began
    return replace(outcome, hardware=kernel.describe())


def run_on_device(
    device: RankSteps,
    vectors: RankVectors,
    options: PageRankOptions,
    threshold: float,
    emit: Callable[[Event], None],
    *,
    run: str = "",
    is_counted: bool = True,
    growth: float = 1.0,
    keeper: Keeper | None = None,
    balance: Balance | None = None,
) -> Outcome:
    """Iterate on the device that has the whole matrix; parameters as for `DeviceSteps` and `run_embedded`.

    Raises
    ------
    CorruptionError : as of `run_embedded`
    """
    began = time.perf_counter()
    device.compile(make_rules(options, threshold, is_counted=is_counted))
    compiled = time.perf_counter()
    at_once = choose_steps_at_once(streams=device.streams)
    before = find_before(keeper)
    counted: dict[str, Any] = {"is_counted": is_counted, "n_before": 0 if before is None else before.iteration}
    steps = DeviceSteps(device, vectors, options, threshold, at_once, **counted)
    loop = Loop(steps, options, threshold, run, steps.watch(options, growth=growth), before, balance)

    def measure(mass: float) -> float:
        mass_rounding = bound_mass_rounding(int(np.count_nonzero(vectors.weight == 0)))
        return device.residual(mass) + options.alpha * mass_rounding

    outcome = _run_to_the_end(loop, steps, emit, keeper, options.alpha, measure, device.ranks)
    device.release()
    outcome.seconds["compile"] = compiled - began
    return replace(outcome, hardware=device.describe())


def _run_to_the_end(
    loop: Loop,
    steps: LocalSteps | DeviceSteps,
    emit: Callable[[Event], None],
    keeper: Keeper | None,
    alpha: float,
    measure: Callable[[float], float],
    collect: Callable[[], np.ndarray],
) -> Outcome:
    """Iterate in this process, measure the error and give the ranks; the caller knows the hardware.

    Parameters
    ----------
    measure : gives a bound on |G(x) - x| in L1 of the ranks reached, by the sum over dangling vertices
    collect : gives the ranks
    """
    began = time.perf_counter()
    loop.start()
    looks = _Looks(loop, steps)
    started = time.perf_counter()
    with _Keeping(keeper, steps, looks) as kept:
        events = kept.run_to_the_end(loop, emit)
        stepped = time.perf_counter()
        assert loop.status is not None
        bound = math.inf if loop.status == Status.NON_FINITE else bound_error(measure(loop.mass), alpha)
        measured = time.perf_counter()
        values = collect()
        collected = time.perf_counter()
    seconds = sum_seconds(events) | loop.seconds | {"compile": 0.0, "start": started - began}
    seconds |= {"residual": measured - stepped, "collect": collected - measured} | kept.seconds
    return Outcome(values, loop.status, bound, "", seconds, stability=loop.stability)


class _Looks:
    """Looks whether the ranks of this process are what they must be: now and then, and before they are kept or given.

    Parameters
    ----------
    loop : that has begun, and made no iteration
    steps : that have the ranks
    """

    def __init__(self, loop: Loop, steps: LocalSteps | DeviceSteps) -> None:
        self._loop, self._steps, self._tolerance = loop, steps, steps.find_tolerance()
        if loop.balance is not None:
            loop.balance = loop.balance.begin_at(steps.check_rows().sum)
        self._due_s = time.monotonic() + CHECK_S

    def look(self) -> None:
        """If it is time, or the last iteration is made.

        Raises
        ------
        CorruptionError : they are not
        """
        if self._loop.status is not None or time.monotonic() >= self._due_s:
            self.check()

    def check(self) -> None:
        """At once; likewise."""
        loop = self._loop
        if loop.status != Status.NON_FINITE:
            found = self._steps.check_rows()
            check_rows(found, loop.mass, loop.balance, self._tolerance.find_slack(found.sum), loop.iteration)
        self._due_s = time.monotonic() + CHECK_S


class _Keeping:
    """Iterating in this process, while the states of the run are kept, if they are to be.

    Parameters
    ----------
    steps : that have the ranks
    """

    def __init__(self, keeper: Keeper | None, steps: LocalSteps | DeviceSteps, looks: _Looks) -> None:
        self._keeper, self._steps, self._looks = keeper, steps, looks
        self._writer = OwnWriter(self._copy_ranks)
        self._schedule_s = 0.0

    def __enter__(self) -> Self:
        if self._keeper is not None:
            self._keeper.begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if self._keeper is not None and error is None:
            self._keeper.finish(self._writer)
        self._writer.close()

    def run_to_the_end(self, loop: Loop, emit: Callable[[Event], None]) -> list[Event]:
        """Iterate; the event of each iteration."""
        keeper, events = self._keeper, list[Event]()
        began, blocked_s = time.perf_counter(), self._blocked_s
        changes: list[float] = []
        for event in loop.advance():
            events.append(event)
            emit(event)
            changes.append(event.change)
            if self._is_ahead:
                continue
            self._looks.look()
            if keeper is not None and loop.status is None:
                keeper.look(self._writer, changes)
        if keeper is not None and loop.status is not None:
            keeper.end(self._writer, changes, loop.status)
        told_s = sum(sum_seconds(events).values()) + sum(loop.seconds.values()) + self._blocked_s - blocked_s
        self._schedule_s = max(0.0, time.perf_counter() - began - told_s)
        return events

    @property
    def seconds(self) -> dict[str, float]:
        """`schedule`: what iterating took that no other phase tells; `checkpoint`, where states are kept."""
        return {"schedule": self._schedule_s} | ({} if self._keeper is None else {"checkpoint": self._blocked_s})

    @property
    def _blocked_s(self) -> float:
        return 0.0 if self._keeper is None else self._keeper.blocked_s

    def _copy_ranks(self) -> np.ndarray:
        self._looks.check()
        return self._steps.ranks()

    @property
    def _is_ahead(self) -> bool:
        return isinstance(self._steps, DeviceSteps) and self._steps.is_ahead


def find_before(keeper: Keeper | None) -> Reached | None:
    """What a run goes on from; None where it begins."""
    return None if keeper is None else keeper.before


def _scale(rows: Sequence[Rows], transport: Transport) -> StepSums:
    return sum((r.kernel.scale(r.x, r.weight, transport.slot(r.start, r.stop)) for r in rows), StepSums())
