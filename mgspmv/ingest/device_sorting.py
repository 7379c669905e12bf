"""Entries of a graph sorted on a device.

    batches  --upload, by several threads-->  parts on the device
    parts    --number ids, pack, sort, merge-->  CSR on the device

Entries that do not fit on the device are handed over to the sorter on the host, which numbers and groups them by row;
ranges of rows are then sorted on the device:

    range    --upload, pack, sort, merge-->  CSR on the device  -->  blocks on the host

A key is a row and a column, see `mgspmv.kernels.entry_sorting`. Entries at the same place keep the order of the source,
as sorting is stable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from mgspmv.errors import CapacityError, SourceError
from mgspmv.heartbeat import beat
from mgspmv.ingest.block_sorting import SUM_TOO_LARGE, Entries
from mgspmv.ingest.budget import UNLIMITED, FileArray
from mgspmv.ingest.external_sort import EntrySorter, RangeLimits
from mgspmv.ingest.numbering import SMALL_IDS, are_numbers
from mgspmv.ingest.source import Layout, infinite_error
from mgspmv.kernels.context import begin_sorting
from mgspmv.kernels.device import current_device, free_device_memory, make_copier
from mgspmv.kernels.entry_sorting import (
    MOST_ENTRIES,
    build_rows,
    count_columns,
    count_infinite,
    find_distinct,
    find_numbers,
    list_ids,
    mark_ids,
    put_numbers,
    sort_keys,
    sum_columns,
    turn_rows,
)
from mgspmv.kernels.formats import array_module, to_host
from mgspmv.kernels.staging import Staging
from mgspmv.model import INT32_LIMIT, CooBatch, CsrBlock, Duplicates
from mgspmv.store.stored_matrix import TRANSPOSE

SAMPLED_ENTRIES = 1 << 20
"""Least entries, of those of a device, by which rows are cut."""
LEAST = 1 << 20
"""Least entries that are worth the device."""
MARK_BYTES = 4
"""Bytes per possible id of small ids, which are marked and numbered by a table."""
ID_BYTES = 40
"""Bytes per entry for ids that are sorted, and the numbers that take their places."""
KEY_BYTES = 8
SORT_COPIES = 3
"""Copies of the keys, or of keys and places where there are values, while they are sorted."""
POINTER_BYTES = 8
ROWS_PART = 8
"""Divisor of the memory of the device: pointers of the rows of a range may take one part of this many."""
PIECE = 1 << 20
"""Entries per block on the host."""
RANGE_ENTRIES = 1 << 24
"""Entries of a range of rows that is sorted at a time, unless a bucket of the sorter on the host has more."""
AHEAD = 4
"""Ranges that are uploaded while one is sorted."""


def is_worth_a_device(n_entries: int) -> bool:
    """Return whether this number of entries is sorted on a device, if there is one."""
    return n_entries >= LEAST


def find_sort_bytes(value_bytes: int) -> int:
    """Return the most bytes of the device per entry while entries are sorted and merged, without the parts read.

    Parameters
    ----------
    value_bytes : of each value; 0 without values
    """
    return 2 * value_bytes + (2 if value_bytes else 1) * SORT_COPIES * KEY_BYTES


def are_marked(extent: tuple[int, int], n_entries: int) -> bool:
    """Return whether ids are few enough for a table of the numbers of all possible ones.

    Parameters
    ----------
    extent : least and greatest id
    """
    return extent[0] >= 0 and extent[1] < min(4 * n_entries + SMALL_IDS, INT32_LIMIT - 1)


@dataclass(frozen=True, eq=False)
class Merging:
    """Rule for entries at the same row and column, and for those on the diagonal."""

    rule: Duplicates
    """Rule for entries at the same row and column."""
    name: str
    """Name of the source, for messages."""
    raise_repeated: Callable[[int, int], object]
    """Called with row and column of an entry that is repeated, which the rule forbids."""
    drops_loops: bool
    """Whether entries on the diagonal are left out."""

    def build(self, keys: Any, values: Any, bits: int, n_rows: int, first_row: int = 0) -> tuple[Any, Any, Any]:
        """Sort entries on a device, merge them by the rule and return row pointers, columns and values there.

        Parameters
        ----------
        keys, values, bits, n_rows, first_row : as for `sort_keys` and `build_rows`

        Raises
        ------
        SourceError : a sum does not fit into int64
        """
        merges = self.rule in ("sum", "first")
        entries = sort_keys(keys, bits, has_values=values is not None, merges=merges, drops_loops=self.drops_loops)
        if self.rule == "error" and (repeated := entries.find_repeated(drops_loops=self.drops_loops)) is not None:
            self.raise_repeated(*repeated)
        built = build_rows(entries, n_rows, values, sums=self.rule == "sum", first_row=first_row)
        if built is None:
            raise SourceError(SUM_TOO_LARGE, source=self.name)
        return built


class DeviceSorter:
    """Sorter of entries in the memory of a device.

    Parameters
    ----------
    host : sorter on the host, which gets the entries if they do not fit
    staging : copies arrays to the device
    most_bytes : memory of the device that may be used

    Attributes
    ----------
    is_moved : whether the sorter on the host has the entries
    most_bytes : as given
    """

    def __init__(self, host: EntrySorter, staging: Staging, most_bytes: int) -> None:
        self.threads, self.n_entries, self.is_moved = host.threads, 0, False
        self._host, self._staging, self.most_bytes = host, staging, most_bytes
        self._parts: list[CooBatch] = []
        """Entries on the device, as they were read."""
        self._n_bytes = 0
        """Bytes of the parts."""
        self._widest = self._value_bytes = 0
        """Most bytes of an entry of a part, and bytes of its value."""
        self._xp: Any = np
        """CuPy; NumPy for the reference."""
        self._table: Any = None
        """Number of each id or code, plus `_first`, on the device; None if there is no table."""
        self._first = 0
        self._known: Any = None
        """Ids, ascending, on the device, whose places are their numbers; None if there are none."""

    def upload(self, batch: CooBatch) -> CooBatch:
        """Copy a batch to the device, unless entries are on the host; thread-safe."""
        return batch if self.is_moved else self._put(batch)

    def _put(self, batch: CooBatch) -> CooBatch:
        put, values = self._staging.put, batch.values
        return CooBatch(put(batch.rows), put(batch.cols), None if values is None else put(values))

    def add(self, batch: CooBatch, extent: tuple[int, int] | None = None) -> None:
        """Add a batch that was uploaded."""
        self.n_entries += len(batch.rows)
        self._value_bytes = 0 if batch.values is None else batch.values.itemsize
        if self.is_moved:
            self._staging.finish()  # the batch may just have been uploaded
            self._host.add(copy_batch(batch), extent)
        elif len(batch.rows):
            self._xp = array_module(batch.rows)
            self._parts.append(batch)
            own = batch.rows.itemsize + batch.cols.itemsize + self._value_bytes
            self._widest, self._n_bytes = max(self._widest, own), self._n_bytes + len(batch.rows) * own
            if not self.fits(0):
                self.move()

    def move(self) -> None:
        """Hand all entries over to the sorter on the host."""
        self._staging.finish()
        parts, self._parts, self.is_moved = self._parts[::-1], [], True
        self._table = self._known = None
        while parts:
            self._host.add(copy_batch(parts.pop()))

    # --- numbers

    def number(self, layout: Layout, extents: tuple[int, int]) -> Layout:
        """Return the layout with numbers in place of ids and codes, once all entries are added.

        Entries that do not suit the device are handed over to the host, and the layout stays as it is.

        Parameters
        ----------
        extents : least and greatest id or code
        """
        if self.is_moved:
            return layout
        are_ids, n_codes = layout.are_ids, 0 if layout.positions is None else len(layout.positions)
        is_suited = are_ids or (max(layout.shape) < INT32_LIMIT and not isinstance(layout.positions, FileArray))
        has_marks = are_ids and are_marked(extents, self.n_entries)
        need = MARK_BYTES * (extents[1] + 1 if has_marks else n_codes)
        if are_ids and not has_marks:  # ids are sorted
            need, is_suited = ID_BYTES * self.n_entries, 2 * self.n_entries <= MOST_ENTRIES
        if not is_suited or not is_worth_a_device(self.n_entries) or not self.fits(need):
            self.move()
            return layout
        self._staging.finish()
        if isinstance(layout.positions, np.ndarray):
            self._table = self._xp.asarray(layout.positions.astype(np.int32, copy=False))
        if not are_ids:
            return replace(layout, positions=None)
        ids = self.number_marked(extents[1]) if has_marks else self._list()
        return replace(layout, shape=(len(ids),) * 2, vertex_ids=None if are_numbers(ids) else ids, are_ids=False)

    def number_marked(self, high: int, join: Callable[[Any], object] = lambda seen: None) -> np.ndarray:
        """Return the ids of the parts, which are at most `high`, and make the table of their numbers.

        Parameters
        ----------
        join : adds to the marks, (high + 1,) int32, those of the other devices that number vertices together
        """
        self._staging.finish()
        seen = self._table = array_module(self._staging.put(np.zeros(0, np.int32))).zeros(high + 1, np.int32)
        self._first = 1
        for part in self._parts:
            mark_ids(part.rows, seen)
            mark_ids(part.cols, seen)
        join(seen)
        seen.cumsum(dtype=np.int32, out=seen)
        if int(seen[-1]) == high + 1:
            self._table, self._first = None, 0
            return np.arange(high + 1)
        return to_host(list_ids(seen))

    def get_table(self) -> np.ndarray | None:
        """Return the number of each id on the host, int32; None if ids are numbers."""
        return None if self._table is None else to_host(self._table) - np.int32(self._first)

    def _list(self) -> np.ndarray:
        """Return the ids of the parts, which are kept on the device too."""
        ids, n = self._xp.empty(2 * self.n_entries, np.int64), 0
        for part in self._parts:
            for own in (part.rows, part.cols):
                ids[n : n + len(own)] = own
                n += len(own)
        self._known = find_distinct(ids)
        found = to_host(self._known)
        if are_numbers(found):
            self._known = None
        return found

    # --- exchange with other devices

    def sample_rows(self, shift: int, n_buckets: int) -> np.ndarray:
        """Return the approximate number of entries in each bucket of 2^shift rows, (n_buckets,) int64."""
        self._staging.finish()
        counts, step = np.zeros(n_buckets, np.int64), max(1, self.n_entries // SAMPLED_ENTRIES)
        for part in self._parts:
            rows = part.rows[::step]
            rows = rows if self._table is None else self._table[rows] - self._first
            counts += step * np.bincount(to_host(rows) >> shift, minlength=n_buckets)
        return counts

    def take(self, n_cols: int, dtype: np.dtype[Any] | None) -> tuple[Any, Any, int]:
        """Return keys and values of all entries, in their order, and the bits of a column; they leave the sorter.

        Parameters
        ----------
        dtype : of the values, also where there are no entries; None for a pattern
        """
        self._staging.finish()
        parts, self._parts, bits = self._parts, [], _count_bits(n_cols)
        if parts:
            keys, values = self._pack(parts, bits)
            self._table = None
            return keys, values, bits
        put = self._staging.put
        return put(np.zeros(0, np.uint64)), None if dtype is None else put(np.zeros(0, dtype)), bits

    # --- sorting

    def build(self, shape: tuple[int, int], merging: Merging, *, has_transpose: bool) -> dict[str, Any]:
        """Sort the entries, merge them and return the arrays of the graph, on the device, as in a store.

        Raises
        ------
        SourceError : as for `Merging`; a weight that is not finite
        """
        n_rows, n_cols = shape
        bits = _count_bits(n_cols)
        keys, values = self._pack(self._parts, bits)
        self._parts, self._table, self._known = [], None, None
        indptr, indices, data = merging.build(keys, values, bits, n_rows)
        del keys, values
        if data is not None and (n_infinite := count_infinite(data)):
            raise infinite_error("graph", n_infinite, merging.name)
        degree = count_columns(indices, n_cols)
        arrays = {"indptr": indptr, "indices": indices, "out_degree": degree}
        if data is not None:
            arrays |= {"data": data, "out_weight": sum_columns(indptr, indices, data, degree)}
        if has_transpose:
            xp = array_module(indices)
            starts = xp.zeros(n_cols + 1, np.int64)
            xp.cumsum(degree, out=starts[1:])
            rows, order = turn_rows(indptr, indices, n_cols)
            turned = {"indptr": starts, "indices": rows} | ({} if data is None else {"data": data[order]})
            arrays |= {f"{TRANSPOSE}{own}": array for own, array in turned.items()}
        return arrays

    def suits(self, layout: Layout) -> bool:
        """Return whether entries that were handed over are sorted on the device, range after range."""
        is_worth = is_worth_a_device(self.n_entries) and is_worth_a_device(self._find_most(layout))
        return is_worth and max(layout.shape) < INT32_LIMIT

    def blocks(self, sorter: EntrySorter, layout: Layout, merging: Merging) -> Iterator[CsrBlock]:
        """Yield the entries of a sorter on the host, merged, in row order, as its `blocks` does.

        Parameters
        ----------
        sorter : entries with numbers, or with codes that ascend with them

        Raises
        ------
        SourceError : as for `Merging`
        CapacityError : the entries at one row and column do not fit on the device
        """
        (n_rows, n_cols), codes, bits = layout.shape, layout.positions, _count_bits(layout.shape[1])
        most, most_rows = self._find_most(layout), self.most_bytes // ROWS_PART // POINTER_BYTES
        remedy = "into the memory of the device for sorting; set CUDA_VISIBLE_DEVICES= to sort on the host"
        self._table, self._first = None if codes is None else self._staging.put(codes.astype(np.int32, copy=False)), 0

        def upload(lowest: int, highest: int, parts: list[Entries]) -> tuple[int, int, CooBatch]:
            rows, cols, given = zip(*parts, strict=True)
            values = None if given[0] is None else np.concatenate(given)
            return lowest, highest, self._put(CooBatch(np.concatenate(rows), np.concatenate(cols), values))

        limits = RangeLimits(min(RANGE_ENTRIES, most), most, most_rows, AHEAD, remedy)
        for lowest, highest, entries in sorter.ranges(upload, limits):
            self._staging.finish()
            first, stop = lowest, min(highest + 1, n_rows)
            if codes is not None:
                first, stop = np.searchsorted(layout.vertex_ids, (lowest, highest + 1)).tolist()
            self._xp = array_module(entries.rows)
            keys, values = self._pack([entries], bits)
            del entries
            indptr, indices, data = merging.build(keys, values, bits, stop - first, first)
            del keys, values
            yield from cut_blocks(first, n_cols, to_host(indptr), indices, data)
            beat()

    def _find_most(self, layout: Layout) -> int:
        """Return the most entries of a range of rows that are sorted at a time."""
        taken = self.most_bytes // ROWS_PART + (0 if layout.positions is None else MARK_BYTES * len(layout.positions))
        entry_bytes = find_sort_bytes(self._value_bytes) + (AHEAD + 2) * (2 * KEY_BYTES + self._value_bytes)
        return min(MOST_ENTRIES, (self.most_bytes - taken) // entry_bytes)

    def close(self) -> None:
        """Free all entries."""
        self._parts, self._table, self._known = [], None, None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Free all entries.

        Raises
        ------
        CapacityError : in place of an error of CuPy, where others took the memory of the device meanwhile
        """
        self.close()
        if kind is not None and kind.__name__ == "OutOfMemoryError":
            raise CapacityError(
                f"{self.n_entries:,} entries do not fit into the memory that is left on the device ({error}); free "
                "some, or set CUDA_VISIBLE_DEVICES= to sort them on the host"
            ) from error

    def _pack(self, parts: list[CooBatch], bits: int) -> tuple[Any, Any]:
        """Return the keys and values of parts on the device."""
        n, given, first = sum(len(part.rows) for part in parts), parts[0].values, 0
        keys, values = self._xp.empty(n, np.uint64), None if given is None else self._xp.empty(n, given.dtype)
        for part in parts:
            own = slice(first, first + len(part.rows))
            for side, ids in enumerate((part.rows, part.cols)):
                numbers = ids if self._known is None else find_numbers(ids, self._known)
                put_numbers(keys[own], numbers, self._table, self._first, bits, are_rows=not side)
            if values is not None:
                values[own] = part.values
            first = own.stop
        return keys, values

    def fits(self, need: int) -> bool:
        """Return whether all entries, until they are sorted and merged, and `need` bytes fit on the device."""
        need += self._n_bytes + self.n_entries * find_sort_bytes(self._value_bytes)
        return self.n_entries <= MOST_ENTRIES and need <= self.most_bytes


def make_device_sorter(host: EntrySorter, most_bytes: int = UNLIMITED) -> DeviceSorter:
    """Make a sorter on the current device, which may use `most_bytes` of its memory."""
    begin_sorting(current_device())
    return DeviceSorter(host, Staging(), min(most_bytes, free_device_memory()))


class DeviceSlices:
    """Array on a device whose slices are on the host, as the writer of a store takes them, in any thread.

    They are copied while others use the device, once it has completed what is enqueued in the current stream.
    """

    def __init__(self, array: Any) -> None:
        self._array, self.dtype = array, array.dtype
        self._get = to_host if isinstance(array, np.ndarray) else make_copier()

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, which: slice) -> np.ndarray:
        return self._get(self._array[which])


def cut_blocks(first_row: int, n_cols: int, indptr: np.ndarray, indices: Any, data: Any) -> Iterator[CsrBlock]:
    """Yield CSR rows in blocks on the host of at most `PIECE` entries; a row may be split into several.

    Parameters
    ----------
    first_row : number of the first row
    indptr : (n_rows + 1,) on the host
    indices, data : (nnz,) on the device or on the host; None for no data
    """
    for start in range(0, int(indptr[-1]), PIECE):
        stop = min(start + PIECE, int(indptr[-1]))
        first = int(np.searchsorted(indptr, start, side="right")) - 1
        last = int(np.searchsorted(indptr, stop))
        pointers = np.clip(indptr[first : last + 1], start, stop) - start
        own = to_host(indices[start:stop]), None if data is None else to_host(data[start:stop])
        yield CsrBlock(first_row + first, n_cols, pointers, *own)


def copy_batch(batch: CooBatch) -> CooBatch:
    """Return a batch on the host, copied if it is on a device."""
    return CooBatch(to_host(batch.rows), to_host(batch.cols), None if batch.values is None else to_host(batch.values))


def _count_bits(n_cols: int) -> int:
    """Return the bits of a column in a key."""
    return max(1, (n_cols - 1).bit_length())
