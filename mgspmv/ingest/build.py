"""From the batches of a source to the CSR arrays of a store.

    batches (i, j[, v])  --orient-->  entries (row, col[, v])  --scatter by column-->  by columns  --transpose-->  CSR

Both sorting steps are stable counting sorts, O(entries + rows + columns), so that entries at the same place keep the
order of the source, which `first` and the sums of `sum` depend on. Memory peaks at twice the entries: those read and
those sorted by column, then those sorted by column and the CSR.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
from numba import njit

from mgspmv.errors import OptionError, SourceError
from mgspmv.ingest.generate import GeneratedSource
from mgspmv.ingest.source import Layout, Source
from mgspmv.model import (
    BUCKETS,
    INT32_LIMIT,
    CooBatch,
    CsrArrays,
    Duplicates,
    IngestOptions,
    Kind,
    bucket_shift,
    index_dtype,
)
from mgspmv.order import check_square

Report = Callable[[str, int, int | None], None]

STOCHASTIC_TOLERANCE = 1e-6
"""How far from 1 the sum of a column of a left-stochastic matrix may be."""


def build_matrix(source: Source, options: IngestOptions, report: Report) -> tuple[CsrArrays, Layout]:
    """Read a source to its end and sort it into CSR, in the order of the source.

    Parameters
    ----------
    report : called with (phase, entries done, entries in all or None)

    Raises
    ------
    SourceError : what the source holds does not suit the options: a self loop or a duplicate that was to be an error, a
        graph that is not square, a weight that is not finite, a stochastic column that does not sum to 1
    OptionError : duplicates='sum' and there are no values to sum
    ShapeError : a matrix that is to be renumbered and is not square
    """
    batches = _read_batches(source, options, report)
    layout = source.layout()
    kind = options.kind or source.default_kind
    _check_square(source, layout.shape, kind, options)
    shape = layout.shape
    if kind == "graph":
        batches = [CooBatch(b.cols, b.rows, b.values) for b in batches]
    if layout.positions is not None:
        batches = _renumber(batches, layout.positions)
    _check_range(source, batches, shape)
    if options.self_loops == "error":
        _refuse_self_loops(source, batches, layout)
    report("sort", 0, None)
    rule = choose_rule(options, is_pattern=_is_pattern(batches))
    csr = _merge_duplicates(source, _sort_entries(batches, shape), rule, kind, layout)
    matrix = CsrArrays(kind, shape, *csr, duplicates=rule, vertex_ids=layout.vertex_ids)
    return _add_column_sums(source, matrix), layout


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
    batches = list(_map_batches(cut, source, options, 0, source.n_slots, threads))
    rule = choose_rule(options, is_pattern=_is_pattern(batches))
    return _merge_duplicates(source, _sort_entries(batches, (stop - start, shape[1])), rule, kind, source.layout())


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
        if options.self_loops == "error":
            _refuse_self_loops(source, [batch], source.layout())
        return function(CooBatch(batch.cols, batch.rows, batch.values) if kind == "graph" else batch)

    with ThreadPoolExecutor(threads) as pool:
        yield from pool.map(work, range(begin, max(end, begin + 1), source.batch_entries))


def transpose_arrays(matrix: CsrArrays) -> CsrArrays:
    """The CSR arrays of the transpose, without degrees and ids."""
    n_rows, n_cols = matrix.shape
    csr = _transpose(matrix.indptr, matrix.indices, matrix.data, n_cols)
    return CsrArrays(matrix.kind, (n_cols, n_rows), *csr, duplicates=matrix.duplicates)


# --- reading ---------------------------------------------------------------------------------------------------------


def _read_batches(source: Source, options: IngestOptions, report: Report) -> list[CooBatch]:
    batches, n_entries = [], 0
    for batch in source.batches():
        prepared = _prepare(source, batch, options)
        batches.append(prepared)
        n_entries += len(prepared.rows)
        report("read", n_entries, None)
    return batches


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


def _is_pattern(batches: list[CooBatch]) -> bool:
    return not batches or batches[0].values is None


def _renumber(batches: list[CooBatch], positions: np.ndarray) -> list[CooBatch]:
    for k, batch in enumerate(batches):
        batches[k] = CooBatch(positions[batch.rows], positions[batch.cols], batch.values)
    return batches


def _check_range(source: Source, batches: list[CooBatch], shape: tuple[int, int]) -> None:
    """The counting sorts do not check bounds, so no number outside may reach them."""
    for batch in batches:
        for numbers, size, name in ((batch.rows, shape[0], "row"), (batch.cols, shape[1], "column")):
            if len(numbers) and (numbers.min() < 0 or numbers.max() >= size):
                wrong = numbers.min() if numbers.min() < 0 else numbers.max()
                raise SourceError(f"{name} {wrong} is outside 0..{size - 1}", source=source.name)


def _refuse_self_loops(source: Source, batches: list[CooBatch], layout: Layout) -> None:
    for batch in batches:
        loops = batch.rows == batch.cols
        if loops.any():
            vertex = batch.rows[loops][0]
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


# --- sorting ---------------------------------------------------------------------------------------------------------


def _sort_entries(batches: list[CooBatch], shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """CSR with sorted rows, entries at the same place in the order of the source. Empties `batches`."""
    n_rows, n_cols = shape
    colptr = np.zeros(n_cols + 1, np.int64)
    for batch in batches:
        _count(batch.cols, colptr[1:])
    np.cumsum(colptr, out=colptr)
    rows = np.empty(colptr[-1], index_dtype(n_rows))
    data = None if _is_pattern(batches) else np.empty(colptr[-1], batches[0].values.dtype)  # type: ignore[union-attr]  # no pattern
    cursor = colptr[:-1].copy()
    while batches:
        batch = batches.pop(0)
        _scatter(batch.cols, batch.rows, batch.values, cursor, rows, data)
    return _transpose(colptr, rows, data, n_rows)


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
def _scatter(keys, others, values, cursor, out_others, out_values):
    for k in range(len(keys)):
        place = cursor[keys[k]]
        cursor[keys[k]] = place + 1
        out_others[place] = others[k]
        if values is not None:
            out_values[place] = values[k]


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
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    indptr, indices, data = csr
    if rule == "keep":
        return csr
    if rule == "error":
        _refuse_duplicate(source, indptr, indices, kind, layout)
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


def _refuse_duplicate(source: Source, indptr: np.ndarray, indices: np.ndarray, kind: Kind, layout: Layout) -> None:
    row, col = _find_duplicate(indptr, indices)
    if row < 0:
        return
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


def _add_column_sums(source: Source, matrix: CsrArrays) -> CsrArrays:
    if matrix.kind == "matrix":
        return matrix
    if matrix.data is not None:
        _check_finite(source, matrix)
    degree, sums = sum_columns(matrix.indices, matrix.data, matrix.shape[1])
    weight = None if sums is None else sums[0] + sums[1]
    if matrix.kind == "stochastic":
        _check_stochastic(source, degree, degree if weight is None else weight)
    return replace(matrix, out_degree=degree, out_weight=weight)


def _check_finite(source: Source, matrix: CsrArrays) -> None:
    assert matrix.data is not None
    finite = np.isfinite(matrix.data)
    if not finite.all():
        raise SourceError(
            f"a {matrix.kind} needs finite weights, {int((~finite).sum())} are NaN or infinite; clean the source, or "
            "pass ignore_weights=True (--ignore-weights)",
            source=source.name,
        )


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
