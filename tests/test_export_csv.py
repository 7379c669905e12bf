"""CSV files of edges: as others see them, and as they are ingested."""

from __future__ import annotations

import csv
import gzip
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mgspmv as mg
from mgspmv.errors import OptionError, SourceError
from mgspmv.export import format_lines
from mgspmv.model import CooBatch
from mgspmv.store.read import open_store

NAMES = [
    *("a,b", 'say "hi"', '"', " lead", "trail ", "a b", "#x", "%c", "1", "2.5", "1e5", "007", "+1", "NaN", "null", "-"),
    *("a;b", "a\tb", "x|y", "çé", "\xa0", "---", "'", "inf", "1 2", "weight", "_"),
]


def ingest(source, path, **options) -> str:
    mg.ingest(source, path, overwrite=True, **options)
    return open_store(path).info.digest


@pytest.mark.parametrize("ids", [[7, -5, 900_000_000_000, 3], ["ann", "bob", "çé", "dora"]])
@pytest.mark.parametrize("dtype", [None, "int64", "float32", "float64"])
def test_lines_and_the_way_back(tmp_path, ids, dtype):
    """One vertex has no edge."""
    table = pd.DataFrame({"src": ids[:2], "dst": [ids[2], ids[0]]})
    if dtype is not None:
        table["weight"] = np.array([0.1 if "float" in dtype else 3, 2], dtype)
    (tmp_path / "list").write_text("".join(f"{one}\n" for one in ids))
    digest = ingest(table, tmp_path / "a.zarr", vertices=tmp_path / "list")
    mg.export(tmp_path / "a.zarr", tmp_path / "a.csv", vertices=tmp_path / "again")
    with open(tmp_path / "a.csv", newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["src", "dst", *(["weight"] if dtype is not None else [])]
    weights = {None: [[], []], "int64": [["3"], ["2"]]}.get(dtype, [["0.1"], ["2"]])
    expected = [[str(a), str(b), *w] for a, b, w in zip(table["src"], table["dst"], weights, strict=True)]
    assert sorted(rows) == sorted(expected)
    assert ingest(tmp_path / "a.csv", tmp_path / "b.zarr", vertices=tmp_path / "again", dtype=dtype) == digest


@pytest.mark.parametrize("name", NAMES)
def test_names_that_need_quotes_or_look_like_something_else(tmp_path, name):
    rows = [(name, "p"), ("p", "q"), ("q", "r"), ("r", name)]
    digest = ingest(pd.DataFrame(rows, columns=["src", "dst"]), tmp_path / "a.zarr")
    mg.export(tmp_path / "a.zarr", tmp_path / "a.csv")
    assert ingest(tmp_path / "a.csv", tmp_path / "b.zarr", ids="string") == digest
    found = pd.read_csv(tmp_path / "a.csv", dtype=str, keep_default_na=False)
    assert sorted(map(tuple, found.to_numpy())) == sorted(rows)
    ordinary = {line for line in (tmp_path / "a.csv").read_text().splitlines() if line in ("p,q", "q,r")}
    assert ordinary == {"p,q", "q,r"}, "quoted only where needed"


def test_a_vertex_called_like_a_column(tmp_path):
    digest = ingest(pd.DataFrame({"src": ["src", "x"], "dst": ["x", "dst"]}), tmp_path / "a.zarr")
    mg.export(tmp_path / "a.zarr", tmp_path / "a.csv")
    with pytest.raises(SourceError, match="which also occur as ids below it; pass header=True"):
        mg.ingest(tmp_path / "a.csv", tmp_path / "b.zarr")
    assert ingest(tmp_path / "a.csv", tmp_path / "b.zarr", header=True) == digest


@pytest.mark.parametrize("name", ["", "a\nb", "a\rb", "\x01"])
def test_ids_that_no_line_holds(tmp_path, name):
    ingest(pd.DataFrame({"src": ["a", name], "dst": [name, "b"]}), tmp_path / "a.zarr")
    with pytest.raises(OptionError, match=r"the id .* cannot be written on a line, .*; choose Parquet") as caught:
        mg.export(tmp_path / "a.zarr", tmp_path / "a.csv")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "a.csv").exists()


def test_compressed_files_and_matrices(tmp_path, monkeypatch):
    """In several members or frames; also of a matrix, whose rows are sources."""
    for module, name in (("store.digests", "CHUNK_ELEMENTS"), ("ingest.stored", "PIECE_ENTRIES")):
        monkeypatch.setattr(sys.modules[f"mgspmv.{module}"], name, 64)
    for kind in ("graph", "matrix"):
        mg.generate("rmat", tmp_path / "a.zarr", scale=6, kind=kind, weights=True, overwrite=True)
        for name in ("a.csv", "a.csv.gz", "a.csv.zst"):
            mg.export(tmp_path / "a.zarr", tmp_path / name, overwrite=True)
        plain = (tmp_path / "a.csv").read_bytes()
        assert gzip.decompress((tmp_path / "a.csv.gz").read_bytes()) == plain
        with pa.input_stream(str(tmp_path / "a.csv.zst"), compression="zstd") as stream:
            assert stream.read() == plain
        with mg.open_matrix(tmp_path / "a.zarr") as matrix:
            found, expected = pd.read_csv(tmp_path / "a.csv", float_precision="round_trip"), matrix.to_scipy().tocoo()
        ends = (expected.col, expected.row) if kind == "graph" else (expected.row, expected.col)
        assert sorted(map(tuple, found.to_numpy())) == sorted(zip(*ends, expected.data, strict=True))


@pytest.mark.fuzz
@given(st.lists(st.floats() | st.floats(width=32), min_size=1, max_size=20), st.booleans())
def test_floats_are_read_as_they_were(values, is_single):
    array = np.array(values, np.float64)
    with np.errstate(over="ignore"):
        array = array.astype(np.float32) if is_single else array
    zeros = np.zeros(len(array), np.int32)
    lines = bytes(format_lines(CooBatch(zeros, zeros, array), is_csv=True)).decode().splitlines()
    found = np.array([float(line.removeprefix("0,0,")) for line in lines]).astype(array.dtype)
    assert np.array_equal(found, array, equal_nan=True)
