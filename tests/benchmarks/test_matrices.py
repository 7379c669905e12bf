"""The benchmark's matrices at small sizes: their counts and order, the R-MAT ones beside the generator."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from benchmarks import matrices
from benchmarks.matrices import RECIPES, repeat_block
from mgspmv.ingest.generate import RmatSource

SIZE = 6000


def make(name: str, size: int = SIZE) -> sp.csr_array:
    """A matrix of the benchmark with ones, its arrays as they are."""
    block = RECIPES[name].make(np, size)
    return sp.csr_array((np.ones(block.nnz), block.indices, block.indptr), shape=(block.n_rows, block.n_cols))


def test_entries_are_in_order_and_about_as_many_as_asked_for() -> None:
    for name, recipe in RECIPES.items():
        block = recipe.make(np, 100_000)
        keys = np.repeat(np.arange(block.n_rows), np.diff(block.indptr)) * block.n_cols + block.indices
        steps = np.diff(keys)
        assert (steps >= 0).all() if name == "rmat27" else (steps > 0).all(), name
        assert (block.indptr.dtype, block.indices.dtype, block.data) == (np.int64, np.int32, None), name
        assert 0 <= block.indices.min() <= block.indices.max() < block.n_cols, name
        assert 0.6 * 100_000 < block.nnz < 1.5 * 100_000, name


def test_rmat_is_that_of_the_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, scramble, piece in (("rmat22", False, 1 << 26), ("rmat24-scrambled", True, 1000)):
        monkeypatch.setattr(matrices, "PIECE", piece)
        entries = RmatSource(8, 16, scramble=scramble).make_entries(0, 16 << 8)
        wanted = sp.csr_array((np.ones(len(entries.rows)), (entries.rows, entries.cols)), shape=(256, 256))
        wanted.data[:] = 1
        assert abs(make(name, 16 << 8) - wanted).sum() == 0, name
    entries = RmatSource(8, 17).make_entries(0, 17 << 8)
    order = np.lexsort((entries.cols, entries.rows))
    block = RECIPES["rmat27"].make(np, 17 << 8)  # keeps duplicates
    assert (block.indices == entries.cols[order]).all()
    assert (np.repeat(np.arange(256), np.diff(block.indptr)) == entries.rows[order]).all()


@pytest.mark.parametrize(("size", "times"), [(1, 1), (1000, 6)])
def test_a_structure_is_repeated_along_the_diagonal(size: int, times: int) -> None:
    structure = sp.random_array((40, 31), density=0.13, rng=np.random.default_rng(1)).tocsr()
    data = np.full(structure.nnz, 2.0)
    block = matrices.CsrBlock(0, 31, structure.indptr.astype(np.int64), structure.indices.astype(np.int32), data)
    found = repeat_block(np, block, size)
    assert (found.indptr.dtype, found.indices.dtype, found.data) == (np.int64, np.int32, None)
    wanted = sp.block_diag([structure] * times).tocsr()
    assert (found.n_rows, found.n_cols) == wanted.shape
    assert found.indptr.tolist() == wanted.indptr.tolist()
    assert found.indices.tolist() == wanted.indices.tolist()
