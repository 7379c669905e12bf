"""Ranks of a stored transpose are those of the graph with every arc turned round, to the bit."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import mgspmv as mg
from mgspmv.errors import KindError, OptionError
from mgspmv.solvers.pagerank import OutWeights
from tests.support.matrices import GRAPHS
from tests.support.oracles import rank_by_solving

PRECISIONS = ["exact", "float64", "float32"]
FIXED = {"norm": "fixed", "max_iter": 12}


def ingest_both(arcs, reversed_arcs, place=None, **options):
    """A graph with its transpose, and the graph of the arcs turned round."""
    stores = [None if place is None else place / name for name in ("graph", "reversed")]
    graph = mg.ingest(arcs, stores[0], kind="graph", transpose=True, **options)
    return [graph, mg.ingest(reversed_arcs, stores[1], kind="graph", **options)]


def make_hard(name, **options):
    hard = GRAPHS[name]
    ends = [(hard.rows, hard.cols), (hard.cols, hard.rows)]
    return ingest_both(*(sp.coo_array((hard.values, end), shape=hard.shape) for end in ends), **options)


def check_same(A, B, **options):
    """The same bits and changes, and a bound whose last digits hang on the order of the rows."""
    found, wanted = (mg.pagerank(matrix, **options) for matrix in (A, B))
    assert found.values.tobytes() == wanted.values.tobytes()
    assert found.changes == wanted.changes
    assert found.error_bound_l1 == pytest.approx(wanted.error_bound_l1, rel=1e-12)
    assert (found.matrix["reversed"], "reversed" in wanted.matrix) == (True, False)
    return found


@pytest.mark.parametrize("options", [{}, {"duplicates": "keep"}, {"weights": False}], ids=str)
def test_hard_graphs(options):
    for name in GRAPHS:
        A, B = make_hard(name, **options)
        for precision, kernel in zip(PRECISIONS, ("csr-rows", "csr-serial", "csr-rows"), strict=True):
            check_same(A.T.on("cpu", kernel=kernel), B.on("cpu", kernel=kernel), precision=precision, **FIXED)
        check_same(A.T.on("cpu"), B.on("cpu"), weight=False, **FIXED)
        arcs = B.to_scipy().toarray().T
        ranks = mg.pagerank(A.T.on("cpu"), tol=1e-14, max_iter=1000).values
        assert np.abs(ranks - rank_by_solving(arcs)).sum() <= 1e-12, name


WEIGHTS = st.sampled_from([0.0, 0.1, 1 / 3, 2.5, 1e6])
EDGES = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), WEIGHTS), min_size=1, max_size=50)


@settings(max_examples=25)
@given(edges=EDGES, order=st.sampled_from(["none", "rcm", "degree", "dealt"]))
def test_any_graph_in_any_order(edges, order):
    source, target, weights = map(np.array, zip(*edges, strict=True))
    A, B = ingest_both((source, target, weights), (target, source, weights), order=order)
    jump = dict.fromkeys(source.tolist(), 1.0)
    for options in ({}, {"weight": False}, {"personalization": jump, "dangling": "uniform"}):
        check_same(A.T.on("cpu"), B.on("cpu"), **FIXED, **options)


def test_networkx():
    """Names in mappings are those of the graph, and so are those of the ranks."""
    rng = np.random.default_rng(1)
    graph = nx.DiGraph()
    graph.add_weighted_edges_from(
        (f"vertex{i}", f"vertex{j}", float(rng.random())) for i, j in rng.integers(0, 30, (120, 2))
    )
    A, _ = ingest_both(graph, graph.reverse(), order="rcm")
    jump = {"vertex3": 1.0, "vertex7": 2.5}
    wanted = nx.pagerank(graph.reverse(), personalization=jump, tol=1e-14, max_iter=1000)
    found = mg.pagerank(A.T.on("cpu"), personalization=jump, tol=1e-13, max_iter=1000)
    assert max(abs(rank - wanted[name]) for name, rank in found.top(len(wanted))) <= 1e-12
    with pytest.raises(OptionError, match=r"has the id 'vertx3', which no vertex has; near: 'vertex"):
        mg.pagerank(A.T, personalization={"vertx3": 1.0})


def test_it_runs_on_a_cluster(tmp_path, in_process):
    rng = np.random.default_rng(2)
    source, target, weights = *rng.integers(0, 90, (2, 700)), rng.random(700)
    A, B = ingest_both((source, target, weights), (target, source, weights), tmp_path)
    wanted = {weighted: mg.pagerank(B, weight=weighted, **FIXED).values.tobytes() for weighted in (True, False)}
    options = {"norm": "fixed", "max_iter": 12}
    with A.T.distribute(in_process(2)) as D:
        assert (D.is_transpose, D.kind) == (True, "graph")
        for executor in ("supersteps", "tasks"):
            for weighted in (True, False):
                ranks = mg.pagerank(D.on(executor=executor), weight=weighted, **options)
                assert (ranks.values.tobytes(), ranks.matrix["reversed"]) == (wanted[weighted], True)
        assert np.abs(D @ np.ones(90) - A.to_scipy().T @ np.ones(90)).max() <= 1e-12
    ranks = mg.pagerank(A.T.on(in_process(2)), **options)
    assert ranks.values.tobytes() == wanted[True]


@pytest.mark.gpu
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("is_pattern", [False, True])
def test_it_runs_on_a_device(precision, is_pattern):
    rng = np.random.default_rng(3)
    source, target, weights = *rng.integers(0, 3000, (2, 40_000)), rng.random(40_000)
    A, B = ingest_both((source, target, weights), (target, source, weights), weights=False if is_pattern else None)
    options = {"norm": "fixed", "max_iter": 12, "precision": precision}
    for kernel in ("auto", "csr-split"):
        found, wanted = (mg.pagerank(matrix.on("cuda", kernel=kernel), **options) for matrix in (A.T, B))
        assert found.values.tobytes() == wanted.values.tobytes()
    if precision == "exact":
        assert found.values.tobytes() == mg.pagerank(B.on("cpu"), **options).values.tobytes()


def test_what_is_added_up_is_kept_until_it_is_closed():
    A, _ = make_hard("dense")
    R = A.T
    first = R.out_weights.read(True)
    assert R.out_weights.read(True) is first
    assert R.out_weights.read(False).tolist() == [5.0] * 5
    R.close()
    assert R.out_weights.read(True) is not first
    kept, read = OutWeights(R.stored, 1, 4), OutWeights(A.stored, 1, 4)
    assert kept.read(True).tobytes() == first[1:4].tobytes()
    assert read.read(True).tobytes() == A.stored.read_array("out_weight", 1, 4).tobytes()
    assert (kept.nbytes, read.nbytes) == (24, 0)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (
            "stochastic",
            "the transpose of {}, which is stochastic, need not be: its columns need not sum to 1; to rank the "
            "reversed walk, ingest its source with kind='graph' (entry (i, j) is the arc i -> j)",
        ),
        ("matrix", "{} is of kind 'matrix', whose rows need not be in-edges"),
    ],
)
def test_only_graphs_are_reversed(kind, message):
    A = mg.ingest(np.eye(3), kind=kind, transpose=True)
    with pytest.raises(KindError) as caught:
        mg.pagerank(A.T)
    assert str(caught.value).startswith(message.format("the matrix"))
