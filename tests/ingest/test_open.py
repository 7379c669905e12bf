"""Which reader suits a source, and which options suit it."""

from __future__ import annotations

from pathlib import Path

import networkx as nx
import pyarrow as pa
import pytest
import scipy.io
import scipy.sparse as sp

from mgspmv.errors import OptionError, SourceError
from mgspmv.ingest.edge_list import EdgeListSource
from mgspmv.ingest.matrix_market import MatrixMarketSource
from mgspmv.ingest.objects import NpzSource
from mgspmv.ingest.open import EDGE_LIST_OPTIONS, open_source, open_update
from tests.support.arrays import read_numbered

MATRIX = sp.coo_array(([1.5, 2.5], ([0, 1], [1, 0])), shape=(2, 2))


@pytest.fixture
def files(tmp_path):
    """The matrix in each format that is detected."""
    scipy.io.mmwrite(tmp_path / "a.mtx", MATRIX, symmetry="general")
    sp.save_npz(tmp_path / "a.npz", MATRIX)
    (tmp_path / "a.txt").write_text("0 1 1.5\n1 0 2.5\n")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "format", "reader"),
    [
        ("a.mtx", "matrix-market", MatrixMarketSource),
        ("a.npz", "npz", NpzSource),
        ("a.txt", "edge-list", EdgeListSource),
    ],
)
def test_files(files, name, format, reader):
    for source in (files / name, str(files / name)):
        assert type(open_source(source)) is reader
        assert type(open_source(source, format=format)) is reader


def test_a_matrix_by_name_must_have_a_banner(files):
    (files / "a.txt").rename(files / "b.mtx")
    with pytest.raises(SourceError, match=r'there is no banner; .* pass format="edge-list"'):
        open_source(files / "b.mtx")
    assert type(open_source(files / "b.mtx", format="edge-list")) is EdgeListSource


@pytest.mark.parametrize(
    ("name", "format", "message"),
    [
        ("a.mtx", "edge-list", "Matrix Market"),
        ("a.mtx", "npz", "not a complete .npz file"),
        ("a.txt", "matrix-market", "%%MatrixMarket"),
        ("a.txt", "npz", "not a complete .npz file"),
        ("a.txt", "anndata", "there is no Zarr group"),
    ],
)
def test_format_that_the_file_has_not(files, name, format, message):
    with pytest.raises(SourceError, match=message):
        list(open_source(files / name, format=format).batches())


@pytest.mark.parametrize(
    "source", ["a.mtx", "a.npz", MATRIX, nx.path_graph(3)], ids=["mtx", "npz", "scipy", "networkx"]
)
def test_options_of_edge_lists_suit_nothing_else(files, source):
    form = {"a.mtx": "matrix-market", "a.npz": "npz"}.get(source) if isinstance(source, str) else type(source).__name__
    for name in set(EDGE_LIST_OPTIONS) - ({"weights"} if form == "Graph" else set()):
        with pytest.raises(OptionError) as caught:
            open_source(files / source if isinstance(source, str) else source, **{name: None})
        assert str(caught.value) == f"{name}= applies to an edge list, but this source is read as {form}; leave it out"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("n_vertexes", "; did you mean 'n_vertices'?"),
        ("symmetrise", "; did you mean 'symmetrize'?"),
        ("self_loop", "; did you mean 'self_loops'?"),
        ("overwrites", "; did you mean 'overwrite'?"),
        ("batch_bytes", "; options of an edge list: " + ", ".join(EDGE_LIST_OPTIONS)),
    ],
)
def test_unknown_options(name, hint):
    for source in (Path("none.txt"), MATRIX):
        with pytest.raises(OptionError) as caught:
            open_source(source, **{name: 1})
        assert str(caught.value) == f"ingest has no option {name!r}{hint}"


def read_all(source):
    rows, cols, values, layout = read_numbered(source)
    return rows, cols, values, layout.vertex_ids


def test_what_is_deleted_needs_no_weights(files):
    (files / "gone.txt").write_text("0 1\n")
    inserted, deleted = open_update(files / "a.txt", files / "gone.txt", weights=True)
    assert read_all(inserted)[2].tolist() == [1.5, 2.5]
    assert read_all(deleted)[2] is None
    table = pa.table({"a": [3], "b": [4], "c": ["of no matter"]})
    assert read_all(open_update(None, table, weights=True)[1])[2] is None
    assert read_all(open_update(None, table, columns=("b", "a", "c"))[1])[3].tolist() == [3, 4]
    (files / "gone.txt").write_text("0 1 of no matter\n")
    assert read_all(open_update(None, files / "gone.txt", columns=(1, 2))[1])[:2] == ([0], [1])


def test_names_are_read_as_names(files):
    inserted, deleted = open_update(files / "a.txt", files / "a.txt", set().__contains__)
    for source in (inserted, deleted):
        assert read_all(source)[3].tolist() == ["0", "1"]
    assert read_all(open_update(files / "a.txt", None)[0])[3] is None
    assert read_all(open_update(files / "a.txt", None, set().__contains__, ids="int")[0])[3] is None
