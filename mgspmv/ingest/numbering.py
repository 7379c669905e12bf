"""Numbering of vertices whose ids, or a table of them, do not fit into memory.

Integers, each of which is its own code:

    entries (id, id)  --ranges of rows-->  ids of rows in a file; entries by column
                      --ranges of columns-->  ids of columns in a file, and of all in another
                      --ranges of columns-->  entries (id, number)  --ranges of rows-->  entries (number, number)

Names, whose codes are in the order of the source:

    names by code  --until memory is full-->  runs: sorted names in a file, and the place of each code in another
    runs           --merge-->  all names, and the number of each name of a run  -->  number of each code
    entries (code, code)  --ranges of rows-->  (code, number)  --ranges of rows-->  (number, number)

The sorters spill entries that do not fit in memory to files.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from mgspmv.display.frames import wrap_numbers
from mgspmv.ingest.external_sort import EntrySorter
from mgspmv.ingest.radix_sort import Entries
from mgspmv.ingest.scratch import FileArray, ScratchFile
from mgspmv.model import CooBatch, index_dtype

PAGE_NAMES = 1 << 14
"""Ids per page, the unit of reading; the first id of each page is in memory."""
MERGED_PAGES = 16
"""Pages per range of names that is merged at a time."""
PIECE_IDS = 1 << 16
"""Ids per comparison."""

Ids = Any
"""Ascending ids: an array, or an object with a dtype and a length that is sliced like an array."""

_INT64, _BYTE = map(np.dtype, (np.int64, np.uint8))


# --- ids in files ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _IdPage:
    """Page of ids in a file, stored as an Arrow record batch."""

    offset: int
    n_bytes: int
    n_ids: int
    first: Any


class SortedIds:
    """Distinct ids in a file, integers or names, ascending; see `IdWriter`."""

    def __init__(self, file: ScratchFile, pages: Sequence[_IdPage], schema: Any) -> None:
        self.file, self.pages, self._schema = file, pages, schema
        self.dtype = _INT64 if schema.types[0] == pa.int64() else np.dtype(object)
        self.firsts = [page.first for page in pages]
        """First id of each page."""
        self._starts = np.cumsum([0, *(page.n_ids for page in pages)]).tolist()

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, which: int | slice) -> Any:
        if isinstance(which, slice):
            start, stop, _ = which.indices(len(self))
            pages = range(bisect_right(self._starts, start) - 1, bisect_right(self._starts, max(start, stop - 1)))
            ids = [self.read_page(k).to_numpy(zero_copy_only=False) for k in pages if k < len(self.pages)]
            base = self._starts[pages.start]
            return np.concatenate([np.zeros(0, self.dtype), *ids])[start - base : max(start, stop) - base]
        number = range(len(self))[which]
        page = bisect_right(self._starts, number) - 1
        return self.read_page(page)[number - self._starts[page]].as_py()

    def find(self, ids: np.ndarray) -> np.ndarray:
        """Return the (k,) int64 numbers of ascending ids, all of which exist; one page is in memory at a time."""
        pages = np.searchsorted(np.array(self.firsts, self.dtype), ids, side="right") - 1
        parts = [np.zeros(0, np.int64)]
        for own in np.split(np.arange(len(ids)), np.flatnonzero(np.diff(pages)) + 1) if len(ids) else ():
            page = int(pages[own[0]])
            known = self.read_page(page).to_numpy(zero_copy_only=False)
            parts.append(self._starts[page] + np.searchsorted(known, ids[own]))
        return np.concatenate(parts)

    def read_page(self, k: int) -> Any:
        """Return the ids of a page as an Arrow array."""
        page = self.pages[k]
        data = pa.py_buffer(self.file.read(page.offset, page.n_bytes, _BYTE))
        return pa.ipc.read_record_batch(data, self._schema)[0]

    def read_between(self, low: Any, high: Any) -> Iterator[Any]:
        """Yield the ids from `low` to before `high`, None for no end, page by page."""
        for k in range(max(0, bisect_right(self.firsts, low) - 1), len(self.firsts)):
            if high is not None and self.firsts[k] >= high:
                return
            ids = self.read_page(k)
            own = pa.compute.greater_equal(ids, low)
            if high is not None:
                own = pa.compute.and_(own, pa.compute.less(ids, high))
            yield ids.filter(own)

    def close(self) -> None:
        """Close the file."""
        self.file.close()


class IdWriter:
    """Writer of distinct ascending ids.

    Parameters
    ----------
    folder : folder of the file; None for the system's temporary folder
    dtype : int64, or object for names
    """

    def __init__(self, folder: Path | None, dtype: np.dtype[Any]) -> None:
        self._file, self._pages = ScratchFile(folder), list[_IdPage]()
        self._schema = pa.schema([("id", pa.int64() if dtype == _INT64 else pa.string())])

    def append(self, ids: Any) -> None:
        """Append ids, as an array of Arrow or NumPy."""
        for first in range(0, len(ids), PAGE_NAMES):
            own = _to_arrow(ids[first : first + PAGE_NAMES], self._schema.types[0])
            data = np.frombuffer(pa.record_batch([own], self._schema).serialize(), np.uint8)
            self._pages.append(_IdPage(self._file.append(data), len(data), len(own), own[0].as_py()))

    def finish(self) -> SortedIds:
        """Return the ids that were written."""
        return SortedIds(self._file, self._pages, self._schema)


def _to_arrow(ids: Any, type: Any) -> Any:
    is_plain = isinstance(ids, np.ndarray) and ids.dtype == _INT64
    return wrap_numbers(ids) if is_plain else pa.array(ids).cast(type)


def rank_ids(ids: Any) -> tuple[Any, np.ndarray]:
    """Return the distinct ids of an Arrow array, ascending, and the place of each id among them."""
    coded = ids.dictionary_encode()
    order = np.asarray(pa.compute.sort_indices(coded.dictionary))
    return coded.dictionary.take(order), find_ranks(order)[np.asarray(coded.indices)]


def find_ranks(order: np.ndarray) -> np.ndarray:
    """Return the rank of each element in an order: find_ranks(order)[order[k]] = k."""
    ranks = np.empty(len(order), index_dtype(len(order)))
    ranks[order] = np.arange(len(order))
    return ranks


def pair_ids(ids: Ids, labels: Ids) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yield pairs of parts of two ascending lists that end at the same id, from the first id to the last.

    Yields
    ------
    The index of the first of `ids`, and the parts of `ids` and of `labels`.
    """
    n_known = n_given = 0
    known, given = ids[:PIECE_IDS], labels[:PIECE_IDS]
    while len(known) or len(given):
        a, b = len(known), len(given)
        if a and b:
            end = min(known[-1], given[-1])
            a, b = (int(np.searchsorted(part, end, side="right")) for part in (known, given))
        yield n_known, known[:a], given[:b]
        n_known, n_given = n_known + a, n_given + b
        known = known[a:] if a < len(known) else ids[n_known : n_known + PIECE_IDS]
        given = given[b:] if b < len(given) else labels[n_given : n_given + PIECE_IDS]


# --- integers --------------------------------------------------------------------------------------------------------


def number_ids(
    held: EntrySorter, make_sorter: Callable[[], EntrySorter], folder: Path | None
) -> tuple[EntrySorter, SortedIds]:
    """Number the ids that occur, in ascending order.

    Parameters
    ----------
    held : sorter of entries whose rows and columns are ids; it is closed
    make_sorter : function that makes another sorter for the same entries
    folder : folder of the files

    Returns
    -------
    A sorter of the entries, whose rows and columns are numbers; and the ids.
    """
    by_column = make_sorter()
    row_ids = _write_ids(held, folder, lambda rows, cols, values: by_column.add(CooBatch(cols, rows, values)))
    held.close()
    col_ids = _write_ids(by_column, folder)
    writer = IdWriter(folder, row_ids.dtype)
    for _, one, other in pair_ids(row_ids, col_ids):
        writer.append(np.union1d(one, other))
    known = writer.finish()
    row_ids.close()
    col_ids.close()

    def find(rows: np.ndarray) -> np.ndarray:
        ids, places = np.unique(rows, return_inverse=True)
        return known.find(ids)[places]

    by_row = _number_rows(by_column, make_sorter(), find)
    return _number_rows(by_row, make_sorter(), find, exchanges=False), known


def _write_ids(
    held: EntrySorter, folder: Path | None, take: Callable[..., None] = lambda rows, cols, values: None
) -> SortedIds:
    """Write the distinct rows of entries to a file, and pass the entries to a function in parts."""
    writer, last = IdWriter(folder, _INT64), None
    for ids, parts in held.ranges(lambda low, high, parts: (np.unique(_join(parts)[0]), parts)):
        writer.append(ids[int(ids[0] == last) :].astype(np.int64))  # a row may be split into several ranges
        last = ids[-1]
        for part in parts:
            take(*part)
    return writer.finish()


def _join(parts: list[Entries]) -> Entries:
    rows, cols, values = zip(*parts, strict=True)
    return np.concatenate(rows), np.concatenate(cols), None if values[0] is None else np.concatenate(values)


def _number_rows(
    held: EntrySorter,
    numbered: EntrySorter,
    find: Callable[[np.ndarray], np.ndarray],
    *,
    exchanges: bool = True,
    dense: bool = False,
) -> EntrySorter:
    """Add entries with numbered rows, rows and columns optionally exchanged, to `numbered`, and close `held`.

    Parameters
    ----------
    find : function that returns the numbers of rows
    dense : as in `EntrySorter.ranges`
    """

    def number(lowest: int, highest: int, parts: list[Entries]) -> CooBatch:
        rows, cols, values = _join(parts)
        return CooBatch(cols, find(rows), values) if exchanges else CooBatch(find(rows), cols, values)

    for batch in held.ranges(number, dense=dense):
        numbered.add(batch)
    held.close()
    return numbered


# --- names -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _SpilledRun:
    """Names in a file."""

    names: SortedIds
    places: FileArray
    """Index among `names` of the name of each of the codes of the run."""


class SpilledNames:
    """Names by code, in sorted runs; a name may have several codes.

    Parameters
    ----------
    folder : folder of the files; None for the system's temporary folder
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder, self.runs = folder, list[_SpilledRun]()

    def add(self, names: Any, places: np.ndarray) -> None:
        """Spill distinct ascending names, and the index among them of the name of each of the next codes."""
        writer, held = IdWriter(self._folder, np.dtype(object)), FileArray(self._folder, places.dtype)
        writer.append(names)
        held.append(places)
        self.runs.append(_SpilledRun(writer.finish(), held))

    def find(self, code: int) -> str:
        """Return the name that has a code."""
        for run in self.runs:
            if code < len(run.places):
                return str(run.names[int(run.places[code : code + 1][0])])
            code -= len(run.places)
        raise KeyError(code)

    def merge(self) -> Iterator[tuple[Any, list[np.ndarray]]]:
        """Yield all names in ascending ranges, and for the names of each run their indices in the range."""
        firsts = sorted(first for run in self.runs for first in run.names.firsts)
        bounds = [*dict.fromkeys(firsts[::MERGED_PAGES]), None]
        for low, high in pairwise(bounds):
            parts = [list(run.names.read_between(low, high)) for run in self.runs]
            names, places = rank_ids(pa.chunked_array([own for part in parts for own in part]).combine_chunks())
            ends = np.cumsum([sum(map(len, part)) for part in parts])
            yield names, np.split(places, ends[:-1])

    def close(self) -> None:
        """Close the files."""
        for run in self.runs:
            run.names.close()
            run.places.close()


def number_names(
    held: EntrySorter, spilled: SpilledNames, make_sorter: Callable[[], EntrySorter], folder: Path | None
) -> tuple[EntrySorter, SortedIds]:
    """Number names in ascending order.

    Parameters
    ----------
    held : sorter of entries whose rows and columns are codes; it is closed
    spilled : names by code; it is closed
    make_sorter : function that makes another sorter for the same entries
    folder : folder of the files

    Returns
    -------
    A sorter of the entries, whose rows and columns are numbers; and the names.
    """
    writer, n = IdWriter(folder, np.dtype(object)), 0
    of_runs = [FileArray(folder, _INT64) for _ in spilled.runs]
    for names, parts in spilled.merge():
        for numbers, places in zip(of_runs, parts, strict=True):
            numbers.append(n + places.astype(np.int64))
        writer.append(names)
        n += len(names)
    by_code = FileArray(folder, _INT64)
    for run, numbers in zip(spilled.runs, of_runs, strict=True):
        for places in run.places.pieces():
            by_code.append(_look_up(numbers, places))
        numbers.close()
    spilled.close()
    for _ in range(2):  # each pass numbers the rows and exchanges them with the columns
        held = _number_rows(held, make_sorter(), partial(_look_up, by_code), dense=True)
    by_code.close()
    return held, writer.finish()


def _look_up(numbers: FileArray, places: np.ndarray) -> np.ndarray:
    """Return the numbers at some places, at least one, of which the range from the least to the greatest is read."""
    first, last = int(places.min()), int(places.max())
    found: np.ndarray = numbers[first : last + 1][places - first]
    return found
