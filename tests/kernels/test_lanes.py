"""Lanes of Numba beside NumPy: each operation gives the bits that NumPy gives, lane by lane."""

from __future__ import annotations

import numpy as np
import pytest
from numba import TypingError, njit

from mgspmv.kernels.lane_rows import zeros_in_lines
from mgspmv.kernels.lanes import (
    CACHE_LINE,
    choose,
    load,
    magnitude,
    prefetch,
    spread,
    store,
    to_float64,
    to_integer,
    to_type_of,
)

WIDTH = (0,) * 4
FLOATS = np.array([[0.1, -2.5, 1e300, 3.0], [0.3, 0.5, -1e300, -0.0], [np.nan, np.inf, 1.5, 2.5]])


@njit
def _compute(a, b, out, flags, width):
    x, y = load(a, 0, width), load(a, 1, width)
    store(out, 0, x + y)
    store(out, 1, x - y)
    store(out, 2, x * y)
    store(out, 3, x / y)
    store(out, 4, 2.0 * x + y / 3.0)
    store(out, 5, magnitude(y))
    store(out, 6, choose((x <= y) & (y >= 0.5), x, y))
    store(out, 7, spread(b, width))
    store(flags, 0, to_integer(x < y))
    store(flags, 1, to_integer(load(a, 2, width) <= np.inf))
    store(flags, 2, to_integer(x > y))


def test_floats_are_those_of_numpy():
    out, flags = np.zeros((8, 4)), np.zeros((3, 4), np.int64)
    _compute(FLOATS, 0.7, out, flags, WIDTH)
    x, y, z = FLOATS
    with np.errstate(all="ignore"):
        wanted = [x + y, x - y, x * y, x / y, 2 * x + y / 3, abs(y), np.where((x <= y) & (y >= 0.5), x, y)]
        assert out.tobytes() == np.array([*wanted, np.full(4, 0.7)]).tobytes()
        assert flags.tolist() == [(x < y).tolist(), (z <= np.inf).tolist(), (x > y).tolist()]


@njit
def _convert(wide, single, whole, width):
    x = load(wide, 0, width)
    store(single, 0, to_type_of(x, single))
    store(wide, 1, to_float64(load(single, 0, width)))
    store(wide, 2, to_type_of(x, wide))
    store(whole, 0, to_type_of(x, whole))
    store(whole, 1, to_integer(x) + load(whole, 0, width) - spread(np.int64(1), width))
    store(wide, 3, to_float64(load(whole, 1, width)))


def test_conversions_round_to_nearest_even():
    wide, single, whole = np.zeros((4, 4)), np.zeros((1, 4), np.float32), np.zeros((2, 4), np.int64)
    wide[0] = [0.5, 1.5, -2.5, 1 + 2.0**-24]
    _convert(wide, single, whole, WIDTH)
    assert single[0].tolist() == wide[1].tolist() == [0.5, 1.5, -2.5, 1.0]
    assert wide[2].tolist() == wide[0].tolist()
    assert whole[0].tolist() == [0, 2, -2, 1]
    assert whole[1].tolist() == wide[3].tolist() == [-1, 3, -5, 1]


@njit
def _move(a, row, out, width):
    prefetch(a, row, width)
    store(out, 0, load(a, row, width))
    store(out, 1, load(a[2], None, width))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_rows_are_loaded_and_stored_wherever_they_are(dtype):
    a = np.arange(20, dtype=dtype).reshape(5, 4)
    for array in (a, np.asfortranarray(a)[:, :4].copy(order="C"), np.repeat(a, 2, axis=0)[::2]):
        out = np.zeros((2, 4), dtype)
        _move(array, np.uint64(3), out, WIDTH)
        assert out.tolist() == [a[3].tolist(), a[2].tolist()]


def test_lanes_of_different_types_are_not_mixed():
    @njit
    def add(a, b, width):
        store(a, 0, load(a, 0, width) + load(b, 0, width))

    with pytest.raises(TypingError):
        add(np.zeros((1, 4)), np.zeros((1, 4), np.float32), WIDTH)


@pytest.mark.parametrize("width", [2, 16])
def test_zeros_begin_with_a_cache_line(width):
    for dtype in (np.float32, np.int64):
        zeros = zeros_in_lines(7, width, dtype)
        assert (zeros.shape, zeros.dtype, zeros.flags.c_contiguous) == ((7, width), dtype, True)
        assert zeros.ctypes.data % CACHE_LINE == 0
        assert not zeros.any()
    assert zeros_in_lines(0, width, np.float32).shape == (0, width)
