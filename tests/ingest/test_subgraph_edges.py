"""Subgraphs by masks over edges, compared with ingesting the edges that stay, and with NetworkX and SciPy."""

from __future__ import annotations

import math
import tracemalloc

import networkx as nx
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
import scipy.io
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.storage import MemoryStore

import mgspmv as mg
from mgspmv.errors import CapacityError, OptionError, ShapeError, SourceError, StoreNotFoundError
from mgspmv.ingest.budget import MemoryBudget
from mgspmv.ingest.entries import sort_source
from mgspmv.ingest.subgraph import LABEL_BYTES, PLACE_BYTES, choose_edges, find_places, open_edges, write_subgraph
from mgspmv.model import IngestOptions
from mgspmv.store.read import open_store
from tests.support.pairwise import cover_pairs
from tests.support.parts import IDS, SMALL, N, cut, find_left, list_vertices, make_table
from tests.support.shrinking import shrink
from tests.support.stores import WatchingStore, check_same, make_scipy


@pytest.fixture
def small(monkeypatch):
    shrink(monkeypatch, **SMALL)


def make_mask(edges, ids, n=N):
    """Of pairs of numbers, in the order of the store's vertices, with a stored 0 where there is room for one."""
    numbers = {IDS[ids](k): place for place, k in enumerate(sorted(range(n), key=IDS[ids]))}
    rows, cols = ([numbers[IDS[ids](k)] for k in side] for side in zip(*edges, strict=True)) if edges else ([], [])
    free = next((i, j) for i in range(n) for j in range(n) if (i, j) not in {*zip(rows, cols, strict=True)})
    values = [1.0] * len(rows) + [0.0]
    return sp.coo_array((values, ([*rows, free[0]], [*cols, free[1]])), shape=(n, n))


WAYS = {
    "pairs": lambda edges, ids: [(IDS[ids](i), IDS[ids](j)) for i, j in edges],
    "arrays": lambda edges, ids: tuple(
        np.array([IDS[ids](edge[side]) for edge in edges], object if ids == "string" else np.int64) for side in (0, 1)
    ),
    "mask": make_mask,
}


@st.composite
def graphs(draw):
    """A table of arcs, some of them, which vertices stay, a bound, and how it is ingested."""
    ends = st.integers(0, N - 1)
    dtype = draw(st.sampled_from([None, np.float64, np.int64]))
    arcs = draw(st.lists(st.tuples(ends, ends, st.sampled_from([1, 2, 5])), min_size=1, max_size=60))
    picked = [(i, j) for i, j, _ in draw(st.lists(st.sampled_from(arcs), max_size=30))]
    kept = draw(st.none() | st.sets(ends, min_size=1))
    low = None if dtype is None else draw(st.sampled_from([None, 2]))
    options = {
        "duplicates": draw(st.sampled_from(["first", "keep", *([] if dtype is None else ["sum"])])),
        "transpose": draw(st.booleans()),
        "order": draw(st.sampled_from(["none", "rcm", "dealt"])),
    }
    return dtype, arcs, picked, kept, low, options


@pytest.mark.fuzz
@settings(max_examples=20)
@given(case=graphs(), ids=st.sampled_from([*IDS]), way=st.sampled_from([*WAYS]), stays=st.booleans())
def test_a_part_is_what_ingesting_it_makes(small, tmp_path, case, ids, way, stays):
    dtype, arcs, picked, kept, low, options = case
    place = mg.ingest(make_table(arcs, ids, dtype), vertices=list_vertices(tmp_path / "all", range(N), ids), **options)
    asked = {"edges" if stays else "without_edges": WAYS[way](picked, ids), "min_weight": low}
    vertices = None if kept is None else [IDS[ids](k) for k in kept]
    A = cut(place, vertices=vertices, **asked)
    info = A.info
    assert (info.has_transpose, info.order or "none") == (options["transpose"], options["order"])
    if options["transpose"]:
        assert (A.T.to_scipy() != A.to_scipy().T).nnz == 0

    def is_left(source, target, value):
        is_inside = (low is None or value >= low) and (kept is None or {source, target} <= kept)
        return is_inside and ((source, target) in picked) == stays

    left = find_left(place, ids, is_left)
    assert info.nnz == len(left)
    if info.order is not None:
        info = mg.reorder(A, method="none").info
    staying = list_vertices(tmp_path / "kept", range(N) if kept is None else kept, ids)
    options = {"duplicates": options["duplicates"]}
    check_same(info, mg.ingest(make_table(left, ids, dtype), vertices=staying, **options).info)


def test_as_networkx_has_it(small):
    """But for vertices: all stay, unless they are named too."""
    graph = nx.gnp_random_graph(20, 0.3, seed=1, directed=True)
    chosen = sorted(graph.edges)[::3]
    place = mg.ingest(graph, transpose=True)
    induced = graph.edge_subgraph(chosen)
    info = cut(place, edges=chosen, vertices=list(induced)).info
    check_same(info, mg.ingest(induced).info)
    for edges in (
        induced.edges,
        induced.edges(),
        {*chosen},
        dict.fromkeys(chosen),
        np.array(chosen),
        pd.DataFrame(chosen),
    ):
        assert cut(place, edges=edges, vertices=list(induced)).info.digest == info.digest
    left = graph.copy()
    left.remove_edges_from([*chosen, (0, 0)])  # which is not there
    check_same(cut(place, without_edges=[*chosen, (0, 0)]).info, mg.ingest(left).info)


def test_edges_of_undirected_graphs_are_meant_both_ways(small):
    graph = nx.gnp_random_graph(20, 0.3, seed=2)
    chosen = sorted(graph.edges)[::3]
    place = mg.ingest(graph)
    wanted = nx.Graph(chosen)
    wanted.add_nodes_from(graph)
    check_same(cut(place, edges=chosen, symmetrize=True).info, mg.ingest(wanted).info)
    mask = make_mask(chosen, "numbers", 20)
    check_same(cut(place, edges=mask, symmetrize=True).info, mg.ingest(wanted).info)
    assert cut(place, edges=chosen).info.nnz == len(chosen)
    left = graph.copy()
    left.remove_edges_from(chosen)
    made = cut(place, without_edges=chosen, symmetrize=True).info
    check_same(made, mg.ingest(left).info)
    assert made.provenance["subgraphs"][-1]["symmetrize"] is True


@pytest.mark.parametrize("shape", [(20, 20), (3, 60), (60, 3)], ids=str)
def test_a_matrix_has_rows_and_columns(small, shape):
    """Compared with SciPy's product of matrix and mask."""
    matrix, mask = make_scipy(*shape), make_scipy(*shape, density=0.5, seed=7) > 3
    place = mg.ingest(matrix, kind="matrix", transpose=True)
    inside, beside = matrix.multiply(mask).tocsr(), matrix - matrix.multiply(mask)
    beside.eliminate_zeros()
    assert inside.nnz > 5
    assert beside.nnz > 5
    wanted = mg.ingest(inside).info
    check_same(cut(place, edges=mask).info, wanted)
    check_same(cut(place, without_edges=mask).info, mg.ingest(beside).info)
    for to_format in ("tocoo", "tocsr", "tocsc", "tolil", "todok"):
        made = mg.subgraph(place, edges=getattr(mask, to_format)())
        assert made.info.digest == wanted.digest, to_format
    check_same(cut(place, edges=inside.nonzero()).info, wanted)
    heavy = (mask.multiply(matrix) >= 5).tocsr()
    A = cut(place, min_weight=5, edges=mask)
    check_same(A.info, mg.ingest(matrix.multiply(heavy).tocsr()).info)
    assert (A.T.to_scipy() != A.to_scipy().T).nnz == 0


def test_a_mask_is_what_it_adds_up_to(small):
    place = mg.ingest((np.arange(4), np.arange(1, 5)), transpose=True)
    entries = ([1, -1, 1, 1, math.nan, 0.0, 3], ([0, 0, 1, 1, 2, 3, 4], [1, 1, 2, 2, 3, 4, 4]))
    mask = sp.coo_array(entries, shape=(5, 5))
    A = cut(place, edges=mask)
    assert sorted(zip(*A.to_scipy().T.nonzero(), strict=True)) == [(1, 2), (2, 3)]
    assert mask.nnz == 7
    assert cut(place, without_edges=mask).info.nnz == 2
    both_ways = sp.coo_array(([1, -1], ([0, 1], [1, 0])), shape=(5, 5))
    assert cut(place, edges=both_ways, symmetrize=True).nnz == 1
    assert A.info.provenance["subgraphs"][-1]["edges"] == 3


def test_of_a_multigraph_all_between_two_vertices_are_meant(small):
    ends = np.repeat([0, 1, 2], [20, 3, 9]), np.repeat([1, 1, 0], [20, 3, 9])
    place = mg.ingest((*ends, np.arange(32.0)), duplicates="keep", transpose=True)
    A = cut(place, edges=[(0, 1)])
    assert A.nnz == 20
    assert A.stored.read_array("data").tolist() == [*range(20)]
    assert cut(place, without_edges=[(0, 1)]).info.nnz == 12


def test_rows_without_a_listed_edge_are_not_read(small):
    mg.ingest((np.repeat(np.arange(50), 7), np.tile(np.arange(7), 50)), place := WatchingStore())

    def read_indices(**options):
        place.calls.clear()
        info = cut(place, **options).info
        return info.nnz, {int(key.rpartition("/")[2]) for key in place.chunks_read() if "/indices/c/" in key}

    of_rows_2_and_6 = {*range(100 // 7, 150 // 7 + 1), *range(300 // 7, 350 // 7)}
    assert read_indices(edges=[(3, 2), (44, 6)]) == (2, of_rows_2_and_6)
    assert read_indices(without_edges=[(3, 2)]) == (349, {*range(50)})


def test_edges_must_fit(small):
    ends = np.arange(40), np.arange(1, 41)
    place = mg.ingest((*ends, np.ones(40)), transpose=True)
    stored, listed = place.stored, [*zip(*ends, strict=True)]
    options = {"report": lambda *_: None, "base": None, "describe": lambda n, n_edges: {"n": n}}

    def write(memory, asked, place=stored):
        chosen = choose_edges(place, asked, None, symmetrize=False)
        room = MemoryBudget(memory, 2, None)
        write_subgraph(place, target := MemoryStore(), None, None, room=room, edges=chosen, **options)
        return open_store(target).info

    need = 40 * PLACE_BYTES + 41 * LABEL_BYTES
    assert write(2 * need, listed).digest == stored.info.digest
    with pytest.raises(CapacityError, match=r"listing the 40 entries of 40 arcs in pairs needs .* GB of memory, but"):
        write(2 * need - 1, listed)
    renumbered = mg.ingest((*ends, np.ones(40)), order="rcm").stored
    assert write(2 * 2000, listed[:5], renumbered).nnz == 5
    with pytest.raises(CapacityError, match=r"the selection from .* needs"):
        write(40 * 32, listed[:5], renumbered)


@cover_pairs(order=["none", "rcm"], symmetrize=[False, True])
def test_finding_places_takes_what_is_counted(order, symmetrize):
    n, rng = 1000, np.random.default_rng(1)
    ends = rng.integers(0, n, (2, 200_000)) * 10
    stored = mg.ingest((*ends,), order=order).stored
    options = IngestOptions("graph", symmetrize=symmetrize, weights=False)
    for _ in range(2):  # the second time is traced
        source = open_edges(stored, (ends[0], ends[1]))
        with sort_source(source, options, lambda *_: None, MemoryBudget(1 << 28, 1, None)) as listed:
            tracemalloc.start()
            try:
                find_places(stored, listed, 1 << 28, "edges")
                peak = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
    assert peak <= PLACE_BYTES * listed.most_entries + 200 * n + (1 << 23)


@pytest.fixture(scope="module")
def places():
    ends = np.array([1, 2, 3]), np.array([2, 3, 4])
    return {
        "weighted": mg.ingest((*ends, np.array([0.5, 1.0, 2.0])), n_vertices=6, order="rcm"),
        "pattern": mg.ingest(ends, transpose=True),
        "names": mg.ingest(nx.path_graph(["amsel", "drossel", "fink"], nx.DiGraph)),
        "matrix": mg.ingest(sp.coo_array(([1.0, 2.0], ([0, 1], [4, 2])), shape=(3, 5)), kind="matrix"),
        "square": mg.ingest(sp.coo_array(([1.0, 2.0], ([0, 3], [4, 2])), shape=(5, 5)), kind="matrix"),
    }


def damage():
    mask = sp.csr_array((5, 5))
    mask.indptr[1] = 7
    return mask


REFUSED = {
    "weighted": [
        ({}, r"pass vertices=, min_weight=, max_weight=, edges= or without_edges=$"),
        (
            {"edges": [], "without_edges": []},
            "^pass edges= \\(the edges to keep\\) or without_edges= \\(the edges to remove\\), not both$",
        ),
        ({"min_weight": 1, "symmetrize": True}, "^symmetrize=True needs edges= or without_edges=; pass one of them"),
        ({"edges": 3}, "^cannot read an object of type builtins.int as a matrix or graph; pass a path or URL"),
        ({"edges": [1, 2]}, "^cannot read an object of type builtins.list as a matrix or graph; pass a path or URL"),
        ({"edges": (np.ones(2, int), np.ones(3, int))}, "^src has 2 entries but dst has 3; pass arrays of equal"),
        ({"edges": [(1, 9)]}, "^edges has the id 9, which no vertex has; near: 5$"),
        ({"edges": [("1", "2")]}, "^edges has the id '1' but the ids of vertices are 64-bit integers"),
        (
            {"edges": [(1, 2), (4, 3)]},
            r"^edges has the edge \(4, 3\), which is missing from the store; remove it from edges=$",
        ),
        ({"edges": [(1, 4)]}, r"^edges has the edge \(1, 4\), which is missing from the store; remove it from edges=$"),
        ({"edges": sp.eye_array(5)}, r"^edges is a mask of shape \(5, 5\) but the matrix has shape \(6, 6\); pass"),
    ],
    "pattern": [
        ({"without_edges": [(0, 2)]}, "^without_edges has the id 0, which no vertex has; near: 1$"),
        ({"edges": [(4, 1)]}, r"^edges has the edge \(4, 1\), which is missing from the store; remove it from edges=$"),
        ({"edges": [(2, 4), (1, 2)]}, r"edge \(2, 4\), which is missing from the store; remove it from edges=$"),
    ],
    "names": [
        ({"edges": [("amsel", "drosel")]}, "^edges has the id 'drosel', which no vertex has; near: 'drossel'$"),
        ({"edges": [(1, 2)]}, "^edges has the id 1 but the ids of vertices are strings; pass strings$"),
        (
            {"edges": [("fink", "drossel")]},
            r"edge \('fink', 'drossel'\), which is missing from the store; remove it from edges=$",
        ),
        (
            {"edges": [("drossel", "fink")], "symmetrize": True},
            r"edge \('fink', 'drossel'\), which is missing from the",
        ),
    ],
    "matrix": [
        ({"edges": [(3, 1)]}, r"^edges has the entry \(3, 1\), which is missing from the store; remove it"),
        ({"edges": [(1, 1), (1, -5)]}, "^edges has the number -5, but the matrix has 3 rows and 5 columns; correct"),
        ({"edges": [(1.0, 2.0)]}, "^src must hold integers or strings, not float64"),
        (
            {"edges": [(0, 2)]},
            r"^edges has the entry \(0, 2\), which is missing from the store; remove it from edges=$",
        ),
    ],
    "square": [
        (
            {"edges": [(2, 3)]},
            r"^edges has the entry \(2, 3\), which is missing from the store; remove it from edges=$",
        ),
        ({"edges": damage()}, "the index arrays are damaged"),
    ],
}


@pytest.mark.parametrize(("name", "options", "message"), [(name, *own) for name in REFUSED for own in REFUSED[name]])
def test_what_is_refused(places, name, options, message):
    target = MemoryStore()
    given = options.get("edges")
    error = OptionError if not sp.issparse(given) else ShapeError if name == "weighted" else SourceError
    with pytest.raises(error, match=message):
        mg.subgraph(places[name], target, **options)
    with pytest.raises(StoreNotFoundError):
        open_store(target)


def test_edges_are_read(tmp_path):
    path, numbers = tmp_path / "edges.txt", mg.ingest(nx.path_graph(9, nx.DiGraph))
    names = mg.ingest(nx.DiGraph([("1", "2"), ("2", "x"), ("x", "1")]))

    def read(store, path=path):
        return mg.subgraph(store, edges=path).nnz

    path.write_text("# Nodes: 9\n3 4\n3 4\n")
    assert read(numbers) == 1
    path.write_text("source,target,weight\n7,8,0.5\n6,7,0\n")
    assert read(numbers) == 2
    path.write_text("1 2\n")
    assert read(names) == 1
    pyarrow.parquet.write_table(pa.table({"a": ["x", "2"], "b": ["1", "x"], "w": [0.0, 2.0]}), tmp_path / "e.parquet")
    assert read(names, tmp_path / "e.parquet") == 2
    mask = sp.coo_array(([1.0, 0.0, 3.0], ([0, 1, 4], [1, 2, 5])), shape=(9, 9))
    sp.save_npz(tmp_path / "m.npz", mask)
    scipy.io.mmwrite(tmp_path / "m.mtx", mask)
    mg.ingest(nx.DiGraph([(2, 3)]), tmp_path / "g.zarr")
    assert [read(numbers, tmp_path / name) for name in ("m.npz", "m.mtx", "g.zarr")] == [2, 2, 1]
    path.write_text("1\nx\n")
    with pytest.raises(SourceError, match="found one column"):
        read(numbers)
    with pytest.raises(SourceError):
        read(numbers, tmp_path / "none")
