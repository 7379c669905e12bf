"""What docs/conventions.md says of NetworkX and igraph, asked of themselves."""

from __future__ import annotations

import inspect

import igraph
import networkx as nx
import numpy as np
import pytest
from zarr.storage import MemoryStore

import mgspmv as mg

DIRECTED = [(0, 1), (1, 2), (0, 2), (2, 3), (4, 1), (4, 4)]
"""Vertex 3 has no out-edges, vertex 4 a loop."""
MULTIPLE = [(0, 1), (0, 1), (0, 2), (1, 0), (2, 2), (3, 0)]
WEIGHTS = [1.0, 2.5, 0.5, 3.0, 1.0, 0.25]
PRECISE = {"tol": 1e-14, "max_iter": 1000}


def rank(edges, n, weights=None, ingest=None, **options) -> np.ndarray:
    store = MemoryStore()
    source = np.array(edges).T if weights is None else (*np.array(edges).T, np.array(weights))
    return mg.pagerank(mg.ingest(tuple(source), store, n_vertices=n, **(ingest or {})), **PRECISE, **options).values


def rank_by_networkx(graph: nx.Graph, n: int, **options) -> np.ndarray:
    graph.add_nodes_from(range(n))
    ranks = nx.pagerank(graph, tol=1e-15, max_iter=1000, **options)
    return np.array([ranks[i] for i in range(n)])


def check(ours: np.ndarray, theirs) -> None:
    np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("alpha", [0.85, 0.5])
def test_vertices_without_out_edges(alpha) -> None:
    theirs = igraph.Graph(n=5, edges=DIRECTED, directed=True)
    check(rank(DIRECTED, 5, alpha=alpha), theirs.pagerank(damping=alpha))
    check(rank(DIRECTED, 5, alpha=alpha), rank_by_networkx(nx.DiGraph(DIRECTED), 5, alpha=alpha))


def test_their_rank_goes_to_the_personalization() -> None:
    seeds, reset = {0: 1.0, 3: 2.0}, [1, 0, 0, 2, 0]
    ours = rank(DIRECTED, 5, personalization=seeds)
    check(ours, igraph.Graph(n=5, edges=DIRECTED, directed=True).personalized_pagerank(reset=reset))
    check(ours, rank_by_networkx(nx.DiGraph(DIRECTED), 5, personalization=seeds))
    uniform = rank_by_networkx(nx.DiGraph(DIRECTED), 5, personalization=seeds, dangling=dict.fromkeys(range(5), 1))
    check(rank(DIRECTED, 5, personalization=seeds, dangling="uniform"), uniform)
    assert abs(ours - uniform).max() > 0.01


def test_arcs_that_are_there_twice() -> None:
    ours = rank(MULTIPLE, 4, ingest={"duplicates": "keep"})
    check(ours, igraph.Graph(n=4, edges=MULTIPLE, directed=True).pagerank())
    check(ours, rank_by_networkx(nx.MultiDiGraph(MULTIPLE), 4))
    check(rank(MULTIPLE, 4, ingest={"duplicates": "first"}), rank_by_networkx(nx.DiGraph(MULTIPLE), 4))


def test_weights_of_arcs_that_are_there_twice_add_up() -> None:
    ours = rank(MULTIPLE, 4, WEIGHTS, {"duplicates": "sum"})
    check(ours, igraph.Graph(n=4, edges=MULTIPLE, directed=True).pagerank(weights=WEIGHTS))
    graph = nx.MultiDiGraph()
    graph.add_weighted_edges_from([(i, j, w) for (i, j), w in zip(MULTIPLE, WEIGHTS, strict=True)])
    check(ours, rank_by_networkx(graph, 4))


def test_undirected_graphs_and_their_loops() -> None:
    edges, both = [(0, 1), (1, 2), (2, 2), (2, 3), (0, 1)], {"symmetrize": True, "duplicates": "keep"}
    check(rank(edges, 4, ingest=both), rank_by_networkx(nx.MultiGraph(edges), 4))
    check(rank([*edges, (2, 2)], 4, ingest=both), igraph.Graph(n=4, edges=edges).pagerank())
    check(rank(edges, 4, ingest=both | {"duplicates": "first"}), rank_by_networkx(nx.Graph(edges), 4))


@pytest.mark.parametrize(
    ("call", "defaults", "options"),
    [
        ("katz_centrality", {"alpha": 0.1, "weight": None, "tol": 1e-6, "max_iter": 1000}, {"alpha": 0.05}),
        ("eigenvector_centrality", {"weight": None, "tol": 1e-6, "max_iter": 100}, {}),
    ],
)
def test_centralities_with_the_defaults_of_networkx(call, defaults, options):
    theirs = getattr(nx, call)
    parameters = inspect.signature(theirs).parameters
    assert {name: parameters[name].default for name in defaults} == defaults
    G = nx.gnp_random_graph(30, 0.2, seed=3, directed=True)
    nx.set_edge_attributes(G, {edge: 1.0 + k % 4 for k, edge in enumerate(G.edges)}, "weight")
    A = mg.ingest(G)
    own = {"weight": False, "norm": "l1_per_node", "max_iter": defaults["max_iter"], **options}
    found = getattr(mg, call.replace("katz_centrality", "katz"))(A, **own)
    wanted = theirs(G, **options)
    assert found.values.tolist() == pytest.approx([wanted[node] for node in sorted(G)], rel=1e-12)
