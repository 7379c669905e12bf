"""Parquet tables of edges: an arc a row."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet

from mgspmv.errors import SourceError
from mgspmv.ingest.files import Path, describe_files, list_paths, name_files
from mgspmv.ingest.remote import open_sought
from mgspmv.ingest.streams import open_bytes
from mgspmv.ingest.tables import BATCH_ROWS, TableSource, make_empty
from mgspmv.ingest.vertices import ANY_ROOM, IdRoom

BUFFER_BYTES = 1 << 20
"""Of a column that are read at a time; without it, all of a row group are."""
HASHED_BYTES = 1 << 20
"""Read at a time to be hashed."""


class ParquetSource(TableSource):
    """Parquet files of edges as a `Source`; see `TableSource` for what their columns may hold.

    Parameters
    ----------
    path : local path or URL, or several, whose rows follow each other
    columns, n_vertices, vertices, weights, extra_columns : as of `TableSource`
    batch_rows : rows of a batch
    threads : that decode; several unless it is 1
    id_room : as of `TableSource`

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
        columns: Sequence[str] | None = None,
        n_vertices: int | None = None,
        vertices: str | os.PathLike[str] | None = None,
        weights: Literal["auto"] | bool = "auto",
        extra_columns: Literal["error", "ignore"] = "error",
        batch_rows: int = BATCH_ROWS,
        threads: int | None = None,
        id_room: IdRoom = ANY_ROOM,
    ) -> None:
        self._files = list_paths(path)
        super().__init__(
            name_files(self._files),
            columns=columns,
            n_vertices=n_vertices,
            vertices=vertices,
            weights=weights,
            extra_columns=extra_columns,
            id_room=id_room,
        )
        self._batch_rows, self._threads, self._n_tables = batch_rows, threads, len(self._files)
        self._n_groups = 0
        self._read_files: list[dict[str, Any]] = []

    def _tables(self) -> Generator[ParquetTable]:
        is_over = Event()
        with ThreadPoolExecutor(1, "mgspmv-hash") as pool:
            try:
                for name in self._files:
                    with open_sought(name) if "://" in name else open_bytes(name) as raw:
                        table = ParquetTable(name, raw, self._batch_rows, self._threads)
                        digest = pool.submit(_digest_file, name, is_over)
                        yield table
                        self._n_groups += table.n_groups
                        self._read_files.append(_describe_file(name, digest.result()))
            finally:
                is_over.set()

    def _describe(self, names: list[str], n_rows: int) -> dict[str, Any]:
        header = {"columns": names, "rows": n_rows, "row_groups": self._n_groups}
        return {"format": "parquet", **describe_files(self.name, self._read_files), "header": header}


class ParquetTable:
    """A Parquet file as a `Table`.

    Parameters
    ----------
    name : local path or URL
    raw : the file, opened for reading, of which a local one makes no use
    batch_rows, threads : as of `ParquetSource`

    Raises
    ------
    SourceError : no such file
    """

    def __init__(self, name: str, raw: Any, batch_rows: int, threads: int | None) -> None:
        self.name, self._batch_rows, self._is_threaded = name, batch_rows, threads != 1
        try:
            self._file = pa.parquet.ParquetFile(
                name if "://" not in name else raw, buffer_size=BUFFER_BYTES, pre_buffer=False
            )
        except SourceError:  # of what is behind a URL
            raise
        except (pa.ArrowInvalid, OSError) as error:
            raise SourceError(
                f"this is no Parquet file, or it is damaged or cut short ({error})", source=name
            ) from error
        self.columns: list[str] = self._file.schema_arrow.names
        self.n_groups: int = self._file.metadata.num_row_groups
        self.n_rows: int | None = self._file.metadata.num_rows

    def read(self, names: list[str]) -> Iterator[Any]:
        """Give columns as record batches.

        Raises
        ------
        SourceError : the file is damaged
        """
        schema, n_rows = self._file.schema_arrow, 0
        batches = self._file.iter_batches(self._batch_rows, columns=names, use_threads=self._is_threaded)
        try:
            for rows in batches:
                yield rows.select(names)
                n_rows += rows.num_rows
        except SourceError:
            raise
        except (pa.ArrowException, OSError) as error:
            raise SourceError(
                f"the Parquet file is damaged or cut short ({error}); fetch it again", source=self.name
            ) from error
        if not n_rows:
            yield make_empty(pa.schema([schema.field(name) for name in names]))


def _describe_file(name: str, sha256: str | None) -> dict[str, Any]:
    return {"name": name} if sha256 is None else {"name": name, "bytes": os.path.getsize(name), "sha256": sha256}


def _digest_file(name: str, is_over: Event) -> str | None:
    """SHA-256 of a local file; of others, which would be fetched twice, none."""
    if "://" in name:
        return None
    digest = hashlib.sha256()
    with open(name, "rb", buffering=0) as file:
        while not is_over.is_set() and (piece := file.read(HASHED_BYTES)):
            digest.update(piece)
    return digest.hexdigest()
