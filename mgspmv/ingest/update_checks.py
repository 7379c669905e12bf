"""Checks that insertions and deletions suit a store."""

from __future__ import annotations

import numpy as np

from mgspmv.errors import SourceError
from mgspmv.ingest.entries import SortedSource
from mgspmv.ingest.source import Layout, Source
from mgspmv.ingest.store_writing import check_stated
from mgspmv.model import MatrixInfo
from mgspmv.store.write import StoreSize

GROWTH, GROWTH_ROOM = 4, 1 << 20
"""Rows per existing or inserted vertex, and additional rows, that new numbers in a list of edges may create."""


def check_values(added: SortedSource, info: MatrixInfo) -> None:
    """Check that insertions have values of the store's dtype, or none if the store has none."""
    given = None if added.dtype is None else added.dtype.name
    if given == info.dtype or not added.sorter.n_entries:
        return
    if info.is_pattern:
        message = "have weights, but the store has none; pass weights=False to ignore them"
    elif given is None:
        message = f"have no weights, but the store has weights of {info.dtype}; add a weight to each entry"
    else:
        message = (
            f"have weights of {given}, but the store has weights of {info.dtype}; pass them as integers: in arrays, a "
            "Parquet file, or a Matrix Market file of integers"
        )
    raise SourceError(f"the entries to insert {message}", source=added.name)


def check_labels(source: Source, layout: Layout, info: MatrixInfo) -> None:
    """Check that rows and columns are identified as they are in the store."""
    if layout.shape == (0, 0):
        return
    ids, is_matrix = layout.vertex_ids, source.default_kind == "matrix"
    given = "string" if ids is not None and ids.dtype.kind in "OUT" else "int64"
    if is_matrix and info.vertex_ids is not None:
        raise SourceError(
            f"the vertices of the store have ids ({info.vertex_ids}), but this is a matrix, which has no ids; pass a "
            "list of edges between ids",
            source=source.name,
        )
    if not is_matrix and info.shape[0] != info.shape[1]:
        raise SourceError(
            f"a list of edges needs a store with a square matrix, but it has {info.shape[0]} rows and {info.shape[1]} "
            "columns; pass a matrix (Matrix Market, SciPy, Zarr)",
            source=source.name,
        )
    wanted = info.vertex_ids or "int64"
    if given != wanted:
        raise SourceError(
            f"the ids are {_ID_TYPES[given]}, but the store has {_ID_TYPES[wanted]}; pass ids of the same type",
            source=source.name,
        )


_ID_TYPES = {"string": "strings", "int64": "integers"}


def check_growth(added: SortedSource, info: MatrixInfo) -> None:
    """Check that the numbers of inserted vertices are not too large, as ids passed by mistake would be."""
    n, ids = info.shape[0], added.layout.vertex_ids
    if info.vertex_ids is not None or ids is None or not len(ids):
        return
    lowest, highest = int(ids[0]), int(ids[-1])
    if lowest < 0:
        raise SourceError(
            f"the ids of the store are 0..{n - 1}; the id {lowest} is negative; correct it", source=added.name
        )
    if highest >= GROWTH * (n + len(ids)) + GROWTH_ROOM:
        raise SourceError(
            f"the ids of the store are 0..{n - 1}, and {highest} would extend them to 0..{highest}; pass "
            f"n_vertices={highest + 1} if that is intended, else ingest all edges together",
            source=added.name,
        )


def check_growing_shape(added: SortedSource, info: MatrixInfo, *, allow_hypersparse: bool) -> None:
    """Check that a stated shape does not make the matrix far larger than its entries; see `check_stated`."""
    if info.vertex_ids is not None:  # only ids that occur become vertices
        return
    if (shape := join_shapes(info.shape, find_extent(added.layout))) != info.shape:
        dtype = None if info.dtype is None else np.dtype(info.dtype)
        n_entries = info.nnz + added.most_entries
        size = StoreSize(shape, n_entries, dtype, info.kind != "matrix", info.has_transpose)
        check_stated(added.layout.stated, size, allow_hypersparse=allow_hypersparse)


def find_extent(layout: Layout) -> tuple[int, int]:
    """Return the numbers of rows and columns that all vertices need if names are numbers."""
    ids = layout.vertex_ids
    return layout.shape if ids is None else (int(ids[-1]) + 1,) * 2 if len(ids) else (0, 0)


def join_shapes(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    return max(one[0], other[0]), max(one[1], other[1])
