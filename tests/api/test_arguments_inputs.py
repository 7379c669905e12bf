"""One graph in each form that people hold it in, read as one matrix."""

import networkx as nx
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
from dask import dataframe as dd
from zarr.storage import MemoryStore

import mgspmv as mg
from mgspmv.api.arguments import as_matrix
from mgspmv.errors import OptionError, SourceError, SourceNotFoundError, StoreError, StoreNotFoundError
from tests.support.foreign import DataFrame, Relation, SparseMatrix, Tensor

SRC, DST, COST = [0, 0, 1, 2, 3, 3], [1, 2, 2, 0, 0, 2], [1.0, 2.0, 4.0, 1.0, 0.5, 3.0]
COLUMNS = {"cost": COST, "target": DST, "source": SRC}
"""Columns in an order that only their names tell."""
EDGES = np.array([SRC, DST])
ADJACENCY = sp.csr_array((COST, (SRC, DST)), (4, 4))
"""Entry (i, j) is the arc i -> j."""
ARCS = list(zip(SRC, DST, COST, strict=True))


def make_networkx(kind=nx.DiGraph):
    graph = kind()
    graph.add_nodes_from(range(4))
    graph.add_weighted_edges_from(ARCS, weight="cost")
    return graph


WEIGHTED = {
    "sparse array": (ADJACENCY, True),
    "sparse matrix": (sp.coo_matrix(ADJACENCY), True),
    "sparse matrix on a device": (SparseMatrix(ADJACENCY), True),
    "dense array": (ADJACENCY.toarray(), True),
    "dense tensor": (Tensor(ADJACENCY.toarray()), True),
    "arrays": ((np.array(SRC), np.array(DST), np.array(COST)), True),
    "tensors": ((Tensor(SRC), Tensor(DST), Tensor(COST)), True),
    "series": ((pd.Series(SRC), pd.Series(DST), pd.Series(COST)), True),
    "triples": (ARCS, True),
    "networkx": (make_networkx(), "cost"),
    "pandas": (pd.DataFrame(COLUMNS), "cost"),
    "polars": (pl.DataFrame(COLUMNS), "cost"),
    "lazy polars": (pl.LazyFrame(COLUMNS), "cost"),
    "arrow": (pa.table(COLUMNS), "cost"),
    "record batch": (pa.RecordBatch.from_pydict(COLUMNS), "cost"),
    "stream": (Relation(pa.table(COLUMNS)), "cost"),
    "cudf": (DataFrame(pa.table(COLUMNS)), "cost"),
    "dask": (dd.from_pandas(pd.DataFrame(COLUMNS), npartitions=2), "cost"),
}
PATTERNS = {
    "edge index": EDGES,
    "edge index of a tensor": Tensor(EDGES),
    "pairs": [(i, j) for i, j, _ in ARCS],
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The graph in files, by name."""
    folder = tmp_path_factory.mktemp("files")
    pq.write_table(pa.table(COLUMNS), folder / "e.parquet")
    pd.DataFrame(COLUMNS).to_csv(folder / "e.csv", index=False)
    mg.ingest(ADJACENCY, folder / "e.zarr", kind="graph")
    tables = {name: (folder / f"e.{name}", "cost") for name in ("parquet", "csv")}
    return {**tables, "store": (str(folder / "e.zarr"), True)}


def test_all_forms_are_one_matrix(files):
    wanted = mg.ingest(ADJACENCY, kind="graph").info.digest
    found = {name: as_matrix(obj, weight=weight).stored.digest for name, (obj, weight) in (WEIGHTED | files).items()}
    assert found == dict.fromkeys(found, wanted)


def test_all_forms_without_weights(files):
    wanted = mg.ingest((SRC, DST), n_vertices=4).info.digest
    forms = {name: obj for name, (obj, _) in (WEIGHTED | files).items() if name not in ("store", "stream")}
    for weight in (None, False):
        found = {name: as_matrix(obj, weight=weight).stored.digest for name, obj in (forms | PATTERNS).items()}
        assert found == dict.fromkeys(found, wanted)
    assert {as_matrix(obj).stored.digest for obj in PATTERNS.values()} == {wanted}


def test_reading_counts_once(files):
    for call in (mg.pagerank, mg.katz, mg.eigenvector_centrality):
        for obj in (make_networkx(), files["csv"][0]):
            assert call(obj, weight="cost", throw=False).seconds["read"] > 0
        assert "read" not in call(mg.ingest(ADJACENCY, kind="graph"), throw=False).seconds
    A = as_matrix(make_networkx(), weight="cost")
    assert ["read" in mg.pagerank(A).seconds for _ in range(2)] == [True, False]


def test_matrices_are_unchanged(files):
    store = MemoryStore()
    A = mg.ingest(ADJACENCY, store, kind="graph")
    assert as_matrix(A) is A
    assert as_matrix(store).info == A.info
    for name in ("cost", "weight"):
        for obj in (A, store, files["store"][0]):
            with pytest.raises(OptionError, match=f"weight='{name}' names a column or an attribute, but the matrix is"):
                as_matrix(obj, weight=name)


def test_undirected_graphs_parallel_edges_and_isolated_nodes():
    graph = nx.MultiGraph([("a", "b"), ("a", "b"), ("b", "c"), ("c", "c")])
    graph.add_node("z")
    A = as_matrix(graph)
    assert A.vertex_ids.tolist() == ["a", "b", "c", "z"]
    assert A.to_scipy().toarray().tolist() == [[0, 2, 0, 0], [2, 0, 1, 0], [0, 1, 1, 0], [0, 0, 0, 0]]
    assert A.ingest_report.n_merged == 2


def test_kinds():
    B = sp.csr_array(np.arange(6.0).reshape(2, 3))
    assert as_matrix(B, "matrix").kind == "matrix"
    assert (as_matrix(B, "matrix").to_scipy() != B).nnz == 0
    assert as_matrix(np.eye(2, dtype=int), "matrix").shape == (2, 2)
    assert as_matrix(make_networkx(), "matrix").kind == "graph"
    assert as_matrix(ADJACENCY.toarray(), "matrix").kind == "matrix"
    columns = ADJACENCY.toarray() / ADJACENCY.sum(axis=0).clip(1)
    columns[0] += 1 - columns.sum(axis=0)
    assert as_matrix(columns, "stochastic").kind == "stochastic"
    assert as_matrix(ADJACENCY, transpose=True).info.has_transpose
    with pytest.raises(SourceError, match="stochastic"):
        as_matrix(ADJACENCY, "stochastic")


UNREADABLE = {
    "a number": (
        7,
        True,
        OptionError,
        "cannot read an object of type builtins.int as a matrix or graph; pass a path",
    ),
    "bipartite": (sp.csr_array((3, 2)), True, SourceError, r"of shape \(3, 2\); if .* B\], \[B\.T, None\]\]\)$"),
    "two rows": (np.ones((2, 3)), True, SourceError, r"of shape \(2, 3\).*\(edges\[0\], edges\[1\]\)"),
    "two by two": (
        np.eye(2, dtype=int),
        True,
        OptionError,
        r"shape \(2, 2\) may be an edge index of two arcs",
    ),
    "complex": (ADJACENCY * 1j, True, SourceError, "complex values"),
    "a name of values": (ADJACENCY, "cost", OptionError, "weights= applies to"),
    "an attribute": (
        make_networkx(),
        "price",
        OptionError,
        "no edge has the attribute 'price' for weights, found",
    ),
    "a column": (pd.DataFrame(COLUMNS), "price", SourceError, "expected one column 'price'"),
    "a doubtful column": (pd.DataFrame(COLUMNS), True, SourceError, "cost may be weights or not"),
    "lengths": ((SRC, DST[:3]), True, OptionError, "src has 6 entries but dst has 3"),
    "no file": ("none.txt", True, SourceNotFoundError, "none.txt"),
    "no store": ("none.zarr", True, (SourceNotFoundError, StoreNotFoundError), "none.zarr"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_inputs_that_cannot_be_read(name):
    obj, weight, error, message = UNREADABLE[name]
    with pytest.raises(error, match=message):
        as_matrix(obj, weight=weight)


def test_errors_and_warnings_name_the_argument_of_the_call():
    advice = r"cost may be weights or not; pass weight=False to leave it out, or name it as weight=\"cost\"$"
    with pytest.raises(SourceError, match=advice):
        mg.pagerank(pd.DataFrame(COLUMNS))
    assert mg.pagerank(pd.DataFrame(COLUMNS), weight="cost").iterations > 0
    clicks = pd.DataFrame({"source": [1, 2], "target": [2, 3], "weight": [1254192988, 1254193001]})
    with pytest.warns(UserWarning, match=r"pass weight=False if it is not a weight"):
        mg.pagerank(clicks)


def test_errors_of_reading_name_the_call_that_takes_the_advised_arguments(tmp_path):
    (tmp_path / "a.csv").write_text("first,last\nalice,bob\nbob,alice\n")
    advice = (
        r"or header=False if it is data; call mgspmv\.ingest with such arguments, and pass the matrix that it returns"
    )
    for call in (mg.pagerank, mg.hits, mg.spmv):
        with pytest.raises(SourceError, match=rf"{advice}$"):
            call(tmp_path / "a.csv", *([[1.0]] if call is mg.spmv else []))
    with pytest.raises(SourceError, match=r"or header=False if it is data$"):
        mg.ingest(tmp_path / "a.csv")
    with mg.ingest(tmp_path / "a.csv", header=True) as A:
        assert len(mg.pagerank(A)) == 2


def test_no_file_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    assert mg.ingest(ARCS).ingest_report.n_rows == 6
    assert mg.generate("uniform", n_vertices=10, n_edges=30, seed=1).nnz > 0
    assert as_matrix(pd.DataFrame({"source": ["a", "b"], "target": ["b", "c"]})).shape == (3, 3)
    assert not list(tmp_path.iterdir())


def test_a_matrix_in_memory_is_stored_later(tmp_path):
    A = mg.ingest(ARCS, transpose=True)
    B = mg.ingest(A, tmp_path / "e.zarr")
    assert B.info.digest == A.info.digest
    with pytest.raises(OptionError, match="a transpose cannot be ingested; ingest the matrix"):
        mg.ingest(A.T)


def test_a_matrix_in_memory_is_edited(tmp_path):
    A = mg.ingest(ARCS)
    assert mg.verify(A) == []
    B = mg.update(A, insert=[(1, 0, 1.0)], delete=[(0, 1)])
    assert (B.nnz, A.nnz) == (6, 6)
    assert mg.subgraph(B, vertices=[0, 1]).nnz == 1
    assert mg.transpose(B).T.shape == (4, 4)
    assert mg.reorder(mg.ingest(ARCS), method="degree").info.order == "degree"
    mg.export(B, tmp_path / "e.parquet")
    assert mg.ingest(tmp_path / "e.parquet").info.digest == B.info.digest
    with pytest.raises(StoreError, match=r"now holds version .*, not .* as at the start"):
        mg.update(A, insert=[(3, 1, 1.0)])
    with pytest.raises(OptionError, match="a transpose belongs to the store of another matrix; pass that matrix, or"):
        mg.export(mg.ingest(ARCS, transpose=True).T, tmp_path / "t.parquet")


def test_likely_mistakes_are_warned_of():
    clicks = pd.DataFrame({"source": [1, 2], "target": [2, 3], "weight": [1254192988, 1254193001]})
    with pytest.warns(UserWarning, match=r"pandas DataFrame of 2 rows: column 3 'weight' looks like times"):
        as_matrix(clicks)


def find_table(obj, **options):
    """Five lines of a user's, which end in a table of pandas."""
    import mgspmv as mg

    ranks = mg.pagerank(obj, **options)
    return ranks.to_pandas()


@pytest.mark.parametrize("name", [*WEIGHTED, *PATTERNS, "parquet", "csv", "store", "opened"])
def test_ranks_as_a_table_of_pandas(name, files):
    opened = {"opened": (mg.ingest(ADJACENCY, kind="graph"), True)}
    forms = WEIGHTED | files | opened | {key: (obj, True) for key, obj in PATTERNS.items()}
    obj, weight = forms[name]
    table = find_table(Relation(pa.table(COLUMNS)) if name == "stream" else obj, weight=weight, tol=1e-12)
    graph, weight = make_networkx(), None if name in PATTERNS else "cost"
    wanted = nx.pagerank(graph, weight=weight, tol=1e-12)
    assert dict(zip(table["id"], table["rank"], strict=True)) == pytest.approx(wanted, abs=1e-9)


def test_other_calls_take_them():
    graph = make_networkx()
    A = mg.ingest(ADJACENCY, kind="graph", transpose=True)
    for call in (mg.katz, mg.eigenvector_centrality):
        assert (call(graph, weight="cost").values == call(A).values).all()
    assert (mg.hits(graph, weight="cost").hubs.values == mg.hits(A).hubs.values).all()
    wanted = mg.pagerank_batch(A, personalization=[0, 1]).values
    assert (mg.pagerank_batch(graph, personalization=[0, 1], weight="cost").values == wanted).all()
    assert mg.spmv(ADJACENCY, np.arange(4.0)) == pytest.approx(ADJACENCY @ np.arange(4.0))
    assert mg.spmv(np.eye(2, dtype=int), [1, 2]).tolist() == [1, 2]
    steps = {"normalize": "l1", "max_iter": 5, "throw": False}
    wanted = mg.power_iteration(mg.ingest(ADJACENCY), **steps).values
    assert (mg.power_iteration(ADJACENCY, **steps).values == wanted).all()
    chain = np.array([[0.5, 1.0], [0.5, 0.0]])
    assert mg.stationary(chain).values == pytest.approx([2 / 3, 1 / 3])


def test_a_solution_says_how_its_source_was_read():
    [found] = mg.pagerank([("a", "b"), ("a", "b"), ("b", "a")]).matrix["ingest"]
    assert "source: column 1 'src'; target: column 2 'dst'; weight: none; 1 duplicate merged (first)" in found


def test_a_matrix_by_its_name():
    assert mg.pagerank(A=ARCS).values == pytest.approx(mg.pagerank(ARCS).values)


def test_only_a_store_is_opened():
    with pytest.raises(OptionError, match="Zarr store of a stored matrix, not a DiGraph; pass it to mgspmv"):
        mg.open(make_networkx())
    assert mg.open_matrix is mg.open


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("damping", "alpha="),
        ("max_iterations", "max_iter="),
        ("threads", r"it to A\.on\(\)"),
        ("client", r"A\.on\(client\)"),
    ],
)
def test_arguments_of_elsewhere_name_their_place(name, remedy):
    with pytest.raises(TypeError, match=rf"pagerank\(\) has no argument {name}=; pass {remedy}"):
        mg.pagerank(([0, 1], [1, 0]), **{name: 1})
    with pytest.raises(TypeError, match="unexpected keyword argument 'color'"):
        mg.pagerank(([0, 1], [1, 0]), color=1)


def test_messages_name_a_graph_in_memory():
    with pytest.raises(OptionError, match=r"^the graph has no vertices, so there are no ranks"):
        mg.pagerank(sp.csr_matrix((0, 0)))
