"""Ids of a stored matrix, read when they are sliced."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from mgspmv.store.chunks import CHUNK_ELEMENTS
from mgspmv.store.read import StoredMatrix


class StoredIds:
    """Ids of a stored matrix, ascending; slices are read by one thread.

    The last chunk of names is held as Arrow strings, as Python strings take more than twice the memory.
    """

    def __init__(self, stored: StoredMatrix) -> None:
        self._stored = stored
        self.dtype = np.dtype(np.int64 if stored.info.vertex_ids == "int64" else object)
        self._number, self._chunk = -1, pa.array([], pa.string())

    def __len__(self) -> int:
        return self._stored.info.shape[0]

    def __getitem__(self, which: int | slice) -> Any:
        if isinstance(which, slice):
            start, stop, _ = which.indices(len(self))
            if self.dtype != np.int64:
                return self._slice_names(start, stop)
            return self._stored.read_array("vertex_ids", start, max(start, stop), threads=1)
        number = range(len(self))[which]
        return self[number : number + 1][0]

    def _slice_names(self, start: int, stop: int) -> np.ndarray:
        parts = [np.zeros(0, object)]
        for number in range(start // CHUNK_ELEMENTS, -(-stop // CHUNK_ELEMENTS)):
            first = number * CHUNK_ELEMENTS
            if number != self._number:
                self._chunk = None
                last = min(first + CHUNK_ELEMENTS, len(self))
                self._chunk = pa.array(self._stored.read_array("vertex_ids", first, last, threads=1), pa.string())
                self._number = number
            own = slice(max(start, first) - first, min(stop - first, len(self._chunk)))
            parts.append(self._chunk[own].to_numpy(zero_copy_only=False))
        return np.concatenate(parts)
