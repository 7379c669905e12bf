"""Parquet tables of edges, one arc per row."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from mgspmv.ingest.files import Path, list_paths, name_files, open_anywhere
from mgspmv.ingest.parts import MANY_FILES, cut_evenly, make_absolute
from mgspmv.ingest.remote import open_sought
from mgspmv.ingest.tables import BATCH_ROWS, Table, TableSource, find_saved_index, make_empty
from mgspmv.ingest.vector_files import reading_table

BUFFER_BYTES = 1 << 20
"""Bytes of a column per read; without a limit, Arrow reads whole row groups."""


class ParquetSource(TableSource):
    """Parquet files of edges as a `Source`; see `TableSource` for the types of their columns.

    Parameters
    ----------
    path : local path or URL, or several, whose rows are concatenated
    threads : 1 to decode in one thread, else in several
    options : options of `TableSource`

    Raises
    ------
    OptionError : options that contradict each other
    SourceError : from `batches`: not a Parquet file, or an invalid row; names it
    SourceNotFoundError : from `batches`: missing file
    """

    def __init__(self, path: Path | Sequence[Path], *, threads: int | None = None, **options: Any) -> None:
        self._files = list_paths(path)
        super().__init__(name_files(self._files), "parquet", **options)
        self._threads, self._n_tables = threads, len(self._files)
        self._groups: Sequence[range | None] = [None] * len(self._files)

    def split(self, n_parts: int) -> list[TableSource]:
        """Split the source, see `FileSource`; files are cut between row groups, or not at all if there are many."""
        files = [make_absolute(name) for name in self._files]
        if len(files) >= MANY_FILES * n_parts:
            groups: list[tuple[str, range | None]] = [(name, None) for name in files]
            sizes = [1] * len(files)
        else:
            groups, sizes = [], []
            for name in files:
                with _open(name) as (file, _):
                    lengths = _measure_groups(file)
                groups += [(name, range(k, k + 1)) for k in range(len(lengths))] or [(name, range(0))]
                sizes += [1 + n for n in lengths] or [1]
        return [self._take(own) for own in cut_evenly(groups, sizes, n_parts)]

    def _take(self, groups: Sequence[tuple[str, range | None]]) -> TableSource:
        """Return the part that reads these row groups of files."""
        part, files = copy(self), list(dict.fromkeys(name for name, _ in groups))
        part._vertices = None if self._vertices is None else make_absolute(os.fspath(self._vertices))
        part._files, part._n_tables, part._files_read, part._counts = tuple(files), len(files), [], Counter(rows=0)
        part._groups = [_join_ranges([own for name, own in groups if name == file]) for file in files]
        return part

    def _tables(self) -> Generator[Table]:
        for name, groups in zip(self._files, self._groups, strict=True):
            with _open(name) as (file, columns):
                lengths = _measure_groups(file)
                read = range(len(lengths)) if groups is None else groups
                yield self._make_table(name, file, columns, lengths, read)
            self._counts["row_groups"] += len(read)
            if not read or not read.start:
                self._files_read.append(_describe_file(name, is_whole=len(read) == len(lengths)))

    def _make_table(self, name: str, file: Any, columns: list[str], lengths: list[int], groups: range) -> Table:
        schema = file.schema_arrow

        def read(names: list[str]) -> Iterator[Any]:
            yield make_empty(schema).select(names)
            with reading_table(name, "the Parquet file is damaged or cut short ({}); fetch it again"):
                for rows in file.iter_batches(BATCH_ROWS, groups, names, use_threads=self._threads != 1):
                    yield rows.select(names)

        n_rows, first_row = sum(lengths[k] for k in groups), sum(lengths[: groups.start])
        return Table(name, columns, read, find_saved_index(schema), first_row, n_rows)


def _measure_groups(file: Any) -> list[int]:
    """Return the number of rows of each row group."""
    return [file.metadata.row_group(k).num_rows for k in range(file.metadata.num_row_groups)]


def _describe_file(name: str, *, is_whole: bool) -> dict[str, Any]:
    """Return the provenance of a file: only the name of a part, or of a remote file, which would be fetched twice."""
    if "://" in name or not is_whole:
        return {"name": name}
    with open(name, "rb") as file:
        return {"name": name, "bytes": os.path.getsize(name), "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


@contextmanager
def _open(name: str) -> Iterator[tuple[Any, list[str]]]:
    """Open a Parquet file and yield it with the names of its columns; Arrow itself opens local files.

    Raises
    ------
    SourceError : missing file, or not a Parquet file
    """
    with open_sought(name) if "://" in name else open_anywhere(name) as raw:
        with reading_table(name, "not a Parquet file, or damaged or cut short ({}); write it again"):
            place = raw if "://" in name else name
            file = pa.parquet.ParquetFile(place, buffer_size=BUFFER_BYTES, pre_buffer=False)
            columns = file.schema_arrow.names
        yield file, columns


def _join_ranges(ranges: Sequence[range | None]) -> range | None:
    """Join consecutive ranges into one; None, for all row groups, occurs alone."""
    first, last = ranges[0], ranges[-1]
    return None if first is None or last is None else range(first.start, last.stop)
