"""Steps of a PageRank run on the rows of one process by kernels over CSR; see `mgspmv.solvers.device_steps`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from mgspmv.exchange.transport import Open, Transport, make_local
from mgspmv.model import FIXED_POINT, RowCheck, StepSums
from mgspmv.solvers.mass_check import Rounding, Tolerance, find_tolerance
from mgspmv.solvers.options import PageRankOptions

if TYPE_CHECKING:
    from mgspmv.kernels.select import BoundKernel
    from mgspmv.solvers.topk_certificate import Gather, TopkCertificate


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


class Steps(Protocol):
    """Steps of a run: made in this process, with peers, or on workers driven by this process."""

    def scale(self) -> StepSums:
        """Compute z from the first x; return the sums of x."""
        ...

    def advance(self, mass: float, n: int) -> Sequence[Made]:
        """Make n steps on all rows, or fewer; `mass` is the sum over dangling vertices of the x before them."""
        ...

    def ranks(self) -> np.ndarray:
        """Copy the ranks of the rows in this process to the host, (n,)."""
        ...


class LocalSteps:
    """Steps of this process; a transport brings the slices of the other processes.

    Parameters
    ----------
    rows : those of this process; `x` holds the start and, after each step, the ranks
    open_transport : of the exchange with the other processes; None where these are all rows
    """

    def __init__(self, rows: Rows, options: PageRankOptions, open_transport: Open | None = None) -> None:
        self.rows, self._alpha, self._is_relative = rows, options.alpha, options.is_relative
        self._open = open_transport or make_local(rows.kernel.block.n_cols).open
        self._transport = self._open_vectors()
        self._watch: TopkCertificate | None = None

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
        transport, r = self._transport, self.rows

        def multiply() -> list[StepSums]:
            vectors, shares = (transport.z, r.x, transport.slot(), r.weight), (r.dangling, r.personalization)
            return [r.kernel.step(*vectors, self._alpha, mass, *shares, is_relative=self._is_relative)]

        [sums], times = time_step(transport, multiply)
        watched = 0 if self._watch is None else self._watch.nbytes
        return sums, replace(times, memory_bytes=(r.nbytes + transport.nbytes + watched,))

    def ranks(self) -> np.ndarray:
        ranks = self.collect()
        return ranks.copy() if ranks is self.rows.x else ranks

    def collect(self) -> np.ndarray:
        """Return the ranks, without a copy where they are on the host. No more steps can be made after it."""
        return self.rows.kernel.get(self.rows.x)

    def describe(self) -> str:
        """Describe the hardware."""
        return self.rows.kernel.describe()

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

        r = self.rows
        weight, dangling, personalization = map(r.kernel.get, (r.weight, r.dangling, r.personalization))
        self._watch = TopkCertificate(options, weight == 0, dangling, personalization, r.rounding, gather, growth)
        return self._watch

    def check_rows(self) -> tuple[RowCheck, float]:
        """Sum the ranks of these rows, and count rows whose z does not match the ranks; also return a bound on the
        rounding error of the sum in a step."""
        found = self.rows.kernel.check_rows(self.rows.x, self.rows.weight, self._transport.get_own())
        return found, self._tolerance.find_slack(found.sum)

    @cached_property
    def _tolerance(self) -> Tolerance:
        r, kernel = self.rows, self.rows.kernel
        has_values = kernel.block.data is not None
        return find_tolerance(r.rounding, kernel.get(r.weight), kernel.precision, has_values=has_values)

    def measure(self, mass: float) -> float:
        """Compute `residual`, together with all owners of rows. No more steps can be made after it."""
        self.begin_residual()
        return self.residual(mass)

    def begin_residual(self) -> None:
        """Compute z from the ranks in float64. No more steps can be made after it."""
        self.rows = replace(self.rows, kernel=self.rows.kernel.with_precision("float64"))
        del self._transport  # before the next one is opened, so that both are never in memory
        self._transport = self._open_vectors()
        self.scale()

    def residual(self, mass: float) -> float:
        """Compute this process's part of a bound on |G(x) - x| in L1, where G is a step; after `begin_residual`.

        G is evaluated in float64; added are a bound on the rounding of that, and one of the dangling mass: half a unit
        of fixed point for each vertex.
        """
        r = self.rows
        residual = r.kernel.residual(self._transport.z, r.x, self._alpha, mass, r.dangling, r.personalization)
        return float(residual + self._alpha * bound_mass_rounding(r.n_dangling))

    def _open_vectors(self) -> Transport:
        kernel = self.rows.kernel
        return self._open(lambda n: kernel.zeros(n, kernel.z_dtype))


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


def bound_mass_rounding(n_dangling: int) -> float:
    """Bound the rounding of the sum of the ranks of `n_dangling` dangling vertices: half a unit each."""
    return n_dangling * 0.5 / FIXED_POINT
