"""Vectors that users give."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from mgspmv.errors import OptionError
from mgspmv.solvers.vectors import make_distribution

INTEGERS = np.array([-5, 0, 7, 2**40])
STRINGS = np.array(["Zug", "amsel", "drossel", "Ähre"], dtype=object)


@pytest.mark.parametrize(
    "weights",
    [np.array([1.0, 3.0, 0.0, 4.0]), np.array([1, 3, 0, 4], np.uint8), {0: 1, 1: 3, 3: 4}],
    ids=["array", "unsigned", "mapping"],
)
def test_weights_are_divided_by_their_sum(weights):
    found = make_distribution("personalization", weights, 4, None)
    assert found.dtype == np.float64
    assert found.tolist() == [0.125, 0.375, 0.0, 0.5]


@pytest.mark.parametrize("scale", [5e-324, 1e-310, 1.0, 1e308])
def test_any_magnitude_can_be_normalised(scale):
    found = make_distribution("personalization", np.array([scale, 0.0, scale]), 3, None)
    assert found.tolist() == [0.5, 0.0, 0.5]


def test_sum_does_not_depend_on_the_order():
    rng = np.random.default_rng(0)
    weights = rng.random(10_000) * 10.0 ** rng.integers(-12, 12, 10_000)
    found = make_distribution("personalization", weights, len(weights), None)
    plain_sums = set()
    for seed in range(20):
        order = np.random.default_rng(seed).permutation(len(weights))
        again = make_distribution("personalization", weights[order], len(weights), None)
        np.testing.assert_array_equal(again, found[order])
        plain_sums.add(float(np.cumsum(weights[order])[-1]))
    assert len(plain_sums) > 1
    total = sum(map(Fraction, weights))
    assert abs(Fraction(found[0]) - Fraction(weights[0]) / total) <= Fraction(found[0]) / 2**51


@pytest.mark.parametrize(
    ("weights", "vertex_ids", "message"),
    [
        (np.array([1.0, -0.5]), None, r"^nstart must be finite and not negative; vertex 1 has -0\.5$"),
        (np.array([1.0, np.nan]), None, r"^nstart must be finite and not negative; vertex 1 has nan$"),
        (
            np.array([np.inf, 1.0]),
            np.array(["a", "b"], object),
            r"^nstart must be finite and not negative; vertex a has inf$",
        ),
        ({9: -1.0}, np.array([3, 9]), r"^nstart must be finite and not negative; vertex 9 has -1\.0$"),
        ({0: None}, None, r"^nstart must be finite and not negative; vertex 0 has nan$"),
        (
            np.zeros(2),
            None,
            r"^nstart is 0 everywhere and cannot be made to sum to 1; give at least one vertex a weight$",
        ),
        ({}, None, r"^nstart is 0 everywhere"),
        ({1: 0}, None, r"^nstart is 0 everywhere"),
        (np.array([1j, 1.0]), None, r"^nstart must hold real numbers, not complex128$"),
        (np.array(["1", "2"]), None, r"^nstart is an array of strings, .*; pass its \.tolist\(\) for a list of ids$"),
        ({0: "1"}, None, r"^nstart must hold real numbers, not <U1$"),
        (np.array([[1], [1, 2]], object), None, r"^nstart must hold real numbers \("),
        (np.array([10**400, 1], object), None, r"^nstart must hold real numbers \("),
        (
            "uniform",
            None,
            r"^nstart must be a vector over the vertices, not 'uniform'; pass a mapping",
        ),
    ],
)
def test_weights_that_are_no_distribution(weights, vertex_ids, message):
    with pytest.raises(OptionError, match=message):
        make_distribution("nstart", weights, 2, vertex_ids)
