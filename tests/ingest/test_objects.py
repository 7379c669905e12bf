"""Objects in memory: SciPy and NetworkX rebuild what the batches hold."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
from scipy.sparse.linalg import aslinearoperator

from mgspmv.errors import CapacityError, OptionError, SourceError
from mgspmv.ingest import objects
from mgspmv.ingest.generate import UniformSource
from mgspmv.ingest.objects import GraphSource, NpzSource, ScipySource
from mgspmv.ingest.open import INGESTIBLE, open_source
from mgspmv.ingest.source import symmetrize

FORMATS = ["coo", "csr", "csc", "bsr", "dia", "dok", "lil"]


@pytest.fixture(params=[2**20, 3], ids=["one batch", "batches of 3"])
def batch_size(request, monkeypatch):
    """Entries in a batch."""
    monkeypatch.setattr(objects, "BATCH_ENTRIES", request.param)
    return request.param


def rebuild(source):
    """The matrix that a source gives, as SciPy puts it together, and its layout; entries of a pattern are 1."""
    symmetry = "symmetric" if getattr(source, "is_undirected", False) else "general"
    batches = [symmetrize(batch, symmetry) for batch in source.batches()]
    assert batches
    assert len({b.values is None for b in batches}) == 1
    assert len({None if b.values is None else b.values.dtype for b in batches}) == 1
    values = np.concatenate([np.ones(len(b.rows)) if b.values is None else b.values for b in batches])
    places = tuple(np.concatenate([getattr(b, name) for b in batches]) for name in ("rows", "cols"))
    layout = source.layout()
    json.dumps(layout.provenance)
    return sp.coo_array((values, places), shape=layout.shape), layout


def is_pattern(source):
    return next(iter(source.batches())).values is None


def random_matrix(n_rows=6, n_cols=9, dtype=np.float64):
    rng = np.random.default_rng(5)
    dense = rng.integers(1, 100, (n_rows, n_cols)) * (rng.random((n_rows, n_cols)) < 0.4)
    return dense.astype(dtype)


# --- SciPy and dense ---------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("batch_size")
@pytest.mark.parametrize("kind", ["array", "matrix"])
def test_scipy_formats(kind):
    dense = random_matrix()
    for format in FORMATS:
        source = ScipySource(getattr(sp, f"{format}_{kind}")(dense))
        again, layout = rebuild(source)
        np.testing.assert_array_equal(again.toarray(), dense, err_msg=format)
        assert layout.vertex_ids is None, format
        assert source.default_kind == "matrix", format
        assert source.name == f"{format}_{kind} of shape (6, 9)"


@pytest.mark.usefixtures("batch_size")
@pytest.mark.parametrize("order", ["C", "F"])
def test_dense_arrays_give_their_nonzeros(order):
    dense = np.asarray(random_matrix(), order=order)
    again, _ = rebuild(ScipySource(dense))
    np.testing.assert_array_equal(again.toarray(), dense)
    assert again.nnz == np.count_nonzero(dense)


@pytest.mark.parametrize("make", [np.zeros, sp.csr_array, sp.coo_array])
def test_no_entries_keep_shape_and_dtype(make):
    for shape in ((0, 4), (4, 0), (3, 5), (1, 1)):
        source = ScipySource(make(shape, dtype=np.float32))
        (batch,) = source.batches()
        assert len(batch.rows) == 0, shape
        assert batch.values.dtype == np.float32, shape
        assert source.layout().shape == shape


def test_duplicates_unsorted_and_zeros_stay():
    data, rows, cols = np.array([3.0, 0.0, 2.0, 1.0]), np.array([1, 0, 1, 1]), np.array([2, 1, 0, 2])
    again, _ = rebuild(ScipySource(sp.coo_array((data, (rows, cols)), shape=(2, 3))))
    assert again.nnz == 4
    np.testing.assert_array_equal(again.data, data)
    unsorted = sp.csr_array((data, np.array([2, 0, 2, 1]), np.array([0, 3, 4])), shape=(2, 3))
    again, _ = rebuild(ScipySource(unsorted))
    assert list(zip(again.row, again.col, again.data, strict=True)) == [(0, 2, 3), (0, 0, 0), (0, 2, 2), (1, 1, 1)]


def test_caller_keeps_its_arrays():
    matrix = sp.csr_array(random_matrix())
    matrix.indices, matrix.data = np.append(matrix.indices, 7), np.append(matrix.data, 7)
    before = len(matrix.indices)
    assert rebuild(ScipySource(matrix))[0].nnz == before - 1
    assert len(matrix.indices) == len(matrix.data) == before


def test_bool_is_a_pattern():
    dense = random_matrix() > 0
    for make in (np.asarray, sp.csr_array, sp.coo_array):
        source = ScipySource(make(dense))
        assert is_pattern(source), make
        np.testing.assert_array_equal(rebuild(source)[0].toarray(), dense, err_msg=str(make))


@pytest.mark.parametrize(
    ("matrix", "error", "message"),
    [
        (sp.csr_array([[1j]]), SourceError, "complex values (complex128) are not supported; ingest .real, .imag"),
        (np.array([[1j]], np.complex64), SourceError, "complex values (complex64) are not supported"),
        (np.array([["a"]]), SourceError, "values of dtype <U1 are not supported; pass .astype('float64')"),
        (np.array([[None]]), SourceError, "values of dtype object are not supported"),
        (np.ma.masked_equal([[1, 2]], 2), SourceError, "masked arrays are not supported; pass .filled(0)"),
        (sp.coo_array([1.0, 2.0]), OptionError, "a matrix has two dimensions, but this coo_array has shape (2,)"),
        (np.zeros((2, 2, 2)), OptionError, "a matrix has two dimensions, but this ndarray has shape (2, 2, 2)"),
    ],
)
def test_matrices_that_are_refused(matrix, error, message):
    with pytest.raises(error) as caught:
        ScipySource(matrix, name="given")
    assert message in str(caught.value)


@pytest.mark.parametrize("format", ["csr", "csc", "bsr"])
def test_damaged_indices_are_refused(format):
    for name, at, value in (("indices", 0, 99), ("indices", 1, -1), ("indptr", 1, 6), ("indptr", 4, 0)):
        matrix = sp.csr_array(np.eye(4)).asformat(format)
        getattr(matrix, name)[at] = value
        with pytest.raises(SourceError, match=r"^given: the index arrays are damaged"):
            list(ScipySource(matrix, name="given").batches())


# --- files of SciPy ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compressed", [True, False])
def test_npz(tmp_path, compressed):
    for format in ("coo", "csr", "csc", "bsr", "dia"):
        path = tmp_path / f"{format}.npz"
        sp.save_npz(path, sp.csr_array(random_matrix()).asformat(format), compressed=compressed)
        source = NpzSource(path)
        again, layout = rebuild(source)
        np.testing.assert_array_equal(again.toarray(), random_matrix(), err_msg=format)
        assert source.name == str(path)
        assert source.default_kind == "matrix"
        assert layout.provenance == {
            "name": str(path),
            "format": "npz",
            "size": path.stat().st_size,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }


def test_npz_of_other_arrays(tmp_path):
    np.savez(tmp_path / "m.npz", x=[1], weights=[2])
    with pytest.raises(
        SourceError, match=r"m\.npz: expected the arrays of a sparse matrix, found 'x', 'weights'; write"
    ):
        NpzSource(tmp_path / "m.npz")
    np.savez(tmp_path / "empty.npz")
    with pytest.raises(SourceError, match="found none"):
        NpzSource(tmp_path / "empty.npz")


def test_npz_that_is_none(tmp_path):
    for content in (b"", b"no archive", b"\x93NUMPY"):
        (tmp_path / "m.npz").write_bytes(content)
        with pytest.raises(
            SourceError, match=r"not a complete \.npz file of a sparse matrix \(File is not a zip file\)"
        ):
            NpzSource(tmp_path / "m.npz")


def repack(content, changes):
    """The archive with some of its arrays replaced, or without those that are None; its checksums are right."""
    with np.load(io.BytesIO(content)) as arrays:
        kept = {**arrays, **changes}
    out = io.BytesIO()
    np.savez(out, **{name: array for name, array in kept.items() if array is not None})
    return out.getvalue()


@pytest.mark.parametrize(
    "changes",
    [
        {"indptr": None},
        {"shape": None},
        {"format": np.array("xyz")},
        {"format": np.array("lil")},
        {"format": np.array(3)},
        {"shape": np.array([2])},
        {"shape": np.array([-2, 3])},
        {"indptr": np.array([0, 1])},
        {"data": np.array([])},
        {"indices": np.array(1.5)},
    ],
    ids=str,
)
def test_npz_with_unfit_arrays(tmp_path, changes):
    sp.save_npz(tmp_path / "m.npz", sp.csr_array(random_matrix()))
    (tmp_path / "m.npz").write_bytes(repack((tmp_path / "m.npz").read_bytes(), changes))
    with pytest.raises(SourceError, match=r"m\.npz: not a complete \.npz file of a sparse matrix"):
        NpzSource(tmp_path / "m.npz")


def rewrite(path, change):
    """Change the arrays of an archive, by name, as bytes; checksums are right again."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)


@pytest.mark.parametrize("name", ["data", "indices", "indptr"])
def test_npz_with_an_array_that_is_shorter_than_its_header_claims(tmp_path, name):
    path = tmp_path / "m.npz"
    sp.save_npz(path, sp.csr_array(random_matrix()))

    def claim(members):
        header, content = io.BytesIO(), io.BytesIO(members[f"{name}.npy"])
        array = np.load(content)
        described = {"descr": array.dtype.str, "fortran_order": False, "shape": (10**14,)}
        np.lib.format.write_array_header_1_0(header, described)
        members[f"{name}.npy"] = header.getvalue() + array.tobytes()

    rewrite(path, claim)
    with pytest.raises(SourceError, match=r"not a complete \.npz file .*\(.*\(100000000000000,\)"):
        NpzSource(path)


def test_npz_with_pickles_is_refused(tmp_path):
    np.savez(tmp_path / "m.npz", format=np.array([print], object))
    with pytest.raises(SourceError, match="not a complete"):
        NpzSource(tmp_path / "m.npz")
    assert zipfile.is_zipfile(tmp_path / "m.npz")


def test_npz_that_unpacks_to_more_than_there_is_memory(tmp_path, monkeypatch):
    sp.save_npz(tmp_path / "m.npz", sp.csr_array(np.ones((1, 10**5))))
    assert (tmp_path / "m.npz").stat().st_size < 10**6
    monkeypatch.setattr(objects, "free_memory", lambda: 10**6)
    with pytest.raises(CapacityError, match=r"m.npz unpacks to 1\.2 MB, but 1 MB of memory are free; convert"):
        NpzSource(tmp_path / "m.npz")


# --- NetworkX ----------------------------------------------------------------------------------------------------


def make_graph(kind, weighted):
    graph = kind()
    graph.add_nodes_from([7, 3, 11, 5, 2])
    edges = [(7, 3, 2.5), (3, 7, 4.0), (3, 3, 8.0), (11, 5, 0.5), (7, 3, 1.25)]
    for u, v, weight in edges:
        graph.add_edge(u, v, **({"weight": weight} if weighted else {}))
    return graph


@pytest.mark.usefixtures("batch_size")
@pytest.mark.parametrize("kind", [nx.Graph, nx.DiGraph, nx.MultiGraph, nx.MultiDiGraph])
def test_networkx_graphs(kind):
    for weighted in (True, False):
        graph = make_graph(kind, weighted)
        source = GraphSource(graph)
        again, layout = rebuild(source)
        assert layout.vertex_ids.tolist() == [2, 3, 5, 7, 11]
        assert layout.vertex_ids.dtype == np.int64
        assert is_pattern(source) is not weighted
        assert source.default_kind == "graph"
        expected = nx.to_scipy_sparse_array(graph, nodelist=layout.vertex_ids.tolist())
        np.testing.assert_array_equal(again.toarray(), expected.toarray(), err_msg=f"weighted={weighted}")


def test_parallel_edges_come_one_by_one():
    again, _ = rebuild(GraphSource(make_graph(nx.MultiDiGraph, True)))
    assert again.nnz == 5
    assert sorted(again.data) == [0.5, 1.25, 2.5, 4.0, 8.0]


def test_missing_weights_are_1_where_others_have_one():
    graph = nx.DiGraph([(0, 1), (1, 2)])
    graph.edges[1, 2]["weight"] = 3
    again, _ = rebuild(GraphSource(graph))
    assert again.toarray().tolist() == [[0, 1, 0], [0, 0, 3], [0, 0, 0]]
    np.testing.assert_array_equal(again.toarray(), nx.to_scipy_sparse_array(graph).toarray())


def test_string_nodes_ascend():
    graph = nx.DiGraph([("b", "a"), ("a", "é"), ("10", "9")])
    again, layout = rebuild(GraphSource(graph))
    assert layout.vertex_ids.tolist() == ["10", "9", "a", "b", "é"]
    assert layout.vertex_ids.dtype == object
    np.testing.assert_array_equal(
        again.toarray(), nx.to_scipy_sparse_array(graph, nodelist=layout.vertex_ids.tolist()).toarray()
    )


def test_graphs_without_edges_or_nodes():
    graph = nx.Graph()
    assert GraphSource(graph).layout().shape == (0, 0)
    graph.add_nodes_from([np.int64(1), 0])
    again, layout = rebuild(GraphSource(graph))
    assert again.nnz == 0
    assert layout.shape == (2, 2)
    assert layout.vertex_ids is None


def test_other_nodes_are_refused():
    for nodes in ([1, "1"], [(0, 1)], [1.5], [None, 1], [True, 5], [2**63], [-(2**63) - 1]):
        graph = nx.Graph()
        for node in nodes:
            graph._adj[node] = graph._node[node] = {}
        with pytest.raises(OptionError, match=r"relabel them with networkx\.convert_node_labels_to_integers"):
            GraphSource(graph)


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        ("3.5", "DiGraph of 3 nodes: the weight of edge (1, 2) is '3.5', which is not a real number; convert it"),
        (None, "DiGraph of 3 nodes: the weight of edge (1, 2) is None, which is not a real number"),
        ([1, 2], "DiGraph of 3 nodes: the weight of edge (1, 2) is [1, 2], which is not a real number"),
        (2j, "DiGraph of 3 nodes: the weight of edge (1, 2) is 2j, which is not a real number"),
        (np.complex64(2j), "which is not a real number; convert it"),
    ],
)
def test_other_weights_are_refused(weight, message):
    graph = nx.DiGraph()
    graph.add_edge(0, 1, weight=1.0)
    graph.add_edge(1, 2, weight=weight)
    with pytest.raises(SourceError) as caught:
        list(GraphSource(graph).batches())
    assert message in str(caught.value)


# --- choice ------------------------------------------------------------------------------------------------------


class OwnGraph(nx.DiGraph):
    """A graph class of a user's."""


def test_which_reader_suits_an_object():
    for obj, kind in (
        (sp.csr_array((2, 2)), ScipySource),
        (sp.dok_matrix((2, 2)), ScipySource),
        (np.zeros((2, 2)), ScipySource),
        (nx.MultiGraph(), GraphSource),
        (OwnGraph(), GraphSource),
        (nx.path_graph(4).subgraph([1, 2]), GraphSource),
        (UniformSource(3, 3), UniformSource),
    ):
        assert type(open_source(obj)) is kind


@pytest.mark.parametrize(
    ("obj", "what"),
    [
        ({1: 2}, "an object of type builtins.dict"),
        (([0],), "a tuple of 1"),
        (None, "an object of type builtins.NoneType"),
        (aslinearoperator(np.eye(2)), "an object of type scipy.sparse.linalg"),
        (nx.path_graph(2).edges, "an object of type networkx.classes"),
    ],
)
def test_other_objects_are_refused(obj, what):
    with pytest.raises(OptionError) as caught:
        open_source(obj)
    message = str(caught.value)
    assert message.startswith(f"cannot read {what}")
    assert message.endswith(f"pass {INGESTIBLE}")
