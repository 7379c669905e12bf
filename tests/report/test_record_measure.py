"""Distributions of ranks beside what NumPy counts."""

from __future__ import annotations

import json

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import mgspmv as mg
from mgspmv.report.record import (
    POINTS,
    Pairs,
    describe_solution,
    measure_distribution,
)

VALUES = {
    "few": np.array([0.5, 0.2, 0.2, 0.1]),
    "all the same": np.full(1000, 1e-3),
    "a power law": np.random.default_rng(1).pareto(1.2, 20_000) + 1e-9,
    "with zeros": np.concatenate([np.zeros(500), np.random.default_rng(2).random(500)]),
    "float32": np.random.default_rng(3).random(3000).astype(np.float32),
    "negative": np.random.default_rng(4).normal(size=300),
}


def check_distribution(pairs: Pairs, values: np.ndarray) -> None:
    """Each count is that of the ranks from there on, and none is left between the first and the last."""
    finite = values[np.isfinite(values)].astype(np.float64)
    ranks, counts = zip(*pairs, strict=True)
    assert ranks[0] == finite.max()
    assert (ranks[-1], counts[-1]) == (finite.min(), len(finite))
    assert list(counts) == [np.count_nonzero(finite >= rank) for rank in ranks]
    assert list(ranks) == sorted(set(ranks), reverse=True)
    assert list(counts) == sorted(set(counts))
    assert len(pairs) <= POINTS


@pytest.mark.parametrize("name", VALUES)
def test_distribution(name):
    pairs = measure_distribution(VALUES[name])
    check_distribution(pairs, VALUES[name])
    assert [rank for rank, _ in pairs[:5]] == sorted(set(VALUES[name].tolist()))[-1:-6:-1]


@given(
    arrays(np.float64, st.integers(1, 60), elements=st.floats(-1e300, 1e300) | st.sampled_from([0.0, np.inf, np.nan]))
)
def test_distribution_of_anything(values):
    pairs = measure_distribution(values)
    if np.isfinite(values).any():
        check_distribution(pairs, values)
    else:
        assert pairs == []


def test_the_distribution_of_nothing_is_empty():
    assert measure_distribution(np.empty(0)) == []


def test_a_solution_is_described_in_json(tmp_path):
    matrix = mg.ingest(sp.coo_array(np.eye(4, k=1)), tmp_path / "g", kind="graph")
    solution = mg.pagerank(matrix)
    told = json.loads(json.dumps(describe_solution(solution, 2), allow_nan=False))
    assert told["top"] == [[name, rank] for name, rank in solution.top(2)]
    assert told["result"]["iterations"] == len(told["result"]["changes"])
    assert told["summary"]["n"] == 4
    assert [tuple(pair) for pair in told["distribution"]] == measure_distribution(solution.values)
    assert (told["options"], told["matrix"], told["memory"]) == (
        solution.options,
        solution.matrix | {"shape": [4, 4]},
        solution.memory,
    )
    assert "options" not in told["result"]
