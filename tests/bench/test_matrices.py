"""The benchmark's matrices at small sizes: their structure beside SciPy's, their counts, their order."""

from __future__ import annotations

import gzip
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from mgspmv.bench import matrices
from mgspmv.bench.matrices import REAL, RECIPES, add_values, check_name, find_real, make_vector, read_real, take_rows
from mgspmv.errors import OptionError
from mgspmv.ingest.generate import RmatSource
from mgspmv.model import CsrBlock

SIZE = 6000


def make(name: str, size: int = SIZE) -> sp.csr_array:
    """A matrix of the benchmark with ones, its arrays as they are."""
    block = RECIPES[name].make(np, size)
    return sp.csr_array((np.ones(block.nnz), block.indices, block.indptr), shape=(block.n_rows, block.n_cols))


def count_rows(name: str, size: int = SIZE) -> np.ndarray:
    return np.diff(make(name, size).indptr)


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


@pytest.mark.parametrize("name", EXACT)
def test_structure_is_scipys(name: str) -> None:
    made, wanted = make(name), sp.csr_array(EXACT[name]())
    wanted.eliminate_zeros()  # SciPy's product of Kronecker stores some
    assert made.shape == wanted.shape
    assert made.nnz == wanted.nnz
    assert abs(made - wanted).sum() == 0


@pytest.mark.parametrize("name", RECIPES)
def test_entries_are_in_order_and_about_as_many_as_asked_for(name: str) -> None:
    block = RECIPES[name].make(np, 100_000)
    keys = np.repeat(np.arange(block.n_rows), np.diff(block.indptr)) * block.n_cols + block.indices
    steps = np.diff(keys)
    assert (steps >= 0).all() if name == "rmat27" else (steps > 0).all()
    assert block.indptr.dtype == np.int64
    assert block.indices.dtype == np.int32
    assert 0 <= block.indices.min() <= block.indices.max() < block.n_cols
    assert 0.6 * 100_000 < block.nnz < 1.5 * 100_000
    assert block.data is None


def test_there_are_enough_of_them_and_one_is_beyond_31_bits() -> None:
    listed = [recipe for recipe in RECIPES.values() if not recipe.by_name_only]
    assert len(listed) >= 32
    assert all(2**20 <= recipe.size < 2**31 for recipe in listed)
    assert RECIPES["rmat27"].size == 17 * 2**27 > 2**31
    assert RECIPES["rmat27"].by_name_only


# --- in random order -------------------------------------------------------------------------------------------------


def spectrum(matrix: sp.csr_array) -> np.ndarray:
    """Eigenvalues, which no order of rows and columns changes."""
    dense = matrix.toarray()
    assert (dense == dense.T).all()
    return np.linalg.eigvalsh(dense)


@pytest.mark.parametrize(
    ("name", "shuffled", "size"),
    [("fem", "fem-shuffled", 6000), ("fem", "fem-scattered", 6000), ("road", "road-shuffled", 1500)],
)
def test_another_order_is_of_the_same_matrix(name: str, shuffled: str, size: int) -> None:
    before, after = make(name, size), make(shuffled, size)
    assert np.abs(spectrum(before) - spectrum(after)).max() < 1e-8
    assert abs(before - after).sum() > 0.5 * before.nnz


def test_only_the_nodes_of_a_mesh_are_shuffled_or_every_unknown() -> None:
    full = make("fem", 20_000).nnz // 9
    assert [count_blocks(name) for name in ("fem", "fem-shuffled")] == [full, full]
    assert count_blocks("fem-scattered") > 3 * full


def count_blocks(name: str) -> int:
    """Blocks of 3 x 3 that are not empty."""
    coo = make(name, 20_000).tocoo()
    return len(set(zip(coo.row // 3, coo.col // 3, strict=True)))


def test_streets_go_both_ways_and_three_in_five_are_there() -> None:
    road = make("road", 40_000)
    side = round(road.shape[0] ** 0.5)
    grid = star(side, 2) - sp.eye_array(side**2)
    assert abs(road - road.T).sum() == 0
    assert road.multiply(grid).sum() == road.nnz
    assert road.nnz / grid.nnz == pytest.approx(0.6, abs=0.02)


# --- graphs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "scramble"), [("rmat22", False), ("rmat24-scrambled", True)])
@pytest.mark.parametrize("piece", [1000, 1 << 26])
def test_rmat_is_that_of_the_generator(name: str, scramble: bool, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrices, "PIECE", piece)
    entries = RmatSource(8, 16, scramble=scramble).make_entries(0, 16 << 8)
    wanted = sp.csr_array((np.ones(len(entries.rows)), (entries.rows, entries.cols)), shape=(256, 256))
    wanted.data[:] = 1
    assert abs(make(name, 16 << 8) - wanted).sum() == 0


@pytest.mark.parametrize("piece", [1000, 1 << 26])
def test_rmat_that_keeps_what_comes_again(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrices, "PIECE", piece)
    entries = RmatSource(8, 17).make_entries(0, 17 << 8)
    order = np.lexsort((entries.cols, entries.rows))
    block = RECIPES["rmat27"].make(np, 17 << 8)
    assert block.nnz == 17 << 8
    assert (block.indices == entries.cols[order]).all()
    assert (np.repeat(np.arange(256), np.diff(block.indptr)) == entries.rows[order]).all()


def test_zipf_has_rows_of_a_power_law_in_random_order() -> None:
    lengths = count_rows("zipf", 400_000)
    ranked = np.sort(lengths)[::-1]
    places = np.array([100, 1000, 10_000])
    slope = np.polyfit(np.log(places), np.log(ranked[places - 1]), 1)[0]
    assert slope == pytest.approx(-0.7, abs=0.05)
    assert ranked[0] > 50 * lengths.mean()
    assert np.abs(np.corrcoef(np.arange(len(lengths)), lengths)[0, 1]) < 0.05


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("uniform24", (4096, 4096)),
        ("uniform-l1", (4096, 8192)),
        ("uniform-l2", (4096, 2048)),
        ("uniform-beyond", (4096, 65536)),
        ("hypersparse", (64 * 65536, 64 * 65536)),
        ("short-wide", (4, 16384)),
        ("tall-skinny", (16384, 64)),
    ],
)
def test_uniform_matrices_have_their_shape_and_favour_no_row_and_no_column(name: str, shape: tuple[int, int]) -> None:
    matrix = make(name, 65536)
    assert matrix.shape == shape
    for axis in (0, 1):
        halves = [part.sum() for part in np.array_split(matrix.sum(axis=axis), 2)]
        assert abs(halves[0] - halves[1]) < 6 * matrix.nnz**0.5


def test_alternating_rows() -> None:
    lengths = count_rows("alternating", 64_000)
    assert (lengths[0::2] == 1).all()
    assert lengths[1::2].max() == 63
    assert lengths[1::2].min() > 55  # places that were drawn twice count once


def test_one_row_of_ten_is_not_empty_at_no_fixed_distance() -> None:
    lengths = count_rows("mostly-empty", 64_000)
    filled = np.flatnonzero(lengths)
    assert len(filled) * 10 == len(lengths)
    assert set(filled // 10) == set(range(len(filled)))
    assert len(set(filled % 10)) == 10
    assert lengths.max() == 16


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


def test_rows_are_taken_in_any_order_and_again() -> None:
    block = add_values(np, RECIPES["rmat22"].make(np, SIZE), "float64")
    rows = np.array([5, 0, 5, block.n_rows - 1, 77])
    part = take_rows(np, block, rows)
    whole = sp.csr_array((block.data, block.indices, block.indptr), shape=(block.n_rows, block.n_cols))
    taken = sp.csr_array((part.data, part.indices, part.indptr), shape=(len(rows), block.n_cols))
    assert abs(whole[rows] - taken).sum() == 0
    assert take_rows(np, CsrBlock(0, 3, np.array([0, 0, 1]), np.array([2]), None), np.array([0, 1, 0])).nnz == 1


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


def test_an_arc_of_a_real_graph_is_in_the_row_of_its_source(tmp_path) -> None:
    (tmp_path / "g.txt").write_text("0 2\n1 2\n")
    block = read_real(tmp_path / "g.txt")
    assert block.indptr.tolist() == [0, 1, 2, 2]
    assert block.indices.tolist() == [2, 2]
    assert block.data is None


def test_an_unknown_name() -> None:
    assert check_name("band5") == "band5"
    with pytest.raises(
        OptionError, match="there is no matrix 'band6' in the benchmark; `mgspmv bench spmv --list` names"
    ):
        check_name("band6")
