"""Renumbering of rows and columns: finding orders, applying and undoing them, and products with them.

    stored[i, j] = A[order[i], order[j]]
    A @ x        = restore(stored @ permute(x, order), order)

Functions that take a user's vector permute it, and restore the result; block-level code is unaware of the order.
An order does not depend on the number of workers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mgspmv.errors import ShapeError
from mgspmv.model import CooBatch, CsrBlock, index_dtype

PARTS = 256
"""Number of parts among which the rows of a store of order `dealt` are distributed, for any number of workers; each
worker takes consecutive parts."""
_PIECE = 1 << 20
"""Number of elements per NumPy call, which copies the indices as int64."""
ROW_BYTES = 32
"""Most bytes per row while its position is computed: its length, the sort buffers, and its old and new index."""


# --- orders ----------------------------------------------------------------------------------------------------------


def _find_rcm(lengths: np.ndarray, indices: np.ndarray | None) -> np.ndarray:
    """Return the reverse Cuthill-McKee order of the pattern of A + A^T, which makes the bandwidth small.

    By SciPy. Deterministic on one machine; ties of degree may be broken otherwise on another. A vertex of d neighbors
    takes up to d^2 steps, so it suits meshes and roads rather than graphs with hubs of a million.

    Source: Cuthill and McKee, Reducing the bandwidth of sparse symmetric matrices (1969).
    """
    assert indices is not None
    n = len(lengths)
    if not n:
        return np.zeros(0, index_dtype(n))
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    dtype = index_dtype(len(indices))
    indptr = np.zeros(n + 1, dtype)
    np.cumsum(lengths, out=indptr[1:])
    # Not values: some would be 0 in A + A^T (skew symmetry, overflow), and SciPy drops those.
    ones = np.ones(len(indices), bool)
    pattern = csr_array((ones, indices.astype(dtype, copy=False), indptr), shape=(n, n))
    return np.ascontiguousarray(reverse_cuthill_mckee(pattern), index_dtype(n))


def _sort_by_degree(lengths: np.ndarray, indices: np.ndarray | None) -> np.ndarray:
    """Order rows by their number of entries, the longest first; ties keep the order of the source.

    Rows of one length become adjacent, and so do columns that many rows read, if vertices with many in-edges have many
    out-edges.
    """
    np.negative(lengths, out=lengths)
    return np.argsort(lengths, kind="stable").astype(index_dtype(len(lengths)), copy=False)


def part_bounds(n_rows: int) -> np.ndarray:
    """Return (PARTS + 1,) int64: the first row of each part of rows dealt to parts, and the end of the last one."""
    n_in_each = (n_rows + PARTS - 1 - np.arange(PARTS, dtype=np.int64)) // PARTS
    return np.concatenate([[0], np.cumsum(n_in_each)])


def _deal(lengths: np.ndarray, indices: np.ndarray | None) -> np.ndarray:
    """Order rows by degree, dealt round-robin to `PARTS` contiguous parts.

    Every run of parts has rows of all lengths, in nearly equal shares; two parts differ by at most the longest row in
    entries.
    """
    by_degree = _sort_by_degree(lengths, indices)
    return np.concatenate([by_degree[part::PARTS] for part in range(PARTS)])


METHODS: dict[str, Callable[[np.ndarray, np.ndarray | None], np.ndarray]] = {
    "rcm": _find_rcm,
    "degree": _sort_by_degree,
    "dealt": _deal,
}
"""Functions that compute the order of rows and columns of a square matrix, (n,) of `index_dtype`, by name;
`OrderMethod` has these and `none`. Arguments: entries per row, (n,) int64, in the order of the source, which may be
overwritten; and for `WITH_PATTERN` the columns of all entries, (nnz,), row by row."""

WITH_PATTERN = ("rcm",)
"""Methods that need the columns of all entries; the others need only the lengths of rows."""


def estimate_bytes(method: str, n: int, nnz: int) -> int:
    """Return the most bytes held while the order of n rows with nnz entries is found, and rows are looked up in it.

    Finding `rcm` takes the columns of the entries; A^T and, of twice the entries, A + A^T, both as columns and truth
    values; and tables of n. The orders by degree take tables of n alone.
    """
    if method not in WITH_PATTERN:
        return ROW_BYTES * n
    index, wide = index_dtype(n).itemsize, index_dtype(2 * nnz).itemsize
    return ROW_BYTES * n + nnz * (index + 1 + 3 * (wide + 1) + (wide if wide > index else 0))


def invert(order: np.ndarray) -> np.ndarray:
    """Return the position of each number in an order: invert(order)[order[i]] = i."""
    places = np.empty_like(order)
    for k in range(0, len(order), _PIECE):
        piece = order[k : k + _PIECE]
        places[piece] = np.arange(k, k + len(piece))
    return places


# --- vectors ---------------------------------------------------------------------------------------------------------


def permute(x: Any, order: np.ndarray | None) -> Any:
    """Return a vector, given in the source's order, in the store's: x[order]; x itself if order is None.

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
    """Return a vector, given in the store's order, in the source's: restore(permute(x, order), order) is x."""
    if order is None:
        return y
    if not isinstance(y, np.ndarray):
        return y[invert(order)]
    out = np.empty(y.shape, y.dtype)
    for k in range(0, len(order), _PIECE):
        out[order[k : k + _PIECE]] = y[k : k + _PIECE]
    return out


# --- matrices --------------------------------------------------------------------------------------------------------


def renumber_entries(
    block: CsrBlock, places: np.ndarray | None, *, measures: bool = False
) -> tuple[CooBatch, int, int]:
    """Renumber the rows and columns of the entries of a block.

    Parameters
    ----------
    places : (n,) the new number of each row and column; None to keep the numbers
    measures : whether to find the bandwidths

    Returns
    -------
    The entries, rows and columns of the dtype of `places`; and their largest |i - j| before and after, 0 for none.
    """
    rows, cols = list_rows(block), block.indices
    before = after = int(np.abs(rows - cols).max(initial=0)) if measures else 0
    if places is None:
        rows = rows.astype(index_dtype(block.row_offset + block.n_rows), copy=False)
    else:
        rows, cols = places[rows], places[cols]
        after = int(np.abs(rows - cols).max(initial=0)) if measures else 0
    return CooBatch(rows, cols, block.data), before, after


def list_rows(block: CsrBlock) -> np.ndarray:
    """Return the row of each entry."""
    return np.repeat(np.arange(block.row_offset, block.row_offset + block.n_rows), np.diff(block.indptr))


# --- supported orders ------------------------------------------------------------------------------------------------


def check_square(shape: tuple[int, int], name: str) -> None:
    """Check that a matrix has as many rows as columns; errors mention it by `name`.

    Raises
    ------
    ShapeError : it is not square
    """
    n_rows, n_cols = shape
    if n_rows != n_cols:
        raise ShapeError(
            f"an order applies to rows and columns alike, so the matrix must be square; {name} has {n_rows} rows "
            f"and {n_cols} columns: use it in the order of its source"
        )
