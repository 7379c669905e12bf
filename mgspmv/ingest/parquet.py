"""Parquet tables of edges: an arc a row."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager
from copy import copy
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet

from mgspmv.errors import SourceError
from mgspmv.files import describe_error
from mgspmv.ingest.files import Path, describe_files, list_paths, name_files
from mgspmv.ingest.parts import MANY_FILES, cut_evenly, make_absolute
from mgspmv.ingest.remote import open_sought
from mgspmv.ingest.streams import open_anywhere
from mgspmv.ingest.tables import BATCH_ROWS, TableSource, find_saved_index, make_empty
from mgspmv.ingest.vertices import IdRoom
from mgspmv.os_errors import refuse_source

BUFFER_BYTES = 1 << 20
"""Of a column that are read at a time; without it, all of a row group are."""

_DAMAGE = (pa.ArrowException, OSError, ValueError)
"""Exceptions of pyarrow on damaged files; ValueError for names that are no UTF-8."""


class ParquetSource(TableSource):
    """Parquet files of edges as a `Source`; see `TableSource` for what their columns may hold.

    Parameters
    ----------
    path : local path or URL, or several, whose rows follow each other
    batch_rows : rows of a batch
    threads : that decode; several unless it is 1
    options : of `TableSource`

    Raises
    ------
    OptionError : options that contradict each other
    SourceError : by `batches`, for what is no such file, or a row that does not fit; names it
    SourceNotFoundError : by `batches`, if there is no file
    """

    def __init__(
        self,
        path: Path | Sequence[Path],
        *,
        batch_rows: int = BATCH_ROWS,
        threads: int | None = None,
        **options: Any,
    ) -> None:
        self._files = list_paths(path)
        super().__init__(name_files(self._files), **options)
        self._batch_rows, self._threads, self._n_tables = batch_rows, threads, len(self._files)
        self._groups: Sequence[range | None] = [None] * len(self._files)
        self._n_groups = 0
        self._read_files: list[dict[str, Any]] = []

    def split(self, n_parts: int) -> list[TableSource]:
        """As of `FileSource`; files are cut between row groups, and not at all where there are many."""
        files = [make_absolute(name) for name in self._files]
        if len(files) >= MANY_FILES * n_parts:
            groups: list[tuple[str, range | None]] = [(name, None) for name in files]
            sizes = [1] * len(files)
        else:
            groups, sizes = [], []
            for name in files:
                lengths = _measure_groups(name)
                groups += [(name, range(k, k + 1)) for k in range(len(lengths))] or [(name, range(0))]
                sizes += [1 + n for n in lengths] or [1]
        return [self._take(own) for own in cut_evenly(groups, sizes, n_parts)]

    def _take(self, groups: Sequence[tuple[str, range | None]]) -> TableSource:
        """The part that has these row groups of files."""
        part, files = copy(self), list(dict.fromkeys(name for name, _ in groups))
        part._vertices = None if self._vertices is None else make_absolute(os.fspath(self._vertices))
        part._files, part._n_tables, part._read_files = tuple(files), len(files), []
        part._groups = [_join_ranges([own for name, own in groups if name == file]) for file in files]
        return part

    def prepare(self, threads: int, id_room: IdRoom) -> None:
        """As of `FileSource`."""
        self._threads, self._id_room = threads, id_room

    def _tables(self) -> Generator[ParquetTable]:
        for name, groups in zip(self._files, self._groups, strict=True):
            with _open(name) as raw:
                table = ParquetTable(name, raw, self._batch_rows, self._threads, groups)
                yield table
            self._n_groups += table.n_groups
            if table.has_begin:
                self._read_files.append(_describe_file(name, is_whole=table.is_whole))

    def _describe(self) -> dict[str, Any]:
        return {"format": "parquet", "files": self._read_files, "row_groups": self._n_groups}

    def _describe_all(self, told: Sequence[dict[str, Any]], header: dict[str, Any]) -> dict[str, Any]:
        files = [file for own in told for file in own["files"]]
        header["row_groups"] = sum(own["row_groups"] for own in told)
        return {"format": "parquet", **describe_files(self.name, files), "header": header}


class ParquetTable:
    """A Parquet file as a `Table`.

    Parameters
    ----------
    name : local path or URL
    raw : the file, opened for reading, of which a local one makes no use
    batch_rows, threads : as of `ParquetSource`
    groups : the row groups that are read; None for all

    Raises
    ------
    SourceError : no such file
    """

    def __init__(self, name: str, raw: Any, batch_rows: int, threads: int | None, groups: range | None = None) -> None:
        self.name, self._batch_rows, self._is_threaded = name, batch_rows, threads != 1
        try:
            self._file = pa.parquet.ParquetFile(
                name if "://" not in name else raw, buffer_size=BUFFER_BYTES, pre_buffer=False
            )
            self.columns: list[str] = self._file.schema_arrow.names
        except SourceError:  # of what is behind a URL
            raise
        except _DAMAGE as error:
            said = f"this is no Parquet file, or it is damaged or cut short ({describe_error(error)})"
            raise refuse_source(error, name, said) from error
        self.index: Sequence[str] = find_saved_index(self._file.schema_arrow)
        lengths = self.measure_groups()
        self._groups = range(len(lengths)) if groups is None else groups
        self.n_groups = len(self._groups)
        self.has_begin = not self._groups or self._groups.start == 0
        self.is_whole = self.n_groups == len(lengths)
        self.first_row = sum(lengths[: self._groups.start])
        self.n_rows: int | None = sum(lengths[k] for k in self._groups)

    def measure_groups(self) -> list[int]:
        """Rows of each row group."""
        metadata = self._file.metadata
        return [metadata.row_group(k).num_rows for k in range(metadata.num_row_groups)]

    def read(self, names: list[str]) -> Iterator[Any]:
        """Give columns as record batches.

        Raises
        ------
        SourceError : the file is damaged
        """
        schema, n_rows = self._file.schema_arrow, 0
        batches = self._file.iter_batches(self._batch_rows, self._groups, names, use_threads=self._is_threaded)
        try:
            for rows in batches:
                if rows.num_rows:
                    yield rows.select(names)
                n_rows += rows.num_rows
        except SourceError:
            raise
        except _DAMAGE as error:
            said = f"the Parquet file is damaged or cut short ({describe_error(error)}); fetch it again"
            raise refuse_source(error, self.name, said) from error
        if not n_rows:
            yield make_empty(pa.schema([schema.field(name) for name in names]))


def _describe_file(name: str, *, is_whole: bool) -> dict[str, Any]:
    """The provenance of a file; of others than local ones, which would be fetched twice, and of parts just the name."""
    if "://" in name or not is_whole:
        return {"name": name}
    with open(name, "rb") as file:
        return {"name": name, "bytes": os.path.getsize(name), "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def _open(name: str) -> AbstractContextManager[IO[bytes]]:
    return open_sought(name) if "://" in name else open_anywhere(name)


def _measure_groups(name: str) -> list[int]:
    with _open(name) as raw:
        return ParquetTable(name, raw, BATCH_ROWS, 1).measure_groups()


def _join_ranges(ranges: Sequence[range | None]) -> range | None:
    """The one range that ranges make which follow each other; None, for all, is alone."""
    first, last = ranges[0], ranges[-1]
    return None if first is None or last is None else range(first.start, last.stop)
