"""Sums of the rows of a stored graph, which are the columns of its transpose: the out-weights of the reversed graph."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np

from mgspmv.ingest.ahead import map_ahead
from mgspmv.ingest.build import ColumnSums
from mgspmv.ingest.stored import cut_entries
from mgspmv.model import default_threads
from mgspmv.store.read import StoredMatrix


def sum_rows(stored: StoredMatrix, start: int, stop: int, threads: int | None = None) -> np.ndarray:
    """The sum of the values of each of the rows `start` .. `stop`, from the values alone, some at a time.

    Each row is added up in its order, as the ingest of the reversed graph adds up that column: to the same bits.

    Parameters
    ----------
    stored : of a graph with values
    threads : that read; one adds up

    Returns
    -------
    (stop - start,) float64

    Raises
    ------
    StoreError : as for `StoredMatrix.read_array` and `read_pointers`
    """
    info, threads = stored.info, threads or default_threads()
    sums = ColumnSums(info.kind, info.url, np.dtype(info.dtype), start, stop)
    with ThreadPoolExecutor(threads, "mgspmv-sum") as pool:
        ranges = cut_entries(stored, threads, start, stop)
        for rows, values in map_ahead(pool, partial(_read_values, stored), ranges, threads):
            sums.add(rows, values)
    weight = sums.finish()[1]
    assert weight is not None
    return weight


def _read_values(stored: StoredMatrix, entries: tuple[int, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The row and the value of each entry of one of the ranges that `cut_entries` gives."""
    row, bounds = entries
    rows = np.repeat(np.arange(row, row + len(bounds) - 1), np.diff(bounds))
    return rows, stored.read_array("data", int(bounds[0]), int(bounds[-1]), threads=1)
