"""Tables of edges, one arc per row, as Arrow record batches: Parquet files, and in `frames` tables in memory."""

from __future__ import annotations

import contextlib
import os
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from mgspmv.display.frames import unwrap_numbers
from mgspmv.errors import SourceError
from mgspmv.heartbeat import AHEAD, prefetch_map
from mgspmv.ingest.column_names import ColumnChoice, find_role, is_saved_index, list_names
from mgspmv.ingest.columns import TextColumn
from mgspmv.ingest.files import (
    MANY_FILES,
    Path,
    cut_evenly,
    describe_files,
    list_paths,
    make_absolute,
    name_files,
    open_anywhere,
)
from mgspmv.ingest.headers import choose_read_columns
from mgspmv.ingest.source import EdgeFacts, EdgeSource, Layout, decode, find_kind, to_integers, to_strings
from mgspmv.ingest.streams import begin_hashing
from mgspmv.ingest.tokens import INT64_MAX, INT64_MIN, Undecided
from mgspmv.ingest.vertex_vectors import reading_table
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


# --- Parquet files ---------------------------------------------------------------------------------------------------

GROUP_BYTES = 1 << 25
"""Most bytes of the columns of a row group that a thread reads at once, twice as many for a device; larger groups are
read in batches, by few threads."""
LEAST_GROUP = 1 << 14
"""Least rows of row groups, on average, that are read one by one."""
PIECES_KEPT = 12
"""Pieces cached of a file at a URL: Parquet reads one position per column in turn."""
BUFFER_BYTES = 1 << 20
"""Bytes of a column of Parquet per read; without a limit, Arrow reads whole row groups."""


class ParquetSource(TableSource):
    """Parquet files of edges as a `Source`; see `TableSource` for the types of their columns.

    Parameters
    ----------
    path : local path or URL, or several, whose rows are concatenated
    options : options of `TableSource`

    Raises
    ------
    OptionError : options that contradict each other
    SourceError : from `batches`: not a Parquet file, or an invalid row; names it
    SourceNotFoundError : from `batches`: missing file
    """

    def __init__(self, path: Path | Sequence[Path], **options: Any) -> None:
        files = list_paths(path)
        super().__init__(name_files(files), "parquet", **options)
        self._n_tables = len(files)
        self._groups: list[tuple[str, range | None]] = [(name, None) for name in files]
        """Files, each with its row groups that are read; None for all."""

    @property
    def n_stated(self) -> int | None:
        """Rows of the first file, if it is the only one."""
        [(name, groups), *more] = self._groups
        if more or groups is not None or "://" in name:
            return None
        with _open_parquet(name) as file:
            return sum(_measure_groups(file))

    def split(self, n_parts: int) -> list[ParquetSource]:
        """Split the source, see `FileSource`; files are cut between row groups, or not at all if there are many."""
        groups = [(make_absolute(name), read) for name, read in self._groups]
        sizes = [1] * len(groups)
        if len(groups) < MANY_FILES * n_parts:
            names, groups, sizes = [name for name, _ in groups], [], []
            for name in names:
                with _open_parquet(name) as file:
                    lengths = _measure_groups(file)
                groups += [(name, range(k, k + 1)) for k in range(len(lengths))] or [(name, range(0))]
                sizes += [1 + n for n in lengths] or [1]
        parts = []
        for own in cut_evenly(groups, sizes, n_parts):
            part = self._take_part()
            part._groups = []
            read = {name: [groups for file, groups in own if file == name] for name, _ in own}
            for name, ranges in read.items():  # consecutive; None, for all row groups, occurs alone
                first, last = ranges[0], ranges[-1]
                joined = None if first is None or last is None else range(first.start, last.stop)
                part._groups.append((name, joined))
            part._n_tables = len(part._groups)
            parts.append(part)
        return parts

    def _tables(self) -> Generator[Table]:
        for name, groups in self._groups:
            with _open_parquet(name) as file:
                lengths = _measure_groups(file)
                read = range(len(lengths)) if groups is None else groups
                if not read.start:
                    is_hashed = self.hashes_files and "://" not in name and len(read) == len(lengths)
                    known = {"bytes": os.path.getsize(name), "sha256": begin_hashing(name)} if is_hashed else {}
                    self._facts.files.append({"name": name} | known)
                n_rows, first_row = sum(lengths[k] for k in read), sum(lengths[: read.start])
                schema, reader = file.schema_arrow, self._make_reader(name, file, read)
                yield Table(name, schema.names, reader, first_row, n_rows, schema.metadata)
            self._facts.counts["row_groups"] += len(read)

    def _make_reader(self, name: str, file: Any, groups: range) -> Callable[[list[str]], Iterator[Any]]:
        import pyarrow.parquet as pq

        threads = self._threads or default_threads()
        said = "the Parquet file is damaged or cut short ({}); fetch it again"

        def load(mapped: Any, names: list[str], k: int) -> Any:
            with reading_table(name, said):
                own = pq.ParquetFile(mapped, metadata=file.metadata)
                rows = own.read_row_group(k, names, use_threads=False).select(names).combine_chunks()
                return rows.to_batches()[0] if rows.num_rows else make_empty(rows.schema)

        def read(names: list[str]) -> Iterator[Any]:
            yield make_empty(file.schema_arrow).select(names)
            is_many = sum(file.metadata.row_group(k).num_rows for k in groups) < LEAST_GROUP * len(groups)
            is_apart = threads == 1 or "://" in name or is_many
            most = GROUP_BYTES << self.has_large_batches
            if not is_apart and _measure_columns(file, groups, names) <= most:
                with reading_table(name, said):
                    mapped = pa.memory_map(name)
                for k in groups:
                    yield RowGroup(file.metadata.row_group(k).num_rows, partial(load, mapped, names, k))
                return
            with reading_table(name, said):
                for rows in file.iter_batches(BATCH_ROWS, groups, names, use_threads=threads != 1):
                    yield rows.select(names)

        return read


def _measure_columns(file: Any, groups: range, names: Sequence[str]) -> int:
    """Return the most bytes, uncompressed, that the columns of these names take in a row group."""
    most = 0
    for k in groups:
        group = file.metadata.row_group(k)
        columns = map(group.column, range(group.num_columns))
        own = [column for column in columns if column.path_in_schema.partition(".")[0] in names]
        most = max(most, sum(column.total_uncompressed_size for column in own))
    return most


@contextlib.contextmanager
def _open_parquet(name: str) -> Iterator[Any]:
    """Open a Parquet file; Arrow itself opens local files.

    Raises
    ------
    SourceError : missing file, not a Parquet file, or a server that does not report the size
    """
    import pyarrow.parquet as pq

    with open_anywhere(name, cache_type="blockcache", maxblocks=PIECES_KEPT) as raw:
        if getattr(raw, "cache", None) is not None and raw.size is None:  # type: ignore[attr-defined]  # fsspec's
            raise SourceError("the server does not report the size, which is needed; download the file", source=name)
        with reading_table(name, "not a Parquet file, or damaged or cut short ({}); write it again"):
            place = raw if "://" in name else name
            file = pq.ParquetFile(place, buffer_size=BUFFER_BYTES, pre_buffer=False)
            file.schema_arrow.names  # noqa: B018  # decodes the names
        yield file


def _measure_groups(file: Any) -> list[int]:
    """Return the number of rows of each row group."""
    return [file.metadata.row_group(k).num_rows for k in range(file.metadata.num_row_groups)]
