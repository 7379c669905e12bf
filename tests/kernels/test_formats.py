"""Formats: how they are cut and sorted, and when they are refused; what they hold is tested by products."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from mgspmv.errors import FormatError, OptionError
from mgspmv.kernels import formats
from mgspmv.kernels.csr_cuts import build_compact, build_split, build_stream
from mgspmv.kernels.formats import build_bsr, build_coo, build_dia, build_ell, build_hyb, build_sell, choose_ell_width
from mgspmv.model import CsrBlock
from tests.support.blocks import cut_rows, make_block, make_random
from tests.support.matrices import HARD
from tests.support.memory import measure_peak

LENGTHS = np.random.default_rng(0).integers(0, 12, 2500)
SKEWED = np.where(np.arange(6000) % 7 == 0, 40, np.arange(6000) % 4)
"""Lengths of rows; a seventh are long."""


@pytest.fixture
def no_limit(monkeypatch):
    """Padded formats may take any number of bytes."""
    monkeypatch.setattr(formats, "LIMIT_BYTES", 1 << 40)


@pytest.fixture
def set_piece(monkeypatch):
    """`set_piece(n)` has formats work on n entries at a time; results must not depend on it."""
    return lambda n: monkeypatch.setattr(formats, "PIECE", n)


@pytest.mark.parametrize(
    "build", [build_coo, build_hyb, build_sell, build_split, build_compact, build_stream, build_ell, build_bsr]
)
def test_temporaries_are_of_a_piece(build, set_piece):
    """A number of 8 bytes for each of the half million entries would be found."""
    block = make_random([200] * 2500, 7, data=None)
    set_piece(10_000)
    nbytes = build(block).nbytes
    assert measure_peak(lambda: build(block)) < nbytes + 80 * 10_000 + 64 * 2500 < nbytes + 4 * block.nnz


@pytest.mark.parametrize(
    ("lengths", "width"),
    [
        ([9] * 4095, 0),
        ([9] * 4096, 9),
        ([9] * 4095 + [1], 1),
        ([9] * 4096 + [2] * 8000, 9),
        ([9] * 4096 + [2] * 8192, 9),
        ([9] * 4096 + [2] * 8193, 2),
        ([7] * 4000 + [5] * 1000 + [0] * 20000, 0),
        ([7] * 4000 + [5] * 4334 + [0] * 16668, 5),
        ([7] * 4000 + [5] * 4333 + [0] * 16668, 0),
        ([], 0),
    ],
)
def test_ell_width_of_hyb_is_the_most_that_a_third_of_the_rows_has(lengths, width):
    block = make_random(lengths, 50, data=None)
    assert choose_ell_width(block) == width
    enough = max(4096, len(lengths) / 3)
    assert width == max((k for k in range(1, 10) if sum(n >= k for n in lengths) >= enough), default=0)


@pytest.mark.parametrize("b", [2, 3, 4, 5])
def test_bsr_chooses_the_blocks_that_the_matrix_is_made_of(b):
    """A matrix of dense b x b blocks, where other blocks would hold zeros; SciPy makes the same."""
    rng = np.random.default_rng(b)
    n = 60 // b
    pattern = sp.random_array((n, n), density=0.1, rng=rng, format="csr")
    matrix = sp.csr_array(sp.kron(pattern, np.ones((b, b))))
    matrix.data = rng.random(matrix.nnz) + 1
    matrix.sort_indices()
    block = CsrBlock(0, 60, matrix.indptr.astype(np.int64), matrix.indices, matrix.data)
    bsr, wanted = build_bsr(block), matrix.tobsr((b, b))
    assert bsr.data.shape == (len(bsr.indices), b, b)
    np.testing.assert_array_equal(bsr.indptr, wanted.indptr)
    np.testing.assert_array_equal(bsr.indices, wanted.indices)
    np.testing.assert_array_equal(bsr.data, wanted.data)
    assert bsr.nbytes == min(build_bsr(block, other).nbytes for other in (2, 3, 4, 5))


@pytest.mark.parametrize("n_rows", [1, 31, 32, 33, 1023, 1024, 1025, 2500])
def test_sell_sorts_rows_by_length_in_windows_of_1024(n_rows):
    block = make_random(LENGTHS[:n_rows], 50)
    sell, n_slices = build_sell(block), -(-n_rows // 32)
    assert len(sell.order) == 32 * n_slices
    assert (sell.order[n_rows:] == -1).all()
    for start in range(0, n_rows, 1024):
        rows = range(start, min(start + 1024, n_rows))
        assert sell.order[rows.start : rows.stop].tolist() == sorted(rows, key=lambda i: -LENGTHS[i])
    longest = [LENGTHS[[i for i in sell.order[32 * s : 32 * s + 32] if i >= 0]].max() for s in range(n_slices)]
    np.testing.assert_array_equal(np.diff(sell.slice_ptr), 32 * np.array(longest))
    assert (sell.indices[sell.data == 0] <= 49).all()
    assert len(sell.indices) == len(sell.data) == sell.slice_ptr[-1]


def make_uneven():
    """100,000 rows, of which one has 40,000 entries and the others one."""
    lengths = np.ones(100_000, int)
    lengths[77] = 40_000
    return make_random(lengths, 100_000, data=np.float32)


def test_ell_refuses_one_long_row():
    block = make_uneven()
    with pytest.raises(FormatError) as caught:
        build_ell(block)
    assert str(caught.value) == (
        "ell would hold 4,000,000,000 places for 139,999 nonzeros, 32,000,000,000 bytes, but the limit is "
        f"{4 * block.nbytes + 2**20:,}: the longest row has 40,000 entries, the mean is 1.4; use hyb, sell or csr-split"
    )
    assert isinstance(caught.value, OptionError)


def test_dia_refuses_scattered_entries():
    block = make_random([2] * 10_000, 10_000)
    with pytest.raises(FormatError) as caught:
        build_dia(block)
    n = len(np.unique(block.indices - np.repeat(np.arange(10_000), 2)))
    assert str(caught.value) == (
        f"dia would hold {10_000 * n:,} places for 20,000 nonzeros, {80_008 * n:,} bytes, but the limit is "
        f"{4 * block.nbytes + 2**20:,}: they lie on {n:,} diagonals; use csr-vector, hyb or sell"
    )


def test_bsr_refuses_blocks_of_one_entry():
    n = 200_000
    block = CsrBlock(0, 5 * n, np.arange(0, n + 1, 10), 5 * np.arange(n, dtype=np.int32), None)
    nbytes = 8 * (n // 20 + 1) + n * (4 + 8 * 4)
    with pytest.raises(FormatError) as caught:
        build_bsr(block)
    assert str(caught.value) == (
        f"bsr would hold 800,000 places for 200,000 nonzeros, {nbytes:,} bytes, but the limit is "
        f"{4 * block.nbytes + 2**20:,}: they are in 200,000 blocks of 2 x 2; use csr-vector or sell"
    )


def test_bsr_refuses_blocks_that_64_bits_do_not_number():
    indptr = np.zeros(2**20 + 1, np.int64)
    block = CsrBlock(0, 2**45, indptr, np.empty(0, np.int64), None)
    with pytest.raises(FormatError) as caught:
        build_bsr(block)
    assert str(caught.value) == (
        "bsr cannot number the blocks of 1,048,576 x 35,184,372,088,832 in 64 bits; use csr-vector or sell"
    )
    assert build_bsr(CsrBlock(0, 2**44, indptr, np.empty(0, np.int64), None), 2).indices.dtype == np.int64


@pytest.mark.parametrize("build", [build_ell, build_dia, lambda block: build_bsr(block, 2)])
def test_limits_are_bytes_of_the_format(build, no_limit, monkeypatch):
    block = make_random([4] * 500, 20)
    nbytes = build(block).nbytes
    monkeypatch.setattr(formats, "LIMIT_BYTES", nbytes - 4 * block.nbytes)
    assert build(block).nbytes == nbytes
    monkeypatch.setattr(formats, "LIMIT_BYTES", nbytes - 4 * block.nbytes - 1)
    with pytest.raises(FormatError, match=f" {nbytes:,} bytes, but the limit is {nbytes - 1:,}: "):
        build(block)


def test_small_matrices_are_not_refused():
    block = make_random([2000, *[0] * 60], 2000, data=np.float32)
    assert build_ell(block).nbytes == 61 * 2000 * 8 > 4 * block.nbytes
    with pytest.raises(FormatError):
        build_ell(make_random([2000, *[0] * 90], 2000, data=np.float32))


def list_arrays(made):
    """The arrays of a format by name."""
    return {name: part for name, part in vars(made).items() if hasattr(part, "dtype")}


@pytest.mark.gpu
@pytest.mark.parametrize("piece", [101, 1 << 27])
def test_cupy_makes_the_same_arrays(piece, set_piece, no_limit):
    cupy = pytest.importorskip("cupy")
    set_piece(piece)
    blocks = [make_block(hard, data=data) for hard in HARD.values() for data in (np.float32, None)]
    blocks += [cut_rows(block, block.n_rows // 2, block.n_rows) for block in blocks]
    blocks += [make_random(SKEWED[:600], 40, indices=np.int64), make_random([5] * 6000, 60, data=np.float32)]
    for block in blocks:
        arrays = (None if array is None else cupy.asarray(array) for array in (block.indptr, block.indices, block.data))
        on_device = CsrBlock(block.row_offset, block.n_cols, *arrays)
        for build in (build_ell, build_dia, build_bsr, build_coo, build_hyb, build_sell, build_split, build_compact):
            made, wanted = list_arrays(build(on_device)), list_arrays(build(block))
            assert made.keys() == wanted.keys()
            for name, array in wanted.items():
                assert (type(made[name]), made[name].dtype) == (cupy.ndarray, array.dtype)
                np.testing.assert_array_equal(made[name].get(), array, err_msg=name)
