"""Files for what does not fit into memory, which have no names and go with the process, however it ends."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mgspmv.errors import StoreError
from mgspmv.os_errors import describe_os_error


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
            self._file = tempfile.TemporaryFile(prefix="mgspmv-", dir=self._folder, buffering=0)  # noqa: SIM115  # kept

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
