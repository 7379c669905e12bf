"""Local files, which must not change while they are read, pipes, and opening of files at any path or URL."""

from __future__ import annotations

import io
import os
import stat
import sys
from dataclasses import dataclass
from typing import IO, Any, cast

from mgspmv.errors import SourceError, SourceNotFoundError
from mgspmv.ingest.remote import open_url
from mgspmv.os_errors import source_error

HEAD_BYTES = 2**16
"""Bytes at the beginning of a file from which its format is detected."""
_SECOND_NS = 10**9


@dataclass(frozen=True)
class FileState:
    """State of a local file, which changes when the file is written to or replaced."""

    size: int
    """Size in bytes."""
    mtime_ns: int
    """Time of the last change; in whole seconds if another machine compares it, which may see only these."""

    @classmethod
    def find(cls, found: os.stat_result) -> FileState | None:
        """Return the state of a regular file; None for others."""
        return cls(found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None

    def blur(self) -> FileState:
        """Return the part of the state that other machines see too."""
        return FileState(self.size, self.mtime_ns // _SECOND_NS * _SECOND_NS)

    def check(self, name: str, now: FileState | None) -> None:
        """Raise SourceError if the file of this name is in another state now."""
        if now is None or (now != self and now.blur() != self):
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


def take_name(path: str | os.PathLike[str]) -> str:
    """Return the name of a file: a `Pipe` if it can be read only once, a `LocalFile` if it is a regular file."""
    name = os.fspath(path)
    if isinstance(name, Pipe | LocalFile) or "://" in name:
        return name
    if name == "-":
        return Pipe(name)
    try:
        found = os.stat(name)
    except (OSError, ValueError):  # opening the file reports the error
        return name
    if (state := FileState.find(found)) is not None:
        return LocalFile(name, state)
    return name if stat.S_ISDIR(found.st_mode) or stat.S_ISBLK(found.st_mode) else Pipe(name)


def open_anywhere(name: str, **options: Any) -> IO[bytes]:
    """Open a file at a path or URL for reading from any position; for errors see `TextStream`.

    Parameters
    ----------
    options : options of `open_url`
    """
    if isinstance(name, Pipe):
        return name.open()
    return open_url(name, **options) if "://" in name else cast(IO[bytes], _open_local(name))


class LentFile(io.RawIOBase):
    """Wrapper that leaves its file open when closed, as by pyarrow when a stream is released."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return int(self._file.readinto(buffer))  # type: ignore[attr-defined]  # all files read here have it


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
