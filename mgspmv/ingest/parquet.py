"""Parquet files of edges, as tables of `tables`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from mgspmv.errors import SourceError
from mgspmv.ingest.files import (
    MANY_FILES,
    Path,
    cut_evenly,
    list_paths,
    make_absolute,
    name_files,
    open_anywhere,
)
from mgspmv.ingest.streams import begin_hashing
from mgspmv.ingest.tables import BATCH_ROWS, RowGroup, Table, TableSource, make_empty
from mgspmv.ingest.vertex_vectors import reading_table
from mgspmv.model import default_threads

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
            read = {name: [groups for file, groups in own if file == name] for name, _ in own}
            part._groups = [(name, _join_ranges(groups)) for name, groups in read.items()]
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
        threads = self._threads or default_threads()

        said = "the Parquet file is damaged or cut short ({}); fetch it again"

        def load(mapped: Any, names: list[str], k: int) -> Any:
            with reading_table(name, said):
                own = pa.parquet.ParquetFile(mapped, metadata=file.metadata)
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
    with open_anywhere(name, cache_type="blockcache", maxblocks=PIECES_KEPT) as raw:
        if getattr(raw, "cache", None) is not None and raw.size is None:  # type: ignore[attr-defined]  # fsspec's
            raise SourceError("the server does not report the size, which is needed; download the file", source=name)
        with reading_table(name, "not a Parquet file, or damaged or cut short ({}); write it again"):
            place = raw if "://" in name else name
            file = pa.parquet.ParquetFile(place, buffer_size=BUFFER_BYTES, pre_buffer=False)
            file.schema_arrow.names  # noqa: B018  # decodes the names
        yield file


def _measure_groups(file: Any) -> list[int]:
    """Return the number of rows of each row group."""
    return [file.metadata.row_group(k).num_rows for k in range(file.metadata.num_row_groups)]


def _join_ranges(ranges: Sequence[range | None]) -> range | None:
    """Join consecutive ranges into one; None, for all row groups, occurs alone."""
    first, last = ranges[0], ranges[-1]
    return None if first is None or last is None else range(first.start, last.stop)
