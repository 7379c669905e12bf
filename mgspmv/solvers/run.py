"""The run of an iteration, from its first step to its result: on the host, on a device, or on the workers of a cluster.

run             start, iterate, bound the error, collect; checkpoints and times between
  Execution     which iterations are made: `Loop` (PageRank), `Batch` and `PowerLoop` in one process, and others in
                `mgspmv.cluster`, whose workers have such a loop each
MassCheck       expected sum of the ranks, by which failures of memory or a processor are detected

    sum of x' = alpha (sum over j of s_j x_j + m D) + 1 - alpha,   s_j = (sum of column j of A) / w_j

where j runs over non-dangling vertices, m is the rank of dangling ones, and D the sum of d. All s_j are 1, unless the
user gave out-weights, and so the sum before a step and m, which every step takes, determine the sum after it. Between
two checks of the ranks only the numbers of this formula are computed; a check is a pass over the vectors of the rows.

An error in one step shrinks by alpha in each later step, in the ranks as in their sum: an error that is too small to be
found by a check is too small to be seen in the ranks.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from mgspmv.errors import CorruptionError
from mgspmv.kernels.formats import array_module
from mgspmv.model import (
    CHANGE_POINT,
    FIXED_POINT,
    Event,
    Progress,
    Recovery,
    RowCheck,
    Stability,
    Status,
    Underflow,
    ignore,
)

if TYPE_CHECKING:
    from mgspmv.checkpoints import Checkpointer, StateAddress, WrittenSlice

CORRUPTION_ADVICE = (
    "memory, a processor or a link failed; check the machines' logs for hardware errors, check the store with "
    "`mgspmv verify`, and run again, with resume=True if there is a checkpoint"
)
LEAST_FLOAT = {"float32": 2.0**-150, "float64": 2.0**-1075, "exact": 2.0**-1075}
"""Largest rounding error of a number near 0, by the precision of z."""
_PIECE = 1 << 16
"""Out-weights per chunk of a survey."""


@dataclass(frozen=True, eq=False)
class Collected:
    """Result of the iterations of a process, or of one worker."""

    values: Any
    """(n,) float32 or float64: the vector; of a worker its rows, on the host; of a batch the list of its endings."""
    transport: str | None = None
    """Transport of slices between workers: `ipc`, `nccl`, `peer` or `client`; `local` for workers that exchange none;
    None in one process."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds by phase; of a process those of phases other than products and exchanges, where those of `compile` are
    within `start`."""
    memory: dict[str, list[int]] = field(default_factory=dict)
    """Bytes by kind, one element per worker; see `Solution.memory`."""
    stability: Stability | None = None
    """Proven stability of the highest vertices; None where nothing was proven."""
    width: int = 1
    """Most vectors in a pass."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Outcome(Collected):
    """Outcome of a run."""

    status: Status
    """Status at the end: converged, or the reason why not."""
    error_bound_l1: float
    """Bound on ||values - exact ranks||_1; infinite where ranks are not finite, or no error is bounded."""
    hardware: str
    """Description of the hardware."""
    recoveries: tuple[Recovery, ...] = ()
    """Recoveries of the run, each of which continued it with other workers."""
    underflow: Underflow | None = None
    """Vertices whose rank is 0 by underflow, see `mgspmv.solvers.pagerank`; None where none was found."""


class Execution(ABC):
    """Iterations of a run, in this process or on workers.

    Attributes
    ----------
    status : at the end; None before that
    is_ahead : whether steps were made after the last reported iteration, so that the ranks are later ones
    early_s : seconds of `start` in which iterations were made
    """

    status: Status | None = None
    is_ahead = False
    early_s = 0.0

    @abstractmethod
    def describe(self) -> str:
        """Describe the hardware."""

    @abstractmethod
    def start(self) -> None:
        """Prepare the first iteration."""

    @abstractmethod
    def advance(self, n: int | None = None) -> Iterator[Event]:
        """Iterate to the end, or n times if that is less; yield the event of each iteration."""

    def write_state(self, address: StateAddress) -> Sequence[WrittenSlice | str]:
        """Write the ranks of the last iteration to a checkpoint; return the slices, or why they cannot be written."""
        raise NotImplementedError

    def measure(self) -> float:
        """Bound |G(x) - x| in L1 of the ranks x, where G is a step. No more iterations can be made after it."""
        raise NotImplementedError

    @abstractmethod
    def collect(self) -> Collected:
        """Return the result."""


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
    events, changes = list[Event](), list[float]()
    before_s = 0.0 if keeper is None else keeper.blocked_s
    began = time.perf_counter()
    execution.start()
    started = time.perf_counter() - execution.early_s
    on_start()
    for event in execution.advance():
        events.append(event)
        changes.append(event.change)
        emit(event)
        if keeper is not None and not execution.is_ahead and execution.status is None:
            keeper.look(execution.write_state, changes)
    status = execution.status
    assert status is not None
    if keeper is not None:
        keeper.end(execution.write_state, changes, status)
    kept_s = 0.0 if keeper is None else keeper.blocked_s - before_s
    iterated = time.perf_counter()
    bound = math.inf
    # Before `collect`, which releases the memory of a device.
    if alpha is not None:
        report("residual", 0, None)
        bound = bound if status == Status.NON_FINITE else bound_error(execution.measure(), alpha)
    measured = time.perf_counter()
    found = execution.collect()
    collected = time.perf_counter()
    seconds = sum_seconds(events) | found.seconds
    compile_s = seconds.get("compile", 0.0)
    seconds["schedule"] = max(0.0, iterated - started - kept_s - (sum(seconds.values()) - compile_s))
    seconds |= {"start": max(0.0, started - began - compile_s), "collect": collected - measured}
    seconds |= {} if alpha is None else {"residual": measured - iterated}
    seconds |= {} if keeper is None else {"checkpoint": kept_s}
    of_processes = vars(replace(found, seconds=seconds))
    return Outcome(status=status, error_bound_l1=bound, hardware=execution.describe(), **of_processes)


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
    return {"product": sum(max(e.product_s) for e in events), "exchange": sum(fmean(e.exchange_s) for e in events)}


# --- checks of the ranks ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rounding:
    """Rounding error of a step: `relative` of each new rank, and in addition `mass` of all together in L1.

    Summed over workers by `+`.
    """

    longest: int
    """Number of entries of the longest row."""
    nnz: int
    n_dangling: int
    entry: float = 0.0
    """Absolute error of each product that is rounded to fixed point."""

    def __add__(self, other: Rounding) -> Rounding:
        return Rounding(
            max(self.longest, other.longest),
            self.nnz + other.nnz,
            self.n_dangling + other.n_dangling,
            max(self.entry, other.entry),
        )

    def find_relative(self, precision: str) -> float:
        """Bound the relative error: `exact` rounds products as float64 first; `float32` rounds z, values and ranks."""
        terms = 16 + (self.longest if precision != "exact" else 0)
        return terms * 2.0**-53 + (4 * 2.0**-24 if precision == "float32" else 0.0)

    def find_mass(self, precision: str) -> float:
        """Bound the absolute error of all ranks together, in L1."""
        entry = {"exact": 1 / FIXED_POINT, "float64": 0.0, "float32": max(self.entry, 2.0**-148)}[precision]
        return self.nnz * entry + self.n_dangling / FIXED_POINT


@dataclass(frozen=True)
class MassCheck:
    """Bounds of the sum of the ranks, up to rounding."""

    alpha: float
    given: float
    """D: 1, or 0 where the rank of dangling vertices is dropped."""
    least: float
    """Smallest s_j; see above."""
    most: float
    """Largest s_j."""
    low: float
    """Lower bound of the sum."""
    high: float
    """Upper bound of the sum."""

    def step(self, mass: float) -> MassCheck:
        """Return the balance after a step from ranks of which dangling vertices have `mass`."""
        rest = self.alpha * mass * self.given + 1.0 - self.alpha
        low = self.alpha * self.least * max(0.0, self.low - mass) + rest
        return replace(self, low=low, high=self.alpha * self.most * (self.high - mass) + rest)

    def check(self, total: float, slack: float, iteration: int) -> None:
        """Check the sum of the ranks.

        Parameters
        ----------
        total : of all ranks
        slack : bound on the rounding error of the sum in a step
        """
        shrink = self.alpha * max(self.most, 1.0)
        slack = slack / (1.0 - shrink) if shrink < 1.0 else math.inf  # includes errors of earlier steps
        if not self.low - slack <= total <= self.high + slack:
            expected = f"{self.low!r}" if self.low == self.high else f"{self.low!r} to {self.high!r}"
            raise CorruptionError(
                f"after iteration {iteration} the ranks sum to {total!r}, expected {expected} up to {slack:.2g} of "
                f"rounding: {CORRUPTION_ADVICE}"
            )


def find_tolerance(rounding: Rounding, weight: Any, precision: str, *, has_values: bool) -> tuple[float, float]:
    """Bound the rounding error of the sum of the ranks of some rows, in a step and in summation: relative to the sum,
    and in addition.

    `rounding` bounds that of a step, in L1: in `exact` z and products are off by half a unit of 2^-62 each, and
    intermediates by a few 2^-53; sums of k floats by k 2^-53; in `float32` z, values, products and ranks by 2^-24. In
    addition, z and values near the smallest float have a larger relative error, and each rank is rounded by half a
    unit of 2^-61 in summation.

    Parameters
    ----------
    weight : out-weights of the rows, an array of NumPy or CuPy
    has_values : whether entries are more than a pattern
    """
    relative, least = rounding.find_relative(precision), LEAST_FLOAT[precision]
    lightest, heavy = _survey(weight)
    if has_values and lightest < math.inf:
        relative += rounding.nnz * least / lightest
    absolute = rounding.find_mass(precision) + least * heavy + len(weight) * 0.5 / CHANGE_POINT
    return relative, absolute


def _survey(weight: Any) -> tuple[float, float]:
    """Return the smallest nonzero weight and the sum; on the host without a mask of all of them."""
    lightest = math.inf
    if not isinstance(weight, np.ndarray) and len(weight):
        xp = array_module(weight)
        is_heavy = xp.greater(weight, 0)  # for the operator CuPy would import SciPy
        return float(xp.where(is_heavy, weight, math.inf).min()), float(weight.sum())
    for first in range(0, len(weight), _PIECE):
        piece = weight[first : first + _PIECE]
        lightest = min(lightest, float(np.where(piece > 0, piece, math.inf).min()))
    with np.errstate(over="ignore"):  # a run with such weights ends as non_finite, with advice
        return lightest, float(weight.sum())


def check_rows(found: RowCheck, mass: float, balance: MassCheck | None, slack: float, iteration: int) -> None:
    """Check all ranks for corruption.

    Parameters
    ----------
    mass : sum of the ranks of dangling vertices when they were computed
    balance : of all ranks; None where their sum is unknown
    slack : as in `MassCheck.check`

    Raises
    ------
    CorruptionError : ranks, their mass or their sum are wrong
    """
    if found.n_off:
        raise CorruptionError(f"after iteration {iteration} {describe_off(found.n_off)}: {CORRUPTION_ADVICE}")
    if found.mass != mass:
        raise CorruptionError(
            f"after iteration {iteration} the ranks of dangling vertices sum to {found.mass!r}, but summed to "
            f"{mass!r} when they were computed: {CORRUPTION_ADVICE}"
        )
    if balance is not None:
        balance.check(found.sum, slack, iteration)


def describe_off(n_off: int) -> str:
    """Describe a number of corrupted rows."""
    return f"the ranks of {n_off} vertices changed after they were computed"
