"""Sums of rows, added up some at a time, have the bits of sums of columns of the transpose."""

from __future__ import annotations

import numpy as np
import pytest
from zarr.storage import MemoryStore

import mgspmv as mg
from mgspmv.errors import ChecksumError
from mgspmv.ingest.build import sum_rows
from mgspmv.store.read import open_store
from tests.support.shrinking import shrink

HARD = np.array([1e16, -1e16, 0.1, 1 / 3, 2.5, 1e-20])
"""Values whose sums depend on the order that they are added up in."""


@pytest.fixture(autouse=True)
def small(monkeypatch):
    stored = {"PIECE_ENTRIES": 7, "PIECE_ROWS": 5}
    shrink(monkeypatch, store__digests={"CHUNK_ELEMENTS": 7}, ingest__stored=stored)


def make_arcs(dtype):
    rng = np.random.default_rng(0)
    ends = rng.integers(0, 17, (2, 150))
    ends[0, :60] = 3  # a row of many pieces
    weights = rng.choice(HARD, 150) if dtype != np.int64 else rng.integers(1, 2**62 // 150, 150)
    return *ends, weights.astype(dtype)


@pytest.mark.parametrize("duplicates", ["sum", "keep"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64])
def test_sums_are_those_of_the_columns_of_the_reversed_graph(dtype, duplicates):
    source, target, weights = make_arcs(dtype)
    place, turned = MemoryStore(), MemoryStore()
    mg.ingest((source, target, weights), place, duplicates=duplicates, n_vertices=20)
    mg.ingest((target, source, weights), turned, duplicates=duplicates, n_vertices=20)
    stored, wanted = open_store(place), open_store(turned).read_array("out_weight")
    for start, stop in ((0, 20), (0, 3), (3, 4), (5, 17), (17, 20), (4, 4)):
        for threads in (1, 3):
            assert sum_rows(stored, start, stop, threads).tobytes() == wanted[start:stop].tobytes()


def test_damaged_values_are_no_sums(tmp_path):
    mg.ingest(make_arcs(np.float64), tmp_path / "g")
    stored = open_store(tmp_path / "g")
    (chunk,) = tmp_path.glob("g/versions/*/data/c/1")
    chunk.write_bytes(chunk.read_bytes()[:-1] + b"?")
    with pytest.raises(ChecksumError):
        sum_rows(stored, 0, stored.info.shape[0])
