"""Personalisations of many vectors, as users give them."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse as sp

from mgspmv.errors import OptionError, ShapeError
from mgspmv.solvers.vectors import make_distribution, make_queries

IDS = np.array([10, 20, 30, 40])
NAMES = np.array(["amsel", "drossel", "fink", "star"], dtype=object)


def read(given, *, alphas=(0.85,), n=4, ids=None, order=None):
    """Label, damping and p of each vector, whole."""
    found = []
    for q in make_queries(given, alphas, n, ids, order):
        p = np.full(n, q.base)
        p[q.rows] = q.weights
        assert q.rows.dtype == np.int64
        assert (np.diff(q.rows) > 0).all()
        found.append((q.label, q.alpha, p.tolist()))
    return found


WANTED = [[0.25, 0.75, 0.0, 0.0], [0.0, 0.0, 0.5, 0.5], [0.0, 0.0, 0.0, 1.0]]


@pytest.mark.parametrize(
    "given",
    [
        [{10: 1, 20: 3}, [40, 30], 40],
        ({20: 3.0, 10: 1.0}, (30, 40), {40: 7}),
        [np.array([1, 3, 0, 0]), {30, 40}, np.int64(40)],
        [{10: 1, 20: 3, 40: 0}, pd.Index([30, 40]), [40]],
        sp.csr_array(np.array(WANTED)),
        sp.coo_array(([1, 1, 2, 5, 5, 2], ([0, 0, 0, 1, 1, 2], [0, 1, 1, 3, 2, 3]))),
        np.array([[1, 3, 0, 0], [0, 0, 1, 1], [0, 0, 0, 9]]),
        pd.DataFrame({"vector": [0, 0, 2, 1, 1], "vertex": [10, 20, 40, 40, 30], "weight": [1.0, 3, 1, 2, 2]}),
    ],
    ids=["mixed", "tuples", "sets", "arrays", "csr", "coo", "dense", "table"],
)
def test_vectors_are_told_in_many_ways(given):
    found = read(given, ids=IDS)
    assert [p for _, _, p in sorted(found)] == WANTED
    assert sorted(label for label, _, _ in found) == [0, 1, 2]


def test_names_are_kept():
    given = {"b": ["fink", "star"], "a": "amsel", "c": {"star": 2, "amsel": 6}, "d": None}
    assert read(given, ids=NAMES) == [
        ("b", 0.85, [0, 0, 0.5, 0.5]),
        ("a", 0.85, [1, 0, 0, 0]),
        ("c", 0.85, [0.75, 0, 0, 0.25]),
        ("d", 0.85, [0.25] * 4),
    ]


def test_weights_have_the_bits_that_one_vector_has():
    rng = np.random.default_rng(0)
    for n in (5, 1000):
        dense = rng.random((3, n)) * (rng.random((3, n)) < 0.5)
        for query, row in zip(make_queries(dense, [0.85], n, None), dense, strict=True):
            wanted = make_distribution("personalization", row, n, None)
            assert query.weights.tobytes() == wanted[query.rows].tobytes()
            assert set(np.flatnonzero(wanted)) == set(query.rows)


def test_many_vectors_take_the_memory_of_their_entries():
    given = [[k, 2 * k, 3 * k] for k in range(1, 501)]
    tracemalloc.start()
    try:
        assert len(make_queries(given, [0.85], 10**6, None)) == 500
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 10**6


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ([10, 11], OptionError, "personalization of vector 1 has the id 11, which no vertex has"),
        ([[10], ["10"]], OptionError, "personalization of vector 1 has the id '10' but the ids of"),
        ({"cats": {}}, OptionError, "personalization of vector 'cats' has no vertex; give it at least one, or None"),
        ([[10], []], OptionError, "personalization of vector 1 has no vertex"),
        (np.zeros((1, 4)), OptionError, "personalization of vector 0 has no vertex"),
        ({"cats": {10: 0}}, OptionError, "personalization of vector 'cats' is 0 everywhere"),
        (
            [{10: 1, 20: -2}],
            OptionError,
            "personalization of vector 0 must be finite and not negative; vertex 20 has -2",
        ),
        ([10, {40: math.nan}], OptionError, "personalization of vector 1 must be finite and not negative; vertex 40"),
        (
            np.array([[0, math.inf, 0, 0]]),
            OptionError,
            "personalization of vector 0 must be finite .* vertex 20 has inf",
        ),
        ([{10: "much"}], OptionError, "personalization of vector 0 must hold real numbers"),
        (
            [[0.5, 0.5]],
            OptionError,
            "vector 0 has 0.5 in its list of ids, which is not an id",
        ),
        ([1.5], OptionError, "personalization of vector 0 must be a mapping of ids to weights, ids, or an id, not 1.5"),
        (
            sp.csr_array((2, 3)),
            ShapeError,
            r"shape \(2, 3\) but the matrix has 4 vertices; pass shape \(n_vectors, 4\)",
        ),
        (np.ones((2, 5)), ShapeError, r"shape \(2, 5\) but the matrix has 4 vertices"),
        ([], OptionError, "personalization has no vector; give at least one, or None for a uniform one"),
        ({}, OptionError, "personalization has no vector"),
        ("seeds.csv", OptionError, "a sequence of vectors or a mapping of names .* not 'seeds.csv'"),
        (np.ones(()), OptionError, "a sequence of vectors .* not a ndarray"),
        ({"a": [10], 3: [20]}, OptionError, "the names of vectors must be all strings or all integers; one is 3"),
        ({(1, 2): [10]}, OptionError, r"all strings or all integers; one is \(1, 2\)"),
        (
            pa.table({"vector": [1], "id": [10]}),
            OptionError,
            "the columns vector, id; it needs vector and vertex, and may",
        ),
        (
            pa.table({"vector": [1], "vertex": [10], "rank": [2.0]}),
            OptionError,
            "a column 'rank', and weights are in one named weight; rename it",
        ),
        (np.array([10, 20, 30, 40]), OptionError, "may be one vector by place or 4 vectors of one id each"),
        (pa.table({"vector": [1, None], "vertex": [10, 20]}), OptionError, "1 missing values in vector"),
    ],
)
def test_what_is_refused(given, error, message):
    with pytest.raises(error, match=message):
        read(given, ids=IDS)
