"""What is taken for numbers by place, and what for ids."""

from __future__ import annotations

import uuid

import dask.dataframe as dd
import networkx as nx
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import mgspmv as mg
from mgspmv.errors import OptionError, ShapeError
from mgspmv.ingest.vertex_vectors import ById, classify_vector
from mgspmv.solvers.vectors import make_queries, make_vector

NAMES = np.array(["a", "b", "c", "d"], dtype=object)
NUMBERS = np.array([10, 20, 30, 40])
FRAME = pd.DataFrame({"id": ["d", "a"], "rank": [3.0, 1.0]})
BACKWARDS = pd.DataFrame({"weight": [3.0, 1.0], "node": ["d", "a"]})

LABELED = {
    "mapping": {"d": 3.0, "a": 1.0},
    "Series": pd.Series([3.0, 1.0], index=["d", "a"]),
    "Series of n": pd.Series({"d": 3.0, "b": 0.0, "c": 0.0, "a": 1.0}),
    "Series of integers": pd.Series([3, 1], index=["d", "a"], dtype="Int64"),
    "Series, categories": pd.Series([3.0, 1.0], index=pd.CategoricalIndex(["d", "a"])),
    "pandas": FRAME,
    "pandas, another order": BACKWARDS,
    "pandas, no names": FRAME.set_axis(["x", "y"], axis=1),
    "pandas, numbered columns": FRAME.set_axis([0, 1], axis=1),
    "pandas, an index left": FRAME.set_axis([5, 7]),
    "pandas, one column": FRAME.set_index("id"),
    "pandas, more columns": FRAME.assign(degree=[5, 6]),
    "polars": pl.DataFrame(FRAME.to_dict("list")),
    "polars, another order": pl.DataFrame(BACKWARDS.to_dict("list")),
    "polars, categories": pl.DataFrame(FRAME.to_dict("list"), schema_overrides={"id": pl.Categorical}),
    "Arrow": pa.table(FRAME.to_dict("list")),
    "Arrow, another order": pa.table(BACKWARDS.to_dict("list")),
    "Arrow, a batch": pa.RecordBatch.from_pandas(FRAME),
    "Arrow, saved index": pa.Table.from_pandas(FRAME.set_index("id").rename_axis(None)),
    "Arrow, named index": pa.Table.from_pandas(FRAME.set_index("id")),
    "Arrow, row numbers": pa.Table.from_pandas(FRAME.set_axis([5, 7])),
}


@pytest.mark.parametrize("given", LABELED.values(), ids=LABELED)
def test_labeled_vectors_match_by_id(given):
    assert make_vector("x", given, 4, NAMES).tolist() == [1.0, 0.0, 0.0, 3.0]
    query = make_queries([given], [0.85], 4, NAMES)[0]
    assert dict(zip(query.rows.tolist(), query.weights.tolist(), strict=True)) | {1: 0.0, 2: 0.0} == {
        0: 0.25, 1: 0.0, 2: 0.0, 3: 0.75,
    }  # fmt: skip


INTEGERS = {
    "mapping": {40: 3, np.int32(10): 1},
    "Series": pd.Series([3, 1], index=[40, 10]),
    "Series, a range": pd.Series([1, 0, 0, 3], index=range(10, 50, 10)),
    "polars": pl.DataFrame({"vertex": [40, 10], "value": [3, 1]}),
    "unsigned": pa.table({"vertex": pa.array([40, 10], pa.uint64()), "value": [3, 1]}),
}


@pytest.mark.parametrize("given", INTEGERS.values(), ids=INTEGERS)
def test_integer_ids(given):
    assert make_vector("x", given, 4, NUMBERS).tolist() == [1.0, 0.0, 0.0, 3.0]


LISTS = {
    "list": ["d", "a"],
    "tuple": ("d", "a"),
    "set": {"d", "a"},
    "keys": {"d": 0, "a": 0}.keys(),
    "pandas Index": pd.Index(["d", "a"]),
    "pandas column": pd.DataFrame({"node": ["d", "a"]}),
    "polars Series": pl.Series(["d", "a"]),
    "polars categories": pl.Series(["d", "a"], dtype=pl.Categorical),
    "polars column": pl.DataFrame({"node": ["d", "a"]}),
    "Arrow array": pa.array(["d", "a"]),
    "Arrow chunks": pa.chunked_array([["d"], ["a"]]),
}


@pytest.mark.parametrize("given", LISTS.values(), ids=LISTS)
def test_ids_alone_have_the_number_1(given):
    assert make_vector("x", given, 4, NAMES).tolist() == [1.0, 0.0, 0.0, 1.0]
    query = make_queries([given], [0.85], 4, NAMES)[0]
    assert (query.rows.tolist(), query.weights.tolist()) == ([0, 3], [0.5, 0.5])


@pytest.mark.parametrize("given", [[40, 10], pl.Series([40, 10]), pd.Index([40, 10]), pa.array([40, 10])])
def test_integers_in_a_list_are_ids(given):
    assert make_vector("x", given, 4, NUMBERS).tolist() == [1.0, 0.0, 0.0, 1.0]


KEYS = [uuid.UUID(int=k) for k in (7, 3)]


@pytest.mark.parametrize(
    "given",
    [
        dict.fromkeys(KEYS, 1),
        KEYS,
        pd.Series(1, index=KEYS),
        pa.table({"id": pa.array([key.bytes for key in KEYS], pa.uuid()), "value": [1, 1]}),
        pa.array([key.bytes for key in KEYS], pa.binary(16)),
    ],
)
def test_uuids_are_their_text(given):
    ids = np.array([str(uuid.UUID(int=k)) for k in (3, 5, 7)], object)
    assert make_vector("x", given, 3, ids).tolist() == [1.0, 0.0, 1.0]


def test_decimals_without_places_are_integers():
    given = pa.table({"id": pa.array([40, 10], pa.decimal128(38, 0)), "value": [3, 1]})
    assert make_vector("x", given, 4, NUMBERS).tolist() == [1.0, 0.0, 0.0, 3.0]


@pytest.mark.parametrize("ids", [None, NUMBERS, NAMES], ids=["numbers", "integers", "strings"])
def test_arrays_are_by_place(ids):
    for given in (np.array([1.0, 0, 0, 3]), np.array([1, 0, 0, 3], np.uint8), pd.Series([1.0, 0, 0, 3]).to_numpy()):
        assert make_vector("x", given, 4, ids).tolist() == [1.0, 0.0, 0.0, 3.0]
        query = make_queries([given], [0.85], 4, ids)[0]
        assert (query.rows.tolist(), query.weights.tolist()) == ([0, 3], [0.25, 0.75])


def test_an_index_that_nobody_set_is_ids_where_the_store_has_no_others():
    shifted = pd.Series([3.0, 1.0], index=[3, 0])
    for given in (pd.Series([1.0, 0, 0, 3]), pd.DataFrame({"rank": [1.0, 0, 0, 3]}), shifted):
        assert make_vector("x", given, 4, None).tolist() == [1.0, 0.0, 0.0, 3.0]


OWN = np.array([0, 1, 2, 7])


@pytest.mark.parametrize(
    ("given", "ids", "message"),
    [
        (pd.Series(np.ones(4)), NAMES, r"pandas' default index 0\.\.3, .* such as 'a'; .*\.to_numpy\(\)"),
        (pd.Series(np.ones(4)), NUMBERS, r"pandas' default index 0\.\.3, .* such as 10; .*set the index"),
        (pd.Series(np.ones(3)), OWN, r"pandas' default index 0\.\.2, .* such as 0"),
        (pd.DataFrame({"rank": np.ones(4)}), NAMES, "pandas' default index 0..3"),
        (pd.Series([1.0], index=[5]), NAMES, r"the id 5 but the ids of vertices are strings; .*set the index"),
        (pd.Series([1.0], index=["x"]), NAMES, r"the id 'x', which no vertex has.*\.to_numpy\(\)"),
        (pd.Series([1.0], index=[10.0]), NUMBERS, "has 10.0 in its index, which is not an id"),
        (pd.Series([1.0], index=pd.to_datetime(["2020-01-01"])), NUMBERS, "has Timestamp"),
        (pd.Series([1.0], index=pd.MultiIndex.from_tuples([("a", 1)])), NAMES, "an index of 2 levels"),
        (pd.Series([1.0, 2.0], index=["a", "a"]), NAMES, "the id 'a' more than once"),
        (pd.Series(["a", "b"]), NAMES, r"a Series of strings; pass its \.tolist\(\)"),
        (pd.Series([1.0, None], index=["a", "b"]), NAMES, "x must be finite; vertex b has nan"),
        (pl.Series([1.0, 0, 0, 3]), NAMES, r"x has 1\.0, which is not an id; pass np\.asarray"),
        (pl.Series([True, False, True, True]), NAMES, "x has True, which is not an id"),
        (pl.Series(["a", None]), NAMES, "has a missing value; pass np"),
        (pa.table({"id": ["a", None], "rank": [1.0, 2]}), NAMES, "a missing value in its column of ids 'id'"),
        (pa.table({"id": ["a", "b"], "rank": [1.0, None]}), NAMES, "1 missing values in column 'rank'; fill"),
        (pd.DataFrame({"id": ["a", None], "rank": [1.0, 2]}), NAMES, "a missing value in its column of ids 'id'"),
        (pd.DataFrame({"id": [1.5], "rank": [1.0]}), NAMES, "1.5 in its column of ids 'id', which is not an id"),
        (pd.DataFrame({"id": ["a", "a"], "rank": [1.0, 2]}), NAMES, "the id 'a' more than once"),
        (
            pd.DataFrame({"x": ["a"], "y": [1.0]}, index=["b"]),
            NAMES,
            "either its index or one of its columns 'x', 'y' may be the ids",
        ),
        (pd.DataFrame({"node": ["a"]}, index=["b"]), NAMES, "either its index or one of its columns 'node' may be"),
        (pd.DataFrame({"x": ["a"], "y": [1], "z": [2]}), NAMES, "found the columns x, y, z; keep two"),
        (pd.DataFrame({"id": ["a"], "rank": [1], "score": [2]}), NAMES, "keep two, named `id` and `weight`"),
        (pl.DataFrame({"id": ["a"], "name": ["b"]}), NAMES, "found the columns id, name; keep two"),
        (pl.DataFrame({"id": ["a"], "rank": ["b"]}), NAMES, "must hold real numbers, not strings"),
        (
            pl.DataFrame({"id": ["a"]}).lazy(),
            NAMES,
            r"x is a polars LazyFrame, which is not read as a vector; pass a computed Series",
        ),
        (
            dd.from_pandas(pd.Series({"a": 1.0}), npartitions=1),
            NAMES,
            "is not read as a vector; pass a computed Series",
        ),
        (
            [1.0, 0.0, 0.0, 3.0],
            NAMES,
            r"1\.0 in its list of ids, which is not an id; pass np\.asarray",
        ),
        ((True, False, True, True), NAMES, r"True in its list of ids, which is not an id; pass np\.asarray"),
        ([["a"]], NAMES, r"\['a'\] in its list of ids, which is not an id"),
        ([1, 0, 0, 3], None, r"the id 0 more than once; .*pass np\.asarray"),
        ([5, 1], None, r"the id 5, which no vertex has; near: 3; a list holds ids: pass np\.asarray"),
        ([1, 2], NAMES, r"the id 1 but the ids of vertices are strings; .*pass np\.asarray"),
        (["a", "b", "a"], NAMES, "the id 'a' more than once; give each id one number"),
        (np.array(["a", "b"]), NAMES, r"an array of strings, .* pass its \.tolist\(\)"),
        ("a", NAMES, r"x must be a vector over the vertices, not 'a'; pass a mapping .* such as \['a'\]"),
        (iter(["a"]), NAMES, "which is not read as a vector; .* a list of ids"),
        ({True: 1.0}, None, "x has True in its keys, which is not an id"),
    ],
)
def test_what_is_refused(given, ids, message):
    with pytest.raises(OptionError, match=message):
        make_vector("x", given, 4, ids)


def test_arrays_of_another_length_are_refused():
    for given in (np.ones(3), np.ones((4, 1))):
        with pytest.raises(ShapeError, match="but the matrix has 4 vertices"):
            make_vector("x", given, 4, NAMES)
        with pytest.raises(ShapeError, match="but the matrix has 4 vertices"):
            make_queries([given], [0.85], 4, NAMES)


def test_data_with_coordinates_are_refused():
    class DataArray:
        coords, dims = {}, ("id",)

    with pytest.raises(OptionError, match="DataArray, which is not read as a vector; pass a computed Series"):
        classify_vector("x", DataArray())


def test_a_solution_is_by_id():
    graph = nx.DiGraph([("a", "b"), ("b", "c"), ("c", "a"), ("a", "c")])
    A = mg.ingest(graph, kind="graph")
    solution = mg.pagerank(A)
    found = classify_vector("x", solution)
    assert isinstance(found, ById)
    assert dict(zip(found.ids, found.numbers, strict=True)) == dict(solution.top(3))
    assert mg.eigenvector_centrality(A, nstart=solution).status.is_success


@pytest.fixture(scope="module")
def graph():
    edges = [("D", "A"), ("A", "B"), ("B", "C"), ("C", "A"), ("A", "C"), ("B", "E")]
    return mg.ingest(nx.DiGraph(edges), kind="graph", transpose=True)


ARGUMENTS = {
    "personalization": lambda A, v: mg.pagerank(A, personalization=v),
    "dangling": lambda A, v: mg.pagerank(A, dangling=v),
    "nstart": lambda A, v: mg.pagerank(A, nstart=v, norm="fixed", max_iter=2, tol=None),
    "out_weight": lambda A, v: mg.pagerank(A, out_weight=v),
    "batch": lambda A, v: mg.pagerank_batch(A, [v])[0],
    "batch of one": lambda A, v: mg.pagerank_batch(A, v if isinstance(v, dict | pd.Series) else {0: v})[0],
    "hits": lambda A, v: mg.hits(A, nstart=v, norm="fixed", max_iter=2).hubs,
    "katz": lambda A, v: mg.katz(A, nstart=v, norm="fixed", max_iter=2),
    "beta": lambda A, v: mg.katz(A, beta=v),
    "eigenvector": lambda A, v: mg.eigenvector_centrality(A, nstart=v, norm="fixed", max_iter=2),
    "power": lambda A, v: mg.power_iteration(A, x=v, norm="fixed", max_iter=2),
}
UNSORTED = {"D": 9.0, "A": 3.0, "B": 4.0, "C": 5.0, "E": 0.0}


@pytest.mark.parametrize("rank", ARGUMENTS.values(), ids=ARGUMENTS)
def test_each_argument_matches_by_id(graph, rank):
    assert graph.vertex_ids.tolist() == ["A", "B", "C", "D", "E"]
    wanted = rank(graph, np.array([3.0, 4.0, 5.0, 9.0, 0.0])).digest()
    for given in (UNSORTED, pd.Series(UNSORTED), pl.DataFrame({"id": list(UNSORTED), "rank": list(UNSORTED.values())})):
        assert rank(graph, given).digest() == wanted
    with pytest.raises(OptionError, match=r"np\.asarray"):
        rank(graph, [3.0, 4.0, 5.0, 9.0, 0.0])
    with pytest.raises(OptionError, match=r"pandas' default index 0\.\.4"):
        rank(graph, pd.Series([3.0, 4.0, 5.0, 9.0, 0.0]))
