"""The twins of the dense kernels: values against NumPy and exact sums, bits against the threads that they stand for."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest

from mgspmv.kernels.reference import dense_block, dense_rows, dense_tiles, sum_pairwise

DENSE = [dense_rows, dense_block, dense_tiles]
SIZES = [1, 2, 255, 256, 257, 4095, 4096, 4097, 8192, 12_289, 4096**2 // 1000]
SHAPES = [(0, 0), (0, 3), (3, 0), (1, 1), (5, 31), (64, 1024), (65, 1025), (130, 33), (3, 5000), (200, 1)]


def make_floats(shape, dtype, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sums(dtype):
    for n in SIZES:
        x = make_floats(n, dtype)
        total = sum_pairwise(x)
        assert type(total) in (float, dtype), n
        depth = 16 + 8 + 16 * (n > 4096) + 8
        assert abs(total - math.fsum(x)) <= depth * np.finfo(dtype).eps / 2 * math.fsum(abs(x)), n
        assert sum_pairwise(np.rint(8 * x)) == math.fsum(np.rint(8 * x)), n


def test_sums_of_what_is_not_finite():
    x = np.ones(5000)
    x[4999] = np.inf
    assert sum_pairwise(x) == np.inf
    x[0] = -np.inf
    assert math.isnan(sum_pairwise(x))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kernel", DENSE)
def test_dense_products(kernel, dtype):
    """Whole numbers, with which every order of summation gives the same."""
    for shape, has_b in product(SHAPES, (True, False)):
        A, x, b = (np.rint(4 * make_floats(s, dtype, seed)) for seed, s in enumerate((shape, shape[1], shape[0])))
        y = np.full(shape[0], np.nan, dtype)
        kernel(A, x, b if has_b else None, y)
        np.testing.assert_array_equal(y, A @ x + (b if has_b else 0), f"{shape} b: {has_b}")
