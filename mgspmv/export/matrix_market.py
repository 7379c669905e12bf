"""Matrix Market files, plain or compressed: lines are formatted by all threads, and written in order.

Each piece of the text is compressed separately, so a gzip file has several members and a zstd file several frames,
which the formats permit and programs read.
"""

from __future__ import annotations

from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv

from mgspmv.export.entries import map_entries
from mgspmv.export.text import find_compression, widen
from mgspmv.model import CooBatch, Progress
from mgspmv.store.read import StoredMatrix

_LINES = pa.csv.WriteOptions(include_header=False, delimiter=" ", quoting_style="none")


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
    compress = find_compression(name)
    file.write(compress(f"%%MatrixMarket matrix coordinate {field} general\n{sizes}\n".encode()))
    for piece in map_entries(stored, lambda batch: compress(format_lines(batch)), threads, report):
        file.write(piece)


def format_lines(batch: CooBatch) -> Any:
    """Return the lines of entries, with rows and columns counted from 1, as a buffer of bytes."""
    columns = [pa.compute.add(pa.array(side).cast(pa.int64()), 1) for side in (batch.rows, batch.cols)]
    if batch.values is not None:
        columns.append(pa.array(widen(batch.values)))
    lines = pa.BufferOutputStream()
    pa.csv.write_csv(pa.table(columns, names=["row", "col", "value"][: len(columns)]), lines, _LINES)
    return lines.getvalue()
