"""Arcs in an array of two rows, which is a dense matrix: the error says how they are passed."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from zarr.storage import MemoryStore

import mgspmv as mg
from mgspmv.errors import KindError

HINT = r"; if its two rows are the sources and targets of arcs, ingest them as a tuple: \(edges\[0\], edges\[1\]\)$"


def open_stored(source):
    store = MemoryStore()
    mg.ingest(source, store)
    return mg.open_matrix(store)


def test_an_edge_index_is_hinted_at():
    edges = np.array([[0, 1, 2, 3], [1, 2, 0, 1]])
    for given in (edges, edges[:, :2]):
        with pytest.raises(KindError, match=HINT):
            mg.pagerank(open_stored(given))
    ranks = mg.pagerank(open_stored((edges[0], edges[1])))
    assert len(ranks.values) == 4


def test_other_matrices_are_not():
    for given in (np.ones((2, 4)), np.ones((3, 4), int), sp.coo_array(np.ones((2, 4), int))):
        with pytest.raises(KindError) as caught:
            mg.pagerank(open_stored(given))
        assert "tuple" not in str(caught.value)
