"""Updates that change nothing: they succeed, and make no version."""

from __future__ import annotations

import gzip
from pathlib import Path

import dask.dataframe as dd
import networkx as nx
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp

import mgspmv as mg
from mgspmv.errors import SourceError

INTEGERS = [(1, 2), (2, 9), (9, 1)]
RECTANGLE = sp.coo_array(([1.0, 2.0], ([0, 1], [2, 0])), shape=(2, 3))
WEIGHTED = (np.array([1, 2]), np.array([2, 9]), np.array([0.5, 1.5]))

STORES = {
    "integers": (nx.DiGraph(INTEGERS), {}),
    "names": (nx.DiGraph([("a", "b"), ("b", "c")]), {}),
    "weights": (WEIGHTED, {}),
    "weights that are integers": ((*WEIGHTED[:2], np.array([3, 4])), {}),
    "numbers": (sp.coo_array(([1.0, 1.0], ([0, 1], [1, 2])), shape=(3, 3)), {"kind": "graph", "weights": False}),
    "matrix": (RECTANGLE, {}),
    "order and transpose": (nx.DiGraph(INTEGERS), {"order": "rcm", "transpose": True}),
    "kept duplicates": (WEIGHTED, {"duplicates": "keep"}),
}


def make_typed(kind):
    return pa.table({"src": pa.array([], kind), "dst": pa.array([], kind)})


def write(name, data):
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_bytes(data)
    return name.partition("/")[0]


def write_table(name, table):
    pq.write_table(table, name)
    return name


EMPTY = {
    "text": lambda: write("e.csv", b""),
    "blank lines": lambda: write("e.txt", b"\n\n"),
    "comments": lambda: write("e.txt", b"# Nodes: 5 Edges: 0\n% none\n"),
    "header": lambda: write("e.csv", b"source,target\n"),
    "header with a weight": lambda: write("e.tsv", b"src\tdst\tweight\n"),
    "comments and a header": lambda: write("e.csv", b"# none\nsource,target\n"),
    "gzip": lambda: write("e.csv.gz", gzip.compress(b"")),
    "gzip of comments": lambda: write("e.csv.gz", gzip.compress(b"# none\n")),
    "zstd": lambda: write("e.zst", pa.compress(b"", "zstd", asbytes=True)),
    "file without a byte": lambda: write("e.csv.gz", b""),
    "folder": lambda: write("one/part-0.csv", b""),
    "gzip of a header": lambda: write("e.csv.gz", gzip.compress(b"source,target\n")),
    "folder of headers": lambda: (write("three/0.csv", b"source,target\n"), write("three/1.csv", b"source,target\n"))[
        0
    ],
    "folder of two": lambda: (write("two/part-0.csv", b""), write("two/part-1.csv", b"# none\n"))[0],
    "Parquet": lambda: write_table("e.parquet", make_typed(pa.int64())),
    "Parquet of strings": lambda: write_table("e.parquet", make_typed(pa.string())),
    "Parquet of floats": lambda: write_table("e.parquet", make_typed(pa.float64())),
    "Parquet without types": lambda: write_table("e.parquet", make_typed(pa.null())),
    "Parquet with weights": lambda: write_table("e.parquet", make_typed(pa.int64()).append_column("weight", [[]])),
    "pandas": lambda: pd.DataFrame({"src": [], "dst": []}),
    "pandas with weights": lambda: pd.DataFrame({"src": [], "dst": [], "weight": []}),
    "pandas without columns": lambda: pd.DataFrame([]),
    "polars": lambda: pl.DataFrame({"src": [], "dst": []}),
    "polars without columns": pl.DataFrame,
    "Arrow": lambda: make_typed(pa.int64()),
    "Dask": lambda: dd.from_pandas(pd.DataFrame({"src": [], "dst": []}), npartitions=1),
    "arrays": lambda: (np.zeros(0, np.int64), np.zeros(0, np.int64)),
    "arrays with weights": lambda: (np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)),
    "lists": lambda: ([], []),
    "NetworkX": nx.DiGraph,
    "SciPy": lambda: sp.coo_array((0, 0)),
    "Matrix Market": lambda: write("e.mtx", b"%%MatrixMarket matrix coordinate pattern general\n0 0 0\n"),
}


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """What each store says of itself, by its path; no update changes them."""
    folder = tmp_path_factory.mktemp("stores")
    made = {folder / f"{name}.zarr": given for name, given in STORES.items()}
    return {path: mg.ingest(source, path, **options).info for path, (source, options) in made.items()}


@pytest.mark.parametrize("make", EMPTY.values(), ids=EMPTY)
def test_empty_input(make, stores):
    for store, before in stores.items():
        for given in ({"insert": make()}, {"delete": make()}, {"insert": make(), "delete": make()}):
            assert mg.update(store, **given).info == before, store
        assert mg.list_versions(store) == [before]


def test_part_without_edges():
    """An empty file beside one that has edges."""
    tables = {
        "first": [make_typed(pa.null()), pa.table({"src": ["a"], "dst": ["c"]})],
        "last": [pa.table({"src": ["a"], "dst": ["c"]}), make_typed(pa.float64())],
    }
    for name, parts in tables.items():
        Path(name).mkdir()
        for k, part in enumerate(parts):
            pq.write_table(part, f"{name}/{k}.parquet")
        mg.ingest(nx.DiGraph([("a", "b")]), f"{name}.zarr")
        assert mg.update(f"{name}.zarr", insert=name).info.nnz == 2
        assert mg.verify(f"{name}.zarr") == []


UNCHANGED = {
    "entries that are there": ("integers", {"insert": ([1, 2], [2, 9])}),
    "entries that are not there": ("weights", {"delete": ([9, 7], [9, 1])}),
    "names that are not there": ("names", {"delete": pd.DataFrame({"src": ["x"], "dst": ["a"]})}),
    "an entry that is replaced by itself": ("weights", {"delete": ([1], [2]), "insert": ([1], [2], [0.5])}),
    "zeros that are added": ("weights", {"insert": ([1], [2], [0.0])}),
    "loops that are dropped": ("integers", {"insert": ([1], [1]), "self_loops": "drop"}),
    "a matrix without entries": ("matrix", {"insert": sp.coo_array((1, 3))}),
    "order and transpose": ("order and transpose", {"insert": ([9], [1]), "delete": ([9], [2])}),
}


@pytest.mark.parametrize(("name", "given"), UNCHANGED.values(), ids=UNCHANGED)
def test_input_that_changes_nothing(name, given):
    source, options = STORES[name]
    before = mg.ingest(source, "s.zarr", **options).info
    assert mg.update("s.zarr", **given).info == before
    assert mg.list_versions("s.zarr") == [before]
    assert [path.name for path in Path("s.zarr/versions").iterdir() if path.is_dir()] == [before.version]


CHANGED = {
    "more vertices": ("numbers", {"insert": ([], []), "n_vertices": 5}),
    "a larger matrix": ("matrix", {"insert": sp.coo_array((4, 3))}),
    "an entry beside one that is there": ("kept duplicates", {"insert": ([1], [2], [0.5])}),
    "an entry that is added to": ("weights", {"insert": ([1], [2], [0.5])}),
}


@pytest.mark.parametrize(("name", "given"), CHANGED.values(), ids=CHANGED)
def test_input_that_changes_something(name, given):
    source, options = STORES[name]
    before = mg.ingest(source, "s.zarr", **options).info
    after = mg.update("s.zarr", **given).info
    assert (after.number, after.digest == before.digest) == (2, False)


def test_a_store_cannot_be_made_of_nothing():
    for make in (EMPTY["text"], EMPTY["comments"], EMPTY["pandas"]):
        with pytest.raises(SourceError, match=r"this file has no edges|expected ids in column"):
            mg.ingest(make(), "new.zarr")
    assert not Path("new.zarr").exists()
