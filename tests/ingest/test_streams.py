"""Texts in chunks of whole lines: compression, line ends, chunk sizes, provenance and what goes wrong."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import lzma
import os

import pyarrow as pa
import pytest

from mgspmv.errors import SourceError
from mgspmv.ingest import streams
from mgspmv.ingest.source import settle
from mgspmv.ingest.streams import TextStream

COMPRESS = {
    None: lambda data: data,
    "gzip": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zstd": lambda data: pa.compress(data, codec="zstd", asbytes=True),
}
TEXT = "".join(f"{i} {i * i}\n" for i in range(500)).encode()


@pytest.fixture
def write(tmp_path):
    def write_file(data, name="a.txt"):
        path = tmp_path / name
        path.write_bytes(data)
        return path

    return write_file


def read_lines(path, chunk_bytes=streams.CHUNK_BYTES):
    with TextStream(path, chunk_bytes) as text:
        return [line for chunk in text.chunks() for line in chunk.lines()]


@pytest.mark.parametrize("codec", COMPRESS)
def test_compression_is_found_whatever_the_name(write, codec):
    stored = COMPRESS[codec](TEXT)
    for chunk_bytes in (1, 7, 64, 2**22):
        with TextStream(write(stored, "misleading.dat"), chunk_bytes) as text:
            chunks = list(text.chunks())
            assert b"".join(chunk.data for chunk in chunks) == TEXT, chunk_bytes
            assert all(chunk.data.endswith(b"\n") for chunk in chunks), chunk_bytes
            numbers = [line.number for chunk in chunks for line in chunk.lines()]
            assert numbers == list(range(1, 501)), chunk_bytes
            assert settle(text.provenance()) == {
                "name": text.name,
                "bytes": len(stored),
                "sha256": hashlib.sha256(stored).hexdigest(),
                "compression": codec,
            }


@pytest.mark.parametrize("codec", [codec for codec in COMPRESS if codec])
def test_cut_short(write, codec):
    whole = COMPRESS[codec](os.urandom(600).hex().encode() + b"\n")
    for end in (7, len(whole) // 2, len(whole) - 1):
        if end == 7 and codec == "bz2":
            continue  # too short to be known for bzip2
        with pytest.raises(
            SourceError, match=f"a.txt: the {codec} data are damaged or cut short .*; fetch the file again"
        ):
            read_lines(write(whole[:end]))


@pytest.mark.parametrize("codec", ["gzip", "bz2", "xz"])
def test_damaged(write, codec):
    whole = bytearray(COMPRESS[codec](TEXT))
    whole[len(whole) // 2] ^= 0xFF
    with pytest.raises(SourceError, match=f"the {codec} data are damaged or cut short"):
        read_lines(write(bytes(whole)))


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"\n", [b""]),
        (b"a\nb\n", [b"a", b"b"]),
        (b"a\nb", [b"a", b"b"]),
        (b"a\r\nb\r\n", [b"a", b"b"]),
        (b"a\rb\r", [b"a", b"b"]),
        (b"a\r\rb", [b"a", b"", b"b"]),
        (b"a\n\r\n\rb\r\n\n", [b"a", b"", b"", b"b", b""]),
        (b"\xef\xbb\xbfa\nb\n", [b"a", b"b"]),
        (b"\xef\xbb\xbf", [b""]),
        (b"\xef\xbb\xbfa\r\n\xef\xbb\xbfb\xef\xbb\xbf\n", [b"a", b"b\xef\xbb\xbf"]),
    ],
)
def test_line_ends(write, data, lines):
    path = write(data)
    for chunk_bytes in (1, 2, 3, 5, 100):
        assert [line.data for line in read_lines(path, chunk_bytes)] == lines, chunk_bytes
        with TextStream(path, chunk_bytes) as text:
            got = []
            while (line := text.read_line()) is not None:
                got.append((line.number, line.data))
            assert got == list(enumerate(lines, 1)), chunk_bytes


def test_endless_line(write):
    path = write(b"1" * (streams.LINE_LIMIT_BYTES + 1))
    for chunk_bytes in (2**16, 2**22):
        with pytest.raises(SourceError, match="a line has more than 1048576 bytes; this is not a text"):
            read_lines(path, chunk_bytes)


def test_refusal_shows_line():
    error = streams.TextLine("a.txt", 7, b" 1 \xff 2 ").make_error("wrong; do right")
    assert str(error) == "a.txt, line 7: '1 � 2': wrong; do right"
    assert (error.source, error.line_number, error.text) == ("a.txt", 7, "1 � 2")
