"""Stores as sources of other stores: nothing is lost, and the options of ingest do to them what they do to files."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
from zarr.storage import MemoryStore

import mgspmv as mg
from mgspmv.errors import OptionError, SourceError
from tests.support.pairwise import cover_pairs
from tests.support.shrinking import shrink
from tests.support.stores import check_same

IDS = {"numbers": lambda k: k, "int64": lambda k: 10 * k - 3, "string": lambda k: f"v{k}"}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    stored = {"CHUNK_ELEMENTS": 7, "PIECE_ENTRIES": 7, "PIECE_ROWS": 5}
    shrink(monkeypatch, store__digests={"CHUNK_ELEMENTS": 7}, ingest__stored=stored)


def make_graph(ids="numbers", n=20, m=60, seed=0):
    """Arcs with weights, more than one at some places, and loops."""
    rng = np.random.default_rng(seed)
    graph = nx.MultiDiGraph()
    graph.add_nodes_from(map(IDS[ids], range(n)))
    for i, j in rng.integers(0, n, (m, 2)):
        graph.add_edge(IDS[ids](int(i)), IDS[ids](int(j)), weight=float(rng.choice([0.1, 1 / 3, 2.5])))
    return graph


@cover_pairs(
    ids=list(IDS),
    options={
        "plain": {},
        "pattern": {"weights": False},
        "float32": {"dtype": "float32"},
        "matrix": {"kind": "matrix"},
    },
    duplicates=[None, "keep"],
    order=["none", "rcm"],
)
def test_nothing_is_lost(ids, order, duplicates, options):
    rule = {"duplicates": duplicates}
    wanted = mg.ingest(make_graph(ids), **rule, **options).info
    stored = mg.ingest(make_graph(ids), place := MemoryStore(), **rule, **options, order=order).info
    copied = mg.ingest(place, **rule)
    check_same(copied.info, wanted)
    assert mg.verify(copied) == []
    source = copied.info.provenance["source"]
    assert (source["format"], source["digest"], source["provenance"]) == ("mgspmv", stored.digest, stored.provenance)


def test_rectangles_and_what_has_no_entries():
    for matrix in (sp.csr_array((4, 7)), sp.csr_array((0, 0)), sp.eye_array(3, 9, dtype=np.int64)):
        A = mg.ingest(matrix)
        check_same(mg.ingest(A).info, A.info)


@pytest.mark.parametrize("ids", IDS)
def test_a_graph_made_undirected(ids):
    """As `to_undirected` of NetworkX, which merges an edge and the one that goes back."""
    undirected = mg.ingest(mg.ingest(make_graph(ids), weights=False), symmetrize=True)
    wanted = nx.DiGraph(make_graph(ids)).to_undirected()
    check_same(undirected.info, mg.ingest(wanted, weights=False).info)
    ranks = nx.pagerank(wanted, weight=None, tol=1e-14, max_iter=1000)
    found = mg.pagerank(undirected.on("cpu"), tol=1e-13, max_iter=1000)
    assert dict(found.top(len(ranks))) == pytest.approx(ranks, abs=1e-12)


@pytest.mark.parametrize("kind", ["graph", "matrix"])
def test_the_kind_can_be_another(kind):
    """Entry (i, j) of a matrix is the arc i -> j of the graph, both ways."""
    matrix = sp.random_array((9, 9), density=0.3, rng=np.random.default_rng(1), format="csr")
    other = {"graph": "matrix", "matrix": "graph"}[kind]
    check_same(mg.ingest(mg.ingest(matrix, kind=kind), kind=other).info, mg.ingest(matrix, kind=other).info)


def test_a_store_may_replace_itself(tmp_path):
    before = mg.ingest(make_graph("string"), tmp_path / "g").info
    after = mg.ingest(tmp_path / "g", tmp_path / "g", transpose=True, overwrite=True).info
    check_same(after, before)
    assert (after.has_transpose, len(mg.list_versions(tmp_path / "g"))) == (True, 1)
    assert mg.verify(tmp_path / "g") == []


def test_one_store_is_inserted_into_another():
    one, other = make_graph("string", seed=1), make_graph("string", n=25, seed=2)
    both = nx.MultiDiGraph([*one.edges(data=True), *other.edges(data=True)])
    both.add_nodes_from(other)
    mg.ingest(one, place := MemoryStore(), duplicates="keep")
    info = mg.update(place, insert=mg.ingest(other, duplicates="keep").stored.place).info
    wanted = mg.ingest(both, duplicates="keep")
    assert (info.nnz, info.shape, info.vertex_ids) == (wanted.nnz, wanted.shape, "string")
    deleted = mg.update(place, delete=mg.ingest(other).stored.place).info
    assert deleted.provenance["updates"][-1]["missing"] == 0


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"n_cols": 3},
            OptionError,
            "n_cols= applies to plain CSR arrays in Zarr, but this source is read as a matrix store",
        ),
        (
            {"ids": "int"},
            OptionError,
            "ids= applies to an edge list, but this source is read as a matrix store",
        ),
        ({"format": "csr"}, SourceError, "this is a matrix store of mgspmv"),
        ({"self_loops": "error"}, SourceError, "vertex v[0-9]+ has a self loop"),
        ({"duplicates": "error", "symmetrize": True}, SourceError, "occurs more than once"),
    ],
)
def test_what_is_refused(tmp_path, options, error, message):
    mg.ingest(make_graph("string"), tmp_path / "g")
    with pytest.raises(error, match=message):
        mg.ingest(tmp_path / "g", tmp_path / "h", **options)
    assert not (tmp_path / "h").exists()
