"""External radix sort of entries by row and column, within a memory budget.

    add       group entries by bucket, a range of rows, as they are added
    spill     write all groups to a file, bucket after bucket, when they exceed their memory
    blocks    read a few neighboring buckets at a time, and sort them by the other bits of row and column

The first pass sorts by the most significant digit, so that the second pass finds a bucket in the caches. A bucket that
does not fit into memory is grouped again by rows, and a bucket of a single row by columns. Entries at the same place
keep their order.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from mgspmv.environment import return_freed_memory
from mgspmv.errors import CapacityError
from mgspmv.heartbeat import prefetch_map
from mgspmv.ingest.block_sorting import Entries, count_buckets, scatter_buckets, sort_parts
from mgspmv.ingest.budget import FileArray, ScratchFile
from mgspmv.model import CooBatch, CsrBlock

N_BUCKETS = 1 << 10
"""Number of buckets, small enough that scattered writes do not miss the caches and the TLB each time."""
GROUPED_ENTRIES = 1 << 22
"""Most entries per group; smaller inputs have smaller groups. Each block has a part of every group."""
BLOCK_ENTRIES = 1 << 19
"""Most entries per block, unless a bucket has more."""
BLOCK_ROWS = 1 << 22
"""Most rows per block, unless a bucket has more."""
ROW_PARTS = 64
"""Bytes of memory per thread for each row of a bucket; with more memory, buckets may exceed `BLOCK_ROWS`."""
MANY_ROWS = 1 << 50
"""Cap on rows per bucket: more row pointers than fit in any memory, while `N_BUCKETS` times as many fit in int64."""
SORT_BYTES, SORT_VALUE_BYTES = 40, 3
"""Bytes per entry, and per byte of its value, while sorting: as read, twice as keys, and as sorted."""
WRITE_BYTES = 1 << 23
"""Approximate bytes per write to a file."""

T = TypeVar("T")


@dataclass(frozen=True)
class RangeLimits:
    """Sizes of the ranges of rows that are sorted at a time."""

    usual: int
    """Entries of a range, unless a bucket has more."""
    most: int
    """Most entries of a range."""
    most_rows: int
    """Most rows of a range."""
    n_ahead: int
    """Number of ranges that are made while the caller uses one."""
    remedy: str = "in the memory for sorting; raise memory="
    """Place where entries do not fit, and what to do about it, for messages."""


class EntrySorter:
    """External sorter of entries into rows.

    Parameters
    ----------
    memory : bytes for entries: half to hold them, half to group or sort them
    threads : number of threads that group and sort
    folder : folder of the files; None for the system's temporary folder
    origin : a row close to those that will be added
    """

    def __init__(self, memory: int, threads: int, folder: Path | None = None, *, origin: int = 0) -> None:
        self.n_entries = 0
        self.threads = threads
        self._memory, self._folder = memory, folder
        self._lowest = self._highest = origin
        self._shift = 0
        self._values_dtype: np.dtype[Any] | None = None
        self._batches: list[CooBatch] = []
        self._n_waiting = 0
        self._grouping: deque[Future[_Buckets]] = deque()
        self._pieces: list[_Buckets] = []
        self._bounds: list[np.ndarray] = []
        self._pool = ThreadPoolExecutor(threads, "mgspmv-sort")

    def __enter__(self) -> EntrySorter:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Release all entries, and close the files."""
        self._pool.shutdown(cancel_futures=True)
        for piece in self._pieces:
            piece.close()
        self._pieces, self._batches = [], []
        self._grouping.clear()

    def add(self, batch: CooBatch, extent: tuple[int, int] | None = None) -> None:
        """Add entries; all batches have values of one dtype, or none has.

        Parameters
        ----------
        extent : least and greatest row, if known
        """
        if not len(batch.rows):
            return
        self.cover(*(extent or (int(batch.rows.min()), int(batch.rows.max()))))
        self._batches.append(batch)
        self._n_waiting += len(batch.rows)
        self.n_entries += len(batch.rows)
        wanted = min(GROUPED_ENTRIES, max(GROUPED_ENTRIES // 16, self.n_entries // 16))
        entry_bytes = sum(array.itemsize for array in (batch.rows, batch.cols, batch.values) if array is not None)
        if self._n_waiting >= min(wanted, self._memory // (4 * (self.threads + 1) * entry_bytes)):
            self._group_waiting()
        self._spill_if_full()

    def read(self, most: int, *, drains: bool = False) -> Iterator[CooBatch]:
        """Yield all entries, those at the same place in the order in which they were added.

        Parameters
        ----------
        most : entries per batch
        drains : whether to release the entries
        """
        self._settle()
        k = 0
        while k < len(self._pieces):
            piece = self._pieces[k]
            step = max(1, min(most, self._memory * piece.n_entries // (8 * piece.nbytes)))
            for first in range(0, piece.n_entries, step):
                yield CooBatch(*piece.take(first, min(first + step, piece.n_entries)))
            if drains:
                self._pieces.pop(k).close()
            else:
                k += 1

    def reserve(self, n_bytes: int) -> None:
        """Reduce the memory for entries by `n_bytes`; a negative number increases it."""
        self._memory -= n_bytes
        self._settle()
        self._spill_if_full()

    def blocks(
        self, shape: tuple[int, int], finish: Callable[[CsrBlock], CsrBlock] = lambda block: block
    ) -> Iterator[CsrBlock]:
        """Yield all entries in row order; rows that are missing between blocks are empty.

        A row with many entries may be split into several blocks.

        Parameters
        ----------
        shape : rows and columns
        finish : function applied to each block, in the thread that made it

        Raises
        ------
        CapacityError : the entries at one row and column do not fit into memory
        """

        def sort(lowest: int, highest: int, parts: list[Entries]) -> CsrBlock:
            return finish(sort_parts(parts, lowest, min(highest + 1, shape[0]), shape[1]))

        own = min(BLOCK_ENTRIES, max(BLOCK_ENTRIES // 32, self.n_entries // 256))
        most_rows = max(BLOCK_ROWS, self._memory // (ROW_PARTS * (self.threads + 1)))
        return self.ranges(sort, RangeLimits(own, self._most_sorted(), most_rows, self.threads))

    def ranges(
        self, work: Callable[[int, int, list[Entries]], T], limits: RangeLimits, row: int | None = None
    ) -> Iterator[T]:
        """Yield the results of a function for all entries, one range of rows after the other: a run of small
        neighboring buckets, or a part of a large one.

        Parameters
        ----------
        work : function that is called, in other threads, with the first row, the last and the entries in parts, those
            of a row in the order added
        row : row of all the entries, whose rows and columns were exchanged before they were added; None for any

        Raises
        ------
        CapacityError : the entries at one row and column are more than a range may have
        """
        counts = self.count_buckets()
        n_rows = np.full(N_BUCKETS, min(1 << self._shift, MANY_ROWS) if row is None else 0)
        is_large = (counts > limits.most) | ((n_rows > limits.most_rows) & (self._shift > 0))

        def take(run: tuple[int, int]) -> T:
            parts = list(self._take(*run))
            if row is not None:
                return work(row, row, list(map(_exchange, parts)))
            return work(self._find_lowest(run[0]), self._find_lowest(run[1]) - 1, parts)

        runs = list(_cut_runs(counts, min(limits.usual, limits.most), n_rows, is_large))
        for are_large, some in groupby(runs, lambda run: bool(is_large[run[0]])):
            if not are_large:
                yield from prefetch_map(self._pool, take, some, limits.n_ahead)
                continue
            for bucket, _ in some:
                is_one, lowest = self._shift == 0, self._find_lowest(bucket)
                if is_one and row is not None:
                    raise CapacityError(
                        f"the entries at row {row}, column {lowest} do not fit {limits.remedy}, or remove duplicate "
                        "entries from the source"
                    )
                with self._divide(bucket, exchanges=is_one) as sorter:
                    yield from sorter.ranges(work, limits, lowest if is_one else row)

    @property
    def most_per_thread(self) -> int:
        """Most entries that each thread may number at a time."""
        return min(BLOCK_ENTRIES, self._most_sorted())

    # --- exchange with other sorters of the same rows

    def cover(self, lowest: int, highest: int) -> None:
        """Extend the buckets to these rows, so that they are the same in all sorters of the same rows."""
        self._lowest, self._highest = min(self._lowest, lowest), max(self._highest, highest)
        # groups made before keep their smaller shift, which `_Buckets.bounds` converts
        while (self._highest >> self._shift) - (self._lowest >> self._shift) >= N_BUCKETS:
            self._shift += 1

    def count_buckets(self) -> np.ndarray:
        """Return the (N_BUCKETS,) entries per bucket, once all are added."""
        self._settle()
        self._bounds = [piece.bounds(self._shift, self._lowest >> self._shift) for piece in self._pieces]
        return sum(map(np.diff, self._bounds), np.zeros(N_BUCKETS, np.int64))

    def find_bucket_rows(self) -> np.ndarray:
        """Return the (N_BUCKETS + 1,) first rows of the buckets, and the end of the last."""
        return np.array([self._find_lowest(bucket) for bucket in range(N_BUCKETS + 1)])

    def give(self, first: int, last: int, start: int, stop: int) -> Entries:
        """Return entries start .. stop - 1, in the order added, of those in buckets first .. last - 1."""
        parts: list[Entries] = []
        for piece, bounds in zip(self._pieces, self._bounds, strict=True):
            a, b = int(bounds[first]), int(bounds[last])
            if start < b - a and stop > 0:
                parts.append(piece.take(a + max(0, start), a + min(stop, b - a)))
            start, stop = start - (b - a), stop - (b - a)
        rows, cols, values = zip(*parts, strict=True)
        return np.concatenate(rows), np.concatenate(cols), None if values[0] is None else np.concatenate(values)

    def put_before(self, earlier: EntrySorter) -> None:
        """Take over the memory and all entries of another sorter, as if they had been added first."""
        self._settle()
        earlier._settle()
        if any(piece.file is not None for piece in self._pieces):
            earlier._spill()  # entries in files precede those in memory
        self.cover(earlier._lowest, earlier._highest)
        self._shift = max(self._shift, earlier._shift)
        self._pieces, earlier._pieces = [*earlier._pieces, *self._pieces], []
        self._values_dtype = self._values_dtype or earlier._values_dtype
        self.n_entries += earlier.n_entries
        self._memory += earlier._memory
        earlier.close()

    # --- adding

    def _group_waiting(self) -> None:
        if not self._batches:
            return
        batches, self._batches, self._n_waiting = self._batches, [], 0
        if self._values_dtype is None and batches[0].values is not None:
            self._values_dtype = batches[0].values.dtype
        base = self._lowest >> self._shift
        self._grouping.append(self._pool.submit(_group, batches, self._shift, base, self._values_dtype))
        while len(self._grouping) > self.threads:
            self._pieces.append(self._grouping.popleft().result())
            if any(piece.file is not None for piece in self._pieces):  # memory is short
                return_freed_memory()

    def _settle(self) -> None:
        self._group_waiting()
        while self._grouping:
            self._pieces.append(self._grouping.popleft().result())

    def _spill_if_full(self) -> None:
        if sum(piece.nbytes for piece in self._pieces if piece.file is None) > self._memory // 2:
            self._spill()

    def _spill(self) -> None:
        """Write all entries to files."""
        self._settle()
        if groups := [piece for piece in self._pieces if piece.file is None]:
            run = _write_run(groups, self._shift, self._lowest >> self._shift, ScratchFile(self._folder))
            self._pieces = [*(piece for piece in self._pieces if piece.file is not None), run]
            del groups
            return_freed_memory()

    # --- reading

    def _find_lowest(self, bucket: int) -> int:
        """Return the first row of a bucket."""
        return ((self._lowest >> self._shift) + bucket) << self._shift

    def _most_sorted(self) -> int:
        """Return the number of entries that a thread may sort at a time."""
        entry_bytes = SORT_BYTES + SORT_VALUE_BYTES * (0 if self._values_dtype is None else self._values_dtype.itemsize)
        return max(1, self._memory // (2 * entry_bytes * (self.threads + 1)))

    def _take(self, first: int, last: int, most: int | None = None) -> Iterator[Entries]:
        """Yield the entries of buckets first .. last - 1, piece by piece, at most `most` at a time."""
        for piece, bounds in zip(self._pieces, self._bounds, strict=True):
            a, b = int(bounds[first]), int(bounds[last])
            step = max(1, most or b - a)
            for start in range(a, b, step):
                yield piece.take(start, min(start + step, b))

    @contextlib.contextmanager
    def _divide(self, bucket: int, *, exchanges: bool) -> Iterator[EntrySorter]:
        """Yield a sorter of the entries of a bucket that does not fit into memory.

        Parameters
        ----------
        exchanges : whether their rows and columns are exchanged, to be sorted by column
        """
        self._spill()  # frees the memory for the next sort
        self.count_buckets()  # finds the buckets of the new pieces
        origin = 0 if exchanges else self._find_lowest(bucket)
        with EntrySorter(self._memory, self.threads, self._folder, origin=origin) as sorter:
            for part in self._take(bucket, bucket + 1, self.most_per_thread):
                sorter.add(CooBatch(*(_exchange(part) if exchanges else part)))
            yield sorter


# --- pieces ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Buckets:
    """Entries grouped by bucket, in memory or in a file."""

    rows: Any
    """Array, or `FileArray` in the file."""
    cols: Any
    values: Any
    """None for a pattern."""
    shift: int
    """Log2 of the number of rows per bucket."""
    base: int
    """Number of the first bucket: its rows begin at base << shift."""
    starts: np.ndarray
    """(N_BUCKETS + 1,) first entry of each bucket, and the end of the last."""
    file: ScratchFile | None = None
    """File that has the entries; None for entries in memory."""

    @property
    def n_entries(self) -> int:
        return int(self.starts[-1])

    @property
    def nbytes(self) -> int:
        return int(self.rows.nbytes + self.cols.nbytes + (0 if self.values is None else self.values.nbytes))

    def bounds(self, shift: int, base: int) -> np.ndarray:
        """Return `starts` for other buckets, which are not smaller: every 2**n_bits buckets are joined into one."""
        n_bits = shift - self.shift
        if (n_bits, self.base) == (0, base):
            return self.starts
        firsts = (((base + k) << n_bits) - self.base for k in range(N_BUCKETS + 1))
        return self.starts[[min(max(first, 0), N_BUCKETS) for first in firsts]]

    def take(self, first: int, last: int) -> Entries:
        return self.rows[first:last], self.cols[first:last], None if self.values is None else self.values[first:last]

    def close(self) -> None:
        """Close the file."""
        if self.file is not None:
            self.file.close()


def _exchange(entries: Entries) -> Entries:
    rows, cols, values = entries
    return cols, rows, values


def _group(batches: list[CooBatch], shift: int, base: int, values_dtype: np.dtype[Any] | None) -> _Buckets:
    """Group batches by bucket."""
    is_wide = any(a.dtype != np.int32 for b in batches for a in (b.rows, b.cols))
    dtype, n = np.dtype(np.int64 if is_wide else np.int32), sum(len(b.rows) for b in batches)
    if not scatter_buckets.is_worth(n):
        rows, cols = (np.concatenate([getattr(b, side) for b in batches], dtype=dtype) for side in ("rows", "cols"))
        buckets = (rows.astype(np.int64, copy=False) >> shift) - base
        order = np.argsort(buckets, kind="stable")
        starts = np.append(0, np.cumsum(np.bincount(buckets, minlength=N_BUCKETS)))
        parts = [b.values for b in batches if b.values is not None]
        values = np.concatenate(parts, dtype=values_dtype)[order] if parts else None
        return _Buckets(rows[order], cols[order], values, shift, base, starts)
    starts = np.zeros(N_BUCKETS + 1, np.int64)
    for batch in batches:
        count_buckets(batch.rows, shift, base, starts[1:])
    np.cumsum(starts, out=starts)
    rows, cols, cursor = np.empty(n, dtype), np.empty(n, dtype), starts[:-1].copy()
    values = None if values_dtype is None else np.empty(n, values_dtype)
    for batch in batches:
        given = None if batch.values is None else batch.values.astype(values_dtype, copy=False)
        ends = (batch.rows.astype(dtype, copy=False), batch.cols.astype(dtype, copy=False))
        scatter_buckets(*ends, given, shift, base, cursor, rows, cols, values)
    return _Buckets(rows, cols, values, shift, base, starts)


def _write_run(groups: Sequence[_Buckets], shift: int, base: int, file: ScratchFile) -> _Buckets:
    """Write the entries of groups to a file, by bucket: all rows, then all columns, then all values."""
    bounds, none = [group.bounds(shift, base) for group in groups], np.zeros(N_BUCKETS, bool)
    starts = np.sum(bounds, axis=0)

    def write(arrays: list[Any], dtype: np.dtype[Any]) -> FileArray:
        written = FileArray(file, dtype)
        for first, last in _cut_runs(np.diff(starts), max(1, WRITE_BYTES // dtype.itemsize), none, none):
            slices = [
                array[own[bucket] : own[bucket + 1]]
                for bucket in range(first, last)
                for array, own in zip(arrays, bounds, strict=True)
            ]
            written.append(np.concatenate(slices))
        return written

    dtype = np.result_type(*(group.rows for group in groups))
    rows, cols = write([group.rows for group in groups], dtype), write([group.cols for group in groups], dtype)
    values = groups[0].values
    if values is not None:
        values = write([group.values for group in groups], values.dtype)
    return _Buckets(rows, cols, values, shift, base, starts, file)


def _cut_runs(counts: np.ndarray, most: int, n_rows: np.ndarray, is_large: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield runs of neighboring buckets with at most `most` entries and `BLOCK_ROWS` rows; a larger bucket is alone.

    The first and the last bucket of a run are not empty.
    """
    filled = np.flatnonzero(counts)
    ends, rows = np.cumsum(counts), np.cumsum(n_rows)
    stops = np.append(np.flatnonzero(is_large), len(counts))
    k = 0
    while k < len(filled):
        first = int(filled[k])
        last = int(np.searchsorted(ends, ends[first] - counts[first] + most, side="right"))
        last = min(last, int(np.searchsorted(rows, rows[first] - n_rows[first] + BLOCK_ROWS, side="right")))
        last = max(first + 1, min(last, int(stops[np.searchsorted(stops, first, side="right")])))
        if is_large[first]:
            last = first + 1
        k = int(np.searchsorted(filled, last))
        yield first, int(filled[k - 1]) + 1
