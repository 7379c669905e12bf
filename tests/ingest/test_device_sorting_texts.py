"""Texts whose entries are sorted on a device, parsed by threads in memory that they reuse."""

import numpy as np
import pytest

from mgspmv.ingest import edge_list
from mgspmv.kernels.compiled import CompiledLater
from mgspmv.model import IngestOptions
from tests.ingest.test_device_sorting import load, sorters  # noqa: F401  # a fixture
from tests.support.shrinking import shrink

RNG = np.random.default_rng(7)
SRC, DST = RNG.integers(0, 500, (2, 4000))
WEIGHTS = (RNG.random(4000) * 100).round(3)


def write(scale=1, shift=0, weights=False, head="", every=None, end="\n"):
    lines = [f"{scale * i + shift} {scale * j + shift}" for i, j in zip(SRC, DST, strict=True)]
    if weights:
        lines = [f"{line} {weight}" for line, weight in zip(lines, WEIGHTS, strict=True)]
    if every is not None:
        lines = [own for k, line in enumerate(lines) for own in ([every, line] if k % 97 == 5 else [line])]
    half = len(lines) // 2
    text = head + "\n".join(lines[:half]) + "\n" + end.join(lines[half:])
    return text.encode()


TEXTS = {
    "numbers": write(),
    "64-bit ids": write(10**12),
    "negative": write(1, -250),
    "beyond int32 at times": write(9_000_000, 0),
    "weights": write(weights=True),
    "comments": write(every='# "a comment" über'),
    "blank lines": write(every=" \t"),
    "stated vertices": write(head="# Nodes: 600 Edges: 4000\n"),
    "stated vertices that are too few": write(head="# Nodes: 400 Edges: 4000\n"),
    "other ends of lines": write(end="\r\n"),
    "byte order mark": write().replace(b"\n", b"\n\xef\xbb\xbf", 1500).replace(b"\xef\xbb\xbf", b"", 1499),
}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    shrink(monkeypatch, ingest__streams={"CHUNK_BYTES": 500})
    monkeypatch.setattr(CompiledLater, "pays", True)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_arrays_are_those_of_the_host(text, sorters, tmp_path, monkeypatch):  # noqa: F811
    make, made = sorters
    path = tmp_path / "edges.txt"
    path.write_bytes(text)
    n_chunks = []
    read = edge_list.read_chunks

    def spy(chunks, *args):
        return read((n_chunks.append(1) or chunk for chunk in chunks), *args)

    monkeypatch.setattr(edge_list, "read_chunks", spy)
    options = IngestOptions("graph")
    wanted = load(path, options)
    assert len(n_chunks) > 40
    found = load(path, options, make)
    assert not made[-1].is_moved
    assert found.info == wanted.info
    assert found.digest == wanted.digest


def test_entries_are_kept_apart_where_they_move_to_the_host(sorters, tmp_path):  # noqa: F811
    make, made = sorters

    def make_small(host):
        sorter = make(host)
        sorter.most_bytes = 40_000
        return sorter

    (tmp_path / "edges.txt").write_bytes(TEXTS["64-bit ids"])
    options = IngestOptions("graph")
    wanted = load(tmp_path / "edges.txt", options)
    assert load(tmp_path / "edges.txt", options, make_small).digest == wanted.digest
    assert len(made) == 1
