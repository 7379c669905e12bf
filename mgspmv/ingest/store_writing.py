"""Writing of a source to a store within a memory budget: rows are written as they are sorted, or reordered.

    rows  --count, for `rcm` hold the columns-->  order  -->  the new number of each row
    rows  --renumber-->  entries  --sort-->  rows in that order

Tables of the rows, and for `rcm` the pattern, must fit in memory. Entries at the same place keep their order.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from mgspmv.display import format_bytes
from mgspmv.errors import CapacityError
from mgspmv.heartbeat import prefetch_map
from mgspmv.ingest.budget import MemoryBudget, StoreSize, check_space, check_stated
from mgspmv.ingest.build import Assembled, assemble, hold
from mgspmv.ingest.device_sorting import DeviceSlices
from mgspmv.ingest.entries import MakeDeviceSorter, SortedRows, SortedSource, find_size, sort_source
from mgspmv.ingest.external_sort import EntrySorter
from mgspmv.ingest.numbering import find_id_type
from mgspmv.ingest.source import Layout, Source, settle
from mgspmv.ingest.stored import StoredRows
from mgspmv.ingest.zarr_groups import GroupSource
from mgspmv.ingest_report import make_report
from mgspmv.model import IngestOptions, MatrixInfo, OrderMethod, Progress, ignore, index_dtype
from mgspmv.order import METHODS, WITH_PATTERN, estimate_bytes, invert, renumber_entries, restore
from mgspmv.store.chunks import AppendArray
from mgspmv.store.held import HeldMatrix, Writing, describe_unstored
from mgspmv.store.locations import StoreLike, describe_store
from mgspmv.store.read import open_store
from mgspmv.store.stored_matrix import StoredMatrix, find_least
from mgspmv.store.write import Version, begin_version
from mgspmv.validation import to_json

SUM_PART = 3
"""Divisor of the memory for the entries of a sorted matrix: sums of columns may take one part of this many."""


def store_source(
    source: Source,
    store: StoreLike,
    options: IngestOptions,
    describe: Callable[[dict[str, Any]], dict[str, Any]],
    report: Progress,
    room: MemoryBudget,
    *,
    base: str | None,
    allow_hypersparse: bool = False,
    make_device_sorter: MakeDeviceSorter | None = None,
    wait: bool = True,
) -> StoredMatrix:
    """Read a source and write it as the new version of a store, in the order of the source or in that of the options.

    Parameters
    ----------
    describe : function from the source's provenance to the store's
    allow_hypersparse : see `check_stated`
    make_device_sorter : as for `sort_source`
    wait : whether to return once the store is written; otherwise a thread writes a graph that is built on a device

    Returns
    -------
    The matrix as it was built on a device, if it was, else as it is opened.

    Raises
    ------
    SourceError, OptionError, ShapeError : as in `sort_source`, `check_stated` and `assemble`
    CapacityError : the entries at one row and column do not fit into memory; as in `reorder_rows` and `check_space`
    StoreError : as in `begin_version`
    """
    order = None if options.order == "none" else options.order
    own = replace(room, memory=room.memory // 2) if options.transpose or order else room
    with contextlib.ExitStack() as stack:
        if isinstance(source, GroupSource):  # its arrays may state any size without any chunk
            _check_group(source, store, options, room, allow_hypersparse=allow_hypersparse)
        read = stack.enter_context(sort_source(source, options, report, own, make_device_sorter))
        size = find_size(read, has_transpose=options.transpose)
        check_stated(read.layout.stated, size, allow_hypersparse=allow_hypersparse)
        made_from = dict(read.layout.provenance)
        matrix, provenance = read, describe(made_from)
        if order:
            reordered = reorder_rows(read, order, report, own)
            matrix, provenance["reordering"] = stack.enter_context(reordered)
            own = replace(own, memory=own.memory - read.layout.nbytes)

        def describe_made(nnz: int) -> dict[str, Any]:
            ingested = make_report(made_from, read.counts, nnz, read.rule, provenance.get("options", {}))
            settled: dict[str, Any] = settle(provenance)
            return settled | {"report": to_json(ingested)}

        if read.is_built_on_device:
            return _store_built(read, store, options, describe_made, report, own, base=base, wait=wait)
        writing: dict[str, Any] = {"base": base, "order": order, "has_transpose": options.transpose}
        info = write_version(store, matrix, describe_made, report, own, **writing)
    return open_store(store, info.version)


def _store_built(
    matrix: SortedSource,
    store: StoreLike,
    options: IngestOptions,
    describe: Callable[[int], dict[str, Any]],
    report: Progress,
    room: MemoryBudget,
    *,
    base: str | None,
    wait: bool,
) -> HeldMatrix:
    """Build a graph on a device, and write it as the new version of a store; arguments as for the callers."""
    check_space(store, find_size(matrix, has_transpose=options.transpose))
    with contextlib.ExitStack() as stack:
        version = stack.enter_context(begin_version(store, base=base))
        report("sort and write", 0, None)
        arrays = matrix.build(has_transpose=options.transpose)
        nnz, least = len(arrays["indices"]), find_least(arrays.get("data"))
        slices = {name: DeviceSlices(array) for name, array in arrays.items()}
        unwritten = stack.pop_all()

        def write(report: Progress) -> StoredMatrix:
            with unwritten:
                for place, shape in (("", matrix.shape), ("transpose", matrix.shape[::-1]))[: 1 + options.transpose]:
                    version.open_rows(place, shape, has_values=matrix.dtype is not None)
                for name, array in slices.items():
                    report(f"write {name}", 0, None)
                    version.write_array(name, array, room.threads)
                _write_vertices(version, matrix, room.threads)
                info = version.commit(version.describe(_describe(matrix, nnz, least, describe(nnz))))
            return open_store(store, info.version)

    writing = Writing()
    if wait:
        writing.set_result(write(report))
        return HeldMatrix(info=writing.result().info, place=store, arrays=arrays, writing=writing)
    url, held = describe_store(store), hold(matrix, dict(arrays), nnz, least, options)
    writing.start(lambda: write(ignore), url)
    return replace(held, info=replace(held.info, url=url), place=store, writing=writing)


def _check_group(
    source: GroupSource, store: StoreLike, options: IngestOptions, room: MemoryBudget, *, allow_hypersparse: bool
) -> None:
    """Check the sizes that a Zarr group states before it is read: a missing chunk is one of fill values.

    Raises
    ------
    SourceError, CapacityError : as in `check_stated` and `check_space`; its entries do not fit on disk for sorting
    """
    layout, kind = source.layout(), options.kind or source.default_kind
    size = StoreSize(layout.shape, source.n_entries, None, kind != "matrix", options.transpose)
    check_stated(layout.stated, size, allow_hypersparse=allow_hypersparse)
    check_space(store, size)
    folder = room.folder or Path(tempfile.gettempdir())
    if size.entries_bytes > (free := shutil.disk_usage(folder).free + room.memory):
        raise CapacityError(
            f"{source.name} states {source.n_entries:,} entries, and sorting them takes at least "
            f"{format_bytes(size.entries_bytes)} ({size.entries_bytes:,} bytes), but only {format_bytes(free)} of "
            f"memory and disk in {folder} are free; pass a folder with more space as scratch="
        )


def write_version(
    store: StoreLike,
    matrix: SortedRows,
    describe: Callable[[int], dict[str, Any]],
    report: Progress,
    room: MemoryBudget,
    *,
    base: str | None,
    keep: int | None = 1,
    order: OrderMethod | None,
    has_transpose: bool,
    phase: str = "sort and write",
    unless: StoredMatrix | None = None,
) -> MatrixInfo:
    """Write a matrix as the new version of a store, and return the metadata of the version.

    Parameters
    ----------
    matrix : matrix to write; it is closed
    describe : function from the number of written entries to the provenance of the version
    room : memory, threads and folder for the entries of the transpose; the sums of columns take as much, or of a
        sorted matrix a part of the memory for its entries
    base, keep : see `begin_version`
    order : method that made the order of the matrix; None if it has none
    phase : phase in calls of `report`
    unless : version that stays the current one if the matrix has its digest

    Raises
    ------
    SourceError, CapacityError : as in `assemble` and `check_space`
    StoreError : as in `begin_version`
    """
    check_space(store, find_size(matrix, has_transpose=has_transpose))
    column_bytes, is_sorted = _find_column_bytes(matrix), isinstance(matrix, SortedSource)
    most_columns = max(1, room.memory // (SUM_PART if is_sorted else 1) // max(1, column_bytes))

    def write_rows(place: str, own: SortedRows, phase: str, transposed: EntrySorter | None = None) -> Assembled:
        group = version.open_rows(place, own.shape, has_values=own.dtype is not None)
        with ThreadPoolExecutor(room.threads, "mgspmv-write") as pool:
            make = partial(AppendArray, group, pool=pool, n_ahead=1)
            made = assemble(own, make, report, transposed, phase, most_columns)
        version.written.update({f"{place}/{name}".lstrip("/"): array for name, array in made.arrays.items()})
        return made

    with (
        begin_version(store, base=base, keep=keep) as version,
        EntrySorter(room.memory, room.threads, room.folder) as transposed,
    ):
        if isinstance(matrix, SortedSource):
            matrix.sorter.reserve(column_bytes * min(most_columns, matrix.shape[1]))
        made = write_rows("", matrix, phase, transposed if has_transpose else None)
        matrix.close()
        pa.default_memory_pool().release_unused()  # writing names needs the most memory
        _write_vertices(version, matrix, room.threads)
        if has_transpose:
            layout = Layout(matrix.shape[::-1])
            other = SortedSource("matrix", matrix.dtype, "keep", layout, matrix.name, transposed)
            write_rows("transpose", other, "write the transpose")
        attributes = version.describe(_describe(matrix, made.nnz, made.least, describe(made.nnz), order))
        if unless is None or attributes["digest"] != unless.info.digest:
            return version.commit(attributes)
        version.writer.check_base(base)  # as `commit`, which is not called, would do
        return unless.info


def _write_vertices(version: Version, matrix: SortedRows, threads: int) -> None:
    """Write the ids and the order of the vertices, if they have any."""
    for name, array in (("vertex_ids", matrix.vertex_ids), ("order", matrix.order)):
        if array is not None:
            version.write_array(name, array, threads)


def _describe(
    matrix: SortedRows, nnz: int, least: float | None, provenance: dict[str, Any], order: OrderMethod | None = None
) -> MatrixInfo:
    own = matrix.kind, matrix.shape, nnz, matrix.dtype, matrix.rule, find_id_type(matrix.vertex_ids)
    return describe_unstored(*own, least, provenance, order=order)


def _find_column_bytes(matrix: SortedRows) -> int:
    """Return the bytes of the sums of one column."""
    return 0 if matrix.kind == "matrix" else 8 if matrix.dtype is None else 32


# --- orders ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def reorder_rows(
    matrix: SortedRows, method: str, report: Progress, room: MemoryBudget
) -> Iterator[tuple[SortedSource, dict[str, Any]]]:
    """Reorder a square matrix by a method, or restore the order of its source for `none`, from any current order.

    Parameters
    ----------
    matrix : matrix to reorder; it is closed
    report : called with (phase, entries done, total entries or None); phases `order` and `renumber`
    room : memory, threads and folder for the tables of its rows and for its entries

    Yields
    ------
    The matrix, and the provenance of its order: the method, and the bandwidth before and after.

    Raises
    ------
    CapacityError : the tables, or the pattern, do not fit into memory
    SourceError, StoreError : as in its `blocks`
    """
    n = matrix.shape[0]
    if (need := estimate_bytes(method, n, matrix.most_entries)) > room.memory:
        raise CapacityError(
            f"reordering {matrix.name} needs {need / 1e9:.3g} GB of host memory, but only {room.memory / 1e9:.3g} GB "
            "may be used; raise memory=, or use the matrix in its current order"
        )
    order = None if method == "none" else _find_order(matrix, method, report)
    places = np.arange(n, dtype=index_dtype(n)) if order is None else invert(order)
    places = places if matrix.order is None else places[matrix.order]
    with EntrySorter(room.memory - 2 * places.nbytes, room.threads, room.folder) as sorter:
        notify = lambda n_done: report("renumber", n_done, matrix.most_entries)  # noqa: E731
        widths = add_rows(matrix, places, sorter, notify, room.threads, measures=True)
        del places
        made = {"method": method, "bandwidth_before": widths[0], "bandwidth_after": widths[1]}
        layout = Layout(matrix.shape, matrix.vertex_ids)
        yield SortedSource(matrix.kind, matrix.dtype, matrix.rule, layout, matrix.name, sorter, order=order), made


def _find_order(matrix: SortedRows, method: str, report: Progress) -> np.ndarray:
    if method in WITH_PATTERN:
        lengths, indices = _read_pattern(matrix, report)
        report("order", 0, None)
        return METHODS[method](lengths, indices)
    lengths = matrix.count_rows() if isinstance(matrix, StoredRows) else _count_rows(matrix, report)
    lengths = restore(lengths, matrix.order)
    report("order", 0, None)
    return METHODS[method](lengths, None)


def _count_rows(matrix: SortedRows, report: Progress, columns: np.ndarray | None = None) -> np.ndarray:
    """Return the (n_rows,) int64 entries per row; optionally write all columns to the array `columns`."""
    lengths, n_read = np.zeros(matrix.shape[0], np.int64), 0
    for block in matrix.blocks():
        lengths[block.row_offset : block.row_offset + block.n_rows] += np.diff(block.indptr)
        if columns is not None:
            columns[n_read : n_read + block.nnz] = block.indices
        n_read += block.nnz
        report("order", n_read, matrix.most_entries)
    return lengths


def _read_pattern(matrix: SortedRows, report: Progress) -> tuple[np.ndarray, np.ndarray]:
    """Return the entries per row and the columns of all entries, in the order of the source."""
    n = matrix.shape[0]
    indices = np.empty(matrix.most_entries, index_dtype(n))
    lengths = _count_rows(matrix, report, indices)
    indices = indices[: int(lengths.sum())]
    if matrix.order is None:
        return lengths, indices
    from scipy.sparse import csr_array

    dtype = index_dtype(max(n, len(indices)))  # one for both, or SciPy widens the columns
    indptr = np.append(0, np.cumsum(lengths)).astype(dtype)
    columns = matrix.order[indices].astype(dtype, copy=False)
    pattern = csr_array((np.ones(len(indices), bool), columns, indptr), shape=(n, n))[invert(matrix.order)]
    pattern.sort_indices()
    return np.diff(pattern.indptr).astype(np.int64), pattern.indices


def add_rows(
    matrix: SortedRows,
    places: np.ndarray | None,
    sorter: EntrySorter,
    report: Callable[[int], object],
    threads: int,
    *,
    measures: bool = False,
) -> tuple[int, int]:
    """Add all entries of a matrix to a sorter, and close the matrix; return the bandwidth before and after.

    Parameters
    ----------
    places : (n,) new number of each row and column; None to keep the numbers
    report : called with the number of entries so far
    measures : whether to find the bandwidths
    """
    before = after = n_done = 0
    work = partial(renumber_entries, places=places, measures=measures)
    with ThreadPoolExecutor(threads, "mgspmv-renumber") as pool:
        for batch, *widths in prefetch_map(pool, work, matrix.blocks(), threads):
            sorter.add(batch)
            before, after = max(before, widths[0]), max(after, widths[1])
            n_done += len(batch.rows)
            report(n_done)
    matrix.close()
    return before, after
