"""Parquet tables of edges as others see them."""

from __future__ import annotations

import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp

import mgspmv as mg

IDS = {
    "numbers": ("0 1 0.5\n2 1 2\n", {"n_vertices": 3}, pa.int32(), [0, 2], [1, 1]),
    "integers": ("7 -5 0.5\n900000000000 -5 2\n", {}, pa.int64(), [7, 900000000000], [-5, -5]),
    "names": ("ann bob 0.5\nçé bob 2\n", {}, pa.large_string(), ["ann", "çé"], ["bob", "bob"]),
}


@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.parametrize("name", IDS)
def test_tables(tmp_path, name, weights):
    text, options, dtype, src, dst = IDS[name]
    (tmp_path / "list").write_text(text)
    mg.ingest(tmp_path / "list", tmp_path / "a.zarr", weights=weights, **options)
    mg.export(tmp_path / "a.zarr", tmp_path / "a.parquet")
    table = pq.read_table(tmp_path / "a.parquet")
    wanted = {"src": (dtype, src), "dst": (dtype, dst)} | ({"weight": (pa.float64(), [0.5, 2.0])} if weights else {})
    assert table.schema == pa.schema([pa.field(key, each, nullable=False) for key, (each, _) in wanted.items()])
    assert sorted(zip(*table.to_pydict().values(), strict=True)) == sorted(
        zip(*(column for _, column in wanted.values()), strict=True)
    )


@pytest.mark.parametrize("dtype", ["int64", "float32", "float64"])
def test_weights_keep_their_dtype(tmp_path, dtype):
    mg.ingest(sp.coo_array(np.array([[0, 3], [5, 0]], dtype)), tmp_path / "a.zarr")
    mg.export(tmp_path / "a.zarr", tmp_path / "a.pq")
    table = pq.read_table(tmp_path / "a.pq")
    assert table.schema.field("weight").type == pa.from_numpy_dtype(np.dtype(dtype))
    assert table.to_pydict() == {"src": [0, 1], "dst": [1, 0], "weight": [3, 5]}


def test_row_groups_and_checksums(tmp_path, monkeypatch):
    for module, name in (("store.digests", "CHUNK_ELEMENTS"), ("ingest.stored", "PIECE_ENTRIES")):
        monkeypatch.setattr(sys.modules[f"mgspmv.{module}"], name, 64)
    info = mg.generate("rmat", tmp_path / "a.zarr", scale=6).info
    mg.export(tmp_path / "a.zarr", tmp_path / "a.parquet")
    metadata = pq.read_metadata(tmp_path / "a.parquet")
    assert metadata.num_rows == info.nnz
    assert metadata.num_row_groups == -(-info.nnz // 64)
    assert pq.ParquetFile(tmp_path / "a.parquet", page_checksum_verification=True).read().num_rows == info.nnz
    column = metadata.row_group(0).column(0)
    damaged = bytearray((tmp_path / "a.parquet").read_bytes())
    damaged[column.data_page_offset + column.total_compressed_size - 1] ^= 1
    (tmp_path / "b.parquet").write_bytes(damaged)
    with pytest.raises(OSError, match="CRC"):
        pq.ParquetFile(tmp_path / "b.parquet", page_checksum_verification=True).read()
