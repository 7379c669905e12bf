"""Numbering of vertices by their ids, once all entries are read.

    entries (code, code)  --look up-->  entries (number, number)

Names have codes, see `mgspmv.ingest.occurring_ids`, and so have integers that do not fit into memory. Others need none.
Small integers are marked, and entries are sorted by these, which ascend with the numbers, before blocks of rows are
numbered:

    entries (id, id)      --mark-->  table of the number of each id
    entries (id, id)      --sort, look up-->  blocks of rows (number, number)

Others are numbered before they are sorted:

    entries (id, id)      --distinct, sort-->  all ids, ascending, with the first of each part of their range
    entries (id, id)      --look up-->  entries (number, number)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from mgspmv.heartbeat import prefetch_map
from mgspmv.ingest.block_sorting import SMALL
from mgspmv.ingest.budget import FileArray, MemoryBudget
from mgspmv.ingest.external_sort import EntrySorter
from mgspmv.ingest.occurring_ids import PENDING_BYTES, OccurringIds, are_numbers
from mgspmv.ingest.source import Layout
from mgspmv.kernels.compiled import compile_later
from mgspmv.model import CooBatch, CsrBlock, index_dtype

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


def list_ids(batch: CooBatch) -> np.ndarray:
    """Return the distinct rows and columns of a batch, ascending."""
    return _sort_distinct([batch.rows, batch.cols])


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
