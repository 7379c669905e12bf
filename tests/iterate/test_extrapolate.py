"""Extrapolated runs: the ranks of plain ones, mostly in fewer iterations, and the way back where they lead astray."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

import mgspmv as mg
from mgspmv.errors import OptionError
from mgspmv.iterate import extrapolate
from mgspmv.iterate.extrapolate import find_weights
from mgspmv.kernels.rank_history import mix
from mgspmv.model import Status
from tests.support.oracles import rank_by_solving
from tests.support.reference_data import shared_data


def make_graph(arcs, **options):
    store = zarr.storage.MemoryStore()
    mg.ingest(sp.coo_array(arcs), store, kind="graph", **options)
    return mg.open_matrix(store)


def make_arcs(seed, n=60, density=0.08):
    rng = np.random.default_rng(seed)
    arcs = rng.random((n, n)) * (rng.random((n, n)) < density)
    arcs[rng.permutation(n)[: n // 10]] = 0
    arcs[0, 1] = 1.0
    return arcs


def make_slow(n=40):
    """Two halves that lead nowhere else, from which ranks go slowly to where they stay."""
    arcs = np.zeros((n + 1, n + 1))
    for i in range(n):
        half = i // (n // 2) * (n // 2)
        arcs[i, half + (3 * i + 1) % (n // 2)] = arcs[i, half + (7 * i + 3) % (n // 2)] = 1
    arcs[n, 0] = 1
    return arcs


@given(seed=st.integers(0, 2**32 - 1), alpha=st.sampled_from([0.5, 0.85, 0.95]))
@settings(max_examples=25)
def test_the_ranks_are_those_of_a_linear_system(seed, alpha):
    arcs = make_arcs(seed)
    solution = mg.pagerank(make_graph(arcs), method="extrapolation", alpha=alpha, tol=1e-12, max_iter=2000)
    assert solution.status == Status.CONVERGED
    distance = np.abs(solution.values - rank_by_solving(arcs, alpha=alpha)).sum()
    assert distance <= solution.error_bound_l1 + 1e-13
    assert solution.error_bound_l1 <= 1.1e-12 / (1 - alpha) + 1e-13


@pytest.mark.parametrize("precision", ["exact", "float64", "float32"])
@pytest.mark.parametrize("dangling", [None, "uniform", "drop"])
def test_fewer_iterations_where_changes_lead_somewhere(dangling, precision):
    A = make_graph(make_slow())
    asked = {"dangling": dangling, "precision": precision, "tol": 1e-5 if precision == "float32" else 1e-10}
    plain = mg.pagerank(A, max_iter=1000, **asked)
    solution = mg.pagerank(A, method="extrapolation", max_iter=1000, **asked)
    assert solution.iterations < 0.8 * plain.iterations
    assert np.abs(solution.values - plain.values).sum() <= solution.error_bound_l1 + plain.error_bound_l1
    assert solution.values.dtype == plain.values.dtype


def test_personalized_weighted_ranks():
    arcs, p = make_arcs(3), np.arange(60.0)
    solution = mg.pagerank(make_graph(arcs), method="extrapolation", personalization=p, tol=1e-12, max_iter=500)
    assert np.abs(solution.values - rank_by_solving(arcs, p=p)).sum() < 1e-11


@pytest.mark.parametrize("precision", ["exact", "float64", "float32"])
def test_blocks_and_threads_do_not_change_a_bit(precision):
    A = make_graph(make_slow())
    digests = {
        mg.pagerank(A.load(n), method="extrapolation", precision=precision, threads=threads, max_iter=500).digest()
        for n, threads in ((1, 1), (3, 2), (41, 2))
    }
    assert len(digests) == 1


def test_an_extrapolation_that_makes_it_worse_is_taken_back(monkeypatch):
    A = make_graph(make_arcs(1))
    plain = mg.pagerank(A, tol=1e-10, max_iter=300)
    asked = []

    def mislead(*history):
        asked.append(history)
        return 50.0, -70.0, 21.0

    monkeypatch.setattr(extrapolate, "find_weights", mislead)
    solution = mg.pagerank(A, method="extrapolation", tol=1e-10, max_iter=300)
    assert 2 <= len(asked) <= 4  # after 10 iterations, after 20, after 40
    assert solution.status == Status.CONVERGED
    assert plain.iterations < solution.iterations <= plain.iterations + len(asked)
    assert np.abs(solution.values - plain.values).sum() <= solution.error_bound_l1 + plain.error_bound_l1


def test_weights_find_where_two_ways_lead():
    rng = np.random.default_rng(2)
    end, one, other = rng.random((3, 50))
    history = [end + 0.8**t * one + (-0.5) ** t * other for t in range(4)]
    weights = find_weights(*history)
    assert sum(weights) == pytest.approx(1)
    found = sum(g * x for g, x in zip(weights, history[1:], strict=True))
    np.testing.assert_allclose(found, end, atol=1e-10)
    np.testing.assert_allclose(mix(*history[1:], *weights), end / max(1, end.sum()), rtol=1e-8)


def test_changes_that_are_alike_give_no_weights():
    x = np.arange(5.0)
    assert find_weights(x, x, x, x) is None
    assert find_weights(x, 2 * x, 3 * x, 4 * x) is None


def test_what_is_mixed_is_not_negative():
    mixed = mix(np.array([1.0, 0.0]), np.array([0.0, 1.0]), np.array([0.5, 0.5]), -1.0, 0.0, 2.0)
    np.testing.assert_array_equal(mixed, [0.0, 1.0])
    mixed = mix(np.array([0.2, 0.1]), np.array([0.0, 0.0]), np.array([0.05, 0.3]), -1.0, 0.0, 2.0)
    np.testing.assert_allclose(mixed, [0.0, 0.4])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "jacobi"}, "method must be one of 'power', 'extrapolation', not 'jacobi'"),
        ({"method": "extrapolation", "stop": "topk:3"}, "method='extrapolation' does not go with stop='topk:3'"),
        ({"method": "extrapolation", "tol_mode": "fixed"}, "method='extrapolation' does not go with tol_mode='fixed'"),
    ],
)
def test_options_that_make_no_sense(options, message):
    with pytest.raises(OptionError, match=message):
        mg.pagerank(make_graph(make_arcs(0)), **options)


def test_it_is_for_this_process_on_the_host():
    A = make_graph(make_arcs(0))
    with pytest.raises(
        OptionError, match=r"computes in this process on the host, not on a cluster; pass method='power'"
    ):
        mg.pagerank(A, method="extrapolation", client="tcp://127.0.0.1:1")


@pytest.mark.parametrize(
    ("name", "least"), [("graphs/pgp-strong-2009.txt.gz", 15), ("graphs/debian-bookworm-deps.txt.gz", 10)]
)
def test_real_graphs_take_fewer_iterations(ingested, name, least):
    shared_data(name)
    A = ingested(name)
    plain = mg.pagerank(A, tol=1e-10, max_iter=300)
    solution = mg.pagerank(A, tol=1e-10, max_iter=300, method="extrapolation")
    assert plain.iterations - solution.iterations > least
    assert np.abs(solution.values - plain.values).sum() <= solution.error_bound_l1 + plain.error_bound_l1
