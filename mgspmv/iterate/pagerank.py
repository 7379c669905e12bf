"""PageRank by power iteration, in fused steps.

    z = x / w (0 where w = 0);   m = sum of x over dangling vertices
    x' = alpha (A z + m d) + (1 - alpha) p;   stop on |x' - x|

A holds the in-edges of each vertex in its row, w the out-weights, p the personalisation, d where the rank of dangling
vertices goes. Page, Brin, Motwani, Winograd: The PageRank Citation Ranking (1999); differs from it in that dangling
vertices stay in the graph, as in NetworkX and cuGraph.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from mgspmv.exchange.transport import LocalTransport, Transport
from mgspmv.iterate.options import PageRankOptions
from mgspmv.kernels.cpu import CpuBlock
from mgspmv.kernels.select import bind_kernel
from mgspmv.model import FIXED_POINT, Event, Status, StepSums


@dataclass(eq=False)
class Rows:
    """What the owner of a block keeps from step to step; all vectors are of its rows."""

    kernel: CpuBlock
    """Bound to the block."""
    x: np.ndarray
    """(n_rows,) ranks, float32 or float64; overwritten by each step."""
    weight: np.ndarray
    """(n_rows,) float64 out-weights; 0 for dangling vertices."""
    dangling: np.ndarray
    """(n_rows,) or (1,) float64: d."""
    personalization: np.ndarray
    """(n_rows,) or (1,) float64: p."""

    @property
    def start(self) -> int:
        return self.kernel.block.row_offset

    @property
    def stop(self) -> int:
        return self.start + self.kernel.block.n_rows

    @property
    def nbytes(self) -> int:
        """Bytes of block and vectors."""
        vectors = (self.x, self.weight, self.dangling, self.personalization)
        return self.kernel.block.nbytes + sum(v.nbytes for v in vectors)


@dataclass(frozen=True)
class Outcome:
    """How an iteration ended; the ranks are in its `Rows`."""

    status: Status
    """Converged, or why not."""
    changes: tuple[float, ...]
    """|x' - x| of each iteration."""
    mass: float
    """Sum of the final ranks over dangling vertices."""
    seconds: dict[str, float] = field(default_factory=dict)
    """`product` and `exchange`."""


def run_steps(
    rows: Sequence[Rows],
    transport: Transport,
    options: PageRankOptions,
    threshold: float,
    emit: Callable[[Event], None],
    *,
    run: str = "",
) -> Outcome:
    """Iterate to the end: the same lockstep on every worker, each with its own rows.

    Parameters
    ----------
    rows : the blocks of this worker; their `x` hold the start and, afterwards, the ranks
    threshold : of the change, from `PageRankOptions.threshold`
    emit : gets an event for each iteration
    """
    first = transport.exchange(_scale(rows, transport))
    mass = _to_float(first.dangling)
    memory = sum(r.nbytes for r in rows) + 2 * transport.z.nbytes
    changes: list[float] = []
    product_s = exchange_s = 0.0
    status = Status.COMPLETED if options.tol_mode == "fixed" else Status.MAX_ITER
    for iteration in range(1, options.max_iter + 1):
        began = time.perf_counter()
        own = _step(rows, transport, options.alpha, mass)
        multiplied, received = time.perf_counter(), transport.exchanged_bytes
        sums = transport.exchange(own)
        done = time.perf_counter()
        mass = _to_float(sums.dangling)
        changes.append(options.measure(sums))
        product_s, exchange_s = product_s + multiplied - began, exchange_s + done - multiplied
        bytes_now = transport.exchanged_bytes - received
        times = ((multiplied - began,), (done - multiplied,), (0.0,))
        emit(Event(run, 0, iteration, changes[-1], *times, exchanged_bytes=(bytes_now,), memory_bytes=(memory,)))
        if sums.n_wrong or first.n_wrong:
            status = Status.NON_FINITE
            break
        if options.tol_mode != "fixed" and changes[-1] < threshold:
            status = Status.CONVERGED
            break
    return Outcome(status, tuple(changes), mass, {"product": product_s, "exchange": exchange_s})


def bound_error(rows: Sequence[Rows], transport: Transport, options: PageRankOptions, mass: float) -> float:
    """Upper bound on the L1 distance of the ranks to the solution.

    A step G shrinks L1 distances by alpha, so |x - x*| <= |G(x) - x| / (1 - alpha). G is evaluated in float64, and a
    bound on the rounding of doing so is added, and of the dangling mass: half a unit of fixed point for each vertex.

    Parameters
    ----------
    transport : for float64 vectors
    """
    exact = [replace(r, kernel=bind_kernel(r.kernel.block, "float64", threads=r.kernel.threads)) for r in rows]
    transport.exchange(_scale(exact, transport))
    residual = sum(
        r.kernel.residual(transport.z, r.x, options.alpha, mass, r.dangling, r.personalization) for r in exact
    )
    mass_rounding = sum(np.count_nonzero(r.weight == 0) for r in rows) * 0.5 / FIXED_POINT
    return (residual + options.alpha * mass_rounding) / (1.0 - options.alpha)


def run_embedded(
    rows: Sequence[Rows],
    options: PageRankOptions,
    threshold: float,
    emit: Callable[[Event], None],
    *,
    run: str = "",
) -> tuple[Outcome, float]:
    """Iterate in this process over rows that make up the whole matrix.

    Returns
    -------
    The outcome and the L1 error bound (infinite where ranks are not finite).
    """
    began = time.perf_counter()
    for r in rows[:1]:
        r.kernel.compile()
    compiled = time.perf_counter()
    n = rows[0].kernel.block.n_cols
    outcome = run_steps(rows, LocalTransport(n, rows[0].kernel.z_dtype), options, threshold, emit, run=run)
    stepped = time.perf_counter()
    bound = np.inf
    if outcome.status != Status.NON_FINITE:
        bound = bound_error(rows, LocalTransport(n, np.dtype(np.float64)), options, outcome.mass)
    outcome.seconds["compile"] = compiled - began
    outcome.seconds["residual"] = time.perf_counter() - stepped
    return outcome, float(bound)


def _scale(rows: Sequence[Rows], transport: Transport) -> StepSums:
    return sum((r.kernel.scale(r.x, r.weight, transport.slot(r.start, r.stop)) for r in rows), StepSums())


def _step(rows: Sequence[Rows], transport: Transport, alpha: float, mass: float) -> StepSums:
    sums = StepSums()
    for r in rows:
        slot = transport.slot(r.start, r.stop)
        sums += r.kernel.step(transport.z, r.x, slot, r.weight, alpha, mass, r.dangling, r.personalization)
    return sums


def _to_float(dangling: int) -> float:
    return dangling / FIXED_POINT
