"""Texts, local or remote, compressed or not, read in chunks of whole lines."""

from __future__ import annotations

import codecs
import hashlib
import io
import os
import re
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import IO, Any

import numpy as np

from mgspmv.errors import SourceError
from mgspmv.ingest.files import LentFile, check_unchanged, find_size, find_state, open_anywhere, reading, translating

CHUNK_BYTES, LEAST_CHUNK_BYTES = 4 * 2**20, 2**20
"""Most and least bytes per chunk by default; several threads hold several chunks in memory at a time."""

MANY_CHUNKS = 256
"""Number of chunks of a text beyond which they are larger: for many threads, a chunk must be worth handing over."""

LINE_LIMIT_BYTES = 2**20
"""Greatest length of a line in bytes; a longer one indicates that the file is not a text file."""

MAGIC_BYTES = 16
"""Bytes at the beginning of a file from which its compression is detected."""

HASHED_BYTES = 2**21
"""Bytes of a file that are hashed at a time."""

_MAGIC = {
    "gzip": re.compile(rb"\x1f\x8b"),
    "bz2": re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)"),
    "xz": re.compile(rb"\xfd7zXZ\x00"),
    "zstd": re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"),
}


@dataclass(frozen=True)
class TextLine:
    """Line of a text."""

    source: str
    """Name of the text."""
    number: int
    """1-based number of the line in the decompressed text."""
    data: bytes
    """Bytes of the line without the line end."""

    @property
    def text(self) -> str:
        return self.data.decode("utf-8", "replace").strip()

    def make_error(self, message: str) -> SourceError:
        """Return an error about this line."""
        return SourceError(message, source=self.source, line_number=self.number, text=self.text)

    def is_blank_or_comment(self, comments: bytes) -> bool:
        start = self.data.lstrip()[:1]
        return not start or start in comments


@dataclass(frozen=True)
class Chunk:
    """Whole lines of a text."""

    source: str
    """Name of the text."""
    first_line: int
    """1-based number of the first line."""
    data: bytes
    """Bytes of the lines, each line end normalized to a line feed; may be empty."""

    def lines(self) -> Iterator[TextLine]:
        for i, data in enumerate(self.data.split(b"\n")[:-1]):
            yield TextLine(self.source, self.first_line + i, data)


class TextStream(AbstractContextManager["TextStream"]):
    r"""Lines of a local or remote text, decompressed if necessary; the whole text is never in memory.

    Compression (gzip, bzip2, xz, zstd, each also of several members) is detected by the first bytes, not by the name.
    Lines may end in ``\n``, ``\r\n`` or ``\r``. A local file must not change until it is read to its end.

    Parameters
    ----------
    path : local path, or URL of any protocol that fsspec supports
    chunk_bytes : size of the chunks, rounded to whole lines; default by the size of the text
    hashes : whether `provenance` has the SHA-256 of the file

    Raises
    ------
    SourceNotFoundError : missing file
    SourceError : the file cannot be read, or its compressed data are damaged
    MissingDependencyError : fsspec lacks the library of the URL's protocol
    """

    def __init__(self, path: str | os.PathLike[str], chunk_bytes: int | None = None, *, hashes: bool = True) -> None:
        self.name = os.fspath(path)
        file = open_anywhere(self.name, is_streamed=True)
        self._size = find_size(file)
        state = find_state(file) if isinstance(file, io.FileIO) else None  # None where it cannot be read again
        self._hashing = None if state is None or not hashes else begin_hashing(self.name, state)
        self._raw = CountedFile(file, self.name, hashes=hashes and self._hashing is None)
        self._buffered = io.BufferedReader(self._raw, 2**18)
        self.compression = find_compression(self._buffered.peek(MAGIC_BYTES))
        usual = min(CHUNK_BYTES, max(LEAST_CHUNK_BYTES, (self._size or 0) // MANY_CHUNKS))
        pieces = decompress(self._buffered, self.compression, chunk_bytes or usual)
        pieces = _translating_errors(pieces, self.name, self.compression)
        self._blocks = _cut_at_lines(pieces, self.name)
        self._block, self._at, self._next_number = b"", 0, 1

    def __exit__(self, *error: object) -> None:
        self._buffered.close()

    @property
    def fraction(self) -> float | None:
        """Fraction of the file that was read; None if its size is not known."""
        return None if self._size is None else self._raw.n_bytes / max(1, self._size)

    def peek_line(self) -> TextLine | None:
        """Return the next line without consuming it; None at the end of the text."""
        if self._at == len(self._block):
            self._block, self._at = next(self._blocks, b""), 0
        if not self._block:
            return None
        return TextLine(self.name, self._next_number, self._block[self._at : self._block.index(b"\n", self._at)])

    def peek_lines(self, n_bytes: int, n_lines: int) -> Iterator[TextLine]:
        """Yield the next lines without consuming them: at most `n_lines`, of about `n_bytes` in total."""
        if self.peek_line() is None:
            return
        self._block, self._at = self._block[self._at :], 0
        while len(self._block) < n_bytes and self._block.count(b"\n") < n_lines and (more := next(self._blocks, b"")):
            self._block += more
        for k, data in enumerate(self._block.split(b"\n", n_lines)[:-1]):
            yield TextLine(self.name, self._next_number + k, data)

    def read_line(self) -> TextLine | None:
        """Return the next line and consume it; None at the end of the text."""
        line = self.peek_line()
        if line is not None:
            self._at += len(line.data) + 1
            self._next_number += 1
        return line

    def read_comments(self, comments: bytes) -> Iterator[TextLine]:
        """Consume blank lines and those that start with one of the characters `comments`; yield the latter one by one.

        A small archive may hold more of them than fit into memory.
        """
        while (line := self.peek_line()) is not None and line.is_blank_or_comment(comments):
            self.read_line()
            if line.data.strip():
                yield line

    def chunks(self) -> Iterator[Chunk]:
        """Yield all remaining lines, in at least one chunk."""
        self.peek_line()
        while True:
            block = self._block[self._at :]
            yield Chunk(self.name, self._next_number, block)
            self._next_number += int(np.count_nonzero(np.frombuffer(block, np.uint8) == ord("\n")))
            self._block, self._at = next(self._blocks, b""), 0
            if not self._block:
                return

    def provenance(self) -> dict[str, Any]:
        """Read the file to its end without its lines; return name, size, compression and SHA-256, maybe a future."""
        while self._buffered.read(CHUNK_BYTES):
            pass
        sha256 = self._raw.sha256 if self._hashing is None else self._hashing
        return {
            "name": self.name,
            "bytes": self._raw.n_bytes,
            **({} if sha256 is None else {"sha256": sha256}),
            "compression": self.compression,
        }


class CountedFile(io.RawIOBase):
    """File of bytes that counts what is read from it, and hashes it by another thread.

    Raises
    ------
    SourceError : also at the end, the file is in another state than before
    """

    def __init__(self, file: IO[bytes], name: str, *, hashes: bool = False) -> None:
        self.file, self._name = file, name
        with translating(name):
            self._state = find_state(file)
        self.n_bytes = 0
        self._hash = hashlib.sha256() if hashes else None
        self._hasher = ThreadPoolExecutor(1, "mgspmv-hash")
        self._hashing: Future[None] | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with translating(self._name):
            n = self.file.readinto(buffer)  # type: ignore[attr-defined]  # all files read here have it
            if not n:
                check_unchanged(self.file, self._state, self._name)
        self.n_bytes += n
        if self._hash is not None and n:
            piece = bytes(memoryview(buffer)[:n])
            if self._hashing is not None:
                self._hashing.result()
            self._hashing = self._hasher.submit(self._hash.update, piece)
        return int(n)

    @property
    def sha256(self) -> str | None:
        """Hash of all that was read, None if nothing is hashed."""
        if self._hashing is not None:
            self._hashing.result()
        return None if self._hash is None else self._hash.hexdigest()

    def close(self) -> None:
        self._hasher.shutdown(wait=False)
        self.file.close()
        super().close()


def begin_hashing(name: str, state: tuple[Any, ...] | None = None) -> Future[str]:
    """Begin to compute the SHA-256 of a local file in another thread, which the end of the program does not wait for.

    Parameters
    ----------
    state : of the file, by `find_state`; None for that when it is opened
    """
    hashed = Future[str]()

    def run() -> None:
        try:
            hashed.set_result(hash_file(name, state))
        except Exception as error:
            hashed.set_exception(error)

    threading.Thread(target=run, name="mgspmv-hash", daemon=True).start()
    return hashed


def hash_file(name: str, state: tuple[Any, ...] | None = None) -> str:
    """Return the SHA-256 of a local file, read in large pieces: each waits for the interpreter, which is busy."""
    found, piece = hashlib.sha256(), memoryview(bytearray(HASHED_BYTES))
    with translating(name), open(name, "rb", buffering=0) as file:
        state = state or find_state(file)
        while n := file.readinto(piece):
            found.update(piece[:n])
        check_unchanged(file, state, name)
    return found.hexdigest()


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
    text: Any = file
    if compression == "xz":
        import lzma

        text = lzma.LZMAFile(file)  # noqa: SIM115  # closed with its file
    elif compression is not None:
        import pyarrow as pa

        text = pa.CompressedInputStream(pa.PythonFile(LentFile(file), "r"), compression)
    while piece := text.read(size):
        yield piece


def _translating_errors(pieces: Iterator[bytes], name: str, compression: str | None) -> Iterator[bytes]:
    from lzma import LZMAError

    said = f"the {compression} data are damaged or cut short ({{}}); fetch the file again"
    with reading(name, said, EOFError, LZMAError):
        yield from pieces


def _cut_at_lines(pieces: Iterator[bytes], name: str) -> Iterator[bytes]:
    r"""Yield blocks of whole lines that end in ``\n``, without byte order marks at their beginning.

    Such marks may be in the middle of a text, where files that have one were concatenated.
    """
    rest = b""
    for piece in pieces:
        if b"\r" not in piece and not rest.endswith(b"\r") and (cut := piece.rfind(b"\n") + 1):
            yield _drop_byte_order_marks(b"".join((rest, memoryview(piece)[:cut])))
            rest = piece[cut:]
            continue
        block = rest + piece
        end = len(block) - block.endswith(b"\r")  # as a \n may follow in the next piece
        if b"\r" in block:
            block = block[:end].replace(b"\r\n", b"\n").replace(b"\r", b"\n") + block[end:]
        cut = block.rfind(b"\n") + 1
        if cut:
            yield _drop_byte_order_marks(block[:cut])
        rest = block[cut:]
        if len(rest) > LINE_LIMIT_BYTES:
            raise SourceError(f"a line has more than {LINE_LIMIT_BYTES} bytes; this is not a text file", source=name)
    if rest:
        yield _drop_byte_order_marks(rest.removesuffix(b"\r") + b"\n")


def _drop_byte_order_marks(block: bytes) -> bytes:
    if codecs.BOM_UTF8[:1] not in block or codecs.BOM_UTF8 not in block:  # one byte is found 10 times as fast
        return block
    return block.removeprefix(codecs.BOM_UTF8).replace(b"\n" + codecs.BOM_UTF8, b"\n")
