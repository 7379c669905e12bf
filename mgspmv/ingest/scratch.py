"""Unnamed files for data that does not fit into memory; they vanish with the process, however it ends."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from mgspmv.errors import StoreError, describe_os_error

UNLIMITED = 1 << 62
"""Memory in bytes that stands for no limit."""
_IDS_PART = 4
"""Divisor of the memory: ids may take one part of this many."""
_PIECE = 1 << 20
"""Elements of an array per read."""


@dataclass(frozen=True)
class MemoryBudget:
    """Memory, threads and folder that ingesting may use."""

    memory: int = UNLIMITED
    """Bytes for entries and ids; larger data is spilled to files."""
    threads: int = 1
    folder: Path | None = None
    """Folder of the files; None for the system's temporary folder."""

    @property
    def for_ids(self) -> MemoryBudget:
        """Budget for the ids of vertices while they are read."""
        return replace(self, memory=self.memory // _IDS_PART)


ANY_ROOM = MemoryBudget()


class ScratchFile:
    """Unnamed file of arrays.

    Parameters
    ----------
    folder : folder of the file; None for the system's temporary folder

    Raises
    ------
    StoreError : the file cannot be created, written or read
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder, self.n_bytes = folder, 0
        with self._translating_errors():
            self._file = tempfile.TemporaryFile(prefix="mgspmv-", dir=self._folder, buffering=0)  # noqa: SIM115  # closed later

    @property
    def closed(self) -> bool:
        return self._file.closed

    def fileno(self) -> int:
        """Return the descriptor of the open file."""
        return self._file.fileno()

    def append(self, array: np.ndarray) -> int:
        """Append an array and return the byte at which it begins."""
        left, first = array.view(np.uint8).data, self.n_bytes
        with self._translating_errors():
            while left:
                left = left[self._file.write(left) or 0 :]
        self.n_bytes += array.nbytes
        return first

    def read(self, offset: int, n: int, dtype: np.dtype[Any]) -> np.ndarray:
        """Read elements that begin at a byte; thread-safe."""
        read: np.ndarray = np.empty(n, dtype)
        left = read.view(np.uint8).data
        while left:
            n_read = os.preadv(self._file.fileno(), [left], offset)
            if not n_read:
                raise StoreError(
                    "a scratch file was truncated while entries were sorted; check the disk, and run again"
                )
            left, offset = left[n_read:], offset + n_read
        return read

    def close(self) -> None:
        """Close the file, which frees its disk space."""
        self._file.close()

    @contextlib.contextmanager
    def _translating_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            folder = self._folder or tempfile.gettempdir()
            raise StoreError(
                f"cannot write a scratch file in {folder}: {describe_os_error(error, folder)}; pass another folder as "
                "scratch=, or raise memory="
            ) from error


class FileArray:
    """Array in a scratch file, which is appended to, then sliced like one in memory.

    Parameters
    ----------
    place : folder for a separate file, see `ScratchFile`; or a file, at whose end the array is appended to
    """

    def __init__(self, place: Path | ScratchFile | None, dtype: np.dtype[Any]) -> None:
        self._file = place if isinstance(place, ScratchFile) else ScratchFile(place)
        self.dtype, self._n, self._first = dtype, 0, self._file.n_bytes

    def append(self, elements: np.ndarray) -> None:
        """Append elements."""
        self._file.append(np.ascontiguousarray(elements, self.dtype))
        self._n += len(elements)

    def finish(self) -> Self:
        """Return the array itself, once all elements are appended."""
        return self

    def pieces(self) -> Iterator[np.ndarray]:
        """Yield the elements in pieces."""
        for start in range(0, self._n, _PIECE):
            yield self[start : start + _PIECE]

    def __len__(self) -> int:
        return self._n

    @property
    def nbytes(self) -> int:
        return self._n * self.dtype.itemsize

    def __getitem__(self, which: slice) -> np.ndarray:
        start, stop, _ = which.indices(self._n)
        return self._file.read(self._first + start * self.dtype.itemsize, max(0, stop - start), self.dtype)

    def take(self, places: np.ndarray) -> np.ndarray:
        """Return the elements at some places; those from the least to the greatest place are read."""
        first, last = int(places.min(initial=self._n)), int(places.max(initial=-1))
        found: np.ndarray = self[first : last + 1][places - first]
        return found

    def close(self) -> None:
        """Close the file."""
        self._file.close()
