"""Update of a store: a new version of it with entries inserted and deleted.

    version before  --read, drop deletions, renumber-->  |
    insertions      --sort, number-------------------->  |  --sort by row and column--> blocks of rows

Stored entries are sorted together with inserted ones. At each place stored entries come first, then inserted ones in
the order of their source, and the duplicates rule of the store is applied to these: the result is bit-identical to
ingesting the edited list of entries.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from mgspmv.errors import SourceError
from mgspmv.ingest.budget import MemoryBudget, StoreSize, check_stated
from mgspmv.ingest.entries import SortedSource, sort_source
from mgspmv.ingest.external_sort import EntrySorter
from mgspmv.ingest.numbering import Ids, OccurringIds, are_numbers
from mgspmv.ingest.source import Layout, Source, settle
from mgspmv.ingest.store_writing import add_rows, write_version
from mgspmv.ingest.stored import RowNumbers, StoredRows
from mgspmv.ingest.subgraph import PIECE_IDS, check_room, find_places, find_table_bytes, list_labels
from mgspmv.ingest_report import make_report
from mgspmv.lookup import VertexLookup, open_ids
from mgspmv.model import Duplicates, IngestOptions, MatrixInfo, Progress, ignore, index_dtype
from mgspmv.order import check_square, invert
from mgspmv.store.stored_matrix import StoredMatrix
from mgspmv.store.write import drop_versions
from mgspmv.validation import to_json

GROWTH, GROWTH_ROOM = 4, 1 << 20
"""Rows per existing or inserted vertex, and additional rows, that new numbers in a list of edges may create."""
EXISTS = (
    "to insert exists already, and the store was made with duplicates='error'; delete it in the same update to replace "
    "it"
)
"""Error about an inserted entry."""


@dataclass(frozen=True)
class Changes:
    """Counts of what an update changed."""

    inserted: int = 0
    """Number of entries in the insertions, including mirror images and excluding dropped self loops."""
    deleted: int = 0
    """Number of stored entries that were deleted."""
    missing: int = 0
    """Number of places to delete that had no entry."""
    merged: int = 0
    """Number of inserted entries that were merged with, or dropped for, another entry at the same place."""
    to_delete: int = 0
    """Number of places to delete."""


def update_store(
    stored: StoredMatrix,
    insert: Source | None,
    delete: Source | None,
    options: IngestOptions,
    describe: Callable[[dict[str, Any], Changes], dict[str, Any]],
    report: Progress,
    room: MemoryBudget,
    *,
    keep: int | None,
    allow_hypersparse: bool = False,
) -> MatrixInfo:
    """Write a new version of a store with entries inserted and deleted, unless nothing changes.

    Parameters
    ----------
    stored : current version of the store
    options : `self_loops` of the insertions, `symmetrize` of both, `weights`; the others are those of the store
    describe : function from the provenance of `insert` and `delete`, by these names, and the changes to the version's
    keep : see `begin_version`
    allow_hypersparse : see `check_stated`

    Returns
    -------
    Metadata of the new version, or of `stored` if nothing changes its digest, in which case no version is made.

    Raises
    ------
    SourceError : as in `sort_source` and `assemble`; ids or values that do not suit the store; an entry that exists
        already if the store's rule is `error`
    ShapeError : a store with an order would not stay square
    CapacityError : the numbers of vertices, or their order, do not fit into memory
    StoreError : the store cannot be read or written, or got another version meanwhile
    """
    info = stored.info
    n_shares = 1 + sum((insert is not None, delete is not None, info.has_transpose))
    memory = (room.memory - _find_tables(info, room, inserts=insert is not None)) // n_shares
    with contextlib.ExitStack() as stack:

        def sort(source: Source | None, chosen: IngestOptions) -> SortedSource | None:
            if source is None:
                return None
            batch = stack.enter_context(sort_source(source, chosen, report, replace(room, memory=memory // 2)))
            _check_labels(source, batch.layout, info)
            return batch

        dtype = None if info.dtype == "int64" else info.dtype
        added = sort(insert, replace(options, kind=info.kind, duplicates="keep", dtype=dtype))
        plain = IngestOptions(info.kind, duplicates="first", symmetrize=options.symmetrize, weights=False)
        removed = sort(delete, plain)
        if added is not None:
            _check_values(added, info)
            _check_numbers(added, info, allow_hypersparse=allow_hypersparse)
        if _is_empty(added, info) and (removed is None or not removed.most_entries):
            return _stay(stored, keep)
        places = None if removed is None else find_places(stored, removed, memory)
        numbering, numbers = _number(stored, added, replace(room, memory=memory // 4))
        sorter = stack.enter_context(EntrySorter(memory, room.threads, room.folder))
        kept = StoredRows(stored, room.threads, RowNumbers(info.shape, None, None, None), edges=places)
        add_rows(kept, numbering.places, sorter, lambda n_done: report("read", n_done, info.nnz), room.threads)
        n_kept = sorter.n_entries
        if added is not None:
            add_rows(added, numbers, sorter, ignore, room.threads)
        name = info.url if added is None else added.name
        value = None if info.dtype is None else np.dtype(info.dtype)
        layout = Layout(numbering.shape, numbering.vertex_ids)
        own = info.kind, value, info.duplicates, layout, name, sorter, numbering.order
        rows = SortedSource(*own, on_repeated=EXISTS)

        def describe_made(nnz: int) -> dict[str, Any]:
            changes = Changes(
                inserted=0 if added is None else added.most_entries - added.counts.n_loops,
                deleted=info.nnz - n_kept,
                missing=0 if places is None else int(np.count_nonzero(~places.is_found)),
                merged=rows.most_entries - nnz,
                to_delete=0 if places is None else len(places.rows),
            )
            read = {"insert": added, "delete": removed}
            sources = {name: settle(batch.layout.provenance) for name, batch in read.items() if batch is not None}
            provenance = describe(sources, changes)
            update = provenance["updates"][-1]
            n_left = {"insert": changes.inserted - changes.merged, "delete": changes.to_delete}
            rules: dict[str, Duplicates] = {"insert": rows.rule, "delete": "first"}
            update["reports"] = {
                name: to_json(make_report(sources[name], batch.counts, n_left[name], rules[name], update["options"]))
                for name, batch in read.items()
                if batch is not None
            }
            return provenance

        writing: dict[str, Any] = {"base": info.version, "keep": keep, "unless": stored, "phase": "merge and write"}
        writing |= {"order": info.order, "has_transpose": info.has_transpose}
        made = write_version(stored.place, rows, describe_made, report, replace(room, memory=memory), **writing)
    return made if made != info else _stay(stored, keep)


def _is_empty(added: SortedSource | None, info: MatrixInfo) -> bool:
    """Return whether no entry is inserted, and no vertex as far as known without reading the ids of the store."""
    if added is None or added.most_entries:
        return added is None
    layout = added.layout
    are_numbers = layout.vertex_ids is None and info.vertex_ids is None
    return layout.shape == (0, 0) or (are_numbers and _extend_shape(info.shape, layout) == info.shape)


def _stay(stored: StoredMatrix, keep: int | None) -> MatrixInfo:
    """Make no new version; drop all but the `keep` newest versions."""
    if keep is not None:
        drop_versions(stored.place, keep=keep)
    return stored.info


def _find_tables(info: MatrixInfo, room: MemoryBudget, *, inserts: bool) -> int:
    """Return the bytes of the tables of all vertices in memory: their new numbers, and their order."""
    moved = index_dtype(info.shape[0]).itemsize if inserts and info.vertex_ids else 0
    need = info.shape[0] * moved + find_table_bytes(info, selects=False)
    check_room(need, room.memory // 2, f"updating {info.url}")
    return need


# --- checks ----------------------------------------------------------------------------------------------------------


def _check_labels(source: Source, layout: Layout, info: MatrixInfo) -> None:
    """Check that rows and columns are identified as they are in the store."""
    if layout.shape == (0, 0):
        return
    ids, is_matrix = layout.vertex_ids, source.default_kind == "matrix"
    given, wanted = ("strings" if ids is not None and ids.dtype.kind in "OUT" else "integers"), "integers"
    if info.vertex_ids == "string":
        wanted = "strings"
    if is_matrix and info.vertex_ids is not None:
        message = (
            f"the vertices of the store have ids ({info.vertex_ids}), but this is a matrix, which has no ids; pass a "
            "list of edges between ids"
        )
    elif not is_matrix and info.shape[0] != info.shape[1]:
        message = (
            f"a list of edges needs a store with a square matrix, but it has {info.shape[0]} rows and {info.shape[1]} "
            "columns; pass a matrix (Matrix Market, SciPy, Zarr)"
        )
    elif given != wanted:
        message = f"the ids are {given}, but the store has {wanted}; pass ids of the same type"
    else:
        return
    raise SourceError(message, source=source.name)


def _check_values(added: SortedSource, info: MatrixInfo) -> None:
    """Check that insertions have values of the store's dtype, or none if the store has none."""
    given = None if added.dtype is None else added.dtype.name
    if given == info.dtype or not added.sorter.n_entries:
        return
    if info.is_pattern:
        message = "have weights, but the store has none; pass weights=False to ignore them"
    elif given is None:
        message = f"have no weights, but the store has weights of {info.dtype}; add a weight to each entry"
    else:
        message = f"have weights of {given}, but the store has weights of {info.dtype}; pass them as integers"
    raise SourceError(f"the entries to insert {message}", source=added.name)


def _check_numbers(added: SortedSource, info: MatrixInfo, *, allow_hypersparse: bool) -> None:
    """Check that numbers, or a stated shape, do not make the matrix far larger than its entries.

    Ids that are passed for numbers by mistake would; see also `check_stated`.
    """
    if info.vertex_ids is not None:  # only ids that occur become vertices
        return
    n, ids = info.shape[0], added.layout.vertex_ids
    lowest, highest = (int(ids[0]), int(ids[-1])) if ids is not None and len(ids) else (0, -1)
    if lowest < 0:
        raise SourceError(
            f"the ids of the store are 0..{n - 1}; the id {lowest} is negative; correct it", source=added.name
        )
    if highest >= GROWTH * (n + added.shape[0]) + GROWTH_ROOM:
        raise SourceError(
            f"the ids of the store are 0..{n - 1}, and {highest} would extend them to 0..{highest}; pass "
            f"n_vertices={highest + 1} if that is intended, else ingest all edges together",
            source=added.name,
        )
    if (shape := _extend_shape(info.shape, added.layout)) != info.shape:
        dtype = None if info.dtype is None else np.dtype(info.dtype)
        size = StoreSize(shape, info.nnz + added.most_entries, dtype, info.kind != "matrix", info.has_transpose)
        check_stated(added.layout.stated, size, allow_hypersparse=allow_hypersparse)


def _extend_shape(shape: tuple[int, int], layout: Layout) -> tuple[int, int]:
    """Return the numbers of rows and columns that those of a shape and all vertices need if names are numbers."""
    ids = layout.vertex_ids
    n_rows, n_cols = layout.shape if ids is None else (int(ids[-1]) + 1,) * 2 if len(ids) else (0, 0)
    return max(shape[0], n_rows), max(shape[1], n_cols)


# --- numbers ---------------------------------------------------------------------------------------------------------


def _number(
    stored: StoredMatrix, added: SortedSource | None, room: MemoryBudget
) -> tuple[RowNumbers, np.ndarray | None]:
    """Number old and new rows and columns together; in a store with an order, new ones come after the old.

    Parameters
    ----------
    room : memory for the numbers of inserted vertices, and for ids; and the folder of the files of ids

    Returns
    -------
    The numbering of the new version, and the number of each vertex of the insertions; None if that is its own.

    Raises
    ------
    CapacityError : the numbers do not fit in memory
    """
    info, ids, order = stored.info, open_ids(stored), stored.read_order()
    if added is None:
        return RowNumbers(info.shape, ids, order, None), None
    united: Ids | None = ids
    labels, moved = added.layout.vertex_ids, None
    if labels is not None or ids is not None or order is not None:
        need = added.shape[0] * index_dtype(sum(info.shape) + sum(added.shape)).itemsize
        check_room(need, room.memory, f"inserting {added.name}")
        added.sorter.reserve(need)
    if ids is None:
        shape = _extend_shape(info.shape, added.layout)
        numbers = None if labels is None else labels[:].astype(index_dtype(max(shape)))
    else:
        united, moved, numbers = _unite(ids, list_labels(added.layout), room)
        shape = (len(united), len(united))
        if united.dtype == np.int64 and len(united) and are_numbers(united):
            united = None
    if order is not None:
        check_square(shape, info.url)
        order = order if moved is None else moved[order]
        is_new = np.ones(shape[0], bool)
        is_new[order] = False
        order, moved = np.concatenate([order, np.flatnonzero(is_new)]).astype(index_dtype(shape[0])), None
        numbers = invert(order) if numbers is None else invert(order)[numbers]
    return RowNumbers(shape, united, order, moved), numbers


def _unite(ids: VertexLookup, labels: Ids, room: MemoryBudget) -> tuple[Ids, np.ndarray | None, np.ndarray]:
    """Merge labels into the ids of a store.

    Returns
    -------
    All ids; the number among them of each old id, None if none is new; and that of each label.
    """
    found = OccurringIds(pa.int64() if ids.dtype == np.int64 else pa.large_string(), room)
    for part in (ids, labels):
        for first in range(0, len(part), PIECE_IDS):  # distinct ids, so that their codes are their places
            found.encode(part[first : first + PIECE_IDS])
    united = found.finish()
    assert united.positions is not None
    moved, numbers = united.positions[: len(ids)], united.positions[len(ids) :]
    return (united.vertex_ids, moved, numbers) if united.shape[0] > len(ids) else (ids, None, numbers)
