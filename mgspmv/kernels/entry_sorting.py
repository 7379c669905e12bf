"""Sorting of entries into CSR in memory, on a device, or on the host as the reference of its kernels.

    ids         --mark, add up-->  the number of each id that occurs
    rows, cols  --number, pack-->  keys  --sort-->  keys in order of rows and columns  --merge, unpack-->  CSR

kernels/entries.cu has the steps; CuPy sorts. Each step takes arrays of CuPy or of NumPy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mgspmv.kernels.device import address, count_blocks, load_kernel
from mgspmv.kernels.formats import array_module
from mgspmv.model import INT32_LIMIT

MOST_ENTRIES = INT32_LIMIT - 1
"""Most entries that are sorted at a time."""
KEY_BITS = 64
_THREADS = 256

Array = Any
"""Array of NumPy or CuPy."""


def _launch(name: str, n: int, *arguments: Any, ids: Any = np.int32, value: Any = np.float32) -> None:
    if n:
        kernel = load_kernel("entries.cu", name, ID=np.dtype(ids), VALUE=np.dtype(value))
        kernel((count_blocks(n, _THREADS),), (_THREADS,), arguments)


def _is_on_host(array: Array) -> bool:
    return isinstance(array, np.ndarray)


def mark_ids(ids: Array, seen: Array) -> None:
    """Set `seen` of each id to 1.

    Parameters
    ----------
    ids : (k,) int32 or int64, from 0 below the length of `seen`
    seen : int32
    """
    if _is_on_host(ids):
        seen[ids] = 1
    else:
        _launch("mark_ids", len(ids), np.int64(len(ids)), ids, seen, ids=ids.dtype)


def list_ids(numbers: Array) -> Array:
    """Return the seen ids, ascending, as int64; `numbers` are the inclusive sums of `seen`."""
    if _is_on_host(numbers):
        return np.flatnonzero(np.diff(numbers, prepend=0))
    xp = array_module(numbers)
    ids = xp.empty(int(numbers[-1]) if len(numbers) else 0, np.int64)
    _launch("list_ids", len(numbers), np.int64(len(numbers)), numbers, ids)
    return ids


def find_distinct(ids: Array) -> Array:
    """Return the distinct ones of ids, (k,) int64, which are overwritten; ascending."""
    xp, n = array_module(ids), len(ids)
    ids.sort()
    if _is_on_host(ids):
        return ids[np.append(True, ids[1:] != ids[:-1])[:n]]
    numbers = xp.empty(n, np.int32)
    _launch("flag_entries", n, np.int64(n), ids, np.int32(0), np.int32(1), np.int32(0), numbers)
    xp.cumsum(numbers, dtype=np.int32, out=numbers)
    distinct = xp.empty(int(numbers[-1]), np.int64)
    _launch("list_distinct", n, np.int64(n), ids, numbers, distinct)
    return distinct


def find_numbers(ids: Array, known: Array) -> Array:
    """Return the number of each id among `known`, ascending int64 with all of them; (k,) int32."""
    if _is_on_host(ids):
        return np.searchsorted(known, ids).astype(np.int32)
    numbers = array_module(ids).empty(len(ids), np.int32)
    _launch("find_numbers", len(ids), np.int64(len(ids)), ids, np.int64(len(known)), known, numbers, ids=ids.dtype)
    return numbers


def put_numbers(keys: Array, ids: Array, table: Array | None, first: int, bits: int, *, are_rows: bool) -> None:
    """Put rows, and after them columns, into keys.

    Parameters
    ----------
    keys : (k,) uint64
    ids : (k,) int32 or int64
    table : int32, number of each id plus `first`; None if ids are numbers
    bits : number of bits of a column
    """
    if _is_on_host(keys):
        numbers = (ids if table is None else table[ids] - first).astype(np.uint64)
        keys[:] = numbers << np.uint64(bits) if are_rows else keys | numbers
        return
    scalars = (np.int32(first), np.int32(bits), np.int32(are_rows))
    _launch("put_numbers", len(ids), np.int64(len(ids)), ids, address(table), *scalars, keys, ids=ids.dtype)


@dataclass(frozen=True, eq=False)
class SortedKeys:
    """Keys of entries, sorted, and which of them are kept."""

    keys: Array
    """(k,) uint64: row << bits | column."""
    bits: int
    order: Array | None
    """(k,) int64: number of each entry before it was sorted; None without values."""
    places: Array
    """(k,) int32: number of entries that are kept, up to and including each."""

    @property
    def nnz(self) -> int:
        """Number of entries that are kept."""
        return int(self.places[-1])

    def find_repeated(self, *, drops_loops: bool) -> tuple[int, int] | None:
        """Return row and column of the first entry that occurs more than once; None if there is none."""
        keys, mask = self.keys, np.uint64((1 << self.bits) - 1)
        is_repeated = keys[1:] == keys[:-1]
        if drops_loops:
            is_repeated &= (keys[1:] >> np.uint64(self.bits)) != (keys[1:] & mask)
        if not len(is_repeated) or not int(is_repeated.view(np.int8).max()):
            return None
        key = int(keys[1 + int(is_repeated.view(np.int8).argmax())])
        return key >> self.bits, key & int(mask)


def order_keys(keys: Array, *, has_values: bool) -> tuple[Array, Array | None]:
    """Sort keys, in place without values; return them, and with values the number of each before it was sorted."""
    if not has_values:
        keys.sort()
        return keys, None
    order = array_module(keys).argsort(keys, kind="stable")
    return keys[order], order


def sort_keys(keys: Array, bits: int, *, has_values: bool, merges: bool, drops_loops: bool) -> SortedKeys:
    """Sort keys, in place without values, and flag the entries that are kept.

    Parameters
    ----------
    merges : whether only the first entry at each row and column is kept
    drops_loops : whether entries on the diagonal are not kept
    """
    xp, n = array_module(keys), len(keys)
    keys, order = order_keys(keys, has_values=has_values)
    flags = xp.empty(n, np.int32)
    if _is_on_host(keys):
        row, column = keys >> np.uint64(bits), keys & np.uint64((1 << bits) - 1)
        flags[:] = True if not merges else np.append(True, keys[1:] != keys[:-1])[:n]
        flags[:] &= (row != column) | (not drops_loops)
    else:
        scalars = (np.int32(bits), np.int32(merges), np.int32(drops_loops))
        _launch("flag_entries", n, np.int64(n), keys, *scalars, flags)
    return SortedKeys(keys, bits, order, xp.cumsum(flags, dtype=np.int32, out=flags))


def build_rows(
    entries: SortedKeys, n_rows: int, values: Array | None, *, sums: bool, first_row: int = 0
) -> tuple[Array, Array, Array | None] | None:
    """Build CSR arrays of the entries that are kept; None if a sum of integers does not fit into int64.

    Parameters
    ----------
    n_rows : number of rows, from `first_row` on, which have all entries
    values : (k,) int64, float32 or float64 values of the entries as they were before they were sorted; None for none
    sums : whether values at one row and column are added, in their order, or the first is kept

    Returns
    -------
    (n_rows + 1,) int64 row pointers, (nnz,) int32 columns, and (nnz,) values
    """
    keys, places, order, bits = entries.keys, entries.places, entries.order, entries.bits
    xp, n, nnz = array_module(keys), len(keys), entries.nnz
    indptr, indices = xp.empty(n_rows + 1, np.int64), xp.empty(nnz, np.int32)
    data = None if values is None else xp.empty(nnz, values.dtype)
    if _is_on_host(keys):
        rows = np.arange(first_row, first_row + n_rows + 1, dtype=np.uint64)
        firsts = np.searchsorted(keys, rows << np.uint64(bits))
        indptr[:] = np.append(0, places)[firsts]
        is_kept = np.diff(places, prepend=0) > 0
        indices[:] = keys[is_kept] & np.uint64((1 << bits) - 1)
        if data is None or values is None:
            return indptr, indices, None
        sorted_values = values[order]
        data[:] = sorted_values[is_kept]
        if sums:
            is_added = ~is_kept & np.isin(keys, keys[is_kept])
            np.add.at(data, places[is_added] - 1, sorted_values[is_added])
            if data.dtype.kind == "i" and (data != _add_exactly(places, sorted_values, is_kept | is_added)).any():
                return None
        return indptr, indices, data
    failed = xp.zeros(1, np.int32)
    counts = np.int64(n_rows), np.int64(first_row), np.int64(n)
    _launch("point_rows", n_rows + 1, *counts, keys, np.int32(bits), places, indptr)
    given = (address(order), address(values), np.int32(sums), indices, address(data), failed)
    _launch(
        "put_entries",
        n,
        np.int64(n),
        keys,
        np.int32(bits),
        places,
        *given,
        value=np.float32 if data is None else data.dtype,
    )
    return None if data is not None and data.dtype.kind == "i" and int(failed[0]) else (indptr, indices, data)


def _add_exactly(places: np.ndarray, values: np.ndarray, is_added: np.ndarray) -> np.ndarray:
    """Return the sums of integers at each place, as integers of Python."""
    sums = np.zeros(int(places[-1]), object)
    np.add.at(sums, places[is_added] - 1, values[is_added].astype(object))
    return sums


def count_infinite(data: Array) -> int:
    """Return the number of values that are NaN or infinite."""
    if _is_on_host(data):
        return len(data) - int(np.count_nonzero(np.isfinite(data)))
    count = array_module(data).zeros(1, np.int64)
    _launch("count_infinite", len(data), np.int64(len(data)), data, count, value=data.dtype)
    return int(count[0])


def count_columns(indices: Array, n_cols: int) -> Array:
    """Return the number of entries of each column, (n_cols,) int64."""
    if _is_on_host(indices):
        return np.bincount(indices, minlength=n_cols).astype(np.int64)
    degree = array_module(indices).zeros(n_cols, np.int64)
    _launch("count_columns", len(indices), np.int64(len(indices)), indices, degree)
    return degree


def sum_columns(indptr: Array, indices: Array, data: Array, degree: Array, low: Array | None = None) -> Array:
    """Return the sum of the values of each column, (n_cols,) float64, added in double-double in the order of rows.

    Parameters
    ----------
    low : (n_cols,) float64 that gets the low parts of the sums, whose high parts are returned then; None to add both
    """
    _, order = turn_rows(indptr, indices, len(degree))
    xp, n_cols = array_module(indices), len(degree)
    starts = xp.zeros(n_cols + 1, np.int64)
    xp.cumsum(degree, out=starts[1:])
    weight = xp.zeros(n_cols, np.float64)
    if _is_on_host(indices):
        for column in range(n_cols):
            high, rest = _add_up(data[order[starts[column] : starts[column + 1]]])
            weight[column] = high + rest if low is None else high
            if low is not None:
                low[column] = rest
    else:
        _launch("sum_columns", n_cols, np.int64(n_cols), starts, order, data, weight, address(low), value=data.dtype)
    return weight


def _add_up(values: np.ndarray) -> tuple[float, float]:
    high = low = 0.0
    for value in values.astype(np.float64).tolist():
        total = high + value
        part = total - high
        low += (high - (total - part)) + (value - part)
        high = total
    return high, low


def turn_rows(indptr: Array, indices: Array, n_cols: int) -> tuple[Array, Array]:
    """Return the rows of all entries in the order of columns, (nnz,) int32, and the entry that each is, int64."""
    xp, n_rows = array_module(indices), len(indptr) - 1
    bits = max(0, n_rows - 1).bit_length()
    if _is_on_host(indices):
        rows = np.repeat(np.arange(n_rows, dtype=np.uint64), np.diff(indptr))
        keys = indices.astype(np.uint64) << np.uint64(bits) | rows
    else:
        keys = xp.empty(len(indices), np.uint64)
        _launch("turn_keys", n_rows, np.int64(n_rows), indptr, indices, np.int32(bits), keys)
    order = xp.argsort(keys, kind="stable")
    return (keys[order] & np.uint64((1 << bits) - 1)).astype(np.int32), order
