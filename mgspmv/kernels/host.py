"""Kernels of one CSR block on the host: what they have in common, and those of small blocks by NumPy's own functions.

`mgspmv.kernels.cpu` has those that Numba compiles. They are faster, but to load Numba takes longer than all iterations
on a small block, and to compile takes seconds. Both add in the same order, so that steps and products are
bit-identical.
"""

from __future__ import annotations

import platform
from functools import cached_property
from typing import Any, Self

import numpy as np

from mgspmv.errors import OptionError
from mgspmv.model import (
    CHANGE_POINT,
    FIXED_POINT,
    FLOAT32_LEAST_ROUNDING,
    FLOAT32_ROUNDING,
    RELATIVE_LIMIT,
    CsrBlock,
    Precision,
    RowCheck,
    StepSums,
)

SMALL_NNZ = 1 << 19
"""Nonzeros up to which NumPy's functions are used: a step of these takes 4 ms, to load Numba 0.5 s."""


class HostBlock:
    """A block on the host: what does not depend on who multiplies.

    Parameters
    ----------
    block : rows of the matrix; its values are not converted
    precision : `exact` sums int64 fixed point; the others sum in float64
    threads : maximum number of threads
    """

    def __init__(self, block: CsrBlock, precision: Precision = "float64", threads: int | None = None) -> None:
        if threads is not None and threads < 1:
            raise OptionError(f"threads must be at least 1, not {threads}")
        self.block, self.precision, self.threads = block, precision, threads or 1

    @property
    def nbytes(self) -> int:
        """Bytes of the matrix in the format of this kernel."""
        return self.block.nbytes

    @property
    def z_dtype(self) -> np.dtype[Any]:
        """Dtype of the vector that a step multiplies: int64 fixed point for a pattern in `exact`."""
        if self.precision == "exact":
            return np.dtype(np.int64 if self.block.data is None else np.float64)
        return np.dtype(self.precision)

    def with_precision(self, precision: Precision) -> Self:
        """Return the same block with steps in another precision."""
        return type(self)(self.block, precision, self.threads)

    def zeros(self, n: int, dtype: Any) -> np.ndarray:
        """Return (n,) zeros."""
        return np.zeros(n, dtype)

    def put(self, vector: np.ndarray) -> np.ndarray:
        """Return the vector itself, which is already where the kernels compute."""
        return vector

    def get(self, vector: np.ndarray) -> np.ndarray:
        """Return the vector itself."""
        return vector

    def describe(self) -> str:
        """Describe the machine and the number of threads."""
        return f"{platform.machine()}, {self.threads} threads"

    @property
    def _unit(self) -> float:
        return 1.0 / FIXED_POINT if self.precision == "exact" else 1.0


class SmallBlock(HostBlock):
    """Kernels of a small block by NumPy's functions, in one thread; the methods are those of `CpuBlock`."""

    def __init__(self, block: CsrBlock, precision: Precision = "float64", threads: int | None = None) -> None:
        super().__init__(block, precision, threads)
        self.threads = 1

    def compile(self, *, is_relative: bool = False) -> None:
        """Do nothing: there is nothing to compile."""

    def multiply(self, x: np.ndarray, y: np.ndarray, alpha: float = 1.0, beta: float = 0.0) -> None:
        """Compute `CpuBlock.multiply`."""
        if x.ndim == 2:
            for column in range(x.shape[1]):
                self.multiply(x[:, column], y[:, column], alpha, beta)
            return
        with np.errstate(all="ignore"):
            total = float(alpha) * self._sum_rows(self._contribute(x))
            y[:] = total if beta == 0 else total + float(beta) * y

    def scale(self, x: np.ndarray, weight: np.ndarray, z: np.ndarray) -> StepSums:
        """Compute `CpuBlock.scale`."""
        return self._finish(np.zeros(len(x)), x, weight, z)

    def check_rows(self, x: np.ndarray, weight: np.ndarray, z: np.ndarray) -> RowCheck:
        """Compute `CpuBlock.check_rows`."""
        with np.errstate(all="ignore"):
            rank = x.astype(np.float64)
            is_rank = (rank >= 0.0) & (rank < 2.0)
            is_off = ~is_rank | (_quantize(self._divide(rank, weight), z.dtype) != z)
            total = _to_fixed(rank[is_rank], CHANGE_POINT).sum()
            dangling = _to_fixed(rank[is_rank & (weight == 0.0)], FIXED_POINT).sum()
        return RowCheck(int(total) % 2**64, int(is_off.sum()), int(dangling) % 2**64)

    def step(
        self,
        z: np.ndarray,
        x: np.ndarray,
        z_next: np.ndarray,
        weight: np.ndarray,
        alpha: float,
        mass: float,
        dangling: np.ndarray,
        personalization: np.ndarray,
        *,
        is_relative: bool = False,
    ) -> StepSums:
        """Compute `CpuBlock.step`."""
        with np.errstate(all="ignore"):
            product = self._sum_rows(self._contribute(z, z.dtype)).astype(np.float64) * self._unit
            rest = float(alpha * mass) * dangling + (1.0 - alpha) * personalization
            old = x.astype(np.float64)
            x[:] = float(alpha) * product + rest
            return self._finish(np.abs(x.astype(np.float64) - old), x, weight, z_next, is_relative=is_relative)

    def residual(
        self, z: np.ndarray, x: np.ndarray, alpha: float, mass: float, dangling: np.ndarray, personalization: np.ndarray
    ) -> float:
        """Compute `CpuBlock.residual`."""
        indptr, data = self.block.indptr, self.block.data
        product: np.ndarray = float(alpha) * self._sum_rows(self._contribute(z))
        rest = float(alpha * mass) * dangling + (1.0 - alpha) * personalization
        # The relative error of a sum of k terms >= 0 is at most k u: Higham, Accuracy and Stability, section 4.2.
        rounding = 2.0**-53 * ((np.diff(indptr) + 4) * product + 4 * rest + x)
        if data is not None and data.itemsize == 4:
            touched = self._sum_rows(z[self.block.indices])
            rounding += FLOAT32_ROUNDING * product + FLOAT32_LEAST_ROUNDING * touched
        return float((np.abs(product + rest - x) + rounding).sum())

    def _contribute(self, z: np.ndarray, dtype: np.dtype[Any] | None = None) -> np.ndarray:
        """Return the terms that the entries add to the sums of their rows, (nnz,)."""
        gathered: np.ndarray = z[self.block.indices]
        data = self.block.data
        if data is None:
            return gathered
        terms: np.ndarray = data * gathered
        return _quantize(terms, np.dtype(np.int64)) if dtype is not None and self.precision == "exact" else terms

    def _sum_rows(self, terms: np.ndarray) -> np.ndarray:
        """Sum (nnz,) terms by rows: modulo 2^64 if integers, else in float64 in the order of the entries; (n_rows,)."""
        block = self.block
        if terms.dtype == np.int64:
            ends = np.zeros(block.nnz + 1, np.int64)
            np.cumsum(terms, out=ends[1:])
            sums: np.ndarray = np.diff(ends[block.indptr])
            return sums
        return np.bincount(self._rows, terms, block.n_rows)

    @cached_property
    def _rows(self) -> np.ndarray:
        """Row of each entry, (nnz,)."""
        return np.repeat(np.arange(self.block.n_rows), np.diff(self.block.indptr))

    def _divide(self, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """Return x / weight in the unit of steps, and 0 where weight is 0."""
        ratio: np.ndarray = np.divide(x, weight, out=np.zeros(len(x)), where=weight != 0.0)
        return ratio / self._unit

    def _finish(
        self, change: np.ndarray, x: np.ndarray, weight: np.ndarray, z_next: np.ndarray, *, is_relative: bool = False
    ) -> StepSums:
        """Store the next z, and sum over the rows; `change` is |x' - x|."""
        with np.errstate(all="ignore"):
            new = x.astype(np.float64)
            ratio = self._divide(new, weight)
            is_right = (change <= 2.0) & (new >= 0.0) & (new <= 2.0) & (ratio < np.inf)
            changes = _to_fixed(np.where(is_right, change, 0.0), CHANGE_POINT)
            largest = changes
            if is_relative:
                part = np.minimum(change / np.where(new > 0.0, new, 1.0), RELATIVE_LIMIT)
                largest = _to_fixed(np.where(is_right & (new > 0.0), part, 0.0), CHANGE_POINT)
            dangling = _to_fixed(new[is_right & (weight == 0.0)], FIXED_POINT)
            z_next[:] = _quantize(ratio, z_next.dtype)
        wrong = len(x) - int(is_right.sum())
        return StepSums(int(changes.sum()), int(largest.max(initial=0)), int(dangling.sum()), wrong)


def _quantize(values: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """Convert to a dtype, rounding to nearest even for integers."""
    rounded: np.ndarray = np.rint(values) if dtype.kind == "i" else values
    return rounded.astype(dtype, copy=False)


def _to_fixed(values: np.ndarray, point: float) -> np.ndarray:
    return np.rint(values * point).astype(np.int64)
