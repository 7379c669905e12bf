"""Selection of edges of a stored matrix by a list or a mask, which names the edges to keep or to remove.

    ids or numbers  --look up-->  stored rows and columns, ascending  --compare with blocks-->  entries to keep

An edge is named from its source to its target, as the user gave it, whatever the store's orientation.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from mgspmv.errors import OptionError, ShapeError
from mgspmv.ingest.objects import check_format, is_sparse
from mgspmv.ingest.open import open_update
from mgspmv.ingest.source import symmetrize
from mgspmv.ingest.stored import EdgeSet
from mgspmv.lookup import VertexLookup, check_integers
from mgspmv.model import MatrixInfo, index_dtype
from mgspmv.order import invert
from mgspmv.store.read import StoredMatrix

EDGE_BYTES = 72
"""Bytes per listed edge while it is looked up."""


# --- listed edges ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ListedEdges:
    """Edges to keep or to remove, listed one by one."""

    name: Literal["edges", "without_edges"]
    """Name of the argument that lists the edges."""
    ends: tuple[Sequence[Any] | np.ndarray, Sequence[Any] | np.ndarray]
    """Sources and targets, or rows and columns: ids, or numbers in the source's order."""
    are_numbers: bool
    """Whether `ends` are numbers, from a mask."""
    symmetrize: bool
    """Whether each (i, j) also lists (j, i)."""

    @property
    def nbytes(self) -> int:
        """Bytes needed to look them up."""
        return EDGE_BYTES * len(self.ends[0]) * (2 if self.symmetrize else 1)

    def describe(self) -> dict[str, Any]:
        """Return JSON values for the provenance: the number of listed edges."""
        return {self.name: len(self.ends[0])} | ({"symmetrize": True} if self.symmetrize else {})


def choose_edges(info: MatrixInfo, edges: Any, without_edges: Any, *, symmetrize: bool) -> ListedEdges | None:
    """Return the edges that the arguments list; None for all edges.

    Parameters
    ----------
    edges, without_edges : as in `mgspmv.subgraph`

    Raises
    ------
    OptionError : both arguments, or an object of another type; `symmetrize` without edges
    ShapeError : a mask of another shape
    SourceError : a mask whose index arrays are damaged
    """
    if edges is not None and without_edges is not None:
        raise OptionError("pass edges= (the edges to keep) or without_edges= (the edges to remove), not both")
    name: Literal["edges", "without_edges"] = "edges" if without_edges is None else "without_edges"
    given = edges if without_edges is None else without_edges
    if given is None:
        if symmetrize:
            raise OptionError(
                "symmetrize=True needs edges= or without_edges=; pass one of them, or leave out symmetrize=True"
            )
        return None
    if is_sparse(given):
        return ListedEdges(name, _list_mask(name, given, info), True, symmetrize)
    if not hasattr(given, "__iter__") or isinstance(given, str | bytes):
        raise OptionError(f"{name} must be pairs of ids or a SciPy sparse matrix, not {given!r}")
    return ListedEdges(name, _list_pairs(name, given), False, symmetrize)


def read_edges(path: str | os.PathLike[str], stored: StoredMatrix, **reading: Any) -> Any:
    """Read edges from any source that `ingest` reads: pairs of ids from an edge list or table, else a mask.

    Parameters
    ----------
    stored : matrix that has the edges
    reading : options of `open_source`

    Returns
    -------
    (sources, targets), two (k,) arrays of ids, if the file is a graph; a SciPy sparse matrix if it is a matrix

    Raises
    ------
    SourceError, OptionError, StoreError : as for `open_source` and for reading the opened source
    """
    is_name = VertexLookup(stored).has if stored.info.vertex_ids == "string" else None
    source = open_update(None, path, is_name, **reading)[1]
    assert source is not None
    ends: list[list[np.ndarray]] = [[], []]
    for batch in source.batches():
        if source.is_undirected:
            batch = symmetrize(batch, "symmetric")
        stays = slice(None) if batch.values is None else batch.values != 0
        is_mask = source.default_kind != "graph"
        for side, own in zip(ends, (batch.rows, batch.cols), strict=True):
            side.append(own[stays] if is_mask else own)
    layout = source.layout()
    firsts, seconds = (np.concatenate(side) for side in ends)
    if source.default_kind != "graph":
        from scipy.sparse import coo_array

        return coo_array((np.ones(len(firsts), bool), (firsts, seconds)), shape=layout.shape)
    if layout.positions is not None:
        firsts, seconds = layout.positions[firsts], layout.positions[seconds]
    ids = None if layout.vertex_ids is None else layout.vertex_ids[:]
    return (firsts, seconds) if ids is None else (ids[firsts], ids[seconds])


def _list_mask(name: str, mask: Any, info: MatrixInfo) -> tuple[np.ndarray, np.ndarray]:
    if mask.shape != info.shape:
        raise ShapeError(
            f"{name} is a mask of shape {mask.shape} but the matrix has shape {info.shape}; pass shape {info.shape}, "
            "or pairs of ids"
        )
    entries = check_format(mask, name).tocoo(copy=True)
    entries.sum_duplicates()
    entries.eliminate_zeros()
    return entries.row, entries.col


def _list_pairs(name: str, given: Any) -> tuple[Sequence[Any] | np.ndarray, Sequence[Any] | np.ndarray]:
    if isinstance(given, tuple) and len(given) == 2 and all(isinstance(side, np.ndarray) for side in given):
        if given[0].ndim != 1 or given[0].shape != given[1].shape:
            raise OptionError(
                f"{name} has sources of shape {given[0].shape} and targets of shape {given[1].shape}; pass two "
                "one-dimensional arrays of the same length"
            )
        return given
    if hasattr(given, "__array__"):
        pairs = np.asarray(given)
        if pairs.ndim != 2 or pairs.shape[1] != 2 or pairs.dtype == np.bool_:
            raise OptionError(
                f"{name} must be pairs of ids, of shape (k, 2), not {pairs.dtype} of shape {pairs.shape}; pass a mask "
                "as a SciPy sparse matrix"
            )
        return pairs[:, 0], pairs[:, 1]
    listed = list(given)
    for pair in listed:
        if isinstance(pair, str | bytes) or not hasattr(pair, "__len__") or len(pair) != 2:
            raise OptionError(f"{name} must be pairs (source, target) of ids, not {pair!r}")
    return [source for source, _ in listed], [target for _, target in listed]


# --- positions of edges ----------------------------------------------------------------------------------------------


def number_edges(stored: StoredMatrix, listed: ListedEdges, is_kept: np.ndarray | None) -> EdgeSet:
    """Find the positions of edges in a stored matrix.

    Parameters
    ----------
    is_kept : as in `select_vertices`, to leave out edges from or to a dropped vertex; None if all vertices are kept

    Raises
    ------
    OptionError : ids of another type than the store's, or an unknown id; the message names a similar one
    """
    info = stored.info
    firsts, seconds = _find_numbers(stored, listed)
    if listed.symmetrize:
        firsts, seconds = np.concatenate([firsts, seconds]), np.concatenate([seconds, firsts])
    if is_kept is not None:
        stays = is_kept[firsts] & is_kept[seconds]
        firsts, seconds = firsts[stays], seconds[stays]
    rows, cols = (seconds, firsts) if info.kind == "graph" else (firsts, seconds)
    del firsts, seconds
    order = stored.read_order()
    if order is not None:
        places = invert(order)
        rows, cols = places[rows], places[cols]
    dtype = index_dtype(max(info.shape))
    rows, cols = rows.astype(dtype, copy=False), cols.astype(dtype, copy=False)
    return EdgeSet.of(rows, cols, are_staying=listed.name == "edges")


def _find_numbers(stored: StoredMatrix, listed: ListedEdges) -> list[np.ndarray]:
    info = stored.info
    if listed.are_numbers:
        return [np.asarray(own) for own in listed.ends]
    if info.kind != "matrix" or info.vertex_ids is not None:
        lookup = VertexLookup(stored)
        return [lookup.find_all(listed.name, ids) for ids in listed.ends]
    numbers = [check_integers(listed.name, own) for own in listed.ends]
    for side, own, n in zip(("row", "column"), numbers, info.shape, strict=True):
        if (wrong := (own < 0) | (own >= n)).any():
            raise OptionError(
                f"{listed.name} has the {side} {own[int(np.argmax(wrong))]}, but the matrix has {side}s 0 to {n - 1}; "
                "correct it"
            )
    return numbers


def check_found(stored: StoredMatrix, edges: EdgeSet) -> None:
    """Raise OptionError if some of the edges were not found; the message names one."""
    if edges.is_found.all():
        return
    k = int(np.argmin(edges.is_found))
    numbers, order = [int(edges.rows[k]), int(edges.cols[k])], stored.read_order()
    if order is not None:
        numbers = [int(order[number]) for number in numbers]
    named = numbers if stored.info.vertex_ids is None else VertexLookup(stored).read(numbers).tolist()
    first, second = named[::-1] if stored.info.kind == "graph" else named
    what = "entry" if stored.info.kind == "matrix" else "edge"
    raise OptionError(
        f"edges has the {what} ({first!r}, {second!r}), which is missing from the store; remove it from edges="
    )
