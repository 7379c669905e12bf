"""Parallel edges and entries that come again count alike on each path of the same object."""

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp

import mgspmv as mg

CLOSE = {"tol": 1e-13, "max_iter": 1000}


def make_graph(kind, *, weighted, loops, seed):
    """Twelve nodes, of whose edges many are parallel.

    Parameters
    ----------
    weighted : the part of the edges that have a weight
    """
    rng = np.random.default_rng(seed)
    graph = kind()
    graph.add_nodes_from(range(12))
    for i, j in rng.integers(0, 12, (60, 2)).tolist():
        if i != j or loops:
            graph.add_edge(i, j, **({"weight": float(rng.integers(1, 9))} if rng.random() < weighted else {}))
    graph.add_edge(0, 1)
    graph.add_edge(0, 1)
    return graph


CASES = [
    (kind, weighted, loops)
    for kind in (nx.MultiDiGraph, nx.MultiGraph, nx.DiGraph, nx.Graph)
    for weighted in (0.0, 0.5, 1.0)
    for loops in (False, True)
]


@pytest.mark.parametrize(("kind", "weighted", "loops"), CASES)
def test_ranks_are_those_of_networkx_on_each_path(kind, weighted, loops):
    graph = make_graph(kind, weighted=weighted, loops=loops, seed=7)
    wanted = nx.pagerank(graph, backend="networkx", tol=1e-14, max_iter=1000)
    through_backend = nx.pagerank(graph, backend="mgspmv", tol=1e-14, max_iter=1000)
    with mg.ingest(graph) as matrix:
        ranks = mg.pagerank(matrix, **CLOSE).values
    for node in graph:
        assert abs(ranks[node] - wanted[node]) < 1e-11
        assert abs(through_backend[node] - wanted[node]) < 1e-11


def test_how_far_they_would_be_apart():
    """The case is one in which it matters."""
    graph = nx.MultiDiGraph([(0, 1)] * 9 + [(0, 2), (1, 0), (2, 0)])
    wanted = list(nx.pagerank(graph, backend="networkx").values())
    with mg.ingest(graph) as one, mg.ingest(graph, duplicates="first") as other:
        assert np.abs(mg.pagerank(one).values - wanted).max() < 1e-5
        assert np.abs(mg.pagerank(other).values - wanted).max() > 0.1


RULES = {
    "default": ({}, [3.0, 1.0], "sum"),
    "sum": ({"duplicates": "sum"}, [3.0, 1.0], "sum"),
    "float32": ({"dtype": "float32"}, [3.0, 1.0], "sum"),
    "first": ({"duplicates": "first"}, None, "first"),
    "keep": ({"duplicates": "keep"}, None, "keep"),
    "pattern": ({"weights": False}, None, "first"),
}


@pytest.mark.parametrize(("options", "values", "rule"), RULES.values(), ids=list(RULES))
def test_rules_for_parallel_edges_without_weights(options, values, rule):
    graph = nx.MultiDiGraph([(1, 0), (1, 0), (1, 0), (0, 1)])
    with mg.ingest(graph, **options) as matrix:
        info, report = matrix.info, matrix.ingest_report
        assert (info.duplicates, report.duplicates, report.n_rows) == (rule, rule, 4)
        assert report.n_merged == (0 if rule == "keep" else 2)
        data = matrix.to_scipy().data.tolist()
    if values is None:
        assert info.dtype is None
    else:
        assert (info.dtype, data) == (options.get("dtype", "float64"), values)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64, np.bool_])
def test_entries_that_come_again_in_scipy(dtype):
    """SciPy adds them up, and True and True are True."""
    i, j = np.array([0, 0, 1, 0]), np.array([1, 1, 0, 2])
    values = np.array([1, 1, 1, 0] if dtype == np.bool_ else [2, 3, 4, 5]).astype(dtype)
    coo = sp.coo_array((values, (i, j)), shape=(2, 3))
    with mg.ingest(coo) as matrix:
        assert matrix.to_scipy().toarray().tolist() == coo.toarray().astype(matrix.dtype or float).tolist()
        assert matrix.ingest_report.n_merged == 1


def test_arrays_and_tables_without_weights_merge_and_say_so():
    columns = np.array([0, 0, 1]), np.array([1, 1, 0])
    with mg.ingest(columns) as matrix:
        assert (matrix.nnz, matrix.ingest_report.n_merged, matrix.ingest_report.duplicates) == (2, 1, "first")
