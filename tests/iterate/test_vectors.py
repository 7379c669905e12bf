"""Vectors that users give."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from mgspmv.errors import OptionError, ShapeError
from mgspmv.iterate.vectors import find_positions, make_distribution

INTEGERS = np.array([-5, 0, 7, 2**40])
STRINGS = np.array(["Zug", "amsel", "drossel", "Ähre"], dtype=object)


# --- distributions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "weights",
    [np.array([1.0, 3.0, 0.0, 4.0]), np.array([1, 3, 0, 4], np.uint8), {0: 1, 1: 3, 3: 4}],
    ids=["array", "unsigned", "mapping"],
)
def test_weights_are_divided_by_their_sum(weights):
    found = make_distribution("personalization", weights, 4, None)
    assert found.dtype == np.float64
    assert found.tolist() == [0.125, 0.375, 0.0, 0.5]


def test_what_was_given_is_not_changed():
    weights = np.array([1.0, 3.0])
    make_distribution("nstart", weights, 2, None)
    assert weights.tolist() == [1.0, 3.0]


def test_booleans_are_a_set():
    assert make_distribution("personalization", np.array([True, False, True]), 3, None).tolist() == [0.5, 0.0, 0.5]


def test_mapping_of_integer_ids():
    found = make_distribution("dangling", {2**40: 3.0, np.int32(-5): 1}, 4, INTEGERS)
    assert found.tolist() == [0.25, 0.0, 0.0, 0.75]


def test_mapping_of_string_ids():
    found = make_distribution("dangling", {"Ähre": 3.0, "Zug": 1}, 4, STRINGS)
    assert found.tolist() == [0.25, 0.0, 0.0, 0.75]


@pytest.mark.parametrize("scale", [5e-324, 1e-310, 1.0, 1e308])
def test_any_magnitude_can_be_normalised(scale):
    found = make_distribution("personalization", np.array([scale, 0.0, scale]), 3, None)
    assert found.tolist() == [0.5, 0.0, 0.5]


def test_small_weights_beside_great_ones_stay():
    found = make_distribution("personalization", np.array([1e300, 1.0, 0.0]), 3, None)
    assert found.tolist() == [1.0, 1e-300, 0.0]


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


def test_many_small_weights_count_beside_a_great_one():
    weights = np.full(2**20, 2e-13)
    weights[0] = 1.0
    assert abs(math.fsum(make_distribution("personalization", weights, len(weights), None)) - 1) <= 1e-15


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


@pytest.mark.parametrize(
    "weights", [np.ones(1), np.ones(3), np.ones((1, 2)), 1.0], ids=["short", "long", "2-D", "scalar"]
)
def test_weights_of_another_shape(weights):
    shape = np.shape(weights)
    with pytest.raises(ShapeError) as caught:
        make_distribution("dangling", weights, 2, None)
    wanted = f"dangling has shape {shape} but the matrix has 2 vertices; pass shape (2,) or a mapping"
    assert str(caught.value) == wanted


# --- ids -------------------------------------------------------------------------------------------------------------


def test_positions_come_in_the_order_of_the_ids():
    assert find_positions("p", [7, -5, 2**40], 4, INTEGERS).tolist() == [2, 0, 3]
    assert find_positions("p", ["drossel", "Zug"], 4, STRINGS).tolist() == [2, 0]
    assert find_positions("p", [3, 0], 4, None).tolist() == [3, 0]


@pytest.mark.parametrize("vertex_ids", [None, INTEGERS, STRINGS], ids=["numbers", "integers", "strings"])
def test_no_ids_have_no_positions(vertex_ids):
    assert find_positions("p", [], 4, vertex_ids).tolist() == []


@pytest.mark.parametrize(
    ("ids", "vertex_ids", "message"),
    [
        ([4], None, "p has the id 4, which no vertex has"),
        ([-1], None, "p has the id -1, which no vertex has"),
        ([0, 8], INTEGERS, "p has the id 8, which no vertex has"),
        ([2**41], INTEGERS, f"p has the id {2**41}, which no vertex has"),
        (["drosel"], STRINGS, "p has the id 'drosel', which no vertex has; near: 'drossel'"),
        (["zzz", "Zug"], STRINGS, "p has the id 'zzz', which no vertex has"),
        ([""], STRINGS, "p has the id '', which no vertex has"),
        ([7], STRINGS, "p has the id 7 and the vertices have strings; pass their ids as strings"),
        ([b"Zug"], STRINGS, "p has the id b'Zug' and the vertices have strings; pass their ids as strings"),
    ],
)
def test_unknown_ids(ids, vertex_ids, message):
    with pytest.raises(OptionError) as caught:
        find_positions("p", ids, 4, vertex_ids)
    assert str(caught.value) == message


@pytest.mark.parametrize("vertex_ids", [None, INTEGERS], ids=["numbers", "integers"])
@pytest.mark.parametrize("label", ["0", 0.0, None, 2**70])
def test_ids_that_are_no_integers(label, vertex_ids):
    with pytest.raises(OptionError, match=r"^p must be keyed by the vertices' integer ids \("):
        find_positions("p", [label], 4, vertex_ids)
