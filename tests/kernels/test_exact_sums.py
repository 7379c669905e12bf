"""Exact sums of floats against Python's own, of all sizes, in any order and any cuts."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from mgspmv.kernels import exact_sums
from mgspmv.kernels.exact_sums import UNIT_BITS, sum_changes, sum_sizes, sum_squares, to_units

UNIT = Fraction(1, 2**UNIT_BITS)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
EDGES = [
    *(np.array([v]) for v in (0.0, -0.0, 5e-324, -5e-324, 2.0**-1022, 1.0, np.nextafter(1.0, 0.0), 2.0**1023 * 1.9999)),
    *(np.array([v], np.float32) for v in (0.0, 1e-45, -(2.0**-126), 1.0, 2.0**127 * 1.9999)),
]


@given(arrays(np.float64, st.integers(0, 30), elements=FINITE))
def test_sizes(x):
    assert sum_sizes(x) * UNIT == sum(abs(Fraction(v)) for v in x.tolist())


@given(arrays(np.float64, st.tuples(st.just(2), st.integers(0, 30)), elements=st.floats(-1e300, 1e300)))
def test_changes_are_of_rounded_differences(pair):
    new, x = pair
    assert sum_changes(new, x) * UNIT == sum(abs(Fraction(a - b)) for a, b in zip(*pair.tolist(), strict=True))


@given(arrays(np.float64, st.integers(0, 30), elements=FINITE))
def test_squares_are_rounded_once_whatever_their_size(x):
    found = sum_squares(x) * UNIT
    exact = sum(Fraction(v) ** 2 for v in x.tolist())
    assert abs(found - exact) <= exact / 2**53


@pytest.mark.parametrize("one", EDGES)
def test_edges(one):
    x, exact = np.repeat(one, 3), Fraction(float(one[0]))
    assert sum_sizes(x) * UNIT == 3 * abs(exact)
    assert abs(sum_squares(x) * UNIT - 3 * exact**2) <= exact**2 / 2**52
    assert sum_changes(x, np.zeros_like(x)) * UNIT == 3 * abs(exact)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_seen(bad, monkeypatch):
    monkeypatch.setattr(exact_sums, "_PIECE", 16)
    for place in (0, 40, 99):
        x, zeros = np.ones(100), np.zeros(100)
        x[place] = bad
        assert sum_sizes(x) is sum_squares(x) is sum_changes(x, zeros) is sum_changes(zeros, x) is None, place


@pytest.mark.parametrize("threads", [1, 3])
def test_neither_cuts_nor_order_change_it(threads, monkeypatch):
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 5000)) * 10.0 ** rng.integers(-100, 100, (2, 5000))
    wanted = (sum_sizes(x), sum_squares(x), sum_changes(x, y))
    assert wanted[0] / 2**UNIT_BITS == math.fsum(abs(x))
    assert wanted[2] / 2**UNIT_BITS == math.fsum(abs(x - y))
    for size in (1 << 18, 999, 64):
        monkeypatch.setattr(exact_sums, "_PIECE", size)
        order = np.array(random.Random(size).sample(range(5000), 5000))
        found = (sum_sizes(x[order], threads), sum_squares(x[order], threads), sum_changes(x[order], y[order], threads))
        assert found == wanted


def test_parts_that_lean_to_one_side():
    """What is left of many alike after the first cut adds up to 2^61 units of the next one."""
    rng = np.random.default_rng(0)
    for n in range(200, 1025, 8):
        x = np.full(n, (rng.random() + 0.5) * 2.0**-11)
        x[n // 2] = (rng.random() + 0.5) * 2.0**-3
        exact = (n - 1) * Fraction(x[0]) + Fraction(x[n // 2])
        assert sum_sizes(x) * UNIT == exact
        assert sum_changes(x, np.zeros_like(x)) * UNIT == exact


@pytest.mark.parametrize(("number", "exponent"), [(0.0, 0), (3.5, 0), (1e-300, -100), (5e-324, 0), (1.5, 1000)])
def test_units_of_a_number(number, exponent):
    assert to_units(number, exponent) * UNIT == Fraction(number) * Fraction(2) ** exponent
