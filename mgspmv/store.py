"""The matrix store: one Zarr v3 group per matrix. The only module that knows its layout.

    STORE/                              attributes: format_version, current = name of the version to read, older = names
                                        of those before it that were kept, the oldest first
      versions/v000001-1f0c9a2e/        attributes: kind, shape, nnz, digests; an anndata csr_matrix where it has values
        indptr  indices  [data]         CSR, indices sorted in each row
        [out_degree] [out_weight]       of the columns, for graphs
        [vertex_ids]                    when the ids are not 0..n-1; in the order of the source
        [order]                         source's number of each row, when rows and columns are renumbered
        [transpose/]                    the same CSR arrays of the transpose

A version is written whole before the root names it, and naming it is the last write: a reader sees the old version or
the new one, never a part of one. What the root does not name is no version. Chunks hold `CHUNK_ELEMENTS` elements, lz4
with a CRC-32C, and all are written, so that a missing chunk, a flipped bit or a cut array is an error.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import secrets
import struct
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from fnmatch import fnmatch
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import google_crc32c
import numpy as np
import zarr
from numcodecs import blosc
from numcodecs.vlen import VLenUTF8
from zarr.abc.buffer import Buffer, BufferPrototype
from zarr.abc.store import ByteRequest, Store
from zarr.buffer.cpu import buffer_prototype
from zarr.codecs import BloscCodec, Crc32cCodec
from zarr.core.sync import sync
from zarr.storage import FsspecStore, LocalStore, MemoryStore, ObjectStore, WrapperStore

from mgspmv.display.numbers import format_bytes
from mgspmv.errors import (
    CapacityError,
    ChecksumError,
    MgspmvError,
    MissingChunkError,
    MissingDependencyError,
    OptionError,
    StoreDamagedError,
    StoreError,
    StoreExistsError,
    StoreFormatError,
    StoreNotFoundError,
    StoreUnfinishedError,
    TruncatedArrayError,
    hide_secrets,
)
from mgspmv.files import CHECK_WRITING, describe_error, name_extra, reach
from mgspmv.marks import mark
from mgspmv.model import CsrArrays, CsrBlock, Kind, MatrixInfo, default_threads, find_version_number, free_memory

FORMAT_VERSION = 1
CHUNK_ELEMENTS = 1 << 20
"""Elements of a chunk, whatever their size: 4 MiB of int32, 8 MiB of int64 or float64. Also the unit of the digests."""
MOST_CHUNK = 1 << 24
"""Elements of a chunk that is read: of more, which were not written here, few bytes could unpack to all memory."""
MANY_CHUNKS = 16
"""Of an array, beside which some more in memory are few."""

_KEY = "mgspmv"
_ANNDATA_ARRAY: dict[str, Any] = {"encoding-type": "array", "encoding-version": "0.2.0"}
_ANNDATA_CSR = {"encoding-type": "csr_matrix", "encoding-version": "0.1.0"}
_ANNDATA_STRINGS: dict[str, Any] = {"encoding-type": "string-array", "encoding-version": "0.2.0"}

_CRC_BYTES = 4
_FRAME = struct.Struct("<4B3I")
"""How a frame of Blosc begins: four numbers that are for Blosc, then the bytes that it unpacks to, of its blocks, and
its own."""
_STRING_BYTES = 57
"""Of a string of Python beside its letters, and of its place in an array."""
BROKEN_OFF = "zarr.*.partial"
"""Metadata whose writing was killed: Zarr writes them beside their place and then moves them."""
_VERSION_NAME = re.compile(r"v(\d{6,})-[0-9a-f]{8}")
_MEND = "ingest again or restore a copy"
_MEND_OPENED = f"open it again if it was replaced since it was opened, else {_MEND}"
_ZARR_ERRORS = (AttributeError, KeyError, TypeError, ValueError)
"""What Zarr raises for a zarr.json that is not as it was written."""

StoreLike = str | os.PathLike[str] | Store


# --- reading ---------------------------------------------------------------------------------------------------------


class Fillable(Protocol):
    """An array that is filled piece by piece, by several threads at once."""

    @property
    def array(self) -> Any:
        """(n,): what was filled."""
        ...

    def piece(self, start: int, stop: int) -> contextlib.AbstractContextManager[np.ndarray]:
        """Memory of the host for elements start .. stop, to be filled within the `with`."""
        ...


class HostArray:
    """An array on the host, filled in place."""

    def __init__(self, n: int, dtype: Any) -> None:
        self.array: np.ndarray = np.empty(n, dtype)

    @contextlib.contextmanager
    def piece(self, start: int, stop: int) -> Iterator[np.ndarray]:
        yield self.array[start:stop]


@dataclass(frozen=True)
class StoredMatrix:
    """A version of a store, opened for reading; its arrays are read on request.

    Opening (see `open_store`) found all of it there, so that reading fails only for flipped bits, or when the version
    was dropped since: an overwrite drops the versions before it, `drop_versions` and an update do on request.
    """

    info: MatrixInfo
    """What the store says about the matrix."""
    group: zarr.Group
    """The version's group, or its transpose's."""
    place: StoreLike
    """What it was opened from."""
    original: StoredMatrix | None = None
    """Of a transpose: the matrix that it is the transpose of."""

    def __repr__(self) -> str:
        return f"<StoredMatrix: {'' if self.original is None else 'transpose of '}{self.info!r}>"

    def read_array(self, name: str, start: int = 0, stop: int | None = None, threads: int | None = None) -> np.ndarray:
        """Read elements `start` .. `stop` of an array, a chunk at a time on each thread.

        Raises
        ------
        ChecksumError : a chunk does not match its checksum
        MissingChunkError, StoreDamagedError : something is gone since the store was opened
        """
        array = self._get_array(name)
        stop = array.shape[0] if stop is None else stop
        out = HostArray(stop - start, object if _is_string(array) else array.dtype)
        self._read_into(out, stop - start, array, start, threads)
        return out.array

    def find_dtype(self, name: str) -> np.dtype[Any]:
        """Of an array."""
        return self._get_array(name).dtype

    def read_into(self, out: Fillable, n: int, name: str, start: int, threads: int | None = None) -> None:
        """Read n elements of an array, from `start` on; errors as of `read_array`."""
        self._read_into(out, n, self._get_array(name), start, threads)

    def read_arrays(self, threads: int | None = None) -> CsrArrays:
        """Read all of the matrix but its transpose, as `write_store` takes it.

        Raises
        ------
        StoreDamagedError : as for `read_array` and `read_order`
        """
        names = [name for name in _expected_arrays(self) if name != "order"]
        arrays: dict[str, Any] = {"data": None} | {name: self.read_array(name, threads=threads) for name in names}
        arrays |= {"order": self.read_order(threads), "order_method": self.info.order}
        kind = self.info.kind if self.original is None else "matrix"  # a transpose has no degrees
        return CsrArrays(kind, self.info.shape, **arrays, duplicates=self.info.duplicates)

    def read_order(self, threads: int | None = None) -> np.ndarray | None:
        """Read the source's number of each row and column; None where they are in the order of the source.

        Raises
        ------
        StoreDamagedError : not a permutation, or as for `read_array`
        """
        if self.info.order is None:
            return None
        order = (self.original or self).read_array("order", threads=threads)
        if not _is_permutation(order):
            raise StoreDamagedError(f"{self.info.url}: order is not a permutation of the {len(order)} rows; {_MEND}")
        return order

    def read_block(
        self,
        start: int,
        stop: int,
        dtype: Any,
        threads: int | None = None,
        allocate: Callable[[int, Any], Fillable] | None = None,
        settle: Callable[[], None] = lambda: None,
    ) -> CsrBlock:
        """Read rows `start` .. `stop` as they are stored, and nothing of the other rows.

        Parameters
        ----------
        dtype : of the block's values, float32 or float64; None leaves them out
        threads : how many chunks are in flight; memory peaks at the block plus one chunk, raw and compressed, for each
        allocate : called with (elements, dtype) for where the arrays go; default on the host
        settle : called before what was read is looked at

        Raises
        ------
        ChecksumError : a chunk does not match its checksum
        MissingChunkError, StoreDamagedError : something is gone since the store was opened
        StoreDamagedError : row pointers that do not ascend
        """
        allocate = allocate or HostArray
        indptr = self.read_pointers(start, stop, threads, allocate, settle)
        first, last = int(indptr[0]), int(indptr[-1])
        indptr -= first
        indices = allocate(last - first, self.info.index_dtype)
        self._read_into(indices, last - first, self._get_array("indices"), first, threads)
        data = self._read_values(first, last, dtype, threads, allocate)
        settle()
        return CsrBlock(start, self.info.shape[1], indptr, indices.array, data)

    def read_pointers(
        self,
        start: int,
        stop: int,
        threads: int | None = None,
        allocate: Callable[[int, Any], Fillable] = HostArray,
        settle: Callable[[], None] = lambda: None,
    ) -> Any:
        """Read where the entries of each of the rows `start` .. `stop` begin, and where the last row's end.

        (stop + 1 - start,) int64; parameters and errors as of `read_block`.
        """
        pointers = allocate(stop + 1 - start, np.int64)
        self._read_into(pointers, stop + 1 - start, self._get_array("indptr"), start, threads)
        settle()
        indptr = pointers.array
        if int(indptr[0]) < 0 or int(indptr[-1]) > self.info.nnz or not _is_ascending(indptr):
            raise StoreDamagedError(f"{self.info.url}: indptr does not ascend in rows {start} to {stop}; {_MEND}")
        return indptr

    def read_out_degree(self, start: int = 0, stop: int | None = None, threads: int | None = None) -> np.ndarray:
        """(stop - start,) int64: entries of each of the columns `start` .. `stop` of a graph.

        Columns of a reversed graph are rows of the one that it is the transpose of.

        Raises
        ------
        StoreError : as for `read_array` and `read_pointers`
        """
        stop = self.info.shape[1] if stop is None else stop
        if self.original is None:
            return self.read_array("out_degree", start, stop, threads)
        degree: np.ndarray = np.diff(self.original.read_pointers(start, stop, threads))
        return degree

    def transpose(self) -> StoredMatrix:
        """The stored transpose, of a graph the reversed one; `info.has_transpose` says whether there is one."""
        if self.original is not None:
            return self.original
        n_rows, n_cols = self.info.shape
        group = self.group["transpose"]
        assert isinstance(group, zarr.Group)
        index_dtype = _get_array(group, "indices", self.info.url).dtype.name
        info = replace(self.info, shape=(n_cols, n_rows), index_dtype=index_dtype)
        if info.kind != "graph":
            info = replace(info, kind="matrix", vertex_ids=None)
        return StoredMatrix(info, group, self.place, original=self)

    def name_entries(self, *, weights: bool = True) -> str:
        """What no other entries are known by: the digest, and whether they are transposed or stand for 1."""
        said = [self.info.digest]
        said += ["transposed"] if self.original is not None else []
        said += [] if weights or self.info.is_pattern else ["pattern"]
        return ", ".join(said)

    def address(self) -> StoreAddress:
        """Where other processes find this version.

        Raises
        ------
        OptionError : the store is in the memory of this process
        """
        place = find_address(self.place, self.info.url)
        return StoreAddress(place, self.info.version, self.info.digest, self.original is not None)

    def read_values(self, start: int, stop: int, dtype: Any, threads: int | None = None) -> Any:
        """Read the values of rows `start` .. `stop` alone, as `read_block` reads them; None for a pattern."""
        first, last = (int(self.read_array("indptr", row, row + 1)[0]) for row in (start, stop))
        return self._read_values(first, last, dtype, threads, HostArray)

    def _read_values(
        self, start: int, stop: int, dtype: Any, threads: int | None, allocate: Callable[[int, Any], Fillable]
    ) -> Any:
        if dtype is None or self.info.is_pattern:
            return None
        out = allocate(stop - start, dtype)
        self._read_into(out, stop - start, self._get_array("data"), start, threads)
        return out.array

    def _get_array(self, name: str) -> zarr.Array[Any]:
        return _get_array(self.group, name, self.info.url)

    def _read_into(self, out: Fillable, n: int, array: zarr.Array[Any], start: int, threads: int | None) -> None:
        chunks = _find_chunks(array)

        def read(piece: slice) -> None:
            place = f"{self.info.url}: {array.path}, elements {piece.start} to {piece.stop}"
            try:
                with out.piece(piece.start - start, piece.stop - start) as target:
                    chunks.read(piece, target)
            except MissingChunkError as error:
                raise MissingChunkError(f"{place} are missing; {_MEND_OPENED}") from error
            except (ValueError, RuntimeError) as error:
                raise ChecksumError(f"{place} are damaged ({error}); {_MEND}") from error

        _run_pieces(read, start, start + n, threads)


class DescribedMatrix:
    """What a matrix says of itself that comes from a store, wherever its entries are."""

    def __init__(self, stored: StoredMatrix) -> None:
        self.stored = stored

    @property
    def info(self) -> MatrixInfo:
        """All that the store says of itself."""
        return self.stored.info

    @property
    def shape(self) -> tuple[int, int]:
        """(n_rows, n_cols)."""
        return self.info.shape

    @property
    def ndim(self) -> int:
        """2."""
        return 2

    @property
    def nnz(self) -> int:
        """Entries that are stored."""
        return self.info.nnz

    @property
    def kind(self) -> Kind:
        """What rows mean: of a `graph` row i has the in-edges of vertex i."""
        return self.info.kind

    @property
    def is_pattern(self) -> bool:
        """Whether all entries are 1 and none is stored."""
        return self.info.is_pattern

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """Dtype of the stored values; None for a pattern."""
        return None if self.info.dtype is None else np.dtype(self.info.dtype)

    @property
    def is_transpose(self) -> bool:
        """Whether this is the `T` of another matrix."""
        return self.stored.original is not None

    @cached_property
    def vertex_ids(self) -> np.ndarray | None:
        """(n_rows,) int64 or strings, ascending: the source's name of each row; None when they are 0..n-1."""
        stored = self.stored.original or self.stored
        return None if stored.info.vertex_ids is None else stored.read_array("vertex_ids")

    @cached_property
    def order(self) -> np.ndarray | None:
        """(n,) int32 or int64: the source's number of each stored row and column; None when they are in its order.

        Vectors and results are in the source's order all the same.
        """
        return self.stored.read_order()


@dataclass(frozen=True)
class StoreAddress:
    """Where a process finds one version of a store; small, and can be sent."""

    place: StoreLike
    """An absolute path, a URL or a Zarr store."""
    version: str
    """Name of the version subgroup."""
    digest: str
    """Of the matrix."""
    is_transpose: bool
    """Whether the stored transpose is meant."""

    def __repr__(self) -> str:
        return _represent(self, self.place, self.version, self.digest, self.is_transpose)

    def open(self) -> StoredMatrix:
        """Open that version again, whether it is the current one or not.

        Raises
        ------
        StoreError : as for `open_store`, and when the store does not hold the version any more
        """
        root, url = _open_place(self.place)
        names = _list_named(root, url)
        stored = _open_named(root, self.version, self.place, url) if self.version in names else None
        if stored is None or stored.info.digest != self.digest:
            raise StoreError(
                f"{url} holds version {names[-1]} and not {self.version}, which was opened; "
                "it was replaced since then, or this machine has another file there: open it again"
            )
        return stored.transpose() if self.is_transpose else stored


@dataclass(frozen=True)
class _Chunks(ABC):
    """The chunks of an array that are written as this module writes them, decoded by the thread that wants them.

    Zarr sends all of them through one thread of its own, which reads 1.2 GB a second however many there are, copies
    strings several times, and allocates what a chunk says that it unpacks to before it looks at what that should be.
    """

    dtype: np.dtype[Any]
    """As it is stored; of strings object."""
    size: int
    """Elements of a chunk."""

    def read(self, piece: slice, target: np.ndarray) -> None:
        """Elements into an array of any dtype.

        Raises
        ------
        MissingChunkError, ValueError, RuntimeError : a chunk is missing, or is not what was written
        CapacityError : its strings do not fit into the memory there is
        """
        for number in range(piece.start // self.size, -(-piece.stop // self.size)):
            first, last = max(piece.start, number * self.size), min(piece.stop, (number + 1) * self.size)
            own = target[first - piece.start : last - piece.start]
            is_whole = len(own) == self.size and own.dtype == self.dtype and own.flags.c_contiguous
            chunk = self.decode(str(number), own if is_whole else None)
            if chunk is not own:
                own[:] = chunk[first - number * self.size : last - number * self.size]

    def decode(self, number: str, out: np.ndarray | None = None) -> np.ndarray:
        """A chunk, into `out` if that is not None and there are no strings; errors as of `read`."""
        raw, checksum = self.fetch(number)
        if google_crc32c.value(raw) != int.from_bytes(checksum, "little") or len(checksum) != _CRC_BYTES:
            raise ValueError("its CRC-32C is another one")
        self._check_frame(raw)
        if self.dtype == object:
            return self._decode_strings(blosc.decompress(raw))
        chunk = np.empty(self.size, self.dtype) if out is None else out
        blosc.decompress(raw, chunk)
        return chunk

    @abstractmethod
    def fetch(self, number: str) -> tuple[Any, Any]:
        """What is kept of a chunk, and its checksum; raises MissingChunkError."""

    def _check_frame(self, raw: Any) -> None:
        # Blosc allocates what a frame says, and reads as many bytes as it says, whatever there are.
        if len(raw) < _FRAME.size:
            raise ValueError("it is too short")
        *_, n_bytes, _, length = _FRAME.unpack_from(raw)
        if length != len(raw):
            raise ValueError(f"it has {len(raw):,} bytes and says that it has {length:,}")
        if self.dtype == object:
            self._check_strings(n_bytes)
        elif n_bytes != (wanted := self.size * self.dtype.itemsize):
            raise ValueError(f"it unpacks to {n_bytes:,} bytes instead of {wanted:,}")

    def _check_strings(self, n_bytes: int) -> None:
        if n_bytes > blosc.MAX_BUFFERSIZE:
            raise ValueError(f"it unpacks to {n_bytes:,} bytes, and at most {blosc.MAX_BUFFERSIZE:,} are written")
        needed, free = n_bytes + self.size * _STRING_BYTES, free_memory()
        if needed > free:
            raise CapacityError(
                f"a chunk of strings unpacks to {format_bytes(needed)}, and {format_bytes(free)} of memory are free; "
                "read it where there is more memory, or restore a copy if its strings are not that long"
            )

    def _decode_strings(self, text: bytes) -> np.ndarray:
        count = int.from_bytes(text[:4], "little")  # as many places are made before a string is looked at
        if count != self.size:
            raise ValueError(f"it says that it holds {count:,} strings instead of {self.size:,}")
        strings: np.ndarray = VLenUTF8().decode(text)
        return strings


@dataclass(frozen=True)
class _ChunkObjects(_Chunks):
    """Those of an array in any Zarr store, which is asked for them."""

    store: Store
    path: str

    def fetch(self, number: str) -> tuple[np.ndarray, bytes]:
        key = f"{self.path}/c/{number}"
        value = sync(self.store.get(key, buffer_prototype))
        if value is None:
            raise MissingChunkError(key)
        raw = value.as_numpy_array()
        return raw[:-_CRC_BYTES], raw[-_CRC_BYTES:].tobytes()


@dataclass(frozen=True)
class _ChunkFiles(_Chunks):
    """Those of an array in a local folder, which are read and written past Zarr."""

    folder: Path

    @classmethod
    def find(cls, array: zarr.Array[Any]) -> _ChunkFiles | None:
        """Those of an array; None where it is elsewhere, or not written as this module writes arrays."""
        store: Any = array.store_path.store
        if isinstance(store, _StrictStore):  # what a user wraps a store in is to see all that is read
            store = store._store
        if type(store) is not LocalStore or find_chunk_fault(array) is not None:
            return None
        dtype = _find_stored_dtype(array)
        return None if dtype.byteorder == ">" else cls(dtype, math.prod(array.chunks), store.root / array.path)

    def fetch(self, number: str) -> tuple[bytes, bytes]:
        unpacked = blosc.MAX_BUFFERSIZE if self.dtype == object else self.size * self.dtype.itemsize
        most = unpacked + blosc.MAX_OVERHEAD + _CRC_BYTES
        try:
            with open(self.folder / "c" / number, "rb", buffering=0) as file:
                if (length := os.fstat(file.fileno()).st_size) > most:  # a sparse file takes no room on a disk
                    raise ValueError(f"it has {length:,} bytes, and at most {most:,} are written")
                raw = file.read(max(0, length - _CRC_BYTES))
                return raw, file.read(_CRC_BYTES)
        except FileNotFoundError as error:
            raise MissingChunkError(f"{self.folder}/c/{number}") from error

    def write(self, first: int, elements: np.ndarray) -> None:
        """A chunk, from its first element on; what it has no elements for is 0 or empty, as Zarr leaves it."""
        chunk = np.ascontiguousarray(elements, self.dtype)
        if len(chunk) < self.size:
            missing = np.full(self.size - len(chunk), "" if self.dtype == object else 0, self.dtype)
            chunk = np.concatenate([chunk, missing])
        if self.dtype == object:
            chunk = np.frombuffer(VLenUTF8().encode(chunk), np.uint8)
        raw = blosc.compress(chunk, b"lz4", 1, blosc.SHUFFLE)
        folder = self.folder / "c"
        folder.mkdir(exist_ok=True)
        with open(folder / str(first // self.size), "wb", buffering=0) as file:
            for part in (raw, google_crc32c.value(raw).to_bytes(_CRC_BYTES, "little")):
                left = memoryview(part)
                while left:
                    left = left[file.write(left) :]


def _find_chunks(array: zarr.Array[Any]) -> _Chunks:
    """The chunks of an array of which `find_chunk_fault` finds nothing, in the fastest way there is."""
    files = _ChunkFiles.find(array)
    size = math.prod(array.chunks)
    return files or _ChunkObjects(_find_stored_dtype(array), size, array.store_path.store, array.path)


def _find_stored_dtype(array: zarr.Array[Any]) -> np.dtype[Any]:
    if _is_string(array):
        return np.dtype(object)
    metadata: Any = array.metadata
    endian = metadata.codecs[0].endian
    is_big = getattr(endian, "value", endian) == "big"
    return array.dtype.newbyteorder(">" if is_big else "<")


def find_chunk_fault(array: zarr.Array[Any]) -> str | None:
    """In what the chunks of an array are not as this module writes them: None, or what to say of it."""
    metadata: Any = array.metadata
    wanted = ["vlen-utf8" if _is_string(array) else "bytes", "blosc", "crc32c"]
    found = [str(codec.to_dict().get("name")) for codec in getattr(metadata, "codecs", ())]
    if found != wanted:
        said = ", ".join(found) or "those of another Zarr format"
        return f"has the codecs {said} instead of {', '.join(wanted)}, by which every chunk has a checksum"
    if (n := math.prod(array.chunks)) > MOST_CHUNK:
        return f"has chunks of {n:,} elements, and at most {MOST_CHUNK:,} are read"
    if metadata.encode_chunk_key((0,) * array.ndim) != "/".join(["c", *("0" * array.ndim)]):
        return "names its chunks in another way than c/0"
    return None


def read_whole(array: zarr.Array[Any]) -> np.ndarray:
    """Read all of an array of any number of dimensions of which `find_chunk_fault` finds nothing.

    Raises
    ------
    MissingChunkError, ValueError, RuntimeError : a chunk is missing, or is not what was written
    CapacityError : strings do not fit into the memory there is
    """
    chunks = _find_chunks(array)
    out = np.empty(array.shape, chunks.dtype.newbyteorder("="))

    def read(place: tuple[int, ...]) -> None:
        chunk = chunks.decode("/".join(map(str, place))).reshape(array.chunks)
        starts = [k * n for k, n in zip(place, array.chunks, strict=True)]
        own = out[tuple(slice(start, start + n) for start, n in zip(starts, array.chunks, strict=True))]
        own[...] = chunk[tuple(map(slice, own.shape))]

    with ThreadPoolExecutor(1 if chunks.dtype == object else default_threads()) as pool:
        for _ in pool.map(read, np.ndindex(array.cdata_shape)):
            mark()
    return out


class _StrictStore(WrapperStore[Store]):
    """A store in which a missing chunk is an error; Zarr takes one for zeros."""

    _supports_sync_io = False  # else the fused pipeline of newer Zarr reads past `get`

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        value = await super().get(key, prototype, byte_range)
        if value is None and "/c/" in key:
            raise MissingChunkError(key)
        return value


def is_read_in_place(url: str) -> bool:
    """Whether whole chunks are decoded where their elements are wanted, if in their own dtype; see `_ChunkFiles`."""
    return _local_path(url) is not None


def open_store(store: StoreLike, version: str | int | None = None) -> StoredMatrix:
    """Open a version of a matrix store and check that all of it is there.

    Parameters
    ----------
    store : local path; any fsspec URL (`s3://...`, `memory://...`); an obstore URL with `obstore+` before it
        (`obstore+s3://...`); or a Zarr store object
    version : its name or number, see `list_versions`; default the current one

    Raises
    ------
    StoreNotFoundError : nothing is there
    StoreFormatError : not a store of mgspmv, or one of another format version
    StoreUnfinishedError : no version was ever finished
    StoreError : there is no such version
    MissingChunkError, TruncatedArrayError, StoreDamagedError : an array is not as it was written
    """
    root, url = _open_place(store)
    names = _list_named(root, url)
    return _open_named(root, names[-1] if version is None else _find_version(names, version, url), store, url)


def list_versions(store: StoreLike) -> list[MatrixInfo]:
    """What each version says of itself, the oldest first; the last is the current one. No array is looked at.

    Raises
    ------
    StoreError : as for `open_store`
    """
    root, url = _open_place(store)
    return [_read_info(_get_version(root, name, url), url) for name in _list_named(root, url)]


def drop_versions(store: StoreLike, *, keep: int) -> list[str]:
    """Remove all but the newest versions; names of those that were removed.

    Parameters
    ----------
    keep : how many stay, the current one among them

    Raises
    ------
    OptionError : fewer than one
    StoreError : as for `open_store`
    """
    check_keep(keep)
    root, url = _open_place(store)
    names = _list_named(root, url)
    if dropped := names[:-keep]:
        writable = zarr.open_group(locate_store(store), mode="r+", zarr_format=3, use_consolidated=False)
        _name_versions(writable, names[-keep:])
        for name in dropped:
            _drop(writable, f"versions/{name}")
    return dropped


def check_keep(keep: int | None) -> None:
    """Raise OptionError unless so many versions can be kept; None is all."""
    if keep is not None and (isinstance(keep, bool) or not isinstance(keep, int) or keep < 1):
        raise OptionError(f"keep must be at least 1, the current version is never dropped; not {keep!r}")


def _open_place(store: StoreLike) -> tuple[zarr.Group, str]:
    """The root of a store, in which a missing chunk is an error, and the place as a user would write it."""
    url = describe_store(store)
    path = _local_path(store)
    if path is not None and not path.exists():
        raise _not_found(url)
    place = _StrictStore(locate_store(store))
    check_links(place, "zarr.json", "versions", "versions/zarr.json")
    try:
        return _open_root(place, url), url
    except FileNotFoundError as error:
        raise _not_found(url) from error
    except _ZARR_ERRORS as error:
        raise StoreFormatError(
            f"{url} is not a matrix store, its zarr.json is no group's ({error}); {_MEND}"
        ) from error


def open_strictly(store: StoreLike, path: str = "") -> zarr.Group:
    """A group of a Zarr store for reading, in which a missing chunk is an error.

    Raises
    ------
    FileNotFoundError : there is none
    """
    place = _StrictStore(locate_store(store))
    return zarr.open_group(place, mode="r", path=path, zarr_format=3, use_consolidated=False)


def _not_found(url: str) -> StoreNotFoundError:
    return StoreNotFoundError(f"there is no matrix store at {url}; make one with `mgspmv ingest`")


def _open_root(store: Store, url: str) -> zarr.Group:
    """
    Raises
    ------
    StoreError : what is behind a URL cannot be reached; its libraries have errors of their own
    """
    ask = partial(zarr.open_group, store, mode="r", zarr_format=3, use_consolidated=False)
    with _explain_reaching(url):
        return reach(ask) if "://" in url else ask()


@contextlib.contextmanager
def _explain_reaching(url: str) -> Iterator[None]:
    """Say what is meant where a library of an object store has an error of its own."""
    try:
        yield
    except (MgspmvError, FileNotFoundError, *_ZARR_ERRORS):
        raise
    except Exception as error:
        if "://" not in url:
            raise
        raise StoreError(
            f"{url} cannot be reached: {describe_error(error)}; check the address, the connection and the credentials"
        ) from error


def _list_named(root: zarr.Group, url: str) -> list[str]:
    """Names of the versions, the oldest first; the last is the current one."""
    attributes: Any = root.attrs.get(_KEY)
    if not isinstance(attributes, dict) or "format_version" not in attributes:
        raise StoreFormatError(f"{url} is a Zarr group but not a matrix store of mgspmv; make one with `mgspmv ingest`")
    if attributes["format_version"] != FORMAT_VERSION:
        raise StoreFormatError(
            f"{url} has store format {attributes['format_version']} and this program reads format {FORMAT_VERSION}; "
            f"convert it with `mgspmv ingest SOURCE {url} --overwrite` from its source"
        )
    if attributes.get("current") is None:
        raise StoreUnfinishedError(f"{url} was begun and never finished; run its `mgspmv ingest` again")
    names = [*attributes.get("older", []), attributes["current"]]
    for name in names:  # which would lead elsewhere, or remove what is there
        if not isinstance(name, str) or not _VERSION_NAME.fullmatch(name):
            raise StoreDamagedError(f"{url}: its zarr.json names the version {name!r}, which none is called; {_MEND}")
    return names


def _name_versions(root: zarr.Group, names: list[str]) -> None:
    """Make these the versions, the last of them the current one."""
    older = {"older": names[:-1]} if names[1:] else {}
    root.attrs[_KEY] = {"format_version": FORMAT_VERSION, "current": names[-1], **older}


def _find_version(names: list[str], version: str | int, url: str) -> str:
    for name in names:
        if version in (name, find_version_number(name)):
            return name
    raise StoreError(f"{url} has no version {version!r}; it has {', '.join(names)}")


def _get_version(root: zarr.Group, name: str, url: str) -> zarr.Group:
    path = f"versions/{name}"
    check_links(root.store, path, below=True)
    with _blame_metadata(url, path):
        group = root.get(path)
    if not isinstance(group, zarr.Group):
        raise StoreDamagedError(f"{url}: the version {path} is missing; {_MEND}")
    return group


def _open_named(root: zarr.Group, name: str, store: StoreLike, url: str) -> StoredMatrix:
    return _check_version(_get_version(root, name, url), store, url)


def _check_version(group: zarr.Group, place: StoreLike, url: str) -> StoredMatrix:
    """Check that all of a version is there."""
    stored = StoredMatrix(_read_info(group, url), group, place)
    _check_arrays(stored)
    if stored.info.has_transpose:
        with _blame_metadata(url, f"{group.path}/transpose"):
            transposed = stored.transpose()
        _check_arrays(transposed)
    return stored


def _read_info(group: zarr.Group, url: str) -> MatrixInfo:
    attributes: Any = group.attrs.get(_KEY)
    with _blame_metadata(url, group.path):
        fields = {k: v for k, v in attributes.items() if k != "array_digests"}
        return MatrixInfo(**(fields | {"url": url, "shape": tuple(fields["shape"])}))


def _check_arrays(stored: StoredMatrix) -> None:
    url = stored.info.url
    for name, (length, dtype) in _expected_arrays(stored).items():
        array = _get_array(stored.group, name, url)
        if array.shape != (length,):
            raise TruncatedArrayError(f"{url}: {array.path} has shape {array.shape}, should have ({length},); {_MEND}")
        found = "string" if _is_string(array) else array.dtype.name
        if found != dtype:
            raise StoreDamagedError(f"{url}: {array.path} has dtype {found}, should have {dtype}; {_MEND}")
        if fault := find_chunk_fault(array):
            raise StoreDamagedError(f"{url}: {array.path} {fault}; {_MEND}")
        if array.nchunks_initialized != array.nchunks:
            raise MissingChunkError(
                f"{url}: {array.path} has {array.nchunks_initialized} of its {array.nchunks} chunks; {_MEND}"
            )


def _expected_arrays(stored: StoredMatrix) -> dict[str, tuple[int, str]]:
    """Length and dtype of each array that a version, or its transpose, must have."""
    info = stored.info
    arrays = {"indptr": (info.shape[0] + 1, "int64"), "indices": (info.nnz, info.index_dtype)}
    if info.dtype is not None:
        arrays["data"] = (info.nnz, info.dtype)
    if stored.original is not None:
        return arrays
    if info.kind != "matrix":
        arrays["out_degree"] = (info.shape[1], "int64")
        if not info.is_pattern:
            arrays["out_weight"] = (info.shape[1], "float64")
    if info.vertex_ids is not None:
        arrays["vertex_ids"] = (info.shape[0], info.vertex_ids)
    if info.order is not None:
        arrays["order"] = (info.shape[0], info.index_dtype)
    return arrays


def _get_array(group: zarr.Group, name: str, url: str) -> zarr.Array[Any]:
    with _blame_metadata(url, f"{group.path}/{name}"):
        array = group.get(name)
    if not isinstance(array, zarr.Array):
        raise StoreDamagedError(f"{url}: the array {group.path}/{name} is missing; {_MEND_OPENED}")
    return array


@contextlib.contextmanager
def _blame_metadata(url: str, path: str) -> Iterator[None]:
    try:
        yield
    except _ZARR_ERRORS as error:
        raise StoreDamagedError(f"{url}: the attributes in {path}/zarr.json are damaged ({error}); {_MEND}") from error


# --- writing ---------------------------------------------------------------------------------------------------------


def write_store(
    store: StoreLike,
    matrix: CsrArrays,
    *,
    transpose: CsrArrays | None = None,
    provenance: dict[str, Any] | None = None,
    overwrite: bool = False,
    base: str | None = None,
    on_progress: Callable[[str, int, int | None], None] | None = None,
    threads: int | None = None,
) -> MatrixInfo:
    """Write a matrix as a new version and make it the current one; older versions are then dropped.

    Parameters
    ----------
    base : name of the version that it was made from, see `begin_version`

    Raises
    ------
    StoreExistsError : a finished store is there and `overwrite` is false, or something that is no store of mgspmv
    StoreError : another version than `base` is the current one by now
    """
    with begin_version(store, overwrite=overwrite, base=base) as version:
        report = on_progress or (lambda phase, done, total: None)
        digests = _write_csr(version.group, matrix, report, threads)
        if transpose is not None:
            child = version.group.create_group("transpose")
            inner = _write_csr(child, transpose, report, threads)
            digests |= {f"transpose/{name}": digest for name, digest in inner.items()}
        version.commit(_describe(matrix, version, digests, provenance or {}))
    return open_store(store).info


@dataclass
class Version:
    """A version under construction: no reader sees it before `commit`."""

    root: zarr.Group
    group: zarr.Group
    name: str
    url: str
    place: StoreLike
    base: str | None = None
    """Name of the version that it is made from, which must be the current one; None for none."""
    keep: int | None = 1
    """How many of the versions up to `base` and this one stay; None for all."""
    is_named: bool = False
    """Whether the root may name it by now."""
    names: list[str] = field(default_factory=list)
    """What the root names then, the oldest first."""

    def describe(self, digests: dict[str, str], **claims: Any) -> dict[str, Any]:
        """The attributes of the version.

        Parameters
        ----------
        digests : of its arrays, by name
        claims : the fields of `MatrixInfo` that are not of the version, as JSON values
        """
        claims |= {
            "provenance": json.loads(hide_secrets(json.dumps(claims.get("provenance", {})))),
            "has_transpose": any(name.startswith("transpose/") for name in digests),
            "version": self.name,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "format_version": FORMAT_VERSION,
            "array_digests": digests,
        }
        return claims | {"digest": combine_digests(digests, claims)}

    def create_array(self, name: str, n: int, dtype: Any, place: str = "") -> None:
        """Make an array of n elements, to be written by ranges; see `write_range`.

        Parameters
        ----------
        dtype : `str` for strings
        place : of the group in the version, empty for itself
        """
        _create_array(self.group.require_group(place) if place else self.group, name, n, dtype)

    def write_array(self, name: str, array: Any, threads: int | None = None) -> str:
        """As the function of this name, into the version."""
        return write_array(self.group, name, array, threads)

    def address(self) -> VersionAddress:
        """Where other processes find it.

        Raises
        ------
        OptionError : the store is in the memory of this process
        """
        return VersionAddress(find_address(self.place, self.url), self.name)

    def commit(self, attributes: dict[str, Any]) -> None:
        """Write the version's attributes, check that all of it is there, then name it in the root: the last write.

        Raises
        ------
        StoreDamagedError : another ingest into the same store, finished meanwhile, has taken this one for a leftover
        StoreError : another version than `base` is the current one by now
        """
        self.group.attrs[_KEY] = attributes
        _check_version(self.group, self.url, self.url)
        self.names = [*self.check_base(), self.name][-(self.keep or 0) :]
        self.is_named = True
        _name_versions(self.root, self.names)

    def check_base(self) -> list[str]:
        """Names of the versions up to `base`, the oldest first; none where there is none.

        Raises
        ------
        StoreError : another version than `base` is the current one by now
        """
        if self.base is None:
            return []
        names = _list_named(*_open_place(self.place))
        if names[-1] != self.base:
            raise StoreError(
                f"{self.url} holds version {names[-1]} and not {self.base}, which was opened; it was changed by "
                "another meanwhile: run this again"
            )
        return names


@contextlib.contextmanager
def begin_version(
    store: StoreLike, *, overwrite: bool, base: str | None = None, keep: int | None = 1
) -> Iterator[Version]:
    """Open a store for one new version. What an exception leaves unfinished is removed, with the store where there was
    none before; on success versions that are not kept go, and what others left unfinished.

    Parameters
    ----------
    base : name of the version that the new one is made from: where another is the current one, at first or in the end,
        nothing is changed. That is looked at just before the last write, and is no lock
    keep : how many of the versions up to `base` and the new one stay; None for all. Without `base` none before it does

    Raises
    ------
    StoreExistsError : a finished store is there and `overwrite` is false, or something that is no store of mgspmv
    StoreError : nothing can be written there; another version than `base` is the current one
    """
    is_new = check_target(store, overwrite=overwrite)
    check_links(locate_store(store), "zarr.json", "versions", "versions/zarr.json")
    begun: dict[str, Any] = {_KEY: {"format_version": FORMAT_VERSION, "current": None}}
    try:
        root = zarr.open_group(locate_store(store), mode="a", zarr_format=3, attributes=begun, use_consolidated=False)
    except Exception as error:  # libraries of object stores have errors of their own
        place = describe_store(store)
        is_elsewhere = "://" in place
        if isinstance(error, MgspmvError) or not (is_elsewhere or isinstance(error, OSError)):
            raise
        remedy = f"; {CHECK_WRITING}" if is_elsewhere else ""
        raise StoreError(f"cannot write {place}: {describe_error(error)}{remedy}") from error
    versions = root.require_group("versions")
    numbers = _list_versions(versions)
    name = f"v{1 + max(numbers.values(), default=0):06d}-{secrets.token_hex(4)}"
    version = Version(root, versions.create_group(name), name, describe_store(store), store, base, keep)
    try:
        version.check_base()
        yield version
    except BaseException as error:
        if not version.is_named:  # else the write that names it may have come through
            del versions[name]
            if is_new and not _list_versions(versions):
                _remove_root(root, store)
        if isinstance(error, OSError):  # for what was dropped while it was read or written
            version.check_base()
        raise
    if version.is_named:
        for other in numbers.keys() - set(version.names):
            _drop(versions, other)
        _remove_broken_off(store)


def _drop(group: zarr.Group, name: str) -> None:
    """Remove a group; where it is a symbolic link, that and nothing behind it."""
    if type(group.store) is LocalStore and (place := group.store.root / group.path / name).is_symlink():
        place.unlink()
    else:
        del group[name]


def _remove_broken_off(store: StoreLike) -> None:
    """Remove what of metadata was never moved to its place."""
    if (path := _local_path(store)) is None:
        return
    for folder in (path, path / "versions"):
        for name in folder.glob(BROKEN_OFF):
            name.unlink(missing_ok=True)


def _remove_root(root: zarr.Group, store: StoreLike) -> None:
    sync(root.store.delete_dir("versions"))
    sync(root.store.delete("zarr.json"))
    if (path := _local_path(store)) is not None:
        with contextlib.suppress(OSError):  # what else is there by now is not ours
            path.rmdir()


def check_target(store: StoreLike, *, overwrite: bool) -> bool:
    """Raise StoreExistsError unless a store may be written here; whether nothing is there."""
    url = describe_store(store)
    attributes = read_root_attributes(store, url)
    if attributes is None:
        return True
    if not isinstance(ours := attributes.get(_KEY), dict) or "format_version" not in ours:
        raise StoreExistsError(f"{url} is a Zarr group that mgspmv did not write; choose another place")
    if ours.get("current") is not None and not overwrite:
        raise StoreExistsError(f"{url} holds a matrix; pass overwrite=True (--overwrite) or choose another place")
    return False


def read_root_attributes(store: StoreLike, url: str) -> dict[str, Any] | None:
    """Those of the group at a place; None where nothing is.

    Raises
    ------
    StoreExistsError : something is there that is no group
    """
    path = _local_path(store)
    if path is not None and not path.exists():
        return None
    place = locate_store(store)
    try:
        return dict(_open_root(place, url).attrs)
    except FileNotFoundError:
        with _explain_reaching(url):
            names = list_dir(place, "")
        if (path is not None and path.is_file()) or any(map(_is_foreign, names)):
            raise StoreExistsError(f"{url} exists and is not a Zarr group; choose another place") from None
        return None
    except _ZARR_ERRORS as error:
        raise StoreExistsError(f"{url} has a zarr.json that is no group's ({error}); choose another place") from error


def _is_foreign(name: str) -> bool:
    """Whether it is not what the very first write of a store left, that was killed."""
    return not fnmatch(name, BROKEN_OFF)


def _list_versions(group: zarr.Group) -> dict[str, int]:
    """Names and numbers of the versions, also of those that have lost their zarr.json; nothing else there is ours."""
    matches = map(_VERSION_NAME.fullmatch, list_dir(group.store, group.path))
    return {match[0]: int(match[1]) for match in matches if match}


def list_dir(store: Store, path: str) -> list[str]:
    """Names of what is in a folder of a Zarr store, in no order."""

    async def collect() -> list[str]:
        return [name async for name in store.list_dir(path)]

    return sync(collect())


def _write_csr(
    group: zarr.Group, matrix: CsrArrays, report: Callable[[str, int, int | None], None], threads: int | None
) -> dict[str, str]:
    if matrix.data is not None:
        mark_values(group, matrix.shape)
    names = ("indptr", "indices", "data", "out_degree", "out_weight", "vertex_ids", "order")
    present = {name: array for name in names if (array := getattr(matrix, name)) is not None}
    done, total = 0, sum(len(array) for array in present.values())
    digests = {}
    for name, array in present.items():
        report("write", done, total)
        digests[name] = write_array(group, name, array, threads)
        done += len(array)
    report("write", total, total)
    return digests


def mark_values(group: zarr.Group, shape: tuple[int, int]) -> None:
    """Say that a group is an anndata csr_matrix, as one with values is."""
    group.attrs.update({**_ANNDATA_CSR, "shape": list(shape)})


def write_array(group: zarr.Group, name: str, array: Any, threads: int | None = None) -> str:
    """Write a whole array, or what has a dtype, a length and slices like one, and give its digest."""
    target = _create_array(group, name, len(array), str if _is_string(array) else array.dtype)
    put = _find_writer(target)

    def write(piece: slice) -> None:
        put(piece, array[piece])

    own_threads = 1 if _is_string(array) else threads  # strings of Python are many times as large as what is written
    _run_pieces(write, 0, len(array), own_threads)
    return digest_array(array, own_threads)


def _find_writer(target: zarr.Array[Any]) -> Callable[[slice, np.ndarray], None]:
    """What writes elements of one chunk, from its first on."""
    files = _ChunkFiles.find(target)

    def write(piece: slice, elements: np.ndarray) -> None:
        if files is None:
            target[piece] = elements
        else:
            files.write(piece.start, elements)

    return write


def _create_array(group: zarr.Group, name: str, n: int, dtype: Any) -> zarr.Array[Any]:
    return group.create_array(
        name,
        shape=(n,),
        chunks=(min(CHUNK_ELEMENTS, max(1, n)),),
        dtype=dtype,
        compressors=[BloscCodec(cname="lz4", clevel=1, shuffle="shuffle"), Crc32cCodec()],
        config={"write_empty_chunks": True},
        attributes=_ANNDATA_STRINGS if dtype is str else _ANNDATA_ARRAY,
    )


# --- writing arrays whose length is known in the end -----------------------------------------------------------------


class GrowingArray:
    """An array that is written from its begin on, chunk by chunk.

    Parameters
    ----------
    most : elements that it may come to have
    pool : its threads compress and write
    n_ahead : chunks that may wait for them, of an array that may come to have `MANY_CHUNKS`; of a smaller one none does
    """

    def __init__(
        self, group: zarr.Group, name: str, dtype: np.dtype[Any], most: int, pool: ThreadPoolExecutor, n_ahead: int
    ) -> None:
        self._group, self._name, self._dtype, self._most = group, name, dtype, most
        self._pool, self._n_ahead = pool, n_ahead if most >= MANY_CHUNKS * CHUNK_ELEMENTS else 0
        self._chunk: np.ndarray = np.empty(min(most, CHUNK_ELEMENTS), dtype)
        self._n_held = self._n_written = 0
        self._put: Callable[[slice, np.ndarray], None] | None = None
        self._writing: deque[Future[bytes]] = deque()
        self._hashes: list[bytes] = []

    def append(self, elements: np.ndarray) -> None:
        """Put elements at its end."""
        while len(elements):
            taken = elements[: CHUNK_ELEMENTS - self._n_held]
            self._chunk[self._n_held : self._n_held + len(taken)] = taken
            self._n_held += len(taken)
            elements = elements[len(taken) :]
            if self._n_held == CHUNK_ELEMENTS:
                self._flush()
                self._chunk = np.empty(CHUNK_ELEMENTS, self._dtype)

    def finish(self) -> str:
        """Write what is left, and give the digest of the array."""
        n = self._n_written + self._n_held
        if self._n_held or not n:
            self._flush()
        while self._writing:
            self._hashes.append(self._writing.popleft().result())
        array = _get_array(self._group, self._name, self._group.path)
        if array.shape != (n,):
            array.resize((n,))
        return hashlib.sha256(b"".join(self._hashes)).hexdigest()

    def pieces(self) -> Iterator[np.ndarray]:
        """What was written, chunk after chunk, once it is finished."""
        array = _get_array(self._group, self._name, self._group.path)
        chunks = _find_chunks(array)
        for piece in _pieces(0, array.shape[0]):
            elements = np.empty(piece.stop - piece.start, self._dtype)
            chunks.read(piece, elements)
            yield elements

    def _flush(self) -> None:
        if self._put is None:  # as long as it may become, but with chunks as if its length were known
            n = self._most if self._n_held == CHUNK_ELEMENTS else self._n_held
            self._put = _find_writer(_create_array(self._group, self._name, n, self._dtype))
        if self._n_held:
            self._writing.append(self._pool.submit(self._write, self._n_written, self._chunk[: self._n_held]))
            self._n_written, self._n_held = self._n_written + self._n_held, 0
        while len(self._writing) > self._n_ahead:
            self._hashes.append(self._writing.popleft().result())
        mark()

    def _write(self, first: int, elements: np.ndarray) -> bytes:
        assert self._put is not None
        self._put(slice(first, first + len(elements)), elements)
        return hashlib.sha256(_encode(elements)).digest()


# --- writing by several processes, each its range of every array ------------------------------------------------------


@dataclass(frozen=True)
class VersionAddress:
    """Where other processes find a version that is under construction."""

    place: StoreLike
    name: str

    def __repr__(self) -> str:
        return _represent(self, self.place, self.name)

    def open(self, place: str = "") -> zarr.Group:
        """Its group, or another one in that, for writing."""
        path = f"versions/{self.name}/{place}".rstrip("/")
        return zarr.open_group(locate_store(self.place), mode="r+", path=path, use_consolidated=False)


@dataclass(frozen=True, eq=False)
class WrittenRange:
    """What a process wrote of an array."""

    hashes: dict[int, bytes]
    """SHA-256 of each chunk that lies in its range, by number."""
    rest: list[tuple[int, np.ndarray]]
    """What is of chunks that do not: the first element's number, and the elements."""


def _open_for_writing(group: zarr.Group, name: str) -> zarr.Array[Any]:
    with zarr.config.set({"array.write_empty_chunks": True}):  # an array does not say how it was created
        return _get_array(group, name, group.path)


def write_range(group: zarr.Group, name: str, start: int, elements: Any, threads: int | None = None) -> WrittenRange:
    """Write the chunks that lie in `start` .. `start` + len(elements); the others are for `finish_ranges`.

    Parameters
    ----------
    elements : an array, or what has a length and slices like one
    """
    target = _open_for_writing(group, name)
    put = _find_writer(target)
    stop, hashes, rest = start + len(elements), {}, []

    def write(piece: slice) -> None:
        own = elements[piece.start - start : piece.stop - start]
        number = piece.start // CHUNK_ELEMENTS
        if piece.start % CHUNK_ELEMENTS or piece.stop < min(target.shape[0], (number + 1) * CHUNK_ELEMENTS):
            rest.append((piece.start, own.copy()))
            return
        put(piece, own)
        hashes[number] = hashlib.sha256(_encode(own)).digest()

    _run_pieces(write, start, stop, threads)
    return WrittenRange(hashes, rest)


def finish_ranges(group: zarr.Group, name: str, ranges: Iterable[WrittenRange]) -> str:
    """Write what the ranges of an array left, and give the array's digest.

    Raises
    ------
    StoreDamagedError : the ranges are not all of it
    """
    target = _open_for_writing(group, name)
    put, hashes = _find_writer(target), dict[int, bytes]()
    left: dict[int, list[tuple[int, np.ndarray]]] = {}
    for written in ranges:
        hashes |= written.hashes
        for start, elements in written.rest:
            left.setdefault(start // CHUNK_ELEMENTS, []).append((start, elements))
    for number, pieces in left.items():
        pieces.sort(key=lambda piece: piece[0])
        chunk, start = np.concatenate([elements for _, elements in pieces]), number * CHUNK_ELEMENTS
        is_whole = len(chunk) == min(CHUNK_ELEMENTS, target.shape[0] - start)
        if is_whole and all(a + len(own) == b for (a, own), (b, _) in pairwise(pieces)):
            put(slice(start, start + len(chunk)), chunk)
            hashes[number] = hashlib.sha256(_encode(chunk)).digest()
    n_chunks = -(-target.shape[0] // CHUNK_ELEMENTS)
    if sorted(hashes) != list(range(n_chunks)):
        raise StoreDamagedError(f"{group.path}/{name}: {n_chunks - len(hashes)} of {n_chunks} chunks were not written")
    return hashlib.sha256(b"".join(hashes[k] for k in range(n_chunks))).hexdigest()


def _describe(
    matrix: CsrArrays, version: Version, digests: dict[str, str], provenance: dict[str, Any]
) -> dict[str, Any]:
    ids = matrix.vertex_ids
    return version.describe(
        digests,
        kind=matrix.kind,
        shape=list(matrix.shape),
        nnz=matrix.nnz,
        dtype=matrix.dtype,
        index_dtype=matrix.index_dtype,
        duplicates=matrix.duplicates,
        vertex_ids=None if ids is None else "int64" if ids.dtype == np.int64 else "string",
        order=matrix.order_method,
        min_weight=find_least(matrix.data),
        nbytes=matrix.nbytes,
        provenance=provenance,
    )


def find_least(data: np.ndarray | None) -> float | None:
    """Least value; None where there is none, or it is not a finite number, which JSON cannot hold."""
    least = math.nan if data is None or not len(data) else float(data.min())
    return least if math.isfinite(least) else None


# --- digests and verification ----------------------------------------------------------------------------------------


def digest_array(array: Any, threads: int | None = None) -> str:
    """SHA-256 over the SHA-256 of every `CHUNK_ELEMENTS` elements, so that pieces can be hashed apart."""
    pieces = list(_pieces(0, len(array)))
    with ThreadPoolExecutor(threads or default_threads()) as pool:
        whole = hashlib.sha256()
        for digest in pool.map(lambda piece: hashlib.sha256(_encode(array[piece])).digest(), pieces):
            whole.update(digest)
            mark()
        return whole.hexdigest()


def read_array_digests(stored: StoredMatrix) -> dict[str, str]:
    """The digests that were recorded when the version was written, by array."""
    attributes: Any = stored.group.attrs[_KEY]
    return dict(attributes.get("array_digests", {}))


def combine_digests(digests: Mapping[str, str], claims: Mapping[str, Any]) -> str:
    """The digest of a matrix: of its arrays' digests and of what says how to read them.

    Parameters
    ----------
    claims : kind, shape, dtype, index_dtype, vertex_ids and order as in `MatrixInfo`; what else is there does not count
    """
    own = {name: digest for name, digest in digests.items() if not name.startswith("transpose/")}
    claimed = {name: claims[name] for name in ("kind", "shape", "dtype", "index_dtype", "vertex_ids")}
    if claims.get("order") is not None:  # so that stores of the time before there was one keep their digest
        claimed["order"] = claims["order"]
    return hashlib.sha256(json.dumps(claimed | {"arrays": own}, sort_keys=True).encode()).hexdigest()


def _encode(array: np.ndarray) -> Any:
    if _is_string(array):
        return memoryview(VLenUTF8().encode(array.astype(object)))[
            4:
        ]  # for each its length and bytes; before, how many
    return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).view(np.uint8)


# --- places and pieces -----------------------------------------------------------------------------------------------


def is_version(group: zarr.Group) -> bool:
    """Whether a group is a matrix store, or one of its versions."""
    return _KEY in group.attrs


def is_store(group: zarr.Group) -> bool:
    """Whether a group is a matrix store, and none of its versions."""
    attributes = group.attrs.get(_KEY)
    return isinstance(attributes, dict) and "current" in attributes


def describe_store(store: StoreLike) -> str:
    """The place as a user would write it."""
    return str(store) if isinstance(store, Store) else os.fspath(store)


def _represent(address: Any, place: StoreLike, *others: Any) -> str:
    """For Dask, which logs what tasks that fail were given."""
    return f"{type(address).__name__}({', '.join(map(repr, (hide_secrets(describe_store(place)), *others)))})"


def locate_store(store: StoreLike) -> Store:
    """The Zarr store at a place.

    Raises
    ------
    OptionError : a URL that no library knows
    MissingDependencyError : the library that knows it is not installed
    """
    if isinstance(store, Store):
        return store
    url = os.fspath(store)
    try:
        if url.startswith("obstore+"):
            return _open_obstore(url.removeprefix("obstore+"))
        path = _local_path(store)
        return LocalStore(path) if path is not None else FsspecStore.from_url(url)
    except ValueError as error:
        raise OptionError(f"{url} is not a URL that can be opened ({error}); pass a path or another URL") from error
    except ImportError as error:
        raise MissingDependencyError(
            f"{url} needs a package that is not installed ({error}){name_extra(url)}"
        ) from error


def _open_obstore(url: str) -> Store:
    from obstore.exceptions import BaseError
    from obstore.store import from_url

    local = {"mkdir": True} if url.startswith("file://") else {}
    try:
        return ObjectStore(from_url(url, **local))
    except BaseError as error:
        raise ValueError(str(error).partition("\n")[0]) from error


def _local_path(store: StoreLike) -> Path | None:
    if isinstance(store, Store):
        return None
    text = os.fspath(store).removeprefix("obstore+").removeprefix("file://")
    return None if "://" in text else Path(text)


def check_links(store: Store, *paths: str, below: bool = False) -> None:
    """See that no symbolic link leads out of a local store; the store itself may be reached by one.

    Parameters
    ----------
    paths : what is looked at
    below : whether what is in folders is, too

    Raises
    ------
    StoreError : one does
    """
    while isinstance(store, WrapperStore):
        store = store._store
    if not isinstance(store, LocalStore):
        return
    root = store.root.resolve()
    for path in paths:
        for name in _list_below(root, path) if below else (path,):
            if (place := root / name).is_symlink() and not place.resolve().is_relative_to(root):
                raise StoreError(
                    f"{store.root}: {name} is a symbolic link that leads out of the store, to {os.readlink(place)}; "
                    "put a copy of what it leads to in its place, or get the store anew from whom you trust"
                )


def _list_below(root: Path, path: str) -> Iterator[str]:
    """A path, and the symbolic links and folders below it; no link is followed."""
    yield path
    if (root / path).is_dir() and not (root / path).is_symlink():
        with (
            contextlib.suppress(FileNotFoundError),
            os.scandir(root / path) as entries,
        ):  # what is removed meanwhile has none
            for entry in entries:
                if entry.is_symlink() or entry.is_dir(follow_symlinks=False):
                    yield from _list_below(root, f"{path}/{entry.name}".lstrip("/"))


def find_path(store: StoreLike) -> Path | None:
    """Where a local store is; None for what is elsewhere."""
    path = store.root if type(store) is LocalStore else _local_path(store)
    return None if path is None else path.absolute()


def find_folder(store: StoreLike) -> Path | None:
    """The folder that a local store is in, or the nearest one that there is; None for what is elsewhere."""
    path = find_path(store)
    return None if path is None else next(folder for folder in path.parents if folder.is_dir())


def find_address(place: StoreLike, url: str) -> StoreLike:
    """What leads other processes to a place; raises OptionError for one in the memory of this process."""
    if _is_in_memory(place):
        raise OptionError(
            f"{url} is in the memory of this process, where the workers of a cluster cannot reach it; use a path or "
            "URL that all of them can reach"
        )
    path = place.root if type(place) is LocalStore else _local_path(place)
    return place if path is None else str(path.absolute())


def _is_in_memory(store: StoreLike) -> bool:
    while isinstance(store, WrapperStore):
        store = store._store
    if isinstance(store, FsspecStore):
        return "memory" in store.fs.protocol
    if isinstance(store, ObjectStore):
        return type(store.store).__name__ == "MemoryStore"
    if isinstance(store, Store):
        return isinstance(store, MemoryStore)
    return os.fspath(store).removeprefix("obstore+").startswith("memory://")


def _is_string(array: Any) -> bool:
    return bool(array.dtype.kind in "OUT")


def _is_ascending(array: Any) -> bool:
    """Whether no element is less than the one before; by pieces, which takes less memory than all at once."""
    pieces = (array[k : k + CHUNK_ELEMENTS + 1] for k in range(0, len(array) - 1, CHUNK_ELEMENTS))
    return all(bool((piece[1:] >= piece[:-1]).all()) for piece in pieces)


def _is_permutation(array: np.ndarray) -> bool:
    """Whether each of 0..n-1 is there once; by pieces, as above."""
    n = len(array)
    if n and (array.min() < 0 or array.max() >= n):
        return False
    is_there = np.zeros(n, bool)
    for k in range(0, n, CHUNK_ELEMENTS):
        is_there[array[k : k + CHUNK_ELEMENTS]] = True
    return bool(is_there.all())


def _pieces(start: int, stop: int) -> Iterator[slice]:
    """The range in pieces that end where chunks end."""
    while start < stop:
        end = min(stop, (start // CHUNK_ELEMENTS + 1) * CHUNK_ELEMENTS)
        yield slice(start, end)
        start = end


def _run_pieces(work: Callable[[slice], None], start: int, stop: int, threads: int | None) -> None:
    with ThreadPoolExecutor(threads or default_threads()) as pool:
        for _ in pool.map(work, _pieces(start, stop)):
            mark()
