"""Rows in the memory of this process: what they are checked against, and when they are freed."""

from __future__ import annotations

import pytest

import mgspmv as mg
from mgspmv.api import embedded
from mgspmv.errors import CapacityError


def test_loaded_rows_are_not_counted_twice(monkeypatch):
    free_bytes = [10**6]
    monkeypatch.setattr(embedded, "free_device_memory", lambda: free_bytes[0])
    monkeypatch.setattr(embedded, "read_block", embedded.StoredMatrix.read_block)
    A = mg.ingest(([0, 1, 2], [1, 2, 0], [1.0, 2.0, 3.0]))
    limited = A.on("cuda", device_memory="1MB")
    block = limited.block("float64", "cuda")
    free_bytes[0] = 0
    for place in (limited, A.on("cuda"), A.on("cuda", host_memory="1MB")):
        assert place.block("float64", "cuda") is block
    for place in (A.on("cuda", device_memory=10), A.on("cuda", host_memory=10)):
        with pytest.raises(CapacityError):
            place.block("float64", "cuda")
    A.close()
    with pytest.raises(CapacityError):
        limited.block("float64", "cuda")


def test_what_is_read_for_one_call_is_freed_after_it(monkeypatch, tmp_path):
    closed = []
    monkeypatch.setattr(embedded.EmbeddedMatrix, "close", lambda matrix: closed.append(matrix.shape))
    A = mg.ingest(([0, 1, 2], [1, 2, 0]), tmp_path / "g.zarr")
    mg.pagerank(A)
    assert closed == []
    mg.pagerank(tmp_path / "g.zarr")
    mg.pagerank(([0, 1], [1, 0]))
    with pytest.raises(mg.errors.ConvergenceError):
        mg.pagerank(([0, 1, 1], [1, 0, 1]), max_iter=1)
    assert closed == [(3, 3), (2, 2), (2, 2)]
