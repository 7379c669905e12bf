"""DataFrames and Arrow tables make the same stores as the same edges in arrays."""

from __future__ import annotations

import subprocess
import sys

import dask
import networkx as nx
import numpy as np
import pyarrow as pa
import pytest
from distributed import get_worker

import mgspmv as mg
from mgspmv.errors import OptionError, SourceError
from mgspmv.ingest.frames import FrameSource
from mgspmv.ingest.open import open_source
from tests.support.arrays import read_numbered
from tests.support.pairwise import cover_pairs
from tests.support.shrinking import shrink

pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")
dd = pytest.importorskip("dask.dataframe")

MAKERS = {
    "pandas": pd.DataFrame,
    "polars": pl.DataFrame,
    "pyarrow": pa.table,
    "dask": lambda columns: dd.from_pandas(pd.DataFrame(columns), npartitions=3),
}
EDGES = {"src": [5, 5, 7, 2, 7], "dst": [7, 2, 5, 7, 7], "weight": [1.5, 2.0, 0.25, 3.0, 4.0]}


@pytest.fixture(params=MAKERS)
def library(request):
    return request.param


def read(frame, **options):
    return read_numbered(FrameSource(frame, **options))


def make_edges(n_edges):
    """Ids far apart, some columns that are not wanted, and weights."""
    rng = np.random.default_rng(0)
    src, dst = rng.integers(-(10**12), 10**12, 300)[rng.integers(0, 300, (2, n_edges))]
    return {"label": ["x"] * n_edges, "w": rng.random(n_edges), "to": dst, "from": src}


def test_the_store_is_that_of_the_arrays(library, monkeypatch):
    edges = make_edges(5000)
    wanted = mg.ingest((edges["from"], edges["to"], edges["w"]), duplicates="keep").info
    for batch_rows in (1 << 20, 700):
        shrink(monkeypatch, ingest__frames={"BATCH_ROWS": batch_rows})
        source = FrameSource(MAKERS[library](edges), columns=["from", "to", "w"])
        info = mg.ingest(source, duplicates="keep").info
        assert info.digest == wanted.digest
        assert info.provenance["source"]["format"] == library
        assert info.provenance["source"]["header"] == {"columns": ["from", "to", "w"], "rows": 5000}


def test_the_store_is_that_of_the_parquet_file(library, tmp_path):
    names = {"src": ["v5", "v5", "v7", "ü"], "dst": ["v7", "v2", "", "v7"], "weight": [1, 2, 3, 4]}
    pa.parquet.write_table(pa.table(names), tmp_path / "e.parquet")
    frame = MAKERS[library](names)
    assert mg.ingest(frame).info.digest == mg.ingest(tmp_path / "e.parquet").info.digest


def test_options(library, tmp_path):
    frame = MAKERS[library](EDGES)
    (tmp_path / "v").write_text("9\n7\n5\n2\n")
    assert open_source(frame, n_vertices=9).default_kind == "graph"
    assert read(frame, n_vertices=9)[3].shape == (9, 9)
    assert read(frame, vertices=tmp_path / "v")[3].vertex_ids.tolist() == [2, 5, 7, 9]
    with pytest.raises(
        SourceError, match=r"row 4: expected an id from 0 to 6 \(n_vertices=7\) in column 'src', found 7"
    ):
        read(MAKERS[library]({"src": [5, 5, 6, 2, 7], "dst": [0, 0, 0, 0, 0]}), n_vertices=7)
    with pytest.raises(OptionError, match="format='parquet' applies to files, not to a "):
        open_source(frame, format="parquet")
    with pytest.raises(OptionError, match="delimiter= applies to an edge list, but this source is read as "):
        open_source(frame, delimiter=",")


def test_no_rows(library):
    frame = MAKERS[library]({name: np.zeros(0, type(column[0])) for name, column in EDGES.items()})
    rows, cols, values, layout = read(frame, n_vertices=3)
    assert (rows, cols, values.tolist(), layout.shape) == ([], [], [], (3, 3))


def test_no_rows_and_no_types():
    frame = pd.DataFrame({"src": [], "dst": [], "weight": []}, dtype=object)
    assert read(frame, n_vertices=3)[2].dtype == np.float64


NAMES = {"src": ["b", "a"], "dst": ["a", "a"]}


def test_types_of_names():
    for dtype in (pl.Categorical, pl.Enum(["a", "b"]), pl.String):
        assert read(pl.DataFrame(NAMES, schema={"src": dtype, "dst": dtype}))[0] == [1, 0], dtype
    for dtype in ("object", "category", "string[python]", "string[pyarrow]"):
        assert read(pd.DataFrame(NAMES, dtype=dtype))[0] == [1, 0], dtype
    for dtype in (pa.string(), pa.large_string(), pa.string_view()):
        table = pa.table({name: pa.array(column, dtype) for name, column in NAMES.items()})
        assert read(table)[0] == [1, 0], dtype


def test_types_of_integers():
    for dtype in ("int8", "uint64", "Int32", "UInt16", "int64[pyarrow]"):
        assert read(pd.DataFrame({"src": [5, 3], "dst": [3, 3]}, dtype=dtype))[0] == [1, 0], dtype


def test_the_index_is_not_looked_at():
    frame = pd.DataFrame(EDGES, index=pd.Index(list("edcba"), name="i")).iloc[:, :2]
    assert read(frame)[:3] == read(frame.reset_index(drop=True))[:3]


def make_partition(k, computed):
    computed.append(k)
    return pd.DataFrame({"src": [k] * (k % 3), "dst": [0] * (k % 3)})


def test_partitions_are_computed_when_it_is_their_turn():
    computed = []
    parts = [dask.delayed(make_partition)(k, computed) for k in range(6)]
    frame = dd.from_delayed(parts, meta=make_partition(1, []), verify_meta=False)
    with dask.config.set(scheduler="synchronous"):
        batches = FrameSource(frame).batches()
        seen = [(batch.rows.tolist(), computed[-1]) for batch in batches]
    assert seen == [([1], 1), ([2, 2], 2), ([4], 4), ([5, 5], 5)]
    assert computed == [0, 1, 2, 3, 4, 5]


def test_no_other_columns_are_computed():
    def make_error(part):
        raise AssertionError(f"{len(part)} rows were made")

    frame = dd.from_pandas(pd.DataFrame(EDGES), npartitions=2)
    frame["other"] = frame["weight"].map_partitions(make_error, meta=("other", float))
    assert read(frame, columns=("src", "dst"))[0] == [1, 1, 2, 0, 2]


def test_the_scheduler_is_the_one_that_dask_is_set_to():
    asked = []

    def get(graph, keys, **options):
        asked.append(dask.config.get("num_workers"))
        return dask.get(graph, keys, **options)

    with dask.config.set(scheduler=get):
        assert len(list(open_source(MAKERS["dask"](EDGES), threads=2).batches())) == len(asked)
    assert set(asked) == {2}
    assert dask.config.get("num_workers", None) is None


def test_a_client_computes_where_there_is_one(in_process):
    frame = MAKERS["dask"](EDGES)
    on_worker = lambda part: part if get_worker() else None  # noqa: E731  # raises anywhere else
    frame["src"] = frame["src"].map_partitions(on_worker, meta=("src", int))
    with pytest.raises(ValueError, match="No worker found"):
        read(frame)
    with in_process(1).as_current():
        assert read(frame, threads=2)[0] == [1, 1, 2, 0, 2]


def test_partitions_of_other_types():
    parts = [pd.DataFrame({"a": [0], "b": [1], "w": [w]}) for w in (1.5, 2)]
    frame = dd.from_map(lambda k: parts[k], [0, 1], meta=parts[0])
    with pytest.raises(SourceError, match="weights are int64 from row 1 on, but float64 at the beginning of dask"):
        read(frame)
    assert read(frame, weights=False)[0] == [0, 0]
    parts = [pd.DataFrame({"a": [a], "b": [a]}) for a in (1, "x")]
    frame = dd.from_map(lambda k: parts[k], [0, 1], meta=parts[0])
    with pytest.raises(SourceError, match="ids are large_string from row 1 on, but int64 at the beginning of dask"):
        read(frame)


TABLES = {
    "one column": ({"a": [1]}, {}, r"expected columns of sources and targets, found 1: a"),
    "four columns": ({name: [1] for name in "abcd"}, {}, r"found a, b, c, d; choose them with columns="),
    "no such column": (EDGES, {"columns": ("srcs", "dst")}, r"expected one column 'srcs', .*; did you mean 'src'\?"),
    "numbers as ids": ({"a": [1.5], "b": [1]}, {}, "expected ids in column 'a' to be .* strings, found double"),
    "two kinds of ids": ({"a": [1], "b": ["x"]}, {}, "ids in columns 'a' and 'b' are int64 and \\w*string\\w*; store"),
    "names as weights": ({"a": [1], "b": [1], "c": ["x"]}, {}, "expected weights in column 'c' to be numbers, found"),
    "a number of names": ({"a": ["x"], "b": ["y"]}, {"n_vertices": 2}, "n_vertices= requires integer ids, found"),
    "nothing as id": ({"a": [None, 1], "b": [1, 2]}, {}, "row 0 has a missing value in column 'a'; drop such rows"),
    "nothing as name": ({"a": ["x", None], "b": ["x", "y"]}, {}, "row 1 has a missing value in column 'a'"),
    "nothing as weight": ({"a": [1, 1], "b": [1, 2], "c": [0.5, None]}, {}, "row 1 has a missing value in column 'c'"),
    "beyond int64": ({"a": np.array([0, 2**63], np.uint64), "b": [1, 2]}, {}, "row 1: expected a 64-bit integer in "),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_tables_that_do_not_fit(name):
    columns, options, message = TABLES[name]
    named = {"pandas": r"pandas DataFrame of \d rows", "polars": r"polars DataFrame of \d rows"}
    named |= {"pyarrow": r"pyarrow Table of \d rows", "dask": r"dask DataFrame of \d partitions"}
    for library, make in MAKERS.items():
        with pytest.raises(SourceError, match=f"^{named[library]}: .*{message}"):
            read(make(columns), **options)


@pytest.mark.parametrize(
    "column",
    [[1, "x"], [object(), object()], [1 + 2j, 3j], pd.arrays.SparseArray([0, 1])],
    ids=["mixed", "objects", "complex", "sparse"],
)
def test_columns_that_arrow_does_not_hold(column):
    with pytest.raises(
        SourceError, match=r"pandas DataFrame of 2 rows: Arrow cannot convert one of the columns a, b \("
    ):
        read(pd.DataFrame({"a": [1, 2], "b": column}))
    assert read(pd.DataFrame({"a": [1, 2], "junk": column, "b": [1, 2]}), columns=("a", "b"))[0] == [0, 1]


@pytest.mark.parametrize("obj", [pd.Series([1]), pl.Series([1]), pa.array([1]), 3])
def test_other_objects(obj):
    with pytest.raises(OptionError, match="expected a table of pandas, polars, cuDF, Dask or Arrow, not"):
        FrameSource(obj)
    with pytest.raises(OptionError, match=r"cannot read .*; pass .*a table of pandas, polars, cuDF, Dask or Arrow"):
        open_source(obj)


@pytest.mark.slow
def test_no_library_is_imported_to_see_what_an_object_is():
    code = (
        "import sys, numpy; from mgspmv.ingest.open import open_source; "
        "open_source((numpy.zeros(1, int), numpy.zeros(1, int))); "
        "print({'pandas', 'polars', 'dask'} & sys.modules.keys())"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "set()\n"


@cover_pairs(dtype=["int32", "int64", "uint32", "uint64", ">i8"], spread=[1, 3, 10**6], low=[0, 5])
def test_arrays_number_the_ids_that_occur(dtype, spread, low):
    rng = np.random.default_rng(2)
    src, dst = ((rng.integers(0, 12, 25) * spread + low).astype(dtype) for _ in range(2))
    graph, weights = nx.MultiDiGraph(), rng.random(25)
    graph.add_weighted_edges_from(zip(src.tolist(), dst.tolist(), weights, strict=True))
    A, nodes = mg.ingest((src, dst, weights)), sorted(graph)
    assert A.nnz == len(set(graph.edges()))
    assert (np.arange(len(nodes)) if A.vertex_ids is None else A.vertex_ids).tolist() == nodes
    expected = nx.to_scipy_sparse_array(graph, nodelist=nodes).T.toarray()
    np.testing.assert_allclose(A.to_scipy().toarray(), expected)


def test_arrays_of_other_types():
    big = 2**62 + 1
    with_big = mg.ingest((np.array([big], np.uint64), np.array([0], np.int64)))
    assert (with_big.shape, with_big.vertex_ids.tolist()) == ((2, 2), [0, big])
    half = mg.ingest(([0], [1], np.array([0.5], np.float16))).info
    assert half.dtype == "float32"
    assert mg.ingest(([0, 3], [4, 1]), n_vertices=6).info.shape == (6, 6)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([0.5], [1]), OptionError, "src must hold integers or strings, not float64; pass .astype('int64')"),
        (([0], ["1"]), SourceError, "ids in columns 'src' and 'dst' are int64 and string; store both as integers"),
        (([True], [1]), OptionError, "src must hold integers or strings, not bool"),
        (([[0]], [1]), OptionError, "src must be one-dimensional, it has shape (1, 1)"),
        (([0], 1), OptionError, "dst must be one-dimensional, it has shape ()"),
        (([0], [1, 2]), OptionError, "src has 1 entries but dst has 2; pass arrays of equal length"),
        (([0], [1], [1.0, 2.0]), OptionError, "src has 1 entries but weights has 2; pass arrays of equal length"),
        (([0], [1], [[1.0]]), OptionError, "weights must be one-dimensional, it has shape (1, 1)"),
        (([0], [1], [1j]), SourceError, "1 arcs in arrays: complex values (complex128) are not supported"),
        (([0], [1], [True]), SourceError, "values of dtype bool are not supported; pass .astype('float64')"),
        (([2**63], [1]), SourceError, "row 0: expected a 64-bit integer in column 'src', found 9223372036854775808"),
        (
            ([0, 1], [1, 2]),
            {"n_vertices": 2},
            "row 1: expected an id from 0 to 1 (n_vertices=2) in column 'dst', found 2",
        ),
        (
            ([0, -1], [1, 1]),
            {"n_vertices": 2},
            "row 1: expected an id from 0 to 1 (n_vertices=2) in column 'src', found -1",
        ),
        (([0], [1]), {"n_vertices": 2.0}, "n_vertices must be an integer of at least 0, not 2.0"),
        (([0], [1]), {"n_vertices": True}, "n_vertices must be an integer of at least 0, not True"),
    ],
)
def test_arrays_that_are_refused(arguments, error, message):
    options, error = (error, (SourceError, OptionError)) if isinstance(error, dict) else ({}, error)
    with pytest.raises(error) as caught:
        mg.ingest(arguments, **options)
    assert message in str(caught.value)
