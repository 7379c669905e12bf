"""Parameters of the kernels of many vectors, common to all backends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

WIDTHS = (2, 4, 8, 16, 32, 64)
"""Numbers of vectors per pass for which kernels are compiled."""


@dataclass(frozen=True, eq=False)
class Terms:
    """Terms of a step besides A z, for each vector of a pass, on the rows of a block; arrays are where the block is.

    x' = alpha (A z + m d) + (1 - alpha) p
    """

    alpha: Any
    """(width,) float64, on the host; 0 for columns without a vector."""
    dangling: Any
    """d, float64: (n_rows,) or (1,) if it is the same for all vectors; (0,) if it is p of each vector."""
    base: Any
    """(width,) float64, on the host: value of p in rows without an entry; 0, or 1/n if p is uniform."""
    rows: Any
    """(m,) int64: rows of the block where p differs from its base, ascending."""
    columns: Any
    """(m,) int64: vector of each of these entries."""
    weights: Any
    """(m,) float64: value of p at each of these entries."""

    @property
    def entries(self) -> tuple[Any, Any, Any]:
        """Rows, columns and weights of the entries of p."""
        return self.rows, self.columns, self.weights


def narrow_widths(width: int) -> tuple[int, ...]:
    """Return a width and all smaller ones, largest first."""
    return tuple(w for w in reversed(WIDTHS) if w <= width)


def fit_width(n_vectors: int) -> int:
    """Return the smallest of `WIDTHS` that holds `n_vectors`, or the largest."""
    return next((w for w in WIDTHS if w >= n_vectors), WIDTHS[-1])
