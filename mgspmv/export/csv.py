"""CSV files of edges: an arc or an entry per line, with the source's own ids."""

from __future__ import annotations

from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from mgspmv.export.entries import map_entries
from mgspmv.export.text import find_compression, widen
from mgspmv.export.vertices import read_lines
from mgspmv.model import CooBatch, Progress
from mgspmv.store.read import StoredMatrix


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
    info, ids = stored.info, None
    if info.vertex_ids is not None:
        ids = pa.concat_arrays(read_lines(stored, "choose Parquet"))
    compress = find_compression(name)
    file.write(compress(b"src,dst\n" if info.dtype is None else b"src,dst,weight\n"))
    for piece in map_entries(stored, lambda batch: compress(format_edges(batch, ids)), threads, report):
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
        columns.append(pa.array(widen(batch.values)).cast(pa.large_string()))
    fields = pa.compute.binary_join_element_wise(*columns, pa.scalar(",", pa.large_string()))
    lines = pa.compute.binary_join_element_wise(fields, *map(_make_text, ("", "\n")))
    ends = np.frombuffer(lines.buffers()[1], np.int64)  # the characters of all lines are in one buffer, in order
    return lines.buffers()[2].slice(0, int(ends[len(lines)]))


def _make_text(text: str) -> Any:
    return pa.scalar(text, pa.large_string())
