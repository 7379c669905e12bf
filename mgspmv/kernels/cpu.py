"""Kernels of one CSR block on the CPU, compiled by Numba: the executable specification of the CUDA kernels.

Thread mapping: the rows are cut into parts of about equal bytes; every thread calls the kernel once, and the kernel
takes the next part from a shared counter until none is left. A row is summed by one thread, in the order of its
indices, so that a product does not depend on the number of threads. Sums over rows (change, dangling mass) are
sums of integers, which do not depend on the order.

Rows and columns are counted as unsigned: a signed column costs a test for wrap-around at every entry, half the speed.

At the end are passes over the ranks, by which `mgspmv.solvers.topk_certificate` bounds how far they can still change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mgspmv.kernels.catalogue import Kernel
from mgspmv.kernels.compiled import compile_later, take
from mgspmv.kernels.host import HostBlock, is_rounded, run_parts
from mgspmv.kernels.operands import multiply_columns
from mgspmv.model import CHANGE_POINT, FIXED_POINT, RELATIVE_LIMIT, CsrBlock, Precision, StepSums


class CpuBlock(HostBlock):
    """CPU kernels bound to one block: y = alpha A x + beta y, and the fused PageRank step.

    Parameters
    ----------
    block, precision : as for `HostBlock`
    threads : maximum number of threads; default: the processors available to this process
    """

    def __init__(self, block: CsrBlock, precision: Precision = "float64", threads: int | None = None) -> None:
        super().__init__(block, precision, threads)
        self._longest = int(np.diff(self._bounds).max())

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
        # None or True, by type, so that no kernel is compiled with what it does not need.
        exact, relative = (True if flag else None for flag in (self.precision == "exact", is_relative))
        zero = np.int64(0) if exact else np.float64(0)
        vectors = (z, x, z_next, weight, self.unit, zero, exact)
        scalars = (float(alpha), float(alpha * mass), 1.0 - alpha)
        shares = (dangling, min(1, len(dangling) - 1), personalization, min(1, len(personalization) - 1))
        changes = np.zeros(1, np.int64), np.empty((self.threads, self._longest))
        sums = np.zeros((len(self._bounds) - 1, 4), np.int64)
        self._run(_step, *changes, *self._csr, *vectors, *scalars, *shares, sums, relative)
        change, _, dangling_mass, wrong = (int(total) for total in sums.sum(axis=0))
        return StepSums(change, int(sums[:, 1].max()), dangling_mass, wrong)

    def with_precision(self, precision: Precision) -> CpuBlock:
        """Return the same block with steps in another precision."""
        return CpuBlock(self.block, precision, self.threads)

    def sum_rows(self, z: np.ndarray, start: int, stop: int, *, has_values: bool = True) -> np.ndarray:
        """Return rows start .. stop of A z in float64, by one thread; see `HostBlock.sum_rows`."""
        indptr, indices, data = self._csr
        csr = (indptr[start : stop + 1], indices, data if has_values else None)
        sums = np.empty(stop - start)
        run_parts(1, _multiply, np.array([0, stop - start]), *csr, z, sums, 1.0, 0.0)
        return sums

    def compile(self, *, is_relative: bool = False) -> None:
        """Compile the kernels of a PageRank run, or load them from files, so that no step's time includes it.

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
    def _csr(self) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        return self.block.indptr, self.block.indices, self.block.data

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


# --- kernels ---------------------------------------------------------------------------------------------------------
# Each takes (counter, bounds) first: the shared counter of parts and the rows where parts begin. Branches on arguments
# that are None are decided when a kernel is compiled. They call no other kernels, and take half as long to compile.


@compile_later()
def _multiply(counter, bounds, indptr, indices, data, x, y, alpha, beta):
    part = take(counter)
    while part < len(bounds) - 1:
        for i in range(np.uint64(bounds[part]), np.uint64(bounds[part + 1])):
            total = 0.0
            for k in range(np.uint64(indptr[i]), np.uint64(indptr[i + np.uint64(1)])):
                if data is None:
                    total += x[np.uint64(indices[k])]
                else:
                    total += data[k] * x[np.uint64(indices[k])]
            total *= alpha
            y[i] = total if beta == 0 else total + beta * y[i]
        part = take(counter)


@compile_later()
def _step(
    counter, bounds, threads, changes_of_threads, indptr, indices, data, z, x, z_next, weight, unit, zero, is_exact,
    alpha, alpha_mass, jump, dangling, d_stride, personalization, p_stride, sums, is_relative,
):  # fmt: skip
    changes = changes_of_threads[take(threads)]  # |x' - x| of the rows of a part; before that, their products
    part = take(counter)
    while part < len(bounds) - 1:
        start, stop = bounds[part], bounds[part + 1]
        for i in range(np.uint64(start), np.uint64(stop)):
            first, last = np.uint64(indptr[i]), np.uint64(indptr[i + np.uint64(1)])
            product = zero
            if data is None:
                for k in range(first, last):
                    product += z[np.uint64(indices[k])]
            elif is_exact is None:
                for k in range(first, last):
                    product += data[k] * z[np.uint64(indices[k])]
            else:
                for k in range(first, last):
                    product += np.int64(np.rint(data[k] * z[np.uint64(indices[k])]))
            changes[i - np.uint64(start)] = np.float64(product) * unit
        for i in range(start, stop):
            rest = alpha_mass * dangling[i * d_stride] + jump * personalization[i * p_stride]
            old = np.float64(x[i])
            x[i] = alpha * changes[i - start] + rest
            changes[i - start] = abs(np.float64(x[i]) - old)
        total, greatest, dangling_mass, wrong = 0, 0, 0, 0
        for i in range(start, stop):  # branch-free, so that it vectorizes
            new, change, is_dangling = np.float64(x[i]), changes[i - start], weight[i] == 0.0
            ratio = (0.0 if is_dangling else new / weight[i]) / unit
            is_right = (change <= 2.0) & (new >= 0.0) & (new <= 2.0) & (ratio < np.inf)
            fixed_change = np.int64(np.rint((change if is_right else 0.0) * CHANGE_POINT))
            total += fixed_change
            if is_relative is None:
                greatest = max(greatest, fixed_change)
            else:
                share = min(change / (new if new > 0.0 else 1.0), RELATIVE_LIMIT)
                share = share if is_right & (new > 0.0) else 0.0
                greatest = max(greatest, np.int64(np.rint(share * CHANGE_POINT)))
            wrong += 0 if is_right else 1
            dangling_mass += np.int64(np.rint((new if is_dangling & is_right else 0.0) * FIXED_POINT))
            if is_exact is None:
                z_next[i] = ratio
            elif data is None:
                z_next[i] = np.int64(np.rint(ratio))
            else:
                z_next[i] = ratio
        sums[part, 0], sums[part, 1], sums[part, 2], sums[part, 3] = total, greatest, dangling_mass, wrong
        part = take(counter)


# --- bounds of ranks -------------------------------------------------------------------------------------------------
# One thread calls each for a range of rows. Sums are integers, rounded so that bounds hold: sizes up, widths down.

LEAST, BINS = -64, 4
"""Exponent of the least ratio with a separate bin, and bins per power of two."""
N_BINS = BINS * (4 - LEAST)
"""Number of bins of ratios; one more bin holds greater ratios, and rows that have no width."""
FIRST_BIN = (1023 + LEAST) * BINS
"""Upper 14 bits of a float64 in the first bin."""
UNIT = 2.0**-58
"""Unit of the integer sums."""


def bin_bounds() -> np.ndarray:
    """Return the (bins,) upper bounds of the bins."""
    number = np.arange(FIRST_BIN + 1, FIRST_BIN + 1 + N_BINS, dtype=np.int64)
    return (number << 50).view(np.float64)


@compile_later()
def add_mean(x, x1, x2, v, w, lag, share, factor):
    """Set v = share v + factor ((1 - lag) x1 + lag x2), and w likewise from x and x1."""
    for i in range(len(x)):
        new, old, oldest = np.float64(x[i]), np.float64(x1[i]), np.float64(x2[i])
        v[i] = share * v[i] + factor * ((1.0 - lag) * old + lag * oldest)
        w[i] = share * w[i] + factor * ((1.0 - lag) * new + lag * old)


@compile_later()
def count_bins(x, x1, x2, v, w, is_left_out, leans, relative, sums):
    """Add the parts of q that are positive and negative, and h = v - w, to the bins of their ratio.

    q = r - lean (r' - r) of the changes r = x - x1 and r' = x1 - x2, widened on both sides by the rounding error,
    `relative` times the rank.

    Parameters
    ----------
    is_left_out : (rows,) or (1,) bool
    leans, relative : (n_leans,)
    sums : (n_leans, 2, N_BINS + 1, 2) int64, added to: sums of |q|, and of h times the upper bound of the bin

    Returns
    -------
    The sum of -h over rows in which it is not positive, in `UNIT`.
    """
    negative = 0
    for i in range(len(x)):
        if is_left_out[i if len(is_left_out) > 1 else 0]:
            continue
        new, old = np.float64(x[i]), np.float64(x1[i])
        r, before = new - old, old - np.float64(x2[i])
        h = v[i] - w[i]
        if h <= 0.0:
            negative += np.int64(np.ceil(-h / UNIT))
        for k in range(len(leans)):
            q = r - leans[k] * (before - r)
            rounding = relative[k] * max(new, old)
            for side in range(2):
                size = max(0.0, q if side == 0 else -q) + rounding
                number, width = N_BINS, 0.0
                if h > 0.0:
                    number = max(0, (np.float64(size / h).view(np.int64) >> 50) - FIRST_BIN)
                    if number < N_BINS:
                        width = h * np.int64((number + FIRST_BIN + 1) << 50).view(np.float64)
                    else:
                        number = N_BINS
                sums[k, side, number, 0] += np.int64(np.ceil(size / UNIT))
                sums[k, side, number, 1] += np.int64(np.floor(width / UNIT))
    return negative


@compile_later()
def find_highest(x, x1, w, least, lean, above, own):
    """Find the highest x + lean r + above w, plus rounding, over the rows with ranks below `least`; r = x - x1."""
    highest = -np.inf
    for i in range(len(x)):
        new = np.float64(x[i])
        if new < least:
            r = new - np.float64(x1[i])
            rounding = own * (new + abs(r)) + 2.0**-50 * above * abs(w[i])
            highest = max(highest, new + lean * r + above * w[i] + rounding)
    return highest
