"""Kernels of one CSR block on the CPU, compiled by Numba: the executable specification of the CUDA kernels.

Thread mapping: the rows are cut into parts of about equal bytes; every thread calls the kernel once, and the kernel
takes the next part from a shared counter until none is left. A row is summed by one thread, in the order of its
indices, so that a product does not depend on the number of threads. Sums over rows (change, dangling mass) are
sums of integers, which do not depend on the order.

Rows and columns are counted as unsigned: a signed column costs a test for wrap-around at every entry, half the speed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from mgspmv.kernels.catalogue import Kernel
from mgspmv.kernels.compiled import compile_kernel
from mgspmv.kernels.host import HostBlock
from mgspmv.kernels.operands import multiply_columns
from mgspmv.kernels.parts import run_parts, take
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

PARTS_PER_THREAD = 32
SERIAL_NNZ = 1 << 16
"""Nonzeros below which only the calling thread computes: waking others takes longer than the product."""


class CpuBlock(HostBlock):
    """CPU kernels bound to one block: y = alpha A x + beta y, and the fused PageRank step.

    Parameters
    ----------
    block, precision : as for `HostBlock`
    threads : maximum number of threads; default: the processors available to this process
    """

    def __init__(self, block: CsrBlock, precision: Precision = "float64", threads: int | None = None) -> None:
        super().__init__(block, precision, threads)
        self.threads = 1 if block.nnz < SERIAL_NNZ else threads or default_threads()
        n_parts = self.threads * PARTS_PER_THREAD
        item = block.indices.itemsize + (0 if block.data is None else block.data.itemsize)
        self._bounds = split_rows(block.indptr, n_parts, bytes_per_nonzero=item, bytes_per_row=16)

    def multiply(self, x: np.ndarray, y: np.ndarray, alpha: float = 1.0, beta: float = 0.0) -> None:
        """Compute y = alpha A x + beta y in place; y is not read when beta is 0.

        Parameters
        ----------
        x : (n_cols,) or (n_cols, k), float32 or float64; C-ordered
        y : (n_rows,) or (n_rows, k) of the same dtype; C-ordered

        Products of float32 are rounded to float32; sums are made in float64 and rounded once to the dtype of y.
        """
        if x.ndim == 1:
            self._run(_multiply, *self._csr, x, y, float(alpha), float(beta))
            return
        from mgspmv.kernels.lanes import multiply_vectors

        multiply_vectors(self.threads, self._bounds, self._csr, x, y, float(alpha), float(beta))

    def scale(self, x: np.ndarray, weight: np.ndarray, z: np.ndarray) -> StepSums:
        """Set z = x / weight (0 where weight is 0), all (n_rows,), in the units of `step`; return the sums of x."""
        sums = self._new_sums()
        self._run(_scale, x, weight, z, self._unit, sums)
        return _add_up(sums)

    def check_rows(self, x: np.ndarray, weight: np.ndarray, z: np.ndarray) -> RowCheck:
        """Sum x and count the rows where z differs from what `scale` computes from x; all (n_rows,)."""
        found = np.zeros((len(self._bounds) - 1, 3), np.uint64)
        self._run(_check_rows, x, weight, z, self._unit, found)
        return sum((RowCheck(*own) for own in found.tolist()), RowCheck())

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
        """Make one fused PageRank step: x <- alpha (A z + m d) + (1 - alpha) p, then z_next = x / weight, in place.

        Parameters
        ----------
        z : (n_cols,) of `z_dtype`; in units of 2^-62 when exact
        x : (n_rows,) float32 or float64
        z_next : (n_rows,) like z
        weight : (n_rows,) float64 out-weights, 0 for dangling vertices
        mass : m, the sum over dangling vertices of the x that z was computed from
        dangling, personalization : d and p, float64, (n_rows,), or (1,) for one value for all rows
        is_relative : the largest change is that of |x' - x| / x', which is 0 where x' is 0
        """
        zero = np.int64(0) if self.precision == "exact" else np.float64(0)
        sums = self._new_sums()
        scalars = (float(alpha), float(alpha * mass), 1.0 - alpha)
        vectors = (z, x, z_next, weight, self._unit, zero)
        relative = True if is_relative else None  # by type, so that other steps are compiled without the division
        self._run(_step, *self._csr, *vectors, *scalars, dangling, personalization, sums, relative)
        return _add_up(sums)

    def residual(
        self, z: np.ndarray, x: np.ndarray, alpha: float, mass: float, dangling: np.ndarray, personalization: np.ndarray
    ) -> float:
        """Return the sum over the rows of |alpha (A z + m d) + (1 - alpha) p - x|, plus a bound on its rounding.

        Computed in float64. Parameters as for `step`, but z is float64 and not scaled. Values in float32 are assumed to
        be rounded, which adds to the bound.
        """
        sums = np.zeros(len(self._bounds) - 1)
        value_rounding = FLOAT32_ROUNDING if self.block.data is not None and self.block.data.itemsize == 4 else 0.0
        scalars = (float(alpha), float(alpha * mass), 1.0 - alpha, value_rounding)
        self._run(_residual, *self._csr, z, x, *scalars, dangling, personalization, sums)
        return float(sums.sum())

    def compile(self, *, is_relative: bool = False) -> None:
        """Compile the kernels of a PageRank run, or load them from Numba's cache, so that no step's time includes it.

        Parameters
        ----------
        is_relative : as for `step`
        """
        b = self.block
        empty = CsrBlock(0, b.n_cols, b.indptr[:1], b.indices[:0], None if b.data is None else b.data[:0])
        kernel, one = CpuBlock(empty, self.precision), np.ones(1)
        x = np.empty(0, np.float32 if self.precision == "float32" else np.float64)
        z = np.empty(0, self.z_dtype)
        kernel.scale(x, one[:0], z)
        kernel.check_rows(x, one[:0], z)
        kernel.step(z, x, z, one[:0], 0.5, 0.0, one, one, is_relative=is_relative)
        plain = CpuBlock(empty, "float64")
        plain.scale(x, one[:0], one[:0])
        plain.residual(one[:0], x, 0.5, 0.0, one, one)

    @property
    def _csr(self) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        return self.block.indptr, self.block.indices, self.block.data

    def _new_sums(self) -> np.ndarray:
        return np.zeros((len(self._bounds) - 1, 4), np.int64)

    def _run(self, kernel: Callable[..., None], *args: Any) -> None:
        run_parts(self.threads, kernel, self._bounds, *args)


class ReferenceBlock(CpuBlock):
    """CPU reference of a CUDA kernel for products, bound to a block; PageRank steps are those of `CpuBlock`.

    Raises
    ------
    FormatError : the kernel does not support this matrix
    """

    def __init__(self, block: CsrBlock, precision: Precision, kernel: Kernel) -> None:
        super().__init__(block, precision, threads=1)
        plain = "float32" if precision == "float32" else "float64"
        made = kernel.build(block, plain if block.data is None else block.data.dtype)
        self._reference, self._nbytes = kernel.bind_reference(block, made), kernel.count_bytes(block, made)

    @property
    def nbytes(self) -> int:
        return self._nbytes

    def multiply(self, x: np.ndarray, y: np.ndarray, alpha: float = 1.0, beta: float = 0.0) -> None:
        """Compute y = alpha A x + beta y in place, column by column; sums are made in the dtype of x and y.

        Parameters
        ----------
        x : (n_cols,) or (n_cols, k), float32 or float64
        y : (n_rows,) or (n_rows, k) of the same dtype
        """
        scalars = x.dtype.type(alpha), x.dtype.type(beta)
        multiply_columns(self._reference, x, y, *scalars)


def _add_up(sums: np.ndarray) -> StepSums:
    change, _, dangling, wrong = (int(total) for total in sums.sum(axis=0))
    return StepSums(change, int(sums[:, 1].max()), dangling, wrong)


# --- kernels ---------------------------------------------------------------------------------------------------------
# Each takes (counter, bounds) first: the shared counter of parts and the rows where parts begin.


def _quantize(value, like):
    """Convert `value` to the type of `like`, rounding to nearest even for an integer."""


@overload(_quantize)
def _quantize_overload(value, like):
    if isinstance(like, types.Integer):
        return lambda value, like: np.int64(np.rint(value))
    return lambda value, like: value


def _contribute(data, k, zj, zero):
    """Return the term that entry k adds to its row's sum, in the type of `zero`."""


@overload(_contribute)
def _contribute_overload(data, k, zj, zero):
    if isinstance(data, types.NoneType):
        return lambda data, k, zj, zero: zj
    if isinstance(zero, types.Integer):
        return lambda data, k, zj, zero: np.int64(np.rint(data[k] * zj))
    return lambda data, k, zj, zero: data[k] * zj


@compile_kernel
def _sum_row(indices, data, z, start, stop, zero):
    total = zero
    for k in range(np.uint64(start), np.uint64(stop)):
        total += _contribute(data, k, z[np.uint64(indices[k])], zero)
    return total


@compile_kernel
def _multiply(counter, bounds, indptr, indices, data, x, y, alpha, beta):
    part = take(counter)
    while part < len(bounds) - 1:
        for i in range(np.uint64(bounds[part]), np.uint64(bounds[part + 1])):
            total = alpha * _sum_row(indices, data, x, indptr[i], indptr[i + np.uint64(1)], 0.0)
            y[i] = total if beta == 0 else total + beta * y[i]
        part = take(counter)


@compile_kernel
def _measure_row(fixed_change, change, new, is_right, relative):
    """Return a row's change in fixed point, divided by x' if `relative` is not None, for the largest change."""
    if relative is None:
        return fixed_change
    part = min(change / (new if new > 0.0 else 1.0), RELATIVE_LIMIT)
    return np.int64(np.rint((part if is_right & (new > 0.0) else 0.0) * CHANGE_POINT))


@compile_kernel
def _finish_rows(start, stop, change, x, weight, z_next, unit, sums, relative):
    """Store the next z of some rows, and their sums; `change` holds |x' - x|. Branch-free, so that it vectorizes."""
    total, greatest, dangling, wrong = 0, 0, 0, 0
    for i in range(start, stop):
        new = np.float64(x[i])
        is_dangling = weight[i] == 0.0
        ratio = (0.0 if is_dangling else new / weight[i]) / unit
        is_right = (change[i - start] <= 2.0) & (new >= 0.0) & (new <= 2.0) & (ratio < np.inf)
        fixed_change = np.int64(np.rint((change[i - start] if is_right else 0.0) * CHANGE_POINT))
        total += fixed_change
        greatest = max(greatest, _measure_row(fixed_change, change[i - start], new, is_right, relative))
        wrong += 0 if is_right else 1
        dangling += np.int64(np.rint((new if is_dangling & is_right else 0.0) * FIXED_POINT))
        z_next[i] = _quantize(ratio, z_next[0])
    sums[0], sums[1], sums[2], sums[3] = total, greatest, dangling, wrong


@compile_kernel
def _scale(counter, bounds, x, weight, z_next, unit, sums):
    part = take(counter)
    while part < len(bounds) - 1:
        start, stop = bounds[part], bounds[part + 1]
        _finish_rows(start, stop, np.zeros(stop - start), x, weight, z_next, unit, sums[part], None)
        part = take(counter)


@compile_kernel
def _check_rows(counter, bounds, x, weight, z, unit, found):
    part = take(counter)
    while part < len(bounds) - 1:
        total, n_off, dangling = np.uint64(0), np.uint64(0), np.uint64(0)
        for i in range(bounds[part], bounds[part + 1]):
            rank, is_dangling = np.float64(x[i]), weight[i] == 0.0
            ratio = (0.0 if is_dangling else rank / weight[i]) / unit
            if (rank >= 0.0) & (rank < 2.0):
                total += np.uint64(np.int64(np.rint(rank * CHANGE_POINT)))
                dangling += np.uint64(np.int64(np.rint((rank if is_dangling else 0.0) * FIXED_POINT)))
                n_off += np.uint64(z.dtype.type(_quantize(ratio, z[0])) != z[i])
            else:
                n_off += np.uint64(1)
        found[part, 0], found[part, 1], found[part, 2] = total, n_off, dangling
        part = take(counter)


@compile_kernel
def _step(
    counter, bounds, indptr, indices, data, z, x, z_next, weight, unit, zero, alpha, alpha_mass, jump,
    dangling, personalization, sums, relative,
):  # fmt: skip
    d_stride, p_stride = min(1, len(dangling) - 1), min(1, len(personalization) - 1)
    longest = np.int64(0)
    for k in range(len(bounds) - 1):  # np.diff(bounds).max() takes ten times as long to compile as the rest
        longest = max(longest, bounds[k + 1] - bounds[k])
    buffer = np.empty(longest)
    part = take(counter)
    while part < len(bounds) - 1:
        start, stop = bounds[part], bounds[part + 1]
        for i in range(np.uint64(start), np.uint64(stop)):
            total = _sum_row(indices, data, z, indptr[i], indptr[i + np.uint64(1)], zero)
            buffer[i - np.uint64(start)] = np.float64(total) * unit
        for i in range(start, stop):
            rest = alpha_mass * dangling[i * d_stride] + jump * personalization[i * p_stride]
            old = np.float64(x[i])
            x[i] = alpha * buffer[i - start] + rest
            buffer[i - start] = abs(np.float64(x[i]) - old)
        _finish_rows(start, stop, buffer, x, weight, z_next, unit, sums[part], relative)
        part = take(counter)


@compile_kernel
def _residual(
    counter, bounds, indptr, indices, data, z, x, alpha, alpha_mass, jump, value_rounding,
    dangling, personalization, sums,
):  # fmt: skip
    d_stride, p_stride = min(1, len(dangling) - 1), min(1, len(personalization) - 1)
    part = take(counter)
    while part < len(bounds) - 1:
        for i in range(bounds[part], bounds[part + 1]):
            product = alpha * _sum_row(indices, data, z, indptr[i], indptr[i + 1], 0.0)
            rest = alpha_mass * dangling[i * d_stride] + jump * personalization[i * p_stride]
            # The relative error of a sum of k terms >= 0 is at most k u: Higham, Accuracy and Stability, section 4.2.
            rounding = 2.0**-53 * ((indptr[i + 1] - indptr[i] + 4) * product + 4 * rest + x[i])
            if value_rounding > 0.0:
                touched = _sum_row(indices, None, z, indptr[i], indptr[i + 1], 0.0)
                rounding += value_rounding * product + FLOAT32_LEAST_ROUNDING * touched
            sums[part] += abs(product + rest - x[i]) + rounding
        part = take(counter)
