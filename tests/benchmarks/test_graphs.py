"""The benchmark's graphs at small sizes: their structure, their directions, their degrees."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from benchmarks import matrices
from benchmarks.graphs import (
    GRAPHS,
)

SIZE = 100_000


def make(name: str, size: int = SIZE) -> sp.csr_array:
    """In-edges of a graph with ones, the arrays as they are."""
    block = GRAPHS[name].make(np, size)
    return sp.csr_array((np.ones(block.nnz), block.indices, block.indptr), shape=(block.n_rows, block.n_cols))


# --- real ones -------------------------------------------------------------------------------------------------------


def test_graphs_are_in_order_and_the_same_in_any_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, recipe in GRAPHS.items():
        block = recipe.make(np, SIZE)
        keys = np.repeat(np.arange(block.n_rows), np.diff(block.indptr)) * block.n_cols + block.indices
        steps = np.diff(keys)
        assert (steps >= 0).all() if name == "rmat27" else (steps > 0).all(), name
        assert (block.n_rows, block.data) == (block.n_cols, None), name
        assert (block.indptr.dtype, block.indices.dtype) == (np.int64, np.int32), name
        assert 0 <= block.indices.min() <= block.indices.max() < block.n_cols, name
        assert 0.6 * SIZE < block.nnz < 1.5 * SIZE, name
        with monkeypatch.context() as patch:
            patch.setattr(matrices, "PIECE", 9_999)
            pieces = recipe.make(np, SIZE)
        assert (block.indptr == pieces.indptr).all(), name
        assert (block.indices == pieces.indices).all(), name
