"""The twins of the CUDA kernels: values against SciPy, bits against the threads that they stand for."""

from __future__ import annotations

from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from mgspmv.errors import FormatError
from mgspmv.kernels import csr_cuts, formats, reference
from mgspmv.kernels.formats import ITEMS
from mgspmv.kernels.select import bind_kernel, list_kernels
from mgspmv.model import CsrBlock
from tests.support.blocks import cut_rows, make_block, make_random, to_scipy
from tests.support.matrices import HARD, naming
from tests.support.pairwise import cover_pairs

TWINS = list_kernels("cuda")
IN_ORDER = ["csr-scalar", "csr-cached", "ell", "sell"]
"""Those that add the entries of a row one after the other; dia does too where no entry is repeated."""
SCALARS = [(1.0, 0.0), (-1.5, 0.25), (0.0, 1.0), (2.0, -1.0)]
"""alpha and beta."""


def choose_precision(dtype):
    return "float32" if dtype == np.float32 else "float64"


def multiply(block, kernel, x, y=None, alpha=1.0, beta=0.0):
    """The product by a twin; without y what it goes into holds NaN."""
    out = np.full(block.n_rows, np.nan, x.dtype) if y is None else y.copy()
    bind_kernel(block, choose_precision(x.dtype), kernel=kernel).multiply(x, out, alpha, beta)
    assert out.dtype == x.dtype
    return out


def check_product(block, kernel, dtype, alpha, beta, seed=3):
    """Within the rounding of so many operations: Higham, Accuracy and Stability, section 4.2."""
    rng = np.random.default_rng(seed)
    x, old = rng.standard_normal(block.n_cols).astype(dtype), rng.standard_normal(block.n_rows).astype(dtype)
    y = multiply(block, kernel, x, old if beta else None, alpha, beta)
    matrix, wide, before = to_scipy(block), x.astype(np.float64), beta * old.astype(np.float64)
    size = abs(alpha) * (abs(matrix) @ abs(wide)) + abs(before)
    bound = 1.01 * (np.diff(block.indptr) + 5) * np.finfo(dtype).eps / 2 * size
    assert (np.abs(y - (alpha * (matrix @ wide) + before)) <= bound).all()


@cover_pairs(
    kernel=TWINS,
    dtype=[np.float32, np.float64],
    has_values={"values": True, "pattern": False},
    indices=[np.int32, np.int64],
    piece=[3, formats.PIECE],
)
def test_products_of_hard_matrices(kernel, dtype, has_values, indices, piece, monkeypatch):
    """Formats are made of all entries at a time, or of a few."""
    monkeypatch.setattr(formats, "PIECE", piece)
    for name, hard in HARD.items():
        block = make_block(hard, indices=indices, data=dtype if has_values else None)
        for alpha, beta in SCALARS:
            with naming(name, alpha, beta):
                check_product(block, kernel, dtype, alpha, beta)


@pytest.mark.parametrize("kernel", TWINS)
def test_blocks_of_rows_of_hard_matrices(kernel):
    for (name, hard), data in product(HARD.items(), (np.float64, None)):
        whole = make_block(hard, data=data)
        n = whole.n_rows
        for start, stop in pairwise((0, n // 2, n) if data is None else (*range(n // 2), *range(n // 2, n + 1, 3), n)):
            with naming(name, data, start, stop):
                check_product(cut_rows(whole, start, stop), kernel, np.float64, -1.5, 0.25)


def to_block(matrix):
    matrix = sp.csr_array(matrix)
    matrix.sort_indices()
    values = np.random.default_rng(1).integers(-8, 9, matrix.nnz).astype(np.float64)
    return CsrBlock(0, matrix.shape[1], matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32), values)


def make_stencil(n, dims):
    """Neighbours along each axis and across corners, in an n x n or n x n x n grid."""
    line = whole = sp.diags_array([1.0] * 3, offsets=[-1, 0, 1], shape=(n, n))
    for _ in range(dims - 1):
        whole = sp.kron(whole, line)
    return whole


GENERATED = {
    "band": to_block(sp.diags_array([1.0] * 7, offsets=[-40, -3, -1, 0, 1, 3, 700], shape=(2000, 2000))),
    "2-D stencil": to_block(make_stencil(40, 2)),
    "3-D stencil": to_block(make_stencil(12, 3)),
    "blocks of 3 x 3": to_block(sp.kron(sp.random_array((300, 300), density=0.02, rng=2), np.ones((3, 3)))),
    "5 entries a row": make_random([5] * 5000, 3000, seed=3),
    "skewed rows": make_random(np.random.default_rng(4).zipf(1.7, 4200).clip(1, 1000) - 1, 9000, seed=4),
    "one dense row": make_random([2] * 700 + [20_000] + [3] * 700, 20_000, seed=5),
    "mostly empty rows": make_random(np.random.default_rng(6).random(9000) < 0.03, 9000, seed=6),
    "short and wide": make_random([4000, 0, 1, 3800], 5000, seed=7),
    "tall and narrow": make_random([2] * 6000, 3, seed=8),
    "rows that end chunks": make_random([ITEMS - 1, ITEMS, 3 * ITEMS, 0, 1, 0, ITEMS], 2000, seed=9),
}
"""One of every structure, with whole numbers for values."""
REFUSED = {
    ("ell", "skewed rows"),
    ("ell", "one dense row"),
    ("dia", "5 entries a row"),
    ("dia", "skewed rows"),
    ("dia", "one dense row"),
    ("dia", "mostly empty rows"),
    ("dia", "blocks of 3 x 3"),
    ("dia", "tall and narrow"),
}


def pick_integers(n, dtype, seed=0):
    return np.random.default_rng(seed).integers(-4, 5, n).astype(dtype)


def check_exact(block, kernel, dtype=np.float64):
    """With whole numbers every order of summation gives the same; columns one at a time and two at once."""
    x, old = pick_integers((block.n_cols, 2), dtype), pick_integers((block.n_rows, 2), dtype, 1)
    wanted = to_scipy(block) @ x.astype(np.float64)
    np.testing.assert_array_equal(multiply(block, kernel, x[:, 0].copy()), wanted[:, 0])
    y = old.copy()
    bind_kernel(block, choose_precision(dtype), kernel=kernel).multiply(x, y, 2.0, -0.5)
    np.testing.assert_array_equal(y, 2 * wanted - 0.5 * old)


@pytest.mark.parametrize("kernel", TWINS)
def test_products_of_generated_matrices(kernel):
    for name, block in GENERATED.items():
        with naming(name):
            if (kernel, name) in REFUSED:
                with pytest.raises(FormatError, match=rf"^{kernel} would hold .* but the limit is .*; use "):
                    bind_kernel(block, "float64", kernel=kernel)
                continue
            check_exact(block, kernel)
            check_exact(cut_rows(block, block.n_rows // 3, block.n_rows), kernel)
            check_exact(CsrBlock(0, block.n_cols, block.indptr, block.indices, None), kernel)


@pytest.mark.fuzz
@given(
    lengths=st.lists(st.integers(0, 5) | st.integers(0, 80), max_size=70),
    n_cols=st.integers(1, 40),
    offset=st.integers(0, 50),
    seed=st.integers(0, 2**16),
    has_values=st.booleans(),
    piece=st.integers(1, 60),
)
def test_products_of_any_matrix(lengths, n_cols, offset, seed, has_values, piece):
    made = make_random(lengths, n_cols, data=np.float64 if has_values else None, seed=seed)
    block = CsrBlock(offset, n_cols, made.indptr, made.indices, made.data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(formats, "PIECE", piece)
        for kernel in TWINS:
            with naming(kernel):
                check_exact(block, kernel)


@pytest.mark.parametrize("kernel", TWINS)
def test_sums_are_made_in_the_dtype_of_x(kernel):
    """1e8 + 1 - 1e8 is 0 in float32."""
    for dtype, wanted in ((np.float32, 0), (np.float64, 1)):
        block = CsrBlock(0, 2, np.array([0, 2]), np.arange(2, dtype=np.int32), np.array([1e8, 1], dtype))
        assert multiply(block, kernel, np.ones(2, dtype), np.array([-1e8], dtype), 1.0, 1.0) == wanted


def test_values_are_rounded_to_the_dtype_of_x():
    value, three = 1 + 2.0**-24 + 2.0**-40, np.float32(3)
    block = CsrBlock(0, 1, np.array([0, 1]), np.zeros(1, np.int32), np.array([value]))
    assert multiply(block, "csr-scalar", np.array([three])) == np.float32(value) * three != np.float32(value * 3)
    assert multiply(block, "csr-scalar", np.array([3.0])) == value * 3


@pytest.mark.parametrize("kernel", TWINS)
def test_alpha_and_beta_are_rounded_to_float32(kernel):
    block = CsrBlock(0, 1, np.array([0, 1]), np.zeros(1, np.int32), None)
    y = multiply(block, kernel, np.ones(1, np.float32), np.ones(1, np.float32), 0.1, 0.7)
    assert y == np.float32(0.1) + np.float32(0.7)


@pytest.mark.parametrize("kernel", TWINS)
def test_nothing_but_y_is_written(kernel):
    """Not even 0 is added to what lies around it: -0 would become 0."""
    for name in ("one row", "tall", "empty rows", "star", "no columns"):
        block = make_block(HARD[name])
        around = np.full(block.n_rows + 20, -0.0)
        bind_kernel(block, "float64", kernel=kernel).multiply(np.ones(block.n_cols), around[10:-10], 1.0, 1.0)
        assert np.signbit(around[:10]).all(), name
        assert np.signbit(around[-10:]).all(), name


@pytest.mark.parametrize("kernel", TWINS)
def test_padding_reads_no_x(kernel):
    """A column without entries may hold NaN or infinity in x."""
    for name in ("empty columns", "wide", "duplicates", "star"):
        block = make_block(HARD[name])
        x = np.full(block.n_cols, np.nan)
        x[np.unique(block.indices)] = 1
        wanted = to_scipy(block) @ np.ones(block.n_cols)
        np.testing.assert_allclose(multiply(block, kernel, x), wanted, rtol=1e-15, err_msg=name)


@pytest.mark.parametrize("kernel", TWINS)
def test_columns_of_any_layout(kernel):
    block = make_random([3, 0, 5, 2], 6)
    wanted = to_scipy(block) @ (x := pick_integers((6, 4), np.float64))
    for given_x in (x, np.asfortranarray(x), np.repeat(x, 2, axis=1)[:, ::2]):
        y = np.full((4, 8), np.nan)
        bind_kernel(block, "float64", kernel=kernel).multiply(given_x, y[:, ::2])
        np.testing.assert_array_equal(y[:, ::2], wanted)
        assert np.isnan(y[:, 1::2]).all()
    bind_kernel(block, "float64", kernel=kernel).multiply(x[:, :0], np.empty((4, 0)))


def test_nbytes_are_those_of_the_format():
    block = GENERATED["blocks of 3 x 3"]
    wanted = dict.fromkeys(("csr-scalar", "csr-warp", "csr-vector", "csr-cached"), block.nbytes)
    wanted["csr-split"] = block.nbytes + csr_cuts.build_split(block).nbytes
    wanted["csr-many"] = block.nbytes + csr_cuts.build_stream(block).nbytes
    for kernel in ("ell", "coo", "hyb", "bsr", "sell"):
        wanted[kernel] = getattr(formats, f"build_{kernel}")(block).nbytes
    assert {kernel: bind_kernel(block, "float64", kernel=kernel).nbytes for kernel in wanted} == wanted


@pytest.mark.parametrize("kernel", ["dia", "bsr"])
def test_counts_of_a_pattern_have_the_dtype_of_the_precision(kernel):
    block = make_block(HARD["duplicates"], data=None)
    sizes = {p: bind_kernel(block, p, kernel=kernel).nbytes for p in ("float32", "float64", "exact")}
    assert sizes["float32"] < sizes["float64"] == sizes["exact"]


def add_in_order(values: np.ndarray) -> Any:
    """One after the other: `cumsum` does so."""
    return np.cumsum(np.concatenate([np.zeros(1, values.dtype), values]), dtype=values.dtype)[-1]


def add_by_lanes(values: np.ndarray, lanes: int) -> Any:
    """Lane l adds values l, l + lanes, ...; then half of the lanes take the others' sums, until one is left."""
    sums = np.array([add_in_order(values[lane::lanes]) for lane in range(lanes)], values.dtype)
    while len(sums) > 1:
        sums = sums[: len(sums) // 2] + sums[len(sums) // 2 :]
    return sums[0]


def make_floats(lengths, n_cols, dtype, seed=0):
    """A block and an x of values whose sums round, and the products of each row."""
    made, rng = make_random(lengths, n_cols, seed=seed), np.random.default_rng(seed)
    block = CsrBlock(0, n_cols, made.indptr, made.indices, rng.standard_normal(made.nnz).astype(dtype))
    x = rng.standard_normal(n_cols).astype(dtype)
    products = block.data * x[block.indices]
    return block, x, [products[start:stop] for start, stop in pairwise(block.indptr)]


UNEVEN = [0, 1, 2, 31, 32, 33, 63, 64, 65, 1000, 5, 0, 129, *range(40)]


@pytest.mark.parametrize("kernel", IN_ORDER)
def test_kernels_that_add_in_the_order_of_a_row(kernel):
    for dtype in (np.float32, np.float64):
        block, x, products = make_floats(UNEVEN, 700, dtype)
        assert multiply(block, kernel, x).tolist() == [add_in_order(row) for row in products], dtype


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_csr_warp_adds_by_32_lanes(dtype):
    block, x, products = make_floats(UNEVEN, 700, dtype)
    assert multiply(block, "csr-warp", x).tolist() == [add_by_lanes(row, 32) for row in products]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("lanes", [1, 2, 4, 8, 16, 32, 64])
def test_csr_vector_adds_by_its_lanes(lanes, dtype):
    block, x, products = make_floats(UNEVEN, 700, dtype)
    y, one = np.full(block.n_rows, np.nan, dtype), dtype(1)
    reference.csr_vector(10, lanes, lanes, block.indptr, block.indices, block.data, x, y, one, dtype(0))
    assert y.tolist() == [add_by_lanes(row, lanes) for row in products]
    reference.csr_vector(10, lanes, lanes, block.indptr, block.indices, block.data, x, y, dtype(-1), one)
    assert not y.any()


@pytest.mark.parametrize(("mean", "lanes"), [(1, 1), (7, 1), (8, 1), (31, 4), (90, 16), (450, 32)])
def test_csr_vector_is_bound_with_the_lanes_that_suit(mean, lanes):
    block, x, products = make_floats([mean] * 50, 500, np.float32)
    assert multiply(block, "csr-vector", x).tolist() == [add_by_lanes(row, lanes) for row in products]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dia_adds_in_the_order_of_a_row_where_no_entry_is_repeated(dtype):
    rng = np.random.default_rng(1)
    block = GENERATED["band"]
    block = CsrBlock(0, block.n_cols, block.indptr, block.indices, rng.standard_normal(block.nnz).astype(dtype))
    part = cut_rows(block, 500, 1700)
    x = rng.standard_normal(block.n_cols).astype(dtype)
    assert multiply(part, "dia", x).tolist() == multiply(part, "csr-scalar", x).tolist()


@pytest.mark.parametrize("n_cols", [300, 1024, 1500, 9000])
def test_csr_cached_finds_every_column_in_the_window_or_outside(n_cols):
    """Windows within, at both ends of, larger than and far from the columns: always the bits of csr-scalar."""
    made, x, _ = make_floats([9] * 1300, n_cols, np.float64)
    for row_offset in (0, 400, 5000, 20_000):
        block = CsrBlock(row_offset, n_cols, made.indptr, made.indices, made.data)
        assert multiply(block, "csr-cached", x).tolist() == multiply(block, "csr-scalar", x).tolist(), row_offset
