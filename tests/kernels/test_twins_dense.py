"""The twins of the dense kernels: values against NumPy and exact sums, bits against the threads that they stand for."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest

from mgspmv.kernels.twins import dense_block, dense_rows, dense_tiles, sum_pairwise
from tests.support.sums import add_by_lanes, add_in_order

DENSE = [dense_rows, dense_block, dense_tiles]
SIZES = [1, 2, 255, 256, 257, 4095, 4096, 4097, 8192, 12_289, 4096**2 // 1000]
SHAPES = [(0, 0), (0, 3), (3, 0), (1, 1), (5, 31), (64, 1024), (65, 1025), (130, 33), (3, 5000), (200, 1)]


def make_floats(shape, dtype, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


# --- sums ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sums(dtype):
    for n in SIZES:
        x = make_floats(n, dtype)
        total = sum_pairwise(x)
        assert type(total) in (float, dtype), n
        depth = 16 + 8 + 16 * (n > 4096) + 8
        assert abs(total - math.fsum(x)) <= depth * np.finfo(dtype).eps / 2 * math.fsum(abs(x)), n
        assert sum_pairwise(np.rint(8 * x)) == math.fsum(np.rint(8 * x)), n


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_order_of_sums(dtype):
    for n in (1, 5, 300, 4096, 10_000):
        x = make_floats(n, dtype, 1)
        chunks = np.array([add_by_lanes(x[k : k + 4096], 256) for k in range(0, n, 4096)])
        assert sum_pairwise(x) == (x[0] if n == 1 else chunks[0] if n <= 4096 else add_by_lanes(chunks, 256)), n


def test_sums_of_more_chunks_than_a_chunk_has_elements():
    n = 4096 * 4096 + 1
    x = np.zeros(n, np.float32)
    x[[0, 4095, 4096, n - 1]] = [2.0**24, 1, 1, 1]
    assert sum_pairwise(np.ones(n, np.float32)) == 2**24  # 2^24 + 1 is halfway and goes to the even one
    assert sum_pairwise(x) == 2**24
    x[0] = 2
    assert sum_pairwise(x) == 5


def test_a_sum_of_nothing_is_0():
    assert sum_pairwise(np.empty(0)) == 0
    assert sum_pairwise(np.array([-0.0])) == 0


def test_sums_of_what_is_not_finite():
    x = np.ones(5000)
    x[4999] = np.inf
    assert sum_pairwise(x) == np.inf
    x[0] = -np.inf
    assert math.isnan(sum_pairwise(x))


# --- y = A x + b -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kernel", DENSE)
def test_dense_products(kernel, dtype):
    """Whole numbers, with which every order of summation gives the same."""
    for shape, has_b in product(SHAPES, (True, False)):
        A, x, b = (np.rint(4 * make_floats(s, dtype, seed)) for seed, s in enumerate((shape, shape[1], shape[0])))
        y = np.full(shape[0], np.nan, dtype)
        kernel(A, x, b if has_b else None, y)
        np.testing.assert_array_equal(y, A @ x + (b if has_b else 0), f"{shape} b: {has_b}")


def multiply_tiles(row, x):
    """One tile of 1024 columns after the other."""
    products = row * x
    return add_in_order(np.array([add_by_lanes(products[k : k + 1024], 32) for k in range(0, len(x), 1024)], x.dtype))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("kernel", "add"),
    [
        (dense_rows, lambda row, x: add_in_order(row * x)),
        (dense_block, lambda row, x: add_by_lanes(row * x, 256)),
        (dense_tiles, multiply_tiles),
    ],
    ids=["rows", "block", "tiles"],
)
def test_order_of_dense_products(kernel, add, dtype):
    A, x, b = make_floats((70, 2500), dtype), make_floats(2500, dtype, 1), make_floats(70, dtype, 2)
    y = np.full(70, np.nan, dtype)
    kernel(A, x, b, y)
    assert y.tolist() == [add(row, x) + bi for row, bi in zip(A, b, strict=True)]
