"""Parts of stores: what ingesting the entries that stay makes, and what NetworkX and SciPy make."""

from __future__ import annotations

import math

import networkx as nx
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.storage import MemoryStore

import mgspmv as mg
from mgspmv.errors import (
    CapacityError,
    KindError,
    OptionError,
    ShapeError,
    SourceError,
    StoreExistsError,
    StoreNotFoundError,
)
from mgspmv.ingest.budget import MemoryBudget
from mgspmv.ingest.headers import StatedForm
from mgspmv.ingest.subgraph import find_table_bytes, read_selection, write_subgraph
from mgspmv.store.read import open_store
from tests.support.commands import invoke
from tests.support.parts import IDS, SMALL, N, cut, find_left, list_vertices, make_table
from tests.support.shrinking import shrink
from tests.support.stores import check_same, make_scipy


@pytest.fixture
def small(monkeypatch):
    shrink(monkeypatch, **SMALL)


WEIGHTS = {"float64": [0.1, 1 / 3, 2.5, 1e16, -4.0], "float32": [0.1, 1 / 3, 2.5, -4.0], "int64": [1, 2, 7, -4, 2**60]}


@st.composite
def graphs(draw):
    """A table of arcs, which vertices stay, bounds, and how it is ingested."""
    ids, dtype = draw(st.sampled_from(list(IDS))), draw(st.sampled_from([None, *WEIGHTS]))
    ends = st.integers(0, N - 1)
    weight = st.just(1) if dtype is None else st.sampled_from(WEIGHTS[dtype])
    arcs = draw(st.lists(st.tuples(ends, ends, weight), min_size=1, max_size=60))
    kept = draw(st.none() | st.sets(ends, min_size=1))
    bound = st.none() if dtype is None else st.none() | st.sampled_from([-4, 0.1, 1, 2, 2.5])
    low, high = draw(bound), draw(bound)
    if low is not None and high is not None:
        low, high = min(low, high), max(low, high)
    if kept is None and low is None and high is None:
        kept = {0, N - 1}
    options = {
        "duplicates": draw(st.sampled_from(["first", "keep", *([] if dtype is None else ["sum"])])),
        "transpose": draw(st.booleans()),
        "order": draw(st.sampled_from(["none", "rcm", "degree", "dealt"])),
    }
    return ids, dtype, arcs, kept, low, high, options


@pytest.mark.fuzz
@settings(max_examples=20)  # each makes several stores
@given(case=graphs(), as_mask=st.booleans())
def test_a_part_is_what_ingesting_it_makes(small, tmp_path, case, as_mask):
    ids, dtype, arcs, kept, low, high, options = case
    listed = list_vertices(tmp_path / "all", range(N), ids)
    place = mg.ingest(make_table(arcs, ids, dtype), vertices=listed, **options)
    vertices = None
    if kept is not None:
        vertices = np.isin(range(N), [*kept]) if as_mask else [IDS[ids](k) for k in kept]
    part = cut(place, vertices=vertices, min_weight=low, max_weight=high)
    info = part.info
    assert (info.has_transpose, info.order or "none") == (options["transpose"], options["order"])
    assert info.created is not None
    least, most = (b if b is None or dtype == "int64" else np.dtype(dtype).type(b) for b in (low, high))

    def is_left(source, target, value):
        is_inside = (least is None or value >= least) and (most is None or value <= most)
        return is_inside and (kept is None or {source, target} <= kept)

    left = find_left(place, ids, is_left)
    assert info.nnz == len(left)
    if info.order is not None:
        info = mg.reorder(part, method="none").info
    staying = list_vertices(tmp_path / "kept", range(N) if kept is None else kept, ids)
    options = {"duplicates": options["duplicates"]}
    check_same(info, mg.ingest(make_table(left, ids, dtype), vertices=staying, **options).info)


@pytest.mark.parametrize("ids", IDS)
def test_ranks_are_those_of_networkx(small, ids):
    rng = np.random.default_rng(0)
    graph = nx.DiGraph()
    graph.add_nodes_from(map(IDS[ids], range(60)))
    graph.add_weighted_edges_from(
        (IDS[ids](i), IDS[ids](j), float(rng.random())) for i, j in rng.integers(0, 60, (400, 2))
    )
    kept = [IDS[ids](k) for k in rng.permutation(60)[:40]]
    light = [(i, j) for i, j, weight in graph.edges(data="weight") if weight < 0.25]
    wanted = nx.DiGraph(graph.subgraph(kept))
    wanted.remove_edges_from(light)
    ranks = nx.pagerank(wanted, tol=1e-14, max_iter=1000)
    for order in ("none", "dealt"):
        A = cut(mg.ingest(graph, order=order, transpose=True), vertices=kept, min_weight=0.25)
        for matrix, of in ((A, wanted), (A.T, wanted.reverse())):
            found = mg.pagerank(matrix.on("cpu"), tol=1e-13, max_iter=1000)
            assert dict(found.top(40)) == pytest.approx(nx.pagerank(of, tol=1e-14, max_iter=1000), abs=1e-12)
    assert len(ranks) == 40


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((30, 30), np.float64),
        ((4, 90), np.float32),
        ((90, 4), np.int64),
        ((0, 5), np.float64),
        ((5, 0), np.int64),
    ],
)
def test_a_matrix_has_bounds_alone(small, shape, dtype):
    matrix = make_scipy(*shape, dtype=dtype)
    place = mg.ingest(matrix, kind="matrix", transpose=True)
    for low, high in ((5, None), (None, 9), (4, 12), (1e9, None)):
        A = cut(place, min_weight=low, max_weight=high)
        left = matrix.copy()
        left.data *= (left.data >= (low or 0)) & (left.data <= (high or math.inf))
        left.eliminate_zeros()
        check_same(A.info, mg.ingest(left).info)
        assert (A.T.to_scipy() != left.T).nnz == 0


def test_all_ways_to_name_vertices(small):
    graph = nx.gnp_random_graph(20, 0.3, seed=1, directed=True)
    place, kept = mg.ingest(graph), [3, 5, 7, 11, 19]
    ways = [kept, (3, 19, 7, 5, 11, 11), {*kept}, np.array(kept), np.array(kept, np.uint8), graph.subgraph(kept).nodes]
    flags = {k: k in kept for k in reversed(range(20))}
    ways += [pd.Series(kept), pl.Series(kept), pa.array(kept), pd.Series(kept, index=range(9, 4, -1)), flags]
    ways += [pd.Series(flags), pd.Series(flags, dtype="boolean"), pl.Series(np.isin(range(20), kept))]
    ways += [dict.fromkeys(kept), np.isin(range(20), kept), np.isin(range(20), kept).tolist()]
    digests = {cut(place, vertices=way).info.digest for way in ways}
    assert digests == {mg.ingest(graph.subgraph(kept)).info.digest}


def test_flags_by_id(small):
    place = mg.ingest(nx.path_graph(["a", "b", "c"], nx.DiGraph))
    for flags in ({"c": True, "a": False}, pd.Series([False, True], index=["a", "c"])):
        assert cut(place, vertices=flags).vertex_ids.tolist() == ["c"]
    for flags, message in (
        (pd.Series([True, False, True]), "vertices has pandas' default index, but the vertices have other ids"),
        (pd.Series([True, False], index=["a", "a"]), "vertices has an id more than once"),
        ({"a": True, "x": True}, "vertices has the id 'x', which no vertex has"),
    ):
        with pytest.raises(OptionError, match=message):
            cut(place, vertices=flags)


def test_the_part_of_a_part(small):
    place = mg.ingest((np.arange(30), np.arange(1, 31), np.arange(30) / 8), order="rcm")
    first = cut(place, vertices=range(5, 25))
    second = cut(first, vertices=range(10, 31 - 6), min_weight=1.5)
    check_same(
        mg.reorder(second, method="none").info,
        mg.reorder(cut(place, vertices=range(10, 25), min_weight=1.5), method="none").info,
    )
    made = second.info.provenance["subgraphs"]
    assert [own["n_vertices"] for own in made] == [20, 15]
    assert (made[0].get("min_weight"), made[1]["min_weight"]) == (None, 1.5)
    wanted = {"url": "", "digest": first.info.digest, "shape": [20, 20], "nnz": first.nnz}
    assert made[1]["source"] | {"url": ""} == wanted
    assert second.info.provenance["source"] == place.info.provenance["source"]


def test_bounds_are_numbers_of_the_stored_dtype():
    ends = np.arange(4), np.arange(1, 5)
    single = mg.ingest((*ends, np.array([0.1, 0.2, 0.3, 1e30], np.float32)))
    assert cut(single, min_weight=0.1, max_weight=0.1).nnz == 1
    assert cut(single, max_weight=1e300).nnz == 4
    large = mg.ingest((*ends, np.array([2**60, 2**60 + 1, -3, 4])))
    assert cut(large, min_weight=2**60 + 1).nnz == 1
    assert cut(large, max_weight=3.5).nnz == 1
    assert cut(large, min_weight=-math.inf, max_weight=math.inf).nnz == 4
    assert cut(large, min_weight=1e300).nnz == 0
    matrix = mg.ingest(sp.coo_array(([math.nan, math.inf, 2.0], ([0, 1, 2], [0, 0, 0])), shape=(3, 1)))
    assert cut(matrix, min_weight=-math.inf).nnz == 2


def test_a_stochastic_matrix_must_stay_one():
    blocks = sp.block_diag([np.full((2, 2), 0.5), np.full((3, 3), 1 / 3)], format="csr")
    place = mg.ingest(blocks, kind="stochastic")
    assert cut(place, vertices=[2, 3, 4]).kind == "stochastic"
    with pytest.raises(
        SourceError, match=r"each column of a left-stochastic matrix must sum to 1 or be empty, but column 0 sums"
    ):
        cut(place, vertices=[0, 2, 3])


def test_a_store_may_be_cut_in_its_place(tmp_path):
    graph = nx.path_graph(["a", "b", "c", "d"], nx.DiGraph)
    mg.ingest(graph, tmp_path / "g")
    with pytest.raises(StoreExistsError):
        mg.subgraph(tmp_path / "g", tmp_path / "g", vertices=["a", "b"])
    info = mg.subgraph(tmp_path / "g", tmp_path / "g", vertices=["a", "b"], overwrite=True).info
    check_same(info, mg.ingest(graph.subgraph(["a", "b"])).info)
    assert len(mg.list_versions(tmp_path / "g")) == 1


def test_columns_are_added_up_in_as_many_ranges_as_the_memory_is_for(small):
    """And the numbers of the vertices must fit."""
    rng = np.random.default_rng(3)
    place = mg.ingest((*rng.integers(0, 40, (2, 300)), rng.random(300)))
    stored, reports = place.stored, []
    wanted = cut(place, vertices=range(30)).info
    need = find_table_bytes(stored.info, selects=True)
    room, target = MemoryBudget(2 * need, 2, None), MemoryStore()
    options = {"report": lambda *said: reports.append(said), "base": None, "describe": lambda n, n_edges: {"n": n}}
    write_subgraph(stored, target, range(30), None, room=room, **options)
    check_same(open_store(target).info, wanted)
    assert {phase for phase, _, _ in reports} == {"filter and write", "add up columns"}
    with pytest.raises(CapacityError, match=r"selection from .* needs .* GB of memory, but only"):
        write_subgraph(stored, MemoryStore(), range(30), None, room=MemoryBudget(2 * need - 1, 2, None), **options)
    assert find_table_bytes(stored.info, selects=False) == 0


@pytest.fixture(scope="module")
def places():
    ends = np.array([1, 2, 3]), np.array([2, 3, 4])
    return {
        "weighted": mg.ingest((*ends, np.array([0.5, 1.0, 2.0])), n_vertices=6),
        "pattern": mg.ingest(ends),
        "names": mg.ingest(nx.path_graph(["amsel", "drossel", "fink"], nx.DiGraph)),
        "matrix": mg.ingest(make_scipy(5, 5), kind="matrix"),
    }


@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        ("weighted", {}, OptionError, "^nothing to leave out; pass vertices=, min_weight="),
        ("weighted", {"vertices": [1, 9]}, OptionError, "^vertices has the id 9, which no vertex has; near: 5$"),
        ("pattern", {"vertices": [0, 2]}, OptionError, "^vertices has the id 0, which no vertex has; near: 1$"),
        ("names", {"vertices": ["drosel"]}, OptionError, "^vertices has the id 'drosel', .*; near: 'drossel'$"),
        ("names", {"vertices": "amsel"}, OptionError, "^vertices must be a mask or a list of ids, not 'amsel'$"),
        ("names", {"vertices": 3}, OptionError, "^vertices must be a mask or a list of ids, not 3$"),
        ("names", {"vertices": [1, 2]}, OptionError, "^vertices has the id 1 but .* strings; pass strings$"),
        ("weighted", {"vertices": ["1"]}, OptionError, "^vertices has the id '1' but the ids"),
        ("weighted", {"vertices": [1.0]}, OptionError, "^vertices has the id 1.0 but the ids"),
        ("weighted", {"vertices": np.ones(5, bool)}, ShapeError, r"mask of shape \(5,\) but the matrix has 6 vertices"),
        ("weighted", {"vertices": np.ones((6, 1), bool)}, ShapeError, r"mask of shape \(6, 1\)"),
        (
            "matrix",
            {"vertices": [1]},
            KindError,
            "is a store of kind 'matrix', whose rows and columns are not vertices",
        ),
        ("pattern", {"min_weight": 1}, OptionError, "is a pattern, which has no weights; leave min_weight out$"),
        ("pattern", {"min_weight": 1, "max_weight": 2}, OptionError, "leave min_weight and max_weight out$"),
        ("weighted", {"min_weight": "1"}, OptionError, "^min_weight must be a number, not '1'$"),
        ("weighted", {"max_weight": math.nan}, OptionError, "^max_weight must be a number, not nan$"),
        ("weighted", {"max_weight": True}, OptionError, "^max_weight must be a number, not True$"),
        (
            "weighted",
            {"min_weight": 2, "max_weight": 1},
            OptionError,
            "^min_weight=2 is greater than max_weight=1; swap",
        ),
        ("weighted", {"min_weight": 1, "threads": 0}, OptionError, "^threads must be at least 1"),
        ("weighted", {"min_weight": 1, "memory": "1MB"}, OptionError, "^memory must be at least 1GiB"),
    ],
)
def test_what_is_refused(places, name, options, error, message):
    target = MemoryStore()
    with pytest.raises(error, match=message):
        mg.subgraph(places[name], target, **options)
    with pytest.raises(StoreNotFoundError):
        open_store(target)


CITIES = """New York,Los Angeles
Los Angeles,"Washington, DC"
"Washington, DC",New York
New York,New
New,York
"""


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("New York\nLos Angeles\n", ["Los Angeles", "New York"]),
        ("name\nNew York\nLos Angeles\n", ["Los Angeles", "New York"]),
        ('"New York"\n"Washington, DC"\n', ["New York", "Washington, DC"]),
        ("New York\nWashington, DC\n", ["New York", "Washington, DC"]),
        ("# of the east\nNew York\n\n", ["New York"]),
        ("population,id\n8,New York\n4,Los Angeles\n", None),
        ("New\tof York\nYork\tof England\n", ["New", "York"]),
    ],
)
def test_names_of_vertices_are_whole_lines(tmp_path, text, wanted):
    (tmp_path / "cities.csv").write_text(CITIES)
    (tmp_path / "list.txt").write_text(text)
    mg.ingest(tmp_path / "cities.csv", tmp_path / "cities.zarr")
    target = str(tmp_path / "part.zarr")
    invoke("subgraph", str(tmp_path / "cities.zarr"), target, "--vertices", str(tmp_path / "list.txt"))
    found = mg.open_matrix(target).vertex_ids.tolist()
    assert found == (wanted or ["Los Angeles", "New York"])


def test_selections_are_read(tmp_path):
    path = tmp_path / "ids"
    path.write_text("# some\n30\n-2\n7\n")
    assert read_selection(path).tolist() == [-2, 7, 30]
    assert read_selection(path, string_ids=True).tolist() == ["-2", "30", "7"]
    path.write_text("1\n0\n")
    assert read_selection(path).tolist() == [0, 1]
    for array in (np.array([True, False]), np.array([4, 2])):
        np.save(tmp_path / "a.npy", array)
        assert read_selection(tmp_path / "a.npy").tolist() == array.tolist()
    path.write_text("alice\n1\n")
    with pytest.raises(SourceError, match="'alice' above numbers may be a header or an id"):
        read_selection(path, string_ids=True)
    path.write_text("#ai\nWashington, DC\n")
    reading = StatedForm(delimiter="|", comment="none")
    assert read_selection(path, string_ids=True, reading=reading).tolist() == ["#ai", "Washington, DC"]
    path.write_text("1\nx\n")
    with pytest.raises(SourceError, match="x"):
        read_selection(path)
    with pytest.raises(SourceError):
        read_selection(tmp_path / "none")
