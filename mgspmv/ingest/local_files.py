"""Local files, which must not change while they are read, pipes, and opening of files at any path or URL."""

from __future__ import annotations

import io
import os
import stat
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any, cast

from mgspmv.errors import SourceError, SourceNotFoundError
from mgspmv.ingest.remote import open_url
from mgspmv.ingest.unpack import MAGIC_BYTES
from mgspmv.os_errors import refuse_source


@dataclass(frozen=True)
class FileState:
    """State of a local file, which changes when the file is written to or replaced."""

    inode: int | None
    """Inode; None if the state is compared on another machine, where inodes differ."""
    size: int
    """Size in bytes."""
    mtime_ns: int

    @classmethod
    def find(cls, found: os.stat_result) -> FileState | None:
        """Return the state of a regular file; None for others."""
        return cls(found.st_ino, found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None

    def blur(self) -> FileState:
        """Return the part of the state that other machines see too: the size, and the time in whole seconds."""
        return FileState(None, self.size, self.mtime_ns // 10**9 * 10**9)

    def check(self, name: str, now: FileState | None) -> None:
        """Raise SourceError if the file of this name is in another state now."""
        now = now.blur() if now is not None and self.inode is None else now
        if now != self:
            raise SourceError(
                "was changed while it was read; copy it first, or read it when nothing writes to it", source=name
            )


class LocalFile(str):
    """Name of a local file, which must be in the same state each time it is opened."""

    def __new__(cls, name: str, state: FileState) -> LocalFile:
        made = super().__new__(cls, name)
        made.state = state
        return made

    state: FileState

    def __reduce__(self) -> tuple[type[LocalFile], tuple[str, FileState]]:
        return LocalFile, (str(self), self.state.blur())


class Pipe(str):
    """Name of a stream that can be read once: a pipe, a FIFO, a device, or `-` for standard input.

    Bytes that `peek` returned are read again by the one reader.
    """

    def __init__(self, name: str) -> None:
        self._file: IO[bytes] | None = None
        self._head = b""
        self._is_opened = False

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)  # a copy holds only the name

    def peek(self, n_bytes: int) -> bytes:
        """Return the first bytes, at most `n_bytes`, without consuming them."""
        if self._is_opened:
            raise SourceError("it is a pipe that was read already; save it as a file", source=self)
        file = self._begin()
        while len(self._head) < n_bytes and (piece := file.read(n_bytes - len(self._head))):
            self._head += piece
        return self._head

    def open(self) -> IO[bytes]:
        """Open the stream for its reader.

        Raises
        ------
        SourceError : the stream was opened before
        """
        file = self._begin()
        self.peek(MAGIC_BYTES)
        self._is_opened = True
        return cast(IO[bytes], _PeekedFile(self._head, file))

    def _begin(self) -> IO[bytes]:
        if self._file is None:
            self._file = sys.stdin.buffer if self == "-" else _open_local(self)
        return self._file


def is_pipe(name: str) -> bool:
    """Return whether a name is that of a stream that can be read once."""
    if name == "-":
        return True
    if "://" in name:
        return False
    try:
        mode = os.stat(name).st_mode
    except (OSError, ValueError):
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISBLK(mode))


def take_name(path: str | os.PathLike[str]) -> str:
    """Return the name of a file: a `Pipe` if it can be read only once, a `LocalFile` if it is a regular file."""
    name = os.fspath(path)
    if isinstance(name, Pipe | LocalFile):
        return name
    if is_pipe(name):
        return Pipe(name)
    state = None
    if "://" not in name:
        with suppress(OSError, ValueError):  # opening the file reports the error
            state = FileState.find(os.stat(name))
    return name if state is None else LocalFile(name, state)


class _PeekedFile(io.RawIOBase):
    """Stream whose first bytes were read before."""

    def __init__(self, head: bytes, file: IO[bytes]) -> None:
        self._head, self._file = memoryview(head), file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._head:
            piece = self._file.read(len(buffer))
            buffer[: len(piece)] = piece
            return len(piece)
        n = min(len(buffer), len(self._head))
        buffer[:n], self._head = self._head[:n], self._head[n:]
        return n

    def close(self) -> None:
        if self._file is not sys.stdin.buffer:
            self._file.close()
        super().close()


def open_anywhere(name: str, **options: Any) -> IO[bytes]:
    """Open a file at a path or URL for reading from any position; for errors see `TextStream`.

    Parameters
    ----------
    options : options of `open_url`
    """
    if isinstance(name, Pipe):
        return name.open()
    return open_url(name, **options) if "://" in name else _open_local(name)


class _WatchedFile(io.FileIO):
    """Local file that must not change until it, or the part that is needed, is read to its end."""

    def __init__(self, name: str) -> None:
        super().__init__(name, "rb")
        self._source, self._state = name, FileState.find(os.fstat(self.fileno()))
        if isinstance(name, LocalFile):
            name.state.check(name, self._state)

    def readinto(self, buffer: Any, /) -> int:
        n = super().readinto(buffer)
        if not n and self._state is not None:
            self._state.check(self._source, FileState.find(os.fstat(self.fileno())))
        return n


def _open_local(name: str) -> IO[bytes]:
    try:
        return cast(IO[bytes], _WatchedFile(name))
    except SourceError:
        raise
    except FileNotFoundError as error:
        raise SourceNotFoundError("there is no such file; check the path", source=name) from error
    except IsADirectoryError as error:
        raise SourceError("is a directory; name a file", source=name) from error
    except OSError as error:
        raise refuse_source(error, name, f"cannot be opened: {error}") from error


def find_size(file: IO[bytes]) -> int | None:
    """Return the size of a file in bytes; None if it is not known, as for a pipe."""
    size: int | None = getattr(file, "size", None)  # files of fsspec have the attribute
    if size is None and isinstance(file, io.FileIO):
        size = os.fstat(file.fileno()).st_size
    return size or None
