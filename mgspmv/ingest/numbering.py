"""Numbering of vertices whose ids, or a table of them, do not fit into memory.

    entries (id, id)  --ranges of rows-->  ids of rows in a file; entries by column
                      --ranges of columns-->  ids of columns in a file, and of all in another
                      --ranges of columns-->  entries (id, number)  --ranges of rows-->  entries (number, number)

Ids are numbered in ascending order. The sorters spill entries that do not fit in memory to files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit

from mgspmv.ingest.external_sort import EntrySorter
from mgspmv.ingest.names import IdWriter, SortedIds
from mgspmv.ingest.radix_sort import Entries, sort_keys
from mgspmv.model import CooBatch

PIECE_IDS = 1 << 16
"""Ids per comparison."""

Ids = Any
"""Ascending ids: an array, or an object with a dtype and a length that is sliced like an array."""


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
    by_row = _number_rows(by_column, known, make_sorter(), exchanges=True)
    numbered = _number_rows(by_row, known, make_sorter(), exchanges=False)
    row_ids.close()
    col_ids.close()
    return numbered, known


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


def _write_ids(
    held: EntrySorter, folder: Path | None, take: Callable[..., None] = lambda rows, cols, values: None
) -> SortedIds:
    """Write the distinct rows of entries to a file, and pass the entries to a function in parts."""
    writer, last = IdWriter(folder, np.dtype(np.int64)), None
    for ids, _, parts in held.ranges(_find_places):
        writer.append(ids[int(ids[0] == last) :])  # a row may be split into several ranges
        last = ids[-1]
        for part in parts:
            take(*part)
    return writer.finish()


def _number_rows(held: EntrySorter, known: SortedIds, numbered: EntrySorter, *, exchanges: bool) -> EntrySorter:
    """Add entries with numbered rows, rows and columns optionally exchanged, to `numbered`, and close `held`."""
    for ids, places, parts in held.ranges(_find_places):
        numbers, first = known.find(ids)[places], 0
        for _, cols, values in parts:
            own = numbers[first : first + len(cols)]
            rows, cols = (cols, own) if exchanges else (own, cols)
            numbered.add(CooBatch(rows, cols, values))
            first += len(cols)
    held.close()
    return numbered


def _find_places(lowest: int, highest: int, parts: list[Entries]) -> tuple[np.ndarray, np.ndarray, list[Entries]]:
    """Return the distinct rows of entries, ascending, for each entry the index of its row, and the entries."""
    rows = np.concatenate([rows for rows, _, _ in parts]).astype(np.int64, copy=False)
    keys = rows.view(np.uint64) - np.uint64(lowest % (1 << 64))  # may exceed int64
    keys, order = sort_keys(keys, np.arange(len(keys)), (highest - lowest).bit_length())
    places = np.empty(len(keys), np.int64)
    n = _number_runs(keys, order, places)
    return (keys[:n] + np.uint64(lowest % (1 << 64))).view(np.int64), places, parts


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]  # Numba has no types
def _number_runs(keys: Any, order: Any, places: Any) -> int:
    """Compact sorted keys to the distinct ones, write the index of each entry's key, and return their number."""
    n = -1
    for k in range(len(keys)):
        if n < 0 or keys[k] != keys[n]:
            n += 1
            keys[n] = keys[k]
        places[order[k]] = n
    return n + 1
