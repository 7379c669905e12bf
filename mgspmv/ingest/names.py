"""Sorted ids of vertices in files, and sorted runs of names that do not fit into memory.

    names, in input order  --codes-->  a dictionary, until it is full  --sort-->  a run in a file
    runs  --merge-->  all names, ascending, in a file; and the place of each code among them

A name that occurs again after its dictionary was spilled gets another code; all its codes lead to one place.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from mgspmv.ingest.external_sort import EntrySorter
from mgspmv.ingest.radix_sort import Entries
from mgspmv.ingest.scratch import FileArray, ScratchFile
from mgspmv.model import CooBatch, index_dtype

PAGE_NAMES = 1 << 14
"""Ids per page, the unit of reading; the first id of each page is in memory."""
MERGED_PAGES = 16
"""Pages per range of names that is merged at a time."""

_INT64, _BYTE, _NAMES = map(np.dtype, (np.int64, np.uint8, object))


@dataclass(frozen=True)
class _IdPage:
    """Page of ids in a file, stored as an Arrow record batch."""

    offset: int
    n_bytes: int
    n_ids: int
    first: Any


class SortedIds:
    """Distinct ids in a file, integers or names, ascending, optionally with their codes; see `IdWriter`."""

    def __init__(self, file: ScratchFile, pages: Sequence[_IdPage], schema: Any) -> None:
        self.file, self.pages, self._schema = file, pages, schema
        self.dtype = _INT64 if schema.types[0] == pa.int64() else np.dtype(object)
        self._starts = np.cumsum([0, *(page.n_ids for page in pages)]).tolist()

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, which: int | slice) -> Any:
        if isinstance(which, slice):
            start, stop, _ = which.indices(len(self))
            pages = range(bisect_right(self._starts, start) - 1, bisect_right(self._starts, max(start, stop - 1)))
            ids = [self.read_page(k)[0].to_numpy(zero_copy_only=False) for k in pages if k < len(self.pages)]
            base = self._starts[pages.start]
            return np.concatenate([np.zeros(0, self.dtype), *ids])[start - base : max(start, stop) - base]
        number = range(len(self))[which]
        page = bisect_right(self._starts, number) - 1
        return self.read_page(page)[0][number - self._starts[page]].as_py()

    @property
    def firsts(self) -> list[Any]:
        """First id of each page."""
        return [page.first for page in self.pages]

    def find(self, ids: np.ndarray) -> np.ndarray:
        """Return the (k,) int64 numbers of ascending ids, all of which exist; one page is in memory at a time."""
        pages = np.searchsorted(np.array(self.firsts, self.dtype), ids, side="right") - 1
        parts = [np.zeros(0, np.int64)]
        for own in np.split(np.arange(len(ids)), np.flatnonzero(np.diff(pages)) + 1) if len(ids) else ():
            page = int(pages[own[0]])
            known = self.read_page(page)[0].to_numpy(zero_copy_only=False)
            parts.append(self._starts[page] + np.searchsorted(known, ids[own]))
        return np.concatenate(parts)

    def read_page(self, k: int) -> Any:
        """Return a page as an Arrow record batch of ids and, if they have any, codes."""
        page = self.pages[k]
        return pa.ipc.read_record_batch(pa.py_buffer(self.file.read(page.offset, page.n_bytes, _BYTE)), self._schema)

    def close(self) -> None:
        """Close the file."""
        self.file.close()


class IdWriter:
    """Writer of distinct ascending ids.

    Parameters
    ----------
    folder : folder of the file; None for the system's temporary folder
    dtype : int64, or object for names
    has_codes : whether ids have codes
    """

    def __init__(self, folder: Path | None, dtype: np.dtype[Any], *, has_codes: bool = False) -> None:
        self._file, self._pages = ScratchFile(folder), list[_IdPage]()
        own = pa.int64() if dtype == _INT64 else pa.string()
        self._schema = pa.schema([("id", own)] + [("code", pa.int64())] * has_codes)

    def append(self, ids: Any, *codes: np.ndarray) -> None:
        """Append ids, and their codes if they have any, as Arrow or NumPy arrays."""
        for first in range(0, len(ids), PAGE_NAMES):
            own = [
                _to_arrow(column[first : first + PAGE_NAMES], field.type)
                for column, field in zip((ids, *codes), self._schema, strict=True)
            ]
            data = np.frombuffer(pa.record_batch(own, self._schema).serialize(), np.uint8)
            self._pages.append(_IdPage(self._file.append(data), len(data), len(own[0]), own[0][0].as_py()))

    def finish(self) -> SortedIds:
        """Return the ids that were written."""
        return SortedIds(self._file, self._pages, self._schema)


def _to_arrow(column: Any, type: Any) -> Any:
    is_plain = isinstance(column, np.ndarray) and column.dtype == _INT64
    return wrap_numbers(column) if is_plain else pa.array(column).cast(type)


def wrap_numbers(vector: np.ndarray) -> Any:
    """Return numbers as an array of Arrow of the same memory, without pandas, which `pyarrow.array` imports."""
    buffer = pa.py_buffer(np.ascontiguousarray(vector))
    return pa.Array.from_buffers(pa.from_numpy_dtype(vector.dtype), len(vector), [None, buffer])


def rank_ids(ids: Any) -> tuple[Any, np.ndarray]:
    """Return the distinct ids of an Arrow array, ascending, and the place of each id among them."""
    coded = ids.dictionary_encode()
    order = np.asarray(pa.compute.sort_indices(coded.dictionary))
    places = np.empty(len(order), index_dtype(len(order)))
    places[order] = np.arange(len(order))
    return coded.dictionary.take(order), places[np.asarray(coded.indices)]


class SpilledNames:
    """Names by code, in sorted runs.

    Parameters
    ----------
    folder : folder of the files; None for the system's temporary folder
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder, self._runs, self.n_codes = folder, list[SortedIds](), 0

    def add(self, names: Any, codes: np.ndarray) -> None:
        """Spill distinct ascending names; their codes continue those of earlier names, in any order."""
        if not len(names):
            return
        writer = IdWriter(self._folder, _NAMES, has_codes=True)
        writer.append(names, codes)
        self._runs.append(writer.finish())
        self.n_codes += len(names)

    def find(self, code: int) -> str:
        """Return the name that has a code."""
        for run in self._runs:
            for page in map(run.read_page, range(len(run.pages))):
                found = np.flatnonzero(np.asarray(page[1]) == code)
                if len(found):
                    return str(page[0][int(found[0])])
        raise KeyError(code)

    def merge(self) -> Iterator[tuple[Any, np.ndarray, np.ndarray]]:
        """Yield all names in ascending ranges: names, codes, and for each code the index of its name in the range."""
        firsts = sorted(first for run in self._runs for first in run.firsts)
        bounds = [*dict.fromkeys(firsts[::MERGED_PAGES]), None]
        for low, high in pairwise(bounds):
            parts = [part for run in self._runs for part in self._read_range(run, low, high)]
            names, places = rank_ids(pa.chunked_array([names for names, _ in parts]).combine_chunks())
            yield names, np.concatenate([codes for _, codes in parts]), places

    def close(self) -> None:
        """Close the files."""
        for run in self._runs:
            run.close()

    def _read_range(self, run: SortedIds, low: Any, high: Any) -> Iterator[tuple[Any, np.ndarray]]:
        """Yield the names of a run from `low` to before `high` (None for no end) and their codes, page by page."""
        firsts = run.firsts
        for k in range(max(0, bisect_right(firsts, low) - 1), len(firsts)):
            if high is not None and firsts[k] >= high:
                return
            names, codes = run.read_page(k)
            own = pa.compute.greater_equal(names, low)
            if high is not None:
                own = pa.compute.and_(own, pa.compute.less(names, high))
            yield names.filter(own), np.asarray(codes.filter(own))


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
    writer, by_code, n = IdWriter(folder, _NAMES), make_sorter(), 0
    for names, codes, places in spilled.merge():
        by_code.add(CooBatch(codes, n + places.astype(np.int64), None))
        writer.append(names)
        n += len(names)
    spilled.close()
    numbers = FileArray(folder, _INT64)
    for own in by_code.ranges(_order_by_code):
        numbers.append(own)
    by_code.close()
    for _ in range(2):  # each pass numbers the rows and exchanges them with the columns
        numbered = make_sorter()
        for batch in held.ranges(lambda low, high, parts: _number_rows(numbers, low, high, parts), dense=True):
            numbered.add(batch)
        held.close()
        held = numbered
    numbers.close()
    return held, writer.finish()


def _order_by_code(lowest: int, highest: int, parts: list[Entries]) -> np.ndarray:
    """Return the numbers in the order of their codes, each of which occurs once."""
    codes, numbers = (np.concatenate([part[side] for part in parts]) for side in (0, 1))
    ordered = np.empty(len(codes), np.int64)
    ordered[codes - codes.min()] = numbers
    return ordered


def _number_rows(numbers: FileArray, lowest: int, highest: int, parts: list[Entries]) -> CooBatch:
    """Replace the codes of rows by numbers, and exchange rows and columns."""
    rows, cols = (np.concatenate([part[side] for part in parts]) for side in (0, 1))
    first, last = int(rows.min()), int(rows.max())
    known = numbers[first : last + 1]
    values = [values for _, _, values in parts if values is not None]
    return CooBatch(cols, known[rows - first], np.concatenate(values) if values else None)
