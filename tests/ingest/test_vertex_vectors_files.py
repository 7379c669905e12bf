"""Vectors from files: what is read, and what is refused with its line."""

from __future__ import annotations

import gzip

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mgspmv.errors import SourceError
from mgspmv.ingest.vertex_vectors import read_vector, read_weights


def read(path, **options):
    """The number of each id; 1 in a list."""
    columns = read_weights(path, **options).to_pydict()
    return dict(zip(columns["id"], columns.get("weight", [1.0] * len(columns["id"])), strict=True))


def test_lines(tmp_path):
    for text in (
        "1 0.5\n2 0.25\n",
        "1,0.5\r\n2, 2.5e-1",
        "# note\n\n% note\n1\t0.5\n2\t.25\n",
        "# note\nid,weight\n1,0.5\n2,0.25\n",
        "\ufeffid weight\n1 0.5\n 2   0.25 ",
    ):
        (tmp_path / "w.txt").write_text(text, encoding="utf-8")
        assert read(tmp_path / "w.txt") == {1: 0.5, 2: 0.25}, text
        assert read(tmp_path / "w.txt", string_ids=True) == {"1": 0.5, "2": 0.25}, text


def test_string_ids(tmp_path):
    (tmp_path / "w.csv").write_text("node,weight\nann,1\nb c,2\n")
    assert read(tmp_path / "w.csv", string_ids=True) == {"ann": 1.0, "b c": 2.0}


TEXTS = {
    "header": ("id,rank\nNew York,0.5\nb,2\n", {"New York": 0.5, "b": 2.0}),
    "another order": ("weight;node\n0.5;New York\n2;b\n", {"New York": 0.5, "b": 2.0}),
    "other names": ("city,population\nNew York,0.5\nb,2\n", {"New York": 0.5, "b": 2.0}),
    "more columns": ("label,degree,id,rank\nx,3,New York,0.5\ny,4,b,2\n", {"New York": 0.5, "b": 2.0}),
    "more numbers": ("id,degree,rank,weight\nNew York,3,0.5,1\nb,4,2,1\n", None),
    "saved index": (",id,rank\n0,New York,0.5\n1,b,2\n", {"New York": 0.5, "b": 2.0}),
    "no header": ("New York,0.5\nb,2\n", {"New York": 0.5, "b": 2.0}),
    "quotes": ('"Smith, J",0.5\n"say ""hi""",2\n"#ai",1\n', {"Smith, J": 0.5, 'say "hi"': 2.0, "#ai": 1.0}),
    "quoted header": ('"id","rank"\n"b","2"\n', {"b": 2.0}),
    "tab beats comma": ("Smith, J\t0.5\nDoe\t2\n", {"Smith, J": 0.5, "Doe": 2.0}),
    "blanks": ("ann 0.5\nb 2\n", {"ann": 0.5, "b": 2.0}),
    "blanks and quotes": ('"New York" 0.5\nb 2\n', {"New York": 0.5, "b": 2.0}),
    "signs below a header": ("id,rank\n#ai,0.5\n%b,2\n", {"#ai": 0.5, "%b": 2.0}),
    "comments": ("# made today\n\n% 2 lines\nann,0.5\n#b,2\n", {"ann": 0.5, "#b": 2.0}),
    "numbers as strings": ("007,0.5\n7,2\n", {"007": 0.5, "7": 2.0}),
    "ids": ("New York\nYork\nNew\n", ["New York", "York", "New"]),
    "ids below a header": ("vertex\nNew York\nb\n", ["New York", "b"]),
    "a word that comes again is an id": ("alice\nbob\n", ["alice", "bob"]),
    "quoted ids": ('"Smith, J"\n"#ai"\nDoe\n', ["Smith, J", "#ai", "Doe"]),
    "ids with commas": ("Smith, J\nDoe\n", ["Smith, J", "Doe"]),
    "ids with as many commas": ("Smith, J\nDoe, A\n", ["Smith, J", "Doe, A"]),
    "ids and comments": ("# my friends\nalice\n# and\nbob\n", ["alice", "bob"]),
    "an id": ("alice", ["alice"]),
}


def weigh(wanted):
    """The number of each id: 1 in a list."""
    return dict.fromkeys(wanted, 1.0) if isinstance(wanted, list) else wanted


@pytest.mark.parametrize(("text", "wanted"), TEXTS.values(), ids=TEXTS)
def test_texts_of_names(tmp_path, text, wanted):
    (tmp_path / "w.csv").write_text(text)
    with gzip.open(tmp_path / "w.csv.gz", "wt") as file:
        file.write(text)
    for name in ("w.csv", "w.csv.gz"):
        if wanted is None:
            with pytest.raises(SourceError, match="keep two, named `id` and `weight`"):
                read_weights(tmp_path / name, string_ids=True)
        else:
            assert read(tmp_path / name, string_ids=True) == weigh(wanted)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("5\n7\n", [5, 7]),
        ("id\n5\n7\n", [5, 7]),
        ("user\n5\n7\n", [5, 7]),
        ("# two\n5\n% more\n7", [5, 7]),
        ("rank,id\n0.5,5\n2,7\n", {5: 0.5, 7: 2.0}),
        ("id\tvalue\n5\t1e-3\n-7\t2\n", {5: 1e-3, -7: 2.0}),
        ("user,visits\n5,1\n7,2\n", {5: 1.0, 7: 2.0}),
    ],
)
def test_texts_of_integers(tmp_path, text, wanted):
    (tmp_path / "w.txt").write_text(text)
    assert read(tmp_path / "w.txt") == weigh(wanted)


def test_whole_lines_that_are_vertices_are_ids(tmp_path):
    (tmp_path / "w.txt").write_text("Area 51\nRoute 66\n")
    known = np.array(["Area 51", "Route 66"], object)
    assert read(tmp_path / "w.txt", string_ids=True, vertex_ids=known) == weigh(["Area 51", "Route 66"])
    assert read(tmp_path / "w.txt", string_ids=True, vertex_ids=known[:1]) == {"Area": 51.0, "Route": 66.0}
    both = np.array(["Area", "Area 51", "Route", "Route 66"], object)
    with pytest.raises(
        SourceError, match="the line is a vertex, and so is its first field, before a number; quote ids"
    ):
        read_weights(tmp_path / "w.txt", string_ids=True, vertex_ids=both)
    (tmp_path / "w.txt").write_text("Smith, J\nDoe, A\n")
    known = np.array(["Doe, A", "Smith, J"], object)
    assert read(tmp_path / "w.txt", string_ids=True, vertex_ids=known) == weigh(["Smith, J", "Doe, A"])


@pytest.mark.parametrize(
    ("text", "string_ids", "number", "message"),
    [
        ("#ai,0.5\nbob,2\n", True, 1, "begins like a comment but may be an id; quote it"),
        ("#ai\nbob\n", True, 1, "begins like a comment but may be an id; quote it"),
        ("alice\n#ml\n", True, 2, "begins like a comment but may be an id; quote it"),
        ("ann,0.5\n# and one more\nb,2\n", True, 2, "expected 'id weight', found 1 column"),
        ("ann,1\nbob\n", True, 2, "expected 'id weight', found 1 column"),
        ("ann,1\nbob,x\n", True, 2, "expected weight to be a finite number, found 'x'"),
        ("ann;0,5\n", True, 1, "expected a number as weight|with a decimal comma"),
        ("ann;1\nbob;0,5\n", True, 2, "with a decimal comma; write numbers with a decimal point"),
        ("id,rank\n,1\n", True, 2, "expected id to be a name, found ''"),
        (",rank\nann,1\n", True, 1, "found the columns '', rank; keep two"),
        ("id,name\nann,1\n", True, 1, "keep two, named `id` and `weight`"),
        ('"ann,1\nbob,1\n', True, 1, "invalid quotes"),
        ("007,1\n7,2\n", False, 1, "id is '007', .* the same vertex as 7; write it without zeros"),
        ("5.0,1\n", False, 1, "expected id to be a 64-bit integer, found '5.0'"),
        ("5\nbob\n", False, 2, "expected id to be a 64-bit integer, found 'bob'"),
    ],
)
def test_texts_that_are_refused(tmp_path, text, string_ids, number, message):
    (tmp_path / "w.txt").write_text(text)
    with pytest.raises(SourceError, match=message) as caught:
        read_weights(tmp_path / "w.txt", string_ids=string_ids)
    assert caught.value.line_number == number


def test_parquet_is_read_by_name_and_by_its_first_bytes(tmp_path):
    table = pa.table({"rank": [0.5, 2.0], "id": ["New York", "b"]})
    for name in ("w.parquet", "w"):
        pq.write_table(table, tmp_path / name)
        assert read_weights(tmp_path / name, string_ids=True).equals(table)
    pq.write_table(table, tmp_path / "folder.parquet", row_group_size=1)
    (tmp_path / "damaged.parquet").write_bytes(b"PAR1")
    with pytest.raises(SourceError, match="cannot be read as parquet"):
        read_weights(tmp_path / "damaged.parquet")
    with pytest.raises(SourceError, match="there is no such file"):
        read_weights(tmp_path / "none.parquet")


@pytest.mark.parametrize(
    ("lines", "number", "message"),
    [
        ("1 0.5\n2\n", 2, "expected 'id weight', found 1 column"),
        ("1 0.5 3\n", 1, "expected an id and a weight, found 3 fields"),
        ("1 0.5\nann 1\n", 2, "expected id to be a 64-bit integer, found 'ann'"),
        ("ann 1\n", 1, "expected id to be a 64-bit integer, found 'ann'"),
        ("9223372036854775808 1\n", 1, "expected id to be a 64-bit integer, found '9223372036854775808'"),
        ("1 x\n", 1, "expected weight to be a finite number, found 'x'"),
        ("1 0.5\nid weight\n", 2, "expected id to be a 64-bit integer, found 'id'"),
        ("1 nan\n", 1, "expected weight to be a finite number, found 'nan'"),
    ],
)
def test_malformed_line(tmp_path, lines, number, message):
    (tmp_path / "w.txt").write_text(lines)
    with pytest.raises(SourceError, match=message) as caught:
        read_weights(tmp_path / "w.txt")
    assert caught.value.line_number == number
    if number is not None:
        assert caught.value.text == lines.splitlines()[number - 1]
        assert f"w.txt, line {number}: '{caught.value.text}': " in str(caught.value)


def test_missing_and_binary_files(tmp_path):
    for name in ("none.txt", "none.npy"):
        with pytest.raises(SourceError, match=rf"{name}: there is no such file"):
            read_weights(tmp_path / name)
    (tmp_path / "b.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SourceError, match="the line is not UTF-8 text"):
        read_weights(tmp_path / "b.txt")


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
    with pytest.raises(SourceError, match=f"expected a one-dimensional array of real numbers, {found}"):
        read_vector(tmp_path / "x.npy")


def test_several_vectors(tmp_path):
    np.save(tmp_path / "x.npy", np.ones((3, 2)))
    assert read_vector(tmp_path / "x.npy", max_ndim=2).shape == (3, 2)
    np.save(tmp_path / "x.npy", np.ones((3, 2, 1)))
    with pytest.raises(SourceError, match="expected a one- or two-dimensional array"):
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
        with pytest.raises(SourceError, match=r"x\.npy: not a \.npy file of numbers"):
            read_vector(tmp_path / "x.npy", max_ndim=2)


def test_an_npy_of_a_later_version_is_refused(tmp_path):
    np.save(tmp_path / "x.npy", np.ones(3))
    content = (tmp_path / "x.npy").read_bytes()
    (tmp_path / "x.npy").write_bytes(content[:6] + b"\x09" + content[7:])
    with pytest.raises(SourceError, match=r"not a \.npy file of numbers \(we only support format version"):
        read_vector(tmp_path / "x.npy")
