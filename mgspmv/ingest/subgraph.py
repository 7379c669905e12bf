"""Part of a stored matrix as a separate store: entries between selected vertices, or selected edges.

    version  --read-->  pieces  --drop entries, renumber-->  blocks of rows  --write-->  chunks of the other store

Kept vertices keep their order, so that rows and columns still ascend and nothing is sorted. The new number of each
vertex must fit into memory. The result is bit-identical to ingesting the kept entries.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from mgspmv.errors import CapacityError, KindError, OptionError, ShapeError
from mgspmv.ingest.build import Assembled
from mgspmv.ingest.columns import TextColumn
from mgspmv.ingest.edge_list_head import DEFAULT_READING, StatedForm
from mgspmv.ingest.edge_mask import (
    EDGE_BYTES,
    ListedEdges,
    check_found,
    number_edges,
)
from mgspmv.ingest.files import take_name
from mgspmv.ingest.numbering import PIECE_IDS, Ids, IdWriter
from mgspmv.ingest.scratch import MemoryBudget
from mgspmv.ingest.store_writing import write_version
from mgspmv.ingest.stored import Bounds, RowNumbers, StoredRows
from mgspmv.ingest.vector_files import read_vector
from mgspmv.ingest.vertex_vectors import ById, classify_vector, is_class
from mgspmv.ingest.vertices import are_numbers, read_vertices
from mgspmv.lookup import VertexLookup, open_ids
from mgspmv.model import MatrixInfo, Progress, index_dtype
from mgspmv.store.locations import StoreLike
from mgspmv.store.read import StoredMatrix

ORDER_BYTES = 32
"""Bytes per vertex while the order of the kept vertices is computed."""


# --- selection -------------------------------------------------------------------------------------------------------


def read_selection(
    path: str | os.PathLike[str],
    *,
    string_ids: bool = False,
    reading: StatedForm = DEFAULT_READING,
    is_vertex: Callable[[str], bool] | None = None,
) -> np.ndarray:
    """Read a selection of vertices: a mask or ids from a `.npy` file, else ids, one per line as in `ingest`.

    Parameters
    ----------
    path : local path or URL; `-` is standard input
    string_ids : whether ids are strings, as in a store whose `vertex_ids` are strings, or integers
    reading : options of the user for delimiter and comments
    is_vertex : function that returns whether a name is an id of the store

    Returns
    -------
    (n,) bool, or (k,) ids: integers or strings (object)

    Raises
    ------
    SourceError : a missing file, a malformed line, an id listed twice, or no id at all
    """
    if Path(path).suffix == ".npy":
        return read_vector(path)
    column = TextColumn("vertex", "string" if string_ids else "int64")
    numbering = read_vertices(take_name(path), column, reading, is_vertex=is_vertex)[0].finish()
    ids = numbering.vertex_ids
    selected: np.ndarray = np.arange(numbering.shape[0]) if ids is None else ids[:]
    return selected


def select_vertices(stored: StoredMatrix, vertices: Any) -> np.ndarray:
    """Return the (n,) bool mask of selected vertices, in the order of the source.

    Parameters
    ----------
    vertices : (n,) bool mask; ids; or flags by id, as a mapping or a pandas Series of bool, whose index has ids

    Raises
    ------
    KindError : rows and columns are not vertices
    ShapeError : a mask of another length
    OptionError : ids of another type than the store's, or an unknown id; the message names a similar one
    """
    info = stored.info
    if info.kind == "matrix":
        raise KindError(
            f"{info.url} is a store of kind 'matrix', whose rows and columns are not vertices; leave out vertices=, "
            "or ingest its source with kind='graph'"
        )
    if isinstance(vertices, str | bytes) or not hasattr(vertices, "__iter__"):
        raise OptionError(f"vertices must be a mask or a list of ids, not {vertices!r}")
    given = _list_flagged(vertices, info)
    if _is_mask(given):
        mask = np.asarray(given)
        if mask.shape != (info.shape[0],):
            raise ShapeError(
                f"vertices is a mask of shape {mask.shape} but the matrix has {info.shape[0]} vertices; pass shape "
                f"({info.shape[0]},), or ids"
            )
        return mask
    numbers = VertexLookup(stored).find_all("vertices", given)
    is_kept = np.zeros(info.shape[0], bool)
    is_kept[numbers] = True
    return is_kept


def _list_flagged(vertices: Any, info: MatrixInfo) -> Any:
    """Return a mask, or ids; for flags by id, return the ids whose flag is set."""
    is_labeled = isinstance(vertices, Mapping) or is_class(vertices, "pandas", "Series")
    if not is_labeled or not _is_mask(list(vertices.values() if isinstance(vertices, Mapping) else vertices)):
        return np.asarray(vertices) if hasattr(vertices, "__array__") else list(vertices)
    flags = classify_vector("vertices", vertices)
    assert isinstance(flags, ById)
    if flags.is_default_index and info.vertex_ids is not None:
        raise OptionError(f"vertices has pandas' default index, but the vertices have other ids; {flags.advice}")
    if len(set(flags.ids)) != len(flags.ids):
        raise OptionError("vertices has an id more than once; pass one flag per id")
    return [label for label, flag in zip(flags.ids, flags.numbers, strict=True) if flag]


def _is_mask(given: Any) -> bool:
    if isinstance(given, np.ndarray):
        return bool(given.dtype == np.bool_)
    return len(given) > 0 and all(isinstance(flag, bool | np.bool_) for flag in given)


def check_bounds(info: MatrixInfo, min_weight: Any, max_weight: Any) -> Bounds | None:
    """Return the least and the greatest value to keep, in the values' dtype; None if there are no bounds.

    Raises
    ------
    OptionError : bounds that are not numbers, or in descending order; bounds for a pattern
    """
    given = {"min_weight": min_weight, "max_weight": max_weight}
    for name, bound in given.items():
        if bound is not None and (isinstance(bound, bool) or not isinstance(bound, Real) or math.isnan(bound)):
            raise OptionError(f"{name} must be a number, not {bound!r}")
    if min_weight is None and max_weight is None:
        return None
    if info.dtype is None:
        names = " and ".join(name for name, bound in given.items() if bound is not None)
        raise OptionError(f"{info.url} is a pattern, which has no weights; leave {names} out")
    least = -math.inf if min_weight is None else min_weight
    greatest = math.inf if max_weight is None else max_weight
    if least > greatest:
        raise OptionError(f"min_weight={least} is greater than max_weight={greatest}; swap them")
    if np.dtype(info.dtype).kind == "i":  # NumPy would round large integers to compare them with floats
        low = least if math.isinf(least) else math.ceil(least)
        high = greatest if math.isinf(greatest) else math.floor(greatest)
        return low, high
    with np.errstate(over="ignore"):  # a bound beyond float32 becomes infinite
        value = np.dtype(info.dtype).type
        return value(least), value(greatest)


# --- numbers ---------------------------------------------------------------------------------------------------------


def _number(stored: StoredMatrix, is_kept: np.ndarray | None, room: MemoryBudget) -> RowNumbers:
    """Number the kept rows and columns; for `is_kept` see `select_vertices`, None for all."""
    info, ids = stored.info, open_ids(stored)
    if is_kept is None:
        return RowNumbers(info.shape, ids, stored.read_order(room.threads), None)
    order = stored.read_order(room.threads)
    n_kept = int(np.count_nonzero(is_kept))
    kept_ids = _list_kept(ids, is_kept, room.folder)
    places = _count_kept(is_kept)
    if order is not None:
        places, own = _count_kept(is_kept[order]), places[order]
        order = own[own >= 0].astype(index_dtype(n_kept), copy=False)
    return RowNumbers((n_kept, n_kept), None if are_numbers(kept_ids) else kept_ids, order, places)


def find_table_bytes(info: MatrixInfo, *, selects: bool) -> int:
    """Return the bytes of the tables of all vertices in memory.

    Parameters
    ----------
    selects : whether some vertices are dropped
    """
    of_order = ORDER_BYTES if info.order else 0
    return info.shape[0] * (of_order + (2 + 2 * index_dtype(info.shape[0]).itemsize if selects else 0))


def _count_kept(is_kept: np.ndarray) -> np.ndarray:
    """Return the (n,) new number of each kept vertex, -1 for the others."""
    places = np.cumsum(is_kept, dtype=index_dtype(len(is_kept)))
    places -= 1
    places[~is_kept] = -1
    return places


def _list_kept(ids: VertexLookup | None, is_kept: np.ndarray, folder: Path | None) -> Ids:
    """Write the ids, or numbers, of the kept vertices to a file."""
    writer = IdWriter(folder, np.dtype(np.int64) if ids is None else ids.dtype)
    for first in range(0, len(is_kept), PIECE_IDS):
        own = is_kept[first : first + PIECE_IDS]
        if own.any():
            known = np.arange(first, first + len(own)) if ids is None else ids[first : first + len(own)]
            writer.append(known[own])
    return writer.finish()


# --- writing ---------------------------------------------------------------------------------------------------------


def write_subgraph(
    stored: StoredMatrix,
    target: StoreLike,
    vertices: Sequence[Any] | np.ndarray | None,
    bounds: Bounds | None,
    describe: Callable[[int | None], dict[str, Any]],
    report: Progress,
    room: MemoryBudget,
    *,
    base: str | None,
    edges: ListedEdges | None = None,
) -> MatrixInfo:
    """Write the kept part of a stored matrix, with its transpose if it has one, as the new version of a store.

    Parameters
    ----------
    vertices : see `select_vertices`; None for all
    describe : function from the number of kept vertices, None if none are selected, to the version's provenance
    edges : edges to keep or to drop; None to keep all

    Returns
    -------
    Metadata of the new version.

    Raises
    ------
    KindError, ShapeError : as in `select_vertices`
    OptionError : as in `select_vertices`, `number_edges` and `check_found`
    SourceError : the columns of a stochastic matrix no longer sum to 1
    CapacityError : the numbers of the vertices and the listed edges do not fit into memory
    StoreError : the matrix cannot be read, the target cannot be written; as in `begin_version`
    """
    info, is_selected = stored.info, vertices is not None
    need = _check_room(info, edges, room.memory // 2, selects=is_selected)
    is_kept = select_vertices(stored, vertices) if is_selected else None
    edge_set = None if edges is None else number_edges(stored, edges, is_kept)
    rows = StoredRows(stored, room.threads, _number(stored, is_kept, room), bounds, edge_set)
    memory = (room.memory - need) // (2 if info.has_transpose else 1)

    def describe_made(_: Assembled) -> dict[str, Any]:
        if edges is not None and edge_set is not None and edge_set.are_staying and not edges.are_numbers:
            check_found(stored, edge_set)
        return describe(rows.shape[0] if is_selected else None)

    writing: dict[str, Any] = {"base": base, "order": info.order, "has_transpose": info.has_transpose}
    own = replace(room, memory=memory)
    return write_version(target, rows, describe_made, report, own, **writing, phase="filter and write")


def _check_room(info: MatrixInfo, edges: ListedEdges | None, memory: int, *, selects: bool) -> int:
    """Return the bytes of the numbers of vertices, and of listed edges.

    Raises
    ------
    CapacityError : these bytes exceed `memory`
    """
    of_edges = 0 if edges is None else edges.nbytes
    need = find_table_bytes(info, selects=selects) + of_edges
    if need > memory:
        listed = f" and the positions of {of_edges // EDGE_BYTES:,} edges" if of_edges else ""
        raise CapacityError(
            f"the selection from {info.url} needs {need / 1e9:.3g} GB of memory for the numbers of its vertices{listed}"
            f", but only {memory / 1e9:.3g} GB may be used; raise memory="
        )
    return need
