"""Local texts that change while they are read: an error that names the file, and never a mixture of two states."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from unittest.mock import patch

import pytest

from mgspmv.errors import SourceError
from mgspmv.ingest import streams
from mgspmv.ingest.edge_list import EdgeListSource
from mgspmv.ingest.matrix_market import MatrixMarketSource
from mgspmv.ingest.streams import TextStream

N_LINES = 200_000
EDGES = "".join(f"{k} {k + 1}\n" for k in range(N_LINES))
BANNER = f"%%MatrixMarket matrix coordinate pattern general\n{N_LINES + 1} {N_LINES + 1} {N_LINES}\n"
TEXTS = {"e.txt": EDGES, "a.mtx": BANNER + "".join(f"{k} {k + 1}\n" for k in range(1, N_LINES + 1))}


def append(path: Path) -> None:
    with path.open("a") as file:
        file.write("7 8\n")


def truncate(path: Path) -> None:
    os.truncate(path, path.read_bytes().index(b"\n", path.stat().st_size // 2) + 1)


def overwrite(path: Path) -> None:
    before = path.stat()
    path.write_bytes(path.read_bytes())
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 10**9))


CHANGES = [append, truncate, overwrite]


def replace(path: Path) -> None:
    path.with_name("new").write_bytes(path.read_bytes())
    path.with_name("new").replace(path)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read_on(source, change, path):
    """Read a source of small batches whose file is changed after the first of them."""
    with patch.object(streams, "CHUNK_BYTES", 10_000):
        for k, _ in enumerate(source.batches()):
            if k == 0:
                change(Path(path))


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_changes_while_it_is_read(change, name):
    Path(name).write_text(TEXTS[name])
    make = EdgeListSource if name == "e.txt" else MatrixMarketSource
    with pytest.raises(SourceError, match=rf"^{name}: was changed while it was read; copy it first"):
        read_on(make(name, threads=1), change, name)


def test_compressed_files_and_other_texts():
    Path("e.txt.gz").write_bytes(gzip.compress(EDGES.encode(), 1))
    with pytest.raises(SourceError, match=r"^e.txt.gz: was changed while it was read"):
        read_on(EdgeListSource("e.txt.gz", threads=1), append, "e.txt.gz")
    Path("v.txt").write_text(EDGES)
    with TextStream("v.txt", 10_000) as text:
        chunks = text.chunks()
        next(chunks)
        append(Path("v.txt"))
        with pytest.raises(SourceError, match=r"^v.txt: was changed"):
            list(chunks)
