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
from mgspmv.ingest.detect import detect_format


def mat():
    buffer = io.BytesIO()
    scipy.io.savemat(buffer, {"a": np.eye(3)})
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (mat(), "this is MATLAB, which ingest does not read; read it with scipy.io.loadmat"),
        (gzip.compress(np.random.default_rng(0).bytes(1000), mtime=0), "this is not a text; ingest reads Matrix"),
        (
            b"%%__BadBanner matrix coordinate real general\n4 4 0\n",
            "line 1: .*: this looks like a Matrix Market file and is none; ingest reads",
        ),
        ("1 2\n".encode("utf-16"), "this is a text in UTF-16"),
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
        ("a.mtx", "named like a Matrix Market file and has no banner"),
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
