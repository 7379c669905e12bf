"""Numbering of vertices by their ids, integers or names, once all entries are read.

Names have codes, and so have integers that do not fit into memory. They ascend with the batches, so that the codes of
neighboring entries are a small range, which is read at once:

    ids of a batch        --distinct-->  codes: each batch gives new codes to its ids
    ids by code           --until memory is full-->  runs: sorted ids in a file, and the place of each code in another
    runs                  --merge-->  all ids, ascending, and the number of each code
    entries (code, code)  --look up-->  entries (number, number)

Small integers are marked, and entries are sorted by these, which ascend with the numbers, before blocks of rows are
numbered:

    entries (id, id)      --mark-->  table of the number of each id
    entries (id, id)      --sort, look up-->  blocks of rows (number, number)

Others are numbered before they are sorted:

    entries (id, id)      --distinct, sort-->  all ids, ascending, with the first of each part of their range
    entries (id, id)      --look up-->  entries (number, number)
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from mgspmv.display.frames import unwrap_numbers, wrap_numbers
from mgspmv.errors import SourceError
from mgspmv.heartbeat import prefetch_map
from mgspmv.ingest.block_sorting import SMALL
from mgspmv.ingest.budget import ANY_ROOM, FileArray, MemoryBudget, ScratchFile
from mgspmv.ingest.external_sort import EntrySorter
from mgspmv.ingest.source import Layout
from mgspmv.kernels.compiled import compile_later
from mgspmv.model import CooBatch, CsrBlock, index_dtype
from mgspmv.order import invert

PAGE_NAMES = 1 << 14
"""Ids per page, the unit of reading; the first id of each page is in memory."""
MERGED_PAGES = 16
"""Pages per range of ids that is merged at a time."""

NAME_BYTES, INTEGER_BYTES = 100, 120
"""Approximate bytes per name as a Python string, and per integer in the tables with which Arrow finds distinct ones."""
CODE_BYTES = 8
"""Bytes per code: its place among the known ids, and its number."""
PENDING_BYTES = 1 << 22
"""Bytes of ids that may wait to be added to the known ones, regardless of how many these are."""
JOINED_BYTES = 56
"""Most bytes per distinct integer that is known: with those of further entries, while all are sorted, and its table."""
ENCODED_ENTRIES = 1 << 18
"""Most entries per batch of ids: Arrow's table of distinct integers takes up to 100 bytes for each."""
UNKNOWN = -1
"""Code of an id that is not a vertex."""
MARK_BYTES = 20
"""Most bytes per integer for its mark, the id and its table entry, while they are made."""
SMALL_IDS = 1 << 20
"""Bound of ids that a table may always cover, regardless of the number of edges."""

IdType = Literal["int64", "string"]
Ids = Any
"""Ascending ids: an array, or an object with a dtype and a length that is sliced like an array."""


# --- ids in files ----------------------------------------------------------------------------------------------------


class SortedIds:
    """Distinct ids in a file, integers or names, which are appended in ascending order, then sliced like an array.

    Parameters
    ----------
    folder : folder of the file; None for the system's temporary folder
    dtype : int64, or object for names
    """

    def __init__(self, folder: Path | None, dtype: np.dtype[Any]) -> None:
        self.dtype, self.file = dtype, ScratchFile(folder)
        self._schema = pa.schema([("id", pa.int64() if dtype == np.int64 else pa.string())])
        self.pages = list[tuple[int, int]]()
        """First byte of each page, an Arrow record batch, and number of its bytes."""
        self.firsts = list[Any]()
        """First id of each page."""
        self._starts = [0]
        """Number of the first id of each page, and the number of ids."""

    def append(self, ids: Any) -> None:
        """Append ids, as an array of Arrow or NumPy."""
        for first in range(0, len(ids), PAGE_NAMES):
            own = _to_arrow(ids[first : first + PAGE_NAMES], self._schema.types[0])
            data = np.frombuffer(pa.record_batch([own], self._schema).serialize(), np.uint8)
            self.pages.append((self.file.append(data), len(data)))
            self.firsts.append(own[0].as_py())
            self._starts.append(self._starts[-1] + len(own))

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

    def read_page(self, k: int) -> Any:
        """Return the ids of a page as an Arrow array."""
        data = pa.py_buffer(self.file.read(*self.pages[k], np.dtype(np.uint8)))
        return pa.ipc.read_record_batch(data, self._schema)[0]

    def read_between(self, low: Any, high: Any) -> Iterator[Any]:
        """Yield the ids from `low` to before `high`, None for no end, page by page."""
        import pyarrow.compute as pc

        for k in range(max(0, bisect_right(self.firsts, low) - 1), len(self.firsts)):
            if high is not None and self.firsts[k] >= high:
                return
            ids = self.read_page(k)
            own = pc.greater_equal(ids, low)
            if high is not None:
                own = pc.and_(own, pc.less(ids, high))
            yield ids.filter(own)

    def close(self) -> None:
        """Close the file."""
        self.file.close()


def _to_arrow(ids: Any, type: Any) -> Any:
    if isinstance(ids, np.ndarray):
        ids = wrap_numbers(ids) if ids.dtype == np.int64 else pa.array(ids, type if ids.dtype == object else None)
    return ids.cast(type)


def rank_ids(ids: Any) -> tuple[Any, np.ndarray]:
    """Return the distinct ids of an Arrow array, ascending, and the place of each id among them."""
    coded = ids.dictionary_encode()
    return _rank_distinct(coded.dictionary, unwrap_numbers(coded.indices))


def _rank_distinct(ids: Any, codes: np.ndarray) -> tuple[Any, np.ndarray]:
    """Return distinct ids, ascending, and the place of the id of each code among them."""
    import pyarrow.compute as pc

    order = unwrap_numbers(pc.sort_indices(ids)).astype(index_dtype(len(ids)))
    return ids.take(order), invert(order)[codes]


def find_id_type(ids: Ids | None) -> IdType | None:
    """Return the type of ids; None for no ids."""
    return None if ids is None else "int64" if ids.dtype == np.int64 else "string"


def are_numbers(ids: Ids) -> bool:
    """Return whether ascending distinct integers are 0..n-1."""
    return bool(len(ids) == 0 or (ids[0] == 0 and ids[-1] == len(ids) - 1))


# --- codes -----------------------------------------------------------------------------------------------------------


class OccurringIds:
    """Ids that occur in the edges or in a list of vertices; each batch gives a new code to each of its ids.

    Ids that occur again get greater codes, as entries at one place are sorted by codes before they are sorted by
    numbers. Ids that do not fit into memory are spilled to files.

    Parameters
    ----------
    type : Arrow type of the ids, int64 or large strings
    room : memory for ids, and the folder of the files
    listed : Arrow array of the names of a list of vertices; None if there is no list
    first : name on the first line of the list, which may be a header; None if it is known to be none
    name : name of the source in messages
    """

    def __init__(
        self, type: Any, room: MemoryBudget = ANY_ROOM, listed: Any = None, first: str | None = None, name: str = ""
    ) -> None:
        self._type, self._room, self._listed, self._source = type, room, listed, name
        self.unused_first = first
        """Name on the first line of the list until an edge has it; else None."""
        self._n_codes, self._runs = 0, list[tuple[SortedIds, FileArray]]()
        """Runs: their ids, and the index among these of the id of each of their codes."""
        self._begin()

    def _begin(self) -> None:
        self._known = pa.nulls(0, self._type) if self._listed is None else self._listed
        self._batches = list[Any]()
        """Ids of the batches that are not among the known ones yet, by code."""
        self._places = [np.zeros(0, np.int32)]
        """Index among the known ids of the id of each code before those of `_batches`."""

    def encode(self, *columns: Any) -> list[np.ndarray]:
        """Return the codes of the next batch."""
        if self._is_full:
            self._spill()
        coded = pa.concat_arrays([_to_arrow(ids, self._type) for ids in columns]).dictionary_encode()
        ids, codes = coded.dictionary, self._n_codes + unwrap_numbers(coded.indices).astype(np.int64)
        if self.unused_first is not None and ids.index(self.unused_first).as_py() >= 0:
            self.unused_first = None
        self._batches.append(ids)
        self._n_codes += len(ids)
        if sum(ids.nbytes for ids in self._batches) > max(PENDING_BYTES, self._known.nbytes):
            self._join_known()
        return np.split(codes, np.cumsum(list(map(len, columns)))[:-1])

    @property
    def _is_full(self) -> bool:
        """True if ids take more than the memory."""
        n_waiting = sum(map(len, self._batches))
        need: int = self._known.nbytes + 2 * sum(ids.nbytes for ids in self._batches)
        need += CODE_BYTES * (sum(map(len, self._places)) + n_waiting)
        if self._type == pa.int64():
            need += INTEGER_BYTES * (len(self._known) + n_waiting)
        else:
            need += NAME_BYTES * len(self._known)
        return need > self._room.memory

    def _join_known(self) -> None:
        """Add the ids of the batches to the known ones.

        Raises
        ------
        SourceError : one is not in the list of vertices
        """
        coded, n_known = pa.chunked_array([self._known, *self._batches]).dictionary_encode(), len(self._known)
        if coded.num_chunks:
            self._known, self._batches = coded.chunk(0).dictionary, []
            self._places.append(np.concatenate([unwrap_numbers(chunk.indices) for chunk in coded.chunks])[n_known:])
        if self._listed is not None and len(self._known) > len(self._listed):
            raise SourceError(
                f"{self._known[len(self._listed)].as_py()!r} is not in the list of vertices; add it there or remove "
                "its edges",
                source=self._source,
            )

    def _rank(self) -> tuple[Any, np.ndarray]:
        """Return the ids, ascending, and the place of the id of each code among them."""
        self._join_known()
        return _rank_distinct(self._known, np.concatenate(self._places))

    def _spill(self) -> None:
        """Write all ids in memory to a run."""
        ids, places = self._rank()
        run = self._make_file(), FileArray(self._room.folder, places.dtype)
        run[0].append(ids)
        run[1].append(places)
        self._runs.append(run)
        self._begin()

    def _make_file(self) -> SortedIds:
        return SortedIds(self._room.folder, np.dtype(np.int64 if self._type == pa.int64() else object))

    def finish(self) -> Layout:
        """Return the ids, and as `positions` the number of each code."""
        if not self._runs and not self._is_full:
            ids, positions = self._rank()
            return Layout((len(ids),) * 2, ids.to_numpy(zero_copy_only=False), positions)
        self._spill()
        all_ids, n = self._make_file(), 0
        of_runs = [FileArray(self._room.folder, np.dtype(np.int64)) for _ in self._runs]
        for ids, parts in self._merge():
            for numbers, places in zip(of_runs, parts, strict=True):
                numbers.append(n + places.astype(np.int64))
            all_ids.append(ids)
            n += len(ids)
        by_code = FileArray(self._room.folder, index_dtype(n))
        for (run_ids, run_places), numbers in zip(self._runs, of_runs, strict=True):
            for places in run_places.pieces():
                by_code.append(numbers.take(places))
            for file in (run_ids, run_places, numbers):
                file.close()
        return Layout((n, n), all_ids, by_code)

    def _merge(self) -> Iterator[tuple[Any, list[np.ndarray]]]:
        """Yield all ids in ascending ranges, and for the ids of each run their indices in the range."""
        firsts = sorted(first for run, _ in self._runs for first in run.firsts)
        bounds = [*dict.fromkeys(firsts[::MERGED_PAGES]), None]
        for low, high in pairwise(bounds):
            parts = [list(run.read_between(low, high)) for run, _ in self._runs]
            ids, places = rank_ids(pa.chunked_array([own for part in parts for own in part]).combine_chunks())
            ends = np.cumsum([sum(map(len, part)) for part in parts])
            yield ids, np.split(places, ends[:-1])


class IdTable:
    """Numbers of integers by the integers themselves, any of int64.

    Parameters
    ----------
    ids : ascending, whose places are their numbers
    """

    def __init__(self, ids: np.ndarray) -> None:
        self._ids, self._least = ids, np.uint64(int(ids[0]) % (1 << 64))
        parts = ids.view(np.uint64) - self._least
        bits = len(ids).bit_length()
        self._shift = np.uint64(max(0, int(parts[-1]).bit_length() - bits))
        parts >>= self._shift
        self._starts = np.searchsorted(parts, np.arange(int(parts[-1]) + 2, dtype=np.uint64))
        """First place of the ids of each part of the range of all, about as many as ids, and the end of the last."""

    def take(self, ids: np.ndarray) -> np.ndarray:
        """Return the numbers of ids, all of which are in the table."""
        found: np.ndarray = np.empty(len(ids), index_dtype(len(self._ids)))
        if _find.is_worth(len(ids)):
            _find(ids, self._ids, self._least, self._shift, self._starts, found)
        else:
            found[:] = np.searchsorted(self._ids, ids)
        return found


Numbers = np.ndarray | FileArray | IdTable
"""Numbers by code, or by id, of which `take` returns those at some places."""


def number_block(block: CsrBlock, layout: Layout) -> CsrBlock:
    """Return a block with numbers in place of ids, by a layout whose codes ascend; its columns are overwritten."""
    ids, table, first = layout.vertex_ids, layout.positions, block.row_offset
    start, stop = np.searchsorted(ids, (first, first + block.n_rows)).tolist()
    indptr = block.indptr[np.append(0, ids[start:stop] - first + 1)]
    if block.indices.dtype == table.dtype and _replace.is_worth(block.nnz):
        _replace(block.indices, table)
        indices = block.indices
    else:
        indices = table[block.indices]
    return CsrBlock(start, layout.shape[1], indptr, indices, block.data)


@compile_later(2 * SMALL)
def _mark(ids: Any, seen: Any) -> None:
    for each in ids:
        seen[each] = True


@compile_later(SMALL)
def _replace(keys: Any, table: Any) -> None:
    for k in range(len(keys)):
        keys[k] = table[keys[k]]


@compile_later(SMALL)
def _find(keys: Any, ids: Any, least: Any, shift: Any, starts: Any, found: Any) -> None:
    for k in range(len(keys)):
        key = np.int64(keys[k])
        part = (np.uint64(key) - least) >> shift
        low, high = starts[part], starts[part + np.uint64(1)]
        while high - low > 1:
            middle = (low + high) >> 1
            if ids[middle] <= key:
                low = middle
            else:
                high = middle
        found[k] = low


def join_ids(parts: Iterable[np.ndarray], most: int) -> np.ndarray | None:
    """Return the distinct ids of all parts, ascending; None if they take too much of `most` bytes."""
    known, new, n_new = np.zeros(0, np.int64), list[np.ndarray](), 0
    for ids in parts:
        new.append(ids)
        n_new += len(ids)
        is_full = JOINED_BYTES * (len(known) + n_new) > most
        if is_full or n_new > max(len(known), PENDING_BYTES // known.itemsize):
            known, new, n_new = _sort_distinct([known, *new]), [], 0
            if JOINED_BYTES * len(known) > most:
                return None
    return _sort_distinct([known, *new])


def _sort_distinct(parts: Sequence[np.ndarray]) -> np.ndarray:
    ids: np.ndarray = np.concatenate(parts, dtype=np.int64)
    ids.sort()
    distinct: np.ndarray = ids[np.append(True, ids[1:] != ids[:-1])[: len(ids)]]
    return distinct


def number_entries(
    given: EntrySorter,
    layout: Layout,
    extent: tuple[int, int],
    make_sorter: Callable[[], EntrySorter],
    id_room: MemoryBudget,
) -> tuple[EntrySorter, Layout]:
    """Replace codes of rows and columns, or ids, by their numbers; return the sorter of these and the new layout.

    Entries whose codes ascend with the numbers stay as they are, and are numbered once they are sorted.

    Parameters
    ----------
    extent, make_sorter, id_room : as for `encode_ids`
    """
    if layout.are_ids:
        given, layout = encode_ids(given, layout, extent, make_sorter, id_room)
    given.reserve(layout.nbytes)
    if layout.positions is None or layout.ascend:
        return given, layout
    sorter = make_sorter()
    for batch in look_up_entries(given, layout.positions):
        sorter.add(batch)
    if isinstance(layout.positions, FileArray):
        layout.positions.close()
    return sorter, replace(layout, positions=None)


def encode_ids(
    given: EntrySorter,
    layout: Layout,
    extent: tuple[int, int],
    make_sorter: Callable[[], EntrySorter],
    id_room: MemoryBudget,
) -> tuple[EntrySorter, Layout]:
    """Return a sorter of the entries and a layout that numbers them: that of the ids, or of codes in their places.

    Parameters
    ----------
    extent : least and greatest id; the greatest is the smaller one if there is none
    make_sorter : makes the sorter that receives entries with codes, where the ids do not fit into memory
    id_room : memory for ids
    """
    low, high = extent
    if low >= 0 and high < min(id_room.memory // MARK_BYTES, 4 * given.n_entries + SMALL_IDS):
        return given, _number_marked(given, high, layout)
    batches = given.read(given.most_per_thread)
    list_ids = lambda batch: _sort_distinct([batch.rows, batch.cols])  # noqa: E731
    with ThreadPoolExecutor(given.threads, "mgspmv-find-ids") as pool:
        ids = join_ids(prefetch_map(pool, list_ids, batches, given.threads), id_room.memory)
    if ids is not None:
        numbers = None if are_numbers(ids) else IdTable(ids)
        own = None if numbers is None else ids
        return given, replace(layout, shape=(len(ids),) * 2, vertex_ids=own, positions=numbers, are_ids=False)
    found, coded = OccurringIds(pa.int64(), id_room), make_sorter()
    for batch in given.read(ENCODED_ENTRIES, drains=True):
        rows, cols = found.encode(batch.rows, batch.cols)
        coded.add(CooBatch(rows, cols, batch.values))
    given.close()
    known = found.finish()
    ids = None if are_numbers(known.vertex_ids) else known.vertex_ids
    return coded, replace(layout, shape=known.shape, vertex_ids=ids, positions=known.positions, are_ids=False)


def _number_marked(given: EntrySorter, high: int, layout: Layout) -> Layout:
    """Return the layout of those of the ids 0..high that occur, whose table ascends."""
    seen: np.ndarray = np.zeros(high + 1, bool)

    def add_marks(batch: CooBatch) -> None:
        for ids in (batch.rows, batch.cols):
            if _mark.is_worth(len(ids)):
                _mark(ids, seen)
            else:
                seen[ids] = True

    with ThreadPoolExecutor(given.threads, "mgspmv-find-ids") as pool:
        for _ in prefetch_map(pool, add_marks, given.read(given.most_per_thread), given.threads):
            pass
    ids = np.flatnonzero(seen)
    layout = replace(layout, shape=(len(ids),) * 2, are_ids=False)
    if are_numbers(ids):
        return layout
    table = np.cumsum(seen, dtype=index_dtype(len(ids)))
    table -= 1
    table[~seen] = UNKNOWN
    return replace(layout, vertex_ids=ids, positions=table, ascend=True)


def look_up_entries(coded: EntrySorter, *tables: Numbers | None) -> Iterator[CooBatch]:
    """Yield all entries with rows and columns looked up in one table after the other, and close the sorter.

    Parameters
    ----------
    tables : numbers; None for a table of all numbers in their order
    """

    def number(batch: CooBatch) -> CooBatch:
        rows, cols = batch.rows, batch.cols
        for table in tables:
            if table is not None:
                rows, cols = table.take(rows), table.take(cols)
        return CooBatch(rows, cols, batch.values)

    with ThreadPoolExecutor(coded.threads, "mgspmv-number") as pool:
        yield from prefetch_map(pool, number, coded.read(coded.most_per_thread, drains=True), coded.threads)
    coded.close()
