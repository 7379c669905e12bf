"""Sort of entries by row and column in memory; entries at the same place keep their order.

Row and column, and the number of the entry if there are values, are one key if they fit, which NumPy sorts by vector
instructions. Longer keys are sorted by radix.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mgspmv.kernels.later import compile_later
from mgspmv.model import CsrBlock, index_dtype

DIGIT_BITS = 11
KEY_BITS = 64
SMALL = 1 << 20
"""Entries that NumPy sorts and counts before compiled functions do, which takes 0.2 s more."""
LARGE = 4 * SMALL
"""Entries of an input, read or expected, from which all functions are worth compiling."""

Entries = tuple[np.ndarray, np.ndarray, np.ndarray | None]
"""Rows, columns and values of entries; the values are None for a pattern."""


def sort_parts(parts: Sequence[Entries], start: int, stop: int, n_cols: int) -> CsrBlock:
    """Sort the entries of rows start .. stop - 1, given in parts; those at the same place keep their order."""
    n, has_values = sum(len(rows) for rows, _, _ in parts), parts[0][2] is not None
    col_bits, row_bits = max(0, n_cols - 1).bit_length(), (stop - start - 1).bit_length()
    values = np.concatenate([v for _, _, v in parts if v is not None]) if has_values else None
    if col_bits + row_bits > KEY_BITS or not _pack.is_worth(n):
        return _sort_both(parts, values, start, stop, n_cols)
    rows, cols = (np.concatenate([part[side] for part in parts]) for side in (0, 1))
    del parts
    keys = np.empty(n, np.uint64)
    _pack(rows, cols, start, np.uint64(col_bits), keys)
    del rows, cols
    keys, values = sort_keys(keys, values, col_bits + row_bits)
    indptr, indices = np.zeros(stop - start + 1, np.int64), np.empty(n, index_dtype(n_cols))
    _unpack(keys, np.uint64(col_bits), indptr[1:], indices)
    return CsrBlock(start, n_cols, np.cumsum(indptr, out=indptr), indices, values)


def sort_keys(keys: np.ndarray, values: np.ndarray | None, n_bits: int) -> tuple[np.ndarray, np.ndarray | None]:
    """Sort keys of `n_bits` bits and their values; the sort is stable, and may overwrite both."""
    number_bits = np.uint64((len(keys) - 1).bit_length())
    if values is None:
        keys.sort()
        return keys, None
    if n_bits + int(number_bits) <= KEY_BITS:
        keys <<= number_bits
        keys |= np.arange(len(keys), dtype=np.uint64)
        keys.sort()
        order = (keys & ((_1 << number_bits) - _1)).view(np.int64)
        keys >>= number_bits
        return keys, values[order]
    n_digits = max(1, -(-n_bits // DIGIT_BITS))
    width = -(-n_bits // n_digits)
    counts = np.zeros((n_digits, 1 << width), np.int64)
    _count_digits(keys, width, counts)
    others = np.empty_like(keys), None if values is None else np.empty_like(values)
    for d, own in enumerate(counts):
        if own.max() < len(keys):
            _scatter_digit(keys, values, d * width, width, np.cumsum(own) - own, *others)
            (keys, values), others = others, (keys, values)
    return keys, values


def _sort_both(parts: Sequence[Entries], values: np.ndarray | None, start: int, stop: int, n_cols: int) -> CsrBlock:
    """Sort parts by columns and then by rows: few entries, or rows and columns that do not fit into one key."""
    rows, cols = (np.concatenate([part[side] for part in parts]) for side in (0, 1))
    order = np.lexsort((cols, rows))
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows - start, minlength=stop - start))])
    indices = cols[order].astype(index_dtype(n_cols), copy=False)
    return CsrBlock(start, n_cols, indptr, indices, None if values is None else values[order])


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
def _count_digits(keys, width, counts):
    mask = (_1 << np.uint64(width)) - _1
    for key in keys:
        for d in range(len(counts)):
            counts[d, (key >> np.uint64(d * width)) & mask] += 1


@compile_later()
def _scatter_digit(keys, values, shift, width, cursor, out_keys, out_values):
    mask = (_1 << np.uint64(width)) - _1
    for k in range(len(keys)):
        digit = (keys[k] >> np.uint64(shift)) & mask
        place = cursor[digit]
        cursor[digit] = place + 1
        out_keys[place] = keys[k]
        if values is not None:
            out_values[place] = values[k]


@compile_later()
def _unpack(keys, col_bits, lengths, indices):
    mask = (_1 << col_bits) - _1
    for k in range(len(keys)):
        lengths[keys[k] >> col_bits] += 1
        indices[k] = keys[k] & mask
