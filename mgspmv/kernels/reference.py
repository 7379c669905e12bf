"""CPU references of the CUDA kernels, compiled by Numba: the executable specification, over the same arrays.

All compute y = alpha A x + beta y for a block of n_rows rows; y is not read when beta is 0. `data` is None for a
pattern, whose entries are all 1. alpha, beta and y are of the dtype of x; values are rounded to it first, and products
and sums are made in it, without contraction. A reference adds in the order of its CUDA kernel, so that both are
bit-identical unless its docstring says otherwise, in one thread. Parameters before x are named after fields of the
format or of `CsrBlock`. Dense products y = A x + b and sums of x are at the end. The header of a CUDA source has the
mapping of its threads and the literature.
"""

from __future__ import annotations

import numpy as np
from numba import types
from numba.extending import overload

from mgspmv.kernels.column_sorted_tiles import NO_ROW, ROW_BITS
from mgspmv.kernels.compiled import compile_kernel
from mgspmv.kernels.csr_cuts import RUN, STEP, TILE
from mgspmv.kernels.formats import CACHED_ROWS, ITEMS, SLICE, SUM_CHUNK, THREADS, TILE_COLS, TILE_ROWS, WARP

SLICE_LANES = 4
"""Threads that add the slices of a place in column-sorted-tiles."""
WINDOW = 2 * CACHED_ROWS
"""Columns of x that csr-cached loads into shared memory."""

# --- common helpers --------------------------------------------------------------------------------------------------


def _product(data, place, xj):
    """Return the term that the entry at `place` adds to its row's sum, in the dtype of x."""


@overload(_product)
def _product_overload(data, place, xj):
    if isinstance(data, types.NoneType):
        return lambda data, place, xj: xj
    dtype = np.float32 if xj == types.float32 else np.float64
    return lambda data, place, xj: dtype(data[place]) * xj


@compile_kernel
def _store(y, i, alpha, total, beta):
    y[i] = alpha * total if beta == 0 else alpha * total + beta * y[i]


@compile_kernel
def _add_tree(sums):
    """Add n sums, a power of two, as n / 2, n / 4, ... 1 lanes do: s[l] += s[l + d] for l < d."""
    d = len(sums) // 2
    while d > 0:
        for lane in range(d):
            sums[lane] += sums[lane + d]
        d //= 2
    return sums[0]


@compile_kernel
def _sum_by_lanes(indices, data, x, start, stop, sums):
    """Sum entries start .. stop with len(sums) lanes: lane l adds every len(sums)-th entry from start + l on."""
    sums.fill(0)
    for first in range(start, stop, len(sums)):
        for k in range(first, min(first + len(sums), stop)):
            sums[k - first] += _product(data, k, x[indices[k]])
    return _add_tree(sums)


@compile_kernel
def _add_carries(rows, sums, n_rows, y, alpha):
    """Add alpha times the sum of each row's carries, which are adjacent, to y[row]; skip row n_rows."""
    total = y.dtype.type(0)
    for c in range(len(rows)):
        total += sums[c]
        if c + 1 == len(rows) or rows[c + 1] != rows[c]:
            if rows[c] < n_rows:
                y[rows[c]] += alpha * total
            total = y.dtype.type(0)


# --- CSR -------------------------------------------------------------------------------------------------------------


@compile_kernel
def csr_scalar(indptr, indices, data, x, y, alpha, beta):
    """Compute y[i] = alpha sum_k data[k] x[indices[k]] + beta y[i], with k from indptr[i] up to indptr[i + 1]."""
    for i in range(len(indptr) - 1):
        total = x.dtype.type(0)
        for k in range(indptr[i], indptr[i + 1]):
            total += _product(data, k, x[indices[k]])
        _store(y, i, alpha, total, beta)


@compile_kernel
def csr_warp(indptr, indices, data, x, y, alpha, beta):
    """Compute the formula of `csr_scalar` with 32 lanes per row, whose sums are added as a tree."""
    sums = np.empty(WARP, x.dtype)
    for i in range(len(indptr) - 1):
        _store(y, i, alpha, _sum_by_lanes(indices, data, x, indptr[i], indptr[i + 1], sums), beta)


@compile_kernel
def csr_vector(rows, lanes, staged_lanes, indptr, indices, data, x, y, alpha, beta):
    """Compute the formula of `csr_scalar` with 1 to 64 lanes per row, whose sums are added as a tree.

    As planned by `plan_vector`, `rows` rows are staged together, by `staged_lanes` per row, if they fit in TILE places
    of shared memory, from the last multiple of 4 entries on; others have `lanes` per row.
    """
    in_place, staged = np.empty(lanes, x.dtype), np.empty(staged_lanes, x.dtype)
    for first in range(0, len(indptr) - 1, rows):
        last = min(first + rows, len(indptr) - 1)
        sums = staged if indptr[last] - indptr[first] // 4 * 4 <= TILE else in_place
        for i in range(first, last):
            _store(y, i, alpha, _sum_by_lanes(indices, data, x, indptr[i], indptr[i + 1], sums), beta)


@compile_kernel
def csr_cached(row_offset, indptr, indices, data, x, y, alpha, beta):
    """Compute the formula of `csr_scalar`, with x from a window about the diagonal for columns in it."""
    n_rows, window = len(indptr) - 1, np.empty(WINDOW, x.dtype)
    for first in range(0, n_rows, CACHED_ROWS):
        begin = max(0, min(row_offset + first - CACHED_ROWS // 2, len(x) - WINDOW))
        held = min(WINDOW, len(x) - begin)
        for j in range(held):
            window[j] = x[begin + j]
        for i in range(first, min(first + CACHED_ROWS, n_rows)):
            total = x.dtype.type(0)
            for k in range(indptr[i], indptr[i + 1]):
                j = indices[k]
                total += _product(data, k, window[j - begin] if 0 <= j - begin < held else x[j])
            _store(y, i, alpha, total, beta)


@compile_kernel
def csr_many(piece, indptr, indices, data, x, y, alpha, beta):
    """Compute the formula of `csr_scalar` for one column of X; entries are cut into pieces of `piece`, see `Stream`."""
    for i in range(len(indptr) - 1):
        start, stop = indptr[i], indptr[i + 1]
        total = x.dtype.type(0)
        k = start
        while k < stop:
            end, partial_sum = min(stop, (k // piece + 1) * piece), x.dtype.type(0)
            for entry in range(k, end):
                partial_sum += _product(data, entry, x[indices[entry]])
            total = partial_sum if k == start else total + partial_sum
            k = end
        _store(y, i, alpha, total, beta)


@compile_kernel
def csr_split(row_starts, nonzero_starts, indptr, indices, data, x, y, alpha, beta):
    """Compute the formula of `csr_scalar` in chunks of 1792 nonzeros and row ends; see `Split`.

    The chunk in which a row ends stores it. A chunk's sum of the row open at its end is its carry, added afterwards:
    y[row] += alpha carry. Nonzeros of a chunk are added in order, so it need not be bit-identical to the kernel.
    """
    n_chunks = len(row_starts) - 1
    carries = np.empty(n_chunks, x.dtype)
    for c in range(n_chunks):
        k, total = nonzero_starts[c], x.dtype.type(0)
        for i in range(row_starts[c], row_starts[c + 1]):
            while k < indptr[i + 1]:
                total += _product(data, k, x[indices[k]])
                k += 1
            _store(y, i, alpha, total, beta)
            total = x.dtype.type(0)
        while k < nonzero_starts[c + 1]:
            total += _product(data, k, x[indices[k]])
            k += 1
        carries[c] = total
    _add_carries(row_starts[1:], carries, len(indptr) - 1, y, alpha)


@compile_kernel
def csr_compact(cuts, marks, steps, near, rows, empty, carry_rows, indices, data, x, y, alpha, beta):
    """Compute the formula of `csr_scalar` by the blocks and marks of `Compact`.

    The block in which a row ends stores it. A block's sum of the row that continues after it is its carry, added
    afterwards: y[row] += alpha carry. Entries are added in order, so it need not be bit-identical to the kernel.
    """
    carries = np.zeros(len(cuts) - 1, x.dtype)
    for b in range(len(carries)):
        i, total = cuts[b, 1], x.dtype.type(0)
        for k in range(cuts[b, 0], cuts[b + 1, 0]):
            total += _product(data, k, x[_find_column(near, steps, indices, k)])
            if marks[k // STEP, k % STEP // RUN] >> np.uint32(k % RUN) & np.uint32(1):
                _store(y, i if rows is None else rows[i], alpha, total, beta)
                i, total = i + 1, x.dtype.type(0)
        carries[b] = total
    if empty is not None:
        for i in empty:
            _store(y, i, alpha, x.dtype.type(0), beta)
    if carry_rows is not None:
        _add_carries(carry_rows, carries, len(y), y, alpha)


@compile_kernel
def _find_column(near, steps, indices, k):
    """Return the column of entry k: 16 bits relative to that of its step, or as in CSR where it has none."""
    if steps[k // STEP, 1] < 0:
        return np.int64(indices[k])
    return np.int64(steps[k // STEP, 1]) + np.int64(near[k])


# --- other formats ---------------------------------------------------------------------------------------------------


@compile_kernel
def ell(indices, data, x, y, alpha, beta):
    """Compute y[i] = alpha sum_k data[k, i] x[indices[k, i]] + beta y[i], skipping places with index -1; see `Ell`."""
    for i in range(len(y)):
        total = x.dtype.type(0)
        for k in range(len(indices)):
            j = indices[k, i]
            if j >= 0:
                total += _product(data, (k, i), x[j])
        _store(y, i, alpha, total, beta)


@compile_kernel
def coo(rows, indices, data, x, y, alpha, beta):
    """Compute y[i] = beta y[i] for each row, then y[rows[k]] += alpha data[k] x[indices[k]] for each entry; see `Coo`.

    Entries are added in chunks of 1792, with carries as in `csr_split`; it need not be bit-identical to the kernel.
    """
    for i in range(len(y)):
        y[i] = x.dtype.type(0) if beta == 0 else beta * y[i]
    _add_coo(rows, indices, data, x, y, alpha)


@compile_kernel
def _add_coo(rows, indices, data, x, y, alpha):
    n_chunks = (len(rows) + ITEMS - 1) // ITEMS
    carry_rows, carries = np.empty(n_chunks, rows.dtype), np.empty(n_chunks, x.dtype)
    for c in range(n_chunks):
        stop, total = min((c + 1) * ITEMS, len(rows)), x.dtype.type(0)
        for k in range(c * ITEMS, stop):
            total += _product(data, k, x[indices[k]])
            if k + 1 < stop and rows[k + 1] != rows[k]:
                y[rows[k]] += alpha * total
                total = x.dtype.type(0)
        carry_rows[c], carries[c] = rows[stop - 1], total
    _add_carries(carry_rows, carries, len(y), y, alpha)


@compile_kernel
def hyb(ell_indices, ell_data, rows, indices, data, x, y, alpha, beta):
    """Compute `ell` for the first entries of each row, then add the others as `coo` does; see `Hyb`."""
    ell(ell_indices, ell_data, x, y, alpha, beta)
    _add_coo(rows, indices, data, x, y, alpha)


@compile_kernel
def dia(row_offset, offsets, data, x, y, alpha, beta):
    """Compute y[i] = alpha sum_d data[d, i] x[row_offset + i + offsets[d]] + beta y[i], skipping data of 0: `Dia`."""
    for i in range(len(y)):
        total = x.dtype.type(0)
        for d in range(len(offsets)):
            j = row_offset + i + offsets[d]
            if 0 <= j < len(x) and data[d, i] != 0:
                total += _product(data, (d, i), x[j])
        _store(y, i, alpha, total, beta)


@compile_kernel
def bsr(indptr, indices, data, x, y, alpha, beta):
    """Compute y[I b + r] = alpha sum_K sum_c data[K, r, c] x[indices[K] b + c] + beta y[I b + r], with K from indptr[I]
    up to indptr[I + 1], skipping places that hold 0; see `Bsr`.

    Of L lanes, L the largest multiple of b b up to 32, lane l adds values l, l + L, ... of a row of blocks.
    """
    b = data.shape[1]
    size = b * b
    sums = np.empty(WARP // size * size, x.dtype)
    for block_row in range(len(indptr) - 1):
        sums.fill(0)
        start = indptr[block_row]
        for block in range(start, indptr[block_row + 1]):
            lane = (block - start) * size % len(sums)
            for r in range(b):
                for c in range(b):
                    if data[block, r, c] != 0:
                        sums[lane + r * b + c] += _product(data, (block, r, c), x[indices[block] * b + c])
        for r in range(min(b, len(y) - block_row * b)):
            total = x.dtype.type(0)
            for lane in range(0, len(sums), size):
                for c in range(b):
                    total += sums[lane + r * b + c]
            _store(y, block_row * b + r, alpha, total, beta)


@compile_kernel
def sell(slice_ptr, order, indices, data, x, y, alpha, beta):
    """Compute y[order[32 s + l]] = alpha sum_k data[p] x[indices[p]] + beta y[...], p = slice_ptr[s] + 32 k + l,
    without places where the index is -1; see `Sell`.
    """
    for slot in range(len(order)):
        s, lane = slot // SLICE, slot % SLICE
        if order[slot] < 0:
            continue
        total = x.dtype.type(0)
        for p in range(slice_ptr[s] + lane, slice_ptr[s + 1], SLICE):
            if indices[p] >= 0:
                total += _product(data, p, x[indices[p]])
        _store(y, order[slot], alpha, total, beta)


@compile_kernel
def column_sorted_tiles(
    height, n_places, rows, tile_starts, wide, order, entries, columns, values, items, slice_starts, split_rows,
    split_places, lanes, x, y, alpha, beta,
):  # fmt: skip
    """Compute y[rows[p]] = alpha sum_k values[k] x[column of k] + beta y[rows[p]], with the entries k of place p, or of
    all places of a row; see `ColumnSortedTiles`.

    The tiles of an item are added in order. If a block has several items, or copies, each item leaves its sums in a
    slice; slices are added by four lanes, and the copies of a row by `lanes`, as in `csr_warp`.
    """
    n_shared = min(n_places, (len(slice_starts) - 1) * height)
    taken = x if order is None else x[order]
    slices = np.zeros((slice_starts[-1], height), x.dtype)
    for i in range(len(items)):
        block, first, last, place = items[i]
        sums = np.zeros(height, x.dtype)
        _add_chunks(tile_starts[first], tile_starts[last], wide, entries, columns, values, taken, sums)
        if place >= 0:
            slices[place] = sums
            continue
        for p in range(block * height, min((block + 1) * height, n_places)):
            _store(y, rows[p], alpha, sums[p - block * height], beta)
    copies, lanes_of_slices = np.zeros(n_shared, x.dtype), np.empty(SLICE_LANES, x.dtype)
    for p in range(n_shared):
        first = slice_starts[p // height]
        lanes_of_slices.fill(0)
        for place in range(first, slice_starts[p // height + 1]):
            lanes_of_slices[(place - first) % SLICE_LANES] += slices[place, p % height]
        copies[p] = _add_tree(lanes_of_slices)
        if rows[p] >= 0:
            _store(y, rows[p], alpha, copies[p], beta)
    partial_sums = np.empty(lanes, x.dtype)
    for k in range(len(split_rows)):
        partial_sums.fill(0)
        for p in range(split_places[k, 0], split_places[k, 1]):
            partial_sums[(p - split_places[k, 0]) % lanes] += copies[p]
        _store(y, split_rows[k], alpha, _add_tree(partial_sums), beta)
    for p in range(n_places, len(rows)):
        _store(y, rows[p], alpha, x.dtype.type(0), beta)


@compile_kernel
def _add_chunks(first, last, wide, entries, columns, values, x, sums):
    """Add the entries of chunks first .. last, which are in order of tiles, to `sums`."""
    for slot in range(first * WARP * wide, last * WARP * wide):
        place = entries[slot] & NO_ROW
        if place != NO_ROW:
            column = columns[slot // (WARP * wide)] + (entries[slot] >> ROW_BITS)
            sums[place] += _product(values, slot, x[column])


# --- dense vectors and matrices --------------------------------------------------------------------------------------


@compile_kernel
def sum_pairwise(x):
    """Sum a vector, float32 or float64, in chunks of 4096, and the sums of the chunks likewise; 0 if it is empty.

    Of 256 lanes, lane t adds elements t, t + 256, ... of a chunk; their sums are added as a tree.
    """
    if len(x) == 0:
        return x.dtype.type(0)
    while len(x) > 1:
        x = _sum_chunks(x)
    return x[0]


@compile_kernel
def dense_rows(A, x, b, y):
    """Compute y = A x + b in the order of the columns; b may be None."""
    for i in range(A.shape[0]):
        total = x.dtype.type(0)
        for j in range(A.shape[1]):
            total += A[i, j] * x[j]
        y[i] = total if b is None else total + b[i]


@compile_kernel
def dense_block(A, x, b, y):
    """Compute y = A x + b with 256 lanes per row, whose sums are added as a tree; b may be None."""
    sums = np.empty(THREADS, x.dtype)
    for i in range(A.shape[0]):
        total = _dot_by_lanes(A[i], x, sums)
        y[i] = total if b is None else total + b[i]


@compile_kernel
def dense_tiles(A, x, b, y):
    """Compute y = A x + b in tiles of 64 rows and 1024 columns, each row of one with 32 lanes; b may be None."""
    n_rows, n_cols = A.shape
    sums, totals = np.empty(WARP, x.dtype), np.empty(TILE_ROWS, x.dtype)
    for first in range(0, n_rows, TILE_ROWS):
        rows = min(TILE_ROWS, n_rows - first)
        totals[:] = 0
        for begin in range(0, n_cols, TILE_COLS):
            end = min(begin + TILE_COLS, n_cols)
            for r in range(rows):
                totals[r] += _dot_by_lanes(A[first + r, begin:end], x[begin:end], sums)
        for r in range(rows):
            y[first + r] = totals[r] if b is None else totals[r] + b[first + r]


@compile_kernel
def _sum_chunks(x):
    out = np.empty((len(x) + SUM_CHUNK - 1) // SUM_CHUNK, x.dtype)
    sums = np.empty(THREADS, x.dtype)
    for c in range(len(out)):
        sums.fill(0)
        first = c * SUM_CHUNK
        for k in range(first, min(first + SUM_CHUNK, len(x))):
            sums[(k - first) % THREADS] += x[k]
        out[c] = _add_tree(sums)
    return out


@compile_kernel
def _dot_by_lanes(row, x, sums):
    sums.fill(0)
    for j in range(len(x)):
        sums[j % len(sums)] += row[j] * x[j]
    return _add_tree(sums)
