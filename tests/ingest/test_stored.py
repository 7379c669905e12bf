"""Rows and ids of a stored matrix, piece by piece, are those that are read at once."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from zarr.storage import MemoryStore

from mgspmv.ingest.stored import StoredRows
from mgspmv.lookup import open_ids
from mgspmv.store.read import open_store
from tests.support.arrays import write_store
from tests.support.pairwise import cover_pairs
from tests.support.shrinking import shrink
from tests.support.stores import make_arrays, make_scipy


@pytest.fixture(autouse=True)
def small(monkeypatch):
    stored = {"CHUNK_ELEMENTS": 7, "PIECE_ENTRIES": 14, "PIECE_ROWS": 5}
    shrink(monkeypatch, store__digests={"CHUNK_ELEMENTS": 7}, ingest__stored=stored)


def store(matrix, **options):
    write_store(place := MemoryStore(), make_arrays(matrix, **options))
    return open_store(place)


@cover_pairs(shape={"square": (30, 30), "empty": (0, 0), "row": (1, 400), "column": (300, 3)}, pattern=[False, True])
def test_rows(shape, pattern):
    matrix = make_scipy(*shape, 0.1 if shape[0] > 1 else 0.9)
    rows = StoredRows(store(matrix, pattern=pattern), 2)
    assert (rows.shape, rows.most_entries, rows.order, rows.vertex_ids) == (shape, matrix.nnz, None, None)
    assert rows.count_rows().tolist() == np.diff(matrix.indptr).tolist()
    found, n = np.zeros(shape), 0
    for block in rows.blocks():
        assert 0 < block.nnz <= 14
        data = np.ones(block.nnz) if block.data is None else block.data
        own = sp.csr_array((data, block.indices, block.indptr), shape=(block.n_rows, shape[1])).toarray()
        found[block.row_offset : block.row_offset + block.n_rows] += own
        n += block.nnz
    assert n == matrix.nnz
    assert (found == (matrix != 0 if pattern else matrix).toarray()).all()


def test_rows_of_a_store_with_an_order():
    order = np.random.default_rng(0).permutation(20).astype(np.int32)
    rows = StoredRows(store(make_scipy(20, 20), order=order), 1)
    assert rows.order.tolist() == order.tolist()


@pytest.mark.parametrize("kind", ["int64", "string"])
def test_ids(kind):
    known = np.array([f"é{k:03}" for k in range(30)], object) if kind == "string" else np.arange(30) * 10**15 - 5
    ids = open_ids(store(make_scipy(30, 30), ids=known))
    assert (len(ids), ids.dtype) == (30, known.dtype)
    for start in range(0, 31, 3):
        for stop in range(0, 33, 4):
            assert ids[start:stop].tolist() == known[start:stop].tolist()
    assert ids[:].tolist() == known.tolist()
    assert [ids[k] for k in (0, 29, -1, 14)] == [known[k] for k in (0, 29, -1, 14)]
    with pytest.raises(IndexError):
        ids[30]
