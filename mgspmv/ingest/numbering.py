"""Vertices numbered by ids that do not fit into memory, nor a table for them.

    entries (id, id)  --ranges of rows-->  ids of rows in a file; entries by column
                      --ranges of columns-->  ids of all in a file; entries (id, number), to be sorted by row

Ids are numbered as they ascend, so that a row's number is its place among the ids in the file, which is looked up when
rows are sorted. The sorters take what memory they have and files for the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit

from mgspmv.ingest.ids import IdWriter, SortedIds, UnionWriter
from mgspmv.ingest.sorter import Entries, EntrySorter, sort_keys
from mgspmv.model import CooBatch


def number_columns(
    held: EntrySorter, make_sorter: Callable[[], EntrySorter], folder: Path | None
) -> tuple[EntrySorter, SortedIds]:
    """Number the ids that occur, from the least on.

    Parameters
    ----------
    held : has entries whose rows and columns are ids; it is closed
    make_sorter : makes one for the same entries
    folder : for files

    Returns
    -------
    A sorter of the entries, whose rows are ids and whose columns are numbers; and the ids.
    """
    row_ids, by_column = IdWriter(folder), make_sorter()
    for ids, parts in held.ranges(_find_rows):
        row_ids.append(ids)
        for rows, cols, values in parts:
            by_column.add(CooBatch(cols, rows, values))
    held.close()
    known = row_ids.finish()
    union, by_row = UnionWriter(known, folder), make_sorter()
    for ids, places, parts in by_column.ranges(_find_columns):
        numbers, first = union.add(ids)[places], 0
        for _, rows, values in parts:
            by_row.add(CooBatch(rows, numbers[first : first + len(rows)], values))
            first += len(rows)
    by_column.close()
    all_ids = union.finish()
    known.close()
    return by_row, all_ids


def _find_rows(lowest: int, highest: int, parts: list[Entries]) -> tuple[np.ndarray, list[Entries]]:
    """The different rows of entries, ascending."""
    keys, _ = sort_keys(_take_keys(lowest, parts), None, (highest - lowest).bit_length())
    different = np.empty(len(keys), bool)
    different[:1] = True
    np.not_equal(keys[1:], keys[:-1], out=different[1:])
    return _make_ids(keys[different], lowest), parts


def _find_columns(lowest: int, highest: int, parts: list[Entries]) -> tuple[np.ndarray, np.ndarray, list[Entries]]:
    """The different ids that entries are sorted by, ascending, and which of them each entry has."""
    keys = _take_keys(lowest, parts)
    keys, order = sort_keys(keys, np.arange(len(keys)), (highest - lowest).bit_length())
    places = np.empty(len(keys), np.int64)
    n = _number_runs(keys, order, places)
    return _make_ids(keys[:n], lowest), places, parts


def _take_keys(lowest: int, parts: list[Entries]) -> np.ndarray:
    """How far the ids are from the lowest, which may be more than an int64 holds."""
    ids = np.concatenate([rows for rows, _, _ in parts]).astype(np.int64, copy=False)
    return ids.view(np.uint64) - np.uint64(lowest % (1 << 64))


def _make_ids(keys: np.ndarray, lowest: int) -> np.ndarray:
    return (keys + np.uint64(lowest % (1 << 64))).view(np.int64)


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]  # Numba has no types
def _number_runs(keys: Any, order: Any, places: Any) -> int:
    """Leave different keys only, and say of the entry that each came from which it is; how many are left."""
    n = -1
    for k in range(len(keys)):
        if n < 0 or keys[k] != keys[n]:
            n += 1
            keys[n] = keys[k]
        places[order[k]] = n
    return n + 1
