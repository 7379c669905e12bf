"""Part of a stored matrix as a separate store: entries between selected vertices, or selected edges.

    version  --read-->  pieces  --drop entries, renumber-->  blocks of rows  --write-->  chunks of the other store

Kept vertices keep their order, so that rows and columns still ascend and nothing is sorted. The new number of each
vertex must fit into memory. The result is bit-identical to ingesting the kept entries.

An edge is named from its source to its target, as the user gave it, whatever the store's orientation.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from pathlib import Path
from typing import Any, Literal

import numpy as np

from mgspmv.errors import CapacityError, KindError, OptionError, ShapeError
from mgspmv.ingest.build import Assembled
from mgspmv.ingest.columns import TextColumn
from mgspmv.ingest.files import take_name
from mgspmv.ingest.headers import DEFAULT_READING, StatedForm
from mgspmv.ingest.numbering import PIECE_IDS, Ids, IdWriter, are_numbers, look_up
from mgspmv.ingest.objects import check_format, is_sparse
from mgspmv.ingest.open import open_update
from mgspmv.ingest.scratch import MemoryBudget
from mgspmv.ingest.source import symmetrize
from mgspmv.ingest.store_writing import write_version
from mgspmv.ingest.stored import Bounds, EdgeSet, RowNumbers, StoredRows
from mgspmv.ingest.vector_files import read_vector
from mgspmv.ingest.vertex_vectors import ById, classify_vector, is_class
from mgspmv.ingest.vertices import read_vertices
from mgspmv.lookup import VertexLookup, check_integers, open_ids
from mgspmv.model import MatrixInfo, Progress, index_dtype
from mgspmv.order import invert
from mgspmv.store.locations import StoreLike
from mgspmv.store.matrix import StoredMatrix

ORDER_BYTES = 32
"""Bytes per vertex while the order of the kept vertices is computed."""
EDGE_BYTES = 72
"""Bytes per listed edge while it is looked up."""


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
        firsts, seconds = look_up(layout.positions, firsts), look_up(layout.positions, seconds)
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
