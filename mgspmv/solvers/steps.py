"""Steps of a PageRank run on the rows of one process: by kernels over CSR, or on a device in batches."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mgspmv.exchange.exchange import Exchange, LocalExchange
from mgspmv.kernels.formats import count_true
from mgspmv.kernels.modules import choose_weight
from mgspmv.model import FIXED_POINT, RowCheck, StepSums
from mgspmv.solvers.options import PageRankOptions, RankTask
from mgspmv.solvers.run import Collected, MassCheck, Rounding, check_rows, find_tolerance

if TYPE_CHECKING:
    from mgspmv.checkpoints import StateAddress, WrittenSlice
    from mgspmv.kernels.rank_steps import RankSteps, RankVectors
    from mgspmv.kernels.select import BoundKernel
    from mgspmv.solvers.topk_certificate import Gather, TopkCertificate

STEPS_AT_ONCE = 20
"""Most steps of a device before the host reads their results; 1 where one streams rows, so that steps are slow."""


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


class Steps(ABC):
    """Steps of a run: made in this process, with peers, or on workers driven by this process.

    Attributes
    ----------
    is_remote : whether workers make the steps, which compile when the run begins, and check their rows in each step
    """

    is_remote = False

    @abstractmethod
    def describe(self) -> str:
        """Describe the hardware."""

    @abstractmethod
    def compile(self) -> None:
        """Compile the kernels, so that no step is timed with it."""

    @abstractmethod
    def scale(self) -> StepSums:
        """Compute z from the first x; return the sums of x."""

    @abstractmethod
    def advance(self, mass: float, n: int) -> Sequence[Made]:
        """Make n steps on all rows, or fewer; `mass` is the sum over dangling vertices of the x before them."""

    @abstractmethod
    def ranks(self) -> np.ndarray:
        """Copy the ranks of the rows in this process to the host, (n,)."""

    @abstractmethod
    def check_rows(self) -> tuple[RowCheck, float]:
        """Sum the ranks of these rows, and count rows whose z does not match the ranks; also return a bound on the
        rounding error of the sum in a step."""

    def check(self, mass: float, balance: MassCheck | None, iteration: int) -> None:
        """Check the ranks of all rows for corruption; parameters as for `mgspmv.solvers.run.check_rows`."""
        found, slack = self.check_rows()
        check_rows(found, mass, balance, slack, iteration)

    def write_state(self, address: StateAddress) -> Sequence[WrittenSlice | str]:
        """Write the ranks of all rows to a checkpoint; return the slices, or why they cannot be written."""
        from mgspmv.checkpoints import write_slice

        return [write_slice(address, 0, self.ranks())]

    @abstractmethod
    def measure(self, mass: float) -> float:
        """Bound |G(x) - x| in L1, where G is a step, together with all owners of rows. No step can follow."""

    @abstractmethod
    def collect(self) -> Collected:
        """Return the result, with ranks on the host, without a copy if they are on it. No step can follow."""


class RowSteps(Steps):
    """Steps on rows that this process has.

    Parameters
    ----------
    rows : their vectors, each on the host or on a device
    precision : of the steps
    has_values : whether entries are more than a pattern
    """

    def __init__(self, rows: Rows | RankVectors, precision: str, *, has_values: bool) -> None:
        self.rows, self._precision, self._has_values = rows, precision, has_values
        self._watch: TopkCertificate | None = None
        self._tolerance: tuple[float, float] | None = None

    @abstractmethod
    def _count_rows(self) -> RowCheck:
        """Sum the ranks, and count rows whose z does not match them."""

    @property
    @abstractmethod
    def rounding(self) -> Rounding:
        """Rounding of steps of these rows."""

    def watch(
        self, options: PageRankOptions, gather: Gather | None = None, growth: float = 1.0
    ) -> TopkCertificate | None:
        """Make the watch of the ranks for `stop="topk:..."`; None for other criteria.

        Parameters
        ----------
        gather, growth : as for `TopkCertificate`
        """
        if options.top is None:
            return None
        from mgspmv.solvers.topk_certificate import TopkCertificate

        vectors = (self.rows.weight, self.rows.dangling, self.rows.personalization)
        weight, dangling, personalization = (v if isinstance(v, np.ndarray) else v.get() for v in vectors)
        self._watch = TopkCertificate(options, weight == 0, dangling, personalization, self.rounding, gather, growth)
        return self._watch

    def check_rows(self) -> tuple[RowCheck, float]:
        if self._tolerance is None:
            given = (self.rounding, self.rows.weight, self._precision)
            self._tolerance = find_tolerance(*given, has_values=self._has_values)
        found, (relative, absolute) = self._count_rows(), self._tolerance
        return found, relative * min(found.sum, 2.0) + absolute


class LocalSteps(RowSteps):
    """Steps of this process by kernels over CSR; an exchange brings the slices of the other processes.

    Parameters
    ----------
    rows : those of this process; `x` holds the start and, after each step, the ranks
    exchange : with the other processes; None where these are all rows

    Attributes
    ----------
    exchange : opened, with the vectors of the run
    """

    rows: Rows

    def __init__(self, rows: Rows, options: PageRankOptions, exchange: Exchange | None = None) -> None:
        super().__init__(rows, rows.kernel.precision, has_values=rows.kernel.block.data is not None)
        self._alpha, self._is_relative = options.alpha, options.is_relative
        self._open = (exchange or LocalExchange(rows.kernel.block.n_cols)).open
        self.exchange = self._open_vectors()

    def compile(self) -> None:
        self.rows.kernel.compile(is_relative=self._is_relative)

    def scale(self) -> StepSums:
        r, exchange = self.rows, self.exchange
        return exchange.exchange_columns([r.kernel.scale(r.x, r.weight, exchange.slot())])[0]

    def advance(self, mass: float, n: int) -> Sequence[Made]:
        """Make one step."""
        exchange, r = self.exchange, self.rows

        def multiply() -> list[StepSums]:
            vectors, shares = (exchange.z, r.x, exchange.slot(), r.weight), (r.dangling, r.personalization)
            return [r.kernel.step(*vectors, self._alpha, mass, *shares, is_relative=self._is_relative)]

        [sums], times = time_step(exchange, multiply)
        watched = 0 if self._watch is None else self._watch.nbytes
        return [(sums, replace(times, memory_bytes=(r.nbytes + exchange.nbytes + watched,)))]

    def ranks(self) -> np.ndarray:
        ranks: np.ndarray = self.collect().values
        return ranks.copy() if ranks is self.rows.x else ranks

    def collect(self) -> Collected:
        return Collected(self.rows.kernel.get(self.rows.x))

    def describe(self) -> str:
        return self.rows.kernel.describe()

    @property
    def rounding(self) -> Rounding:
        return self.rows.rounding

    def _count_rows(self) -> RowCheck:
        return self.rows.kernel.check_rows(self.rows.x, self.rows.weight, self.exchange.get_own())

    def measure(self, mass: float) -> float:
        self.begin_residual()
        return self.residual(mass)

    def begin_residual(self) -> None:
        """Compute z from the ranks in float64. No more steps can be made after it."""
        self.rows = replace(self.rows, kernel=self.rows.kernel.with_precision("float64"))
        del self.exchange  # before the next one is opened, so that both are never in memory
        self.exchange = self._open_vectors()
        self.scale()

    def residual(self, mass: float) -> float:
        """Compute this process's part of a bound on |G(x) - x| in L1, where G is a step; after `begin_residual`.

        G is evaluated in float64; added are a bound on the rounding of that, and one of the dangling mass: half a unit
        of fixed point for each vertex.
        """
        r = self.rows
        residual = r.kernel.residual(self.exchange.z, r.x, self._alpha, mass, r.dangling, r.personalization)
        return float(residual + self._alpha * bound_mass_rounding(r.n_dangling))

    def _open_vectors(self) -> Exchange:
        kernel = self.rows.kernel
        return self._open(lambda n: kernel.zeros(n, kernel.z_dtype))


class DeviceSteps(RowSteps):
    """Steps that a device makes in batches; the host reads their results afterwards.

    Parameters
    ----------
    device : has the whole matrix, or the rows of a worker
    vectors : start of the run
    at_once : most steps between two looks, the same on all devices of a run; None for the device's default
    is_counted : whether the out-weights of a pattern are counts
    """

    rows: RankVectors

    def __init__(
        self,
        device: RankSteps,
        vectors: RankVectors,
        task: RankTask,
        at_once: int | None = None,
        *,
        is_counted: bool = True,
    ) -> None:
        from mgspmv.kernels.rank_steps import RankRules  # imported here, as it needs a device

        super().__init__(vectors, device.precision, has_values=device.has_values)
        self._device, self._alpha = device, task.options.alpha
        self._at_once = at_once or (1 if device.streams else STEPS_AT_ONCE)
        options = task.options
        weight = choose_weight(vectors.weight) if is_counted else np.dtype(np.float64)
        self._rules = RankRules(options.alpha, task.threshold, options.by_largest, options.is_relative, weight)

    def compile(self) -> None:
        self._device.compile(self._rules)

    def scale(self) -> StepSums:
        return self._device.start(self.rows, self._rules)

    def advance(self, mass: float, n: int) -> Sequence[Made]:
        device = self._device
        sums = device.advance(min(n, self._at_once))
        assert sums, "the device has stopped, and the loop has not"
        rest = ((0.0,), (device.received_bytes,), (device.nbytes,))
        times = [Times((product_s,), (exchange_s,), *rest) for product_s, exchange_s in device.seconds]
        return list(zip(sums, times, strict=True))

    def ranks(self) -> np.ndarray:
        return self._device.ranks()

    def collect(self) -> Collected:
        ranks = self._device.ranks()
        self._device.release()
        return Collected(ranks)

    def describe(self) -> str:
        return self._device.describe()

    def measure(self, mass: float) -> float:
        return self._device.residual(mass) + self._alpha * bound_mass_rounding(self.rounding.n_dangling)

    def _count_rows(self) -> RowCheck:
        return self._device.check_rows()

    @property
    def rounding(self) -> Rounding:
        device, weight = self._device, self.rows.weight
        if isinstance(weight, np.ndarray):
            n_dangling = int(np.count_nonzero(weight == 0))
        else:  # for `weight == 0` CuPy would import SciPy
            n_dangling = len(weight) - count_true(weight.astype(np.bool_))
        longest = nnz = device.layout.nnz  # upper bound: the layout does not store the lengths of its rows
        return Rounding(longest, nnz, n_dangling, device.entry_rounding)


def time_step(panel: Exchange, multiply: Callable[[], list[StepSums]]) -> tuple[list[StepSums], Times]:
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


def bound_mass_rounding(n_dangling: int) -> float:
    """Bound the rounding of the sum of the ranks of `n_dangling` dangling vertices: half a unit each."""
    return n_dangling * 0.5 / FIXED_POINT
