"""Saved ranks whose description or columns were changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
import zarr

import mgspmv as mg
from mgspmv.errors import StoreDamagedError, StoreFormatError

ZARR_KEY, PARQUET_KEY = "mgspmv_solution", b"mgspmv"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with ranks."""
    folder = tmp_path_factory.mktemp("saved")
    mg.ingest(sp.csr_array(np.roll(np.eye(5), 1, axis=0) + np.eye(5)[::-1]), folder / "s.zarr", kind="graph")
    with mg.open_matrix(folder / "s.zarr") as matrix:
        ranks = mg.pagerank(matrix)
    for suffix in (".zarr", ".parquet"):
        ranks.save(folder / f"ranks{suffix}")
    return folder


def change(path: Path, changed: dict[str, Any]) -> None:
    """Edit what a file says of itself."""
    if path.suffix == ".zarr":
        attributes = zarr.open_group(str(path)).attrs
        attributes[ZARR_KEY] = dict(attributes[ZARR_KEY]) | changed
    else:
        table = pq.read_table(path)
        told = json.loads(table.schema.metadata[PARQUET_KEY]) | changed
        pq.write_table(table.replace_schema_metadata({PARQUET_KEY: json.dumps(told)}), path)


def copy(saved: Path, suffix: str, tmp_path: Path) -> Path:
    mg.load_solution(saved / f"ranks{suffix}").save(tmp_path / f"r{suffix}")
    return tmp_path / f"r{suffix}"


@pytest.mark.parametrize("suffix", [".zarr", ".parquet"])
@pytest.mark.parametrize("changed", [{"status": "max_iter"}, {"resumed_after": 3}, {"options": {}}, {"sha256": None}])
def test_fields_that_were_changed_are_noticed(saved, tmp_path, suffix, changed):
    path = copy(saved, suffix, tmp_path)
    change(path, changed)
    with pytest.raises(StoreDamagedError, match="does not match its digest, so it was changed after it was written"):
        mg.load_solution(path)


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        (b"{", StoreDamagedError, "is no JSON"),
        (b"\xff", StoreDamagedError, "is no JSON"),
        (b"[" * 10**5, StoreDamagedError, "it is nested too deep"),
        (b"[]", StoreDamagedError, "it has no fields"),
        (b"{}", StoreFormatError, "of format version None"),
    ],
)
def test_text_that_is_no_description(saved, tmp_path, text, error, said):
    table = pq.read_table(saved / "ranks.parquet").replace_schema_metadata({PARQUET_KEY: text})
    pq.write_table(table, tmp_path / "r.parquet")
    with pytest.raises(error, match=said):
        mg.load_solution(tmp_path / "r.parquet")


@pytest.mark.parametrize(
    "columns",
    [
        {"id": pa.array([0, 1])},
        {"id": pa.array([0, 1]), "rank": pa.array(["a", "b"])},
        {"id": pa.array([0, 1]), "rank": pa.array([0.5, None])},
        {"id": pa.array([[0], [1]]), "rank": pa.array([0.5, 0.5])},
    ],
    ids=["missing", "text", "gap", "lists"],
)
def test_columns_of_others(saved, tmp_path, columns):
    metadata = pq.read_schema(saved / "ranks.parquet").metadata
    pq.write_table(pa.table(columns).replace_schema_metadata(metadata), tmp_path / "r.parquet")
    with pytest.raises(StoreDamagedError, match="has no column"):
        mg.load_solution(tmp_path / "r.parquet")
