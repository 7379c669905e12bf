"""Entries of a stored matrix in the numbering of its source, in batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from mgspmv.ingest.prefetch import prefetch_map
from mgspmv.ingest.stored import cut_entries, list_entries, read_entries
from mgspmv.model import CooBatch, Progress
from mgspmv.store.read import StoredMatrix

T = TypeVar("T")


def map_entries(stored: StoredMatrix, work: Callable[[CooBatch], T], threads: int, report: Progress) -> Iterator[T]:
    """Yield the results of a function for all entries as in the source, range by range in the order of the store.

    Parameters
    ----------
    threads : number of threads that read and apply the function
    report : called with ("export", entries done, total entries)
    """
    order, total = stored.read_order(), stored.info.nnz
    report("export", 0, total)

    def make(entries: tuple[int, np.ndarray]) -> tuple[int, T]:
        return int(entries[1][-1]), work(list_entries(read_entries(stored, entries), stored.info, order))

    with ThreadPoolExecutor(threads, "mgspmv-export") as pool:
        for done, made in prefetch_map(pool, make, cut_entries(stored, threads), threads):
            yield made
            report("export", done, total)


def find_repeated(stored: StoredMatrix) -> tuple[int, int] | None:
    """Return row and column, in the source, of the first duplicate entry; None if there is none."""
    if stored.info.duplicates != "keep":
        return None
    order, last = stored.read_order(), (np.zeros(0, np.int64), np.zeros(0, np.int64))
    for entries in cut_entries(stored, 1):
        batch = list_entries(read_entries(stored, entries), stored.info, order)
        rows, cols = np.concatenate([last[0], batch.rows]), np.concatenate([last[1], batch.cols])
        repeated = np.flatnonzero((rows[1:] == rows[:-1]) & (cols[1:] == cols[:-1]))
        if len(repeated):
            return int(rows[repeated[0]]), int(cols[repeated[0]])
        last = rows[-1:], cols[-1:]
    return None
