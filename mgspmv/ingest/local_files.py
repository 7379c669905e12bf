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
from mgspmv.ingest.unpack import LentFile
from mgspmv.os_errors import source_error

HEAD_BYTES = 2**16
"""Bytes at the beginning of a file from which its format is detected."""


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
        self._reader: io.BufferedReader | None = None
        self._is_opened = False

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)  # a copy holds only the name

    def peek(self, n_bytes: int) -> bytes:
        """Return the first bytes, at most `n_bytes` or `HEAD_BYTES`, without consuming them."""
        return self._begin().peek()[:n_bytes]

    def open(self) -> IO[bytes]:
        """Open the stream for its reader.

        Raises
        ------
        SourceError : the stream was opened before
        """
        reader = self._begin()
        self._is_opened = True
        return reader

    def _begin(self) -> io.BufferedReader:
        if self._is_opened:
            raise SourceError("it is a pipe that was read already; save it as a file", source=self)
        if self._reader is None:
            # one read of a pipe returns only the bytes written so far; the inner reader fills the whole buffer
            file = LentFile(sys.stdin.buffer) if self == "-" else io.BufferedReader(_open_local(self))
            self._reader = io.BufferedReader(file, HEAD_BYTES)
        return self._reader


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


def open_anywhere(name: str, **options: Any) -> IO[bytes]:
    """Open a file at a path or URL for reading from any position; for errors see `TextStream`.

    Parameters
    ----------
    options : options of `open_url`
    """
    if isinstance(name, Pipe):
        return name.open()
    return open_url(name, **options) if "://" in name else cast(IO[bytes], _open_local(name))


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


def _open_local(name: str) -> io.FileIO:
    try:
        return _WatchedFile(name)
    except SourceError:
        raise
    except FileNotFoundError as error:
        raise SourceNotFoundError("there is no such file; check the path", source=name) from error
    except IsADirectoryError as error:
        raise SourceError("is a directory; name a file", source=name) from error
    except OSError as error:
        raise source_error(error, name, f"cannot be opened: {error}") from error


def find_size(file: IO[bytes]) -> int | None:
    """Return the size of a file in bytes; None if it is not known, as for a pipe."""
    size: int | None = getattr(file, "size", None)  # files of fsspec have the attribute
    if size is None and isinstance(file, io.FileIO):
        size = os.fstat(file.fileno()).st_size
    return size or None
