"""Entries at one place of a stored matrix, wherever ranges of its entries end."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from zarr.storage import MemoryStore

import mgspmv as mg
from mgspmv.export.edges import find_repeated
from mgspmv.store.read import open_store
from tests.support.arrays import CsrArrays, write_store


@pytest.fixture(scope="module", autouse=True)
def _small():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["mgspmv.store.chunks"], "CHUNK_ELEMENTS", 8)
        patch.setattr(sys.modules["mgspmv.ingest.stored"], "PIECE_ENTRIES", 8)
        patch.setattr(sys.modules["mgspmv.ingest.stored"], "PIECE_ROWS", 5)
        yield


def make_store(lengths, cols=None, duplicates="sum"):
    """A matrix of rows of these lengths."""
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    n = int(indptr[-1])
    indices = np.arange(n, dtype=np.int32) if cols is None else np.array(cols, np.int32)
    place = MemoryStore()
    write_store(place, CsrArrays("matrix", (len(lengths), 1000), indptr, indices, np.arange(n) / 4, duplicates))
    return open_store(place)


REPEATED = {
    "none": ([3, 3, 4], [1, 2, 3, 3, 4, 5, 5, 6, 7, 8], None),
    "in a range": ([3, 3], [1, 1, 2, 0, 1, 2], (0, 1)),
    "over two ranges": ([10], [0, 1, 2, 3, 4, 5, 6, 7, 7, 8], (0, 7)),
    "over two pieces of row pointers": ([1, 1, 1, 1, 0, 0, 9], [0, 0, 0, 0, 1, 2, 3, 4, 4, 5, 6, 7, 8], (6, 4)),
    "in the last": ([8, 2], [0, 1, 2, 3, 4, 5, 6, 7, 7, 7], (1, 7)),
}


@pytest.mark.parametrize("name", REPEATED)
def test_entries_at_one_place(name):
    lengths, cols, place = REPEATED[name]
    assert find_repeated(make_store(lengths, cols, "keep")) == place


def test_entries_at_one_place_of_a_graph_have_the_numbers_of_the_source(tmp_path):
    src, dst = np.array([0, 1, 2, 3, 1, 1]), np.array([3, 3, 3, 0, 2, 2])
    mg.ingest((src, dst), tmp_path / "a.zarr", n_vertices=5, duplicates="keep")
    assert find_repeated(open_store(tmp_path / "a.zarr")) == (1, 2)
    mg.reorder(tmp_path / "a.zarr", method="degree")
    assert find_repeated(open_store(tmp_path / "a.zarr")) == (1, 2)
