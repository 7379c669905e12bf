"""Rows of generated graphs, made on the current device: every entry is made, and those of other rows are dropped.

An entry is made in a fraction of the time that it takes to send it, so that devices with a range of the rows each need
not exchange any.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mgspmv.kernels.device import free_device_memory, load_kernel, pack, report_full_device, shared_memory
from mgspmv.model import BUCKETS, GeneratorRule, bucket_shift, index_dtype

THREADS, GRIDS = 256, 8
"""Threads of a thread block, and thread blocks for each multiprocessor."""
PIECE_BYTES = 40
"""Of device memory for an entry that is being sorted: keys, those that are kept, what sorting takes, and columns."""
MOST_PIECE = 1 << 30
"""Most entries that are sorted at once."""


def count_buckets(rule: GeneratorRule, begin: int, end: int) -> np.ndarray:
    """(BUCKETS,) int64: how many of the entries `begin` .. `end` - 1 there are in each bucket of rows."""
    import cupy

    buckets = cupy.zeros(BUCKETS, np.uint64)
    _launch("count", rule, begin, end, np.int64(bucket_shift(rule.n)), buckets)
    counts: np.ndarray = buckets.get().view(np.int64)
    return counts


def make_rows(rule: GeneratorRule, rows: list[int], most: list[int], *, merge: bool) -> tuple[np.ndarray, np.ndarray]:
    """CSR of a range of rows, on the host, with sorted columns.

    Parameters
    ----------
    rows : where buckets begin that the range is of, and where the last one ends
    most : entries of each of these, before duplicates are merged
    merge : keep one of the entries at the same place

    Returns
    -------
    (n + 1,) int64 row pointers from 0 on, and the columns.

    Raises
    ------
    CapacityError : a bucket does not fit the device
    """
    limit = max(1, min(MOST_PIECE, free_device_memory() // PIECE_BYTES))
    indptr = np.zeros(rows[-1] - rows[0] + 1, np.int64)
    parts, k = [], 0
    while k < len(most):
        last, total = k + 1, most[k]
        while last < len(most) and total + most[last] <= limit:
            total += most[last]
            last += 1
        counts, columns = _make_piece(rule, rows[k], rows[last], total, merge=merge)
        indptr[rows[k] - rows[0] + 1 : rows[last] - rows[0] + 1] = counts
        parts.append(columns)
        k = last
    np.cumsum(indptr, out=indptr)
    return indptr, np.concatenate(parts) if parts else np.empty(0, index_dtype(rule.n))


def _make_piece(rule: GeneratorRule, first: int, last: int, most: int, *, merge: bool) -> tuple[np.ndarray, np.ndarray]:
    """Lengths of rows, and their columns."""
    import cupy

    with report_full_device(f"{most:,} entries of rows {first} to {last}"):
        keys, found = cupy.empty(most, np.int64), cupy.zeros(1, np.uint64)
        bits = rule.column_bits
        scalars = (np.uint64(first), np.uint64(last), np.int64(bits))
        _launch("collect", rule, 0, rule.n_entries, *scalars, found, keys)
        assert int(found[0]) == most, "the entries that were counted are not those that were made"
        keys.sort()
        if merge and most:
            is_first = cupy.ones(most, np.bool_)
            cupy.not_equal(keys[1:], keys[:-1], out=is_first[1:])
            keys = keys[is_first]
        starts = cupy.searchsorted(keys, cupy.arange(last - first + 1, dtype=np.int64) << bits)
        columns = (keys & ((1 << bits) - 1)).astype(index_dtype(rule.n))
        lengths: np.ndarray = cupy.diff(starts).get()
        return lengths, columns.get()


def _launch(what: str, rule: GeneratorRule, begin: int, end: int, *arguments: Any) -> None:
    thresholds, scramble = rule.thresholds or (0, 0, 0), rule.scramble or (0, 0, 0, 0)
    packed = pack(
        *(_signed(word) for word in (rule.key, rule.n)),
        rule.scale,
        *thresholds,
        int(rule.scramble is not None),
        *map(_signed, scramble),
        *map(int, (rule.is_transposed, rule.drops_loops, rule.is_mirrored)),
    )
    kernel = load_kernel("generate.cu", f"{what}_{rule.model}")
    kernel((GRIDS * shared_memory()[0],), (THREADS,), (packed, np.int64(begin), np.int64(end), *arguments))


def _signed(word: int) -> int:
    """The int64 of the same 64 bits."""
    return word - 2**64 if word >= 2**63 else word
