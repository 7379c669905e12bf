"""HITS, Katz, eigenvector centrality and stationary vectors against NetworkX, igraph and dense algebra."""

from __future__ import annotations

import math

import igraph
import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
from scipy.sparse.linalg import eigs

import mgspmv as mg
from mgspmv.api.centrality import Hits
from mgspmv.errors import ConvergenceError, DanglingError, KindError, OptionError, ShapeError
from mgspmv.model import Status

SURE = {"tol": 1e-13, "max_iter": 2000}


def store_graph(source, store=None, **options):
    return mg.ingest(source, store, **{"kind": "graph", "transpose": True, **options})


def make_graph(n=40, seed=3, density=0.15):
    """A strongly connected graph with weights."""
    rng = np.random.default_rng(seed)
    G = nx.gnp_random_graph(n, density, seed=seed, directed=True)
    nx.add_cycle(G, range(n))
    nx.set_edge_attributes(
        G, {edge: float(w) for edge, w in zip(G.edges, rng.random(len(G.edges)) + 0.5, strict=True)}, "weight"
    )
    return G


def in_order(ranks, n):
    return np.array([ranks[k] for k in range(n)])


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    G = make_graph()
    return G, store_graph(G, tmp_path_factory.mktemp("graph") / "g.zarr")


@pytest.fixture(scope="module", params=["none", "degree"])
def renumbered(request):
    G = make_graph()
    return G, store_graph(G, order=request.param)


@pytest.mark.parametrize("normalized", [True, False])
def test_hits_as_networkx(renumbered, normalized):
    G, A = renumbered
    hubs, authorities = mg.hits(A, normalized=normalized, **SURE)
    wanted = nx.hits(G, tol=0, normalized=normalized)
    for solution, found in zip((hubs, authorities), wanted, strict=True):
        np.testing.assert_allclose(solution.values, np.abs(in_order(found, 40)), rtol=1e-10)
        assert solution.status is Status.CONVERGED
        assert solution.options["normalized"] is normalized
    assert (hubs.options["method"], authorities.options["method"]) == ("HITS hubs", "HITS authorities")
    assert hubs.changes == authorities.changes


def test_hits_as_igraph(graph):
    G, A = graph
    other = igraph.Graph(n=40, edges=list(G.edges), directed=True)
    weights = list(nx.get_edge_attributes(G, "weight").values())
    for w, options in ((weights, {}), (None, {"weight": False})):
        hubs, authorities = mg.hits(A, **options, **SURE)
        np.testing.assert_allclose(hubs.values / hubs.values.max(), other.hub_score(weights=w), rtol=1e-8)
        np.testing.assert_allclose(
            authorities.values / authorities.values.max(), other.authority_score(weights=w), rtol=1e-8
        )


def test_hits_as_a_table(graph):
    _, A = graph
    found = mg.hits(A)
    hubs, authorities = found
    assert (hubs, authorities) == (found.hubs, found.authorities)
    wanted = [(label, hubs[label], authorities[label]) for label in hubs.ids.tolist()]
    assert found.to_polars().rows() == wanted
    assert found.to_arrow().column_names == ["id", "hub", "authority"]
    table = found.to_pandas(sort=True)
    assert table["id"][0] == authorities.top(1)[0][0]
    assert sorted(table.itertuples(index=False, name=None)) == wanted


def test_hits_start():
    """Two components alike: what is found depends on the start."""
    A = store_graph((np.array([0, 2]), np.array([1, 3])))
    assert mg.hits(A).authorities.values.tolist() == [0, 0.5, 0, 0.5]
    assert mg.hits(A, nstart={1: 3.0, 3: 1.0}).authorities.values.tolist() == [0, 0.75, 0, 0.25]
    assert mg.hits(A, nstart=np.array([0, 3, 0, 1])).hubs.values.tolist() == [0.75, 0, 0.25, 0]


def test_hits_need_the_transpose(in_process, graph, tmp_path):
    with pytest.raises(KindError, match=r"pass transpose=True to ingest"):
        mg.hits(store_graph(make_graph(), transpose=False))
    _, A = graph
    with pytest.raises(OptionError, match="transpose= is for a distributed matrix"):
        mg.hits(A, transpose=A.T)
    wanted, client = mg.hits(A, tol=1e-8), in_process(3)
    with A.distribute(client) as D, A.T.distribute(client) as DT:
        with pytest.raises(KindError, match=r"HITS needs the transpose on the cluster: distribute A\.T"):
            mg.hits(D)
        with pytest.raises(OptionError, match="transpose must be that of"):
            mg.hits(D, transpose=D)
        found = mg.hits(D, transpose=DT, tol=1e-8)
    once = mg.hits(A.on(client), tol=1e-8)
    for own, other, third in zip(wanted, found, once, strict=True):
        assert other.digest() == third.digest()
        np.testing.assert_allclose(other.values, own.values, rtol=1e-13)


def test_hits_without_convergence(graph):
    _, A = graph
    with pytest.raises(ConvergenceError, match=r"^HITS did not converge: L1 change .* after 2 iterations") as e:
        mg.hits(A, max_iter=2)
    assert isinstance(e.value.solution, Hits)
    kept = mg.hits(A, max_iter=2, throw=False)
    assert [s.digest() for s in kept] == [s.digest() for s in e.value.solution]
    assert kept.hubs.status is Status.MAX_ITER


@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("weight", [None, "weight"])
def test_katz_as_networkx(renumbered, weight, normalized):
    G, A = renumbered
    beta = {k: 1.0 + k % 3 for k in range(40)}
    options = {"alpha": 0.05, "normalized": normalized}
    for given in (1.0, 0.3, beta, np.array(list(beta.values()))):
        wanted = nx.katz_centrality_numpy(
            G, beta=beta if isinstance(given, np.ndarray) else given, weight=weight, **options
        )
        solution = mg.katz(A, beta=given, weight=weight is not None, **options, **SURE)
        np.testing.assert_allclose(solution.values, in_order(wanted, 40), rtol=1e-11)
    assert solution.options["beta"] == "vector"
    reversed_ = mg.katz(A.T, weight=weight is not None, **options, **SURE)
    wanted = nx.katz_centrality_numpy(G.reverse(), weight=weight, **options)
    np.testing.assert_allclose(reversed_.values, in_order(wanted, 40), rtol=1e-11)


@pytest.mark.parametrize(
    ("alpha", "status", "end"), [(0.9, "non_finite", "NaN or infinite values"), (0.2, "max_iter", "L1 change")]
)
def test_katz_with_too_large_alpha(graph, alpha, status, end):
    _, A = graph
    with pytest.raises(
        ConvergenceError, match=rf"^Katz centrality did not converge: {end} .*alpha must be below 1"
    ) as e:
        mg.katz(A, alpha=alpha, max_iter=1000 if status == "non_finite" else 20)
    assert e.value.solution.status == status


def test_katz_refuses(graph):
    _, A = graph
    for wrong, message in (
        ({"alpha": math.nan}, "alpha must be a finite number, not nan"),
        ({"alpha": "small"}, "alpha must be a finite number, not 'small'"),
        ({"beta": math.inf}, "beta must be a finite number, not inf"),
        ({"beta": "foo"}, "beta must be a vector over the vertices, not 'foo'"),
        ({"beta": {99: 1.0}}, "beta has the id 99, which no vertex has"),
    ):
        with pytest.raises(OptionError, match=message):
            mg.katz(A, **wrong)
    with pytest.raises(ShapeError, match=r"beta has shape \(2,\)"):
        mg.katz(A, beta=np.array([1, 2]))
    with pytest.raises(TypeError, match=r"katz\(\) has no argument damping=; pass alpha="):
        mg.katz(A, damping=0.5)
    for wrong in ("color", "normalize"):
        with pytest.raises(TypeError, match=rf"^katz\(\) got an unexpected keyword argument '{wrong}'"):
            mg.katz(A, **{wrong: 1})


@pytest.mark.parametrize("weight", [None, "weight"])
def test_eigenvector_centrality_as_networkx(renumbered, weight):
    G, A = renumbered
    solution = mg.eigenvector_centrality(A, weight=weight is not None, **SURE)
    np.testing.assert_allclose(solution.values, in_order(nx.eigenvector_centrality_numpy(G, weight), 40), rtol=1e-10)
    turned = mg.eigenvector_centrality(A.T, weight=weight is not None, **SURE)
    wanted = nx.eigenvector_centrality_numpy(G.reverse(), weight)
    np.testing.assert_allclose(turned.values, in_order(wanted, 40), rtol=1e-10)


def test_eigenvector_centrality_as_igraph(graph):
    G, A = graph
    other = igraph.Graph(n=40, edges=list(G.edges), directed=True)
    weights = list(nx.get_edge_attributes(G, "weight").values())
    wanted = other.eigenvector_centrality(weights=weights)
    found = mg.eigenvector_centrality(A, **SURE).values
    np.testing.assert_allclose(found / found.max(), wanted, rtol=1e-8)


def test_eigenvector_centrality_makes_the_iterations_of_networkx(graph):
    G, A = graph
    start = {k: 1.0 + k for k in range(40)}
    solution = mg.eigenvector_centrality(A, norm="l1_per_node", nstart=start)
    wanted = nx.eigenvector_centrality(G, weight="weight", nstart=start, max_iter=solution.iterations)
    np.testing.assert_allclose(solution.values, in_order(wanted, 40), rtol=1e-12)
    with pytest.raises(nx.PowerIterationFailedConvergence):
        nx.eigenvector_centrality(G, weight="weight", nstart=start, max_iter=solution.iterations - 1)


def test_eigenvector_centrality_refuses(graph):
    _, A = graph
    for zero in (np.zeros(40), {0: 1.0, 1: -1.0}):
        with pytest.raises(OptionError, match="nstart sums to 0"):
            mg.eigenvector_centrality(A, nstart=zero)
    with pytest.raises(ConvergenceError, match=r"^eigenvector centrality did not converge: .* after 1 iteration "):
        mg.eigenvector_centrality(A, max_iter=1)


@pytest.mark.parametrize("name", ["graphs/wiki-Vote.txt.gz", "graphs/polblogs.txt.gz"])
def test_real_graphs(name, ingested):
    A = ingested(name, transpose=True)
    own = A.to_scipy()
    value, vector = eigs(own, k=1, which="LR", v0=np.ones(A.shape[0]))
    wanted = np.abs(vector[:, 0].real)
    found = mg.eigenvector_centrality(A, **SURE).values
    assert np.abs(found - wanted / np.linalg.norm(wanted)).max() <= 1e-9
    alpha = 0.5 / value[0].real
    katz = mg.katz(A, alpha=alpha, normalized=False, **SURE).values
    assert np.abs(katz - alpha * (own @ katz) - 1).max() <= 1e-12
    hubs, authorities = mg.hits(A, tol=1e-13, max_iter=5000)
    again = own @ (own.T @ authorities.values)
    assert np.abs(again / again.sum() - authorities.values).max() <= 1e-12
    back = own.T @ authorities.values
    assert np.abs(back / back.sum() - hubs.values).max() <= 1e-12


def make_chain(n=30, seed=0):
    steps = np.random.default_rng(seed).random((n, n))
    return steps / steps.sum(axis=0)


def store_chain(steps, **options):
    return store_graph(steps, kind="stochastic", **options)


@pytest.mark.parametrize("order", ["none", "dealt"])
@pytest.mark.parametrize("lazy", [0.0, 0.3])
def test_stationary(order, lazy):
    steps = make_chain()
    solution = mg.stationary(store_chain(steps, order=order), lazy=lazy, **SURE)
    values, vectors = np.linalg.eig(steps)
    wanted = vectors[:, np.argmax(values.real)].real
    np.testing.assert_allclose(solution.values, wanted / wanted.sum(), rtol=1e-11)
    assert abs(solution.values.sum() - 1) <= 1e-14
    assert solution.options["lazy"] == lazy


def test_periodic_chain():
    A = store_chain(np.array([[0, 0, 1.0], [1, 0, 0], [0, 1, 0]]))
    with pytest.raises(ConvergenceError, match=r"^stationary vector did not converge: L1 .* periodic: pass lazy=0\.5"):
        mg.stationary(A, nstart={0: 1.0})
    lazy = mg.stationary(A, nstart={0: 1.0}, lazy=0.5, **SURE)
    np.testing.assert_allclose(lazy.values, [1 / 3] * 3, rtol=1e-12)
    with pytest.raises(ConvergenceError, match=r"\. Increase max_iter= or tol=$"):
        mg.stationary(A, nstart={0: 1.0}, lazy=0.5, max_iter=2)


def test_stationary_refuses():
    chain = store_chain(make_chain(3))
    for wrong, message in (
        ({"lazy": 1.0}, "lazy must be at least 0 and less than 1, not 1.0"),
        ({"lazy": None}, "lazy must be a finite number, not None"),
        ({"weight": False}, "a stochastic matrix needs its values"),
        ({"nstart": np.zeros(3)}, "nstart must not be negative, nor 0 everywhere"),
        ({"nstart": np.array([1, -1, 1])}, "nstart must not be negative"),
    ):
        with pytest.raises(OptionError, match=message):
            mg.stationary(chain, **wrong)
    with pytest.raises(KindError, match=r"is of kind 'graph', but a stationary vector .* kind='stochastic'"):
        mg.stationary(store_graph(nx.path_graph(3)))
    with pytest.raises(KindError, match="is a transpose"):
        mg.stationary(chain.T)
    with pytest.raises(DanglingError, match=r"^1 of 3 columns are empty, first 1, so the chain has no transition"):
        mg.stationary(store_chain(np.array([[0, 0, 1.0], [1, 0, 0], [0, 0, 0]])))


CALLS = [mg.hits, mg.katz, mg.eigenvector_centrality]


@pytest.mark.parametrize("call", CALLS)
def test_matrices_are_refused(call):
    A = store_graph(np.eye(3), kind="matrix")
    for matrix in (A, A.T):
        with pytest.raises(KindError, match="is of kind 'matrix', whose rows need not be in-edges; for"):
            call(matrix)
    with pytest.raises(OptionError, match="has no rows"):
        call(store_graph(sp.coo_array((0, 0))))


@pytest.mark.gpu
def test_device(graph):
    G, A = graph
    beta = np.arange(40.0)
    for call in (
        lambda k: mg.katz(A.on(k), alpha=0.05, beta=beta, **SURE),
        lambda k: mg.hits(A.on(k), **SURE).hubs,
    ):
        np.testing.assert_allclose(call("cuda").values, call("cpu").values, rtol=1e-9)
    chain = store_chain(make_chain())
    for backend in ("cuda", "cpu"):
        found = mg.stationary(chain.on(backend), lazy=0.25, **SURE).values
        np.testing.assert_allclose(make_chain() @ found, found, rtol=1e-11)
    found = mg.eigenvector_centrality(A.on("cuda"), **SURE).values
    np.testing.assert_allclose(found, in_order(nx.eigenvector_centrality_numpy(G, "weight"), 40), rtol=1e-9)
