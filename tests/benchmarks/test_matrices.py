"""The benchmark's matrices at small sizes: their structure beside SciPy's, their counts, their order."""

from __future__ import annotations

import gzip
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from benchmarks import matrices
from benchmarks.matrices import REAL, RECIPES, add_values, find_real, make_vector, read_real
from mgspmv.ingest.generate import RmatSource

SIZE = 6000


def make(name: str, size: int = SIZE) -> sp.csr_array:
    """A matrix of the benchmark with ones, its arrays as they are."""
    block = RECIPES[name].make(np, size)
    return sp.csr_array((np.ones(block.nnz), block.indices, block.indptr), shape=(block.n_rows, block.n_cols))


def band(n: int, below: int, above: int) -> sp.csr_array:
    offsets = range(-below, above + 1)
    return sp.csr_array(sp.diags_array([1.0] * len(offsets), offsets=offsets, shape=(n, n)))


def line(n: int) -> sp.csr_array:
    return band(n, 1, 1)


def star(n: int, n_dims: int) -> sp.csr_array:
    """Cells of a grid and their neighbours along the axes."""
    grid = line(n) - sp.eye_array(n)
    total = grid
    for _ in range(n_dims - 1):
        total = sp.kronsum(total, grid)
    return sp.csr_array(total + sp.eye_array(n**n_dims))


def box(n: int, n_dims: int) -> sp.csr_array:
    """Cells of a grid and all around them."""
    total = line(n)
    for _ in range(n_dims - 1):
        total = sp.kron(total, line(n))
    return sp.csr_array(total)


def put_row(n: int) -> sp.csr_array:
    """Five diagonals and a dense row in the middle."""
    dense = band(n, 2, 2).tolil()
    dense[n // 2] = 1
    return dense.tocsr()


def arrow(n: int) -> sp.csr_array:
    dense = sp.eye_array(n).tolil()
    dense[n - 1] = 1
    dense[:, n - 1] = 1
    return dense.tocsr()


EXACT: dict[str, Any] = {
    "diagonal": lambda: sp.eye_array(SIZE),
    "tridiagonal": lambda: line(SIZE // 3),
    "band5": lambda: band(SIZE // 5, 2, 2),
    "band9": lambda: band(SIZE // 9, 4, 4),
    "band40": lambda: band(SIZE // 40, 20, 19),
    "grid2d5": lambda: star(35, 2),
    "grid2d9": lambda: box(26, 2),
    "grid3d7": lambda: star(9, 3),
    "grid3d27": lambda: box(6, 3),
    "fem": lambda: sp.kron(box(3, 3), np.ones((3, 3))),
    "dense-blocks": lambda: sp.kron(sp.eye_array(5), np.ones((32, 32))),
    "dense-row": lambda: put_row(1000),
    "dense-column": lambda: put_row(1000).T,
    "arrow": lambda: arrow(2000),
    "upper-triangle": lambda: sp.csr_array(np.triu(np.ones((109, 109)))),
    "dense": lambda: sp.csr_array(np.ones((77, 77))),
}
"""Matrices with one possible structure, made by SciPy."""


def test_structure_is_scipys() -> None:
    for name, build in EXACT.items():
        made, wanted = make(name), sp.csr_array(build())
        wanted.eliminate_zeros()  # SciPy's product of Kronecker stores some
        assert made.shape == wanted.shape, name
        assert made.nnz == wanted.nnz, name
        assert abs(made - wanted).sum() == 0, name


def test_entries_are_in_order_and_about_as_many_as_asked_for() -> None:
    for name, recipe in RECIPES.items():
        block = recipe.make(np, 100_000)
        keys = np.repeat(np.arange(block.n_rows), np.diff(block.indptr)) * block.n_cols + block.indices
        steps = np.diff(keys)
        assert (steps >= 0).all() if name == "rmat27" else (steps > 0).all(), name
        assert (block.indptr.dtype, block.indices.dtype, block.data) == (np.int64, np.int32, None), name
        assert 0 <= block.indices.min() <= block.indices.max() < block.n_cols, name
        assert 0.6 * 100_000 < block.nnz < 1.5 * 100_000, name


# --- graphs ----------------------------------------------------------------------------------------------------------


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


# --- values, vectors, rows -------------------------------------------------------------------------------------------


def test_numbers_are_the_same_in_both_precisions_of_both_signs_and_never_0(monkeypatch: pytest.MonkeyPatch) -> None:
    block = RECIPES["band5"].make(np, 50_000)
    double = add_values(np, block, "float64").data
    monkeypatch.setattr(matrices, "PIECE", 999)
    single = add_values(np, block, "float32").data
    assert double is not None
    assert single is not None
    assert (single.dtype, double.dtype) == (np.float32, np.float64)
    assert (single == double).all()
    assert (double != 0).all()
    assert np.abs(double).max() < 1
    assert abs(double.mean()) < 0.02
    assert double.var() == pytest.approx(1 / 3, abs=0.01)
    x = make_vector(np, len(double), "float64")
    assert abs(np.corrcoef(x, double)[0, 1]) < 0.02


def test_real_matrices_are_read_where_the_variable_names_their_folder(tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("MGSPMV_TEST_DATA", raising=False)
    assert [find_real(name) for name in REAL] == [None] * len(REAL)
    monkeypatch.setenv("MGSPMV_TEST_DATA", str(tmp_path))
    assert find_real("cnr-2000") is None
    (tmp_path / "matrices").mkdir()
    text = "%%MatrixMarket matrix coordinate real symmetric\n3 3 2\n1 1 2.5\n3 1 -1\n"
    file = tmp_path / REAL["xenon1"]
    file.write_bytes(gzip.compress(text.encode()))
    path = find_real("xenon1")
    assert path == file
    block = read_real(path)
    assert block.indptr.tolist() == [0, 2, 2, 3]
    assert block.indices.tolist() == [0, 2, 0]
    assert block.data is not None
    assert block.data.tolist() == [2.5, -1, -1]
