"""Entries of a graph sorted on a device.

    batches  --upload, by several threads-->  parts on the device
    parts    --number ids, pack, sort, merge-->  CSR on the device

Entries that do not fit on the device are sorted there in runs, which are merged from host memory:

    parts    --spill-->  parts on the host  --upload some at a time, number ids, pack, sort-->  runs on the host
    runs     --merge, see `mgspmv.ingest.device_runs`-->  blocks of rows on the host

Entries that are few, or do not fit on the host either, are sorted on the host: `DeviceSorter.move` hands them over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Self

import numpy as np

from mgspmv.errors import CapacityError
from mgspmv.ingest.device_runs import Merging, RunMerger, SortedRun, find_sort_bytes
from mgspmv.ingest.external_sort import EntrySorter
from mgspmv.ingest.numbering import SMALL_IDS
from mgspmv.ingest.occurring_ids import are_numbers
from mgspmv.ingest.prefetch import prefetch_map
from mgspmv.ingest.scratch import FileArray
from mgspmv.ingest.source import Layout
from mgspmv.ingest.values import infinite_error
from mgspmv.kernels.device import make_copier
from mgspmv.kernels.entry_sorting import (
    MOST_ENTRIES,
    count_columns,
    count_infinite,
    find_distinct,
    find_numbers,
    list_ids,
    mark_ids,
    order_keys,
    put_numbers,
    sum_columns,
    turn_rows,
)
from mgspmv.kernels.formats import array_module, to_host
from mgspmv.kernels.staging import Staging
from mgspmv.model import INT32_LIMIT, CooBatch, CsrBlock
from mgspmv.store.stored_matrix import TRANSPOSE

LEAST = 1 << 20
"""Least entries that are worth the device."""
MARK_BYTES = 4
"""Bytes per possible id of small ids, which are marked and numbered by a table."""
LIST_BYTES = 12
"""Bytes per possible id while the marked ones are listed."""
ID_BYTES = 40
"""Bytes per entry for ids that are sorted, and the numbers that take their places."""
KNOWN_BYTES = 28
"""Bytes per distinct id that is known while those of further entries are sorted with it."""
MOST_RUNS = 64
"""Most runs; with smaller ones, the host sorts."""


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

    Attributes
    ----------
    is_moved : whether the sorter on the host has the entries
    is_spilled : whether they are in host memory, to be sorted in runs, and `blocks` takes the place of `build`
    """

    def __init__(self, host: EntrySorter, staging: Staging, most_bytes: int) -> None:
        self.threads, self.n_entries, self.is_moved, self.is_spilled = host.threads, 0, False, False
        self._host, self._staging, self._most_bytes = host, staging, most_bytes
        self._parts: list[CooBatch] = []
        """Entries as they were read: on the device, or on the host if they are spilled."""
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
        self._runs: list[SortedRun] = []

    def upload(self, batch: CooBatch) -> CooBatch:
        """Copy a batch to the device, unless entries are on the host; thread-safe."""
        if self.is_moved:
            return batch
        put: Callable[[Any], Any] = _take if self.is_spilled else self._staging.put
        values = batch.values
        return CooBatch(put(batch.rows), put(batch.cols), None if values is None else put(values))

    def add(self, batch: CooBatch, extent: tuple[int, int] | None = None) -> None:
        """Add a batch that was uploaded."""
        self.n_entries += len(batch.rows)
        if self.is_moved:
            self._host.add(self._fetch(batch), extent)
        elif len(batch.rows):
            if not self._parts:
                self._xp = array_module(batch.rows)
            self._parts.append(self._fetch(batch) if self.is_spilled else batch)
            self._value_bytes = 0 if batch.values is None else batch.values.itemsize
            own = batch.rows.itemsize + batch.cols.itemsize + self._value_bytes
            self._widest, self._n_bytes = max(self._widest, own), self._n_bytes + len(batch.rows) * own
            if self.is_spilled:
                self._check_host()
            elif not self._fits(0):
                self._spill()

    def move(self) -> None:
        """Hand all entries over to the sorter on the host."""
        self._staging.finish()
        parts, self._parts, self.is_moved = self._parts[::-1], [], True
        self._table = self._known = None
        while parts:
            self._host.add(copy_batch(parts.pop()))

    def _spill(self) -> None:
        """Copy all entries to host memory, where those that are added later stay."""
        self.is_spilled = True
        self._check_host()
        if not self.is_moved:
            self._staging.finish()
            parts, self._parts = self._parts[::-1], []
            while parts:
                self._parts.append(copy_batch(parts.pop()))

    def _check_host(self) -> None:
        """Hand the entries over if they, or runs of them, take more host memory than may be used."""
        if self._n_bytes > self._host.most_held:
            self.move()

    def _fetch(self, batch: CooBatch) -> CooBatch:
        """Return on the host a batch that may just have been uploaded."""
        rows: Any = batch.rows
        if not isinstance(rows, np.ndarray):
            self._staging.finish()
        return copy_batch(batch)

    # --- numbers

    def number(self, layout: Layout, extents: tuple[int, int]) -> Layout:
        """Return the layout with numbers in place of ids and codes, once all entries are added.

        Entries that do not suit the device are handed over to the host, and the layout stays as it is.

        Parameters
        ----------
        extents : least and greatest id or code
        """
        numbered = None if self.is_moved else self._number(layout, *extents)
        if numbered is None and not self.is_moved:
            self.move()
        return numbered or layout

    def _number(self, layout: Layout, low: int, high: int) -> Layout | None:
        """Return the layout with numbers, and make the table of them; None for entries that do not suit the device."""
        are_ids, n_codes = layout.are_ids, 0 if layout.positions is None else len(layout.positions)
        is_suited = are_ids or max(layout.shape) < INT32_LIMIT
        if not is_suited or not is_worth_a_device(self.n_entries) or isinstance(layout.positions, FileArray):
            return None
        has_marks = are_ids and low >= 0 and high < min(4 * self.n_entries + SMALL_IDS, INT32_LIMIT - 1)
        need = MARK_BYTES * (high + 1 if has_marks else n_codes)
        if are_ids and not has_marks:
            need = ID_BYTES * self.n_entries
        is_listed_whole = not are_ids or has_marks or 2 * self.n_entries <= MOST_ENTRIES
        if not self.is_spilled and not (is_listed_whole and self._fits(need)):
            self._spill()
        if self.is_moved:
            return None
        self._staging.finish()
        if self.is_spilled:
            has_marks = has_marks and LIST_BYTES * (high + 1) <= self._most_bytes // 2
            if 2 * MARK_BYTES * n_codes > self._most_bytes or not self._find_most():
                return None
        if isinstance(layout.positions, np.ndarray):
            self._table = self._xp.asarray(layout.positions.astype(np.int32, copy=False))
        ids = None if not are_ids else self._mark(high) if has_marks else self._list()
        if (are_ids and ids is None) or (self.is_spilled and not self._find_most()):
            return None
        if ids is None:
            return replace(layout, positions=None)
        return replace(layout, shape=(len(ids),) * 2, vertex_ids=None if are_numbers(ids) else ids, are_ids=False)

    def _mark(self, high: int) -> np.ndarray | None:
        """Return the ids of the parts, which are at most `high`, and make the table of their numbers; None if it takes
        too much memory on the device."""
        seen = self._table = self._xp.zeros(high + 1, np.int32)
        self._first, step = 1, self._find_most() if self.is_spilled else self.n_entries
        if not step:
            return None
        for first in range(0, self.n_entries, step):
            for part in self._bring(first, first + step):
                mark_ids(part.rows, seen)
                mark_ids(part.cols, seen)
                del part
        seen.cumsum(dtype=np.int32, out=seen)
        if int(seen[-1]) == high + 1:
            self._table, self._first = None, 0
            return np.arange(high + 1)
        return to_host(list_ids(seen))

    def _list(self) -> np.ndarray | None:
        """Return the ids of the parts, which are kept on the device too; None if they take too much memory there."""
        known, first = self._xp.empty(0, np.int64), 0
        while first < self.n_entries:
            n = self.n_entries
            if self.is_spilled:
                room = self._most_bytes - KNOWN_BYTES * len(known)
                n = min(room // (self._widest + ID_BYTES), (MOST_ENTRIES - len(known)) // 2)
                if n * MOST_RUNS < self.n_entries:
                    return None
            known = self._add_ids(known, first, min(first + n, self.n_entries))
            first += n
        ids = to_host(known)
        self._known = None if are_numbers(ids) else known
        return ids

    def _add_ids(self, known: Any, first: int, stop: int) -> Any:
        """Return the distinct ones of known ids and those of the entries from `first` to `stop`, ascending."""
        ids, n = self._xp.empty(len(known) + 2 * (stop - first), np.int64), len(known)
        ids[:n] = known
        for part in self._bring(first, stop):
            for own in (part.rows, part.cols):
                ids[n : n + len(own)] = own
                n += len(own)
            del part, own
        return find_distinct(ids)

    def _find_numbers(self, ids: Any) -> Any:
        return ids if self._known is None else find_numbers(ids, self._known)

    # --- sorting

    def build(self, shape: tuple[int, int], merging: Merging, *, has_transpose: bool) -> dict[str, Any]:
        """Sort the entries, merge them and return the arrays of the graph, on the device, as in a store.

        Raises
        ------
        SourceError : as for `Merging`; a weight that is not finite
        """
        n_rows, n_cols = shape
        bits = _count_bits(n_cols)
        keys, values = self._pack(self.n_entries, bits)
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

    def blocks(self, shape: tuple[int, int], merging: Merging) -> Iterator[CsrBlock]:
        """Yield all entries, which are spilled, merged, in row order, as `EntrySorter.blocks` does.

        Raises
        ------
        SourceError, CapacityError : as for `RunMerger.blocks`
        """
        bits = _count_bits(shape[1])
        while self._parts:
            self._runs.append(self._sort_run(bits))
        self._table = self._known = None
        merger = RunMerger(self._runs, bits, self._staging, self.threads, self._most_bytes)
        return merger.blocks(shape[1], merging)

    def close(self) -> None:
        """Free all entries."""
        self._parts, self._runs, self._table, self._known = [], [], None, None

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

    def _sort_run(self, bits: int) -> SortedRun:
        """Return the next entries of the parts, sorted, on the host; these entries are freed."""
        n_left = sum(len(part.rows) for part in self._parts)
        n = min(self._find_most(), n_left)
        keys, values = self._pack(n, bits)
        self._parts = list(slice_parts(self._parts, n, n_left))
        keys, order = order_keys(keys, has_values=values is not None)
        return SortedRun(to_host(keys), None if values is None else to_host(values[order]))

    def _pack(self, n: int, bits: int) -> tuple[Any, Any]:
        """Return the keys and values of the first n entries of the parts, on the device."""
        given, first = self._parts[0].values, 0
        keys, values = self._xp.empty(n, np.uint64), None if given is None else self._xp.empty(n, given.dtype)
        for part in self._bring(0, n, has_values=True):
            own = slice(first, first + len(part.rows))
            for side, ids in enumerate((part.rows, part.cols)):
                put_numbers(keys[own], self._find_numbers(ids), self._table, self._first, bits, are_rows=not side)
            if values is not None:
                values[own] = part.values
            first = own.stop
        return keys, values

    def _bring(self, first: int, stop: int, *, has_values: bool = False) -> Iterator[CooBatch]:
        """Yield entries from `first` to `stop` of the parts, on the device; those that are spilled are copied there."""
        if not self.is_spilled:
            yield from self._parts
            return

        def put(part: CooBatch) -> CooBatch:
            values = self._staging.put(part.values) if has_values and part.values is not None else None
            return CooBatch(self._staging.put(part.rows), self._staging.put(part.cols), values)

        with ThreadPoolExecutor(self.threads, "mgspmv-upload") as pool:
            there = list(prefetch_map(pool, put, slice_parts(self._parts, first, stop), 2 * self.threads))
        self._staging.finish()
        there.reverse()
        while there:
            yield there.pop()

    def _find_most(self) -> int:
        """Return the most entries of a run; 0 if there would be too many runs."""
        taken = sum(array.nbytes for array in (self._table, self._known) if array is not None)
        most = (self._most_bytes - taken) // (self._widest + find_sort_bytes(self._value_bytes))
        most = min(MOST_ENTRIES, most)
        return most if most * MOST_RUNS >= self.n_entries else 0

    def _fits(self, need: int) -> bool:
        """Return whether all entries, until they are sorted and merged, and `need` bytes fit on the device."""
        need += self._n_bytes + self.n_entries * find_sort_bytes(self._value_bytes)
        return self.n_entries <= MOST_ENTRIES and need <= self._most_bytes


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


def slice_parts(parts: list[CooBatch], first: int, stop: int) -> Iterator[CooBatch]:
    """Yield the entries from `first` to `stop` of parts, as views."""
    for part in parts:
        n = len(part.rows)
        if first < n and stop > 0:
            own = slice(max(0, first), stop)
            yield CooBatch(part.rows[own], part.cols[own], None if part.values is None else part.values[own])
        first, stop = first - n, stop - n


def copy_batch(batch: CooBatch) -> CooBatch:
    """Return a batch on the host, copied if it is on a device."""
    return CooBatch(to_host(batch.rows), to_host(batch.cols), None if batch.values is None else to_host(batch.values))


def _take(array: Any) -> np.ndarray:
    """Return an array on the host, copied if it is a view, which may keep more memory."""
    host = to_host(array)
    return host if host.base is None else host.copy()


def _count_bits(n_cols: int) -> int:
    """Return the bits of a column in a key."""
    return max(1, (n_cols - 1).bit_length())
