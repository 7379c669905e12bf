"""Entries of a graph sorted on a device.

    batches  --upload, by several threads-->  parts on the device
    parts    --number ids, pack, sort, merge-->  CSR on the device

Entries that are few, or do not fit, are sorted on the host: `DeviceSorter.move` hands them over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Self

import numpy as np

from mgspmv.errors import CapacityError, SourceError
from mgspmv.ingest.duplicates import SUM_TOO_LARGE
from mgspmv.ingest.external_sort import EntrySorter
from mgspmv.ingest.numbering import are_numbers
from mgspmv.ingest.scratch import FileArray
from mgspmv.ingest.source import Layout
from mgspmv.ingest.values import infinite_error
from mgspmv.kernels.device import Staging, make_copier
from mgspmv.kernels.entry_sorting import (
    MOST_ENTRIES,
    SortedKeys,
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
from mgspmv.kernels.formats import array_module
from mgspmv.model import INT32_LIMIT, CooBatch, Duplicates
from mgspmv.store.stored_matrix import TRANSPOSE

LEAST = 1 << 20
"""Least entries that are worth the device."""
KEY_BYTES = 8
SORT_COPIES = 3
"""Copies of the keys, or of keys and places where there are values, while they are sorted."""
MARK_BYTES = 4
"""Bytes per possible id of small ids, which are marked and numbered by a table."""
SMALL_IDS = 1 << 20
"""Bound of ids that are marked in any case."""
ID_BYTES = 40
"""Bytes per entry for ids that are sorted, and the numbers that take their places."""


def is_worth_a_device(n_entries: int) -> bool:
    """Return whether this number of entries is sorted on a device, if there is one."""
    return n_entries >= LEAST


class DeviceSorter:
    """Sorter of entries in the memory of a device.

    Parameters
    ----------
    host : sorter on the host, which gets the entries if they do not fit
    staging : copies arrays to the device
    most_bytes : memory of the device that may be used
    """

    def __init__(self, host: EntrySorter, staging: Staging, most_bytes: int) -> None:
        self.threads, self.n_entries, self.is_moved = host.threads, 0, False
        self._host, self._staging, self._most_bytes = host, staging, most_bytes
        self._parts: list[CooBatch] = []
        self._table: Any = None
        """Number of each id or code, plus `_first`; None if parts have numbers."""
        self._first = 0

    def upload(self, batch: CooBatch) -> CooBatch:
        """Copy a batch to the device, unless entries are sorted on the host; thread-safe."""
        if self.is_moved:
            return batch
        put, values = self._staging.put, batch.values
        return CooBatch(put(batch.rows), put(batch.cols), None if values is None else put(values))

    def add(self, batch: CooBatch, extent: tuple[int, int] | None = None) -> None:
        """Add a batch that was uploaded."""
        self.n_entries += len(batch.rows)
        if self.is_moved:
            self._host.add(to_host(batch), extent)
        elif len(batch.rows):
            self._parts.append(batch)
            if self._estimate() > self._most_bytes:
                self.move()

    def move(self) -> None:
        """Hand all entries over to the sorter on the host."""
        self._staging.finish()
        parts, self._parts, self.is_moved = self._parts[::-1], [], True
        while parts:
            self._host.add(to_host(parts.pop()))

    def number(self, layout: Layout, extents: tuple[int, int]) -> Layout:
        """Return the layout with numbers in place of ids and codes, once all entries are added.

        Entries that are too few or too many are handed over to the host, and the layout stays as it is.

        Parameters
        ----------
        extents : least and greatest id or code
        """
        low, high = extents
        has_marks = layout.are_ids and low >= 0 and high < 4 * self.n_entries + SMALL_IDS
        is_few = not is_worth_a_device(self.n_entries)
        is_suited = not is_few and self.n_entries <= MOST_ENTRIES and not isinstance(layout.positions, FileArray)
        if layout.are_ids:
            need = MARK_BYTES * (high + 1) if has_marks else ID_BYTES * self.n_entries
        else:
            is_suited, need = is_suited and max(layout.shape) <= INT32_LIMIT, 0
        if self.is_moved or not is_suited or self._estimate() + need > self._most_bytes:
            if not self.is_moved:
                self.move()
            return layout
        self._staging.finish()
        xp = array_module(self._parts[0].rows)
        if isinstance(layout.positions, np.ndarray):
            self._table = xp.asarray(layout.positions.astype(np.int32, copy=False))
        if not layout.are_ids:
            return replace(layout, positions=None)
        ids = self._mark(high) if has_marks else self._list()
        return replace(layout, shape=(len(ids),) * 2, vertex_ids=None if are_numbers(ids) else ids, are_ids=False)

    def _mark(self, high: int) -> np.ndarray:
        """Return the ids of the parts, which are at most `high`, and make the table of their numbers."""
        seen = array_module(self._parts[0].rows).zeros(high + 1, np.int32)
        for part in self._parts:
            mark_ids(part.rows, seen)
            mark_ids(part.cols, seen)
        seen.cumsum(dtype=np.int32, out=seen)
        if int(seen[-1]) == high + 1:
            return np.arange(high + 1)
        self._table, self._first = seen, 1
        return to_numpy(list_ids(seen))

    def _list(self) -> np.ndarray:
        """Return the ids of the parts, in which numbers take their places."""
        ids = array_module(self._parts[0].rows).empty(2 * self.n_entries, np.int64)
        first = 0
        for part in self._parts:
            for own in (part.rows, part.cols):
                ids[first : first + len(own)] = own
                first += len(own)
        ids = find_distinct(ids)
        self._parts = [
            CooBatch(find_numbers(part.rows, ids), find_numbers(part.cols, ids), part.values) for part in self._parts
        ]
        return to_numpy(ids)

    def build(
        self,
        shape: tuple[int, int],
        rule: Duplicates,
        name: str,
        raise_repeated: Callable[[int, int], object],
        *,
        drops_loops: bool,
        has_transpose: bool,
    ) -> dict[str, Any]:
        """Sort the entries, merge them by the rule and return the arrays of the graph, on the device, as in a store.

        Parameters
        ----------
        name : name of the source, for messages
        raise_repeated : called with row and column of an entry that is repeated, which the rule forbids

        Raises
        ------
        SourceError : a sum does not fit into int64; a weight that is not finite
        """
        n_rows, n_cols = shape
        bits = max(1, (n_cols - 1).bit_length())
        entries, values = self._sort(bits, merges=rule in ("sum", "first"), drops_loops=drops_loops)
        if rule == "error" and (repeated := entries.find_repeated(drops_loops=drops_loops)) is not None:
            raise_repeated(*repeated)
        built = build_rows(entries, n_rows, values, sums=rule == "sum")
        del entries, values
        if built is None:
            raise SourceError(SUM_TOO_LARGE, source=name)
        indptr, indices, data = built
        if data is not None and (n_infinite := count_infinite(data)):
            raise infinite_error("graph", n_infinite, name)
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Free all entries.

        Raises
        ------
        CapacityError : in place of an error of CuPy, where others took the memory of the device meanwhile
        """
        self._parts, self._table = [], None
        if kind is not None and kind.__name__ == "OutOfMemoryError":
            raise CapacityError(
                f"{self.n_entries:,} entries do not fit into the memory that is left on the device ({error}); free "
                "some, or set CUDA_VISIBLE_DEVICES= to sort them on the host"
            ) from error

    def _sort(self, bits: int, *, merges: bool, drops_loops: bool) -> tuple[SortedKeys, Any]:
        """Return the sorted keys of all entries, and the values; the parts are freed."""
        parts, self._parts = self._parts[::-1], []
        xp = array_module(parts[0].rows)
        keys, first = xp.empty(self.n_entries, np.uint64), 0
        values = None if parts[0].values is None else xp.empty(self.n_entries, parts[0].values.dtype)
        while parts:
            part = parts.pop()
            own = slice(first, first + len(part.rows))
            put_numbers(keys[own], part.rows, self._table, self._first, bits, are_rows=True)
            put_numbers(keys[own], part.cols, self._table, self._first, bits, are_rows=False)
            if values is not None:
                values[own] = part.values
            first = own.stop
        self._table = None
        return sort_keys(keys, bits, has_values=values is not None, merges=merges, drops_loops=drops_loops), values

    def _estimate(self) -> int:
        """Return the most bytes of the device that the entries take until they are sorted and merged."""
        first = self._parts[0]
        given = first.rows.itemsize + first.cols.itemsize
        if first.values is None:
            return self.n_entries * (given + SORT_COPIES * KEY_BYTES)
        return self.n_entries * (given + 2 * first.values.itemsize + 2 * SORT_COPIES * KEY_BYTES)


class DeviceSlices:
    """Array on a device whose slices are on the host, as the writer of a store takes them, in any thread.

    They are copied while others use the device, once it has completed what is enqueued in the current stream.
    """

    def __init__(self, array: Any) -> None:
        self._array, self.dtype = array, array.dtype
        self._get = to_numpy if isinstance(array, np.ndarray) else make_copier()

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, which: slice) -> np.ndarray:
        return self._get(self._array[which])


def to_host(batch: CooBatch) -> CooBatch:
    """Return a batch on the host."""
    return CooBatch(
        to_numpy(batch.rows), to_numpy(batch.cols), None if batch.values is None else to_numpy(batch.values)
    )


def to_numpy(array: Any) -> np.ndarray:
    """Return an array of NumPy, or a copy of one of CuPy on the host."""
    host: np.ndarray = array if isinstance(array, np.ndarray) else array.get()
    return host
