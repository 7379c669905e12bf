"""Entries of a stored matrix in the numbering of its source, in batches.

Entry (i, j) of a graph is the arc i -> j, which is stored at (j, i); rows and columns of a renumbered store get the
source's numbers again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from mgspmv.ingest.prefetch import prefetch_map
from mgspmv.ingest.stored import cut_entries, read_entries
from mgspmv.model import CooBatch, Progress, index_dtype
from mgspmv.order import list_rows
from mgspmv.store.read import StoredMatrix

T = TypeVar("T")


class SourceEntries:
    """Reader of ranges of entries of a stored matrix, as entries of its source; thread-safe."""

    def __init__(self, stored: StoredMatrix) -> None:
        self.stored = stored
        self.order = stored.read_order()
        """Source's number of each row and column; None if they are in the order of the source."""

    def read(self, entries: tuple[int, np.ndarray]) -> CooBatch:
        """Read a range of `cut_entries`, with the source's numbers of rows and columns."""
        block = read_entries(self.stored, entries)
        rows, cols = list_rows(block).astype(index_dtype(self.stored.info.shape[0])), block.indices
        if self.order is not None:
            rows, cols = self.order[rows], self.order[cols]
        return (
            CooBatch(cols, rows, block.data) if self.stored.info.kind == "graph" else CooBatch(rows, cols, block.data)
        )

    def map(self, work: Callable[[CooBatch], T], threads: int, report: Progress) -> Iterator[T]:
        """Yield the results of a function for all entries, range by range in the order of the store.

        Parameters
        ----------
        threads : number of threads that read and apply the function
        report : called with ("export", entries done, total entries)
        """
        done, total = 0, self.stored.info.nnz
        report("export", 0, total)

        def make(entries: tuple[int, np.ndarray]) -> tuple[int, T]:
            return int(entries[1][-1]), work(self.read(entries))

        with ThreadPoolExecutor(threads, "mgspmv-export") as pool:
            for done, made in prefetch_map(pool, make, cut_entries(self.stored, threads), threads):
                yield made
                report("export", done, total)


def find_repeated(stored: StoredMatrix) -> tuple[int, int] | None:
    """Return row and column, in the source, of the first duplicate entry; None if there is none."""
    if stored.info.duplicates != "keep":
        return None
    source, last = SourceEntries(stored), (np.zeros(0, np.int64), np.zeros(0, np.int64))
    for entries in cut_entries(stored, 1):
        batch = source.read(entries)
        rows, cols = np.concatenate([last[0], batch.rows]), np.concatenate([last[1], batch.cols])
        repeated = np.flatnonzero((rows[1:] == rows[:-1]) & (cols[1:] == cols[:-1]))
        if len(repeated):
            return int(rows[repeated[0]]), int(cols[repeated[0]])
        last = rows[-1:], cols[-1:]
    return None
