"""Reordering of the rows and columns of a matrix that need not fit into memory.

    rows  --count, for `rcm` hold the columns-->  order  -->  the new number of each row
    rows  --renumber-->  entries  --sort-->  rows in that order

Tables of the rows, and for `rcm` the pattern, must fit in memory. Entries at the same place keep their order.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from mgspmv.errors import CapacityError
from mgspmv.ingest.entries import SortedRows, SortedSource
from mgspmv.ingest.external_sort import EntrySorter
from mgspmv.ingest.prefetch import prefetch_map
from mgspmv.ingest.scratch import MemoryBudget
from mgspmv.ingest.source import Layout
from mgspmv.ingest.stored import StoredRows
from mgspmv.model import Progress, index_dtype
from mgspmv.order import METHODS, WITH_PATTERN, estimate_bytes, invert, renumber_entries, restore


@contextlib.contextmanager
def reorder_rows(
    matrix: SortedRows, method: str, report: Progress, room: MemoryBudget
) -> Iterator[tuple[SortedSource, dict[str, Any]]]:
    """Reorder a square matrix by a method, or restore the order of its source for `none`, from any current order.

    Parameters
    ----------
    matrix : matrix to reorder; it is closed
    report : called with (phase, entries done, total entries or None); phases `order` and `renumber`
    room : memory, threads and folder for the tables of its rows and for its entries

    Yields
    ------
    The matrix, and the provenance of its order: the method, and the bandwidth before and after.

    Raises
    ------
    CapacityError : the tables, or the pattern, do not fit into memory
    SourceError, StoreError : as in its `blocks`
    """
    n = matrix.shape[0]
    if (need := estimate_bytes(method, n, matrix.most_entries)) > room.memory:
        raise CapacityError(
            f"reordering {matrix.name} needs {need / 1e9:.3g} GB of host memory, but only {room.memory / 1e9:.3g} GB "
            "may be used; raise memory=, or use the matrix in its current order"
        )
    order = None if method == "none" else _find_order(matrix, method, report)
    places = np.arange(n, dtype=index_dtype(n)) if order is None else invert(order)
    places = places if matrix.order is None else places[matrix.order]
    with EntrySorter(room.memory - 2 * places.nbytes, room.threads, room.folder) as sorter:
        widths = _renumber(matrix, places, sorter, report, room.threads)
        del places
        matrix.close()
        made = {"method": method, "bandwidth_before": widths[0], "bandwidth_after": widths[1]}
        layout = Layout(matrix.shape, matrix.vertex_ids)
        yield SortedSource(matrix.kind, matrix.dtype, matrix.rule, layout, matrix.name, sorter, order=order), made


def _find_order(matrix: SortedRows, method: str, report: Progress) -> np.ndarray:
    if method in WITH_PATTERN:
        lengths, indices = _read_pattern(matrix, report)
        report("order", 0, None)
        return METHODS[method](lengths, indices)
    lengths = matrix.count_rows() if isinstance(matrix, StoredRows) else _count_rows(matrix, report)
    lengths = restore(lengths, matrix.order)
    report("order", 0, None)
    return METHODS[method](lengths, None)


def _count_rows(matrix: SortedRows, report: Progress, columns: np.ndarray | None = None) -> np.ndarray:
    """Return the (n_rows,) int64 entries per row; optionally write all columns to the array `columns`."""
    lengths, n_read = np.zeros(matrix.shape[0], np.int64), 0
    for block in matrix.blocks():
        lengths[block.row_offset : block.row_offset + block.n_rows] += np.diff(block.indptr)
        if columns is not None:
            columns[n_read : n_read + block.nnz] = block.indices
        n_read += block.nnz
        report("order", n_read, matrix.most_entries)
    return lengths


def _read_pattern(matrix: SortedRows, report: Progress) -> tuple[np.ndarray, np.ndarray]:
    """Return the entries per row and the columns of all entries, in the order of the source."""
    n = matrix.shape[0]
    indices = np.empty(matrix.most_entries, index_dtype(n))
    lengths = _count_rows(matrix, report, indices)
    indices = indices[: int(lengths.sum())]
    if matrix.order is None:
        return lengths, indices
    indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    from scipy.sparse import csr_array

    entries = np.ones(len(indices), bool), matrix.order[indices], indptr
    pattern = csr_array(entries, shape=(n, n))[invert(matrix.order)]
    pattern.sort_indices()
    return np.diff(pattern.indptr).astype(np.int64), pattern.indices


def _renumber(
    matrix: SortedRows, places: np.ndarray, sorter: EntrySorter, report: Progress, threads: int
) -> tuple[int, int]:
    """Add all entries with their new numbers to a sorter; return the bandwidth before and after."""
    before = after = n_done = 0
    work = partial(renumber_entries, places=places)
    with ThreadPoolExecutor(threads, "mgspmv-renumber") as pool:
        for batch, *widths in prefetch_map(pool, work, matrix.blocks(), threads):
            sorter.add(batch)
            before, after = max(before, widths[0]), max(after, widths[1])
            n_done += len(batch.rows)
            report("renumber", n_done, matrix.most_entries)
    return before, after
