"""Rows and ids of a stored matrix, read in pieces to make another store from them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any

import numpy as np

from mgspmv.heartbeat import prefetch_map
from mgspmv.ingest.source import Layout, Source
from mgspmv.lookup import open_ids
from mgspmv.model import CooBatch, CsrBlock, Duplicates, Kind, MatrixInfo, default_threads, index_dtype
from mgspmv.order import list_rows
from mgspmv.store.digests import CHUNK_ELEMENTS
from mgspmv.store.stored_matrix import StoredMatrix

Bounds = tuple[float, float]
"""Least and greatest value to keep."""

PIECE_ENTRIES = CHUNK_ELEMENTS
"""Entries per read: whole chunks, so that no chunk is read twice."""
PIECE_ROWS = 1 << 22
"""Row pointers per read."""


@dataclass(frozen=True, eq=False)
class RowNumbers:
    """Numbering of the rows and columns of a store that is made from another one."""

    shape: tuple[int, int]
    vertex_ids: Any
    """Ascending ids, an array or an object that has a dtype and a length and is sliced like one; None for 0..n-1."""
    order: np.ndarray | None
    """Order of the rows as stored; None if they are in the order of the source."""
    places: np.ndarray | None
    """(n_old_rows,) ascending new number of each stored row and column, -1 if dropped; None if all are kept."""


@dataclass(frozen=True, eq=False)
class EdgeSet:
    """Positions in a stored matrix whose entries are kept or removed."""

    rows: np.ndarray
    """(k,) stored numbers, ascending."""
    cols: np.ndarray
    """(k,) stored numbers, ascending in each row; positions are unique."""
    are_staying: bool
    """True if only these entries are kept, False if only these are removed."""
    is_found: np.ndarray
    """(k,) bool: whether an entry at the position was found in the blocks so far."""

    @classmethod
    def of(cls, rows: np.ndarray, cols: np.ndarray, *, are_staying: bool) -> EdgeSet:
        """Make the set from positions in any order, possibly with duplicates."""
        by_place = np.lexsort((cols, rows))
        rows, cols = rows[by_place], cols[by_place]
        is_new = np.ones(len(rows), bool)
        np.not_equal(rows[1:], rows[:-1], out=is_new[1:])
        is_new[1:] |= cols[1:] != cols[:-1]
        if not is_new.all():
            rows, cols = rows[is_new], cols[is_new]
        return cls(rows, cols, are_staying, np.zeros(len(rows), bool))

    def between(self, first_row: int, last_row: int) -> EdgeSet:
        """Return the subset of rows `first_row` .. `last_row` - 1; both sets share `is_found`."""
        own = slice(*(int(np.searchsorted(self.rows, row)) for row in (first_row, last_row)))
        return replace(self, rows=self.rows[own], cols=self.cols[own], is_found=self.is_found[own])

    def select(self, block: CsrBlock) -> np.ndarray:
        """Return which entries of a block are kept, (nnz,) bool; thread-safe."""
        width = max(block.n_cols, 1 + int(self.cols.max(initial=0)))  # columns may be those of unknown vertices
        keys = (list_rows(block) - block.row_offset) * width + block.indices
        own = (self.rows.astype(np.int64) - block.row_offset) * width + self.cols
        first, last = (np.searchsorted(keys, own, side) for side in ("left", "right"))
        is_found = first < last
        self.is_found[is_found] = True
        steps = np.zeros(block.nnz + 1, np.int8)
        steps[first[is_found]] += 1
        steps[last[is_found]] -= 1
        is_listed: np.ndarray = np.cumsum(steps[:-1], dtype=np.int8) > 0
        return is_listed if self.are_staying else ~is_listed


class StoredRows:
    """Stored matrix, or the kept entries of it, as `SortedRows`: its rows in stored order.

    Parameters
    ----------
    threads : number of threads that read
    numbers : numbering of the rows; None for the current one
    bounds : bounds of the values to keep; None for any
    edges : edges to keep or to drop; None to keep all

    Raises
    ------
    StoreDamagedError : as in `StoredMatrix.read_order`
    """

    def __init__(
        self,
        stored: StoredMatrix,
        threads: int,
        numbers: RowNumbers | None = None,
        bounds: Bounds | None = None,
        edges: EdgeSet | None = None,
    ) -> None:
        info = stored.info
        if numbers is None:
            numbers = RowNumbers(info.shape, open_ids(stored), stored.read_order(threads), None)
        self.kind: Kind = info.kind
        self.rule: Duplicates = info.duplicates
        self.name = info.url
        self.dtype = None if info.dtype is None else np.dtype(info.dtype)
        self.shape, self.vertex_ids, self.order = numbers.shape, numbers.vertex_ids, numbers.order
        self._stored, self._threads, self._places = stored, threads, numbers.places
        self._bounds, self._edges = bounds, edges

    @property
    def most_entries(self) -> int:
        return self._stored.info.nnz

    def count_rows(self) -> np.ndarray:
        """Return the (n_rows,) int64 entries per row."""
        lengths: np.ndarray = np.diff(self._stored.read_pointers(0, self.shape[0], self._threads))
        return lengths

    def blocks(self) -> Iterator[CsrBlock]:
        """Yield all entries, a chunk at a time; rows that are missing between blocks are empty.

        Raises
        ------
        StoreError : the entries cannot be read
        """
        with ThreadPoolExecutor(self._threads, "mgspmv-stored") as pool:
            for block in prefetch_map(pool, self._read, cut_entries(self._stored, self._threads), self._threads):
                if block is not None:
                    yield block

    def close(self) -> None:
        """Do nothing: unlike `SortedSource`, this holds no entries."""

    def _read(self, entries: tuple[int, np.ndarray]) -> CsrBlock | None:
        """Read the kept entries of one of the ranges that `cut_entries` yields; return None if there are none."""
        if self._places is None and self._bounds is None and self._edges is None:
            return read_entries(self._stored, entries)
        row, bounds = entries
        places = self._places
        own = np.arange(row, row + len(bounds) - 1) if places is None else places[row : row + len(bounds) - 1]
        is_kept = own >= 0
        edges = None if self._edges is None else self._edges.between(row, row + len(own))
        if not is_kept.any() or (edges is not None and edges.are_staying and not len(edges.rows)):
            return None
        block = read_entries(self._stored, entries)
        rows = list_rows(block) - row
        columns, stays = block.indices if places is None else places[block.indices], is_kept[rows]
        stays &= columns >= 0
        if self._bounds is not None:
            stays &= (block.data >= self._bounds[0]) & (block.data <= self._bounds[1])  # type: ignore[operator]
        if edges is not None:
            stays &= edges.select(block)
        if not stays.any():
            return None
        lengths = np.bincount(rows[stays], minlength=len(own))[is_kept]
        kept = columns[stays].astype(index_dtype(self.shape[1])), None if block.data is None else block.data[stays]
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        return CsrBlock(int(own[np.argmax(is_kept)]), self.shape[1], ends, *kept)


class StoreSource(Source):
    """Current version of a matrix store as a `Source`: its entries and ids, numbered as in the source of the store.

    Parameters
    ----------
    threads : number of threads that read; default one per processor
    """

    def __init__(self, stored: StoredMatrix, threads: int | None = None) -> None:
        self.default_kind: Kind = stored.info.kind
        self.name = stored.info.url
        self._info, self._rows = stored.info, StoredRows(stored, threads or default_threads())

    def batches(self) -> Iterator[CooBatch]:
        """Yield all entries in row order, in at least one batch; the arc i -> j of a graph as (i, j).

        Raises
        ------
        StoreError : the entries cannot be read
        """
        nothing, dtype = np.zeros(0, index_dtype(self._info.shape[1])), self._rows.dtype
        yield CooBatch(nothing, nothing, None if dtype is None else np.zeros(0, dtype))
        for block in self._rows.blocks():
            yield list_entries(block, self._info, self._rows.order)

    def layout(self) -> Layout:
        """Return the shape and ids, with the provenance of the store."""
        info = self._info
        made = {"digest": info.digest, "version": info.version, "provenance": info.provenance}
        provenance = {"name": self.name, "format": "mgspmv", **made}
        return Layout(info.shape, self._rows.vertex_ids, provenance=provenance)


def cut_entries(
    stored: StoredMatrix, threads: int, first_row: int = 0, last_row: int | None = None
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield ranges of at most `PIECE_ENTRIES` entries.

    Parameters
    ----------
    threads : number of threads that read row pointers
    first_row, last_row : begin and end of the rows; default all

    Yields
    ------
    The first row of a range, and the pointers of its rows, clipped to the range.
    """
    last_row = stored.info.shape[0] if last_row is None else last_row
    for first in range(first_row, last_row, PIECE_ROWS):
        pointers = stored.read_pointers(first, min(first + PIECE_ROWS, last_row), threads)
        start, stop = int(pointers[0]), int(pointers[-1])
        cuts = range((start // PIECE_ENTRIES + 1) * PIECE_ENTRIES, stop, PIECE_ENTRIES)
        for a, b in pairwise(chain((start,), cuts, (stop,))):
            if a < b:
                row = int(np.searchsorted(pointers, a, side="right")) - 1
                end = int(np.searchsorted(pointers, b, side="left"))
                yield first + row, np.clip(pointers[row : end + 1], a, b)


def list_entries(block: CsrBlock, info: MatrixInfo, order: np.ndarray | None) -> CooBatch:
    """Return entries of a stored matrix with the source's numbers of rows and columns; the arc i -> j of a graph, which
    is stored at (j, i), as (i, j).

    Parameters
    ----------
    order : source's number of each row and column; None if they are in the order of the source
    """
    rows, cols = list_rows(block).astype(index_dtype(info.shape[0])), block.indices
    if order is not None:
        rows, cols = order[rows], order[cols]
    return CooBatch(cols, rows, block.data) if info.kind == "graph" else CooBatch(rows, cols, block.data)


def read_entries(stored: StoredMatrix, entries: tuple[int, np.ndarray]) -> CsrBlock:
    """Read one of the ranges that `cut_entries` yields, whose first and last row may be partial."""
    row, bounds = entries
    start, stop = int(bounds[0]), int(bounds[-1])
    indices = stored.read_array("indices", start, stop, threads=1)
    values = None if stored.info.is_pattern else stored.read_array("data", start, stop, threads=1)
    return CsrBlock(row, stored.info.shape[1], bounds - start, indices, values)
