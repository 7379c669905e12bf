"""Decompression of gzip, bzip2, xz and zstd, each also of several members."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import IO, Any, cast

MAGIC_BYTES = 16
"""Bytes at the beginning of a file from which its compression is detected."""

_MAGIC = {
    "gzip": re.compile(rb"\x1f\x8b"),
    "bz2": re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)"),
    "xz": re.compile(rb"\xfd7zXZ\x00"),
    "zstd": re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"),
}


def find_compression(head: bytes) -> str | None:
    """Return gzip, bz2, xz or zstd by the first `MAGIC_BYTES` of a file; None for anything else."""
    return next((name for name, magic in _MAGIC.items() if magic.match(head)), None)


def decompress(file: IO[bytes], compression: str | None, size: int) -> Iterator[bytes]:
    """Yield the decompressed text of a file, in pieces of at most `size` bytes.

    Parameters
    ----------
    compression : see `find_compression`

    Raises
    ------
    OSError, EOFError, lzma.LZMAError : the data are damaged or cut short
    """
    text = file if compression is None else _open_stream(file, compression)
    while piece := text.read(size):
        yield piece


def _open_stream(file: IO[bytes], compression: str) -> IO[bytes]:
    if compression == "xz":
        import lzma

        return lzma.open(file)
    import pyarrow as pa

    return cast(IO[bytes], pa.CompressedInputStream(pa.PythonFile(LentFile(file), "r"), compression))


class LentFile(io.RawIOBase):
    """Wrapper that leaves its file open when closed, as by pyarrow when a stream is released."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return int(self._file.readinto(buffer))  # type: ignore[attr-defined]  # all files read here have it
