"""Whether ranks are right: beside a power iteration in float64 that shares no kernel with what it checks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.iterations import ALPHA
from benchmarks.matrices import PIECE, Arrays
from mgspmv.model import CsrBlock

N_CHECKED = 10
"""Iterations after which ranks are compared, as in LDBC Graphalytics."""
PEER_TOLERANCE = 1e-4
"""Largest relative difference of a vertex's ranks: the rule of LDBC Graphalytics, for what computes in float32."""
TOLERANCES = {"float32": PEER_TOLERANCE, "exact": 1e-9}
"""The same by precision; 1e-9 leaves room for the sums of the reference itself, which are not compensated."""


@dataclass(frozen=True)
class Comparison:
    """Of ranks with others."""

    error: float
    """Largest relative difference of a vertex; NaN where a rank is."""
    problem: str | None
    """What is wrong; None where the error is permitted."""


def iterate_ranks(xp: Arrays, block: CsrBlock, weight: Any, is_counted: Any, n_iterations: int) -> Any:
    """Ranks after a number of iterations: (n,) float64, where the block is.

        x' = alpha (A (x / w) + m u) + (1 - alpha) u;   m = sum of x where w = 0;   u = 1 / n where counted, else 0

    Parameters
    ----------
    block : in-edges
    weight : (n,) out-weights w; 0 for dangling vertices
    is_counted : (n,) bool: the n vertices there are; the others have no arcs, and rank 0
    """
    uniform = is_counted / is_counted.sum()
    is_dangling = weight == 0
    share = xp.where(is_dangling, 0.0, 1.0 / xp.where(is_dangling, 1.0, weight))
    x = uniform
    for _ in range(n_iterations):
        mass = xp.where(is_dangling, x, 0.0).sum()
        x = ALPHA * _sum_rows(xp, block, x * share) + (ALPHA * mass + (1.0 - ALPHA)) * uniform
    return x


def _sum_rows(xp: Arrays, block: CsrBlock, z: Any) -> Any:
    """A z, some entries at a time."""
    sums = xp.zeros(block.n_rows)
    for begin in range(0, block.nnz, PIECE):
        end = min(begin + PIECE, block.nnz)
        rows = xp.searchsorted(block.indptr, xp.arange(begin, end), side="right") - 1
        first, last = int(rows[0]), int(rows[-1])
        sums[first : last + 1] += xp.bincount(rows - first, weights=z[block.indices[begin:end]])
    return sums


def compare_ranks(ranks: np.ndarray, wanted: np.ndarray, tolerance: float, source: str) -> Comparison:
    """Compare ranks, both (n,) float64 on the host, with those of a source that is named."""
    difference = abs(ranks - wanted) / np.where(wanted > 0, wanted, 1.0)
    k = int(difference.argmax())  # a NaN, if there is one
    error = float(difference[k])
    if error < tolerance:
        return Comparison(error, None)
    n_wrong = int((~(difference < tolerance)).sum())
    return Comparison(
        error,
        f"{n_wrong:,} of {len(ranks):,} ranks are wrong after {N_CHECKED} iterations: that of vertex {k} is "
        f"{ranks[k]:.9g} and must be {wanted[k]:.9g} as {source} has it, to within {tolerance:g} of it",
    )
