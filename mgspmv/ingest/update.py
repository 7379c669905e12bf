"""A new version of a store: its entries without those that are deleted, and with those that are inserted.

    version before  --read, number anew-->  pieces \\
    deletions       --sort, number------->  pieces  >--cut at the same places--> windows --merge--> blocks of rows
    insertions      --sort, number------->  pieces /

All three are ascending by row and column. What is stored already is not sorted again: new ids between the old ones move
their numbers up without changing their order. It is read a chunk at a time, so that a row may be of any length. At each
place what is stored comes first, then what is inserted, in the order of its source, and to these the rule of the store
is applied: the result is, to the bit, what ingesting the edited list of entries makes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numba import njit

from mgspmv.errors import CapacityError, SourceError
from mgspmv.ingest.ahead import map_ahead
from mgspmv.ingest.build import find_column_bytes
from mgspmv.ingest.counts import make_report
from mgspmv.ingest.entries import Report, SortedSource, find_duplicate, merge_duplicates, shrink, sort_source
from mgspmv.ingest.ids import IdWriter
from mgspmv.ingest.names import NameWriter
from mgspmv.ingest.sorter import BLOCK_ROWS, EntrySorter
from mgspmv.ingest.source import Layout, Source
from mgspmv.ingest.stored import RowNumbers, StoredIds, StoredRows, cut_entries, list_rows, read_entries
from mgspmv.ingest.vertices import are_numbers
from mgspmv.ingest.write import Room, VersionWriter, check_stated
from mgspmv.model import CooBatch, CsrBlock, IngestOptions, MatrixInfo, index_dtype
from mgspmv.order import check_square, invert
from mgspmv.store.read import StoredMatrix
from mgspmv.store.write import StoreSize, begin_version, drop_versions

GROWTH, GROWTH_ROOM = 4, 1 << 20
"""Rows for each vertex, and beside these, that a list of edges may make of numbers that are new."""

PIECE_IDS = 1 << 16
"""Ids that are compared at a time."""
ORDER_BYTES = 32
"""Of a vertex, while its place in an order is looked up."""

Missing = Literal["ignore", "error"]
Ids = Any
"""Ascending ids: an array, or what has a dtype and a length and is sliced like one."""


@dataclass(frozen=True)
class Changes:
    """What an update changed."""

    inserted: int = 0
    """Entries that the insertions have, mirror images among them, without loops that are dropped."""
    deleted: int = 0
    """Stored entries that are no more."""
    missing: int = 0
    """Places that were to be deleted and had no entry."""
    merged: int = 0
    """Inserted entries that became part of another one at the same place, or were left out for it."""
    to_delete: int = 0
    """Places that were to be deleted."""

    def __add__(self, other: Changes) -> Changes:
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return Changes(*(a + b for a, b in pairs))


def update_store(
    stored: StoredMatrix,
    insert: Source | None,
    delete: Source | None,
    options: IngestOptions,
    describe: Callable[[dict[str, Any], Changes], dict[str, Any]],
    report: Report,
    room: Room,
    *,
    missing: Missing,
    keep: int | None,
    allow_hypersparse: bool = False,
) -> MatrixInfo:
    """Write a new version of the store that `stored` is the current version of, unless nothing changes.

    Parameters
    ----------
    options : `self_loops` of the insertions, `symmetrize` of both, `ignore_weights`; the others are those of the store
    describe : makes the version's provenance of those of `insert` and `delete`, by these names, and what they changed
    missing : what to do about deletions where there is no entry
    keep : as of `begin_version`
    allow_hypersparse : as of `check_stated`

    Returns
    -------
    What the new version says of itself; where it would have the digest of `stored`, none is made, and what that says.

    Raises
    ------
    SourceError : as for `sort_source` and `assemble`; ids or values that do not suit the store; an entry that is there
        already where the store's rule is `error`; one that is not there where `missing` is
    ShapeError : a store with an order would not stay square
    CapacityError : the numbers of vertices, or their order, take more than the memory
    StoreError : the store cannot be read or written, or has got another version meanwhile
    """
    info = stored.info
    n_shares = 1 + sum((insert is not None, delete is not None, info.has_transpose))
    memory = (room.memory - _find_tables(info, room, inserts=insert is not None)) // n_shares
    with contextlib.ExitStack() as stack:

        def sort(source: Source | None, chosen: IngestOptions) -> SortedSource | None:
            if source is None:
                return None
            return stack.enter_context(_sort_batch(source, info, chosen, report, memory // 2, room))

        def arrange(batch: SortedSource | None) -> _Batch | None:
            if batch is None:
                return None
            return _arrange(batch, numbering, stack.enter_context(_make_sorter(memory // 2, room)), memory // 4)

        added = sort(insert, _choose_insertions(info, options))
        removed = sort(delete, _choose_deletions(info, options))
        if added is not None:
            _check_values(added, info)
            _check_growth(added, info)
            _check_stated(added, info, allow_hypersparse=allow_hypersparse)
        if _is_empty(added, info) and (removed is None or not removed.most_entries):
            return _stay(stored, keep)
        numbering = _number(stored, None if added is None else added.layout, room.folder)
        merged = _MergedRows(stored, numbering, arrange(added), arrange(removed), missing=missing, threads=room.threads)
        most_columns = max(1, memory // max(1, find_column_bytes(merged)))
        with begin_version(stored.place, base=info.version, keep=keep) as version:
            writer = VersionWriter(version, report, room.threads, most_columns)
            transposed = stack.enter_context(_make_sorter(memory, room)) if info.has_transpose else None
            made = writer.write(merged, transposed, "merge and write")
            read = {"insert": added, "delete": removed}
            sources = {name: dict(batch.layout.provenance) for name, batch in read.items() if batch is not None}
            provenance = describe(sources, merged.changes)
            update = provenance["updates"][-1]
            update["reports"] = _report(sources, read, merged, update["options"])
            attributes = writer.describe(merged, made, provenance, info.order)
            if attributes["digest"] != info.digest:
                return version.commit(attributes)
            version.check_base()
    return _stay(stored, keep)


def _report(
    sources: dict[str, dict[str, Any]],
    read: dict[str, SortedSource | None],
    merged: _MergedRows,
    options: dict[str, Any],
) -> dict[str, Any]:
    """What the insertions and the deletions were taken for, JSON values."""
    changes = merged.changes
    n_left = {"insert": changes.inserted - changes.merged, "delete": changes.to_delete}
    rules = {"insert": merged.rule, "delete": "first"}
    return {
        name: make_report(sources[name], batch.counts, n_left[name], rules[name], options).to_json()
        for name, batch in read.items()
        if batch is not None
    }


def _is_empty(added: SortedSource | None, info: MatrixInfo) -> bool:
    """Whether no entry is inserted, and no vertex as far as that is known without the ids of the store."""
    if added is None or added.most_entries:
        return added is None
    layout = added.layout
    are_numbers = layout.vertex_ids is None and info.vertex_ids is None
    return layout.shape == (0, 0) or (are_numbers and _join_shapes(info.shape, layout.shape) == info.shape)


def _stay(stored: StoredMatrix, keep: int | None) -> MatrixInfo:
    """Leave the store with its versions, but for those that are not to be kept."""
    if keep is not None:
        drop_versions(stored.place, keep=keep)
    return stored.info


def _find_tables(info: MatrixInfo, room: Room, *, inserts: bool) -> int:
    """Bytes for what is in memory of all vertices: where they move to, and their order."""
    moved = index_dtype(info.shape[0]).itemsize if inserts and info.vertex_ids else 0
    need = info.shape[0] * (moved + (ORDER_BYTES if info.order else 0))
    _check_tables(need, room.memory // 2, info.url)
    return need


def _check_tables(need: int, room: int, name: str) -> None:
    if need > room:
        raise CapacityError(
            f"the numbers of the vertices of {name} take {need / 1e9:.3g} GB of memory while they are updated, of which"
            f" {room / 1e9:.3g} GB may be taken; allow more by memory=, or ingest the edited list"
        )


def _make_sorter(memory: int, room: Room) -> EntrySorter:
    return EntrySorter(memory, room.threads, room.folder)


@contextlib.contextmanager
def _sort_batch(
    source: Source, info: MatrixInfo, options: IngestOptions, report: Report, memory: int, room: Room
) -> Iterator[SortedSource]:
    with sort_source(source, options, report, memory=memory, threads=room.threads, folder=room.folder) as batch:
        _check_labels(source, batch.layout, info)
        yield batch


def _choose_insertions(info: MatrixInfo, options: IngestOptions) -> IngestOptions:
    return IngestOptions(
        kind=info.kind,
        duplicates="keep",
        self_loops=options.self_loops,
        symmetrize=options.symmetrize,
        ignore_weights=options.ignore_weights,
        dtype=info.dtype if info.dtype in ("float32", "float64") else None,  # type: ignore[arg-type]  # one of these
    )


def _choose_deletions(info: MatrixInfo, options: IngestOptions) -> IngestOptions:
    return IngestOptions(info.kind, duplicates="first", symmetrize=options.symmetrize, ignore_weights=True)


# --- what suits the store --------------------------------------------------------------------------------------------


def _check_values(added: SortedSource, info: MatrixInfo) -> None:
    given = None if added.dtype is None else added.dtype.name
    if given == info.dtype or not added.sorter.n_entries:
        return
    if info.is_pattern:
        message = "has weights, and the store holds none; pass ignore_weights=True to leave them out"
    elif given is None:
        message = f"has no weights, and the store holds some, of {info.dtype}; give each entry its weight"
    else:
        message = (
            f"has weights of {given}, and the store holds {info.dtype}; give them as integers: in arrays, a Parquet "
            "file, or a Matrix Market file of integers"
        )
    raise SourceError(f"what is to be inserted {message}", source=added.name)


def _check_labels(source: Source, layout: Layout, info: MatrixInfo) -> None:
    """See that rows and columns are called as they are in the store."""
    if layout.shape == (0, 0):
        return
    ids, is_matrix = layout.vertex_ids, source.default_kind == "matrix"
    given = "string" if ids is not None and ids.dtype.kind in "OUT" else "int64"
    if is_matrix and info.vertex_ids is not None:
        raise SourceError(
            f"the vertices of the store have ids ({info.vertex_ids}), and this is a matrix, whose rows have none; give "
            "a list of edges between ids",
            source=source.name,
        )
    if not is_matrix and info.shape[0] != info.shape[1]:
        raise SourceError(
            f"the store's matrix of {info.shape[0]} rows and {info.shape[1]} columns is not square, and this is a list "
            "of edges between vertices; give a matrix (Matrix Market, SciPy, Zarr)",
            source=source.name,
        )
    wanted = info.vertex_ids or "int64"
    if given != wanted:
        raise SourceError(
            f"the ids are {_SAID[given]}, and those of the store are {_SAID[wanted]}; give the store's",
            source=source.name,
        )


_SAID = {"string": "names", "int64": "integers"}


def _check_growth(added: SortedSource, info: MatrixInfo) -> None:
    """See that numbers of vertices that are to be inserted are no ids by mistake."""
    n, ids = info.shape[0], added.layout.vertex_ids
    if info.vertex_ids is not None or ids is None or not len(ids):
        return
    lowest, highest = int(ids[0]), int(ids[-1])
    if lowest < 0:
        raise SourceError(f"the ids of the store are 0..{n - 1}, and this has {lowest}", source=added.name)
    if highest >= GROWTH * (n + len(ids)) + GROWTH_ROOM:
        raise SourceError(
            f"the ids of the store are 0..{n - 1}, and {highest} would make them 0..{highest}; pass "
            f"n_vertices={highest + 1} if that is meant, else ingest all edges together",
            source=added.name,
        )


def _check_stated(added: SortedSource, info: MatrixInfo, *, allow_hypersparse: bool) -> None:
    """See that a shape that is stated does not make the matrix far larger than its entries; see `check_stated`."""
    if info.vertex_ids is not None:  # those that occur become vertices
        return
    if (shape := _join_shapes(info.shape, _find_extent(added.layout))) != info.shape:
        dtype = None if info.dtype is None else np.dtype(info.dtype)
        n_entries = info.nnz + added.most_entries
        size = StoreSize(shape, n_entries, dtype, info.kind != "matrix", info.has_transpose)
        check_stated(added.layout.stated, size, allow_hypersparse=allow_hypersparse)


# --- numbers ---------------------------------------------------------------------------------------------------------


class _Numbering(RowNumbers):
    """How rows and columns of the new version are numbered; all that there were stay."""

    def find(self, labels: Ids) -> np.ndarray:
        """(k,): stored numbers of ascending labels; of those that are no vertex, numbers behind all others."""
        n, n_found, n_unknown = self.shape[0], 0, 0
        numbers = np.empty(len(labels), index_dtype(n + len(labels)))
        places = None if self.order is None else invert(self.order)
        for found, is_known in self._look_up(labels):
            unknown = np.flatnonzero(~is_known)
            found[unknown] = np.arange(n + n_unknown, n + n_unknown + len(unknown))
            if places is not None:
                found[is_known] = places[found[is_known]]
            numbers[n_found : n_found + len(found)] = found
            n_found, n_unknown = n_found + len(found), n_unknown + len(unknown)
        return numbers

    def _look_up(self, labels: Ids) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """How many ids are less than each label, and whether it is one of them: piece by piece."""
        if self.vertex_ids is None:
            for first in range(0, len(labels), PIECE_IDS):
                given = labels[first : first + PIECE_IDS]
                yield given.copy(), (given >= 0) & (given < self.shape[0])
            return
        for first, known, given in _pair(self.vertex_ids, labels):
            found, is_known = _look_up(given, known)
            yield first + found, is_known


def _number(stored: StoredMatrix, added: Layout | None, folder: Path | None) -> _Numbering:
    """Old and new rows and columns together; in a store with an order, new ones come behind the old.

    Parameters
    ----------
    folder : for a file of all ids
    """
    info, order = stored.info, stored.read_order()
    ids: Ids | None = None if info.vertex_ids is None else StoredIds(stored)
    if added is None:
        return _Numbering(info.shape, ids, order, None)
    if ids is None:
        shape, moved = _join_shapes(info.shape, _find_extent(added)), None
        new = np.arange(info.shape[0], shape[0]) if order is not None else None
    else:
        ids, before = _unite(ids, _list_labels(added), folder)
        new, moved = before + np.arange(len(before)), _move(before, info.shape[0])
        shape = (len(ids), len(ids))
        if ids.dtype == np.int64 and len(ids) and are_numbers(ids):
            ids = None
    if order is not None:
        check_square(shape, info.url)
        order = np.concatenate([order if moved is None else moved[order], new]).astype(index_dtype(shape[1]))
        moved = None
    return _Numbering(shape, ids, order, moved)


def _unite(ids: StoredIds, labels: Ids, folder: Path | None) -> tuple[Ids, np.ndarray]:
    """The ids of a store and other ascending ones, in a file; and the numbers of the old ids that new ones come before.

    Where none is new, they are those of the store.
    """
    before, are_names = [np.zeros(0, np.int64)], ids.dtype != np.int64
    writer: Any = NameWriter(folder) if are_names else IdWriter(folder)
    for first, known, given in _pair(ids, labels):
        found, is_known = _look_up(given, known)
        places = found[~is_known]
        before.append(first + places)
        united = np.insert(known, places, given[~is_known])
        writer.append(pa.array(united, pa.string()) if are_names else united)
    united, places = writer.finish(), np.concatenate(before)
    if len(places):
        return united, places
    united.close()
    return ids, places


def _move(before: np.ndarray, n: int) -> np.ndarray | None:
    """(n,): the number that each old id has among all; None where none is new.

    Parameters
    ----------
    before : numbers of the old ids that new ones come before, ascending
    """
    if not len(before):
        return None
    moved = np.empty(n, index_dtype(n + len(before)))
    for first in range(0, n, PIECE_IDS):
        own = np.arange(first, min(first + PIECE_IDS, n))
        moved[first : first + len(own)] = own + np.searchsorted(before, own, side="right")
    return moved


def _pair(ids: Ids, labels: Ids) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Parts of two ascending lists that end at the same id, from the first id to the last.

    Returns
    -------
    of each: the number of the first of `ids`, and what is of `ids` and of `labels`
    """
    n_known = n_given = 0
    known, given = ids[:PIECE_IDS], labels[:PIECE_IDS]
    while len(known) or len(given):
        a, b = len(known), len(given)
        if a and b:
            end = min(known[-1], given[-1])
            a, b = (int(np.searchsorted(part, end, side="right")) for part in (known, given))
        yield n_known, known[:a], given[:b]
        n_known, n_given = n_known + a, n_given + b
        known = known[a:] if a < len(known) else ids[n_known : n_known + PIECE_IDS]
        given = given[b:] if b < len(given) else labels[n_given : n_given + PIECE_IDS]


def _look_up(labels: np.ndarray, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How many of the ascending ids are less than each label, and whether it is one of them."""
    found = np.searchsorted(ids, labels)
    is_known = found < len(ids)
    is_known[is_known] = ids[found[is_known]] == labels[is_known]
    return found, is_known


class _Numbers:
    """0..n-1, made as they are sliced."""

    dtype = np.dtype(np.int64)

    def __init__(self, n: int) -> None:
        self._n = n

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, which: Any) -> Any:
        own = range(self._n)[which]
        return np.arange(own.start, own.stop) if isinstance(own, range) else own


def _list_labels(layout: Layout) -> Ids:
    """The vertices' names, or numbers where they have none, ascending."""
    return _Numbers(layout.shape[0]) if layout.vertex_ids is None else layout.vertex_ids


def _find_extent(layout: Layout) -> tuple[int, int]:
    """Rows and columns that there must be for all, where names are numbers."""
    ids = layout.vertex_ids
    return layout.shape if ids is None else (int(ids[-1]) + 1,) * 2 if len(ids) else (0, 0)


def _join_shapes(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    return max(one[0], other[0]), max(one[1], other[1])


@dataclass(frozen=True, eq=False)
class _Batch:
    """Insertions or deletions, at the stored numbers of their rows and columns."""

    entries: SortedSource
    labels: Ids | None
    """Of its vertices; None where their stored numbers are their labels."""
    numbers: np.ndarray | None
    """The stored numbers of these, where there are labels."""
    is_numbered: bool
    """Whether entries are at the stored numbers, or at those of the batch, which ascend as these do."""

    def pieces(self, dtype: np.dtype[Any]) -> Iterator[CooBatch]:
        """All entries by row and column, these of a dtype; no two pieces have entries at the same place."""
        for block in self.entries.blocks():
            rows, cols = list_rows(block), block.indices
            if self.numbers is not None and not self.is_numbered:
                rows, cols = self.numbers[rows].astype(np.int64, copy=False), self.numbers[cols]
            yield CooBatch(rows, cols.astype(dtype, copy=False), block.data)

    def name_entry(self, row: int, col: int) -> str:
        """As a user would write it."""
        ends = row, col
        if self.labels is not None and self.numbers is not None:
            ends = tuple(self.labels[int(np.flatnonzero(self.numbers == end)[0])] for end in ends)
        first, second = ends[::-1] if self.entries.kind == "graph" else ends
        return f"({first}, {second})"


def _arrange(batch: SortedSource, numbering: _Numbering, sorter: EntrySorter, memory: int) -> _Batch:
    """Number a batch as the new version is.

    Parameters
    ----------
    sorter : for its entries, where the stored numbers do not ascend as those of the batch do
    memory : bytes for the numbers of its vertices

    Raises
    ------
    CapacityError : these take more
    """
    layout = batch.layout
    if numbering.order is None and numbering.vertex_ids is None and layout.vertex_ids is None:
        return _Batch(batch, None, None, is_numbered=True)
    labels = _list_labels(layout)
    need = len(labels) * index_dtype(numbering.shape[0] + len(labels)).itemsize
    _check_tables(need, memory, batch.name)
    batch.sorter.reserve(need)
    numbers = numbering.find(labels)
    if (numbers[1:] > numbers[:-1]).all():
        return _Batch(batch, labels, numbers, is_numbered=False)
    for block in batch.blocks():
        rows, cols = shrink(numbers[list_rows(block)]), shrink(numbers[block.indices])
        sorter.add(CooBatch(rows, cols, block.data))
    batch.close()
    shape = (int(numbers.max()) + 1,) * 2
    sorted_again = SortedSource(batch.kind, shape, batch.dtype, batch.rule, layout, batch.name, None, sorter)
    return _Batch(sorted_again, labels, numbers, is_numbered=True)


# --- the rows of the new version -------------------------------------------------------------------------------------


class _MergedRows(StoredRows):
    """The matrix of the new version, as `SortedRows`.

    Attributes
    ----------
    changes : what was changed, known once all blocks were made
    """

    def __init__(
        self,
        stored: StoredMatrix,
        numbering: _Numbering,
        added: _Batch | None,
        removed: _Batch | None,
        *,
        missing: Missing,
        threads: int,
    ) -> None:
        super().__init__(stored, threads, numbering)
        if added is not None:
            self.name = added.entries.name
        self.changes = Changes()
        self._added, self._removed, self._missing = added, removed, missing

    @property
    def most_entries(self) -> int:
        return self._stored.info.nnz + (0 if self._added is None else self._added.entries.most_entries)

    def blocks(self) -> Iterator[CsrBlock]:
        """
        Raises
        ------
        SourceError : an entry that is there already, or is not there, and was to be an error; a sum beyond int64
        StoreError : the version before cannot be read
        """
        added = None if self._added is None else self._added.entries
        self.changes = Changes(inserted=0 if added is None else added.most_entries - added.counts.n_loops)
        with ThreadPoolExecutor(self._threads, "mgspmv-merge") as pool:
            for blocks, changes in map_ahead(pool, self._merge, self._cut_windows(pool), self._threads):
                self.changes += changes
                yield from blocks

    def close(self) -> None:
        """Let go of the insertions and deletions."""
        for batch in (self._added, self._removed):
            if batch is not None:
                batch.entries.close()

    def _cut_windows(self, pool: ThreadPoolExecutor) -> Iterator[list[CooBatch]]:
        """Stored entries, deletions and insertions between the same two places, from the first place to the last."""
        ranges = cut_entries(self._stored, self._threads)
        pieces = map_ahead(pool, self._read_piece, ranges, self._threads)
        if self.rule == "keep":
            pieces = _leave_places_whole(pieces)
        index, rows = index_dtype(self.shape[1]), np.zeros(0, np.int64)
        gone = iter(()) if self._removed is None else self._removed.pieces(rows.dtype)
        new = iter(()) if self._added is None else self._added.pieces(index)
        nothing = CooBatch(rows, np.zeros(0, index), self._make_values(0))
        streams = [_Stream(pieces, nothing), _Stream(gone, CooBatch(rows, rows, None)), _Stream(new, nothing)]
        while ends := [stream.last for stream in streams if stream.last is not None]:
            yield [stream.take(min(ends)) for stream in streams]

    def _read_piece(self, entries: tuple[int, np.ndarray]) -> CooBatch:
        block = read_entries(self._stored, entries)
        rows, cols = list_rows(block), block.indices
        if self._places is not None:
            rows, cols = self._places[rows].astype(np.int64, copy=False), self._places[cols]
        return CooBatch(rows, cols.astype(index_dtype(self.shape[1]), copy=False), block.data)

    def _merge(self, window: list[CooBatch]) -> tuple[list[CsrBlock], Changes]:
        old, gone, new = window
        n = len(old.rows) + len(new.rows)
        rows, cols = np.empty(n, np.int64), np.empty(n, index_dtype(self.shape[1]))
        values = self._make_values(n)
        is_found = np.zeros(len(gone.rows), bool)
        n = _merge_entries(
            old.rows, old.cols, old.values, gone.rows, gone.cols, is_found, new.rows, new.cols, new.values,
            rows, cols, values,
        )  # fmt: skip
        if self._missing == "error" and not is_found.all():
            self._refuse_missing(gone, int(np.flatnonzero(~is_found)[0]))
        merged = CooBatch(rows[:n], cols[:n], None if values is None else values[:n])
        blocks = [self._treat_duplicates(block) for block in _make_blocks(merged, self.shape[1])]
        n_missing, n_left = len(is_found) - int(np.count_nonzero(is_found)), sum(block.nnz for block in blocks)
        return blocks, Changes(0, len(old.rows) + len(new.rows) - n, n_missing, n - n_left, len(gone.rows))

    def _make_values(self, n: int) -> np.ndarray | None:
        return None if self.dtype is None else np.empty(n, self.dtype)

    def _treat_duplicates(self, block: CsrBlock) -> CsrBlock:
        if self.rule != "error":
            return merge_duplicates(self.name, block, self.rule)
        if self._added is not None and (entry := find_duplicate(block)):
            raise SourceError(
                f"the entry {self._added.name_entry(*entry)} is to be inserted and would be there more than once, and "
                "the store was made with duplicates='error'; to replace it, name it in what is to be deleted too",
                source=self.name,
            )
        return block

    def _refuse_missing(self, gone: CooBatch, k: int) -> None:
        assert self._removed is not None
        entry = self._removed.name_entry(int(gone.rows[k]), int(gone.cols[k]))
        raise SourceError(
            f"the entry {entry} is to be deleted and is not there; pass missing='ignore' if that is no error",
            source=self._removed.entries.name,
        )


def _leave_places_whole(pieces: Iterator[CooBatch]) -> Iterator[CooBatch]:
    """The same entries, of which those at one place are in one piece."""
    held: CooBatch | None = None
    for piece in pieces:
        if held is None:
            held = piece
        elif _get_place(held, -1) != _get_place(piece, 0):
            yield held
            held = piece
        else:
            row, col = _get_place(piece, 0)
            n = _count_until(held, row, col, side="left")
            if n:
                yield _slice(held, 0, n)
            held = _join([_slice(held, n, len(held.rows)), piece])
    if held is not None:
        yield held


class _Stream:
    """Pieces of ascending entries, of which those up to a place can be taken.

    Parameters
    ----------
    nothing : no entries, of the dtypes of the pieces

    Attributes
    ----------
    last : row and column of the last entry at hand; those of the next piece are at other places. None at the end
    """

    def __init__(self, pieces: Iterator[CooBatch], nothing: CooBatch) -> None:
        self._pieces, self._left = pieces, nothing
        self.last: tuple[int, int] | None = None
        self._go_on()

    def take(self, place: tuple[int, int]) -> CooBatch:
        """The entries up to a place, which is that of the last one at hand or before it."""
        n = _count_until(self._left, *place, side="right")
        taken, self._left = _slice(self._left, 0, n), _slice(self._left, n, len(self._left.rows))
        self._go_on()
        return taken

    def _go_on(self) -> None:
        while not len(self._left.rows):
            piece = next(self._pieces, None)
            if piece is None:
                self.last = None
                return
            self._left = piece
        self.last = _get_place(self._left, -1)


def _make_blocks(entries: CooBatch, n_cols: int) -> Iterator[CsrBlock]:
    """Rows of ascending entries, each block of at most `BLOCK_ROWS` of them."""
    start = 0
    while start < len(entries.rows):
        first = int(entries.rows[start])
        stop = int(np.searchsorted(entries.rows, first + BLOCK_ROWS))
        part = _slice(entries, start, stop)
        indptr = np.zeros(int(part.rows[-1]) - first + 2, np.int64)
        np.cumsum(np.bincount(part.rows - first), out=indptr[1:])
        yield CsrBlock(first, n_cols, indptr, part.cols, part.values)
        start = stop


def _get_place(entries: CooBatch, k: int) -> tuple[int, int]:
    return int(entries.rows[k]), int(entries.cols[k])


def _count_until(entries: CooBatch, row: int, col: int, *, side: Literal["left", "right"]) -> int:
    """How many ascending entries are before a place; with `right`, or at it."""
    start, stop = (int(np.searchsorted(entries.rows, row, side=each)) for each in ("left", "right"))
    return start + int(np.searchsorted(entries.cols[start:stop], col, side=side))


def _slice(entries: CooBatch, start: int, stop: int) -> CooBatch:
    values = None if entries.values is None else entries.values[start:stop]
    return CooBatch(entries.rows[start:stop], entries.cols[start:stop], values)


def _join(parts: Sequence[CooBatch]) -> CooBatch:
    values = [part.values for part in parts if part.values is not None]
    rows, cols = (np.concatenate([getattr(part, side) for part in parts]) for side in ("rows", "cols"))
    return CooBatch(rows, cols, np.concatenate(values) if values else None)


@njit(nogil=True, cache=True)
def _merge_entries(
    old_rows, old_cols, old_values, gone_rows, gone_cols, is_found, new_rows, new_cols, new_values, rows, cols, values
):
    """Write the old entries that are not gone and the new ones, at the same place after them; give their number.

    All are ascending. `is_found` tells which of those that are gone there were.
    """
    k = d = a = n = 0
    while k < len(old_rows) or a < len(new_rows):
        if k == len(old_rows) or (
            a < len(new_rows)
            and (new_rows[a] < old_rows[k] or (new_rows[a] == old_rows[k] and new_cols[a] < old_cols[k]))
        ):
            rows[n], cols[n] = new_rows[a], new_cols[a]
            if values is not None:
                values[n] = new_values[a]
            a += 1
            n += 1
            continue
        row, col = old_rows[k], old_cols[k]
        while d < len(gone_rows) and (gone_rows[d] < row or (gone_rows[d] == row and gone_cols[d] < col)):
            d += 1
        if d < len(gone_rows) and gone_rows[d] == row and gone_cols[d] == col:
            is_found[d] = True
        else:
            rows[n], cols[n] = row, col
            if values is not None:
                values[n] = old_values[k]
            n += 1
        k += 1
    return n
