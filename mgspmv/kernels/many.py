"""What a kernel of many vectors can do, on whatever backend, and what it is told of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from mgspmv.kernels.bound import BoundKernel
from mgspmv.model import Precision, StepSums

WIDTHS = (2, 4, 8, 16, 32, 64)
"""Vectors in a pass: the numbers of columns that kernels are made for."""


@dataclass(frozen=True, eq=False)
class Terms:
    """What a step does with A z, for each vector of a pass, on the rows of a block; arrays are where the block is.

    x' = alpha (A z + m d) + (1 - alpha) p
    """

    alpha: Any
    """(width,) float64, on the host; 0 where a column has no vector."""
    dangling: Any
    """d, float64: (n_rows,) or (1,), the same for all vectors; or (0,), p of each vector."""
    base: Any
    """(width,) float64, on the host: p where no entry is. 0, or 1/n of a uniform one."""
    rows: Any
    """(m,) int64: rows of the block where p is another than its base, ascending."""
    columns: Any
    """(m,) int64: the vector of each of these entries."""
    weights: Any
    """(m,) float64: p there."""

    @property
    def entries(self) -> tuple[Any, Any, Any]:
        """Of p: rows, columns, weights."""
        return self.rows, self.columns, self.weights


class BoundMany(BoundKernel, Protocol):
    """Kernels of many vectors, bound to one block. A vector is a column of C-ordered arrays, where the block is.

    Each vector is computed as `BoundKernel` computes one alone, in `exact` to the same bits. On the host are `mass`,
    (width,) float64, which is m of each column, the sum over dangling vertices of the x that z was made from;
    `columns`, (j,) int64; and what is returned.
    """

    @property
    def best_width(self) -> int:
        """The one of `WIDTHS` with which an iteration takes least, for each vector, where memory is no matter."""
        ...

    def scale_many(self, x: Any, weight: Any, z: Any) -> list[StepSums]:
        """z = x / weight (0 where weight is 0), all (n_rows, width); the sums that belong to x, with a change of 0."""
        ...

    def step_many(
        self, z: Any, x: Any, z_next: Any, weight: Any, mass: np.ndarray, terms: Terms, *, is_relative: bool = False
    ) -> list[StepSums]:
        """One PageRank step of every column, in place: x from z (n_cols, width), then z_next (n_rows, width) from x.

        With `is_relative` the largest change is that of |x' - x| / x', which is 0 where x' is 0."""
        ...

    def residual_many(self, z: Any, x: Any, mass: np.ndarray, terms: Terms) -> np.ndarray:
        """(width,): for each column the sum over the rows of how far a step would move x, with a bound on its own
        rounding added; in precision `float64`, whatever the dtype of x."""
        ...

    def take(self, x: Any, columns: np.ndarray, out: Any) -> None:
        """out[j] = x[:, columns[j]]: (j, n_rows)."""
        ...

    def fill(self, x: Any, columns: np.ndarray, vectors: Any) -> None:
        """x[:, columns[j]] = vectors[j]: (j, n_rows), or (j, 1) for one number in all rows."""
        ...

    def select_highest(self, vectors: Any, k: int, numbers: Any | None) -> tuple[np.ndarray, np.ndarray]:
        """The k highest entries of each of some vectors, (j, n), and their numbers, as `mgspmv.kernels.highest` does;
        only these leave where the block is."""
        ...

    def compile_many(self, widths: tuple[int, ...], residual_width: int, *, is_relative: bool = False) -> None:
        """Make the kernels of a run ready, so that no step is timed with it."""
        ...

    def with_precision(self, precision: Precision) -> BoundMany:
        """The same block in another precision."""
        ...

    def zeros_many(self, n: int, width: int, dtype: Any) -> Any:
        """(n, width) zeros where the block is, as the kernels like them to lie."""
        ...


def narrow_widths(width: int) -> tuple[int, ...]:
    """A width and all smaller ones, the greatest first."""
    return tuple(w for w in reversed(WIDTHS) if w <= width)


def fit_width(n_vectors: int) -> int:
    """The least of `WIDTHS` that has room for so many vectors, or the greatest."""
    return next((w for w in WIDTHS if w >= n_vectors), WIDTHS[-1])
