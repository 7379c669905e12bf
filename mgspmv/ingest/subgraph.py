"""Part of a stored matrix as a separate store: entries between selected vertices, or selected edges.

    version  --read-->  pieces  --drop entries, renumber-->  blocks of rows  --write-->  chunks of the other store

Kept vertices keep their order, so that rows and columns still ascend and nothing is sorted. The new number of each
vertex must fit into memory. The result is bit-identical to ingesting the kept entries.

An edge is named from its source to its target, as the user gave it, whatever the store's orientation.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from numbers import Real
from pathlib import Path
from typing import Any, Literal

import numpy as np

from mgspmv.errors import CapacityError, KindError, OptionError, ShapeError
from mgspmv.ingest.budget import MemoryBudget
from mgspmv.ingest.columns import TextColumn
from mgspmv.ingest.entries import SortedSource, sort_source
from mgspmv.ingest.files import take_name
from mgspmv.ingest.headers import DEFAULT_READING, StatedForm
from mgspmv.ingest.numbering import Ids, SortedIds, are_numbers
from mgspmv.ingest.objects import is_sparse
from mgspmv.ingest.open import open_update
from mgspmv.ingest.source import Layout, Source
from mgspmv.ingest.store_writing import write_version
from mgspmv.ingest.stored import Bounds, EdgeSet, RowNumbers, StoredRows
from mgspmv.ingest.vertex_vectors import classify_vector, is_class, read_vector
from mgspmv.ingest.vertices import read_vertices
from mgspmv.lookup import UNKNOWN, VertexLookup, open_ids
from mgspmv.model import Duplicates, IngestOptions, MatrixInfo, Progress, index_dtype
from mgspmv.order import invert, renumber_entries
from mgspmv.store.locations import StoreLike
from mgspmv.store.stored_matrix import StoredMatrix

PIECE_IDS = 1 << 16
"""Ids of a store per read."""
ORDER_BYTES = 32
"""Bytes per vertex while the order of the kept vertices is computed."""
PLACE_BYTES = 36
"""Bytes per listed edge while edges are sorted by row."""
LABEL_BYTES = 24
"""Bytes per vertex of listed edges, in addition to its name."""


# --- selected vertices -----------------------------------------------------------------------------------------------


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
    assert flags is not None
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


# --- listed edges ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ListedEdges:
    """Edges to keep or to remove."""

    name: Literal["edges", "without_edges"]
    """Name of the argument that lists the edges."""
    source: Source
    """Edges between ids, or a mask: a matrix in the order of the vertices, whose entries other than 0 select."""
    symmetrize: bool
    """Whether each (i, j) also selects (j, i)."""

    @property
    def is_mask(self) -> bool:
        return self.source.default_kind != "graph"


def choose_edges(stored: StoredMatrix, edges: Any, without_edges: Any, *, symmetrize: bool) -> ListedEdges | None:
    """Return the edges that the arguments list; None for all edges.

    Raises
    ------
    OptionError : both arguments; `symmetrize` without edges
    OptionError, SourceError, StoreError : as for `open_edges`
    """
    if edges is not None and without_edges is not None:
        raise OptionError("pass edges= (the edges to keep) or without_edges= (the edges to remove), not both")
    given = edges if without_edges is None else without_edges
    if given is not None:
        name: Literal["edges", "without_edges"] = "edges" if without_edges is None else "without_edges"
        return ListedEdges(name, open_edges(stored, given), symmetrize)
    if symmetrize:
        raise OptionError(
            "symmetrize=True needs edges= or without_edges=; pass one of them, or leave out symmetrize=True"
        )
    return None


def open_edges(stored: StoredMatrix, given: Any, **reading: Any) -> Source:
    """Open edges: any source that `ingest` reads, an array of pairs, or another iterable of pairs.

    Parameters
    ----------
    stored : matrix that has the edges
    reading : options of `open_source`

    Raises
    ------
    SourceError, OptionError, StoreError : as for `open_source`
    """
    if isinstance(given, np.ndarray) and given.ndim == 2 and given.shape[1] == 2 and given.dtype != np.bool_:
        given = given[:, 0], given[:, 1]
    elif (isinstance(given, Set | Mapping) and not is_sparse(given)) or is_class(given, "networkx", "OutEdgeDataView"):
        given = list(given)
    is_name = VertexLookup(stored).has if stored.info.vertex_ids == "string" else None
    source = open_update(None, given, is_name, **reading)[1]
    assert source is not None
    return source


def find_places(
    stored: StoredMatrix, listed: SortedSource, memory: int, name: str | None = None, *, is_mask: bool = False
) -> EdgeSet:
    """Return the places of listed entries in a stored matrix, by stored numbers, as entries to remove.

    Parameters
    ----------
    listed : sorted entries, which are closed; of a mask, those with the value 0 list nothing
    memory : bytes for the places
    name : argument that lists them, whose ids must exist; None if unknown vertices are allowed, which get greater
        numbers than all others
    is_mask : whether rows and columns are numbers of vertices, even if these have ids

    Raises
    ------
    OptionError : an unknown id; the message names a similar one
    CapacityError : the places do not fit in `memory`
    """
    n, info, numbers = listed.most_entries, stored.info, None
    check_room(PLACE_BYTES * n + LABEL_BYTES * listed.shape[0], memory, f"listing the {n:,} entries of {listed.name}")
    has_ids = info.vertex_ids is not None or listed.vertex_ids is not None
    if info.order or (not is_mask and (has_ids or name is not None)):
        labels = list_labels(listed.layout)[:]
        numbers = labels if is_mask else _find_numbers(stored, labels, name)
        if (order := stored.read_order()) is not None:
            is_known = numbers < len(order)
            numbers[is_known] = invert(order)[numbers[is_known]]
    dtype = index_dtype(max(info.shape) + max(listed.shape))
    rows, cols, k = np.empty(n, dtype), np.empty(n, dtype), 0
    for block in listed.blocks():
        batch, _, _ = renumber_entries(block, numbers)
        ends = batch.rows, batch.cols
        if block.data is not None:
            ends = ends[0][block.data != 0], ends[1][block.data != 0]
        own = slice(k, k + len(ends[0]))
        rows[own], cols[own] = ends
        k = own.stop
    listed.close()
    return EdgeSet.of(rows[:k], cols[:k], are_staying=False)


def _find_numbers(stored: StoredMatrix, labels: np.ndarray, name: str | None) -> np.ndarray:
    """Return the numbers of labels in the source's order; unknown ones get numbers after all others."""
    info, n = stored.info, max(stored.info.shape)
    if info.shape[0] == info.shape[1]:
        lookup = VertexLookup(stored, 1)
        numbers = lookup.find(labels) if name is None else lookup.find_all(name, labels)
    else:
        numbers = np.where((labels >= 0) & (labels < n), labels, UNKNOWN)
        if (is_unknown := numbers == UNKNOWN).any():
            raise OptionError(
                f"{name} has the number {labels[int(np.argmax(is_unknown))]}, but the matrix has {info.shape[0]} rows "
                f"and {info.shape[1]} columns; correct it"
            )
    return np.where(numbers == UNKNOWN, n + np.arange(len(labels)), numbers)


def list_labels(layout: Layout) -> Ids:
    """Return the ids of the vertices, or their numbers if they have none, ascending."""
    return np.arange(max(layout.shape)) if layout.vertex_ids is None else layout.vertex_ids


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


# --- numbers ---------------------------------------------------------------------------------------------------------


def _number(stored: StoredMatrix, is_kept: np.ndarray | None, room: MemoryBudget) -> RowNumbers:
    """Number the kept rows and columns; for `is_kept` see `select_vertices`, None for all."""
    info, ids = stored.info, open_ids(stored)
    if is_kept is None:
        return RowNumbers(info.shape, ids, stored.read_order(room.threads), None)
    order = stored.read_order(room.threads)
    n_kept = int(np.count_nonzero(is_kept))
    kept_ids = SortedIds(room.folder, np.dtype(np.int64) if ids is None else ids.dtype)
    for first in range(0, len(is_kept), PIECE_IDS):
        own = is_kept[first : first + PIECE_IDS]
        if own.any():
            known = np.arange(first, first + len(own)) if ids is None else ids[first : first + len(own)]
            kept_ids.append(known[own])
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


# --- writing ---------------------------------------------------------------------------------------------------------


def write_subgraph(
    stored: StoredMatrix,
    target: StoreLike,
    vertices: Sequence[Any] | np.ndarray | None,
    bounds: Bounds | None,
    describe: Callable[[int | None, int | None], dict[str, Any]],
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
    describe : function from the numbers of kept vertices and of listed places, None if none are selected, to the
        version's provenance
    edges : edges to keep or to drop; None to keep all

    Returns
    -------
    Metadata of the new version.

    Raises
    ------
    KindError, ShapeError : as in `select_vertices`; a mask of edges of another shape
    OptionError : as in `select_vertices`, `find_places` and `check_found`
    SourceError : the edges cannot be read; the columns of a stochastic matrix no longer sum to 1
    CapacityError : the numbers of the vertices and the listed edges do not fit into memory
    StoreError : the matrix cannot be read, the target cannot be written; as in `begin_version`
    """
    info, is_selected = stored.info, vertices is not None
    need = find_table_bytes(info, selects=is_selected)
    check_room(need, room.memory // 2, f"the selection from {info.url}")
    is_kept = select_vertices(stored, vertices) if is_selected else None
    places = None
    if edges is not None:
        places = _read_places(stored, edges, is_kept, report, replace(room, memory=room.memory // 2 - need))
        need += PLACE_BYTES * len(places.rows)
    rows = StoredRows(stored, room.threads, _number(stored, is_kept, room), bounds, places)
    memory = (room.memory - need) // (2 if info.has_transpose else 1)

    def describe_made(_: int) -> dict[str, Any]:
        if edges is not None and places is not None and places.are_staying and not edges.is_mask:
            check_found(stored, places)
        n_edges = None if places is None else len(places.rows)
        return describe(rows.shape[0] if is_selected else None, n_edges)

    writing: dict[str, Any] = {"base": base, "order": info.order, "has_transpose": info.has_transpose}
    own = replace(room, memory=memory)
    return write_version(target, rows, describe_made, report, own, **writing, phase="filter and write")


def _read_places(
    stored: StoredMatrix, edges: ListedEdges, is_kept: np.ndarray | None, report: Progress, room: MemoryBudget
) -> EdgeSet:
    """Return the places of listed edges, without those from or to a dropped vertex."""
    info = stored.info
    # values of a mask tell which of its entries select, and must not be summed with those of mirror images
    rule: Duplicates | None = "keep" if edges.symmetrize else None
    options = IngestOptions(info.kind, rule, symmetrize=edges.symmetrize, weights=None if edges.is_mask else False)
    with sort_source(edges.source, options, report, replace(room, memory=room.memory // 2)) as listed:
        if edges.is_mask and listed.shape != info.shape:
            raise ShapeError(
                f"{edges.name} is a mask of shape {listed.shape} but the matrix has shape {info.shape}; pass shape "
                f"{info.shape}, or pairs of ids"
            )
        places = find_places(stored, listed, room.memory, edges.name, is_mask=edges.is_mask)
    rows, cols = places.rows, places.cols
    if is_kept is not None:
        order = stored.read_order()
        own = is_kept if order is None else is_kept[order]
        stays = own[rows] & own[cols]
        rows, cols = rows[stays], cols[stays]
    return EdgeSet(rows, cols, edges.name == "edges", np.zeros(len(rows), bool))


def check_room(need: int, memory: int, what: str) -> None:
    """Raise CapacityError if some bytes exceed `memory`."""
    if need > memory:
        raise CapacityError(
            f"{what} needs {need / 1e9:.3g} GB of memory, but only {memory / 1e9:.3g} GB may be used; raise memory="
        )
