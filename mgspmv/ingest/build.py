"""From the batches of a source to the CSR arrays of a matrix.

    batches (i, j[, v])  --orient-->  entries (row, col[, v])  --sort-->  blocks of rows  --merge-->  CSR

Entries are sorted within a given memory, see `mgspmv.ingest.sorter`, and those at the same place keep the order of the
source, which `first` and the sums of `sum` depend on. Blocks of rows come one after the other: the matrix is in memory
as a whole only where someone holds all of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numba import njit

from mgspmv.errors import CapacityError, OptionError, SourceError
from mgspmv.ingest.generate import GeneratedSource
from mgspmv.ingest.sorter import EntrySorter
from mgspmv.ingest.source import Layout, Source
from mgspmv.model import (
    BUCKETS,
    INT32_LIMIT,
    CooBatch,
    CsrArrays,
    CsrBlock,
    Duplicates,
    IngestOptions,
    Kind,
    bucket_shift,
    default_threads,
    index_dtype,
)
from mgspmv.order import check_square

Report = Callable[[str, int, int | None], None]

STOCHASTIC_TOLERANCE = 1e-6
"""How far from 1 the sum of a column of a left-stochastic matrix may be."""
UNLIMITED = 1 << 62
"""Bytes of memory, where nothing is to go by way of files."""
_FILLED = 1 << 20
"""Row pointers that are made at a time, where rows are empty."""


@dataclass(frozen=True, eq=False)
class SortedSource:
    """A source that was read to its end and checked, whose rows can be had as often as they are asked for."""

    kind: Kind
    shape: tuple[int, int]
    dtype: np.dtype[Any] | None
    """Of the values; None for a pattern."""
    rule: Duplicates
    layout: Layout
    source: Source
    positions: np.ndarray | None
    """Numbers of the codes that the sorter holds, ascending; None where they are numbers."""
    sorter: EntrySorter

    @property
    def most_entries(self) -> int:
        """How many entries there are before those at one place are merged."""
        return self.sorter.n_entries

    def blocks(self) -> Iterator[CsrBlock]:
        """All entries, merged, row after row, as of `EntrySorter.blocks`.

        Raises
        ------
        SourceError : what is there more than once was to be an error, or its sum does not fit into int64
        """
        return self.sorter.blocks(self.shape, self.positions, self._merge)

    def _merge(self, block: CsrBlock) -> CsrBlock:
        csr = (block.indptr, block.indices, block.data)
        merged = _merge_duplicates(self.source, csr, self.rule, self.kind, self.layout, block.row_offset)
        return CsrBlock(block.row_offset, block.n_cols, *merged)


@contextlib.contextmanager
def sort_source(
    source: Source,
    options: IngestOptions,
    report: Report,
    *,
    memory: int = UNLIMITED,
    threads: int | None = None,
    folder: Path | None = None,
) -> Iterator[SortedSource]:
    """Read a source to its end, and have its entries ready in the order of their rows.

    Parameters
    ----------
    report : called with (phase, entries done, entries in all or None)
    memory : bytes for the entries; where they take more, they go to files
    threads : that sort
    folder : for the files; None for the one that the system has for such

    Raises
    ------
    SourceError : what the source holds does not suit the options: a self loop that was to be an error, a graph that is
        not square
    OptionError : duplicates='sum' and there are no values to sum
    ShapeError : a matrix that is to be renumbered and is not square
    """
    kind, threads = options.kind or source.default_kind, threads or default_threads()
    with contextlib.ExitStack() as stack:
        sorter = stack.enter_context(EntrySorter(memory, threads, folder))
        feed = _Feed(source, options, kind)
        for batch in source.batches():
            feed.put(batch, sorter)
            report("read", sorter.n_entries, None)
        layout = source.layout()
        _check_square(source, layout.shape, kind, options)
        feed.check(layout)
        positions = layout.positions
        if positions is not None and not _is_ascending(positions):
            report("number", 0, None)
            sorter.reserve(memory // 2)
            coded, sorter = sorter, stack.enter_context(EntrySorter(memory // 2, threads, folder))
            for batch in coded.drain():
                sorter.add(CooBatch(positions[batch.rows], positions[batch.cols], batch.values))
            coded.close()
            positions = None
        rule = choose_rule(options, is_pattern=feed.dtype is None)
        yield SortedSource(kind, layout.shape, feed.dtype, rule, layout, source, positions, sorter)


def build_matrix(
    source: Source, options: IngestOptions, report: Report, *, memory: int = UNLIMITED
) -> tuple[CsrArrays, Layout]:
    """Read a source to its end and sort it into CSR, in the order of the source; all of it in memory.

    Raises
    ------
    SourceError : as for `sort_source` and `assemble`
    OptionError, ShapeError : as for `sort_source`
    CapacityError : the arrays take more than the memory
    """
    with sort_source(source, options, report, memory=memory) as sorted_source:
        need = estimate_bytes(sorted_source)
        if need > memory:
            raise CapacityError(
                f"the arrays of {source.name} take {need / 1e9:.3g} GB of memory, and {memory / 1e9:.3g} GB are allowed"
                " for them; allow more (memory=, --memory), or ingest without order"
            )
        made = assemble(sorted_source, _HeldArray, report)
    layout, parts = sorted_source.layout, made.arrays
    columns: dict[str, Any] = {"out_degree": made.out_degree, "out_weight": made.out_weight}
    csr = (parts["indptr"], parts["indices"], parts.get("data"))
    matrix = CsrArrays(
        sorted_source.kind,
        layout.shape,
        *csr,
        duplicates=sorted_source.rule,
        **columns,
        vertex_ids=layout.vertex_ids,
    )
    return matrix, layout


def estimate_bytes(matrix: SortedSource) -> int:
    """Most bytes of the arrays of a matrix."""
    item = index_dtype(matrix.shape[1]).itemsize + (0 if matrix.dtype is None else matrix.dtype.itemsize)
    return item * matrix.most_entries + 8 * matrix.shape[0] + estimate_column_bytes(matrix)


def estimate_column_bytes(matrix: SortedSource) -> int:
    """Bytes of what is added up for columns."""
    return 0 if matrix.kind == "matrix" else (8 if matrix.dtype is None else 32) * matrix.shape[1]


class Appendable(Protocol):
    """An array that is made from its begin on."""

    def append(self, elements: np.ndarray) -> None:
        """Put elements at its end."""
        ...

    def finish(self) -> Any:
        """What was made; nothing is appended any more."""
        ...


class _HeldArray:
    """An array in memory.

    Parameters
    ----------
    most : elements that it may come to have
    """

    def __init__(self, name: str, dtype: np.dtype[Any], most: int) -> None:
        self._array, self._n = np.empty(most, dtype), 0

    def append(self, elements: np.ndarray) -> None:
        self._array[self._n : self._n + len(elements)] = elements
        self._n += len(elements)

    def finish(self) -> np.ndarray:
        return self._array if self._n == len(self._array) else self._array[: self._n].copy()


@dataclass(frozen=True, eq=False)
class Assembled:
    """What became of the rows of a matrix."""

    nnz: int
    arrays: dict[str, Any]
    """What `finish` gave for `indptr`, `indices` and `data`, of which a pattern has none."""
    out_degree: np.ndarray | None
    out_weight: np.ndarray | None
    least: float | None
    """Least value; None where there is none, or it is not finite."""


def assemble(
    matrix: SortedSource,
    make_array: Callable[[str, np.dtype[Any], int], Appendable],
    report: Report,
    transposed: EntrySorter | None = None,
    phase: str = "sort",
) -> Assembled:
    """Make the arrays of a matrix, from its first row to its last.

    Parameters
    ----------
    make_array : called with (name, dtype, most elements)
    transposed : gets all entries, rows and columns exchanged
    phase : for `report`

    Raises
    ------
    SourceError : as for `SortedSource.blocks`; a weight that is not finite, a stochastic column that does not sum to 1
    """
    columns = None if matrix.kind == "matrix" else _ColumnSums(matrix)
    indices = make_array("indices", index_dtype(matrix.shape[1]), matrix.most_entries)
    data = None if matrix.dtype is None else make_array("data", matrix.dtype, matrix.most_entries)
    pointers = RowPointers(make_array("indptr", np.dtype(np.int64), matrix.shape[0] + 1))
    least, n_done = list[float](), 0
    report(phase, 0, matrix.most_entries)
    for block in matrix.blocks():
        pointers.put(block)
        indices.append(block.indices)
        if data is not None and block.data is not None:
            data.append(block.data)
            least.append(float(block.data.min()))
        if columns is not None:
            columns.add(block)
        if transposed is not None:
            rows = np.repeat(np.arange(block.n_rows), np.diff(block.indptr)) + block.row_offset
            transposed.add(CooBatch(block.indices, _shrink(rows), block.data))
        n_done += block.nnz
        report(phase, n_done, matrix.most_entries)
    report(phase, matrix.most_entries, matrix.most_entries)
    arrays = {"indptr": pointers.finish(matrix.shape[0]), "indices": indices.finish()}
    arrays |= {} if data is None else {"data": data.finish()}
    degree, weight = (None, None) if columns is None else columns.finish()
    lowest = np.min(least) if least else np.nan
    return Assembled(n_done, arrays, degree, weight, float(lowest) if np.isfinite(lowest) else None)


class RowPointers:
    """The row pointers of blocks that follow each other; of a row that has several, its end is that of the last."""

    def __init__(self, array: Appendable) -> None:
        self._array, self._row, self._n = array, 0, 0
        self._array.append(np.zeros(1, np.int64))

    def put(self, block: CsrBlock) -> None:
        """Take the next block, whose last row may go on in the one after it."""
        self._fill(block.row_offset)
        ends = block.indptr[1:-1]
        self._array.append(ends + self._n)
        self._row += len(ends)
        self._n += block.nnz

    def finish(self, n_rows: int) -> Any:
        """The array, of so many rows."""
        self._fill(n_rows)
        return self._array.finish()

    def _fill(self, row: int) -> None:
        while self._row < row:
            n = min(row - self._row, _FILLED)
            self._array.append(np.full(n, self._n, np.int64))
            self._row += n


class _ColumnSums:
    """Entries of each column, and the sums of their values."""

    def __init__(self, matrix: SortedSource) -> None:
        n_cols = matrix.shape[1]
        self._matrix, self._n_infinite = matrix, 0
        self._degree = np.zeros(n_cols, np.int64)
        self._sums = None if matrix.dtype is None else np.zeros((2, n_cols))

    def add(self, block: CsrBlock) -> None:
        _count(block.indices, self._degree)
        if block.data is not None and self._sums is not None:
            self._n_infinite += len(block.data) - int(np.count_nonzero(np.isfinite(block.data)))
            _add_columns(block.indices, block.data, *self._sums)

    def finish(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Degrees, and weights where there are values."""
        name, kind = self._matrix.source.name, self._matrix.kind
        if self._n_infinite:
            raise SourceError(
                f"a {kind} needs finite weights, {self._n_infinite} are NaN or infinite; clean the source, or pass "
                "ignore_weights=True (--ignore-weights)",
                source=name,
            )
        weight = None if self._sums is None else self._sums[0] + self._sums[1]
        if kind == "stochastic":
            _check_stochastic(self._matrix.source, self._degree, self._degree if weight is None else weight)
        return self._degree, weight


def count_buckets(source: GeneratedSource, options: IngestOptions, begin: int, end: int, threads: int) -> np.ndarray:
    """(BUCKETS,) int64: how many of the entries of these numbers there are in each bucket of rows."""
    shift = bucket_shift(source.layout().shape[0])

    def count(batch: CooBatch) -> np.ndarray:
        return np.bincount(batch.rows >> shift, minlength=BUCKETS)

    counts = _map_batches(count, source, options, begin, end, threads)
    return sum(counts, np.zeros(BUCKETS, np.int64))


def build_rows(
    source: GeneratedSource, options: IngestOptions, start: int, stop: int, threads: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """The row pointers, columns and values of rows `start` .. `stop` - 1, as `build_matrix` makes all of them.

    Every entry is made, and those of other rows are dropped.
    """

    def cut(batch: CooBatch) -> CooBatch:
        ours = (batch.rows >= start) & (batch.rows < stop)
        return CooBatch(
            batch.rows[ours] - start, batch.cols[ours], None if batch.values is None else batch.values[ours]
        )

    shape, kind = source.layout().shape, options.kind or source.default_kind
    dtype: np.dtype[Any] | None = None
    with EntrySorter(UNLIMITED, threads) as sorter:
        for batch in _map_batches(cut, source, options, 0, source.n_slots, threads):
            dtype = None if batch.values is None else batch.values.dtype
            sorter.add(batch)
        rule, rows = choose_rule(options, is_pattern=dtype is None), (stop - start, shape[1])
        own = SortedSource(kind, rows, dtype, rule, source.layout(), source, None, sorter)
        made = assemble(replace(own, kind="matrix"), _HeldArray, lambda *_: None).arrays
    return made["indptr"], made["indices"], made.get("data")


def choose_rule(options: IngestOptions, *, is_pattern: bool) -> Duplicates:
    """What is done with entries at the same place."""
    return options.duplicates or ("first" if is_pattern else "sum")


def sum_columns(indices: np.ndarray, data: np.ndarray | None, n_cols: int) -> tuple[np.ndarray, np.ndarray | None]:
    """(n_cols,) int64 entries of each column; and (2, n_cols) float64, whose sum is the sum of its values to twice the
    precision, None for a pattern."""
    degree = np.zeros(n_cols, np.int64)
    _count(indices, degree)
    if data is None:
        return degree, None
    sums = np.zeros((2, n_cols))
    _add_columns(indices, data, *sums)
    return degree, sums


def _map_batches(
    function: Callable[[CooBatch], Any],
    source: GeneratedSource,
    options: IngestOptions,
    begin: int,
    end: int,
    threads: int,
) -> Iterator[Any]:
    """What a function makes of the entries of these numbers, in their order, batch by batch."""
    kind = options.kind or source.default_kind

    def work(first: int) -> Any:
        batch = _prepare(source, source.make_entries(first, min(first + source.batch_entries, end)), options)
        if options.self_loops == "error" and (loops := batch.rows == batch.cols).any():
            _refuse_self_loop(source, int(batch.rows[loops][0]), source.layout())
        return function(CooBatch(batch.cols, batch.rows, batch.values) if kind == "graph" else batch)

    with ThreadPoolExecutor(threads) as pool:
        yield from pool.map(work, range(begin, max(end, begin + 1), source.batch_entries))


def transpose_arrays(matrix: CsrArrays) -> CsrArrays:
    """The CSR arrays of the transpose, without degrees and ids."""
    n_rows, n_cols = matrix.shape
    csr = _transpose(matrix.indptr, matrix.indices, matrix.data, n_cols)
    return CsrArrays(matrix.kind, (n_cols, n_rows), *csr, duplicates=matrix.duplicates)


# --- reading ---------------------------------------------------------------------------------------------------------


class _Feed:
    """Puts the batches of a source into a sorter, and sees to what is known to be wrong only in the end."""

    def __init__(self, source: Source, options: IngestOptions, kind: Kind) -> None:
        self._source, self._options, self._kind = source, options, kind
        self.dtype: np.dtype[Any] | None = None
        """Of the values."""
        self._n_batches = 0
        self._lowest, self._highest = [0, 0], [-1, -1]
        self._loop: int | None = None

    def put(self, batch: CooBatch, sorter: EntrySorter) -> None:
        prepared = _prepare(self._source, batch, self._options)
        if not self._n_batches and prepared.values is not None:
            self.dtype = prepared.values.dtype
        self._n_batches += 1
        if not len(prepared.rows):
            return
        if self._options.self_loops == "error" and self._loop is None:
            loops = prepared.rows == prepared.cols
            self._loop = int(prepared.rows[loops][0]) if loops.any() else None
        if self._kind == "graph":
            prepared = CooBatch(prepared.cols, prepared.rows, prepared.values)
        for side, numbers in enumerate((prepared.rows, prepared.cols)):
            self._lowest[side] = min(self._lowest[side], int(numbers.min()))
            self._highest[side] = max(self._highest[side], int(numbers.max()))
        if min(self._lowest) >= 0:
            sorter.add(prepared)

    def check(self, layout: Layout) -> None:
        """
        Raises
        ------
        SourceError : a number outside the matrix; a self loop that was to be an error
        """
        sizes = layout.shape if layout.positions is None else (len(layout.positions),) * 2
        for side, name in enumerate(("row", "column")):
            if self._lowest[side] < 0 or self._highest[side] >= sizes[side]:
                wrong = self._lowest[side] if self._lowest[side] < 0 else self._highest[side]
                raise SourceError(f"{name} {wrong} is outside 0..{sizes[side] - 1}", source=self._source.name)
        if self._loop is not None:
            _refuse_self_loop(self._source, self._loop, layout)


def _prepare(source: Source, batch: CooBatch, options: IngestOptions) -> CooBatch:
    rows, cols = _shrink(batch.rows), _shrink(batch.cols)
    values = None if options.ignore_weights or batch.values is None else batch.values
    if values is not None:
        values = _convert(source, values, options.dtype or _stored_dtype(values.dtype))
    elif options.duplicates == "sum":
        raise OptionError(
            f"{source.name} is read without values, so duplicates='sum' has nothing to sum; choose 'keep' for a "
            "multigraph, or 'first'"
        )
    if options.self_loops == "drop" and (loops := rows == cols).any():
        rows, cols, values = rows[~loops], cols[~loops], None if values is None else values[~loops]
    if options.symmetrize:
        rows, cols, values = _mirror(rows, cols, values)
    return CooBatch(rows, cols, values)


def _mirror(
    rows: np.ndarray, cols: np.ndarray, values: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Each entry and, off the diagonal, its mirror image after it: what `first` leaves is then symmetric too."""
    pairs = np.stack([rows, cols], axis=1)
    keep = np.stack([np.ones(len(rows), bool), rows != cols], axis=1)
    if values is not None:
        values = np.repeat(values, 2)[keep.ravel()]
    return pairs[keep], pairs[:, ::-1][keep], values


def _shrink(codes: np.ndarray) -> np.ndarray:
    if codes.dtype == np.int32 or (len(codes) and (codes.max() >= INT32_LIMIT or codes.min() < -INT32_LIMIT)):
        return codes
    return codes.astype(np.int32)


def _convert(source: Source, values: np.ndarray, dtype: Any) -> np.ndarray:
    try:
        with np.errstate(over="raise"):
            return values.astype(dtype, copy=False)
    except FloatingPointError as error:
        greatest = np.abs(values[np.isfinite(values)]).max()
        raise SourceError(
            f"the value {greatest:g} does not fit into {dtype}; pass dtype='float64'", source=source.name
        ) from error


def _stored_dtype(dtype: np.dtype[Any]) -> Any:
    if dtype.kind in "bui":
        return np.int64
    return dtype if dtype in (np.float32, np.float64) else np.float64


def _is_ascending(positions: np.ndarray) -> bool:
    """Whether codes that have a number have it in their order."""
    numbers = positions[positions >= 0]
    return bool((numbers[1:] > numbers[:-1]).all())


def _refuse_self_loop(source: Source, code: int, layout: Layout) -> None:
    vertex = code if layout.positions is None else int(layout.positions[code])
    label = vertex if layout.vertex_ids is None else layout.vertex_ids[vertex]
    raise SourceError(
        f"vertex {label} has a self loop and self_loops='error'; choose 'keep' or 'drop', or clean the source",
        source=source.name,
    )


def _check_square(source: Source, shape: tuple[int, int], kind: Kind, options: IngestOptions) -> None:
    if shape[0] == shape[1]:
        return
    wish = f"kind={kind!r}" if kind != "matrix" else "symmetrize" if options.symmetrize else None
    if wish:
        raise SourceError(
            f"a matrix of {shape[0]} rows and {shape[1]} columns is not square, which {wish} needs; "
            "ingest it with kind='matrix'",
            source=source.name,
        )
    if options.order != "none":
        check_square(shape, source.name)


# --- transposing ----------------------------------------------------------------------------------------------------


def _transpose(
    indptr: np.ndarray, indices: np.ndarray, data: np.ndarray | None, n_cols: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """CSR of the transpose, whose rows come out sorted."""
    out_ptr = np.zeros(n_cols + 1, np.int64)
    _count(indices, out_ptr[1:])
    np.cumsum(out_ptr, out=out_ptr)
    out_indices = np.empty(len(indices), index_dtype(len(indptr) - 1))
    out_data = None if data is None else np.empty_like(data)
    _scatter_rows(indptr, indices, data, out_ptr[:-1].copy(), out_indices, out_data)
    return out_ptr, out_indices, out_data


@njit(nogil=True, cache=True)
def _count(keys, counts):
    for key in keys:
        counts[key] += 1


@njit(nogil=True, cache=True)
def _scatter_rows(indptr, indices, data, cursor, out_indices, out_data):
    for i in range(len(indptr) - 1):
        for k in range(indptr[i], indptr[i + 1]):
            place = cursor[indices[k]]
            cursor[indices[k]] = place + 1
            out_indices[place] = i
            if data is not None:
                out_data[place] = data[k]


# --- duplicates ------------------------------------------------------------------------------------------------------


def _merge_duplicates(
    source: Source,
    csr: tuple[np.ndarray, np.ndarray, np.ndarray | None],
    rule: Duplicates,
    kind: Kind,
    layout: Layout,
    row_offset: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    indptr, indices, data = csr
    if rule == "keep":
        return csr
    if rule == "error":
        _refuse_duplicate(source, indptr, indices, kind, layout, row_offset)
        return csr
    is_integer = data is not None and data.dtype.kind == "i"
    nnz = _compact(indptr, indices, data, rule == "sum", np.iinfo(np.int64).max if is_integer else np.inf)
    if nnz < 0:
        raise SourceError(
            "the sum of the entries at one place does not fit into int64; pass dtype='float64'", source=source.name
        )
    if nnz == len(indices):
        return csr
    return indptr, indices[:nnz].copy(), None if data is None else data[:nnz].copy()


def _refuse_duplicate(
    source: Source, indptr: np.ndarray, indices: np.ndarray, kind: Kind, layout: Layout, row_offset: int
) -> None:
    row, col = _find_duplicate(indptr, indices)
    if row < 0:
        return
    row += row_offset
    first, second = (col, row) if kind == "graph" else (row, col)
    if layout.vertex_ids is not None:
        first, second = layout.vertex_ids[first], layout.vertex_ids[second]
    raise SourceError(
        f"the entry ({first}, {second}) is there more than once and duplicates='error'; "
        "choose 'sum', 'first' or 'keep', or clean the source",
        source=source.name,
    )


@njit(nogil=True, cache=True)
def _find_duplicate(indptr, indices):
    for i in range(len(indptr) - 1):
        for k in range(indptr[i] + 1, indptr[i + 1]):
            if indices[k] == indices[k - 1]:
                return i, np.int64(indices[k])
    return -1, np.int64(-1)


@njit(nogil=True, cache=True)
def _compact(indptr, indices, data, add, most):
    """Merge equal neighbours in each row in place; give the number of entries left, -1 if a sum is beyond `most`."""
    out = 0
    start = indptr[0]
    for i in range(len(indptr) - 1):
        stop = indptr[i + 1]
        row_start = out
        for k in range(start, stop):
            if out > row_start and indices[out - 1] == indices[k]:
                if data is not None and add:
                    room = most - data[k] if data[k] > 0 else -most - 1 - data[k]
                    if (data[k] > 0 and data[out - 1] > room) or (data[k] < 0 and data[out - 1] < room):
                        return -1
                    data[out - 1] += data[k]
            else:
                indices[out] = indices[k]
                if data is not None:
                    data[out] = data[k]
                out += 1
        start = stop
        indptr[i + 1] = out
    return out


# --- column sums -----------------------------------------------------------------------------------------------------


def _check_stochastic(source: Source, degree: np.ndarray, total: np.ndarray) -> None:
    wrong = (degree > 0) & ~(np.abs(total - 1) <= STOCHASTIC_TOLERANCE)
    if wrong.any():
        col = int(np.flatnonzero(wrong)[0])
        raise SourceError(
            f"each column of a left-stochastic matrix sums to 1 or is empty, column {col} sums to {total[col]}; "
            "normalise it, or ingest with kind='graph'",
            source=source.name,
        )


@njit(nogil=True, cache=True)
def _add_columns(indices, data, high, low):
    """Add each value to high + low of its column, in double-double arithmetic (Knuth's two-sum).

    So the sums do not depend on the order of the rows, and neither do the ranks of `exact`.
    """
    for k in range(len(indices)):
        j = indices[k]
        value = np.float64(data[k])
        total = high[j] + value
        part = total - high[j]
        low[j] += (high[j] - (total - part)) + (value - part)
        high[j] = total
