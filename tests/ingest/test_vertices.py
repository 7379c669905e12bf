"""Numbering of ids: whatever the batches, codes and positions lead back to the ids that were read."""

from __future__ import annotations

import contextlib
import gzip
import os
import re
import sys
import threading

import numpy as np
import pyarrow as pa
import pytest

from mgspmv.errors import CapacityError, SourceError
from mgspmv.ingest import vertices
from mgspmv.ingest.budget import ANY_ROOM, MemoryBudget
from mgspmv.ingest.columns import TextColumn
from mgspmv.ingest.edge_list import EdgeListSource
from mgspmv.ingest.entries import sort_source
from mgspmv.ingest.headers import StatedForm
from mgspmv.ingest.streams import TextStream
from mgspmv.ingest.tokens import INT64_MAX, INT64_MIN
from mgspmv.ingest.vertices import (
    UNKNOWN,
    ListedIntegers,
    _list_integers,
    _list_names,
    read_vertices,
)
from mgspmv.model import IngestOptions
from tests.support.memory import measure_peak

INT = TextColumn("vertex", "int64", hint="ids, please")
NAME = TextColumn("vertex", "string")


def test_listed_integers():
    for ids in ([5], [0, 1, 2], [3, 7, 9], [-5, 0, 2**60], [INT64_MIN, INT64_MAX]):
        listed = ListedIntegers(np.array(ids))
        assert listed.encode(np.array(ids))[0].tolist() == list(range(len(ids)))
        strangers = [i for i in (-1, 4, 8, 2**61, INT64_MIN, INT64_MAX) if i not in ids]
        assert set(listed.encode(np.array(strangers))[0].tolist()) == {UNKNOWN}, ids
        numbering = listed.finish()
        assert numbering.shape[0] == len(ids)
        assert (numbering.vertex_ids is None) == (ids == [0, 1, 2])


def test_read_names(tmp_path):
    path = tmp_path / "a.v"
    for text, options, ids in (
        ("New York\nOslo\n", {}, ["New York", "Oslo"]),
        ("name\nNew York\nOslo\n", {}, ["New York", "Oslo"]),
        ("New York\t1\nOslo\t2\n", {}, ["New York", "Oslo"]),
        ("New York,1\nOslo,2\n", {"delimiter": ","}, ["New York", "Oslo"]),
        ("country,id\nUS,New York\nNO,Oslo\n", {}, ["New York", "Oslo"]),
        ('"Washington, DC"\n"say ""hi"""\n', {}, ["Washington, DC", 'say "hi"']),
        ('"#ai"\n# a comment\nbob\n', {}, ["#ai", "bob"]),
        ("#ai\nbob\n", {"comment": "none"}, ["#ai", "bob"]),
    ):
        path.write_text(text)
        listed, _ = read_vertices(path, NAME, StatedForm(**options))
        assert listed.finish().vertex_ids[:].tolist() == ids, text


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("", INT, "a.v: the list of vertices is empty; expected one id per line"),
        ("1\n2\n1\n", INT, "a.v: vertex 1 is listed more than once; list each vertex on one line only"),
        ("b\na\nb\n", TextColumn("vertex", "string"), "a.v: vertex 'b' is listed more than once"),
        ("1\nx\n", INT, "a.v, line 2: 'x': expected vertex to be a 64-bit integer, found 'x'; ids, please"),
        ("1\n2 3\n", INT, "a.v, line 2: '2 3': expected vertex to be a 64-bit integer, found '2 3'"),
        ("New York,1\nOslo,2\n", NAME, "each line has 2 columns separated by ','; quote such ids"),
        ("#ai\nbob\n", NAME, "line 1: '#ai': this line begins like a comment but may be an id; quote it"),
        ("bob\n#ai\n", NAME, "line 2: '#ai': this line begins like a comment but may be an id; quote it"),
        ("label,name\n1,a\n2,b\n", NAME, "expected one column of ids among label, name; name it `id`"),
    ],
)
def test_refused_lists(tmp_path, text, column, message):
    path = tmp_path / "a.v"
    path.write_text(text)
    with pytest.raises(SourceError) as caught:
        read_vertices(path, column)
    assert message in str(caught.value)


@pytest.mark.parametrize("are_names", [False, True])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_list_of_many_chunks_is_read_by_several_threads(tmp_path, monkeypatch, are_names, suffix):
    monkeypatch.setattr(TextStream.__init__, "__defaults__", (1000,))
    monkeypatch.setattr(sys.modules["mgspmv.ingest.numbering"], "PAGE_NAMES", 100)
    numbers = np.random.default_rng(0).permutation(20_000) * 7
    ids = [f"é{k}" for k in numbers] if are_names else numbers.tolist()
    path, text = tmp_path / f"a.v{suffix}", "".join(f"{each}\tx\n" for each in ids).encode()
    path.write_bytes(gzip.compress(text) if suffix else text)
    column = NAME if are_names else INT
    listed, provenance = read_vertices(path, column, StatedForm(), MemoryBudget(threads=3))
    assert listed.finish().vertex_ids[:].tolist() == sorted(ids)
    codes = listed.encode(pa.array(sorted(ids)) if are_names else np.sort(numbers))[0]
    assert (listed.finish().positions[codes] if are_names else codes).tolist() == list(range(20_000))
    assert provenance["bytes"] == path.stat().st_size
    text += text[: text.index(b"\n") + 1]
    path.write_bytes(gzip.compress(text) if suffix else text)
    with pytest.raises(SourceError, match=rf"vertex '?{ids[0]}'? is listed more than once"):
        read_vertices(path, column, StatedForm(), MemoryBudget(threads=3))


LISTS = {"integers": (INT, [f"{7 * k}" for k in range(50_000)]), "names": (NAME, [f"v{k:039}" for k in range(50_000)])}


@pytest.mark.parametrize("kind", LISTS)
@pytest.mark.parametrize("source", ["file", "pipe"])
def test_a_list_must_fit(tmp_path, monkeypatch, kind, source):
    """What it takes is told from how much of it was read."""
    monkeypatch.setattr(TextStream.__init__, "__defaults__", (10_000,))
    column, ids = LISTS[kind]
    ids = ids[: (n := 20_000)]
    need = {"integers": 32 * n, "names": (128 + 4 * 40) * n}[kind]
    path, text = tmp_path / "a.v", "\n".join(ids) + "\n"

    def give():
        if source == "file":
            path.write_text(text)
        else:
            path.unlink(missing_ok=True)
            os.mkfifo(path)
            threading.Thread(target=write_pipe, args=(path, text), daemon=True).start()

    give()
    assert len(read_vertices(path, column, StatedForm(), MemoryBudget(need))[0].finish().vertex_ids) == n
    give()
    message = r"a\.v: the list of vertices takes (about|more than) (.*) GB of memory, but the limit is .* GB; allow"
    with pytest.raises(CapacityError, match=message) as caught:
        read_vertices(path, column, StatedForm(), MemoryBudget(need // 2))
    said, about = re.search(message, str(caught.value)).groups()
    assert said == ("about" if source == "file" else "more than")
    assert 0.4 * need <= 1e9 * float(about) <= 1.1 * need


def write_pipe(path, text):
    with contextlib.suppress(BrokenPipeError):  # the reader has seen enough
        path.write_text(text)


@pytest.mark.parametrize("kind", LISTS)
def test_a_list_takes_no_more_than_is_counted(kind):
    """Beside the text on its way."""
    ids = LISTS[kind][1]
    columns = [np.array(list(map(int, ids)))] if kind == "integers" else [pa.array(ids, pa.large_string())]
    counted = sum(vertices._estimate_bytes(own) for own in columns)
    held = columns[0].nbytes

    def read():
        make = _list_integers(list(columns), "") if kind == "integers" else _list_names(list(columns), "", ANY_ROOM)
        make.finish()

    read()
    measured = held + measure_peak(read)
    peak = measured + (2 * held if kind == "names" else 0)  # Arrow's, which is not traced: joined, and sorted
    assert peak <= counted + (5 << 20) <= 4 * peak, f"counted {counted}, measured {peak}"


@pytest.mark.parametrize("memory", [1 << 40, 100])
def test_vertices_of_loops_that_are_dropped_are_there_whatever_the_memory(memory, tmp_path):
    (tmp_path / "edges.txt").write_text("1 2\n7 7\n")
    source = EdgeListSource(tmp_path / "edges.txt", id_room=MemoryBudget(memory))
    with sort_source(source, IngestOptions(self_loops="drop"), lambda *_: None) as found:
        assert list(found.vertex_ids[:]) == [1, 2, 7]
        assert sum(block.nnz for block in found.blocks()) == 1
