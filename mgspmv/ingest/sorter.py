"""Entries that come in any order, sorted by row and column within a given memory, by way of files where it is short.

    add       entries are grouped as they come: those of a bucket, which is a range of rows, follow each other
    spill     where groups take more memory than they may, a file gets all of them, bucket after bucket
    blocks    buckets are taken together, a few neighbours at a time, and sorted by the other bits of row and column

That is a radix sort from the first digit on, whose second pass meets a bucket in the caches. A bucket that does not fit
into memory is grouped again by rows, and one that is a single row by columns. Entries at the same place stay in the
order in which they came.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numba import njit

from mgspmv.errors import CapacityError, StoreError
from mgspmv.ingest.ahead import map_ahead
from mgspmv.model import CooBatch, CsrBlock, index_dtype

N_BUCKETS = 1 << 10
"""As many as memory is scattered to at a time without missing its caches and tables of pages each time."""
GROUPED_ENTRIES = 1 << 20
"""Entries of a group, of many in all: those of a bucket are copied at once; of few, a group has a part of them."""
BLOCK_ENTRIES = 1 << 19
"""Entries that are sorted together, unless a bucket has more."""
BLOCK_ROWS = 1 << 22
"""Most rows of a block, unless a bucket has more."""
DIGIT_BITS = 11
KEY_BITS = 64
SORT_BYTES, SORT_VALUE_BYTES = 40, 3
"""Bytes that sorting takes for an entry, and for each byte of its value: as read, twice as keys, and as sorted."""
WRITE_BYTES = 1 << 23
"""About what is written to a file at a time."""

T = TypeVar("T")
Entries = tuple[np.ndarray, np.ndarray, np.ndarray | None]
"""Rows, columns and values."""


class EntrySorter:
    """Takes entries, and gives them back as rows.

    Parameters
    ----------
    memory : bytes that entries may take: half of them as they are held, half while they are grouped or sorted
    threads : that group and sort
    folder : where files go; None for the one that the system has for them
    row : of all the entries, which are sorted by their columns then; None for any
    origin : the first row, or column
    """

    def __init__(
        self, memory: int, threads: int, folder: Path | None = None, *, row: int | None = None, origin: int = 0
    ) -> None:
        self.n_entries = self.n_spilled_bytes = 0
        self._memory, self._threads, self._folder, self._row, self._origin = memory, threads, folder, row, origin
        self._shift = 0
        self._values_dtype: np.dtype[Any] | None = None
        self._batches: list[CooBatch] = []
        self._n_waiting = 0
        self._grouping: deque[Future[_Group]] = deque()
        self._pieces: list[_Group | _Run] = []
        self._bounds: list[np.ndarray] = []
        self._pool = ThreadPoolExecutor(threads, "mgspmv-sort")

    def __enter__(self) -> EntrySorter:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of all entries, and of the files."""
        self._pool.shutdown(cancel_futures=True)
        for piece in self._pieces:
            piece.close()
        self._pieces, self._batches = [], []
        self._grouping.clear()

    def add(self, batch: CooBatch) -> None:
        """Take entries, none before `origin`; all batches have values of one dtype, or none has."""
        if not len(batch.rows):
            return
        self._widen(int(self._find_keys(batch).max()))
        self._batches.append(batch)
        self._n_waiting += len(batch.rows)
        self.n_entries += len(batch.rows)
        wanted = min(GROUPED_ENTRIES, max(GROUPED_ENTRIES // 8, self.n_entries // 16))
        if self._n_waiting >= min(wanted, self._memory // (4 * (self._threads + 1) * _entry_bytes(batch))):
            self._group_waiting()
        self._spill_if_full()

    def drain(self) -> Iterator[CooBatch]:
        """Give all entries, those at the same place in the order in which they came, and keep none."""
        self._settle()
        while self._pieces:
            piece = self._pieces.pop(0)
            step = max(1, min(GROUPED_ENTRIES, self._memory * piece.n_entries // (8 * piece.nbytes)))
            with contextlib.closing(piece):
                for first in range(0, piece.n_entries, step):
                    yield CooBatch(*piece.take(first, min(first + step, piece.n_entries)))

    def reserve(self, n_bytes: int) -> None:
        """Take so many bytes less from now on."""
        self._memory -= n_bytes
        self._settle()
        self._spill_if_full()

    def blocks(
        self,
        shape: tuple[int, int],
        positions: np.ndarray | None = None,
        finish: Callable[[CsrBlock], CsrBlock] = lambda block: block,
    ) -> Iterator[CsrBlock]:
        """Give all entries, row after row; rows that a block leaves out before the next have none.

        Of one row with many entries there may be several blocks.

        Parameters
        ----------
        shape : rows and columns
        positions : the numbers of rows and columns that came as codes, ascending as these do; None where they are
            numbers already
        finish : what becomes of a block, in the thread that made it

        Raises
        ------
        CapacityError : entries at one place take more memory than there is
        """
        self._settle()
        self._find_bounds()
        counts = sum(map(np.diff, self._bounds), np.zeros(N_BUCKETS, np.int64))
        most = max(1, self._memory // (2 * self._sort_bytes() * (self._threads + 1)))
        own = min(BLOCK_ENTRIES, max(BLOCK_ENTRIES // 32, self.n_entries // 256))
        runs = list(_cut_runs(counts, min(own, most), max(1, BLOCK_ROWS >> self._shift)))

        def sort(run: tuple[int, int]) -> CsrBlock:
            first, last = run
            return finish(self._sort(first, last, shape, positions))

        for is_large, some in _split_at(runs, lambda run: int(counts[run[0] : run[1]].sum()) > most):
            if is_large:
                for first, _ in some:
                    yield from self._split(first, shape, positions, finish)
            else:
                yield from map_ahead(self._pool, sort, some, self._threads)

    # --- as entries come

    def _find_keys(self, batch: CooBatch) -> np.ndarray:
        return batch.rows if self._row is None else batch.cols

    def _widen(self, greatest: int) -> None:
        self._shift = max(self._shift, (greatest - self._origin).bit_length() - (N_BUCKETS - 1).bit_length())

    def _group_waiting(self) -> None:
        if not self._batches:
            return
        batches, self._batches, self._n_waiting = self._batches, [], 0
        if self._values_dtype is None and batches[0].values is not None:
            self._values_dtype = batches[0].values.dtype
        keys = [self._find_keys(b) for b in batches]
        self._grouping.append(self._pool.submit(_group, batches, keys, self._origin, self._shift, self._values_dtype))
        while len(self._grouping) > self._threads:
            self._pieces.append(self._grouping.popleft().result())

    def _settle(self) -> None:
        self._group_waiting()
        while self._grouping:
            self._pieces.append(self._grouping.popleft().result())

    def _spill_if_full(self) -> None:
        if sum(g.nbytes for g in self._pieces if isinstance(g, _Group)) > self._memory // 2:
            self._spill()

    def _spill(self) -> None:
        """Have all entries in files."""
        self._settle()
        if groups := [piece for piece in self._pieces if isinstance(piece, _Group)]:
            run = _write_run(groups, self._shift, self._folder)
            self.n_spilled_bytes += run.nbytes
            self._pieces = [*(piece for piece in self._pieces if isinstance(piece, _Run)), run]

    # --- as rows go

    def _find_bounds(self) -> None:
        self._bounds = [piece.bounds(self._shift) for piece in self._pieces]

    def _sort_bytes(self) -> int:
        return SORT_BYTES + SORT_VALUE_BYTES * (0 if self._values_dtype is None else self._values_dtype.itemsize)

    def _take(self, first: int, last: int, most: int | None = None) -> Iterator[Entries]:
        """The entries of buckets first .. last - 1, piece by piece, by so many at a time."""
        for piece, bounds in zip(self._pieces, self._bounds, strict=True):
            a, b = int(bounds[first]), int(bounds[last])
            step = max(1, most or b - a)
            for start in range(a, b, step):
                yield piece.take(start, min(start + step, b))

    def _sort(self, first: int, last: int, shape: tuple[int, int], positions: np.ndarray | None) -> CsrBlock:
        parts = list(self._take(first, last))
        lowest, highest = self._origin + (first << self._shift), self._origin + (last << self._shift) - 1
        if self._row is not None:
            row = self._row if positions is None else int(positions[self._row])
            start, stop = row, row + 1
        elif positions is None:
            start, stop = lowest, min(highest + 1, shape[0])
        else:
            start, stop = _find_range(positions, lowest, highest)
        return _sort_parts(parts, start, stop, shape[1], positions)

    def _split(
        self,
        bucket: int,
        shape: tuple[int, int],
        positions: np.ndarray | None,
        finish: Callable[[CsrBlock], CsrBlock],
    ) -> Iterator[CsrBlock]:
        """The rows of a bucket that is too large to be sorted at once."""
        lowest = self._origin + (bucket << self._shift)
        row, origin = (self._row, lowest) if self._shift else (lowest, 0)
        if not self._shift and self._row is not None:
            row, col = [self._row, lowest] if positions is None else positions[[self._row, lowest]].tolist()
            raise CapacityError(
                f"the entries at row {row}, column {col} take more than the memory that there is for sorting; "
                "allow more (memory=, --memory), or clean the source of what comes again"
            )
        self._spill()  # what is sorted next has all of the memory
        self._find_bounds()
        with EntrySorter(self._memory, self._threads, self._folder, row=row, origin=origin) as sorter:
            for part in self._take(bucket, bucket + 1, GROUPED_ENTRIES):
                sorter.add(CooBatch(*part))
            yield from sorter.blocks(shape, positions, finish)


# --- pieces ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Group:
    """Entries by bucket, in memory."""

    rows: np.ndarray
    cols: np.ndarray
    values: np.ndarray | None
    shift: int
    """Log2 of the rows of a bucket."""
    starts: np.ndarray
    """(N_BUCKETS + 1,): where the buckets begin, and the last ends."""

    @property
    def n_entries(self) -> int:
        return len(self.rows)

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes + self.cols.nbytes + (0 if self.values is None else self.values.nbytes)

    def bounds(self, shift: int) -> np.ndarray:
        """As `starts`, for larger buckets."""
        return _coarsen(self.starts, shift - self.shift)

    def take(self, first: int, last: int) -> Entries:
        return self.rows[first:last], self.cols[first:last], None if self.values is None else self.values[first:last]

    def close(self) -> None:
        """Nothing is to be done."""


class _Run:
    """Entries by bucket, in a file without a name, which goes with it: all rows, then all columns, then all values."""

    def __init__(self, file: Any, dtypes: Sequence[np.dtype[Any] | None], shift: int, starts: np.ndarray) -> None:
        self._file, self._dtypes, self._shift, self._starts = file, dtypes, shift, starts
        self.n_entries = int(starts[-1])

    @property
    def nbytes(self) -> int:
        return self.n_entries * sum(dtype.itemsize for dtype in self._dtypes if dtype is not None)

    def bounds(self, shift: int) -> np.ndarray:
        """As `_Group.bounds`."""
        return _coarsen(self._starts, shift - self._shift)

    def take(self, first: int, last: int) -> Entries:
        sections, offset = [], 0
        for dtype in self._dtypes:
            sections.append(None if dtype is None else self._read(offset + first * dtype.itemsize, last - first, dtype))
            offset += 0 if dtype is None else dtype.itemsize * self.n_entries
        rows, cols, values = sections
        assert rows is not None
        assert cols is not None
        return rows, cols, values

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def _read(self, offset: int, n: int, dtype: np.dtype[Any]) -> np.ndarray:
        read: np.ndarray = np.empty(n, dtype)
        left = read.view(np.uint8).data
        while left:
            n_read = os.preadv(self._file.fileno(), [left], offset)
            if not n_read:
                raise StoreError("a file that entries were written to while they are sorted was cut short meanwhile")
            left, offset = left[n_read:], offset + n_read
        return read


def _coarsen(starts: np.ndarray, n_bits: int) -> np.ndarray:
    bounds = starts[:: min(1 << n_bits, N_BUCKETS)]
    return np.concatenate([bounds, np.full(N_BUCKETS + 1 - len(bounds), starts[-1])])


def _entry_bytes(batch: CooBatch) -> int:
    return batch.rows.itemsize + batch.cols.itemsize + (0 if batch.values is None else batch.values.itemsize)


def _group(
    batches: list[CooBatch], keys: list[np.ndarray], origin: int, shift: int, values_dtype: np.dtype[Any] | None
) -> _Group:
    """Batches by bucket."""
    is_wide = any(a.dtype != np.int32 for b in batches for a in (b.rows, b.cols))
    dtype, n = np.dtype(np.int64 if is_wide else np.int32), sum(len(b.rows) for b in batches)
    starts = np.zeros(N_BUCKETS + 1, np.int64)
    for own in keys:
        _count_buckets(own, origin, shift, starts[1:])
    np.cumsum(starts, out=starts)
    rows, cols, cursor = np.empty(n, dtype), np.empty(n, dtype), starts[:-1].copy()
    values = None if values_dtype is None else np.empty(n, values_dtype)
    for batch, own in zip(batches, keys, strict=True):
        given = None if batch.values is None else batch.values.astype(values_dtype, copy=False)
        ends = (batch.rows.astype(dtype, copy=False), batch.cols.astype(dtype, copy=False))
        _scatter_buckets(own.astype(dtype, copy=False), *ends, given, origin, shift, cursor, rows, cols, values)
    return _Group(rows, cols, values, shift, starts)


def _write_run(groups: Sequence[_Group], shift: int, folder: Path | None) -> _Run:
    """A file of what groups hold, by bucket."""
    bounds = [group.bounds(shift) for group in groups]
    starts = np.sum(bounds, axis=0)
    dtypes = [np.result_type(*(g.rows for g in groups))] * 2 + [None if (v := groups[0].values) is None else v.dtype]
    try:
        file = tempfile.TemporaryFile(prefix="mgspmv-", dir=folder, buffering=0)  # noqa: SIM115  # the run keeps it
        for dtype, arrays in zip(dtypes, zip(*((g.rows, g.cols, g.values) for g in groups), strict=True), strict=True):
            if dtype is not None:
                n_at_once = max(1, WRITE_BYTES // dtype.itemsize)
                for first, last in _cut_runs(np.diff(starts), n_at_once, N_BUCKETS):
                    slices = [
                        array[own[bucket] : own[bucket + 1]]
                        for bucket in range(first, last)
                        for array, own in zip(arrays, bounds, strict=True)
                    ]
                    _write_all(file, np.concatenate(slices).astype(dtype, copy=False))
    except OSError as error:
        raise StoreError(
            f"cannot write what is sorted to {folder or tempfile.gettempdir()}: {error.strerror or error}; make room, "
            "name another folder (scratch=, --scratch), or allow more memory (memory=, --memory)"
        ) from error
    return _Run(file, dtypes, shift, starts)


def _write_all(file: Any, array: np.ndarray) -> None:
    left = array.view(np.uint8).data
    while left:
        left = left[file.write(left) :]


def _cut_runs(counts: np.ndarray, most: int, most_buckets: int) -> Iterator[tuple[int, int]]:
    """So many neighbouring buckets with at most so many entries, or one with more; those at both ends are not empty."""
    filled = np.flatnonzero(counts)
    ends = np.cumsum(counts)
    k = 0
    while k < len(filled):
        first = int(filled[k])
        limit = ends[first] - counts[first] + most
        last = min(max(first + 1, int(np.searchsorted(ends, limit, side="right"))), first + most_buckets)
        k = int(np.searchsorted(filled, last))
        yield first, int(filled[k - 1]) + 1


def _split_at(items: Sequence[T], is_special: Callable[[T], bool]) -> Iterator[tuple[bool, list[T]]]:
    """Runs of items that are special, and that are not."""
    marks = [is_special(item) for item in items]
    cuts = [0, *(k for k in range(1, len(marks)) if marks[k] != marks[k - 1]), len(marks)]
    for a, b in pairwise(cuts):
        if a < b:
            yield marks[a], list(items[a:b])


# --- sorting ---------------------------------------------------------------------------------------------------------


def _find_range(positions: np.ndarray, lowest: int, highest: int) -> tuple[int, int]:
    """The first number of the codes lowest .. highest that have one, and the end of them; at least one has."""
    numbers = positions[lowest : highest + 1]
    numbers = numbers[numbers >= 0]
    return int(numbers[0]), int(numbers[-1]) + 1


def _sort_parts(parts: list[Entries], start: int, stop: int, n_cols: int, positions: np.ndarray | None) -> CsrBlock:
    """Rows start .. stop, of entries that come in parts."""
    n, has_values = sum(len(rows) for rows, _, _ in parts), parts[0][2] is not None
    col_bits, row_bits = max(0, n_cols - 1).bit_length(), (stop - start - 1).bit_length()
    values = np.concatenate([v for _, _, v in parts if v is not None]) if has_values else None
    if col_bits + row_bits > KEY_BITS:
        return _sort_wide(parts, values, start, stop, n_cols, positions)
    keys, first = np.empty(n, np.uint64), 0
    for rows, cols, _ in parts:
        _pack(rows, cols, positions, start, np.uint64(col_bits), keys[first : first + len(rows)])
        first += len(rows)
    del parts
    keys, values = _sort_keys(keys, values, col_bits + row_bits)
    indptr, indices = np.zeros(stop - start + 1, np.int64), np.empty(n, index_dtype(n_cols))
    _unpack(keys, np.uint64(col_bits), indptr[1:], indices)
    return CsrBlock(start, n_cols, np.cumsum(indptr, out=indptr), indices, values)


def _sort_keys(keys: np.ndarray, values: np.ndarray | None, n_bits: int) -> tuple[np.ndarray, np.ndarray | None]:
    """Keys of so many bits, ascending, and their values, those of equal keys as they came."""
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


def _sort_wide(
    parts: list[Entries], values: np.ndarray | None, start: int, stop: int, n_cols: int, positions: np.ndarray | None
) -> CsrBlock:
    """As `_sort_parts`, where rows and columns do not fit into a key together."""
    rows, cols = (np.concatenate([part[side] for part in parts]) for side in (0, 1))
    if positions is not None:
        rows, cols = positions[rows], positions[cols]
    order = np.lexsort((cols, rows))
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows - start, minlength=stop - start))])
    indices = cols[order].astype(index_dtype(n_cols), copy=False)
    return CsrBlock(start, n_cols, indptr, indices, None if values is None else values[order])


# uint64 and int64 together make a float64 in Numba, so each number beside a key is a uint64.
_1 = np.uint64(1)


@njit(nogil=True, cache=True)
def _count_buckets(keys, origin, shift, counts):
    for key in keys:
        counts[(np.int64(key) - origin) >> shift] += 1


@njit(nogil=True, cache=True)
def _scatter_buckets(keys, rows, cols, values, origin, shift, cursor, out_rows, out_cols, out_values):
    for k in range(len(keys)):
        bucket = (np.int64(keys[k]) - origin) >> shift
        place = cursor[bucket]
        cursor[bucket] = place + 1
        out_rows[place] = rows[k]
        out_cols[place] = cols[k]
        if values is not None:
            out_values[place] = values[k]


@njit(nogil=True, cache=True)
def _pack(rows, cols, positions, start, col_bits, keys):
    for k in range(len(rows)):
        row, col = np.int64(rows[k]), np.int64(cols[k])
        if positions is not None:
            row, col = np.int64(positions[row]), np.int64(positions[col])
        keys[k] = (np.uint64(row - start) << col_bits) | np.uint64(col)


@njit(nogil=True, cache=True)
def _count_digits(keys, width, counts):
    mask = (_1 << np.uint64(width)) - _1
    for key in keys:
        for d in range(len(counts)):
            counts[d, (key >> np.uint64(d * width)) & mask] += 1


@njit(nogil=True, cache=True)
def _scatter_digit(keys, values, shift, width, cursor, out_keys, out_values):
    mask = (_1 << np.uint64(width)) - _1
    for k in range(len(keys)):
        digit = (keys[k] >> np.uint64(shift)) & mask
        place = cursor[digit]
        cursor[digit] = place + 1
        out_keys[place] = keys[k]
        if values is not None:
            out_values[place] = values[k]


@njit(nogil=True, cache=True)
def _unpack(keys, col_bits, lengths, indices):
    mask = (_1 << col_bits) - _1
    for k in range(len(keys)):
        lengths[keys[k] >> col_bits] += 1
        indices[k] = keys[k] & mask
