"""Renumbering of rows and columns: found, applied, undone, and taken care of in products.

    stored[i, j] = A[order[i], order[j]]
    A @ x        = restore(stored @ permute(x, order), order)

Whoever meets a user's vector permutes it, and restores the result; what works on blocks in between knows of no order.
An order does not depend on the number of workers.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numba import njit

from mgspmv.errors import CapacityError, ShapeError
from mgspmv.model import PARTS, CsrArrays, MatrixInfo, default_threads, index_dtype
from mgspmv.store import CHUNK_ELEMENTS

PARTS_PER_THREAD = 8
_PIECE = 1 << 20
"""Elements that NumPy takes at a time: it makes a copy of the numbers as int64."""


# --- orders ----------------------------------------------------------------------------------------------------------


def find_order(matrix: CsrArrays, method: str) -> np.ndarray:
    """The order of the rows and columns of a square matrix that a method of `METHODS` gives, like `indices`, (n,)."""
    return METHODS[method](matrix)


def _find_rcm(matrix: CsrArrays) -> np.ndarray:
    """Reverse Cuthill-McKee order of the pattern of A + A^T, which makes the bandwidth small.

    By SciPy. Deterministic on one machine; ties of degree may be broken otherwise on another. A vertex of d neighbours
    takes up to d^2 steps, so it suits meshes and roads rather than graphs with hubs of a million.

    Source: Cuthill and McKee, Reducing the bandwidth of sparse symmetric matrices (1969).
    """
    if not matrix.shape[0]:
        return matrix.indices[:0]
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    dtype = index_dtype(len(matrix.indices))
    indices, indptr = (a.astype(dtype, copy=False) for a in (matrix.indices, matrix.indptr))
    # Of numbers, some in A + A^T would be 0 (skew symmetry, overflow), which SciPy leaves out.
    pattern = csr_array((np.ones(len(indices), bool), indices, indptr), shape=matrix.shape)
    return np.ascontiguousarray(reverse_cuthill_mckee(pattern), matrix.indices.dtype)


def _sort_by_degree(matrix: CsrArrays) -> np.ndarray:
    """Rows by their number of entries, the longest first; those of one length stay in the order of the source.

    Rows of one length become neighbours, and columns that many rows read do where vertices of many in-edges have many
    out-edges.
    """
    lengths = np.diff(matrix.indptr)
    np.negative(lengths, out=lengths)
    return np.argsort(lengths, kind="stable").astype(matrix.indices.dtype, copy=False)


def _deal(matrix: CsrArrays) -> np.ndarray:
    """Rows by degree, dealt one by one to `PARTS` parts, which follow each other.

    Every run of parts has rows of all lengths, in much the same shares; two parts differ by at most the longest row in
    entries.
    """
    by_degree = _sort_by_degree(matrix)
    return np.concatenate([by_degree[part::PARTS] for part in range(PARTS)])


METHODS: dict[str, Callable[[CsrArrays], np.ndarray]] = {
    "rcm": _find_rcm,
    "degree": _sort_by_degree,
    "dealt": _deal,
}
"""What finds an order, by name; `OrderMethod` has these and `none`."""


def measure_bandwidth(indptr: np.ndarray, indices: np.ndarray) -> int:
    """Largest |i - j| of the entries (i, j), 0 where there are none."""
    return int(_measure_bandwidth(indptr, indices))


def invert(order: np.ndarray) -> np.ndarray:
    """The place of each number in an order: invert(order)[order[i]] = i."""
    places = np.empty_like(order)
    for k in range(0, len(order), _PIECE):
        piece = order[k : k + _PIECE]
        places[piece] = np.arange(k, k + len(piece))
    return places


# --- vectors ---------------------------------------------------------------------------------------------------------


def permute(x: Any, order: np.ndarray | None) -> Any:
    """A vector of the source's order in that of the store: x[order]; x itself where there is no order.

    Parameters
    ----------
    x : (n,) or (n, k) array of NumPy or dask
    order : (n,) source's number of each stored row
    """
    if order is None:
        return x
    if not isinstance(x, np.ndarray):
        return x[order]
    out = np.empty(x.shape, x.dtype)
    for k in range(0, len(order), _PIECE):
        out[k : k + _PIECE] = x[order[k : k + _PIECE]]
    return out


def restore(y: Any, order: np.ndarray | None) -> Any:
    """A vector of the store's order in that of the source: restore(permute(x, order), order) is x."""
    if order is None:
        return y
    if not isinstance(y, np.ndarray):
        return y[invert(order)]
    out = np.empty(y.shape, y.dtype)
    for k in range(0, len(order), _PIECE):
        out[order[k : k + _PIECE]] = y[k : k + _PIECE]
    return out


# --- matrices --------------------------------------------------------------------------------------------------------


def change_order(
    matrix: CsrArrays, method: str, report: Callable[[str, int, int | None], None]
) -> tuple[CsrArrays, dict[str, Any]]:
    """Renumber a square matrix by a method, or as its source for `none`; the order that it has does not matter.

    Memory: two matrices, and a third where the caller keeps one that has an order already.

    Returns
    -------
    The matrix, and what provenance says of it: the method, and the bandwidth before and after.
    """
    report("order", 0, None)
    before = measure_bandwidth(matrix.indptr, matrix.indices)
    matrix = undo_order(matrix)
    if method != "none":
        matrix = apply_order(matrix, find_order(matrix, method), method)
    after = measure_bandwidth(matrix.indptr, matrix.indices)
    return matrix, {"method": method, "bandwidth_before": before, "bandwidth_after": after}


def apply_order(matrix: CsrArrays, order: np.ndarray, method: str, threads: int | None = None) -> CsrArrays:
    """Renumber rows and columns of a square matrix that is in the order of its source; memory: both of them."""
    return replace(_renumber(matrix, order, threads), order=order, order_method=method)


def undo_order(matrix: CsrArrays, threads: int | None = None) -> CsrArrays:
    """The matrix in the order of its source, to the bit what it was before; memory: both of them."""
    if matrix.order is None:
        return matrix
    return replace(_renumber(matrix, invert(matrix.order), threads), order=None, order_method=None)


def _renumber(matrix: CsrArrays, order: np.ndarray, threads: int | None) -> CsrArrays:
    indptr, indices, data = renumber_csr(matrix.indptr, matrix.indices, matrix.data, order, threads)
    degree, weight = (None if v is None else permute(v, order) for v in (matrix.out_degree, matrix.out_weight))
    return replace(matrix, indptr=indptr, indices=indices, data=data, out_degree=degree, out_weight=weight)


def renumber_csr(
    indptr: np.ndarray, indices: np.ndarray, data: np.ndarray | None, order: np.ndarray, threads: int | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """The matrix whose entry (i, j) is entry (order[i], order[j]) of a square one, with sorted rows.

    Entries at the same place keep their order. A row is made by one thread, so threads change nothing.
    """
    threads = threads or default_threads()
    out_ptr = np.zeros_like(indptr)
    np.cumsum(permute(np.diff(indptr), order), out=out_ptr[1:])
    out_indices, out_data = np.empty_like(indices), None if data is None else np.empty_like(data)
    arrays = (indptr, indices, data, order, invert(order), out_ptr, out_indices, out_data)
    shares = np.linspace(0, len(indices), threads * PARTS_PER_THREAD + 1).astype(np.int64)
    bounds = [0, *np.searchsorted(out_ptr, shares[1:-1]).tolist(), len(order)]

    def renumber(rows: tuple[int, int]) -> None:
        _renumber_rows(*arrays, *rows)

    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(renumber, pairwise(bounds)):
            pass
    return out_ptr, out_indices, out_data


@njit(nogil=True, cache=True)
def _sort(columns):
    return np.argsort(columns, kind="mergesort")  # stable, for entries at the same place


@njit(nogil=True, cache=True)
def _renumber_rows(indptr, indices, data, order, places, out_ptr, out_indices, out_data, start, stop):
    for i in range(start, stop):
        first, last = indptr[order[i]], indptr[order[i] + 1]
        columns = places[indices[first:last]]
        by_column = _sort(columns)
        for k in range(last - first):
            out_indices[out_ptr[i] + k] = columns[by_column[k]]
            if data is not None:
                out_data[out_ptr[i] + k] = data[first + by_column[k]]


@njit(nogil=True, cache=True)
def _measure_bandwidth(indptr, indices):
    widest = 0
    for i in range(len(indptr) - 1):
        for k in range(indptr[i], indptr[i + 1]):
            widest = max(widest, abs(i - indices[k]))
    return widest


# --- what can be done ------------------------------------------------------------------------------------------------


def check_square(shape: tuple[int, int], name: str) -> None:
    """
    Raises
    ------
    ShapeError : rows and columns are not the same; says so of the matrix of that name
    """
    n_rows, n_cols = shape
    if n_rows != n_cols:
        raise ShapeError(
            f"an order is one of rows and columns alike, so the matrix must be square; {name} has {n_rows} rows "
            f"and {n_cols} columns: use it in the order of its source"
        )


def check_room(need_bytes: int, free_bytes: int, name: str) -> None:
    """
    Raises
    ------
    CapacityError : renumbering the matrix of that name takes more than the memory that is free
    """
    if need_bytes > free_bytes:
        raise CapacityError(
            f"reordering {name} needs {need_bytes / 1e9:.3g} GB of host memory, of which {free_bytes / 1e9:.3g} GB are "
            "free; reorder it on a larger machine, or use it in the order that it has"
        )


def estimate_bytes(matrix: MatrixInfo | CsrArrays, method: str, has_transpose: bool) -> int:
    """Most bytes held while renumbering: the matrix and beside it, one after the other, what finding the order takes,
    the renumbered matrix, and its transpose and chunks on their way to the store.

    Finding `rcm` takes A^T and, of twice the entries, A + A^T, both as columns and truth values, and tables of n; the
    orders by degree take tables of n alone.
    """
    n, index = matrix.shape[0], np.dtype(matrix.index_dtype).itemsize
    held = matrix.nbytes + (index if matrix.order is None else 0) * n
    item = max(index, 0 if matrix.dtype is None else np.dtype(matrix.dtype).itemsize)
    in_flight = default_threads() * CHUNK_ELEMENTS
    written = 3 * max(item * min(in_flight, matrix.nnz), 8 * min(in_flight, n))
    wide = index_dtype(2 * matrix.nnz).itemsize
    finding = 0 if method == "none" else 40 * n
    if method == "rcm":
        finding += matrix.nnz * (1 + 3 * (wide + 1) + (wide if wide > index else 0))
    return held + max(finding, held + 2 * index * n, (held if has_transpose else 0) + written)
