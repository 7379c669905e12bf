"""Detection of the text format of a file."""

from __future__ import annotations

import bz2
import gzip
import io

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp

from mgspmv.errors import SourceError, SourceNotFoundError
from mgspmv.ingest.detect import detect_format
from tests.support.reference_data import shared_data


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%%MatrixMarket matrix coordinate real general\n", "matrix-market"),
        ("  %%matrixmarket  MATRIX junk\n", "matrix-market"),
        ("%%MatrixMarket vector coordinate real general\n", "matrix-market"),
        ("%MatrixMarket matrix coordinate real general\r\n", "matrix-market"),
        ("1 2\n", "edge-list"),
        ("1\t2\t0.5\n", "edge-list"),
        ("a,b\n", "edge-list"),
        ("% sym unweighted\n1 2\n", "edge-list"),
        ("# a comment\n" * 20_000 + "1 2\n", "edge-list"),
        ("# only a comment\n", "edge-list"),
        ("", "edge-list"),
    ],
)
def test_formats(tmp_path, text, expected):
    path = tmp_path / "a"
    for compress in (bytes, gzip.compress, bz2.compress):
        path.write_bytes(compress(text.encode()))
        assert detect_format(path) == expected, compress


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("matrices/xenon1.mtx.gz", "matrix-market"),
        ("mm_edge/fmm/py__matrix_coordinate_real_general.mtx.bz2", "matrix-market"),
        ("mm_edge/fmm/permissive__permissive_lines_indented.mtx", "matrix-market"),
        ("mm_edge/fmm/py__misc__windows_newlines.mtx", "matrix-market"),
        ("graphs/wiki-Vote.txt.gz", "edge-list"),
        ("graphs/email-Eu-core.csv.gz", "edge-list"),
        ("graphs/ldbc-example-directed.e", "edge-list"),
    ],
)
def test_published_files(name, expected):
    assert detect_format(shared_data(name)) == expected


def npz():
    buffer = io.BytesIO()
    sp.save_npz(buffer, sp.eye_array(3, format="csr"))
    return buffer.getvalue()


def mat():
    buffer = io.BytesIO()
    scipy.io.savemat(buffer, {"a": np.eye(3)})
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (npz(), "this is not a text"),
        (mat(), "this is not a text"),
        (gzip.compress(np.random.default_rng(0).bytes(1000)), "this is not a text"),
        (
            b"%%__BadBanner matrix coordinate real general\n4 4 0\n",
            "line 1: .*: this looks like a Matrix Market file and is none",
        ),
        (b"# c\n\n7\n8\n", "line 3: '7': a line of one column is no edge"),
        (b"1;2\n", "line 1: '1;2': a line of one column is no edge"),
    ],
)
def test_neither(tmp_path, data, message):
    path = tmp_path / "a"
    path.write_bytes(data)
    with pytest.raises(
        SourceError, match=f"a(: |, ){message}.*; read are Matrix Market files .* and edge lists .* or compressed"
    ):
        detect_format(path)


def test_one_column_of_a_published_file():
    with pytest.raises(SourceError, match="line 1: '1': a line of one column is no edge"):
        detect_format(shared_data("graphs/ldbc-example-directed.v"))


def test_missing_file(tmp_path):
    with pytest.raises(SourceNotFoundError):
        detect_format(tmp_path / "no")


def test_delimiter_of_the_user(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b"1;2\n")
    assert detect_format(path, delimiter=";") == "edge-list"
