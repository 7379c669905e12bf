"""Files of entries: Matrix Market and CSV, plain or compressed, and Parquet; the latter two with the source's own ids.

Lines of text are formatted by all threads, and written in order. Each piece of the text is compressed separately, so a
gzip file has several members and a zstd file several frames, which the formats permit and programs read.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.parquet

from mgspmv.export.entries import map_entries, read_ids, read_lines
from mgspmv.model import CooBatch, Progress, index_dtype
from mgspmv.store.read import StoredMatrix

GZIP_LEVEL = 1
"""Compression level, 1 to 9; level 6 took seven times as long for files a tenth smaller."""
ROUNDED_TWICE = np.float32(float.fromhex("0x1.5c87fap-84"))
"""Only float32, with its negative, that does not round-trip through its shortest digits, 7.038531e-26, if a reader
parses them as float64 and rounds the result. All float32 were tested."""
_LINES = pa.csv.WriteOptions(include_header=False, delimiter=" ", quoting_style="none")


def write_csv(stored: StoredMatrix, file: IO[bytes], name: str, threads: int, report: Progress) -> None:
    """Write the header src,dst or src,dst,weight, then the entries in the order of the store.

    Ids are as in the source, quoted if necessary. Floats have the fewest digits that restore them exactly.

    Parameters
    ----------
    name : name of the file, which is compressed if it ends in .gz or .zst

    Raises
    ------
    OptionError : an id cannot be written on a line
    """
    ids = None if stored.info.vertex_ids is None else pa.concat_arrays(read_lines(stored, "choose Parquet"))
    header = "src,dst" if stored.info.dtype is None else "src,dst,weight"
    _write_text(stored, file, name, header, lambda batch: format_edges(batch, ids), threads, report)


def write_matrix_market(stored: StoredMatrix, file: IO[bytes], name: str, threads: int, report: Progress) -> None:
    """Write a matrix in the layout coordinate and the symmetry general, entries in the order of the store.

    Floats are written with the fewest digits that restore them exactly. The field is real, integer or pattern.

    Parameters
    ----------
    name : name of the file, which is compressed if it ends in .gz or .zst
    """
    info = stored.info
    field = "pattern" if info.dtype is None else "integer" if np.dtype(info.dtype).kind == "i" else "real"
    sizes = f"{info.shape[0]} {info.shape[1]} {info.nnz}"
    header = f"%%MatrixMarket matrix coordinate {field} general\n{sizes}"
    _write_text(stored, file, name, header, format_lines, threads, report)


def _write_text(
    stored: StoredMatrix,
    file: IO[bytes],
    name: str,
    header: str,
    format: Callable[[CooBatch], Any],
    threads: int,
    report: Progress,
) -> None:
    compress = _find_compression(name)
    file.write(compress(f"{header}\n".encode()))
    for piece in map_entries(stored, lambda batch: compress(format(batch)), threads, report):
        file.write(piece)


def format_edges(batch: CooBatch, ids: Any) -> Any:
    """Return the lines of entries, with the ids of their rows and columns, as a buffer of bytes.

    Parameters
    ----------
    ids : Arrow array of quoted ids; None to write the numbers of rows and columns
    """
    sides: list[np.ndarray] = [batch.rows, batch.cols]
    columns = [pa.array(side).cast(pa.large_string()) if ids is None else ids.take(pa.array(side)) for side in sides]
    if batch.values is not None:
        columns.append(pa.array(_widen(batch.values)).cast(pa.large_string()))
    comma, nothing, end = (pa.scalar(text, pa.large_string()) for text in (",", "", "\n"))
    fields = pa.compute.binary_join_element_wise(*columns, comma)
    lines = pa.compute.binary_join_element_wise(fields, nothing, end)
    ends = np.frombuffer(lines.buffers()[1], np.int64)  # the characters of all lines are in one buffer, in order
    return lines.buffers()[2].slice(0, int(ends[len(lines)]))


def format_lines(batch: CooBatch) -> Any:
    """Return the lines of entries, with rows and columns counted from 1, as a buffer of bytes."""
    columns = [pa.compute.add(pa.array(side).cast(pa.int64()), 1) for side in (batch.rows, batch.cols)]
    if batch.values is not None:
        columns.append(pa.array(_widen(batch.values)))
    lines = pa.BufferOutputStream()
    pa.csv.write_csv(pa.table(columns, names=["row", "col", "value"][: len(columns)]), lines, _LINES)
    return lines.getvalue()


def _widen(values: np.ndarray) -> np.ndarray:
    """Return values whose shortest digits restore them, also for readers that parse float64."""
    if values.dtype == np.float32 and (np.abs(values) == ROUNDED_TWICE).any():
        return values.astype(np.float64)
    return values


def _find_compression(name: str) -> Callable[[Any], Any]:
    """Return the function that compresses a piece of a file of this name into a gzip member or a zstd frame."""
    if name.endswith(".gz"):
        return lambda data: gzip.compress(data, GZIP_LEVEL, mtime=0)
    if name.endswith(".zst"):
        codec = pa.Codec("zstd", 1)
        return lambda data: codec.compress(data)
    return lambda data: data


def write_parquet(stored: StoredMatrix, file: IO[bytes], threads: int, report: Progress) -> None:
    """Write the columns src, dst and, unless it is a pattern, weight; one row group per batch of entries.

    Ids are as in the source: int64, strings, or without ids the numbers of rows and columns.
    """
    info = stored.info
    ids = None if info.vertex_ids is None else pa.concat_arrays(read_ids(stored, info.shape[0]))
    id_type = pa.from_numpy_dtype(index_dtype(max(info.shape))) if ids is None else ids.type
    fields = [("src", id_type), ("dst", id_type)]
    if info.dtype is not None:
        fields.append(("weight", pa.from_numpy_dtype(np.dtype(info.dtype))))
    schema = pa.schema([pa.field(name, each, nullable=False) for name, each in fields])

    def make(batch: CooBatch) -> Any:
        columns = [pa.array(side, None if ids is not None else id_type) for side in (batch.rows, batch.cols)]
        if ids is not None:
            columns = [ids.take(numbers) for numbers in columns]
        return pa.table(columns + ([] if batch.values is None else [pa.array(batch.values)]), schema=schema)

    options: dict[str, Any] = {"compression": "zstd", "use_dictionary": False, "write_page_checksum": True}
    with pa.parquet.ParquetWriter(file, schema, **options) as writer:
        for table in map_entries(stored, make, threads, report):
            writer.write_table(table, row_group_size=max(1, table.num_rows))
