"""The entries of a stored matrix as its source had them, some at a time.

    indptr --cut-->  spans, which are pieces of the chunks of indices and data  --read-->  entries (i, j[, v])

Entry (i, j) of a graph is the arc i -> j, which is stored at (j, i); rows and columns of a store that is renumbered get
the source's numbers again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from mgspmv.errors import StoreDamagedError
from mgspmv.ingest.ahead import map_ahead
from mgspmv.model import CooBatch, index_dtype
from mgspmv.store.chunks import CHUNK_ELEMENTS
from mgspmv.store.read import StoredMatrix

POINTERS = 4 * CHUNK_ELEMENTS
"""Row pointers that are read at a time."""

T = TypeVar("T")


@dataclass(frozen=True)
class Span:
    """Stored entries that follow each other, at most a chunk of them."""

    first_row: int
    pointers: np.ndarray
    """int64, one more than it has rows: where each of them begins and the last ends, of what is in the span."""

    @property
    def start(self) -> int:
        return int(self.pointers[0])

    @property
    def stop(self) -> int:
        return int(self.pointers[-1])

    def find_rows(self, n_rows: int) -> np.ndarray:
        """The stored row of each entry, in a matrix of so many."""
        rows = np.arange(self.first_row, self.first_row + len(self.pointers) - 1, dtype=index_dtype(n_rows))
        return np.repeat(rows, np.diff(self.pointers))


def read_pointers(stored: StoredMatrix) -> Iterator[np.ndarray]:
    """The row pointers piece by piece, each piece with the last of the one before as its first.

    Raises
    ------
    StoreDamagedError : they do not ascend from 0 to the number of entries; as for `StoredMatrix.read_array`
    """
    n, last = stored.info.shape[0] + 1, np.zeros(0, np.int64)
    for start in range(0, n, POINTERS):
        piece = np.concatenate([last, stored.read_array("indptr", start, min(start + POINTERS, n))])
        if start and piece[1] < piece[0]:
            raise StoreDamagedError(
                f"{stored.info.url}: indptr does not ascend at element {start}; ingest again or restore a copy"
            )
        yield piece
        last = piece[-1:]


def cut_spans(stored: StoredMatrix) -> Iterator[Span]:
    """All entries in spans that end where chunks end, so that few chunks are read twice; errors as `read_pointers`."""
    first_row = 0
    for pointers in read_pointers(stored):
        start, stop = int(pointers[0]), int(pointers[-1])
        while start < stop:
            end = min(stop, (start // CHUNK_ELEMENTS + 1) * CHUNK_ELEMENTS)
            first = int(np.searchsorted(pointers, start, side="right")) - 1
            last = int(np.searchsorted(pointers, end, side="left"))
            yield Span(first_row + first, np.clip(pointers[first : last + 1], start, end))
            start = end
        first_row += len(pointers) - 1


class SourceEntries:
    """Reads spans of a stored matrix as entries of its source; any number of threads at once."""

    def __init__(self, stored: StoredMatrix) -> None:
        self.stored = stored
        self.order = stored.read_order()
        """The source's number of each row and column; None where they are in the order of the source."""

    def read(self, span: Span) -> CooBatch:
        """The entries of a span: the numbers that rows and columns have in the source."""
        batch = self.read_stored(span)
        if self.stored.info.kind == "graph":
            return CooBatch(batch.cols, batch.rows, batch.values)
        return batch

    def read_stored(self, span: Span) -> CooBatch:
        """The same, but the arc i -> j of a graph as the entry (j, i)."""
        info = self.stored.info
        rows = span.find_rows(info.shape[0])
        cols = self.stored.read_array("indices", span.start, span.stop, threads=1)
        values = None if info.is_pattern else self.stored.read_array("data", span.start, span.stop, threads=1)
        if self.order is not None:
            rows, cols = self.order[rows], self.order[cols]
        return CooBatch(rows, cols, values)

    def map(
        self, work: Callable[[CooBatch], T], threads: int, report: Callable[[str, int, int | None], None]
    ) -> Iterator[T]:
        """What a function makes of all entries, span by span in the order of the store.

        Parameters
        ----------
        threads : that read and work
        report : called with ("export", entries done, entries in all)
        """
        done, total = 0, self.stored.info.nnz
        report("export", 0, total)

        def make(span: Span) -> tuple[int, T]:
            return span.stop, work(self.read(span))

        with ThreadPoolExecutor(threads, "mgspmv-export") as pool:
            for done, made in map_ahead(pool, make, cut_spans(self.stored), threads):
                yield made
                report("export", done, total)


def find_repeated(stored: StoredMatrix) -> tuple[int, int] | None:
    """Row and column of the source's matrix at which there is more than one entry; None where there is none."""
    if stored.info.duplicates != "keep":
        return None
    entries, last = SourceEntries(stored), (np.zeros(0, np.int64), np.zeros(0, np.int64))
    for span in cut_spans(stored):
        batch = entries.read(span)
        rows, cols = np.concatenate([last[0], batch.rows]), np.concatenate([last[1], batch.cols])
        repeated = np.flatnonzero((rows[1:] == rows[:-1]) & (cols[1:] == cols[:-1]))
        if len(repeated):
            return int(rows[repeated[0]]), int(cols[repeated[0]])
        last = rows[-1:], cols[-1:]
    return None
