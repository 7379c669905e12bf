"""Tables of edges, one arc per row, as Arrow record batches: files in `parquet`, tables in memory in `frames`."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from mgspmv.display.frames import unwrap_numbers
from mgspmv.errors import SourceError
from mgspmv.heartbeat import AHEAD, prefetch_map
from mgspmv.ingest.column_names import (
    ColumnChoice,
    find_role,
    is_saved_index,
    list_names,
)
from mgspmv.ingest.columns import TextColumn
from mgspmv.ingest.files import describe_files
from mgspmv.ingest.headers import choose_read_columns
from mgspmv.ingest.source import EdgeFacts, EdgeSource, Layout
from mgspmv.ingest.tokens import Undecided
from mgspmv.ingest.values import INT64_MAX, INT64_MIN, decode, find_kind, to_integers, to_strings
from mgspmv.ingest.vertices import choose_vertices, find_unknown
from mgspmv.model import CooBatch, default_threads, index_dtype
from mgspmv.validation import parse_json

BATCH_ROWS = 1 << 20
"""Rows per batch."""
PART_ROWS = 1 << 17
"""Rows per part of a batch, which one thread encodes."""


@dataclass(frozen=True)
class RowGroup:
    """Rows that are read when they are parsed, by the same thread."""

    num_rows: int
    load: Callable[[], Any]
    """Function that returns an Arrow record batch."""


@dataclass(frozen=True)
class Table:
    """Rows of named columns, which are read once."""

    name: str
    """Name in messages."""
    columns: list[str]
    read: Callable[[list[str]], Iterator[Any]]
    """Function that yields the given columns of all rows as Arrow record batches of bounded size, or as row groups."""
    first_row: int = 0
    """Number of the first row, from 0; not 0 if another process reads earlier rows."""
    n_rows: int | None = None
    """Number of rows; None if unknown before all are read."""
    metadata: dict[bytes, bytes] | None = None
    """Metadata of the Arrow schema, if it has any."""

    def is_index(self, name: str) -> bool:
        """Return whether a column was saved as an index and is not named as a source or a target."""
        if is_saved_index(name):
            return True
        described = (self.metadata or {}).get(b"pandas")
        try:
            index = parse_json(described)["index_columns"] if described else []
            return name in index and find_role(name)[0] not in ("source", "target")
        except (ValueError, KeyError, TypeError):  # written by another program
            return False


@dataclass(frozen=True)
class _EdgeRows:
    """Parsed rows of a table; types and columns are the same in all rows of a source."""

    table: str
    """Name of the table."""
    first: int
    """Number of the first of these rows, from 0."""
    names: list[str]
    """Names of the columns of sources, targets and, optionally, weights."""
    id_type: str
    """Type of the ids, for messages."""
    are_names: bool
    dtype: str
    """Dtype of the weights; `missing` if there are none."""
    ids: list[Any]
    """Sources and targets: NumPy arrays of integers, or Arrow arrays of large strings; empty in a summary."""
    n_rows: int = 0
    weights: np.ndarray | None = None
    fraction: float | None = None
    """Approximate fraction of all rows read up to the last of these; None if unknown."""
    problem: SourceError | None = None
    """Error of the types of columns without rows, which matters only if no table has rows."""

    def check(self, other: _EdgeRows) -> None:
        """Raise SourceError if ids or weights of other rows are of another type."""
        place = f"from row {other.first} on, but"
        if other.are_names != self.are_names:
            raise other.make_error(
                f"ids are {other.id_type} {place} {self.id_type} at the beginning of {self.table}; convert all to "
                "integers, or all to strings"
            )
        if other.dtype != self.dtype:
            raise other.make_error(
                f"weights are {other.dtype} {place} {self.dtype} at the beginning of {self.table}; convert all to one "
                "type, or pass weights=False"
            )

    def make_error(self, message: str) -> SourceError:
        return SourceError(message, source=self.table)


class TableSource(EdgeSource):
    """Concatenated tables as a `Source`: columns of sources, targets and, optionally, weights, one arc per row.

    Ids are integers of any width that fit into int64, decimals without decimal places among them, or strings; UUIDs
    (Arrow's type, or 16 bytes of fixed size) become their text; dictionary-encoded ids are decoded. Vertices are found
    as in `EdgeListSource`, except that no comment can state their number.

    Parameters
    ----------
    name : name of the source in messages
    format : format in the provenance
    options : of `EdgeSource`

    Raises
    ------
    OptionError : options that contradict each other
    SourceError : from `batches`: an invalid table or row; names it
    """

    def __init__(self, name: str, format: str, **options: Any) -> None:
        super().__init__(name, **options)
        self._format, self._n_tables = format, 1
        self._is_computed = False
        """Whether rows are computed and take memory elsewhere, so that they are not read ahead."""

    def batches(self) -> Iterator[CooBatch]:
        """Yield all arcs, in at least one batch; rows and columns hold codes that `layout` numbers."""
        threads = self._threads or default_threads()
        n_ahead = 0 if self._is_computed else AHEAD * threads
        with contextlib.closing(self._tables()) as tables, ThreadPoolExecutor(threads, "mgspmv-encode") as pool:
            empty = None
            for rows in prefetch_map(pool, self._parse, self._read(tables), n_ahead):
                if rows.n_rows:
                    yield self._encode(rows)
                else:
                    empty = empty or rows
            if self._facts.form is None and empty is not None:
                if empty.problem is not None and not self.may_be_empty:
                    raise empty.problem
                yield self._encode(empty)
        self._layout = replace(self._made.finish(), provenance=self.join([self._facts]).provenance)

    def join(self, told: Sequence[EdgeFacts]) -> Layout:
        """Check and join the summaries of all parts; see `FileSource`."""
        filled = [own for own in told if own.counts["rows"]] or told
        forms = [own.form for own in filled if own.form is not None]  # each table yields at least one part
        for form in forms:
            forms[0].check(form)
        first = forms[0]
        counts = sum((own.counts for own in told), Counter[str]())
        files = [file for own in told for file in own.files] or [{"name": self.name}]
        header = {"columns": first.names, "rows": 0, **counts}
        names = told[0].all_columns
        taken = ColumnChoice(*map(names.index, first.names)).describe(names) | {"n_rows": counts["rows"]}
        read = {"format": self._format, **describe_files(self.name, files), "header": header}
        return Layout((0, 0), are_ids=True, provenance={**read, **filled[0].listed, "taken": taken})

    @abstractmethod
    def _tables(self) -> Generator[Table]:
        """Open and yield the tables, at least one, one after the other."""

    def _read(self, tables: Iterable[Table]) -> Iterator[tuple[Table, int, Any, float | None]]:
        """Yield the tables in parts: the table, the number of the first row, the rows, and the fraction read then."""
        for k, table in enumerate(tables):
            n_rows, self._facts.all_columns = 0, self._facts.all_columns or table.columns
            part_rows = 2 * BATCH_ROWS if self.has_large_batches else PART_ROWS  # more where threads have less to do
            for batch in table.read(self._choose_columns(table)):
                is_group = isinstance(batch, RowGroup)
                for start in range(0, max(1, batch.num_rows), max(1, batch.num_rows) if is_group else part_rows):
                    rows = batch if is_group else batch.slice(start, part_rows)
                    n_rows += rows.num_rows
                    fraction = (k + n_rows / table.n_rows) / self._n_tables if table.n_rows else None
                    yield table, table.first_row + n_rows - rows.num_rows, rows, fraction

    def _choose_columns(self, table: Table) -> list[str]:
        """Return the names of the columns of sources, targets and, optionally, weights."""
        there = table.columns
        if len(there) < 2:
            raise SourceError(
                f"expected columns of sources and targets, found {len(there)}: {list_names(there)}", source=table.name
            )
        if self._reading.columns is None:
            there = [name for name in there if not table.is_index(name)]
        try:
            chosen = choose_read_columns(there, len(there), self._reading)
        except Undecided as error:
            raise SourceError(str(error), source=table.name) from error
        names = [there[place] for place in (chosen.source, chosen.target, chosen.weight) if place is not None]
        for name in names:
            if table.columns.count(name) != 1:
                raise SourceError(
                    f"expected one column {name!r}, found the columns {list_names(table.columns)}; rename them",
                    source=table.name,
                )
        return names

    def _parse(self, read: tuple[Table, int, Any, float | None]) -> _EdgeRows:
        """Parse rows; thread-safe.

        Raises
        ------
        SourceError : an invalid row, or columns of types that are not read
        """
        table, first, rows, fraction = read
        rows = rows.load() if isinstance(rows, RowGroup) else rows
        columns, names = [*map(decode, rows.columns[:2]), *rows.columns[2:]], rows.schema.names
        kinds = [find_kind(column.type) for column in columns]
        are_names, has_n = "string" in kinds[:2], self._reading.n_vertices is not None
        form = _EdgeRows(table.name, first, names, str(columns[0].type), are_names, "missing", [], rows.num_rows)
        problem = _check_columns(form, columns, kinds)
        if rows.num_rows and are_names and has_n:
            problem = problem or form.make_error("n_vertices= requires integer ids, found strings; pass vertices=")
        if rows.num_rows and problem is not None:
            raise problem
        if not rows.num_rows:
            form = replace(form, are_names=are_names and not has_n, problem=problem)
            columns = [pa.nulls(0, pa.large_string() if form.are_names else pa.int64())] * 2 + [
                column if kind in ("integer", "number") else pa.nulls(0, pa.float64())
                for column, kind in zip(columns[2:], kinds[2:], strict=True)
            ]
        ids = [
            to_strings(column) if form.are_names else self._to_integers(form, name, column)
            for name, column in zip(names[:2], columns, strict=False)
        ]
        if len(columns) == 2:
            return replace(form, ids=ids, fraction=fraction)
        weights = columns[2]
        if pa.types.is_decimal(weights.type) or pa.types.is_float16(weights.type) or pa.types.is_null(weights.type):
            weights = weights.cast(pa.float64())
        numbers = unwrap_numbers(weights)
        return replace(form, ids=ids, fraction=fraction, weights=numbers, dtype=numbers.dtype.name)

    def _encode(self, rows: _EdgeRows) -> CooBatch:
        """Return the entries of parsed rows, in their order.

        Raises
        ------
        SourceError : ids or weights of another type than those before, or an id that is not in the list of vertices
        """
        if self._facts.form is None:
            self._facts.form = replace(rows, ids=[], weights=None)
            column = TextColumn("vertex", "string" if rows.are_names else "int64")
            self._made, self._facts.listed = choose_vertices(column, self._reading, self._id_room, self.name)
        self._facts.form.check(rows)
        self.fraction = rows.fraction
        self._facts.counts["rows"] += rows.n_rows
        codes = self._made.encode(*rows.ids)
        for name, column, own in zip(rows.names, rows.ids, codes, strict=False):
            if (k := find_unknown(self._made, own)) is not None:
                raise rows.make_error(
                    f"row {rows.first + k}: {int(column[k])} in column {name!r} is not in the list of vertices; add it "
                    "there or remove the edge"
                )
        return CooBatch(codes[0], codes[1], rows.weights)

    def _to_integers(self, form: _EdgeRows, name: str, column: Any) -> np.ndarray:
        n = self._reading.n_vertices
        low, high = (INT64_MIN, INT64_MAX) if n is None else (0, n - 1)
        if len(column) and not (n is None and pa.types.is_signed_integer(column.type)):
            import pyarrow.compute as pc

            found = pc.min_max(column).as_py()
            if not low <= found["min"] <= found["max"] <= high:
                k, wrong = next((k, id) for k, id in enumerate(column.to_pylist()) if not low <= id <= high)
                expected = "a 64-bit integer" if n is None else f"an id from 0 to {n - 1} (n_vertices={n})"
                raise form.make_error(f"row {form.first + k}: expected {expected} in column {name!r}, found {wrong}")
        dtype = index_dtype(n) if n is not None else np.int32 if pa.types.is_int32(column.type) else np.int64
        return to_integers(column).astype(dtype, copy=False)


def _check_columns(form: _EdgeRows, columns: Sequence[Any], kinds: Sequence[str | None]) -> SourceError | None:
    """Return the error of a missing value, or of columns of types that are not read; None if all are right."""
    names, types = form.names, [column.type for column in columns]
    for name, column in zip(names, columns, strict=True):
        if column.null_count:
            row = form.first + int(np.flatnonzero(np.asarray(column.is_null()))[0])
            return form.make_error(f"row {row} has a missing value in column {name!r}; drop such rows, or fill them")
    for name, kind, each in zip(names[:2], kinds, types, strict=False):
        if kind not in ("integer", "string"):
            return form.make_error(
                f"expected ids in column {name!r} to be integers or strings, found {each}; cast the column to int64 or "
                "to strings, UUIDs to fixed_size_binary(16)"
            )
    if kinds[0] != kinds[1]:
        return form.make_error(
            f"ids in columns {names[0]!r} and {names[1]!r} are {types[0]} and {types[1]}; store both as integers, "
            "or as strings"
        )
    if len(names) > 2 and kinds[2] not in ("integer", "number"):
        return form.make_error(
            f"expected weights in column {names[2]!r} to be numbers, found {types[2]}; pass weights=False, or "
            "choose another column with columns=(...)"
        )
    return None


def make_empty(schema: Any) -> Any:
    """Make a record batch without rows."""
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)
