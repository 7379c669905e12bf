"""Sort of entries by row and column in memory, and what follows it: entries at the same place, which keep their order,
are found or merged by the chosen rule, and those on the diagonal left out.

Row and column, and the number of the entry if there are values, are one key if they fit, which NumPy sorts by vector
instructions. Otherwise entries are sorted by column and then by row, each with the number of the entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mgspmv.errors import SourceError
from mgspmv.kernels.compiled import compile_later
from mgspmv.model import CsrBlock, Duplicates, index_dtype
from mgspmv.order import list_rows

KEY_BITS = 64
SMALL = 1 << 20
"""Entries that NumPy sorts and counts before compiled functions do, which takes 0.2 s more."""
LARGE = 4 * SMALL
"""Entries of an input, read or expected, from which all functions are worth compiling."""

SUM_TOO_LARGE = "the sum of duplicate entries does not fit into int64; ingest with dtype='float64'"

Entries = tuple[np.ndarray, np.ndarray, np.ndarray | None]
"""Rows, columns and values of entries; the values are None for a pattern."""


def sort_parts(parts: Sequence[Entries], start: int, stop: int, n_cols: int) -> CsrBlock:
    """Sort the entries of rows start .. stop - 1, given in parts; those at the same place keep their order."""
    values = None if parts[0][2] is None else np.concatenate([v for _, _, v in parts if v is not None])
    rows, cols = (np.concatenate([part[side] for part in parts]) for side in (0, 1))
    n = len(rows)
    del parts
    col_bits, row_bits = max(0, n_cols - 1).bit_length(), (stop - start - 1).bit_length()
    number_bits = 0 if values is None else (n - 1).bit_length()
    if col_bits + row_bits + number_bits > KEY_BITS or not _pack.is_worth(n):
        order = _order(cols, col_bits)
        rows = (rows - start)[order]
        order = order[_order(rows, row_bits)]
        indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=stop - start))])
        indices = cols[order].astype(index_dtype(n_cols), copy=False)
        return CsrBlock(start, n_cols, indptr, indices, None if values is None else values[order])
    keys = np.empty(n, np.uint64)
    _pack(rows, cols, start, np.uint64(col_bits), keys)
    del rows, cols
    if values is None:
        keys.sort()
    else:
        order = _sort_numbered(keys, number_bits)
        values = values[order]
        keys >>= np.uint64(number_bits)
    indptr, indices = np.zeros(stop - start + 1, np.int64), np.empty(n, index_dtype(n_cols))
    _unpack(keys, np.uint64(col_bits), indptr[1:], indices)
    return CsrBlock(start, n_cols, np.cumsum(indptr, out=indptr), indices, values)


def _order(numbers: np.ndarray, n_bits: int) -> np.ndarray:
    """Return the stable order of numbers of `n_bits` bits."""
    number_bits = max(0, len(numbers) - 1).bit_length()
    if n_bits + number_bits > KEY_BITS:
        return np.argsort(numbers, kind="stable")
    return _sort_numbered(numbers.astype(np.uint64), number_bits)


def _sort_numbered(keys: np.ndarray, number_bits: int) -> np.ndarray:
    """Append to each key its number, of some bits, and sort these, in place; return the numbers."""
    bits = np.uint64(number_bits)
    keys <<= bits
    keys |= np.arange(len(keys), dtype=np.uint64)
    keys.sort()
    return (keys & ((_1 << bits) - _1)).view(np.int64)


# --- entries at the same place, and on the diagonal -------------------------------------------------------------------


def merge_duplicates(name: str, block: CsrBlock, rule: Duplicates) -> CsrBlock:
    """Merge duplicate entries of a block by a rule other than `error`, overwriting the block.

    A small block is merged without compiled functions, unless there are values to sum.

    Raises
    ------
    SourceError : a sum does not fit in int64; `name` is that of the source
    """
    indptr, indices, data = block.indptr, block.indices, block.data
    if rule not in ("sum", "first"):
        return block
    if not _compact.is_worth(len(indices)):
        is_first = _find_first(block)
        if is_first.all():
            return block
        if data is None or rule == "first":
            kept = np.append(0, np.cumsum(is_first))[indptr]
            return CsrBlock(
                block.row_offset, block.n_cols, kept, indices[is_first], None if data is None else data[is_first]
            )
    is_integer = data is not None and data.dtype.kind == "i"
    nnz = _compact(indptr, indices, data, rule == "sum", np.iinfo(np.int64).max if is_integer else np.inf)
    if nnz < 0:
        raise SourceError(SUM_TOO_LARGE, source=name)
    if nnz == len(indices):
        return block
    merged = indices[:nnz].copy(), None if data is None else data[:nnz].copy()
    return CsrBlock(block.row_offset, block.n_cols, indptr, *merged)


def drop_loops(block: CsrBlock) -> CsrBlock:
    """Return a block without the entries on the diagonal."""
    keep = list_rows(block) != block.indices
    if keep.all():
        return block
    indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(keep)])[block.indptr]
    data = None if block.data is None else block.data[keep]
    return replace(block, indptr=indptr, indices=block.indices[keep], data=data)


def find_duplicate(block: CsrBlock) -> tuple[int, int] | None:
    """Return row and column of a duplicated entry; None if there is none."""
    repeated = np.flatnonzero(~_find_first(block))[:1]
    rows = np.searchsorted(block.indptr, repeated, side="right") - 1 + block.row_offset
    return next(iter(zip(rows.tolist(), block.indices[repeated].tolist(), strict=True)), None)


def _find_first(block: CsrBlock) -> np.ndarray:
    """Return which entries are the first at their places, (nnz,) bool."""
    is_first = np.append(True, block.indices[1:] != block.indices[:-1])[: block.nnz]
    starts = block.indptr[:-1]
    is_first[starts[starts < block.nnz]] = True
    return is_first


# --- compiled --------------------------------------------------------------------------------------------------------

# Numba promotes uint64 with int64 to float64, so every number combined with a key is a uint64.
_1 = np.uint64(1)


@compile_later()
def count_buckets(keys, shift, base, counts):
    """Count the keys per bucket, of 2**shift keys each, from bucket `base` on."""
    for key in keys:
        counts[(np.int64(key) >> shift) - base] += 1


@compile_later(2 * SMALL)
def scatter_buckets(rows, cols, values, shift, base, cursor, out_rows, out_cols, out_values):
    """Write entries to the places of the buckets of their rows, from `cursor` on."""
    for k in range(len(rows)):
        bucket = (np.int64(rows[k]) >> shift) - base
        place = cursor[bucket]
        cursor[bucket] = place + 1
        out_rows[place] = rows[k]
        out_cols[place] = cols[k]
        if values is not None:
            out_values[place] = values[k]


@compile_later(SMALL)
def _pack(rows, cols, start, col_bits, keys):
    for k in range(len(rows)):
        keys[k] = (np.uint64(np.int64(rows[k]) - start) << col_bits) | np.uint64(np.int64(cols[k]))


@compile_later()
def _unpack(keys, col_bits, lengths, indices):
    mask = (_1 << col_bits) - _1
    for k in range(len(keys)):
        lengths[keys[k] >> col_bits] += 1
        indices[k] = keys[k] & mask


@compile_later(SMALL)
def _compact(indptr, indices, data, add, most):
    """Merge equal neighbors in each row in place; return the number of entries left, -1 if a sum is beyond `most`."""
    out = 0
    start = indptr[0]
    for i in range(len(indptr) - 1):
        stop = indptr[i + 1]
        row_start = out
        for k in range(start, stop):
            if out > row_start and indices[out - 1] == indices[k]:
                if data is not None and add:  # compared before adding, as a sum of int64 wraps around
                    room = most - data[k] if data[k] > 0 else -most - 1 - data[k]
                    if (data[k] > 0 and data[out - 1] > room) or (data[k] < 0 and data[out - 1] < room):
                        return -1
                    data[out - 1] += data[k]
            else:
                indices[out] = indices[k]
                if data is not None:
                    data[out] = data[k]
                out += 1
        start = stop
        indptr[i + 1] = out
    return out
