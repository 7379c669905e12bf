"""Merging of entries on a device: all at once, or from sorted runs in host memory.

    runs    --cut by keys-->  ranges whose entries fit on the device
    range   --upload the slices of the runs in their order, sort, merge-->  CSR on the device  -->  blocks on the host

A key is a row and a column, see `mgspmv.kernels.entry_sorting`. Entries at the same place keep the order of the source,
as sorting is stable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from mgspmv.errors import CapacityError, SourceError
from mgspmv.heartbeat import beat
from mgspmv.ingest.duplicates import SUM_TOO_LARGE
from mgspmv.kernels.entry_sorting import MOST_ENTRIES, build_rows, sort_keys
from mgspmv.kernels.formats import to_host
from mgspmv.kernels.staging import Staging
from mgspmv.model import CsrBlock, Duplicates

KEY_BYTES = 8
SORT_COPIES = 3
"""Copies of the keys, or of keys and places where there are values, while they are sorted."""
POINTER_BYTES = 8
ROWS_PART = 8
"""Divisor of the memory of the device: pointers of the rows of a range may take one part of this many."""
PIECE = 1 << 20
"""Most elements that a thread copies at a time, and entries per block on the host."""


def find_sort_bytes(value_bytes: int) -> int:
    """Return the most bytes of the device per entry while entries are sorted and merged, without the parts read.

    Parameters
    ----------
    value_bytes : of each value; 0 without values
    """
    return 2 * value_bytes + (2 if value_bytes else 1) * SORT_COPIES * KEY_BYTES


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


@dataclass(frozen=True, eq=False)
class SortedRun:
    """Sorted entries on the host."""

    keys: np.ndarray
    """(k,) uint64, ascending."""
    values: np.ndarray | None
    """(k,) values in this order; None for none."""


@dataclass(frozen=True, eq=False)
class RunMerger:
    """Merges sorted runs on a device, one range of keys after the other.

    Parameters
    ----------
    runs : runs, whose entries at the same key are in the order of the source
    bits : bits of a column in a key
    staging : copies arrays to the device
    threads : threads that copy
    most_bytes : memory of the device that may be used
    """

    runs: list[SortedRun]
    bits: int
    staging: Staging
    threads: int
    most_bytes: int

    def blocks(self, n_cols: int, merging: Merging) -> Iterator[CsrBlock]:
        """Yield all entries, merged, in row order, as `EntrySorter.blocks` does.

        Raises
        ------
        SourceError : as for `Merging`
        CapacityError : the entries at one row and column do not fit on the device
        """
        pointer_bytes, values = self.most_bytes // ROWS_PART, self.runs[0].values
        entry_bytes = find_sort_bytes(0 if values is None else values.itemsize)
        most = min(MOST_ENTRIES, (self.most_bytes - pointer_bytes) // entry_bytes)
        most_rows = max(1, pointer_bytes // POINTER_BYTES - 1)
        starts = [0] * len(self.runs)
        while any(start < len(run.keys) for run, start in zip(self.runs, starts, strict=True)):
            stops = self._find_stops(starts, most, most_rows)
            yield from self._merge(starts, stops, n_cols, merging)
            starts = stops
            beat()

    def _find_stops(self, starts: list[int], most: int, most_rows: int) -> list[int]:
        """Return the end of the next range in each run.

        Parameters
        ----------
        starts : first entry of the range in each run
        most, most_rows : entries and rows of the range
        """
        rests = [run.keys[start:] for run, start in zip(self.runs, starts, strict=True)]
        rests = [rest for rest in rests if len(rest)]
        first, last = min(int(rest[0]) for rest in rests), max(int(rest[-1]) for rest in rests)
        low, high = first, min(last + 1, ((first >> self.bits) + most_rows) << self.bits)
        while low < high:
            middle = (low + high + 1) // 2
            if sum(int(np.searchsorted(rest, np.uint64(middle))) for rest in rests) <= most:
                low = middle
            else:
                high = middle - 1
        if low == first:
            row, column = first >> self.bits, first & ((1 << self.bits) - 1)
            raise CapacityError(
                f"the entries at row {row}, column {column} do not fit into the memory of the device for sorting; set "
                "CUDA_VISIBLE_DEVICES= to sort on the host, or remove duplicate entries from the source"
            )
        return [int(np.searchsorted(run.keys, np.uint64(low))) for run in self.runs]

    def _merge(self, starts: list[int], stops: list[int], n_cols: int, merging: Merging) -> Iterator[CsrBlock]:
        """Yield the merged entries of a range of keys, from `starts` to `stops` of each run."""
        ranges = [(run, a, b) for run, a, b in zip(self.runs, starts, stops, strict=True) if a < b]
        first_row = min(int(run.keys[a]) for run, a, _ in ranges) >> self.bits
        last_row = max(int(run.keys[b - 1]) for run, _, b in ranges) >> self.bits
        keys = self._put([run.keys[a:b] for run, a, b in ranges])
        values = self._put([run.values[a:b] for run, a, b in ranges if run.values is not None])
        indptr, indices, data = merging.build(keys, values, self.bits, last_row + 1 - first_row, first_row)
        del keys, values
        yield from cut_blocks(first_row, n_cols, to_host(indptr), indices, data)

    def _put(self, slices: list[np.ndarray]) -> Any:
        """Return slices one after the other on the device; None if there are none."""
        if not slices:
            return None
        there = self.staging.allocate(sum(map(len, slices)), slices[0].dtype)
        firsts = np.cumsum([0, *map(len, slices)]).tolist()

        def fill(place: tuple[int, np.ndarray]) -> None:
            first, own = place
            with there.piece(first, first + len(own)) as target:
                target[:] = own

        pieces = (
            (first + k, own[k : k + PIECE])
            for first, own in zip(firsts, slices, strict=False)
            for k in range(0, len(own), PIECE)
        )
        with ThreadPoolExecutor(self.threads, "mgspmv-upload") as pool:
            for _ in pool.map(fill, pieces):
                pass
        return there.finish()


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
