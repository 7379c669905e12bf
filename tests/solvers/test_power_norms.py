"""Norms and changes: against Python and NumPy, whoever has which elements."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mgspmv.solvers.power import CHUNK, combine, find_change, find_norm, normalize

NORMS = ["l1", "l2", "max"]
MODES = ["l1", "l1_per_node", "linf", "relative", "fixed"]


@pytest.mark.parametrize(("norm", "wanted"), [("l1", 7.0), ("l2", 5.0), ("max", 4.0)])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_norms(norm, wanted, dtype):
    x = np.array([3.0, -4.0, 0.0], dtype)
    assert find_norm(x, norm) == wanted
    np.testing.assert_array_equal(normalize(x, norm), x / dtype(wanted))


@pytest.mark.parametrize("scale", [1e-320, 1e-200, 1.0, 1e200, 3e307])
def test_euclidean_norm_neither_vanishes_nor_overflows(scale):
    x = scale * np.array([3.0, -4.0])
    assert find_norm(x, "l2") == pytest.approx(math.hypot(*x), rel=1e-15)


def test_norms_that_are_too_large_are_no_numbers():
    """Divided by an infinite one, all elements would vanish."""
    assert math.isnan(find_norm(np.full(3, 1e308), "l1"))
    assert math.isnan(find_norm(np.full(4, 1.7e308), "l2"))


@pytest.mark.parametrize("norm", NORMS)
def test_zeros_stay_zeros(norm):
    assert normalize(np.zeros(3), norm).tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("norm", "wanted"), [("l1", 4.5), ("l1_per_node", 4.5), ("fixed", 4.5), ("linf", 3.0), ("relative", 1.5)]
)
def test_changes(norm, wanted):
    assert find_change(np.array([2.0, -2.0, 0.0]), np.array([1.0, 1.0, 0.5]), norm) == wanted


def test_relative_changes_are_counted_up_to_2():
    assert find_change(np.array([1.0, 0.0]), np.array([9.0, 1.0]), "relative") == 2.0
    with np.errstate(over="ignore"):
        assert find_change(np.array([5e-324]), np.array([1.0]), "relative") == 2.0
    assert find_change(np.array([0.0]), np.array([1.0]), "relative") == 0.0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("place", [0, CHUNK + 1])
def test_what_is_not_finite_is_seen(bad, place):
    x = np.ones(2 * CHUNK)
    x[place] = bad
    with np.errstate(invalid="ignore"):
        for norm in MODES:
            assert not math.isfinite(find_change(x, np.ones(len(x)), norm))
    for norm in NORMS:
        assert not math.isfinite(find_norm(x, norm))


def test_sums_of_many_elements():
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 3 * CHUNK + 5))
    assert find_change(x, y, "l1") == pytest.approx(math.fsum(abs(x - y)), rel=1e-14)
    assert find_change(x, y, "linf") == abs(x - y).max()
    assert find_norm(x, "l2") == pytest.approx(math.hypot(*x), rel=1e-14)
    single = x.astype(np.float32)
    assert find_norm(single, "l1") == pytest.approx(math.fsum(abs(single).tolist()), rel=1e-14)


@pytest.mark.parametrize("cuts", [[0], [1], [500, 500, 501], [*range(100, 1000, 100)]])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_numbers_of_pieces_are_combined(cuts, dtype):
    rng = np.random.default_rng(1)
    new, x = (rng.standard_normal((2, 1000)) * 10.0 ** rng.integers(-9, 9, 1000)).astype(dtype)
    pieces = list(zip(np.split(new, cuts), np.split(x, cuts), strict=True))
    for norm in NORMS:
        found = combine([find_norm(piece, norm) for piece, _ in pieces], norm)
        assert found == pytest.approx(find_norm(new, norm), rel=1e-14)
    for norm in MODES:
        found = combine([find_change(*piece, norm) for piece in pieces], norm)
        assert found == pytest.approx(find_change(new, x, norm), rel=1e-14)


def test_one_piece_that_is_not_finite_or_too_large_decides():
    for bad, norm in ((math.nan, "l1"), (math.nan, "l2"), (math.nan, "max"), (1.5e308, "l1")):
        parts = [find_norm(np.array([x]), norm) for x in (bad, 1.0, 1.5e308)]
        for order in (parts, parts[::-1]):
            assert math.isnan(combine(order, norm))
    assert math.isnan(combine([1.5e308, 1.5e308], "l2"))


def test_pieces_of_very_different_sizes_have_a_euclidean_norm():
    for pieces in ([3e-320, 4e-320, 0.0], [3e307, 4e307, 1e-320], [3.0, 4.0, 1e-200]):
        parts = [find_norm(np.array([x]), "l2") for x in pieces]
        assert combine(parts, "l2") == pytest.approx(math.hypot(*pieces), rel=1e-15)
