"""Vectors from files: what is read, and what is refused with its line."""

from __future__ import annotations

import numpy as np
import pytest

from mgspmv.errors import OptionError, SourceError
from mgspmv.ingest.weights import read_dangling, read_vector, read_vectors, read_weights


def test_lines(tmp_path):
    for text in (
        "1 0.5\n2 0.25\n",
        "1,0.5\r\n2, 2.5e-1",
        "# note\n\n% note\n1\t0.5\n2\t.25\n",
        "# note\nid,weight\n1,0.5\n2,0.25\n",
        "\ufeffid weight\n1 0.5\n 2   0.25 ",
    ):
        (tmp_path / "w.txt").write_text(text, encoding="utf-8")
        assert read_weights(tmp_path / "w.txt") == {1: 0.5, 2: 0.25}, text
        assert read_weights(tmp_path / "w.txt", string_ids=True) == {"1": 0.5, "2": 0.25}, text


def test_string_ids(tmp_path):
    (tmp_path / "w.csv").write_text("node,weight\nann,1\nb c,2\n")
    assert read_weights(tmp_path / "w.csv", string_ids=True) == {"ann": 1.0, "b c": 2.0}


def test_empty_file_is_an_empty_mapping(tmp_path):
    (tmp_path / "w.txt").write_text("# nothing\n")
    assert read_weights(tmp_path / "w.txt") == {}


@pytest.mark.parametrize(
    ("lines", "number", "message"),
    [
        ("1 0.5\n2\n", 2, "wanted an id and a weight, found 1 fields"),
        ("1 0.5 3\n", 1, "wanted an id and a weight, found 3 fields"),
        ("1 0.5\nann 1\n", 2, "wanted an integer id, found 'ann'"),
        ("ann 1\n", 1, "wanted an integer id, found 'ann'"),
        ("9223372036854775808 1\n", 1, "wanted a 64-bit integer id, found '9223372036854775808'"),
        ("1 x\n", 1, "wanted a number as weight, found 'x'"),
        ("1 0.5\nid weight\n", 2, "wanted an integer id, found 'id'"),
        ("1 nan\n", 1, "wanted a finite weight, found 'nan'"),
        ("1 0.5\n\n1 0.5\n", 3, "this id was given before"),
    ],
)
def test_malformed_line(tmp_path, lines, number, message):
    (tmp_path / "w.txt").write_text(lines)
    with pytest.raises(SourceError, match=message) as caught:
        read_weights(tmp_path / "w.txt")
    assert caught.value.line_number == number
    assert caught.value.text == lines.splitlines()[number - 1]
    assert f"w.txt, line {number}: '{caught.value.text}': " in str(caught.value)


def test_dangling_is_a_rule_or_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert read_dangling("drop") == "drop"
    (tmp_path / "d.txt").write_text("1 0.5\n")
    assert read_dangling("d.txt") == {1: 0.5}
    assert read_dangling("d.txt", string_ids=True) == {"1": 0.5}
    with pytest.raises(OptionError, match="must be uniform, drop, error or a file; there is no file 'unifrom'"):
        read_dangling("unifrom")


def test_vectors_of_pagerank(tmp_path):
    path = str(tmp_path / "w.txt")
    (tmp_path / "w.txt").write_text("1 0.5\n")
    assert read_vectors(None, None) == {}
    assert read_vectors(path, "drop") == {"dangling": "drop", "personalization": {1: 0.5}}
    assert read_vectors(None, None, path) == {"out_weight": {1: 0.5}}
    assert read_vectors(path, path, string_ids=True) == {"personalization": {"1": 0.5}, "dangling": {"1": 0.5}}


def test_missing_and_binary_files(tmp_path):
    for name in ("none.txt", "none.npy"):
        with pytest.raises(SourceError, match=rf"{name}: there is no such file"):
            read_weights(tmp_path / name)
    (tmp_path / "b.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SourceError, match="not a text file in UTF-8"):
        read_weights(tmp_path / "b.txt")


def test_vectors(tmp_path):
    for dtype in (np.float64, np.float32, np.int32, bool):
        np.save(tmp_path / "x.npy", np.array([1, 0, 1], dtype))
        for read in (read_vector, read_weights):
            assert read(tmp_path / "x.npy").dtype == dtype
            assert read(tmp_path / "x.npy").tolist() == [1, 0, 1], dtype


@pytest.mark.parametrize(
    ("array", "found"),
    [
        (np.ones((2, 1)), r"found float64 of shape \(2, 1\)"),
        (np.ones(2, complex), r"found complex128 of shape \(2,\)"),
        (np.array(["a"]), "found <U1"),
    ],
)
def test_other_arrays_are_refused(tmp_path, array, found):
    np.save(tmp_path / "x.npy", array)
    with pytest.raises(SourceError, match=f"wanted a one-dimensional array of real numbers, {found}"):
        read_vector(tmp_path / "x.npy")


def test_several_vectors(tmp_path):
    np.save(tmp_path / "x.npy", np.ones((3, 2)))
    assert read_vector(tmp_path / "x.npy", max_ndim=2).shape == (3, 2)
    np.save(tmp_path / "x.npy", np.ones((3, 2, 1)))
    with pytest.raises(SourceError, match="wanted a one- or two-dimensional array"):
        read_vector(tmp_path / "x.npy", max_ndim=2)


def test_what_is_no_npy_is_refused(tmp_path):
    np.savez(tmp_path / "z.npz", x=np.ones(2))
    (tmp_path / "z.npz").rename(tmp_path / "z.npy")
    np.save(tmp_path / "o.npy", np.array([object()]), allow_pickle=True)
    (tmp_path / "t.npy").write_text("1 2 3")
    (tmp_path / "e.npy").write_text("")
    (tmp_path / "p.npy").write_bytes(b"PK\x03\x04")
    for name in ("z.npy", "o.npy", "t.npy", "e.npy", "p.npy"):
        with pytest.raises(SourceError, match=r"not a \.npy file of numbers") as caught:
            read_vector(tmp_path / name)
        assert "unsafe" not in str(caught.value)
    with pytest.raises(SourceError, match="cannot be read: Is a directory"):
        read_vector(tmp_path)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_an_npy_that_is_shorter_than_its_header_claims_is_refused(tmp_path, version):
    for shape in ((10**14,), (10**14, 2), (2**32, 2**32), (4,)):
        header = str({"descr": "<f8", "fortran_order": False, "shape": shape}).encode() + b"\n"
        length = len(header).to_bytes(2 if version == 1 else 4, "little")
        (tmp_path / "x.npy").write_bytes(b"\x93NUMPY" + bytes([version, 0]) + length + header + bytes(24))
        said = (
            rf"not a \.npy file of numbers \(its header claims float64 of shape \({shape[0]},.*, and 24 follow: it was"
        )
        with pytest.raises(SourceError, match=rf"{said} cut"):
            read_vector(tmp_path / "x.npy", max_ndim=2)


def test_an_npy_of_a_later_version_is_refused(tmp_path):
    np.save(tmp_path / "x.npy", np.ones(3))
    content = (tmp_path / "x.npy").read_bytes()
    (tmp_path / "x.npy").write_bytes(content[:6] + b"\x09" + content[7:])
    with pytest.raises(SourceError, match=r"not a \.npy file of numbers \(we only support format version"):
        read_vector(tmp_path / "x.npy")
