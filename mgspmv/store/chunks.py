"""Arrays of a store, their chunks and digests: `CHUNK_ELEMENTS` elements each, lz4 with a CRC-32C; all are written.

Arrays are written by ranges, possibly by several processes, or by appending.
"""

from __future__ import annotations

import base64
import copy
import functools
import hashlib
import math
import os
import struct
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import zarr
from crc32c import crc32c
from numcodecs import blosc
from numcodecs.vlen import VLenUTF8
from zarr.abc.store import Store
from zarr.buffer.cpu import buffer_prototype
from zarr.codecs import BloscCodec, Crc32cCodec
from zarr.storage import LocalStore, MemoryStore

from mgspmv.errors import MissingChunkError, StoreDamagedError
from mgspmv.heartbeat import beat
from mgspmv.store import digests
from mgspmv.store.access import wait_for
from mgspmv.store.digests import cut_pieces, digest_elements, is_string, run_parts

T = TypeVar("T")

MOST_CHUNK = 1 << 24
MOST_CHUNKS = 1 << 22
"""Most chunks per array, as Zarr lists their numbers in memory; 4.4e12 elements in chunks of `CHUNK_ELEMENTS`."""
_ANNDATA_ARRAY: dict[str, Any] = {"encoding-type": "array", "encoding-version": "0.2.0"}
ANNDATA_STRINGS: dict[str, Any] = {"encoding-type": "string-array", "encoding-version": "0.2.0"}
_THREAD = threading.local()
_CRC_BYTES = 4
_FRAME = struct.Struct("<4B3I")
"""Header of a Blosc frame: four bytes for Blosc itself, then the bytes of the unpacked data, of a block and of the
frame."""


def create_array(group: zarr.Group, name: str, n: int, dtype: Any) -> zarr.Array[Any]:
    """Create an array of n elements, of a dtype or `str`, where none exists; the caller writes all of its chunks.

    Zarr's own function also looks for an existing array and for all parent groups: five requests, too many for a small
    array.
    """
    grid = {"name": "regular", "configuration": {"chunk_shape": (min(digests.CHUNK_ELEMENTS, max(1, n)),)}}
    described: Any = copy.deepcopy(_describe_array(dtype if dtype is str else np.dtype(dtype)))
    described |= {"shape": (n,), "chunk_grid": grid}
    array = zarr.AsyncArray(described, group.store_path / name, config={"write_empty_chunks": True})
    for key, value in array.metadata.to_buffer_dict(buffer_prototype).items():
        wait_for((array.store_path / key).set(value))
    return zarr.Array(array)


@functools.cache
def _describe_array(dtype: Any) -> dict[str, Any]:
    """Return Zarr's metadata for an array of a dtype or `str`; the caller sets shape and chunk grid."""
    array = zarr.create_array(
        MemoryStore(),
        shape=(1,),
        chunks=(1,),
        dtype=dtype,
        compressors=[BloscCodec(cname="lz4", clevel=1, shuffle="shuffle"), Crc32cCodec()],
        attributes=ANNDATA_STRINGS if dtype is str else _ANNDATA_ARRAY,
    )
    return array.metadata.to_dict()


def find_chunk_fault(array: zarr.Array[Any] | zarr.AsyncArray[Any]) -> str | None:
    """Describe how the chunks of an array differ from what this module writes; None if they do not."""
    metadata: Any = array.metadata
    wanted = ["vlen-utf8" if is_string(array) else "bytes", "blosc", "crc32c"]
    codecs = [codec.to_dict() for codec in getattr(metadata, "codecs", ())]
    if (found := [str(codec.get("name")) for codec in codecs]) != wanted:
        said = ", ".join(found) or "those of another Zarr format"
        return f"has the codecs {said} instead of {', '.join(wanted)}, which give every chunk a checksum"
    # The header of each chunk states the configuration of the other codecs, but not the byte order.
    if not is_string(array) and (found_bytes := codecs[0].get("configuration")) != {"endian": "little"}:
        return f"has elements of encoding {found_bytes} instead of little endian"
    if not 0 < (n := math.prod(array.chunks)) <= MOST_CHUNK:
        return f"has chunks of {n:,} elements, but at most {MOST_CHUNK:,} are allowed"
    n_chunks = math.prod(-(-length // size) for length, size in zip(array.shape, array.chunks, strict=True))
    if n_chunks > MOST_CHUNKS:
        return f"has {n_chunks:,} chunks of {n:,} elements, but at most {MOST_CHUNKS:,} chunks are allowed"
    if metadata.encode_chunk_key((0,) * array.ndim) != "/".join(["c", *("0" * array.ndim)]):
        return "has chunk names of another form than c/0"
    return None


def count_chunks(array: zarr.Array[Any]) -> int:
    """Count the chunks of an array of one dimension that exist."""
    store = array.store_path.store
    if type(store) is not LocalStore:
        return int(array.nchunks_initialized)
    with os.scandir(store.root / array.path / "c") as found:  # Zarr takes 0.1 ms for each
        return sum(entry.name.isdecimal() and int(entry.name) < array.nchunks for entry in found)


def read_whole(array: zarr.Array[Any]) -> np.ndarray:
    """Read all of an array, of any number of dimensions, that `find_chunk_fault` accepts.

    Raises
    ------
    MissingChunkError, ValueError, RuntimeError : a chunk is missing, or differs from the one that was written
    """
    chunks = find_chunks(array)
    out = np.empty(array.shape, chunks.dtype.newbyteorder("="))

    def read(place: tuple[int, ...]) -> None:
        chunk = chunks.decode("/".join(map(str, place))).reshape(array.chunks)
        starts = [k * n for k, n in zip(place, array.chunks, strict=True)]
        own = out[tuple(slice(start, start + n) for start, n in zip(starts, array.chunks, strict=True))]
        own[...] = chunk[tuple(map(slice, own.shape))]

    run_parts(read, np.ndindex(array.cdata_shape), 1 if chunks.dtype == object else None)
    return out


def find_chunks(array: zarr.Array[Any], checksums: np.ndarray | None = None) -> Chunks:
    """Return the chunks of an array that `find_chunk_fault` accepts, for reading or writing.

    Parameters
    ----------
    checksums : (n_chunks,) CRC-32C of each, as recorded when it was written; None if none were recorded
    """
    dtype = np.dtype(object) if is_string(array) else array.dtype.newbyteorder("<")
    return Chunks(dtype, math.prod(array.chunks), checksums, array.store_path.store, array.path)


@dataclass(frozen=True)
class Chunks:
    """Chunks of an array in the encoding of this module, decoded on the calling thread.

    Zarr decodes all chunks on a single thread, at 1.2 GB/s for any number of calling threads, copies strings several
    times, and allocates the uncompressed size that a chunk states before it compares it with the expected size.
    """

    dtype: np.dtype[Any]
    """Dtype of the stored elements; object for strings."""
    size: int
    """Elements per chunk."""
    checksums: np.ndarray | None
    """(n_chunks,) recorded CRC-32C of each chunk, to detect exchanged chunks; None if none were recorded."""
    store: Store
    path: str

    def read(self, piece: slice, target: np.ndarray) -> None:
        """Read elements into an array of any dtype.

        Raises
        ------
        MissingChunkError, ValueError, RuntimeError : a chunk is missing, or differs from the one that was written
        """
        for number in range(piece.start // self.size, -(-piece.stop // self.size)):
            first, last = max(piece.start, number * self.size), min(piece.stop, (number + 1) * self.size)
            own = target[first - piece.start : last - piece.start]
            is_whole = len(own) == self.size and own.dtype == self.dtype and own.flags.c_contiguous
            chunk = self.decode(str(number), own if is_whole else None)
            if chunk is not own:
                own[:] = chunk[first - number * self.size : last - number * self.size]

    def decode(self, number: str, out: np.ndarray | None = None) -> np.ndarray:
        """Decode a chunk, into `out` if given and the elements are not strings; errors as for `read`."""
        fetched = self._fetch(number)
        raw, last = fetched[:-_CRC_BYTES], fetched[-_CRC_BYTES:].tobytes()
        checksum = crc32c(raw.data)
        if checksum != int.from_bytes(last, "little") or len(last) != _CRC_BYTES:
            raise ValueError("its CRC-32C does not match")
        if self.checksums is not None and checksum != self.checksums[int(number)]:
            raise ValueError("its CRC-32C differs from the one recorded for this chunk")
        self._check_frame(raw)
        if self.dtype == object:
            text = blosc.decompress(raw)
            count = int.from_bytes(text[:4], "little")  # the decoder allocates this many elements first
            if count != self.size:
                raise ValueError(f"its header states {count:,} strings instead of {self.size:,}")
            strings: np.ndarray = VLenUTF8().decode(text)
            return strings
        chunk = np.empty(self.size, self.dtype) if out is None else out
        blosc.decompress(raw, chunk)
        return chunk

    def write(self, first: int, elements: np.ndarray) -> int:
        """Write the chunk that begins at element `first`, padded with 0 or empty strings; return its CRC-32C."""
        chunk = np.ascontiguousarray(elements, self.dtype)
        if len(chunk) < self.size:
            missing = np.full(self.size - len(chunk), "" if self.dtype == object else 0, self.dtype)
            chunk = np.concatenate([chunk, missing])
        if self.dtype == object:
            chunk = np.frombuffer(VLenUTF8().encode(chunk), np.uint8)
        raw = blosc.compress(chunk, b"lz4", 1, blosc.SHUFFLE)
        checksum = crc32c(raw)
        self._put(first // self.size, raw, checksum.to_bytes(_CRC_BYTES, "little"))
        return checksum

    def _fetch(self, number: str) -> np.ndarray:
        """Return the bytes of a chunk, compressed and with its checksum; raises MissingChunkError.

        They may be in memory that the thread uses again for the next chunk.
        """
        key = f"{self.path}/c/{number}"
        if type(self.store) is LocalStore:  # without Zarr; a user's subclass must receive every read
            return self._read_file(self.store.root / key)
        value = wait_for(self.store.get(key, buffer_prototype))
        if value is None:
            raise MissingChunkError(key)
        return value.as_numpy_array()

    def _read_file(self, path: Path) -> np.ndarray:
        try:
            file = os.open(path, os.O_RDONLY)  # a file of Python makes more calls
        except FileNotFoundError as error:
            raise MissingChunkError(str(path)) from error
        try:
            length, unpacked = os.fstat(file).st_size, self.size * self.dtype.itemsize
            most = (blosc.MAX_BUFFERSIZE if self.dtype == object else unpacked) + blosc.MAX_OVERHEAD + _CRC_BYTES
            if length > most:  # a sparse file of any length fits on a disk
                raise ValueError(f"it has {length:,} bytes, but at most {most:,} are allowed")
            memory, n_read = _find_memory(length if self.dtype == object else most)[:length], 0
            while n_read < length and (n := os.preadv(file, [memory[n_read:].data], n_read)):
                n_read += n
            return memory[:n_read]
        finally:
            os.close(file)

    def _put(self, number: int, raw: bytes, checksum: bytes) -> None:
        key = f"{self.path}/c/{number}"
        if type(self.store) is not LocalStore:
            wait_for(self.store.set(key, buffer_prototype.buffer.from_bytes(raw + checksum)))
            return
        path = self.store.root / key
        path.parent.mkdir(exist_ok=True)
        with open(path, "wb") as file:
            file.writelines((raw, checksum))

    def _check_frame(self, raw: Any) -> None:
        # Blosc allocates and reads as many bytes as the header states, whatever the length of the frame.
        if len(raw) < _FRAME.size:
            raise ValueError("it is too short")
        *_, n_bytes, _, length = _FRAME.unpack_from(raw)
        if length != len(raw):
            raise ValueError(f"it has {len(raw):,} bytes but its header states {length:,}")
        if self.dtype == object:
            if n_bytes > blosc.MAX_BUFFERSIZE:
                raise ValueError(f"it unpacks to {n_bytes:,} bytes, but at most {blosc.MAX_BUFFERSIZE:,} are allowed")
        elif n_bytes != (wanted := self.size * self.dtype.itemsize):
            raise ValueError(f"it unpacks to {n_bytes:,} bytes instead of {wanted:,}")


def _find_memory(n: int) -> np.ndarray:
    """Return n bytes of this thread: in new memory, pages are mapped first, which threads wait for."""
    memory: np.ndarray | None = getattr(_THREAD, "memory", None)
    if memory is None or len(memory) < n:
        memory = _THREAD.memory = np.empty(n, np.uint8)
    return memory[:n]


@dataclass(frozen=True, eq=False)
class WrittenArray:
    """Digest and checksums of a written array, as a version records them."""

    digest: str
    """SHA-256, as `digest_array` computes it."""
    checksums: np.ndarray
    """(n_chunks,) uint32: CRC-32C of each chunk."""


def encode_checksums(checksums: np.ndarray) -> str:
    """Encode the checksums of an array for the attributes: little endian, in base64."""
    return base64.b64encode(checksums.astype("<u4").tobytes()).decode()


def decode_checksums(text: Any, n_chunks: int) -> np.ndarray:
    """Decode the output of `encode_checksums`; raises ValueError or TypeError unless it has `n_chunks` checksums."""
    found = np.frombuffer(base64.b64decode(text, validate=True), "<u4")
    if len(found) != n_chunks:
        raise ValueError(f"{len(found)} checksums are recorded for {n_chunks} chunks")
    return found


# --- writing ---------------------------------------------------------------------------------------------------------


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
    stored = find_chunks(target)
    stop, whole, rest = start + len(elements), {}, []

    def write(piece: slice) -> None:
        own = elements[piece.start - start : piece.stop - start]
        number, ahead = divmod(piece.start, digests.CHUNK_ELEMENTS)
        if ahead or piece.stop < min(target.shape[0], (number + 1) * digests.CHUNK_ELEMENTS):
            rest.append((piece.start, own.copy()))
            return
        whole[number] = digest_elements(own), stored.write(piece.start, own)

    run_parts(write, cut_pieces(start, stop), threads)
    return WrittenRange(whole, rest)


def finish_ranges(target: zarr.Array[Any], ranges: Iterable[WrittenRange]) -> WrittenArray:
    """Write the chunks that no range covers alone; return the digest and the checksums of the array.

    Raises
    ------
    StoreDamagedError : the ranges do not cover the array
    """
    stored, whole = find_chunks(target), dict[int, tuple[bytes, int]]()
    left: dict[int, list[tuple[int, np.ndarray]]] = {}
    for written in ranges:
        whole |= written.chunks
        for start, elements in written.rest:
            left.setdefault(start // digests.CHUNK_ELEMENTS, []).append((start, elements))
    for number, parts in left.items():
        parts.sort(key=lambda part: part[0])
        chunk, start = np.concatenate([elements for _, elements in parts]), number * digests.CHUNK_ELEMENTS
        is_whole = len(chunk) == min(digests.CHUNK_ELEMENTS, target.shape[0] - start)
        if is_whole and all(a + len(own) == b for (a, own), (b, _) in pairwise(parts)):
            whole[number] = digest_elements(chunk), stored.write(start, chunk)
    n_chunks = -(-target.shape[0] // digests.CHUNK_ELEMENTS)
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
        self._chunk: np.ndarray = np.empty(min(most, digests.CHUNK_ELEMENTS), dtype)
        self._n_held = self._n_written = 0
        self._array: zarr.Array[Any] | None = None
        self._writing: list[Future[tuple[bytes, int]]] = []
        """SHA-256 and CRC-32C of each chunk."""

    def append(self, elements: np.ndarray) -> None:
        """Append elements."""
        while len(elements):
            taken = elements[: digests.CHUNK_ELEMENTS - self._n_held]
            self._chunk[self._n_held : self._n_held + len(taken)] = taken
            self._n_held += len(taken)
            elements = elements[len(taken) :]
            if self._n_held == digests.CHUNK_ELEMENTS:
                self._flush()
                self._chunk = np.empty(digests.CHUNK_ELEMENTS, self._dtype)

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
        stored = find_chunks(self._array)
        for piece in cut_pieces(0, self._array.shape[0]):
            elements = np.empty(piece.stop - piece.start, self._dtype)
            stored.read(piece, elements)
            yield elements

    def _flush(self) -> None:
        if self._array is None:  # created at the first flush; a full chunk means that the length is still unknown
            n = self._most if self._n_held == digests.CHUNK_ELEMENTS else self._n_held
            self._array = create_array(self._group, self._name, n, self._dtype)
        if self._n_held:
            self._writing.append(self._pool.submit(self._write, self._n_written, self._chunk[: self._n_held]))
            self._n_written, self._n_held = self._n_written + self._n_held, 0
        if len(self._writing) > self._n_ahead:
            self._writing[-1 - self._n_ahead].result()
        beat()

    def _write(self, first: int, elements: np.ndarray) -> tuple[bytes, int]:
        assert self._array is not None
        return digest_elements(elements), find_chunks(self._array).write(first, elements)
