"""Streams that can be read once: standard input, FIFOs and what a shell gives as /dev/fd/N."""

from __future__ import annotations

import gzip
import io
import os
import signal
import sys
import time
from threading import Thread, get_ident

import pytest
from zarr.storage import MemoryStore

import mgspmv as mg
from mgspmv.errors import OptionError, SourceError
from mgspmv.ingest import files
from mgspmv.ingest.files import Pipe
from mgspmv.ingest.open import open_source
from mgspmv.ingest.streams import TextStream

N = 60_000
"""Edges of a text that is longer than what a pipe holds and than what is looked at."""
RING = "".join(f"{k} {(k + 1) % N}\n" for k in range(N)).encode()


@pytest.fixture(scope="module")
def digest(tmp_path_factory):
    path = tmp_path_factory.mktemp("ring") / "ring.txt"
    path.write_bytes(RING)
    return mg.ingest(path).info.digest


@pytest.fixture
def write_fifo(tmp_path):
    """A FIFO that a thread writes to once it is opened."""
    threads = []

    def write(data, name="fifo"):
        path = tmp_path / name
        os.mkfifo(path)
        threads.append(Thread(target=lambda: path.write_bytes(data), daemon=True))
        threads[-1].start()
        return path

    yield write
    for thread in threads:
        thread.join()


class Stdin:
    def __init__(self, data):
        self.buffer = io.BytesIO(data)


@pytest.mark.parametrize("data", [RING, gzip.compress(RING)], ids=["plain", "gzip"])
@pytest.mark.parametrize("options", [{}, {"format": "edge-list"}], ids=["detected", "named"])
def test_all_lines_of_a_fifo_are_read(write_fifo, digest, data, options):
    assert mg.ingest(write_fifo(data), **options).info.digest == digest


def test_all_lines_of_standard_input_are_read(monkeypatch, digest):
    monkeypatch.setattr("sys.stdin", Stdin(RING))
    info = mg.ingest("-").info
    assert info.digest == digest
    assert info.provenance["source"]["name"] == "-"
    assert info.provenance["source"]["bytes"] == len(RING)


def test_short_reads_lose_nothing(monkeypatch):
    class Slow(io.RawIOBase):
        """Gives a byte at a time, as a terminal may."""

        left = b"\x1f\x8b" + bytes(40)

        def readable(self):
            return True

        def readinto(self, buffer):
            n = len(self.left[:1])
            buffer[:n], self.left = self.left[:1], self.left[1:]
            return n

    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BufferedReader(Slow())))
    pipe = Pipe("-")
    assert pipe.peek(20) == b"\x1f\x8b" + bytes(18)
    with pipe.open() as file:
        assert file.read() == b"\x1f\x8b" + bytes(40)
    assert not sys.stdin.closed


def test_a_signal_that_does_not_interrupt_the_read_itself_is_noticed(tmp_path, monkeypatch):
    """Another thread receives it, as if it came just before the read began."""
    os.mkfifo(tmp_path / "fifo")

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    monkeypatch.setattr(files, "PATIENCE_MS", 10)
    writer = os.open(tmp_path / "fifo", os.O_RDWR)  # there is no end of the stream

    def receive():
        time.sleep(0.1)  # the read has begun, most likely
        signal.pthread_kill(get_ident(), signal.SIGUSR1)

    thread = Thread(target=receive)
    try:
        with pytest.raises(KeyboardInterrupt):
            read_after(Pipe(str(tmp_path / "fifo")), thread)
    finally:
        thread.join()
        os.close(writer)
        signal.signal(signal.SIGUSR1, before)


def read_after(pipe, thread):
    thread.start()
    return pipe.peek(1)


def test_a_pipe_is_read_once(write_fifo):
    pipe = Pipe(str(write_fifo(b"1 2\n2 3\n")))
    assert pipe.peek(3) == b"1 2"
    with TextStream(pipe) as text:
        assert b"".join(chunk.data for chunk in text.chunks()) == b"1 2\n2 3\n"
    with pytest.raises(SourceError, match="it is a pipe that was read already; save it as a file"):
        TextStream(pipe)


def test_a_pipe_of_vertices_without_edges(write_fifo, tmp_path):
    (tmp_path / "none.txt").write_text("")
    info = mg.ingest(tmp_path / "none.txt", vertices=write_fifo(b"b\na\n")).info
    assert (info.shape, info.vertex_ids) == ((2, 2), "string")


def test_an_update_from_a_pipe(write_fifo):
    mg.ingest(([0, 1], [1, 2]), place := MemoryStore())
    assert mg.update(place, insert=write_fifo(b"src,dst\n0,2\n")).info.nnz == 3
    assert mg.update(place, delete=write_fifo(b"0,2\n", "again")).info.nnz == 2


@pytest.mark.parametrize("data", [b"PAR1" + bytes(20)], ids=["parquet"])
def test_tables_cannot_be_piped(write_fifo, data):
    with pytest.raises(SourceError, match="this is Parquet, which cannot be read in a pipe; save it as a file"):
        open_source(write_fifo(data))


def test_pipes_are_of_one_process(write_fifo, tmp_path):
    fifo = write_fifo(b"1 2\n")
    with pytest.raises(OptionError, match=r"is a pipe, read by one process; save it as a file, or leave client="):
        open_source(fifo, format="edge-list").split(2)
    fifo.read_bytes()
