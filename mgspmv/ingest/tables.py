"""Tables of edges, one arc per row, from files or objects."""

from __future__ import annotations

import contextlib
import os
from abc import abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain
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
from mgspmv.ingest.prefetch import AHEAD, prefetch_map
from mgspmv.ingest.scratch import ANY_ROOM, MemoryBudget
from mgspmv.ingest.source import Combined, FileSource
from mgspmv.ingest.tokens import Undecided
from mgspmv.ingest.values import INT64_MAX, INT64_MIN
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
class _Part:
    """Range of rows of the chosen columns."""

    table: str
    """Name of the table."""
    first: int
    """Number of the first row, from 0."""
    rows: Any
    """Arrow record batch of the columns of sources, targets and, optionally, weights."""
    fraction: float | None
    """Approximate fraction of all rows read up to this part; None if unknown."""

    @property
    def names(self) -> list[str]:
        return list(self.rows.schema.names)

    @property
    def types(self) -> list[Any]:
        return list(self.rows.schema.types)

    def decode_ids(self) -> _Part:
        """Return the same rows with ids decoded if they are dictionary-encoded."""
        columns = [_decode(ids) for ids in self.rows.columns[:2]] + self.rows.columns[2:]
        return replace(self, rows=pa.RecordBatch.from_arrays(columns, names=self.names))

    def make_error(self, message: str) -> SourceError:
        return SourceError(message, source=self.table)


@dataclass(frozen=True)
class _TableSummary:
    """Summary of a part of the tables."""

    described: dict[str, Any]
    """Provenance of its rows."""
    first: _Part
    """First part, for names and types of columns; its rows are removed."""
    all_columns: list[str]
    """Names of all columns, including those not read."""
    n_rows: int
    are_names: bool
    dtype: str
    """Dtype of the weights; `missing` if there are none."""
    listed: dict[str, Any]
    """Provenance of the list of vertices."""

    @property
    def names(self) -> list[str]:
        """Names of the columns."""
        return self.first.names

    def check(self, other: _TableSummary) -> None:
        """Raise SourceError if ids or weights of another part are of another type."""
        if other.are_names != self.are_names:
            raise _ids_error(other.first, self.first)
        if other.dtype != self.dtype:
            raise _weights_error(other.first, other.dtype, self.first, self.dtype)


class TableSource(FileSource):
    """Concatenated tables as a `Source`: columns of sources, targets and, optionally, weights, one arc per row.

    Ids are integers of any width that fit into int64, decimals without decimal places among them, or strings; UUIDs
    (Arrow's type, or 16 bytes of fixed size) become their text; dictionary-encoded ids are decoded. Vertices are found
    as in `EdgeListSource`, except that no comment can state their number.

    Parameters
    ----------
    name : name of the source in messages
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
        self._n_tables = 1
        self._all_columns: list[str] = []
        """Names of all columns of the first table."""
        self._is_computed = False
        """Whether rows are computed and take memory elsewhere, so that they are not read ahead."""
        self._n_vertices, self._vertices, self._id_room = n_vertices, vertices, id_room
        self.has_known_vertices = n_vertices is not None or vertices is not None

    def batches(self) -> Iterator[CooBatch]:
        """Yield all arcs, in at least one batch; rows and columns hold codes that `layout` numbers."""
        with contextlib.closing(self._tables()) as tables:
            parts = _leave_out_empty(self._read(tables))
            first = next(parts)  # each table yields at least one
            if self.may_be_empty and not first.rows.num_rows:
                first = replace(first, rows=_make_untyped(first.rows.schema))
            self._begin(first)
            threads = self._threads or default_threads()
            with ThreadPoolExecutor(threads, "mgspmv-encode") as pool:
                n_ahead = 0 if self._is_computed else AHEAD * threads
                for part, ids, weights in prefetch_map(pool, self._parse, chain([first], parts), n_ahead):
                    self.fraction = part.fraction
                    yield self._encode(part, ids, weights)
        assert self._dtype is not None
        first = replace(self._first, rows=make_empty(self._first.rows.schema))  # a slice would keep all rows in memory
        told = self._describe(), first, self._all_columns, self._n_rows, self._are_names, self._dtype, self._listed
        self._told = _TableSummary(*told)
        self._layout = replace(self._made.finish(), provenance=self.join([self._told]).provenance)

    def join(self, told: Sequence[_TableSummary]) -> Combined:
        """Check and join the summaries of all parts; see `FileSource`."""
        filled = [own for own in told if own.n_rows] or told  # empty columns may have no type
        first = filled[0]
        for own in filled:
            first.check(own)
        header = {"columns": first.names, "rows": sum(own.n_rows for own in told)}
        provenance = self._describe_all([own.described for own in told], header)
        names = told[0].all_columns
        taken = ColumnChoice(*map(names.index, first.names)).describe(names) | {"n_rows": header["rows"]}
        return Combined(None, {**provenance, **first.listed, "taken": taken})

    @abstractmethod
    def _tables(self) -> Generator[Table]:
        """Open and yield the tables, at least one, one after the other."""

    @abstractmethod
    def _describe(self) -> dict[str, Any]:
        """Return the provenance of the rows that were read."""

    @abstractmethod
    def _describe_all(self, told: Sequence[dict[str, Any]], header: dict[str, Any]) -> dict[str, Any]:
        """Return the provenance of all parts from that of each, see `_describe`, and their common `header`."""

    def _read(self, tables: Iterable[Table]) -> Iterator[_Part]:
        for k, table in enumerate(tables):
            n_rows, self._all_columns = 0, self._all_columns or table.columns
            for rows in table.read(self._choose_columns(table)):
                first, n_rows = table.first_row + n_rows, n_rows + rows.num_rows
                for start in range(0, max(1, rows.num_rows), PART_ROWS):
                    own = rows.slice(start, PART_ROWS)
                    share = (first - table.first_row + start + own.num_rows) / table.n_rows if table.n_rows else None
                    fraction = None if share is None else (k + share) / self._n_tables
                    yield _Part(table.name, first + start, own, fraction)

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
                kept = [name for name in there if not _is_index(name, table.index)]
                chosen, there = choose_columns(kept, len(kept), reading.weights, reading.extra_columns), kept
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

    # --- rows, whose types the first rows define

    def _begin(self, first: _Part) -> None:
        """Set the types of the columns from the first rows, which all others must match."""
        self._first, self._n_rows = first.decode_ids(), 0
        self._dtype: str | None = None
        self._are_names = self._check(self._first)
        column = TextColumn("vertex", "string" if self._are_names else "int64")
        known = self._n_vertices, self._vertices, self._reading, self._id_room, self.name
        self._made, self._listed = choose_vertices(column, *known)

    def _parse(self, part: _Part) -> tuple[_Part, list[Any], np.ndarray | None]:
        """Return the rows, and their columns of ids and weights; thread-safe.

        Raises
        ------
        SourceError : an invalid row, or columns of other types than those of the first rows
        """
        part = part.decode_ids()
        if self._check(part) != self._are_names:
            raise _ids_error(part, self._first)
        ids = [_to_strings(part.rows.column(k)) if self._are_names else self._to_integers(part, k) for k in (0, 1)]
        return part, ids, _to_numbers(part.rows.column(2)) if len(part.types) > 2 else None

    def _encode(self, part: _Part, ids: list[Any], weights: np.ndarray | None) -> CooBatch:
        """Return the entries of parsed rows, in their order.

        Raises
        ------
        SourceError : weights of another type than those before, or an id that is not in the list of vertices
        """
        self._check_dtype(part, "missing" if weights is None else weights.dtype.name)
        self._n_rows += part.rows.num_rows
        codes = self._made.encode(*ids)
        for name, column, own in zip(part.names, ids, codes, strict=False):
            if (k := find_unknown(self._made, own)) is not None:
                found = column[k].as_py() if self._are_names else int(column[k])
                raise part.make_error(
                    f"row {part.first + k}: {found!r} in column {name!r} is not in the list of vertices; add it there "
                    "or remove the edge"
                )
        return CooBatch(codes[0], codes[1], weights)

    def _check(self, part: _Part) -> bool:
        """Check the columns of a part, and return whether ids are names."""
        _check_filled(part)
        are_names = _check_types(part)
        if are_names and self._n_vertices is not None:
            raise part.make_error("n_vertices= requires integer ids, found strings; pass vertices=")
        return are_names

    def _check_dtype(self, part: _Part, dtype: str) -> None:
        self._dtype = self._dtype or dtype
        if dtype != self._dtype:
            raise _weights_error(part, dtype, self._first, self._dtype)

    def _to_integers(self, part: _Part, side: int) -> np.ndarray:
        column, n = part.rows.column(side), self._n_vertices
        low, high = (INT64_MIN, INT64_MAX) if n is None else (0, n - 1)
        if len(column) and not low <= (found := pa.compute.min_max(column).as_py())["min"] <= found["max"] <= high:
            k, wrong = next((k, id) for k, id in enumerate(column.to_pylist()) if not low <= id <= high)
            expected = "a 64-bit integer" if n is None else f"an id from 0 to {n - 1} (n_vertices={n})"
            raise part.make_error(
                f"row {part.first + k}: expected {expected} in column {part.names[side]!r}, found {wrong}"
            )
        if pa.types.is_decimal(column.type):
            column = column.cast(pa.int64())
        array: np.ndarray = column.to_numpy(zero_copy_only=False)
        return array.astype(np.int64 if n is None else index_dtype(n))


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


def _ids_error(part: _Part, first: _Part) -> SourceError:
    return part.make_error(
        f"ids are {part.types[0]} from row {part.first} on, but {first.types[0]} at the beginning of {first.table}; "
        "convert all to integers, or all to strings"
    )


def _weights_error(part: _Part, dtype: str, first: _Part, first_dtype: str) -> SourceError:
    return part.make_error(
        f"weights are {dtype} from row {part.first} on, but {first_dtype} at the beginning of {first.table}; convert "
        "all to one type, or pass weights=False"
    )


def make_empty(schema: Any) -> Any:
    """Make a record batch without rows."""
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


def _make_untyped(schema: Any) -> Any:
    """Make a record batch without rows or types, other than string, as libraries guess the type of an empty column."""
    fields = [field if _find_kind(field.type) == "string" else field.with_type(pa.null()) for field in schema]
    return make_empty(pa.schema(fields))


def _leave_out_empty(parts: Iterable[_Part]) -> Iterator[_Part]:
    """Yield the parts that have rows, or else the first one."""
    empty, n_given = None, 0
    for part in parts:
        if part.rows.num_rows:
            n_given += 1
            yield part
        else:
            empty = empty or part
    if empty is not None and not n_given:
        yield empty


def _check_filled(part: _Part) -> None:
    for name, column in zip(part.names, part.rows.columns, strict=True):
        if column.null_count:
            row = part.first + int(np.flatnonzero(np.asarray(column.is_null()))[0])
            raise part.make_error(f"row {row} has a missing value in column {name!r}; drop such rows, or fill them")


def _check_types(part: _Part) -> bool:
    """Check the types of the columns, and return whether ids are names."""
    names, types = part.names, part.types
    kinds = [_find_kind(each) for each in types]
    for name, kind, each in zip(names[:2], kinds, types, strict=False):
        if kind not in ("integer", "string"):
            raise part.make_error(
                f"expected ids in column {name!r} to be integers or strings, found {each}; cast the column to int64 or "
                "to strings, UUIDs to fixed_size_binary(16)"
            )
    if kinds[0] != kinds[1]:
        raise part.make_error(
            f"ids in columns {names[0]!r} and {names[1]!r} are {types[0]} and {types[1]}; store both as integers, "
            "or as strings"
        )
    if len(names) > 2 and kinds[2] not in ("integer", "number"):
        raise part.make_error(
            f"expected weights in column {names[2]!r} to be numbers, found {types[2]}; pass weights=False, or "
            "choose another column with columns=(...)"
        )
    return kinds[0] == "string"


def _find_kind(of: Any) -> Literal["integer", "number", "string"] | None:
    if pa.types.is_integer(of) or pa.types.is_null(of):  # missing values are rejected before, so a null column is empty
        return "integer"
    if pa.types.is_decimal(of):
        return "integer" if of.scale == 0 else "number"
    if _is_string(of) or _is_uuid(of):
        return "string"
    return "number" if pa.types.is_floating(of) or pa.types.is_boolean(of) else None


def _is_string(of: Any) -> bool:
    return bool(pa.types.is_string(of) or pa.types.is_large_string(of) or pa.types.is_string_view(of))


def _is_uuid(of: Any) -> bool:
    """Return whether a type is one of UUIDs: Arrow's extension type, or 16 bytes, as older programs write them."""
    return getattr(of, "extension_name", "") == "arrow.uuid" or of == pa.binary(16)


def _decode(ids: Any) -> Any:
    """Decode ids if they are dictionary-encoded, so that missing values of the dictionary are found."""
    if not pa.types.is_dictionary(ids.type):
        return ids
    values = ids.dictionary
    return (values.storage if _is_uuid(values.type) and values.type != pa.binary(16) else values).take(ids.indices)


def _to_strings(ids: Any) -> Any:
    return _write_uuids(ids) if _is_uuid(ids.type) else ids.cast(pa.string())


def _write_uuids(ids: Any) -> Any:
    """Return the text of UUIDs, as `str(uuid.UUID(bytes=...))`; none is missing."""
    storage = ids if ids.type == pa.binary(16) else ids.storage
    n = len(storage)
    given = np.frombuffer(storage.buffers()[1] or b"", np.uint8, 16 * n, 16 * storage.offset).reshape(n, 16)
    digits = np.frombuffer(given.tobytes().hex().encode(), np.uint8).reshape(n, 32)
    text = np.full((n, 36), ord("-"), np.uint8)
    for start, stop, shift in ((0, 8, 0), (8, 12, 1), (12, 16, 2), (16, 20, 3), (20, 32, 4)):
        text[:, start + shift : stop + shift] = digits[:, start:stop]
    ends = np.arange(0, 36 * n + 1, 36, dtype=np.int32)
    return pa.StringArray.from_buffers(n, pa.py_buffer(ends), pa.py_buffer(text))


def _to_numbers(weights: Any) -> np.ndarray:
    if pa.types.is_decimal(weights.type) or pa.types.is_float16(weights.type) or pa.types.is_null(weights.type):
        weights = weights.cast(pa.float64())
    return np.asarray(weights.to_numpy(zero_copy_only=False))
