"""Arrays that are written by ranges, possibly by several processes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import zarr

from mgspmv.errors import StoreDamagedError
from mgspmv.store import chunks
from mgspmv.store.digests import WrittenArray, digest_elements


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
