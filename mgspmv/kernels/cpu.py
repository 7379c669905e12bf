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
from mgspmv.kernels.compiled import compile_kernel, take
from mgspmv.kernels.host import HostBlock, is_rounded
from mgspmv.kernels.operands import multiply_columns
from mgspmv.kernels.parts import run_parts
from mgspmv.model import (
    CHANGE_POINT,
    FIXED_POINT,
    RELATIVE_LIMIT,
    CsrBlock,
    Precision,
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
        vectors = (z, x, z_next, weight, self.unit, zero)
        relative = True if is_relative else None  # by type, so that other steps are compiled without the division
        self._run(_step, *self._csr, *vectors, *scalars, dangling, personalization, sums, relative)
        return _add_up(sums)

    def sum_rows(self, z: np.ndarray, start: int, stop: int, *, has_values: bool = True) -> np.ndarray:
        """Return rows start .. stop of A z in float64, by one thread; see `HostBlock.sum_rows`."""
        indptr, indices, data = self._csr
        csr = (indptr[start : stop + 1], indices, data if has_values else None)
        sums = np.empty(stop - start)
        run_parts(1, _multiply, np.array([0, stop - start]), *csr, z, sums, 1.0, 0.0)
        return sums

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
        kernel.step(z, x, z, one[:0], 0.5, 0.0, one, one, is_relative=is_relative)
        for has_values in {True, not is_rounded(b)}:  # see `residual`
            kernel.sum_rows(one[:0], 0, 0, has_values=has_values)

    @property
    def pieces(self) -> list[int]:
        """Rows where pieces begin: those of `HostBlock`, cut further into pieces of about equal bytes."""
        return sorted({*super().pieces, *self._bounds.tolist()})

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
