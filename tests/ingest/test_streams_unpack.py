"""Compressed texts of several members, whole and damaged."""

from __future__ import annotations

import gzip
import io
import os
import struct
import subprocess
import zlib

import pyarrow as pa
import pytest

from mgspmv.ingest.streams import TextStream, decompress, find_compression

TEXT = "".join(f"{k} {k * k}\n" for k in range(30_000)).encode()
END_OF_BGZF = bytes.fromhex("1f8b08040000000000ff0600424302001b0003000000000000000000")
"""The last block, as the format's specification gives it."""


def write_block(text):
    """A block of BGZF."""
    packer = zlib.compressobj(wbits=-15)
    packed = packer.compress(text) + packer.flush()
    head = b"\x1f\x8b\x08\x04" + bytes(4) + b"\0\xff" + b"\x06\0BC\x02\0" + struct.pack("<H", len(packed) + 25)
    return head + packed + struct.pack("<II", zlib.crc32(text), len(text))


def write_bgzf(text, size=5000):
    return b"".join(write_block(text[k : k + size]) for k in range(0, len(text), size)) + END_OF_BGZF


def write_frame(text):
    """A frame of zstd that names its size."""
    return pa.compress(text, codec="zstd", asbytes=True)


def write_unsized_frame(text):
    """A frame of zstd that does not, of two blocks."""
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(text[:7])
        stream.flush()
        stream.write(text[7:])
    return sink.getvalue().to_pybytes()


def skip(data=b"abcd"):
    """A frame of zstd that is to be skipped."""
    return b"\x5a\x2a\x4d\x18" + struct.pack("<I", len(data)) + data


def unpack_all(stored, size=2**20):
    return b"".join(decompress(io.BufferedReader(io.BytesIO(stored)), find_compression(stored[:16]), size))


def cut(text, size=9_000):
    return [text[k : k + size] for k in range(0, len(text), size)]


APART = {
    "bgzf": write_bgzf(TEXT),
    "bgzf without its last block": write_bgzf(TEXT)[: -len(END_OF_BGZF)],
    "bgzf with empty blocks": END_OF_BGZF * 3 + write_bgzf(TEXT) + END_OF_BGZF,
    "zstd": b"".join(map(write_frame, cut(TEXT))),
    "zstd without sizes": b"".join(map(write_unsized_frame, cut(TEXT))),
    "zstd with frames to skip": skip()
    + b"".join(skip(os.urandom(12)) + write_frame(part) for part in cut(TEXT))
    + skip(),
}


PARTS = {"bgzf": write_block, "zstd": write_frame, "gzip": gzip.compress}


@pytest.mark.parametrize("name", PARTS)
def test_lines_and_their_ends_lie_across_parts(tmp_path, name):
    parts = [b"1 2\r", b"\n3", b"", b" 4\r\n5 ", b"6\r", b"\r\n", b"7 8"]
    (tmp_path / "e").write_bytes(b"".join(map(PARTS[name], parts)))
    for chunk_bytes in (1, 3, 2**20):
        with TextStream(tmp_path / "e", chunk_bytes) as text:
            lines = [(line.number, line.data) for chunk in text.chunks() for line in chunk.lines()]
        assert lines == list(enumerate([b"1 2", b"3 4", b"5 6", b"", b"7 8"], 1)), chunk_bytes


COMMANDS = {
    "bgzip": ["bgzip", "-c"],
    "pzstd": ["pzstd", "-q", "-c"],
    "zstd": ["zstd", "-q", "-c"],
    "zstd of several threads": ["zstd", "-q", "-c", "-T4"],
    "gzip": ["gzip", "-c"],
    "pigz": ["pigz", "-c"],
}


@pytest.mark.parametrize("name", [pytest.param(k, marks=pytest.mark.external(own[0])) for k, own in COMMANDS.items()])
def test_what_programs_write(tmp_path, name):
    command = COMMANDS[name]
    text = TEXT * 25
    (tmp_path / "e").write_bytes(text)
    with open(tmp_path / "packed", "wb") as packed:
        subprocess.run([*command, tmp_path / "e"], stdout=packed, check=True)
    with TextStream(tmp_path / "packed") as found:
        assert b"".join(chunk.data for chunk in found.chunks()) == text


A, B, C = (TEXT[k : k + 20_000] for k in (0, 20_000, 40_000))
MIXED = {
    "gzip in bgzf": (write_bgzf(A) + gzip.compress(B) + write_bgzf(C), A + B + C),
    "bgzf in what is stored": (gzip.compress(write_bgzf(A), 0), write_bgzf(A)),
    "a frame without its size": (
        write_frame(A) + write_unsized_frame(B) + skip(bytes(50_000)) + write_frame(C),
        A + B + C,
    ),
}


@pytest.mark.parametrize("name", APART)
def test_members_are_read_to_the_last(name):
    for size in (700, 2**20):
        pieces = list(decompress(io.BufferedReader(io.BytesIO(APART[name])), find_compression(APART[name][:16]), size))
        assert b"".join(pieces) == TEXT, size
        assert max(map(len, pieces)) <= size


@pytest.mark.parametrize("name", MIXED)
def test_members_of_several_sorts(name):
    stored, text = MIXED[name]
    assert unpack_all(stored) == text


def make_error(tmp_path, stored):
    """The error that a text of these bytes gives."""
    (tmp_path / "e").write_bytes(stored)
    with pytest.raises(ValueError) as caught, TextStream(tmp_path / "e") as text:
        for _ in text.chunks():
            pass
    return str(caught.value)


WHOLE = {"gzip": write_block(A) + write_block(B), "zstd": write_frame(A) + write_frame(B)}


DAMAGED = {"checksum": -8, "size of the text": -4, "text": 300}


@pytest.mark.parametrize("what", DAMAGED)
def test_a_block_that_was_changed(tmp_path, what):
    block = bytearray(write_block(B))
    block[DAMAGED[what]] ^= 1
    said = make_error(tmp_path, write_block(A) + bytes(block) + write_block(C))
    assert "the gzip data are damaged or cut short" in said


def test_a_frame_that_was_changed(tmp_path):
    frame = bytearray(write_frame(B))
    frame[7] |= 6  # its first block is of no known sort
    said = make_error(tmp_path, write_frame(A) + bytes(frame) + write_frame(C))
    assert "the zstd data are damaged or cut short" in said


@pytest.mark.parametrize("codec", WHOLE)
def test_junk_after_the_last_part(tmp_path, codec):
    assert f"the {codec} data are damaged or cut short" in make_error(tmp_path, WHOLE[codec] + b"junk")
