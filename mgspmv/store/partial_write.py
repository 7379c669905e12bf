"""Arrays that are written by ranges, possibly by several processes, or by appending."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import zarr

from mgspmv.errors import StoreDamagedError
from mgspmv.heartbeat import beat
from mgspmv.store import chunks
from mgspmv.store.chunks import WrittenArray, digest_elements


@dataclass(frozen=True, eq=False)
class WrittenRange:
    """Result of writing one range of an array."""

    chunks: dict[int, tuple[bytes, int]]
    """SHA-256 and CRC-32C of each chunk that lies in its range, by number."""
    rest: list[tuple[int, np.ndarray]]
    """Elements of chunks that are only partly in the range: index of the first element, and the elements."""


def write_range(target: zarr.Array[Any], start: int, elements: Any, threads: int | None = None) -> WrittenRange:
    """Write the chunks that lie within the range `start` .. `start` + len(elements); `finish_ranges` writes the others.

    Parameters
    ----------
    elements : array, or an object with a length and slices like one
    """
    stored = chunks.find_chunks(target)
    stop, whole, rest = start + len(elements), {}, []

    def write(piece: slice) -> None:
        own = elements[piece.start - start : piece.stop - start]
        number, ahead = divmod(piece.start, chunks.CHUNK_ELEMENTS)
        if ahead or piece.stop < min(target.shape[0], (number + 1) * chunks.CHUNK_ELEMENTS):
            rest.append((piece.start, own.copy()))
            return
        whole[number] = digest_elements(own), stored.write(piece.start, own)

    chunks.run_pieces(write, start, stop, threads)
    return WrittenRange(whole, rest)


def finish_ranges(target: zarr.Array[Any], ranges: Iterable[WrittenRange]) -> WrittenArray:
    """Write the chunks that no range covers alone; return the digest and the checksums of the array.

    Raises
    ------
    StoreDamagedError : the ranges do not cover the array
    """
    stored, whole = chunks.find_chunks(target), dict[int, tuple[bytes, int]]()
    left: dict[int, list[tuple[int, np.ndarray]]] = {}
    for written in ranges:
        whole |= written.chunks
        for start, elements in written.rest:
            left.setdefault(start // chunks.CHUNK_ELEMENTS, []).append((start, elements))
    for number, pieces in left.items():
        pieces.sort(key=lambda piece: piece[0])
        chunk, start = np.concatenate([elements for _, elements in pieces]), number * chunks.CHUNK_ELEMENTS
        is_whole = len(chunk) == min(chunks.CHUNK_ELEMENTS, target.shape[0] - start)
        if is_whole and all(a + len(own) == b for (a, own), (b, _) in pairwise(pieces)):
            whole[number] = digest_elements(chunk), stored.write(start, chunk)
    n_chunks = -(-target.shape[0] // chunks.CHUNK_ELEMENTS)
    if sorted(whole) != list(range(n_chunks)):
        raise StoreDamagedError(f"{target.path}: {n_chunks - len(whole)} of {n_chunks} chunks were not written")
    digest = hashlib.sha256(b"".join(whole[k][0] for k in range(n_chunks))).hexdigest()
    return WrittenArray(digest, np.array([whole[k][1] for k in range(n_chunks)], np.uint32))


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
        self._writing: list[Future[tuple[bytes, int]]] = []
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
        written = {number: future.result() for number, future in enumerate(self._writing)}
        assert self._array is not None
        if self._array.shape != (n,):
            self._array.resize((n,))
        return finish_ranges(self._array, [WrittenRange(written, [])])

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
        if len(self._writing) > self._n_ahead:
            self._writing[-1 - self._n_ahead].result()
        beat()

    def _write(self, first: int, elements: np.ndarray) -> tuple[bytes, int]:
        assert self._array is not None
        return digest_elements(elements), chunks.find_chunks(self._array).write(first, elements)
