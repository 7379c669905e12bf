"""Decompression: by several threads where a file is made of parts that can be decompressed apart.

    stored bytes --find whole parts--> groups of them --decompress, several at a time--> text, in order

Such parts are the blocks of BGZF (which `bgzip` writes: gzip members that name their size in an extra field, SAM/BAM
Format Specification, section 4.1) and the frames of zstd (RFC 8878; their blocks name their sizes, and `pzstd` and
others write many of them), as long as they are small. From the first part on that is of another sort, or that the file
does not hold whole, the rest is decompressed from its begin to its end.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import IO, Any, cast

from mgspmv.ingest.ahead import map_ahead

GROUP_BYTES = 2**20
"""Stored, and of text, that a thread decompresses at a time, where parts are not larger."""
PART_BYTES = 2**23
"""Most that a part may have, stored and of text, to be decompressed apart: what `pzstd` makes parts of."""
FEW_THREADS = 2
"""So many parse no faster than one decompresses, and parts cost some copies more."""

_ZSTD = b"\x28\xb5\x2f\xfd"
_SKIPPABLE = re.compile(rb"[\x50-\x5f]\x2a\x4d\x18")
_MAGIC = {
    "gzip": re.compile(rb"\x1f\x8b"),
    "bz2": re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)"),
    "xz": re.compile(rb"\xfd7zXZ\x00"),
    "zstd": re.compile(re.escape(_ZSTD) + b"|" + _SKIPPABLE.pattern),
}
_BGZF_HEAD = re.compile(rb"\x1f\x8b\x08\x04.{6}\x06\x00BC\x02\x00", re.DOTALL)
_BGZF_HEAD_BYTES, _BGZF_TEXT_BYTES = 18, 2**16
_ZSTD_HEAD_BYTES, _ZSTD_BLOCK_BYTES = 18, 2**17


def find_compression(head: bytes) -> str | None:
    """Tell gzip, bz2, xz or zstd by the first 16 bytes of a file; None for what is none of them."""
    return next((name for name, magic in _MAGIC.items() if magic.match(head)), None)


def decompress(file: IO[bytes], compression: str | None, size: int, threads: int) -> Iterator[bytes]:
    """The text of a file, in pieces of at most `size` bytes.

    Parameters
    ----------
    compression : as of `find_compression`
    threads : that decompress, where they are more than few and there are parts for several

    Raises
    ------
    OSError, EOFError, lzma.LZMAError : the data are damaged or cut short
    """
    if compression is None:
        yield from _read_all(file, size)
        return
    seen = _SeenFile(file)
    if compression in _MEASURES and threads > FEW_THREADS:
        groups = _group_parts(seen, _MEASURES[compression])
        with ThreadPoolExecutor(threads, "mgspmv-unpack") as pool:
            unpack = partial(_decompress_group, compression=compression, size=size)
            for pieces in map_ahead(pool, unpack, groups, threads):
                yield from pieces
    yield from _read_all(_open_stream(seen, compression), size)


def _read_all(file: IO[bytes], size: int) -> Iterator[bytes]:
    while piece := file.read(size):
        yield piece


def _open_stream(file: Any, compression: str) -> IO[bytes]:
    if compression == "xz":
        import lzma

        return lzma.open(file)
    import pyarrow as pa

    return cast(IO[bytes], pa.CompressedInputStream(pa.PythonFile(file, "r"), compression))


class _SeenFile(io.RawIOBase):
    """A file of which bytes are seen before they are read; to close it leaves the file open."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._seen = file, bytearray()

    def readable(self) -> bool:
        return True

    def see(self, start: int, n: int) -> bytes:
        """`n` bytes from `start` on, counted from where the file is read next; fewer at the end of the file."""
        while (missing := start + n - len(self._seen)) > 0:
            if not (piece := self._file.read(max(missing, 2**16))):
                break
            self._seen += piece
        with memoryview(self._seen) as seen:
            return bytes(seen[start : start + n])

    def take(self, n: int) -> bytes:
        """Read `n` bytes, all of which were seen."""
        taken = self.see(0, n)
        del self._seen[:n]
        return taken

    def readinto(self, buffer: Any) -> int:
        if not self._seen:
            return int(self._file.readinto(buffer))  # type: ignore[attr-defined]  # there in all that is read here
        taken = self.take(min(len(buffer), len(self._seen)))
        buffer[: len(taken)] = taken
        return len(taken)


# --- parts that can be decompressed apart ----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Group:
    """Whole parts that follow each other."""

    data: bytes
    text_bytes: int
    """Most that they decompress to."""


_Measure = Callable[[_SeenFile, int], tuple[int, int] | None]
"""Stored bytes of the part at some place, and most bytes of its text; None for what is no whole part or a large one."""


def _group_parts(file: _SeenFile, measure: _Measure) -> Iterator[_Group]:
    """Read parts as long as there are some."""
    while part := measure(file, 0):
        stored, text = 0, 0
        while part and (not stored or max(stored + part[0], text + part[1]) <= GROUP_BYTES):
            stored, text = stored + part[0], text + part[1]
            part = measure(file, stored)
        yield _Group(file.take(stored), text)


def _decompress_group(group: _Group, compression: str, size: int) -> list[bytes]:
    import pyarrow as pa

    stream = pa.CompressedInputStream(pa.BufferReader(group.data), compression)
    pieces, left = [], group.text_bytes
    while piece := stream.read(min(size, left + 1)):
        pieces.append(piece)
        left -= len(piece)
        if left < 0:
            raise OSError("a part holds more than it says")
    return pieces


def _measure_block(file: _SeenFile, start: int) -> tuple[int, int] | None:
    """Measure a block of BGZF."""
    head = file.see(start, _BGZF_HEAD_BYTES)
    if not _BGZF_HEAD.match(head) or len(head) < _BGZF_HEAD_BYTES:
        return None
    stored = int.from_bytes(head[-2:], "little") + 1
    size = file.see(start + stored - 4, 4)
    text = int.from_bytes(size, "little")
    return (stored, text) if stored > _BGZF_HEAD_BYTES and len(size) == 4 and text <= _BGZF_TEXT_BYTES else None


def _measure_frame(file: _SeenFile, start: int) -> tuple[int, int] | None:
    """Measure a frame of zstd, or one that is to be skipped."""
    head = file.see(start, _ZSTD_HEAD_BYTES)
    if _SKIPPABLE.match(head):
        found: tuple[int, int] | None = 8 + int.from_bytes(head[4:8], "little"), 0
    elif head[:4] == _ZSTD and len(head) > 4:
        found = _walk_blocks(file, start, head)
    else:
        return None
    return found if found and found[0] <= PART_BYTES and file.see(start + found[0] - 1, 1) else None


def _walk_blocks(file: _SeenFile, start: int, head: bytes) -> tuple[int, int] | None:
    """Measure a frame of zstd by its blocks, and by the size that its head may name."""
    descriptor = head[4]
    is_single, has_checksum = descriptor >> 5 & 1, descriptor >> 2 & 1
    n_window, n_dictionary, n_size = 1 - is_single, (0, 1, 2, 4)[descriptor & 3], (is_single, 2, 4, 8)[descriptor >> 6]
    stored, text, is_last = 5 + n_window + n_dictionary, 0, 0
    named = int.from_bytes(head[stored : stored + n_size], "little") + 256 * (n_size == 2)
    stored += n_size
    while not is_last:
        block = file.see(start + stored, 3)
        header = int.from_bytes(block, "little")
        is_last, kind, n_bytes = header & 1, header >> 1 & 3, header >> 3
        stored += 3 + (1 if kind == 1 else n_bytes)
        text += n_bytes if kind < 2 else _ZSTD_BLOCK_BYTES
        if len(block) < 3 or kind > 2 or max(stored, named if n_size else text) > PART_BYTES:
            return None
    return stored + 4 * has_checksum, named if n_size else text


_MEASURES: dict[str, _Measure] = {"gzip": _measure_block, "zstd": _measure_frame}
