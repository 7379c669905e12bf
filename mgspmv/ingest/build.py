"""CSR arrays of a matrix and sums of its columns, built from its rows, and sources read into matrices in memory.

Blocks of rows are streamed, see `mgspmv.ingest.entries`: the whole matrix is in memory only if the caller keeps all of
them, as `load_source` does.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any, Protocol

import numpy as np

from mgspmv.display import format_bytes
from mgspmv.errors import CapacityError, SourceError
from mgspmv.heartbeat import prefetch_map
from mgspmv.ingest.block_sorting import SMALL
from mgspmv.ingest.budget import MemoryBudget, check_stated
from mgspmv.ingest.entries import MakeDeviceSorter, SortedRows, SortedSource, find_size, shrink, sort_source
from mgspmv.ingest.external_sort import EntrySorter
from mgspmv.ingest.numbering import find_id_type
from mgspmv.ingest.source import Layout, Source, infinite_error
from mgspmv.ingest.stored import cut_entries
from mgspmv.ingest_report import make_report
from mgspmv.kernels.compiled import compile_later
from mgspmv.model import (
    STOCHASTIC_TOLERANCE,
    CooBatch,
    CsrBlock,
    IngestOptions,
    Kind,
    Progress,
    default_threads,
    free_memory,
    index_dtype,
)
from mgspmv.order import list_rows
from mgspmv.store.held import PLACE, HeldArrays, HeldMatrix, describe_unstored
from mgspmv.store.stored_matrix import TRANSPOSE, StoredMatrix, find_least

_FILLED = 1 << 20
"""Most row pointers that are made at a time for empty rows."""


class Appendable(Protocol):
    """Array that is built by appending."""

    def append(self, elements: np.ndarray) -> None:
        """Append elements."""
        ...

    def finish(self) -> Any:
        """Return the complete array; nothing is appended afterwards."""
        ...

    def pieces(self) -> Iterator[np.ndarray]:
        """Yield the elements, one part after the other, once the array is finished."""
        ...


class HeldArray:
    """Array in memory that is built by appending.

    Parameters
    ----------
    most : number of elements for which room is reserved; pages that are not written take no memory
    """

    def __init__(self, name: str, dtype: np.dtype[Any], most: int) -> None:
        self._array: np.ndarray = np.empty(most, dtype)
        self._n = 0

    def append(self, elements: np.ndarray) -> None:
        self._array[self._n : self._n + len(elements)] = elements
        self._n += len(elements)

    def finish(self) -> np.ndarray:
        return self._array[: self._n]

    def pieces(self) -> Iterator[np.ndarray]:
        yield self._array[: self._n]


@dataclass(frozen=True, eq=False)
class Assembled:
    """Arrays built from the rows of a matrix."""

    nnz: int
    arrays: dict[str, Any]
    """Results of `finish` by name: `indptr`, `indices`, `data` if there are values; unless the kind is `matrix`, also
    `out_degree`, and `out_weight` if there are values."""
    lowest: list[float]
    """Smallest value of each block, NaN if any of its values is NaN."""

    @property
    def least(self) -> float | None:
        """Least value; None if there is none or it is not finite."""
        return find_least(np.array(self.lowest))


def assemble(
    matrix: SortedRows,
    make_array: Callable[[str, np.dtype[Any], int], Appendable],
    report: Progress,
    transposed: EntrySorter | None = None,
    phase: str = "sort",
    most_columns: int | None = None,
    rows: tuple[int, int] | None = None,
) -> Assembled:
    """Build the arrays of a matrix, from its first row to its last.

    Parameters
    ----------
    make_array : called with (name, dtype, most elements)
    transposed : receives all entries, with rows and columns exchanged
    phase : for `report`
    most_columns : number of columns that are summed at a time; each further range reads all entries again; None for all
    rows : range of rows that contains all entries; row pointers are made for this range; None for all rows. Degrees
        and weights are computed only for None

    Raises
    ------
    SourceError : as for its blocks; a weight that is not finite; an entry of a stochastic matrix that is negative, a
        column of it that does not sum to 1
    """
    (start, stop), n_cols, n_most = rows or (0, matrix.shape[0]), matrix.shape[1], matrix.most_entries
    made = {"indptr": make_array("indptr", np.dtype(np.int64), stop - start + 1)}
    made["indices"] = make_array("indices", index_dtype(n_cols), n_most)
    if matrix.dtype is not None:
        made["data"] = make_array("data", matrix.dtype, n_most)
    step = max(1, most_columns or n_cols)
    pointers, least, nnz = RowPointers(made["indptr"], start), list[float](), 0
    has_sums = rows is None and matrix.kind != "matrix"
    ranges = [(a, min(a + step, n_cols)) for a in range(0, max(1, n_cols), step)] if has_sums else []
    sums = None if not has_sums else ColumnSums(matrix.kind, matrix.name, matrix.dtype, *ranges[0], matrix.order)
    report(phase, 0, n_most)
    for block in matrix.blocks() if sums is None else _add_blocks(matrix.blocks(), sums):
        if matrix.kind == "stochastic":
            _check_signs(matrix, block)
        pointers.put(block)
        made["indices"].append(block.indices)
        if block.data is not None:
            made["data"].append(block.data)
            least += [float(block.data.min())] if block.nnz else []
        if transposed is not None:
            transposed.add(CooBatch(block.indices, shrink(list_rows(block)), block.data))
        nnz += block.nnz
        report(phase, nnz, n_most)
    report(phase, n_most, n_most)
    pointers.end(stop)
    arrays = {name: array.finish() for name, array in made.items()}
    if sums is not None:
        added = _add_up(matrix, sums, ranges, made, make_array, report)
        arrays |= {name: array.finish() for name, array in added.items()}
    return Assembled(nnz, arrays, least)


def _add_blocks(blocks: Iterator[CsrBlock], sums: ColumnSums) -> Iterator[CsrBlock]:
    """Yield blocks, while another thread adds them to the sums of their columns, in their order."""
    with ThreadPoolExecutor(1, "mgspmv-add") as pool:
        adding: Future[None] | None = None
        for block in blocks:
            if adding is not None:
                adding.result()
            adding = pool.submit(sums.add, block.indices, block.data)
            yield block
        if adding is not None:
            adding.result()


def _add_up(
    matrix: SortedRows,
    sums: ColumnSums,
    ranges: list[tuple[int, int]],
    entries: dict[str, Appendable],
    make_array: Callable[[str, np.dtype[Any], int], Appendable],
    report: Progress,
) -> dict[str, Appendable]:
    """Compute the sums of all columns.

    Parameters
    ----------
    sums : sums of the first range of columns
    entries : the indices and, if there are values, the data of all entries, from which the other ranges are summed
    """
    made = {"out_degree": make_array("out_degree", np.dtype(np.int64), matrix.shape[1])}
    if matrix.dtype is not None:
        made["out_weight"] = make_array("out_weight", np.dtype(np.float64), matrix.shape[1])
    for k, (a, b) in enumerate(ranges):
        if k:
            report("add up columns", a, matrix.shape[1])
            sums.begin(a, b)
            values = entries["data"].pieces() if "data" in entries else repeat(None)
            for indices, data in zip(entries["indices"].pieces(), values, strict=False):
                sums.add(indices, data)
        degree, weight = sums.finish()
        made["out_degree"].append(degree)
        if weight is not None:
            made["out_weight"].append(weight)
        del degree, weight  # frees them before the next are allocated
    return made


class RowPointers:
    """Row pointers of consecutive blocks of rows; a row that continues in later blocks ends in the last of them.

    Parameters
    ----------
    first_row : first row of the first block, or an earlier one
    """

    def __init__(self, array: Appendable, first_row: int = 0) -> None:
        self._array, self._row, self._n = array, first_row, 0
        self._array.append(np.zeros(1, np.int64))

    def put(self, block: CsrBlock) -> None:
        """Append the pointers of the next block, whose last row may continue in the one after it."""
        self._fill(block.row_offset)
        ends = block.indptr[1:-1]
        self._array.append(ends + self._n)
        self._row += len(ends)
        self._n += block.nnz

    def end(self, n_rows: int) -> None:
        """Append the pointers of the remaining rows, up to `n_rows`."""
        self._fill(n_rows)

    def _fill(self, row: int) -> None:
        while self._row < row:
            n = min(row - self._row, _FILLED)
            self._array.append(np.full(n, self._n, np.int64))
            self._row += n


def _check_signs(matrix: SortedRows, block: CsrBlock) -> None:
    """Raise SourceError if an entry of a stochastic matrix is negative."""
    if block.data is None or not (is_negative := (block.data < 0) & (block.data > -np.inf)).any():
        return
    k = int(np.argmax(is_negative))
    row = block.row_offset + int(np.searchsorted(block.indptr, k, side="right")) - 1
    place = (row, int(block.indices[k]))
    row, column = place if matrix.order is None else (int(matrix.order[number]) for number in place)
    raise SourceError(
        f"entries of a left-stochastic matrix must be 0 or more, but row {row}, column {column} has {block.data[k]}; "
        "correct it, or ingest with kind='graph' or 'matrix'",
        source=matrix.name,
    )


class ColumnSums:
    """Numbers of entries and sums of values of the columns of a range.

    Parameters
    ----------
    kind, name, dtype : properties of the matrix
    start, stop : range of columns
    order : the source's number of each column; None if columns are not renumbered
    """

    def __init__(
        self, kind: Kind, name: str, dtype: np.dtype[Any] | None, start: int, stop: int, order: np.ndarray | None = None
    ) -> None:
        self._kind, self._name, self._dtype, self._order = kind, name, dtype, order
        self.begin(start, stop)

    def begin(self, start: int, stop: int) -> None:
        """Discard the sums, and start again with columns start .. stop."""
        self._start, self._n_infinite = start, 0
        self._degree, self._sums = np.zeros(0, np.int64), None  # frees them before the next are allocated
        self._degree = np.zeros(stop - start, np.int64)
        self._sums = None if self._dtype is None else np.zeros((2, stop - start))

    def add(self, indices: np.ndarray, data: np.ndarray | None) -> None:
        if _count.is_worth(len(indices)):
            _count(indices, self._start, self._degree)
        else:
            keys = indices - self._start
            np.add.at(self._degree, keys[(keys >= 0) & (keys < len(self._degree))], 1)
        if data is not None and self._sums is not None:
            self._n_infinite += len(data) - int(np.count_nonzero(np.isfinite(data)))
            _add_columns(indices, data, self._start, *self._sums)

    def give(self, start: int, stop: int) -> ColumnSums:
        """Return the sums of columns start .. stop, to be passed to `join` in another process."""
        own, given = slice(start - self._start, stop - self._start), copy.copy(self)
        given._start, given._degree = start, self._degree[own]
        given._sums = None if self._sums is None else self._sums[:, own]
        return given

    def join(self, other: ColumnSums) -> None:
        """Add the sums of other entries of these columns, computed by another process."""
        self._degree += other._degree
        self._n_infinite += other._n_infinite
        if self._sums is not None and other._sums is not None:
            join_sums(*self._sums, *other._sums)

    def finish(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Return degrees, and weights if there are values; raises SourceError for sums that do not suit the kind."""
        if self._n_infinite:
            raise infinite_error(self._kind, self._n_infinite, self._name)
        weight = None if self._sums is None else self._sums[0] + self._sums[1]
        if self._kind != "stochastic":
            return self._degree, weight
        total = self._degree if weight is None else weight
        is_wrong = (self._degree > 0) & ~(np.abs(total - 1) <= STOCHASTIC_TOLERANCE)
        if is_wrong.any():
            k = int(np.argmax(is_wrong))
            number = self._start + k if self._order is None else int(self._order[self._start + k])
            raise SourceError(
                f"each column of a left-stochastic matrix must sum to 1 or be empty, but column {number} sums to "
                f"{total[k]}; normalize it (if its rows sum to 1, transpose it), or ingest with kind='graph'",
                source=self._name,
            )
        return self._degree, weight


def join_sums(high: np.ndarray, low: np.ndarray, other_high: np.ndarray, other_low: np.ndarray) -> None:
    """Add other sums to high + low, in double-double arithmetic."""
    with np.errstate(invalid="ignore"):  # `finish` raises an error for infinite values
        total = high + other_high
        part = total - high
        low += (high - (total - part)) + (other_high - part) + other_low
    high[:] = total


@compile_later(SMALL)
def _count(keys, start, counts):
    """Count the occurrences of each key in `start` .. `start + len(counts) - 1`."""
    for key in keys:
        if start <= key < start + len(counts):
            counts[key - start] += 1


@compile_later()
def _add_columns(indices, data, start, high, low):
    """Add each value to high + low of its column, from start on, in double-double arithmetic (Knuth's two-sum).

    The sums, and the ranks of `exact`, are thus independent of the order of the rows.
    """
    for k in range(len(indices)):
        j = indices[k] - start
        if j < 0 or j >= len(high):
            continue
        value = np.float64(data[k])
        total = high[j] + value
        part = total - high[j]
        low[j] += (high[j] - (total - part)) + (value - part)
        high[j] = total


# --- rows of a stored graph -------------------------------------------------------------------------------------------


def sum_rows(stored: StoredMatrix, start: int, stop: int, threads: int | None = None) -> np.ndarray:
    """Return the sum of the values of each of the rows `start` .. `stop`: the out-weights of the transpose.

    Each row is summed in order of its columns, as in an ingest of the reversed graph, so results are bit-identical.

    Parameters
    ----------
    stored : graph with values
    threads : number of threads that read; one thread adds

    Returns
    -------
    (stop - start,) float64

    Raises
    ------
    StoreError : as for `StoredMatrix.read_array` and `read_pointers`
    """
    info, threads = stored.info, threads or default_threads()

    def read(entries: tuple[int, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        row, bounds = entries
        rows = np.repeat(np.arange(row, row + len(bounds) - 1), np.diff(bounds))
        return rows, stored.read_array("data", int(bounds[0]), int(bounds[-1]), threads=1)

    sums = ColumnSums(info.kind, info.url, np.dtype(info.dtype), start, stop)
    with ThreadPoolExecutor(threads, "mgspmv-sum") as pool:
        ranges = cut_entries(stored, threads, start, stop)
        for rows, values in prefetch_map(pool, read, ranges, threads):
            sums.add(rows, values)
    weight = sums.finish()[1]
    assert weight is not None
    return weight


# --- matrices in memory ----------------------------------------------------------------------------------------------


def load_source(
    source: Source,
    options: IngestOptions,
    report: Progress,
    room: MemoryBudget,
    make_device_sorter: MakeDeviceSorter | None = None,
) -> HeldMatrix:
    """Read a source into memory; the matrix is the one that `store_source` writes.

    Parameters
    ----------
    make_device_sorter : as for `sort_source`; a graph that fits on the device stays there

    Raises
    ------
    SourceError, OptionError, ShapeError : as in `sort_source`, `check_stated` and `assemble`
    CapacityError : the matrix does not fit into memory; as in `sort_source`
    """
    source.hashes_files = False
    own = replace(room, memory=room.memory // 2) if options.transpose else room
    with ExitStack() as stack:
        read = stack.enter_context(sort_source(source, options, report, own, make_device_sorter))
        size = find_size(read, has_transpose=options.transpose)
        check_stated(read.layout.stated, size, allow_hypersparse=False)
        if read.is_built_on_device:
            report("sort", 0, None)
            built = read.build(has_transpose=options.transpose)
            return hold(read, built, len(built["indices"]), find_least(built.get("data")), options)
        if (need := size.nbytes) > (free := free_memory()):
            n_rows, n_cols = size.shape
            raise CapacityError(
                f"a matrix of {n_rows:,} x {n_cols:,} with {size.n_entries:,} entries takes {format_bytes(need)} "
                f"({need:,} bytes), but {format_bytes(free)} of memory are free; ingest it into a store on disk, "
                "whose rows workers can share, or which can be streamed"
            )
        transposed = stack.enter_context(EntrySorter(own.memory, own.threads, own.folder))
        made = assemble(read, HeldArray, report, transposed if options.transpose else None)
        arrays = dict(made.arrays)
        if options.transpose:
            rows = (Layout(read.shape[::-1]), read.name, transposed)
            other = assemble(SortedSource("matrix", read.dtype, "keep", *rows), HeldArray, report)
            arrays |= {f"{TRANSPOSE}{name}": array for name, array in other.arrays.items()}
        for array in arrays.values():
            array.flags.writeable = False
        return hold(read, arrays, made.nnz, made.least, options)


def hold(read: SortedSource, arrays: HeldArrays, nnz: int, least: float | None, options: IngestOptions) -> HeldMatrix:
    """Return the matrix of these arrays.

    Parameters
    ----------
    read : source of the arrays
    arrays : by name as in a store, without those of vertices
    nnz : number of entries
    least : value, as for `MatrixInfo.min_weight`
    """
    ids, made_from = read.vertex_ids, dict(read.layout.provenance)
    if ids is not None:
        arrays["vertex_ids"] = ids if isinstance(ids, np.ndarray) else ids[:]
    given: dict[str, Any] = {"weights": options.weights}
    ingested = make_report(made_from, read.counts, nnz, read.rule, given)
    nbytes = sum(array.nbytes for name, array in arrays.items() if name != "vertex_ids" and "/" not in name)
    own = read.kind, read.shape, nnz, read.dtype, read.rule, find_id_type(ids), least
    others = {"has_transpose": options.transpose, "nbytes": nbytes}
    info = describe_unstored(*own, {"source": made_from, "report": ingested}, **others)
    return HeldMatrix(info=info, place=PLACE, arrays=arrays)
