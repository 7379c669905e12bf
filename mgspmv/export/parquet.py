"""Parquet tables of edges: an arc or an entry a row, with the source's own ids."""

from __future__ import annotations

from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from mgspmv.export.entries import map_entries, read_ids
from mgspmv.model import CooBatch, Progress, index_dtype
from mgspmv.store.read import StoredMatrix


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
