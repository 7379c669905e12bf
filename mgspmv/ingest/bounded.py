"""Arrays of others' Zarr groups, with chunks that are no larger, stored and unpacked, than the array says.

Zarr reads and unpacks what there is and looks at its size then: a chunk of 4 KB of zstd, or of less than 1 KB of bzip2,
can take 128 MiB, and a sparse file as much as its writer likes. Bounded are the compressors that Zarr itself and
numcodecs have, in any order and within shards; codecs for numbers, such as pcodec, are as they come.
"""

from __future__ import annotations

import asyncio
import dataclasses
import lzma
import math
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numcodecs.abc
import pyarrow as pa
import zarr
from zarr.abc.codec import BytesBytesCodec, Codec
from zarr.abc.store import ByteRequest, RangeByteRequest, Store
from zarr.codecs import ShardingCodec
from zarr.core.array_spec import ArraySpec
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.core.metadata import ArrayV2Metadata
from zarr.storage import LocalStore, StorePath, WrapperStore, ZipStore

_FRAMES: dict[str, Callable[[memoryview], int]] = {
    "blosc": lambda raw: int.from_bytes(raw[4:8], "little"),
    "lz4": lambda raw: int.from_bytes(raw[:4], "little"),
}
"""What a frame says that it unpacks to, which is what these allocate and never more."""
_STREAMS = {"bz2": "bz2", "gzip": "gzip", "zstd": "zstd"}
_BOUNDED = (*_FRAMES, *_STREAMS, "lzma", "zlib")
_BLOSC_BYTES = 16
"""Of the head of a frame of Blosc, of which the last four are its length."""
_INDEX_BYTES = 16
"""Of each chunk, in the index of its shard."""
_CUT = "a chunk was cut short"


def bound_chunks(array: zarr.Array[Any]) -> zarr.Array[Any]:
    """The same array, which reads no chunk that takes more than its elements and what codecs add to them.

    Reading it raises ValueError where a chunk would. What an object store sends of one is not bounded.
    """
    metadata: Any = array.metadata
    itemsize = array.dtype.itemsize
    if isinstance(metadata, ArrayV2Metadata):
        most = _allow(math.prod(metadata.chunks) * itemsize)
        filters = metadata.filters and tuple(_bound_numcodec(own, most) for own in metadata.filters)
        compressor = metadata.compressor and _bound_numcodec(metadata.compressor, most)
        bounded = dataclasses.replace(metadata, filters=filters, compressor=compressor)
    else:
        elements = math.prod(metadata.chunk_grid.chunk_shape)
        most = _allow(elements * (itemsize + _INDEX_BYTES))
        bounded = dataclasses.replace(metadata, codecs=_bound_codecs(metadata.codecs, elements, itemsize))
    place = array.store_path
    return zarr.Array(zarr.AsyncArray(bounded, StorePath(_BoundedStore(place.store, most), place.path)))


def _allow(n_bytes: int) -> int:
    """Most bytes between two codecs for a chunk of some: compressing what is compressed adds a little."""
    return n_bytes + n_bytes // 8 + 2**16


class _BoundedStore(WrapperStore[Store]):
    """A store of chunks of which none takes more than so many bytes there."""

    _supports_sync_io = False  # else the fused pipeline of newer Zarr reads past `get`

    def __init__(self, store: Store, most: int) -> None:
        super().__init__(store)
        self._most = most
        self._members: dict[str, int] = {}
        if isinstance(store, ZipStore):
            with zipfile.ZipFile(store.path) as file:
                self._members = {member.filename: member.file_size for member in file.infolist()}

    def _with_store(self, store: Store) -> _BoundedStore:
        return type(self)(store, self._most)

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        if (n_bytes := self._find_size(key, byte_range)) > self._most:
            raise ValueError(f"{key} takes {n_bytes:,} bytes, and no chunk of this array more than {self._most:,}")
        return await self._store.get(key, prototype, byte_range)

    def _find_size(self, key: str, byte_range: ByteRequest | None) -> int:
        """What would be read, where that is known."""
        if isinstance(byte_range, RangeByteRequest):
            return byte_range.end - byte_range.start
        if isinstance(self._store, LocalStore):
            place = self._store.root / key
            return place.stat().st_size if byte_range is None and place.is_file() else 0
        return self._members.get(key, 0)


def _bound_codecs(codecs: tuple[Codec, ...], elements: int, itemsize: int) -> tuple[Codec, ...]:
    return tuple(_bound_codec(codec, elements, itemsize) for codec in codecs)


def _bound_codec(codec: Codec, elements: int, itemsize: int) -> Codec:
    if isinstance(codec, ShardingCodec):
        inner = math.prod(codec.chunk_shape)
        return dataclasses.replace(codec, codecs=_bound_codecs(codec.codecs, inner, itemsize))
    name = str(codec.to_dict()["name"]).removeprefix("numcodecs.")
    if not isinstance(codec, BytesBytesCodec) or name not in _BOUNDED:
        return codec
    return _BoundedCodec(codec, name, _allow(elements * itemsize))


def _bound_numcodec(codec: Any, most: int) -> Any:
    return _BoundedNumcodec(codec, most) if codec.codec_id in _BOUNDED else codec


@dataclass(frozen=True)
class _BoundedCodec(BytesBytesCodec):
    """A compressor of Zarr's version 3."""

    is_fixed_size = False

    codec: Any
    name: str
    most: int

    async def _decode_single(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> Buffer:
        own = getattr(self.codec, "_codec", None)  # of numcodecs
        unpacked = await asyncio.to_thread(_unpack, self.name, own, chunk_bytes.as_numpy_array(), self.most)
        if unpacked is not None:
            return chunk_spec.prototype.buffer.from_bytes(unpacked)
        return await self.codec._decode_single(chunk_bytes, chunk_spec)  # type: ignore[no-any-return]

    def compute_encoded_size(self, input_byte_length: int, chunk_spec: ArraySpec) -> int:
        return int(self.codec.compute_encoded_size(input_byte_length, chunk_spec))

    def to_dict(self) -> dict[str, Any]:
        described: dict[str, Any] = self.codec.to_dict()
        return described


class _BoundedNumcodec(numcodecs.abc.Codec):  # type: ignore[misc]  # numcodecs has no types
    """A compressor of Zarr's version 2."""

    codec_id = "bounded"  # of the class, for which Zarr asks; each has that of its own codec

    def __init__(self, codec: Any, most: int) -> None:
        self.codec_id, self._codec, self._most = codec.codec_id, codec, most

    def decode(self, buf: Any, out: Any = None) -> Any:
        unpacked = _unpack(self.codec_id, self._codec, buf, self._most)
        return self._codec.decode(buf, out) if unpacked is None else unpacked

    def encode(self, buf: Any) -> Any:
        raise NotImplementedError("arrays of others are read")

    def get_config(self) -> dict[str, Any]:
        described: dict[str, Any] = self._codec.get_config()
        return described


def _unpack(name: str, codec: Any, data: Any, most: int) -> bytes | None:
    """What data unpack to, which is at most so many bytes; None where the codec may do it itself.

    Raises
    ------
    ValueError, EOFError : it is more; data end too soon
    """
    raw = memoryview(data).cast("B")
    if name in _FRAMES:
        if name == "blosc" and (len(raw) < _BLOSC_BYTES or int.from_bytes(raw[12:16], "little") > len(raw)):
            raise EOFError(_CUT)  # Blosc reads as many bytes as a frame says, whatever there are
        _check(_FRAMES[name](raw), most)
        return None
    if name in _STREAMS:
        with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(raw)), _STREAMS[name]) as stream:
            unpacked: bytes = stream.read(most + 1)
        _check(len(unpacked), most)
        return unpacked
    stream = zlib.decompressobj() if name == "zlib" else lzma.LZMADecompressor(codec.format, filters=codec.filters)
    unpacked = stream.decompress(raw, most + 1)
    _check(len(unpacked), most)
    if not stream.eof:
        raise EOFError(_CUT)
    return unpacked


def _check(n_bytes: int, most: int) -> None:
    if n_bytes > most:
        raise ValueError(f"a chunk unpacks to more than {most:,} bytes, and its elements take less")
