"""Tables of edges, one arc per row, from files or objects."""

from __future__ import annotations

import contextlib
import os
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute

from mgspmv.errors import SourceError
from mgspmv.ingest.column_names import (
    ColumnChoice,
    choose_columns,
    find_role,
    is_saved_index,
    list_names,
    resolve_columns,
)
from mgspmv.ingest.columns import TextColumn
from mgspmv.ingest.edge_list import check_vertex_options
from mgspmv.ingest.edge_list_head import StatedForm
from mgspmv.ingest.files import describe_files
from mgspmv.ingest.prefetch import AHEAD, prefetch_map
from mgspmv.ingest.scratch import ANY_ROOM, MemoryBudget
from mgspmv.ingest.source import Combined, FileSource
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
class Table:
    """Rows of named columns, which are read once."""

    name: str
    """Name in messages."""
    columns: list[str]
    read: Callable[[list[str]], Iterator[Any]]
    """Function that yields the given columns of all rows as Arrow record batches of bounded size, at least one."""
    index: Sequence[str] = ()
    """Columns that pandas saved as an index."""
    first_row: int = 0
    """Number of the first row, from 0; not 0 if another process reads earlier rows."""
    n_rows: int | None = None
    """Number of rows; None if unknown before all are read."""


@dataclass(frozen=True)
class _Form:
    """Types of the columns from some row on, which are the same in all rows."""

    table: str
    """Name of the table."""
    first: int
    """Number of the row, from 0."""
    names: list[str]
    """Names of the columns of sources, targets and, optionally, weights."""
    id_type: str
    """Type of the ids, for messages."""
    are_names: bool
    dtype: str
    """Dtype of the weights; `missing` if there are none."""

    def check(self, other: _Form) -> None:
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


@dataclass(frozen=True)
class _Part:
    """Rows of a table, parsed."""

    form: _Form
    ids: list[Any]
    """Sources and targets: NumPy arrays of integers, or Arrow arrays of large strings."""
    weights: np.ndarray | None
    fraction: float | None
    """Approximate fraction of all rows read up to this part; None if unknown."""
    problem: SourceError | None
    """Error of the types of columns without rows, which matters only if no other part has rows."""


@dataclass(frozen=True)
class _TableSummary:
    """Summary of a part of the tables."""

    form: _Form
    all_columns: list[str]
    """Names of all columns, including those not read."""
    files: list[dict[str, Any]]
    """Provenance of the files read."""
    counts: Counter[str]
    """Number of `rows`, and of other things for the provenance."""
    listed: dict[str, Any]
    """Provenance of the list of vertices."""


class TableSource(FileSource):
    """Concatenated tables as a `Source`: columns of sources, targets and, optionally, weights, one arc per row.

    Ids are integers of any width that fit into int64, decimals without decimal places among them, or strings; UUIDs
    (Arrow's type, or 16 bytes of fixed size) become their text; dictionary-encoded ids are decoded. Vertices are found
    as in `EdgeListSource`, except that no comment can state their number.

    Parameters
    ----------
    name : name of the source in messages
    format : format in the provenance
    columns : columns of sources, targets and, optionally, weights: names, or numbers from 1; None to choose them by
        their names, or by position if two or three names have no known meaning (see `choose_columns`)
    n_vertices : number of vertices, whose ids are 0..n_vertices-1
    vertices : path of a list of vertices, see `EdgeListSource`
    weights : whether to read weights; "auto" to read them if such a column exists, False to ignore it; or their column
    extra_columns : "ignore" columns that no rule takes, or raise an "error" for them
    id_room : memory for the ids of vertices

    Raises
    ------
    OptionError : options that contradict each other
    SourceError : from `batches`: an invalid table or row; names it
    """

    default_kind = "graph"

    def __init__(
        self,
        name: str,
        format: str,
        *,
        columns: Sequence[str | int] | None = None,
        n_vertices: int | None = None,
        vertices: str | os.PathLike[str] | None = None,
        weights: str | bool = "auto",
        extra_columns: Literal["error", "ignore"] = "error",
        id_room: MemoryBudget = ANY_ROOM,
    ) -> None:
        self._reading = StatedForm(columns=columns, weights=weights, extra_columns=extra_columns)
        check_vertex_options(n_vertices, vertices, "auto")
        super().__init__(name)
        self._format, self._n_tables = format, 1
        self._all_columns: list[str] = []
        """Names of all columns of the first table."""
        self._files_read: list[dict[str, Any]] = []
        """Provenance of the files read so far; none for a table that is not a file."""
        self._form: _Form | None = None
        """Types of the first rows."""
        self._counts = Counter(rows=0)
        self._is_computed = False
        """Whether rows are computed and take memory elsewhere, so that they are not read ahead."""
        self._n_vertices, self._vertices, self._id_room = n_vertices, vertices, id_room
        self.has_known_vertices = n_vertices is not None or vertices is not None

    def batches(self) -> Iterator[CooBatch]:
        """Yield all arcs, in at least one batch; rows and columns hold codes that `layout` numbers."""
        threads = self._threads or default_threads()
        n_ahead = 0 if self._is_computed else AHEAD * threads
        with contextlib.closing(self._tables()) as tables, ThreadPoolExecutor(threads, "mgspmv-encode") as pool:
            empty = None
            for part in prefetch_map(pool, self._parse, self._read(tables), n_ahead):
                if len(part.ids[0]):
                    yield self._encode(part)
                else:
                    empty = empty or part
            if self._form is None and empty is not None:
                if empty.problem is not None and not self.may_be_empty:
                    raise empty.problem
                yield self._encode(empty)
        assert self._form is not None  # each table yields at least one part
        self._told = _TableSummary(self._form, self._all_columns, self._files_read, self._counts, self._listed)
        self._layout = replace(self._made.finish(), provenance=self.join([self._told]).provenance)

    def join(self, told: Sequence[_TableSummary]) -> Combined:
        """Check and join the summaries of all parts; see `FileSource`."""
        filled = [own for own in told if own.counts["rows"]] or told
        first = filled[0]
        for own in filled:
            first.form.check(own.form)
        counts = Counter[str]()
        for own in told:
            counts.update(own.counts)
        files = [file for own in told for file in own.files] or [{"name": self.name}]
        header = {"columns": first.form.names, **counts}
        names = told[0].all_columns
        taken = ColumnChoice(*map(names.index, first.form.names)).describe(names) | {"n_rows": counts["rows"]}
        provenance = {"format": self._format, **describe_files(self.name, files), "header": header}
        return Combined(None, {**provenance, **first.listed, "taken": taken})

    @abstractmethod
    def _tables(self) -> Generator[Table]:
        """Open and yield the tables, at least one, one after the other."""

    def _read(self, tables: Iterable[Table]) -> Iterator[tuple[Table, int, Any, float | None]]:
        """Yield the tables in parts: the table, the number of the first row, the rows, and the fraction read then."""
        for k, table in enumerate(tables):
            n_rows, self._all_columns = 0, self._all_columns or table.columns
            for batch in table.read(self._choose_columns(table)):
                for start in range(0, max(1, batch.num_rows), PART_ROWS):
                    rows = batch.slice(start, PART_ROWS)
                    share = (n_rows + rows.num_rows) / table.n_rows if table.n_rows else None
                    fraction = None if share is None else (k + share) / self._n_tables
                    yield table, table.first_row + n_rows, rows, fraction
                    n_rows += rows.num_rows

    def _choose_columns(self, table: Table) -> list[str]:
        """Return the names of the columns of sources, targets and, optionally, weights."""
        there, reading = table.columns, self._reading
        if len(there) < 2:
            raise SourceError(
                f"expected columns of sources and targets, found {len(there)}: {list_names(there)}", source=table.name
            )
        try:
            if reading.columns is not None:
                chosen = resolve_columns(reading.columns, there, len(there), reading.weights)
            else:
                there = [name for name in there if not _is_index(name, table.index)]
                chosen = choose_columns(there, len(there), reading.weights, reading.extra_columns)
        except Undecided as error:
            raise SourceError(str(error), source=table.name) from error
        places = [chosen.source, chosen.target, chosen.weight]
        names = [there[place] for place in places if place is not None]
        for name in names:
            if table.columns.count(name) != 1:
                raise SourceError(
                    f"expected one column {name!r}, found the columns {list_names(table.columns)}; rename them",
                    source=table.name,
                )
        return names

    def _parse(self, read: tuple[Table, int, Any, float | None]) -> _Part:
        """Parse rows; thread-safe.

        Raises
        ------
        SourceError : an invalid row, or columns of types that are not read
        """
        table, first, rows, fraction = read
        columns = [*map(decode, rows.columns[:2]), *rows.columns[2:]]
        types, names = [column.type for column in columns], rows.schema.names
        kinds = [find_kind(each) for each in types]
        are_names = "string" in kinds[:2] and (rows.num_rows > 0 or self._n_vertices is None)
        form = _Form(table.name, first, names, str(types[0]), are_names, "missing")
        problem = _check_types(form, types, kinds)
        if not rows.num_rows:
            columns = [pa.array([], pa.large_string() if are_names else pa.int64())] * 2 + [
                column if kind in ("integer", "number") else pa.array([], pa.float64())
                for column, kind in zip(columns[2:], kinds[2:], strict=True)
            ]
        else:
            _check_filled(form, columns)
            if problem is not None:
                raise problem
            if are_names and self._n_vertices is not None:
                raise form.make_error("n_vertices= requires integer ids, found strings; pass vertices=")
        ids = [
            to_strings(column) if are_names else self._to_integers(form, name, column)
            for name, column in zip(names[:2], columns, strict=False)
        ]
        weights = _to_numbers(columns[2]) if len(columns) > 2 else None
        form = form if weights is None else replace(form, dtype=weights.dtype.name)
        return _Part(form, ids, weights, fraction, problem)

    def _encode(self, part: _Part) -> CooBatch:
        """Return the entries of parsed rows, in their order.

        Raises
        ------
        SourceError : ids or weights of another type than those before, or an id that is not in the list of vertices
        """
        form, ids = part.form, part.ids
        if self._form is None:
            self._form = form
            column = TextColumn("vertex", "string" if form.are_names else "int64")
            known = self._n_vertices, self._vertices, self._reading, self._id_room, self.name
            self._made, self._listed = choose_vertices(column, *known)
        self._form.check(form)
        self.fraction = part.fraction
        self._counts["rows"] += len(ids[0])
        codes = self._made.encode(*ids)
        for name, column, own in zip(form.names, ids, codes, strict=False):
            if (k := find_unknown(self._made, own)) is not None:
                raise form.make_error(
                    f"row {form.first + k}: {int(column[k])} in column {name!r} is not in the list of vertices; add it "
                    "there or remove the edge"
                )
        return CooBatch(codes[0], codes[1], part.weights)

    def _to_integers(self, form: _Form, name: str, column: Any) -> np.ndarray:
        n = self._n_vertices
        low, high = (INT64_MIN, INT64_MAX) if n is None else (0, n - 1)
        if len(column) and not low <= (found := pa.compute.min_max(column).as_py())["min"] <= found["max"] <= high:
            k, wrong = next((k, id) for k, id in enumerate(column.to_pylist()) if not low <= id <= high)
            expected = "a 64-bit integer" if n is None else f"an id from 0 to {n - 1} (n_vertices={n})"
            raise form.make_error(f"row {form.first + k}: expected {expected} in column {name!r}, found {wrong}")
        return to_integers(column).astype(np.int64 if n is None else index_dtype(n))


def find_saved_index(schema: Any) -> Sequence[str]:
    """Return the columns of an Arrow schema that pandas saved as an index, by its metadata."""
    described = (schema.metadata or {}).get(b"pandas")
    try:
        index = parse_json(described)["index_columns"] if described else []
        return [name for name in index if isinstance(name, str)]
    except (ValueError, KeyError, TypeError):  # written by another program
        return []


def _is_index(name: str, index: Sequence[str]) -> bool:
    """Return whether a column was saved as an index and is not named as a source or a target."""
    role, _ = find_role(name)
    return is_saved_index(name) or (name in index and role not in ("source", "target"))


def make_empty(schema: Any) -> Any:
    """Make a record batch without rows."""
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


def _check_filled(form: _Form, columns: Sequence[Any]) -> None:
    for name, column in zip(form.names, columns, strict=True):
        if column.null_count:
            row = form.first + int(np.flatnonzero(np.asarray(column.is_null()))[0])
            raise form.make_error(f"row {row} has a missing value in column {name!r}; drop such rows, or fill them")


def _check_types(form: _Form, types: Sequence[Any], kinds: Sequence[str | None]) -> SourceError | None:
    """Return the error of columns of types that are not read; None if there is none."""
    names = form.names
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


def _to_numbers(weights: Any) -> np.ndarray:
    if pa.types.is_decimal(weights.type) or pa.types.is_float16(weights.type) or pa.types.is_null(weights.type):
        weights = weights.cast(pa.float64())
    return np.asarray(weights.to_numpy(zero_copy_only=False))
