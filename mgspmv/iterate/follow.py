"""Ranks of a changed graph from those of the graph as it was: what changed is followed before the first iteration.

    r = alpha A (y / w) + k p - y,   x = c y,   c with which x keeps what dangling vertices give to p

Where dangling vertices give to p, or to nobody, the ranks x are the y with r = 0 but for a factor, for any k > 0. With
the k that most rows of the old ranks obey, r is 0 wherever the graph is as it was: other vertices, another dangling
mass and other jumps change all ranks by the same factor. So r is passed on along out-edges (`mgspmv.kernels.spread`),
first where most is left for each edge, and none of it goes everywhere at once. Each such x is a start as good as any
other: iterations end the run, and it is their change that is compared to the tolerance.

Gauss-Southwell relaxation in rounds, as the forward push of Andersen, Chung, Lang: Local Graph Partitioning using
PageRank Vectors (2006), with residuals of either sign as in Ohsaka, Maehara, Kawarabayashi: Efficient PageRank Tracking
in Evolving Networks (2015); differs from them in k, in thresholds that follow what is left, and in that it ends where
iterations bring more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mgspmv.errors import CapacityError, OptionError
from mgspmv.iterate.options import PageRankOptions
from mgspmv.iterate.pagerank import Rows
from mgspmv.iterate.start import Start
from mgspmv.kernels.cpu import CpuBlock
from mgspmv.kernels.spread import Look, OutEdges, Spread, compile_spread, count_out_edges
from mgspmv.model import CHANGE_POINT, FIXED_POINT, CsrBlock, Followed, StepSums, default_threads, free_memory

MOST = 0.5
"""Residual from which on ranks are none to follow changes from; two distributions are at most 2 apart."""
WIDE = 0.5
"""Share of the edges from which on a round is as much as an iteration, which passes on everything."""
COST = 2.0
"""How many times as much a round must bring as an iteration for the edges that it follows: adding to what is anywhere
takes longer than adding up."""
LEAST_RATE = 0.01
"""Less is not believed to be left of a change by an iteration."""
UNTIL_LOOK = 1.0
"""What is left is summed up when as much was read as in so many iterations."""
LONG = 15
"""Iterations ahead for which changes are followed even where they are likely to be all over the graph soon."""
GOAL = 0.5
"""Of the tolerance, to be left at the end: x is scaled, and an iteration is to find its change below the tolerance."""


@dataclass(frozen=True)
class System:
    """What is solved for y, and where y begins."""

    y: np.ndarray
    """(n,) float64."""
    residual: np.ndarray
    """(n,) int64: r, in units of 2^-61."""
    jump: float
    """k."""


def check_feeding(start: Start, weight: np.ndarray) -> bool:
    """Whether dangling vertices give to where jumps lead, and not to nobody.

    Parameters
    ----------
    weight : (n,) out-weights

    Raises
    ------
    OptionError : they give to others
    """
    if weight.all() or not start.dangling.any():
        return False
    if not np.array_equal(start.dangling, start.personalization):
        raise OptionError(
            "follow_changes=True is for ranks of dangling vertices that go where jumps lead, or nowhere; leave out "
            "dangling= or pass dangling='drop', or leave out follow_changes="
        )
    return True


def compile_following(rows: Sequence[Rows], threads: int | None = None) -> None:
    """Compile what follows changes, or load it from Numba's cache."""
    b = rows[0].kernel.block
    data = None if b.data is None else b.data[:0]
    kernel, one = CpuBlock(CsrBlock(0, b.n_cols, b.indptr[:1], b.indices[:0], data), "exact"), np.ones(1)
    kernel.scale(one[:0], one[:0], np.empty(0, kernel.z_dtype))
    kernel.multiply_exact(np.empty(0, kernel.z_dtype), np.empty(0, np.int64))
    compile_spread(b, threads or default_threads())


def improve_start(
    rows: Sequence[Rows],
    options: PageRankOptions,
    threshold: float,
    *,
    is_fed: bool,
    degree: np.ndarray | None = None,
    rate: float | None = None,
    threads: int | None = None,
) -> Followed:
    """Overwrite the ranks of rows that make up the whole matrix, on the host, by others nearer to the solution.

    The same bits for any number of threads and blocks, and for any order of the vertices.

    Parameters
    ----------
    threshold : of the change, from `PageRankOptions.threshold`
    is_fed : of `check_feeding`
    degree : (n,) int64 out-degrees, where they are known; else they are counted
    rate : what an iteration leaves of a change, where that is known; default alpha, which is the most

    Raises
    ------
    CapacityError : there is no room for the out-edges
    """
    threads, blocks = threads or default_threads(), [r.kernel.block for r in rows]
    weight, p = _join(rows, "weight"), _join(rows, "personalization")
    system = _begin(rows, weight, p, options.alpha, threads, is_fed=is_fed)
    if system is None:
        return Followed(0, 0, 1.0, math.inf, math.inf)
    before, goal = int(np.abs(system.residual).sum()) / CHANGE_POINT, GOAL * threshold
    gain = -math.log(max(rate or options.alpha, LEAST_RATE))
    n, nnz = len(weight), sum(b.nnz for b in blocks)
    read = n + nnz + (nnz if degree is None else 0)
    degree = count_out_edges(blocks, threads) if degree is None else degree
    is_short = before <= goal * math.exp(LONG * gain)
    if before <= goal or (is_short and _is_spread(system.residual, degree, blocks)):
        return Followed(0, 0, read / (n + nnz), before, before)
    _check_room(blocks)
    share = np.divide(options.alpha, weight, out=np.zeros(n), where=weight > 0)
    spread = Spread(OutEdges(blocks, degree, threads), system.y, system.residual, share, threads)
    rounds, edges, seen, look = _pass_on(spread, goal, gain, by_largest=options.tol_mode == "linf")
    c = _find_scale(spread.x, weight, system.jump, options.alpha, is_fed=is_fed) or 1.0  # any x is a start
    for r in rows:
        r.x[:] = np.maximum(c * spread.x[r.start : r.stop], 0.0)
    return Followed(rounds, edges, (read + nnz + edges + seen) / (n + nnz), before, look.total)


def _join(rows: Sequence[Rows], name: str) -> np.ndarray:
    """(n,) a vector of all rows."""
    return np.concatenate([np.broadcast_to(getattr(r, name), r.kernel.block.n_rows) for r in rows])


def _begin(
    rows: Sequence[Rows], weight: np.ndarray, p: np.ndarray, alpha: float, threads: int, *, is_fed: bool
) -> System | None:
    """What is to be solved; None where the start is too far from ranks, or holds what is no rank."""
    x = _join(rows, "x").astype(np.float64)
    kernels = [CpuBlock(r.kernel.block, "exact", threads) for r in rows]
    z, product, sums = np.empty(len(x), kernels[0].z_dtype), np.empty(len(x), np.int64), StepSums()
    for r, kernel in zip(rows, kernels, strict=True):
        own = slice(r.start, r.stop)
        sums += kernel.scale(x[own], weight[own], z[own])
    for r, kernel in zip(rows, kernels, strict=True):
        kernel.multiply_exact(z, product[r.start : r.stop])
    if sums.n_wrong:
        return None
    rest = x - alpha / FIXED_POINT * product
    jumps = p > 0
    jump = float(np.median(rest[jumps] / p[jumps]))
    c = _find_scale(x, weight, jump, alpha, is_fed=is_fed)
    if c is None:
        return None
    residual = c * (jump * p - rest)
    if not np.abs(residual).sum() < MOST:
        return None
    return System(c * x, np.rint(residual * CHANGE_POINT).astype(np.int64), c * jump)


def _find_scale(y: np.ndarray, weight: np.ndarray, jump: float, alpha: float, *, is_fed: bool) -> float | None:
    """c: of c y dangling vertices give as much as jumps lack; None where no ranks do."""
    given = int(np.rint(y[weight == 0] * FIXED_POINT).astype(np.int64).sum()) / FIXED_POINT if is_fed else 0.0
    left = jump - alpha * given
    return (1.0 - alpha) / left if 0.0 < left < math.inf else None


def _is_spread(residual: np.ndarray, degree: np.ndarray, blocks: Sequence[CsrBlock]) -> bool:
    """Whether a residual is likely to be all over the graph in two rounds, if edges lead where most edges do."""
    in_degree = np.concatenate([np.diff(b.indptr) for b in blocks])
    nnz, left = int(degree.sum()), np.abs(residual)
    limit = int(left.sum()) / (nnz + len(degree))
    first = int(degree[left > limit * (degree + 1)].sum())
    return first * float(in_degree.astype(np.float64) @ degree) > float(nnz) ** 2


def _check_room(blocks: Sequence[CsrBlock]) -> None:
    needed, free = OutEdges.count_bytes(blocks), free_memory()
    if needed > free:
        raise CapacityError(
            f"following changes takes {needed:,} bytes for the edges that leave each vertex, and {free:,} are free; "
            "leave out follow_changes="
        )


def _pass_on(spread: Spread, goal: float, gain: float, *, by_largest: bool) -> tuple[int, int, int, Look]:
    """Pass on until less than `goal` is left or iterations bring more; rounds, edges, vertices seen, what is left.

    Parameters
    ----------
    gain : logarithm of how many times less an iteration leaves
    by_largest : the largest residual counts, and not their sum
    """
    n, nnz = spread.edges.n, spread.edges.nnz
    rounds, edges, seen, look = 0, 0, n, spread.look()
    while (look.largest if by_largest else look.total) > goal:
        limit, read, is_wide = look.total / (nnz + n), n, False
        while read < UNTIL_LOOK * (nnz + n) and not is_wide:
            made = spread.pass_on(limit)
            if made.n_passed == 0:
                break
            rounds, edges, seen = rounds + 1, edges + made.n_edges, seen + made.n_seen
            read += made.n_passed + made.n_edges
            is_wide = made.n_edges > WIDE * nnz
        before, look, seen = look, spread.look(), seen + n
        least = math.exp(COST * gain * read / (nnz + n))
        if is_wide or look.total * least > before.total:
            break
    return rounds, edges, seen, look
