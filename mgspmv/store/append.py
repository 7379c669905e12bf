"""Arrays that are written by appending, as their length is not known in advance."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import zarr

from mgspmv.heartbeat import beat
from mgspmv.store import chunks
from mgspmv.store.digests import WrittenArray, digest_elements
from mgspmv.store.partial_write import WrittenRange, finish_ranges


class AppendArray:
    """Array that is written by appending, chunk by chunk.

    Parameters
    ----------
    most : largest number of elements
    pool : threads that compress and write
    n_ahead : chunks that may be queued for these threads
    """

    def __init__(
        self, group: zarr.Group, name: str, dtype: np.dtype[Any], most: int, pool: ThreadPoolExecutor, n_ahead: int
    ) -> None:
        self._group, self._name, self._dtype, self._most = group, name, dtype, most
        self._pool, self._n_ahead = pool, n_ahead
        self._chunk: np.ndarray = np.empty(min(most, chunks.CHUNK_ELEMENTS), dtype)
        self._n_held = self._n_written = 0
        self._array: zarr.Array[Any] | None = None
        self._writing: deque[Future[tuple[bytes, int]]] = deque()
        self._written: list[tuple[bytes, int]] = []
        """SHA-256 and CRC-32C of each chunk."""

    def append(self, elements: np.ndarray) -> None:
        """Append elements."""
        while len(elements):
            taken = elements[: chunks.CHUNK_ELEMENTS - self._n_held]
            self._chunk[self._n_held : self._n_held + len(taken)] = taken
            self._n_held += len(taken)
            elements = elements[len(taken) :]
            if self._n_held == chunks.CHUNK_ELEMENTS:
                self._flush()
                self._chunk = np.empty(chunks.CHUNK_ELEMENTS, self._dtype)

    def finish(self) -> WrittenArray:
        """Write the remaining elements; return the digest and the checksums of the array."""
        n = self._n_written + self._n_held
        if self._n_held or not n:
            self._flush()
        while self._writing:
            self._written.append(self._writing.popleft().result())
        assert self._array is not None
        if self._array.shape != (n,):
            self._array.resize((n,))
        return finish_ranges(self._array, [WrittenRange(dict(enumerate(self._written)), [])])

    def pieces(self) -> Iterator[np.ndarray]:
        """Yield the written elements, chunk by chunk, once the array is finished."""
        assert self._array is not None
        stored = chunks.find_chunks(self._array)
        for piece in chunks.cut_pieces(0, self._array.shape[0]):
            elements = np.empty(piece.stop - piece.start, self._dtype)
            stored.read(piece, elements)
            yield elements

    def _flush(self) -> None:
        if self._array is None:  # created at the first flush; a full chunk means that the length is still unknown
            n = self._most if self._n_held == chunks.CHUNK_ELEMENTS else self._n_held
            self._array = chunks.create_array(self._group, self._name, n, self._dtype)
        if self._n_held:
            self._writing.append(self._pool.submit(self._write, self._n_written, self._chunk[: self._n_held]))
            self._n_written, self._n_held = self._n_written + self._n_held, 0
        while len(self._writing) > self._n_ahead:
            self._written.append(self._writing.popleft().result())
        beat()

    def _write(self, first: int, elements: np.ndarray) -> tuple[bytes, int]:
        assert self._array is not None
        return digest_elements(elements), chunks.find_chunks(self._array).write(first, elements)
