"""PageRank kernels for many vectors at once on the CPU: the executable specification of the CUDA kernels.

    z = x / w (0 where w = 0);   m_c = sum of x over dangling vertices
    x' = alpha_c (A z + m_c d) + (1 - alpha_c) p_c

Vectors are columns: x and z are (n, width), row-major, so that an entry reads contiguous memory for all vectors. The
sums of a row are kept in vector registers, one lane per vector, while the row's entries are read once; rows of z are
prefetched some entries ahead. Each vector is added in the order of `CpuBlock`, so that results are bit-identical to its
results for one vector. Threads take parts of rows as there.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mgspmv.kernels.compiled import compile_kernel, compile_later, take
from mgspmv.kernels.cpu import CpuBlock
from mgspmv.kernels.highest import select_each
from mgspmv.kernels.lanes import (
    choose,
    load,
    magnitude,
    replace_lane,
    spread,
    store,
    sum_row_many,
    to_float64,
    to_integer,
    to_type_of,
    zeros_in_lines,
)
from mgspmv.kernels.operands import Terms
from mgspmv.model import (
    CHANGE_POINT,
    FIXED_POINT,
    FLOAT32_LEAST_ROUNDING,
    FLOAT32_ROUNDING,
    RELATIVE_LIMIT,
    CsrBlock,
    Precision,
    StepSums,
)


class CpuMany(CpuBlock):
    """Kernels of `CpuBlock` and kernels for many vectors, bound to one block; parameters as there.

    A vector is a column of C-ordered arrays. Always on the host are `mass`, (width,) float64, m of each column (the sum
    over dangling vertices of the x that z was computed from); `columns`, (j,) int64; and returned values.
    """

    best_width = 16
    """Element of `WIDTHS` with the shortest iteration per vector, memory permitting. A row of z is then one or two
    cache lines, and its sums are two registers of AVX-512, or four of AVX."""

    def scale_many(self, x: np.ndarray, weight: np.ndarray, z: np.ndarray) -> list[StepSums]:
        """Set z = x / weight (0 where weight is 0), all (n_rows, width); return the sums of x, with a change of 0."""
        sums = self._new_many_sums(x.shape[1])
        self._run(_scale_many, x, weight, z, self.unit, sums, (0,) * x.shape[1])
        return _add_up_many(sums)

    def step_many(
        self,
        z: np.ndarray,
        x: np.ndarray,
        z_next: np.ndarray,
        weight: np.ndarray,
        mass: np.ndarray,
        terms: Terms,
        *,
        is_relative: bool = False,
    ) -> list[StepSums]:
        """Make one PageRank step of every column in place: x from z (n_cols, width), then z_next (n_rows, width).

        With `is_relative` the largest change is that of |x' - x| / x', which is 0 where x' is 0."""
        zero = np.int64(0) if self.precision == "exact" else np.float64(0)
        sums = self._new_many_sums(x.shape[1])
        vectors = (z, x, z_next, weight, self.unit, zero)
        relative = True if is_relative else None  # by type, as in `CpuBlock.step`
        width = (0,) * x.shape[1]
        self._run(_step_many, *self._csr, *vectors, *self._list_terms(mass, terms), sums, relative, width)
        return _add_up_many(sums)

    def residual_many(self, z: np.ndarray, x: np.ndarray, mass: np.ndarray, terms: Terms) -> np.ndarray:
        """Return (width,): for each column the sum over the rows of |x' - x| of one more step, plus a bound on its
        rounding; in precision `float64`, whatever the dtype of x."""
        width = x.shape[1]
        sums = np.zeros((len(self._bounds) - 1, width))
        value_rounding = FLOAT32_ROUNDING if self.block.data is not None and self.block.data.itemsize == 4 else 0.0
        self._run(_residual_many, *self._csr, z, x, value_rounding, *self._list_terms(mass, terms), sums, (0,) * width)
        total: np.ndarray = np.ascontiguousarray(sums.T).sum(axis=1)
        return total

    def take(self, x: np.ndarray, columns: np.ndarray, out: np.ndarray) -> None:
        """Set out[j] = x[:, columns[j]], (j, n_rows)."""
        for vector, column in zip(out, columns, strict=True):  # avoids a second copy of all columns
            vector[:] = x[:, column]

    def select_highest(self, vectors: np.ndarray, k: int, numbers: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Return the numbers of the k highest entries of each vector, (j, n), and these entries, as `select_each` does;
        only they leave the block's device."""
        return select_each(vectors, k, numbers)

    def compile_many(self, widths: tuple[int, ...], residual_width: int, *, is_relative: bool = False) -> None:
        """Compile or load the kernels of a run, so that no step's time includes it."""
        b = self.block
        empty = CsrBlock(0, b.n_cols, b.indptr[:1], b.indices[:0], None if b.data is None else b.data[:0])
        kernel, plain, weight = CpuMany(empty, self.precision), CpuMany(empty, "float64"), np.empty(0)
        dtype = np.float32 if self.precision == "float32" else np.float64
        none = np.empty(0, np.int64)
        for width in {*widths, residual_width}:
            terms = Terms(np.zeros(width), weight, np.zeros(width), none, none, weight)
            x, z, wide = (kernel.zeros_many(0, width, d) for d in (dtype, self.z_dtype, np.float64))
            if width in widths:
                kernel.scale_many(x, weight, z)
                kernel.step_many(z, x, z, weight, terms.alpha, terms, is_relative=is_relative)
            if width == residual_width:
                plain.scale_many(x, weight, wide)
                plain.residual_many(wide, x, terms.alpha, terms)

    def with_precision(self, precision: Precision) -> CpuMany:
        """Return the same block in another precision."""
        return CpuMany(self.block, precision, self.threads)

    def zeros_many(self, n: int, width: int, dtype: Any) -> np.ndarray:
        """Return (n, width) zeros where the block is, aligned for the kernels."""
        return zeros_in_lines(n, width, dtype)

    def _list_terms(self, mass: np.ndarray, terms: Terms) -> tuple[np.ndarray, ...]:
        """List the terms as the kernels take them, with the first entry of p in each part."""
        scalars = (terms.alpha, terms.alpha * mass, 1.0 - terms.alpha)
        first = np.searchsorted(terms.rows, self._bounds[:-1])
        return (*scalars, terms.dangling, terms.base, first, *terms.entries)

    def _new_many_sums(self, width: int) -> np.ndarray:
        return np.zeros((len(self._bounds) - 1, 4, width), np.int64)


def _add_up_many(sums: np.ndarray) -> list[StepSums]:
    change, _, dangling, wrong = sums.sum(axis=0).tolist()
    greatest = sums[:, 1].max(axis=0).tolist()
    return [StepSums(*own) for own in zip(change, greatest, dangling, wrong, strict=True)]


# --- kernels ---------------------------------------------------------------------------------------------------------
# Each takes (counter, bounds) first, as those of `CpuBlock` do, and last a tuple whose length is the number of
# vectors.


@compile_kernel
def _measure_many(fixed_change, change, new, is_right, relative, width):
    """Return a row's changes in fixed point, divided by x' if `relative` is not None, for the largest changes."""
    if relative is None:
        return fixed_change
    zero, limit = spread(0.0, width), spread(RELATIVE_LIMIT, width)
    part = change / choose(new > 0.0, new, spread(1.0, width))
    return to_integer(choose(is_right & (new > 0.0), choose(part < limit, part, limit), zero) * CHANGE_POINT)


@compile_kernel
def _finish_row(i, new, change, weight, z_next, unit, sums, relative, width):
    """Store the next z of a row; return the sums (change, greatest change, dangling mass, wrong ranks) including it."""
    total, greatest, dangling, wrong = sums
    zero = spread(0.0, width)
    is_dangling = weight == 0.0
    ratio = zero if is_dangling else (new / weight) / unit
    is_right = (change <= 2.0) & (new >= 0.0) & (new <= 2.0) & (ratio < np.inf)
    fixed_change = to_integer(choose(is_right, change, zero) * CHANGE_POINT)
    measured = _measure_many(fixed_change, change, new, is_right, relative, width)
    greatest = choose(greatest < measured, measured, greatest)
    if is_dangling:
        dangling = dangling + to_integer(choose(is_right, new, zero) * FIXED_POINT)
    wrong = wrong + (spread(np.int64(1), width) - to_integer(is_right))
    store(z_next, i, to_type_of(ratio, z_next))
    return total + fixed_change, greatest, dangling, wrong


@compile_kernel
def _no_sums(width):
    none = spread(np.int64(0), width)
    return none, none, none, none


@compile_kernel
def _store_sums(sums, place):
    store(place, 0, sums[0])
    store(place, 1, sums[1])
    store(place, 2, sums[2])
    store(place, 3, sums[3])


@compile_later()
def _scale_many(counter, bounds, x, weight, z_next, unit, sums, width):
    part = take(counter)
    while part < len(bounds) - 1:
        own = _no_sums(width)
        for i in range(np.uint64(bounds[part]), np.uint64(bounds[part + 1])):
            new = to_float64(load(x, i, width))
            own = _finish_row(i, new, spread(0.0, width), weight[i], z_next, unit, own, None, width)
        _store_sums(own, sums[part])
        part = take(counter)


@compile_kernel
def _patch_rest(rest, i, place, alpha_mass, jump, dangling, rows, columns, weights):
    """Return row i's `rest` corrected where p differs from its base, from entry `place` of p on, and the next place."""
    d_stride = min(1, len(dangling) - 1)
    while place < len(rows) and rows[place] == i:
        c, p = columns[place], weights[place]
        d = dangling[i * d_stride] if len(dangling) else p
        rest = replace_lane(rest, c, alpha_mass[c] * d + jump[c] * p)
        place += 1
    return rest, place


@compile_later()
def _step_many(
    counter, bounds, indptr, indices, data, z, x, z_next, weight, unit, zero, alpha, alpha_mass, jump, dangling,
    base, first, rows, columns, weights, sums, relative, width,
):  # fmt: skip
    alphas, masses = load(alpha, None, width), load(alpha_mass, None, width)
    p = load(base, None, width)
    jumped = load(jump, None, width) * p
    rest = (masses * p if len(dangling) == 0 else masses * dangling[0]) + jumped
    none = spread(zero, width)
    part = take(counter)
    while part < len(bounds) - 1:
        place = first[part]
        summed = _no_sums(width)
        for i in range(np.uint64(bounds[part]), np.uint64(bounds[part + 1])):
            total = sum_row_many(indices, data, z, indptr[i], indptr[i + np.uint64(1)], none, width)
            own = masses * dangling[i] + jumped if len(dangling) > 1 else rest
            if place < len(rows) and rows[place] == i:
                own, place = _patch_rest(own, i, place, alpha_mass, jump, dangling, rows, columns, weights)
            old = to_float64(load(x, i, width))
            rounded = to_type_of(alphas * (to_float64(total) * unit) + own, x)
            store(x, i, rounded)
            new = to_float64(rounded)
            change = magnitude(new - old)
            summed = _finish_row(i, new, change, weight[i], z_next, unit, summed, relative, width)
        _store_sums(summed, sums[part])
        part = take(counter)


@compile_later()
def _residual_many(
    counter, bounds, indptr, indices, data, z, x, value_rounding, alpha, alpha_mass, jump, dangling,
    base, first, rows, columns, weights, sums, width,
):  # fmt: skip
    alphas, masses = load(alpha, None, width), load(alpha_mass, None, width)
    p = load(base, None, width)
    jumped = load(jump, None, width) * p
    rest = (masses * p if len(dangling) == 0 else masses * dangling[0]) + jumped
    none = spread(0.0, width)
    part = take(counter)
    while part < len(bounds) - 1:
        place = first[part]
        for i in range(np.uint64(bounds[part]), np.uint64(bounds[part + 1])):
            product = alphas * sum_row_many(indices, data, z, indptr[i], indptr[i + np.uint64(1)], none, width)
            own = masses * dangling[i] + jumped if len(dangling) > 1 else rest
            if place < len(rows) and rows[place] == i:
                own, place = _patch_rest(own, i, place, alpha_mass, jump, dangling, rows, columns, weights)
            ranks = to_float64(load(x, i, width))
            n_terms = np.float64(indptr[i + np.uint64(1)] - indptr[i] + 4)
            # As in `CpuBlock.residual`.
            rounding = 2.0**-53 * (n_terms * product + 4.0 * own + ranks)
            if value_rounding > 0.0:
                touched = sum_row_many(indices, None, z, indptr[i], indptr[i + np.uint64(1)], none, width)
                rounding = rounding + (value_rounding * product + FLOAT32_LEAST_ROUNDING * touched)
            far = magnitude(product + own - ranks) + rounding
            store(sums, part, load(sums, part, width) + far)
        part = take(counter)
