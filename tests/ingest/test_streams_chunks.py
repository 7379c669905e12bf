"""Texts of many chunks, which threads parse: the lines, their numbers, and refusals."""

from __future__ import annotations

import hashlib
import os
from itertools import product

import numpy as np
import pytest

import mgspmv as mg
from mgspmv.errors import SourceError
from mgspmv.ingest.files import find_state
from mgspmv.ingest.source import settle
from mgspmv.ingest.streams import TextStream, begin_hashing, hash_file
from mgspmv.kernels.compiled import CompiledLater
from tests.support.shrinking import shrink
from tests.support.waiting import HANG_S

MARK = b"\xef\xbb\xbf"


@pytest.fixture(autouse=True)
def small(monkeypatch):
    shrink(monkeypatch, ingest__streams={"CHUNK_BYTES": 100})


def read(path, n_skipped=0):
    """Lines with their numbers, and the provenance."""
    with TextStream(path, None) as text:
        for _ in range(n_skipped):
            text.read_line()
        chunks = list(text.chunks())
        assert len(chunks) > 10
        return [(line.number, line.data) for chunk in chunks for line in chunk.lines()], settle(text.provenance())


def make_text(end, n=300, tail=True):
    rng = np.random.default_rng(1)
    lines = [b"x" * int(k) for k in rng.integers(0, 40, n)]
    return end.join(lines) + (end if tail else b"")


@pytest.mark.parametrize("tail", [True, False])
@pytest.mark.parametrize("n_skipped", [0, 3])
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("start", [b"", make_text(b"\n", 30)])
def test_lines_of_all_chunks(n_skipped, tail, end, start, tmp_path):
    data = start + make_text(end, tail=tail)
    (tmp_path / "a.txt").write_bytes(data)
    found, provenance = read(tmp_path / "a.txt", n_skipped)
    assert found == list(enumerate(data.splitlines(), 1))[n_skipped:]
    assert provenance["sha256"] == hashlib.sha256(data).hexdigest()


def test_byte_order_marks_are_dropped(tmp_path):
    (tmp_path / "a.txt").write_bytes(make_text(b"\n") + MARK + make_text(b"\n", 20))
    assert read(tmp_path / "a.txt")[0] == list(enumerate((make_text(b"\n") + make_text(b"\n", 20)).splitlines(), 1))


@pytest.mark.parametrize(("weights", "names"), list(product([False, True], repeat=2)))
def test_ranks_and_reports_are_those_of_an_ingest(weights, names, tmp_path):
    rng = np.random.default_rng(2)
    ends = rng.integers(0, 50, (2, 400))
    label = "v{}".format if names else "{}".format
    rows = [
        f"{label(i)} {label(j)}{f' {w:.3f}' if weights else ''}" for i, j, w in zip(*ends, rng.random(400), strict=True)
    ]
    rows[200:200] = ["# a comment", ""]
    path = tmp_path / "edges.txt"
    path.write_text("# Nodes: 50 Edges: 400\n" + "\n".join(rows))
    A = mg.ingest(path)
    found = mg.pagerank(path)
    assert found.digest() == mg.pagerank(A).digest()
    assert found.matrix["ingest"] == A.ingest_report.list_lines()


def test_errors_name_the_line(tmp_path):
    rows = [f"{k} {k + 1}" for k in range(2000)]
    rows[1500] = "1 two"
    rows[100] = "# a comment"
    (tmp_path / "edges.txt").write_text("\n".join(rows))
    for call in (mg.ingest, mg.pagerank):
        with pytest.raises(SourceError, match=r"edges.txt, line 1501: '1 two': expected target to be a 64-bit integer"):
            call(tmp_path / "edges.txt")


def test_lines_that_are_too_long(tmp_path, monkeypatch):
    shrink(monkeypatch, ingest__streams={"LINE_LIMIT_BYTES": 300})
    (tmp_path / "a.txt").write_bytes(b"1 2\n" * 100 + b"x" * 1000 + b"\n")
    with pytest.raises(SourceError, match="a line has more than"):
        read(tmp_path / "a.txt")


@pytest.mark.parametrize("n", [0, 50, 20_000])
def test_files_that_change_meanwhile(n, tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(make_text(b"\n"))
    os.utime(path, (1, 1))

    def change():
        with TextStream(path, None, hashes=False) as text:
            for k, chunk in enumerate(text.chunks()):
                if k == 3:
                    path.write_bytes(make_text(b"\n", n))
                list(chunk.lines())

    with pytest.raises(SourceError, match="was changed while it was read"):
        change()


def test_descriptors_are_closed(tmp_path):
    (tmp_path / "a.txt").write_bytes(make_text(b"\n"))
    before = len(os.listdir("/proc/self/fd"))
    read(tmp_path / "a.txt")
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("name", ["edges.txt", "matrix.mtx"])
def test_a_store_has_the_hash_of_a_text(name, tmp_path, monkeypatch):
    lines = b"".join(b"%d %d\n" % (k % 50 + 1, k % 7 + 1) for k in range(400))
    head = b"%%MatrixMarket matrix coordinate pattern general\n50 50 400\n" if name.endswith(".mtx") else b""
    (tmp_path / name).write_bytes(head + lines)
    monkeypatch.setattr(CompiledLater, "pays", True)
    matrix = mg.ingest(tmp_path / name, tmp_path / "a.zarr")
    source = matrix.info.provenance["source"]
    assert source["sha256"] == hashlib.sha256(head + lines).hexdigest()
    assert source["bytes"] == len(head + lines)


@pytest.mark.parametrize("n", [0, 1, 63, 64, 65, 1000])
def test_files_are_hashed_by_pieces(n, tmp_path, monkeypatch):
    shrink(monkeypatch, ingest__streams={"HASHED_BYTES": 64})
    data = np.random.default_rng(n).bytes(n)
    (tmp_path / "a").write_bytes(data)
    assert hash_file(str(tmp_path / "a")) == hashlib.sha256(data).hexdigest()


def test_a_file_that_is_replaced_before_it_is_hashed_is_an_error(tmp_path):
    """The hash would be of other bytes than were read."""
    path = tmp_path / "a"
    path.write_bytes(b"1 2\n")
    with open(path, "rb", buffering=0) as file:
        state = find_state(file)
    path.write_bytes(b"1 2\n3 4\n")
    with pytest.raises(SourceError, match="was changed while it was read"):
        begin_hashing(str(path), state).result(HANG_S)
    assert begin_hashing(str(path)).result(HANG_S) == hashlib.sha256(b"1 2\n3 4\n").hexdigest()


@pytest.mark.parametrize(
    "line", [b"# a comment\r7 8\n", b"\r7 8\r\n", b"7 8\r", b"\xef\xbb\xbf7 8\n", b"#\r# \xff\r7 8\n"]
)
def test_no_edge_is_hidden_by_another_end_of_a_line(line, tmp_path, monkeypatch):
    monkeypatch.setattr(CompiledLater, "pays", True)
    lines = b"".join(b"%d %d\n" % (k % 50, k % 7) for k in range(400))
    (tmp_path / "edges.txt").write_bytes(lines + line + lines)
    found = mg.ingest(tmp_path / "edges.txt", duplicates="keep")
    assert found.nnz == 801
    assert mg.pagerank(tmp_path / "edges.txt").digest() == mg.pagerank(mg.ingest(tmp_path / "edges.txt")).digest()
