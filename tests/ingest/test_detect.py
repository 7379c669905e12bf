"""Detection of the text format of a file."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile

import numpy as np
import pytest
import scipy.io

from mgspmv.errors import SourceError
from mgspmv.ingest.detect import ForeignFormat, detect_format, find_format_by_bytes, find_format_by_name


def mat():
    buffer = io.BytesIO()
    scipy.io.savemat(buffer, {"a": np.eye(3)})
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (mat(), "this is MATLAB, which ingest does not read; read it with scipy.io.loadmat"),
        (gzip.compress(np.random.default_rng(0).bytes(1000), mtime=0), "this is not a text file; ingest reads Matrix"),
        (
            b"%%__BadBanner matrix coordinate real general\n4 4 0\n",
            "the suffix .mtx, or %% in the first line, indicates Matrix Market, but there is no banner; write",
        ),
        ("1 2\n".encode("utf-16"), "this text is in UTF-16"),
        (gzip.compress(b"PAR1" + bytes(20), mtime=0), "this is Parquet, which .* compressed file; decompress it"),
        (b"\x89HDF\r\n\x1a\n" + bytes(9), "this is HDF5, which"),
        (b'<?xml version="1.0"?><graphml>', "this is GraphML, which .*networkx.read_graphml"),
    ],
)
def test_files_that_are_not_read(tmp_path, data, message):
    path = tmp_path / "a"
    path.write_bytes(data)
    with pytest.raises(SourceError, match=f"a(: |, ){message}"):
        detect_format([str(path)])


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("a.graph", "a METIS graph"),
        ("a.graphml", "GraphML"),
        ("a.h5ad", "AnnData in HDF5"),
        ("a.npy", "a NumPy array"),
        ("a.mtx", "suffix .mtx, .* indicates Matrix Market, but there is no banner"),
    ],
)
def test_names_of_formats_that_are_not_read(tmp_path, name, what):
    path = tmp_path / name
    path.write_text("1 2\n2 3\n")
    with pytest.raises(SourceError, match=what):
        detect_format([str(path)])


def test_archives_are_refused(tmp_path):
    (tmp_path / "edges.csv").write_text("1,2\n")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.write(tmp_path / "edges.csv", "data/edges.csv")
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "edges.csv", "data/edges.csv")
    (tmp_path / "b").write_bytes((tmp_path / "a.tar.gz").read_bytes())
    (tmp_path / "c").write_bytes((tmp_path / "a.zip").read_bytes())
    for name, what in (("a.zip", "zip"), ("a.tar.gz", "tar"), ("b", "tar"), ("c", "zip")):
        with pytest.raises(SourceError, match=rf"this is a {what} archive, which .*; unpack it and name the files"):
            detect_format([str(tmp_path / name)])


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("a.parquet", "parquet"),
        ("a.PARQUET", "parquet"),
        ("a.parq", "parquet"),
        ("a.npz", "npz"),
        ("a.csv", None),
        ("a.csv.gz", None),
        ("part-00000", None),
        ("a.mtx", None),
        ("a.graph", "METIS"),
        ("a.graphml.gz", "GraphML"),
        ("a.tar.gz", "tar"),
        ("a.zip", "zip"),
        ("a.h5ad", "AnnData"),
        ("a.npy", "NumPy"),
    ],
)
def test_formats_by_name(name, found):
    made = find_format_by_name(name)
    assert made == found if not isinstance(made, ForeignFormat) else found in made.what


@pytest.mark.parametrize(
    ("head", "found"),
    [
        (b"PAR1\x15\x04", "parquet"),
        (b"%%MatrixMarket matrix coordinate real general\n", "matrix-market"),
        (b"\xef\xbb\xbf%%MatrixMarket matrix", "matrix-market"),
        (b"1 2\n2 3\n", None),
        (b"graph bob\n", None),
        (b"", None),
        (b"PK\x03\x04abc", "zip"),
        (b"a.txt" + bytes(252) + b"ustar\x0000", "tar"),
        (b"\x89HDF\r\n\x1a\n", "HDF5"),
        (b"\x93NUMPY\x01\x00", "NumPy"),
        (b'<?xml version="1.0"?>\n<graphml xmlns="x">', "GraphML"),
        (b"<?xml version='1.0'?><gexf>", "GEXF"),
        (b"graph [\n  node [", "GML"),
        (b'Creator "me"\ngraph [\n', "GML"),
        (b"*Vertices 3\n", "Pajek"),
        (b"c comment\np sp 4 5\na 1 2 3\n", "DIMACS"),
        (b"p edge 4 5\n", "DIMACS"),
        (b"digraph g {\n a -> b;", "DOT"),
        (b'{"nodes": [', "JSON"),
        (b"[[1, 2], [2, 3]]", "JSON"),
        (b"<html>", "XML"),
        (b"\x80\x04\x95", "pickle"),
        (b"MATLAB 5.0 MAT-file", "MATLAB"),
        (b"ARROW1\x00\x00", "Feather"),
        (b"SQLite format 3\x00", None),
    ],
)
def test_formats_by_first_bytes(head, found):
    made = find_format_by_bytes(head)
    assert made == found if not isinstance(made, ForeignFormat) else found in made.what
