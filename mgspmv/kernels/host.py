"""Kernels of one CSR block on the host: passes over its rows, and products and steps of small blocks, by NumPy.

`mgspmv.kernels.cpu` has the products and steps that Numba compiles. They are faster, but to load Numba takes longer
than all iterations on a small block, and to compile takes seconds. Both add in the same order, so that they are
bit-identical. What a run computes once or twice is not compiled.
"""

from __future__ import annotations

import functools
import os
import platform
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

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
    default_threads,
)
from mgspmv.partition import split_rows

T = TypeVar("T")

SMALL_NNZ = 1 << 19
"""Nonzeros up to which NumPy's functions are used: a step of these takes 4 ms, to load Numba 0.5 s."""
PARTS_PER_THREAD = 32
SERIAL_NNZ = 1 << 16
"""Nonzeros below which only the calling thread computes: waking others takes longer than the product."""
PIECE = 1 << 13
"""Most rows of a piece of a pass, and about an eighth of its entries: temporary vectors stay in the cache."""


class HostBlock(ABC):
    """A block on the host: what does not depend on who multiplies. Sums are those of integers, in any order.

    Parameters
    ----------
    block : rows of the matrix; its values are not converted
    precision : `exact` sums int64 fixed point; the others sum in float64
    threads : maximum number of threads; default: the processors available to this process
    """

    def __init__(self, block: CsrBlock, precision: Precision = "float64", threads: int | None = None) -> None:
        self.block, self.precision = block, precision
        self.threads = 1 if block.nnz < SERIAL_NNZ else threads or default_threads()
        item = block.indices.itemsize + (0 if block.data is None else block.data.itemsize)
        n_parts = self.threads * PARTS_PER_THREAD
        self._bounds = split_rows(block.indptr, n_parts, bytes_per_nonzero=item, bytes_per_row=16)

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

    @abstractmethod
    def with_precision(self, precision: Precision) -> HostBlock:
        """Return the same block with steps in another precision."""

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
        return f"{platform.machine()}, {self.threads} {'thread' if self.threads == 1 else 'threads'}"

    @property
    def unit(self) -> float:
        """Unit of the vector that a step multiplies."""
        return 1.0 / FIXED_POINT if self.precision == "exact" else 1.0

    @cached_property
    def pieces(self) -> list[int]:
        """Rows where the pieces of a pass begin, and n_rows; no piece is in two parts."""
        n, full = self.block.n_rows, np.arange(8 * PIECE, self.block.nnz, 8 * PIECE)
        ends = np.searchsorted(self.block.indptr, full)
        rows = np.sort(np.concatenate([np.arange(0, n, PIECE), ends, self._bounds]))
        return rows[np.diff(rows, prepend=-1) > 0].tolist()  # type: ignore[no-any-return]  # `unique` imports numpy.ma

    @abstractmethod
    def sum_rows(self, z: np.ndarray, start: int, stop: int, *, has_values: bool = True) -> np.ndarray:
        """Return rows start .. stop of A z in float64, (stop - start,); without values, each entry counts as 1."""

    def scale(self, x: np.ndarray, weight: np.ndarray, z: np.ndarray) -> StepSums:
        """Set z = x / weight (0 where weight is 0), all (n_rows,), in the units of `step`; return the sums of x."""
        return self._add_up(partial(self._scale, x, weight, z))

    def _scale(self, x: np.ndarray, weight: np.ndarray, z: np.ndarray, start: int, stop: int) -> StepSums:
        own = slice(start, stop)
        return finish_rows(np.zeros(stop - start), x[own], weight[own], z[own], self.unit)

    def check_rows(self, x: np.ndarray, weight: np.ndarray, z: np.ndarray) -> RowCheck:
        """Sum x and count the rows where z differs from what `scale` computes from x; all (n_rows,)."""
        checks = self._map(partial(self._check_rows, x, weight, z))
        return sum(checks, RowCheck())

    def _check_rows(self, x: np.ndarray, weight: np.ndarray, z: np.ndarray, start: int, stop: int) -> RowCheck:
        rank, weight, z = x[start:stop].astype(np.float64), weight[start:stop], z[start:stop]
        with np.errstate(all="ignore"):
            is_rank = (rank >= 0.0) & (rank < 2.0)
            is_off = ~is_rank | (_quantize(_divide(rank, weight, self.unit), z.dtype) != z)
            total = _to_fixed(rank[is_rank], CHANGE_POINT).sum()
            dangling = _to_fixed(rank[is_rank & (weight == 0.0)], FIXED_POINT).sum()
        return RowCheck(int(total) % 2**64, int(is_off.sum()), int(dangling) % 2**64)

    def residual(
        self, z: np.ndarray, x: np.ndarray, alpha: float, mass: float, dangling: np.ndarray, personalization: np.ndarray
    ) -> float:
        """Return the sum over the rows of |alpha (A z + m d) + (1 - alpha) p - x|, plus a bound on its rounding.

        Computed in float64. Parameters as for `step`, but z is float64 and not scaled. Values in float32 are assumed to
        be rounded, which adds to the bound.
        """
        scalars = (float(alpha), float(alpha * mass), 1.0 - alpha)

        def add_up(start: int, stop: int) -> float:
            """Add up a part in the order of its rows, as kernels for many vectors do."""
            total, cuts = np.zeros(1), self.pieces[bisect_left(self.pieces, start) : bisect_right(self.pieces, stop)]
            for piece in pairwise(cuts):
                terms = self._find_residuals(z, x, scalars, dangling, personalization, *piece)
                total = np.cumsum(np.concatenate([total, terms]))[-1:]
            return float(total[0])

        return float(np.array(map_ranges(self.threads, add_up, self._bounds.tolist())).sum())

    def _find_residuals(
        self,
        z: np.ndarray,
        x: np.ndarray,
        scalars: tuple[float, float, float],
        dangling: np.ndarray,
        personalization: np.ndarray,
        start: int,
        stop: int,
    ) -> np.ndarray:
        alpha, alpha_mass, jump = scalars
        indptr, own = self.block.indptr[start : stop + 1], slice(start, stop)
        product: np.ndarray = alpha * self.sum_rows(z, start, stop)
        rest = alpha_mass * _cut(dangling, own) + jump * _cut(personalization, own)
        # The relative error of a sum of k terms >= 0 is at most k u: Higham, Accuracy and Stability, section 4.2.
        rounding = 2.0**-53 * ((np.diff(indptr) + 4) * product + 4 * rest + x[own])
        if is_rounded(self.block):
            touched = self.sum_rows(z, start, stop, has_values=False)
            rounding += FLOAT32_ROUNDING * product + FLOAT32_LEAST_ROUNDING * touched
        residuals: np.ndarray = np.abs(product + rest - x[own]) + rounding
        return residuals

    def _map(self, function: Callable[[int, int], T]) -> list[T]:
        return map_ranges(self.threads, function, self.pieces)

    def _add_up(self, function: Callable[[int, int], StepSums]) -> StepSums:
        return sum(self._map(function), StepSums())


class SmallBlock(HostBlock):
    """Kernels of a small block by NumPy's functions, in one thread."""

    def __init__(self, block: CsrBlock, precision: Precision = "float64", threads: int | None = None) -> None:
        super().__init__(block, precision, threads)
        self._given, self.threads = threads, 1

    def with_precision(self, precision: Precision) -> SmallBlock:
        """Return the same block with steps in another precision."""
        return SmallBlock(self.block, precision, self._given)

    def compile(self, *, is_relative: bool = False) -> None:
        """Do nothing: there is nothing to compile."""

    def multiply(self, x: np.ndarray, y: np.ndarray, alpha: float = 1.0, beta: float = 0.0) -> None:
        """Compute `CpuBlock.multiply`."""
        if x.ndim == 2:
            for column in range(x.shape[1]):
                self.multiply(x[:, column], y[:, column], alpha, beta)
            return
        with np.errstate(all="ignore"):
            for start, stop in pairwise(self.pieces):
                total = float(alpha) * self.sum_rows(x, start, stop)
                y[start:stop] = total if beta == 0 else total + float(beta) * y[start:stop]

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
        is_exact = self.precision == "exact"
        sum_rows: Callable[[np.ndarray, int, int], np.ndarray] = self._sum_fixed if is_exact else self.sum_rows
        scalars, found = (float(alpha), float(alpha * mass), 1.0 - alpha), StepSums()
        for start, stop in pairwise(self.pieces):
            own = slice(start, stop)
            with np.errstate(all="ignore"):
                rest = scalars[1] * _cut(dangling, own) + scalars[2] * _cut(personalization, own)
                old = x[own].astype(np.float64)
                x[own] = scalars[0] * (sum_rows(z, start, stop) * self.unit) + rest
                change = np.abs(x[own].astype(np.float64) - old)
            found += finish_rows(change, x[own], weight[own], z_next[own], self.unit, is_relative=is_relative)
        return found

    def sum_rows(self, z: np.ndarray, start: int, stop: int, *, has_values: bool = True) -> np.ndarray:
        """Return rows start .. stop of A z, summed in float64 in the order of the entries; (stop - start,)."""
        block = self.block
        entries = slice(block.indptr[start], block.indptr[stop])
        terms: np.ndarray = z[block.indices[entries]]
        if block.data is not None and has_values:
            terms = block.data[entries] * terms
        lengths = np.diff(block.indptr[start : stop + 1])
        return np.bincount(np.repeat(np.arange(stop - start), lengths), terms, stop - start)

    def _sum_fixed(self, z: np.ndarray, start: int, stop: int) -> np.ndarray:
        """Return rows of A z in float64, summed as int64, to which the terms are rounded, modulo 2^64."""
        block, (first, last) = self.block, self.block.indptr[[start, stop]].tolist()
        ends, terms = np.zeros(last - first + 1, np.int64), z[block.indices[first:last]]
        if block.data is not None:
            terms = _quantize(block.data[first:last] * terms, ends.dtype)
        np.cumsum(terms, out=ends[1:])
        sums: np.ndarray = np.diff(ends[block.indptr[start : stop + 1] - first])
        return sums.astype(np.float64)


def is_rounded(block: CsrBlock) -> bool:
    """Return whether the values are float32, which may be rounded ones."""
    return block.data is not None and block.data.itemsize == 4


def finish_rows(
    change: np.ndarray, x: np.ndarray, weight: np.ndarray, z_next: np.ndarray, unit: float, *, is_relative: bool = False
) -> StepSums:
    """Store z = x / weight of rows, in multiples of `unit`, and sum over them; `change` is |x' - x|."""
    with np.errstate(all="ignore"):
        new = x.astype(np.float64)
        ratio = _divide(new, weight, unit)
        is_right = (change <= 2.0) & (new >= 0.0) & (new <= 2.0) & (ratio < np.inf)
        changes = _to_fixed(np.where(is_right, change, 0.0), CHANGE_POINT)
        largest = changes
        if is_relative:
            part = np.minimum(change / np.where(new > 0.0, new, 1.0), RELATIVE_LIMIT)
            largest = _to_fixed(np.where(is_right & (new > 0.0), part, 0.0), CHANGE_POINT)
        dangling = _to_fixed(new[is_right & (weight == 0.0)], FIXED_POINT)
        z_next[:] = _quantize(ratio, z_next.dtype)
    n_wrong = len(x) - int(is_right.sum())
    return StepSums(int(changes.sum()), int(largest.max(initial=0)), int(dangling.sum()), n_wrong)


def _divide(x: np.ndarray, weight: np.ndarray, unit: float) -> np.ndarray:
    """Return x / weight in multiples of `unit`, and 0 where weight is 0."""
    ratio: np.ndarray = np.divide(x, weight, out=np.zeros(len(x)), where=weight != 0.0)
    return ratio / unit


def _cut(vector: np.ndarray, own: slice) -> np.ndarray:
    """Return the part of some rows, of a vector that may have one value for all rows."""
    return vector[own] if len(vector) > 1 else vector


def _quantize(values: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """Convert to a dtype, rounding to nearest even for integers."""
    rounded: np.ndarray = np.rint(values) if dtype.kind == "i" else values
    return rounded.astype(dtype, copy=False)


def _to_fixed(values: np.ndarray, point: float) -> np.ndarray:
    return np.rint(values * point).astype(np.int64)


# --- threads ---------------------------------------------------------------------------------------------------------


def run_parts(threads: int, kernel: Callable[..., None], bounds: np.ndarray, *args: Any) -> None:
    """Call kernel(counter, bounds, *args) in `threads` threads, including the calling one, and wait for all.

    A compiled kernel takes the next part of rows by `mgspmv.kernels.compiled.take` until none is left.

    Parameters
    ----------
    bounds : rows where parts begin
    """
    counter = np.zeros(1, np.int64)
    others = [_pool(threads).submit(kernel, counter, bounds, *args) for _ in range(threads - 1)]
    kernel(counter, bounds, *args)
    for other in others:
        other.result()


def map_ranges(threads: int, function: Callable[[int, int], T], bounds: Sequence[int]) -> list[T]:
    """Return function(start, stop) of each range of rows between bounds, computed in `threads` threads."""
    if threads == 1 or len(bounds) < 3:
        return list(map(function, bounds[:-1], bounds[1:]))
    return list(_pool(threads).map(function, bounds[:-1], bounds[1:]))


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="mgspmv-kernel")


# Threads do not survive a fork, so a child process needs a new pool.
os.register_at_fork(after_in_child=_pool.cache_clear)
