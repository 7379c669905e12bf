"""Files for what does not fit into memory.

Those without names go with the process, however it ends; those of a `KeptFolder` stay, for another to go on with.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

import google_crc32c
import numpy as np

from mgspmv.errors import StoreError
from mgspmv.os_errors import describe_os_error

CHECKED_BYTES = 1 << 22
"""Of a file that are read at a time to be checked."""


class ArrayFile(Protocol):
    """A file, or a part of one, that arrays are appended to."""

    def append(self, array: np.ndarray) -> None:
        """Put an array at its end."""
        ...

    def read(self, offset: int, n: int, dtype: np.dtype[Any]) -> np.ndarray:
        """Elements that begin at a byte; several threads may read."""
        ...

    def close(self) -> None:
        """Give back the room that it takes, unless it is kept."""
        ...


class ScratchFile:
    """Arrays in a file that has no name.

    Parameters
    ----------
    folder : where it takes its room; None for the one that the system has for such files

    Raises
    ------
    StoreError : it cannot be made, written or read
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        with self._blame():
            self._file = self._open()

    def _open(self) -> IO[bytes]:
        return tempfile.TemporaryFile(prefix="mgspmv-", dir=self._folder, buffering=0)

    @property
    def closed(self) -> bool:
        return self._file.closed

    def fileno(self) -> int:
        """Of the open file."""
        return self._file.fileno()

    def append(self, array: np.ndarray) -> None:
        """Put an array at its end."""
        left = array.view(np.uint8).data
        with self._blame():
            while left:
                left = left[self._file.write(left) or 0 :]

    def read(self, offset: int, n: int, dtype: np.dtype[Any]) -> np.ndarray:
        """Elements that begin at a byte; several threads may read."""
        read: np.ndarray = np.empty(n, dtype)
        left = read.view(np.uint8).data
        while left:
            n_read = os.preadv(self._file.fileno(), [left], offset)
            if not n_read:
                raise StoreError("a file that was written to while entries are sorted was cut short meanwhile")
            left, offset = left[n_read:], offset + n_read
        return read

    def close(self) -> None:
        """Give back the room that it takes."""
        self._file.close()

    @contextlib.contextmanager
    def _blame(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            folder = self._folder or tempfile.gettempdir()
            raise StoreError(
                f"cannot write what is sorted to {folder}: {describe_os_error(error, folder)}; name another folder by "
                "scratch=, or allow more memory by memory="
            ) from error


# --- files that stay -------------------------------------------------------------------------------------------------


class KeptFile(ScratchFile):
    """Arrays in a file that has a name.

    Parameters
    ----------
    n_bytes, crc : as they were when it was last said to be whole; what follows in the file is dropped

    Raises
    ------
    StoreError : it cannot be made, written or read
    """

    def __init__(self, path: Path, n_bytes: int = 0, crc: int = 0) -> None:
        self.path, self.n_bytes, self.crc = path, n_bytes, crc
        super().__init__(path.parent)

    def _open(self) -> IO[bytes]:
        file = open(self.path, "r+b" if self.n_bytes else "w+b", buffering=0)  # noqa: SIM115  # kept
        file.truncate(self.n_bytes)
        file.seek(self.n_bytes)
        return file

    def append(self, array: np.ndarray) -> None:
        super().append(array)
        data = array.view(np.uint8)
        data.flags.writeable = False  # else it is not taken
        self.crc = google_crc32c.extend(self.crc, data)
        self.n_bytes += array.nbytes

    def put(self, array: np.ndarray) -> list[Any]:
        """Append an array, and give what `get` finds it by, JSON values."""
        offset = self.n_bytes
        self.append(array)
        return [offset, len(array), array.dtype.str]

    def get(self, place: Sequence[Any]) -> np.ndarray:
        """An array that was put here."""
        offset, n, dtype = place
        return self.read(offset, n, np.dtype(dtype))

    def begin_part(self, offset: int | None = None) -> FilePart:
        """What is appended from now on, until the next part begins; or the part that began at a byte."""
        return FilePart(self, self.n_bytes if offset is None else offset)

    def sync(self) -> None:
        """Have all of it on the disk."""
        with self._blame():
            os.fsync(self.fileno())


@dataclass(frozen=True)
class FilePart:
    """A part of a file, which stays when the part is closed."""

    file: KeptFile
    offset: int

    def append(self, array: np.ndarray) -> None:
        self.file.append(array)

    def read(self, offset: int, n: int, dtype: np.dtype[Any]) -> np.ndarray:
        return self.file.read(self.offset + offset, n, dtype)

    def close(self) -> None:
        """Nothing is to be done."""


class KeptFolder:
    """Files with names in a folder.

    Parameters
    ----------
    found : bytes and CRC-32C of the files that are gone on with, by name

    Raises
    ------
    ValueError : one of these is missing, shorter, or has something else
    StoreError : one cannot be written
    """

    def __init__(self, path: Path, found: Mapping[str, Sequence[int]]) -> None:
        self.path = path
        self._files: dict[str, KeptFile] = {}
        for name, (n_bytes, crc) in found.items():
            if _find_crc(path / name, n_bytes) != crc:
                raise ValueError(f"{name} is not what was written to it")
        for name, (n_bytes, crc) in found.items():
            self._files[name] = KeptFile(path / name, n_bytes, crc)

    def open(self, name: str) -> KeptFile:
        """A file of that name, a new one where none is gone on with."""
        if name not in self._files:
            self._files[name] = KeptFile(self.path / name)
        return self._files[name]

    def replace(self, kind: str, array: np.ndarray) -> str:
        """Have an array in a new file of its own, in place of the one before of that kind; the name of the file."""
        olds = [name for name in self._files if name.startswith(f"{kind}-")]
        number = 1 + max((int(name.rpartition("-")[2]) for name in olds), default=0)
        for name in olds:
            self._files.pop(name).close()
        self.open(f"{kind}-{number}").append(array)
        return f"{kind}-{number}"

    def describe(self) -> dict[str, list[int]]:
        """Bytes and CRC-32C of all files by name, as of now."""
        return {name: [file.n_bytes, file.crc] for name, file in self._files.items()}

    def files(self) -> list[KeptFile]:
        return list(self._files.values())

    def close(self) -> None:
        """Let go of the files, which stay."""
        for file in self._files.values():
            file.close()


def _find_crc(path: Path, n_bytes: int) -> int:
    """CRC-32C of the begin of a file.

    Raises
    ------
    ValueError : there is none, or it is shorter
    """
    crc, left = 0, n_bytes
    try:
        with open(path, "rb", buffering=0) as file:
            while left and (piece := file.read(min(left, CHECKED_BYTES))):
                crc, left = google_crc32c.extend(crc, piece), left - len(piece)
    except FileNotFoundError as error:
        raise ValueError(f"{path.name} is missing") from error
    if left:
        raise ValueError(f"{path.name} is shorter than it was")
    return crc
