"""Lines of Matrix Market files: digits as Python writes them, floats that are read as they were."""

from __future__ import annotations

import gzip
import sys

import numpy as np
import pyarrow as pa
import pytest
import scipy.io
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

import mgspmv as mg
from mgspmv.export import format_lines
from mgspmv.model import CooBatch
from mgspmv.store.read import open_store

NUMBERS = st.one_of(st.integers(0, 20), st.integers(0, 2**63 - 2), st.sampled_from([10**k - 1 for k in range(1, 19)]))


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=50))
def test_digits(places):
    rows, cols = np.array(places, np.int64).T
    wanted = "".join(f"{i + 1} {j + 1}\n" for i, j in places)
    assert bytes(format_lines(CooBatch(rows, cols, None))).decode() == wanted
    if max(max(place) for place in places) < 2**31:
        narrow = CooBatch(rows.astype(np.int32), cols.astype(np.int32), None)
        assert bytes(format_lines(narrow)).decode() == wanted


def format_values(values):
    zeros = np.zeros(len(values), np.int32)
    lines = bytes(format_lines(CooBatch(zeros, zeros, values))).decode().splitlines()
    assert all(line.startswith("1 1 ") for line in lines)
    return [line[4:] for line in lines]


@pytest.mark.fuzz
@given(st.lists(st.floats(), min_size=1, max_size=20))
def test_doubles_are_read_as_they_were(values):
    found = np.array(list(map(float, format_values(np.array(values)))))
    assert np.array_equal(found, values, equal_nan=True)
    assert np.array_equal(np.signbit(found[found == 0]), np.signbit(np.array(values)[found == 0]))


@pytest.mark.fuzz
@given(st.lists(st.floats(width=32), min_size=1, max_size=20))
def test_singles_are_read_as_they_were_by_way_of_doubles(values):
    found = np.array(list(map(float, format_values(np.array(values, np.float32))))).astype(np.float32)
    assert np.array_equal(found, np.array(values, np.float32), equal_nan=True)


VALUES = {
    "real": np.array([1.5, -2.0, np.inf, -np.inf, np.nan, 0.0]),
    "integer": np.array([2**63 - 1, -(2**63), 0, 5, -1, 10]),
    "pattern": np.ones(6, bool),
}


@pytest.mark.parametrize("field", VALUES)
def test_files(tmp_path, field):
    wanted = sp.coo_array((VALUES[field], ([0, 0, 1, 3, 3, 3], [1, 4, 0, 2, 3, 4])), shape=(4, 5))
    info = mg.ingest(wanted, tmp_path / "a.zarr").info
    mg.export(tmp_path / "a.zarr", tmp_path / "a.mtx")
    lines = (tmp_path / "a.mtx").read_text().splitlines()
    assert lines[:3] == [f"%%MatrixMarket matrix coordinate {field} general", "4 5 6", lines[2]]
    assert scipy.io.mminfo(tmp_path / "a.mtx") == (4, 5, 6, "coordinate", field, "general")
    found = scipy.io.mmread(tmp_path / "a.mtx", spmatrix=False)
    assert np.array_equal(found.toarray(), wanted.toarray(), equal_nan=field == "real")
    assert mg.ingest(tmp_path / "a.mtx", tmp_path / "b.zarr").info.digest == info.digest


@pytest.mark.parametrize("n_entries", [0, 500])
def test_compressed_files(tmp_path, monkeypatch, n_entries):
    """Of several members or frames, which other programs read."""
    for module, name in (("store.digests", "CHUNK_ELEMENTS"), ("ingest.stored", "PIECE_ENTRIES")):
        monkeypatch.setattr(sys.modules[f"mgspmv.{module}"], name, 64)
    info = mg.ingest(sp.random_array((50, 40), density=n_entries / 2000, rng=0), tmp_path / "a.zarr").info
    for name in ("a.mtx", "a.mtx.gz", "a.mtx.zst"):
        mg.export(tmp_path / "a.zarr", tmp_path / name)
    plain = (tmp_path / "a.mtx").read_bytes()
    assert gzip.decompress((tmp_path / "a.mtx.gz").read_bytes()) == plain
    with pa.input_stream(str(tmp_path / "a.mtx.zst"), compression="zstd") as stream:
        assert stream.read() == plain
    assert (scipy.io.mmread(tmp_path / "a.mtx.gz") != scipy.io.mmread(tmp_path / "a.mtx")).nnz == 0
    for name in ("a.mtx.gz", "a.mtx.zst"):
        assert mg.ingest(tmp_path / name, tmp_path / "b.zarr", overwrite=True).info.digest == info.digest


def test_entries_of_a_graph_are_arcs(tmp_path):
    mg.ingest((np.array([0, 0, 2]), np.array([1, 2, 1])), tmp_path / "a.zarr", n_vertices=3)
    assert open_store(tmp_path / "a.zarr").read_array("indices").tolist() == [0, 2, 0]
    mg.export(tmp_path / "a.zarr", tmp_path / "a.mtx")
    assert (tmp_path / "a.mtx").read_text().splitlines()[1:] == ["3 3 3", "1 2", "3 2", "1 3"]
