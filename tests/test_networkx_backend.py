"""The backend of NetworkX: its own tests, its values and its errors through its dispatcher, and graphs in stores."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from importlib.metadata import entry_points

import networkx as nx
import numpy as np
import pytest

import mgspmv as mg
from mgspmv import networkx_backend
from mgspmv.errors import ConvergenceError, KindError, OptionError
from mgspmv.networkx_backend import MIN_EDGES, ConvertedGraph, StoredGraph

OWN = {"backend": "mgspmv"}
FUNCTIONS = [nx.pagerank, nx.hits, nx.katz_centrality, nx.eigenvector_centrality]
SIMPLE = [nx.katz_centrality, nx.eigenvector_centrality]


@pytest.fixture(scope="module", autouse=True)
def _installed():
    if not entry_points(group="networkx.backends", name="mgspmv"):
        pytest.fail("the installed mgspmv is no backend of NetworkX yet; install it again, as by pip install -e .")


@pytest.fixture(autouse=True)
def _settings(monkeypatch):
    monkeypatch.setattr(nx.config, "warnings_to_ignore", {"cache"})
    monkeypatch.setattr(nx.config, "fallback_to_nx", False)


COUNTED = """
import collections, json, sys
import networkx, pytest
from mgspmv import networkx_backend

counts = collections.Counter()

def count(name, function):
    def call(*args, **kwargs):
        counts[name] += 1
        return function(*args, **kwargs)
    return call

for name, function in networkx_backend._FUNCTIONS.items():
    setattr(networkx_backend, name, count(name, function))

class Outcomes:
    def pytest_runtest_logreport(self, report):
        if report.when == "call" or report.outcome != "passed":
            counts["xfailed" if hasattr(report, "wasxfail") else report.outcome] += 1

code = pytest.main(sys.argv[1:], plugins=[Outcomes()])
print("\\n" + json.dumps([int(code), counts]))
"""
TESTS = [
    "networkx.algorithms.link_analysis",
    "networkx.algorithms.centrality.tests.test_katz_centrality",
    "networkx.algorithms.centrality.tests.test_eigenvector_centrality",
]


@pytest.mark.slow
def test_networkx_tests_pass(tmp_path):
    """Those of the functions here, in NetworkX's dispatch test mode; what else they call is NetworkX's own."""
    environment = os.environ | {"NETWORKX_TEST_BACKEND": "mgspmv", "NETWORKX_FALLBACK_TO_NX": "True"}
    command = [sys.executable, "-c", COUNTED, "-q", "-p", "no:cacheprovider", "--pyargs", *TESTS]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.stdout, done.stderr
    code, counts = json.loads(done.stdout.splitlines()[-1])
    assert (code, counts.get("failed", 0), counts.get("xfailed", 0)) == (0, 0, 0), done.stdout
    assert counts["passed"] >= 90
    assert counts["pagerank"] >= 15
    assert counts["hits"] >= 4
    assert counts["katz_centrality"] >= 15
    assert counts["eigenvector_centrality"] >= 8


def test_importing_networkx_loads_nothing_heavy_for_the_backend():
    heavy = ["numba", "zarr", "scipy", "numpy", "pyarrow", "dask", "distributed", "fsspec"]
    code = "import networkx, sys; print(networkx.utils.backends.backend_info['mgspmv']['short_summary']); "
    code += f"print('mgspmv.networkx_backend' in sys.modules, [name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["Sparse products on matrices too large for one GPU.", "True []"]


NAMES = [("a", 1), "b", 3, 2.5, frozenset({1}), "ü", -7, "c", b"d", ("a", 2), 10**30, "e"]


def make_graph(kind, seed=0, n_edges=40):
    """Odd names, edges with and without weights of two attributes, and self loops; connected."""
    rng = np.random.default_rng(seed)
    G, n = kind(), len(NAMES)
    G.add_nodes_from(NAMES)
    nx.add_cycle(G, NAMES)
    for i, j in rng.integers(0, n, (n_edges, 2)).tolist():
        G.add_edge(NAMES[i], NAMES[j], weight=round(rng.random() + 0.5, 3), cost=1)
    G.add_edge(NAMES[0], NAMES[0], weight=2.5)
    return G


def check_close(found, wanted, rel=1e-6):
    pairs = zip(found, wanted, strict=True) if isinstance(found, tuple) else [(found, wanted)]
    for own, other in pairs:
        assert list(own) == list(other)
        assert all(type(value) is float for value in own.values())
        assert list(own.values()) == pytest.approx(list(other.values()), rel=rel, abs=1e-12)


@pytest.mark.parametrize("kind", [nx.Graph, nx.DiGraph, nx.MultiGraph, nx.MultiDiGraph])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_values_are_those_of_networkx(function, kind):
    G = make_graph(kind)
    if G.is_multigraph() and function in SIMPLE:
        with pytest.raises(nx.NetworkXNotImplemented):
            function(G, **OWN)
        return
    if function is nx.hits:
        check_close(nx.hits(G, **OWN), nx.hits(G))
        return
    options = {"alpha": 0.05} if function is nx.katz_centrality else {}
    for weight in ("weight", "cost", "colour", None):
        found, wanted = (function(G, weight=weight, **options, **given) for given in (OWN, {}))
        check_close(found, wanted, rel=1e-12)


@pytest.mark.parametrize("function", [nx.pagerank, *SIMPLE], ids=lambda f: f.__name__)
@pytest.mark.parametrize("tol", [1e-3, 1e-6, 1e-9])
def test_iterations_are_those_of_networkx(function, tol):
    G = make_graph(nx.DiGraph, seed=1)
    start = {node: 1.0 + k for k, node in enumerate(NAMES)}
    for options in ({"tol": tol}, {"tol": tol, "nstart": start}):
        needs = []
        for given in ({}, OWN):
            for max_iter in range(1, 300):
                try:
                    function(G, max_iter=max_iter, **options, **given)
                except nx.PowerIterationFailedConvergence:
                    continue
                needs.append(max_iter)
                break
        assert len(needs) == 2
        assert needs[0] == needs[1]


def test_arguments_of_pagerank():
    G = make_graph(nx.DiGraph)
    G.add_edges_from([("dangling", "e"), ("e", "sink")])
    G.remove_edge("dangling", "e")
    some, unknown = {"b": 1, 3: 4.0}, {"b": 2, "nobody": 5, "ü": 1}
    for options in (
        {"alpha": 0.5},
        {"alpha": 0},
        {"personalization": some},
        {"personalization": unknown},
        {"dangling": some},
        {"personalization": some, "dangling": unknown},
        {"nstart": unknown},
        {"tol": 2.0},
        {"tol": 0.05},
    ):
        check_close(nx.pagerank(G, **options, **OWN), nx.pagerank(G, **options), rel=1e-12)
    check_close(
        nx.pagerank(G, 0.7, some, 200, 1e-9, None, None, **OWN), nx.pagerank(G, 0.7, some, 200, 1e-9, None, None)
    )


def test_arguments_of_the_others():
    G = make_graph(nx.DiGraph)
    beta = {node: float(k) for k, node in enumerate(reversed(NAMES))}
    start = {node: float(k - 3) for k, node in enumerate(NAMES)}
    for options in (
        {"beta": beta},
        {"beta": 0.5, "normalized": False},
        {"nstart": start},
        {"beta": 0},
        {"alpha": 0.01, "beta": np.float32(2)},
    ):
        options = {"alpha": 0.05} | options
        check_close(nx.katz_centrality(G, **options, **OWN), nx.katz_centrality(G, **options), rel=1e-9)
    check_close(nx.eigenvector_centrality(G, nstart=start, **OWN), nx.eigenvector_centrality(G, nstart=start), rel=1e-9)
    check_close(nx.hits(G, nstart=beta, **OWN), nx.hits(G))
    found, wanted = nx.hits(G, normalized=False, **OWN), nx.hits(G, normalized=False)
    for own, other in zip(found, wanted, strict=True):
        assert list(own.values()) == pytest.approx([abs(value) for value in other.values()], abs=1e-8)


def test_hits_take_singular_vectors_where_power_iteration_is_slow():
    G = nx.path_graph(60)
    G.add_edge(0, 0)
    with pytest.raises(ConvergenceError):
        mg.hits(networkx_backend.convert_from_nx(G).open(None, transpose=True)[0], tol=1e-8)
    check_close(nx.hits(G, **OWN), nx.hits(G), rel=1e-4)


def test_options_of_mgspmv_are_passed_on():
    G = make_graph(nx.DiGraph)
    single = nx.pagerank(G, precision="float32", **OWN)
    assert all(np.float32(value) == value for value in single.values())
    check_close(single, nx.pagerank(G), rel=1e-4)
    assert nx.katz_centrality(G, 0.05, precision="float64", **OWN) == nx.katz_centrality(G, 0.05, **OWN)
    check_close(nx.hits(G, precision="float64", **OWN), nx.hits(G))
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        nx.pagerank(G, colour="red", **OWN)


def test_negative_weights():
    G = nx.DiGraph()
    G.add_weighted_edges_from([(0, 1, 2.0), (1, 2, 1.0), (2, 0, 1.0), (0, 2, -0.5), (1, 0, 1.0)])
    for function in SIMPLE:
        check_close(function(G, weight="weight", **OWN), function(G, weight="weight"), rel=1e-6)
    check_close(nx.hits(G, **OWN), nx.hits(G))
    check_close(nx.hits(G, max_iter=5, tol=1e-12, **OWN), nx.hits(G))
    check_close(nx.pagerank(G, weight=None, **OWN), nx.pagerank(G, weight=None))
    with pytest.raises(NotImplementedError) as caught:
        nx.pagerank(G, **OWN)
    assert "PageRank needs non-negative weights, but the least is -0.5" in str(caught.value.__cause__)
    nx.config.fallback_to_nx = True
    with nx.config(backend_priority=["mgspmv"]):
        assert nx.pagerank(G) == nx.pagerank(G, backend="networkx")


@pytest.mark.parametrize("given", [{}, OWN], ids=["networkx", "mgspmv"])
def test_ends_are_those_of_networkx(given):
    empty = nx.DiGraph()
    for function in FUNCTIONS:
        with pytest.raises(nx.PowerIterationFailedConvergence, match="within 1 iterations"):
            function(nx.path_graph(60), max_iter=1, **given)
    assert nx.pagerank(empty, **given) == nx.katz_centrality(empty, **given) == {}
    assert nx.hits(empty, **given) == ({}, {})
    with pytest.raises(nx.PowerIterationFailedConvergence):
        nx.katz_centrality(nx.complete_graph(30), 0.9, **given)


@pytest.mark.parametrize("fallback", [False, True], ids=["alone", "with NetworkX"])
def test_errors_of_arguments_are_those_of_networkx_where_it_may_compute(fallback):
    G, zeros, more = make_graph(nx.DiGraph), dict.fromkeys(NAMES, 0), dict.fromkeys(NAMES, 1.0) | {"nobody": 1.0}
    cases = [
        (nx.PowerIterationFailedConvergence, nx.pagerank, {"max_iter": 0}),
        (nx.PowerIterationFailedConvergence, nx.pagerank, {"max_iter": 0, "tol": 1.0}),
        (ZeroDivisionError, nx.pagerank, {"personalization": {"b": 0}}),
        (nx.NetworkXError, nx.eigenvector_centrality, {"nstart": zeros}),
        (ZeroDivisionError, nx.eigenvector_centrality, {"nstart": zeros | {"b": 1, 3: -1}}),
        (nx.NetworkXError, nx.katz_centrality, {"beta": {"b": 1.0}}),
        (nx.NetworkXError, nx.katz_centrality, {"beta": "much"}),
        *((KeyError, function, {"nstart": start}) for function in SIMPLE for start in ({"b": 1.0}, more)),
    ]
    nx.pagerank(G, **OWN)  # converts it, so that the backend is chosen for it
    given = {} if fallback else OWN
    with nx.config(backend_priority=["mgspmv"] if fallback else [], fallback_to_nx=fallback):
        for error, function, options in cases:
            with pytest.raises(error if fallback else NotImplementedError):
                function(G, **options, **given)
        with pytest.raises(nx.NetworkXPointlessConcept if fallback else NotImplementedError):
            nx.eigenvector_centrality(nx.DiGraph(), **given)


def test_what_is_not_computed_here():
    G = make_graph(nx.DiGraph)
    heavy = nx.DiGraph()
    heavy.add_weighted_edges_from([(0, 1, math.inf), (1, 0, 1.0)])
    for call in (
        lambda: nx.pagerank(G, alpha=1.5, **OWN),
        lambda: nx.pagerank(G, tol=0, **OWN),
        lambda: nx.pagerank(G, nstart={"b": -1.0, 3: 2.0}, **OWN),
        lambda: nx.pagerank(G, dangling={"b": 0}, **OWN),
        lambda: nx.katz_centrality(G, tol=-1, **OWN),
        lambda: nx.pagerank(heavy, **OWN),
        lambda: nx.pagerank(G, weight=lambda u, v, d: 1, **OWN),
        lambda: nx.degree_centrality(G, **OWN),
    ):
        with pytest.raises(NotImplementedError):
            call()


def test_which_calls_are_taken():
    small, large = nx.path_graph(3), nx.empty_graph(2)
    large.number_of_edges = lambda: MIN_EDGES
    assert networkx_backend.can_run("pagerank", (small,), {}) is True
    assert networkx_backend.can_run("pagerank", (small,), {"weight": len}) == "weight is a function; name an attribute"
    assert networkx_backend.can_run("pagerank", (small, 0.5, None, 10, 1e-6, None, len), {}) is not True
    assert "fewer than 20,000 edges" in networkx_backend.should_run("pagerank", (small,), {})
    assert networkx_backend.should_run("pagerank", (), {"G": large}) is True
    nx.pagerank(small, **OWN)
    assert networkx_backend.should_run("katz_centrality", (small,), {}) is True


def test_graphs_are_converted_once():
    G = make_graph(nx.DiGraph)
    nx.pagerank(G, **OWN)
    [converted] = G.__networkx_cache__["backends"]["mgspmv"].values()
    assert isinstance(converted, ConvertedGraph)
    nx.hits(G, **OWN)
    unweighted = nx.eigenvector_centrality(G, **OWN)
    assert list(G.__networkx_cache__["backends"]["mgspmv"].values()) == [converted]
    assert set(converted._opened) == {("weight", False), ("weight", True), (None, False)}
    check_close(unweighted, nx.eigenvector_centrality(G), rel=1e-12)
    before = nx.pagerank(G, **OWN)
    G.add_edge("b", "e", weight=50.0)
    check_close(nx.pagerank(G, **OWN), nx.pagerank(G), rel=1e-12)
    assert nx.pagerank(G, **OWN) != before


def test_a_converted_graph_does_not_follow_changes():
    G = make_graph(nx.DiGraph)
    converted, expected = networkx_backend.convert_from_nx(G, edge_attrs={"weight": 1.0}), nx.pagerank(G)
    G.remove_edge(*next(iter(G.edges)))
    G.add_edge("b", "new", weight=50.0)
    check_close(networkx_backend.pagerank(converted), expected, rel=1e-5)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    G = nx.DiGraph()
    rng = np.random.default_rng(0)
    for i, j in rng.integers(0, 20, (80, 2)).tolist():
        G.add_edge(f"v{i:02}", f"v{j:02}", weight=rng.random() + 0.5)
    store = tmp_path_factory.mktemp("stored") / "g.zarr"
    mg.ingest(G, store, transpose=True)
    ordered = nx.DiGraph()
    ordered.add_nodes_from(sorted(G))
    ordered.add_edges_from(G.edges(data=True))
    return ordered, mg.open_matrix(store)


def test_stored_graphs(stored):
    G, A = stored
    wrapped = StoredGraph(A)
    assert (len(wrapped), list(wrapped)) == (20, sorted(G))
    check_close(nx.pagerank(wrapped), nx.pagerank(G), rel=1e-12)
    check_close(nx.pagerank(wrapped, weight=None, **OWN), nx.pagerank(G, weight=None), rel=1e-12)
    check_close(nx.pagerank(wrapped, personalization={"v03": 1}), nx.pagerank(G, personalization={"v03": 1}))
    check_close(nx.hits(wrapped, **OWN), nx.hits(G))
    for function, options in ((nx.katz_centrality, {"alpha": 0.05}), (nx.eigenvector_centrality, {})):
        for weight in ("weight", "colour", None):
            found, wanted = (function(g, weight=weight, **options) for g in (wrapped, G))
            check_close(found, wanted, rel=1e-12)
    renamed = StoredGraph(A, weight="cost")
    check_close(nx.pagerank(renamed, weight="cost"), nx.pagerank(G), rel=1e-12)
    check_close(nx.pagerank(renamed), nx.pagerank(G, weight=None), rel=1e-12)
    unweighted = G.copy()
    nx.set_edge_attributes(unweighted, 1.0, "weight")
    check_close(nx.hits(renamed), nx.hits(unweighted))
    check_close(nx.hits(renamed, max_iter=5, tol=1e-12), nx.hits(unweighted, tol=1e-12), rel=1e-9)


def test_stored_graph_can_be_had_as_networkx(stored):
    G, A = stored
    back = networkx_backend.convert_to_nx(StoredGraph(A))
    assert (type(back), list(back)) == (nx.DiGraph, list(G))
    assert dict(back.edges) == dict(G.edges)
    nx.config.fallback_to_nx = True
    assert nx.in_degree_centrality(StoredGraph(A)) == nx.in_degree_centrality(G)


def test_stored_multigraph_is_one(tmp_path):
    wrapped = StoredGraph(mg.ingest((np.array([0, 0, 1]), np.array([1, 1, 0])), tmp_path / "g.zarr", duplicates="keep"))
    with pytest.raises(nx.NetworkXNotImplemented):
        nx.katz_centrality(wrapped)
    back = networkx_backend.convert_to_nx(wrapped)
    assert sorted(back.edges()) == [(0, 1), (0, 1), (1, 0)]
    check_close(nx.pagerank(wrapped), nx.pagerank(back))


def test_distributed_graphs(stored, in_process):
    G, A = stored
    with A.distribute(client := in_process(3)) as D, A.T.distribute(client) as DT:
        wrapped = StoredGraph(D, transpose=DT)
        assert nx.pagerank(wrapped) == nx.pagerank(StoredGraph(A))
        check_close(nx.hits(wrapped), nx.hits(G))
        check_close(nx.eigenvector_centrality(wrapped), nx.eigenvector_centrality(G))
        with pytest.raises(KindError, match=r"distribute A\.T too"):
            nx.hits(StoredGraph(D))


def test_what_is_no_graph(tmp_path):
    A = mg.ingest(np.eye(3), tmp_path / "m.zarr", kind="matrix", transpose=True)
    for matrix in (A, A.T):
        with pytest.raises(KindError, match="is of kind 'matrix', whose rows need not be in-edges"):
            StoredGraph(matrix)
    with pytest.raises(OptionError, match="expected an opened or a distributed matrix, not a ndarray"):
        StoredGraph(np.eye(3))
