"""Limits on the size of chunks of foreign arrays, stored and unpacked."""

from __future__ import annotations

import asyncio
import os
import warnings
import zipfile

import numcodecs
import numpy as np
import pytest
import zarr
import zarr.codecs.numcodecs as numbered
from zarr.buffer.cpu import Buffer, buffer_prototype
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, ZstdCodec
from zarr.core.sync import sync
from zarr.storage import MemoryStore, ZipStore

from mgspmv.errors import SourceError
from mgspmv.ingest.bounded import bound_chunks
from mgspmv.ingest.groups import GroupSource
from tests.support.memory import measure_peak

pytestmark = pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr")

SIZE = 8192
NUMBERS = np.random.default_rng(0).integers(0, 1 << 22, 5 * SIZE + 3).cumsum()
BOMB = np.zeros(1 << 23, np.int64).tobytes()
UNPACKED = "unpacks to more than 139,264 bytes, and its elements take less"
NUMCODECS = {
    codec.codec_id: codec
    for codec in (
        *(numcodecs.Blosc(), numcodecs.BZ2(), numcodecs.GZip(), numcodecs.LZ4()),
        *(numcodecs.LZMA(preset=0), numcodecs.Zlib(), numcodecs.Zstd()),
    )
}
with warnings.catch_warnings(action="ignore"):  # that some are in no specification of Zarr
    COMPRESSORS = {
        **{f"v2-{name}": {"zarr_format": 2, "compressors": codec} for name, codec in NUMCODECS.items()},
        **{
            f"numcodecs.{name}": {"compressors": [getattr(numbered, type(codec).__name__)()]}
            for name, codec in NUMCODECS.items()
        },
        "blosc": {"compressors": BloscCodec()},
        "gzip": {"compressors": GzipCodec()},
        "zstd": {"compressors": ZstdCodec()},
    }
    OTHERS = {
        "v2-none": {"zarr_format": 2, "compressors": None},
        "v2-filters": {"zarr_format": 2, "filters": [numcodecs.Delta("i8"), numcodecs.Zlib()]},
        "v2-lzma-raw": {
            "zarr_format": 2,
            "compressors": numcodecs.LZMA(format=3, filters=[{"id": 0x21, "preset": 1}]),
        },
        "none": {"compressors": None},
        "filters": {"filters": [numbered.Delta(dtype="int64")]},
        "several": {"compressors": [numbered.Zstd(), GzipCodec(), Crc32cCodec()]},
        "shards": {"shards": (2 * SIZE,)},
        "shards, none": {"shards": (2 * SIZE,), "compressors": None},
        "shards, gzip": {"shards": (2 * SIZE,), "compressors": GzipCodec()},
    }


def make(options, store=None, numbers=NUMBERS):
    return zarr.create_array(MemoryStore() if store is None else store, data=numbers, chunks=(SIZE,), **options)


def put(store, key, data):
    sync(store.set(key, Buffer.from_bytes(bytes(data))))


@pytest.mark.parametrize("options", (COMPRESSORS | OTHERS).values(), ids=COMPRESSORS | OTHERS)
def test_what_is_no_larger_is_read(options):
    array = make(options)
    bounded = bound_chunks(array)
    assert np.array_equal(bounded[:], NUMBERS)
    assert np.array_equal(bounded[SIZE - 1 : SIZE + 1], NUMBERS[SIZE - 1 : SIZE + 1])
    assert bounded.metadata.to_dict() == array.metadata.to_dict()


@pytest.mark.parametrize("dtype", ["u1", "f8"])
def test_numbers_that_cannot_be_compressed(dtype):
    numbers = np.random.default_rng(0).integers(0, 256, 100 * np.dtype(dtype).itemsize, np.uint8).view(dtype)
    for name, options in COMPRESSORS.items():
        assert bound_chunks(make(options, numbers=numbers))[:].tobytes() == numbers.tobytes(), name


@pytest.mark.parametrize("name", COMPRESSORS)
def test_a_bomb(name):
    """64 MiB of zeros in a chunk of 64 KiB; Zarr alone unpacks it."""
    store = MemoryStore()
    array = make(COMPRESSORS[name], store)
    codec = NUMCODECS[name.removeprefix("v2-").removeprefix("numcodecs.")]
    put(store, "2" if name.startswith("v2") else "c/2", codec.encode(BOMB))
    bounded = bound_chunks(array)
    assert np.array_equal(bounded[: 2 * SIZE], NUMBERS[: 2 * SIZE])

    def read():
        with pytest.raises(ValueError, match=UNPACKED):
            bounded[2 * SIZE]

    assert measure_peak(read) < len(BOMB) / 4  # lzma's window has 8 MiB


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_bomb_within_what_is_no_bomb(zarr_format):
    store = MemoryStore()
    if zarr_format == 2:
        options = {"zarr_format": 2, "filters": [numcodecs.Zlib()], "compressors": numcodecs.GZip()}
    else:
        options = {"compressors": [numbered.Zlib(), GzipCodec()]}
    array = make(options, store)
    inner = numcodecs.Zlib(9).encode(BOMB)
    assert len(inner) < SIZE * 8
    put(store, "0" if zarr_format == 2 else "c/0", numcodecs.GZip().encode(inner))
    with pytest.raises(ValueError, match=UNPACKED):
        bound_chunks(array)[:]


def test_a_bomb_in_a_shard():
    store = MemoryStore()
    array = make({"shards": (2 * SIZE,), "compressors": numbered.BZ2()}, store)
    size, other = 1 << 17, MemoryStore()
    options = {"chunks": (size,), "shards": (2 * size,), "compressors": numbered.BZ2()}
    zarr.create_array(other, data=np.ones(2 * size, np.int64), **options)
    put(store, "c/0", sync(other.get("c/0", buffer_prototype)).to_bytes())
    with pytest.raises(ValueError, match=UNPACKED):
        bound_chunks(array)[0]


@pytest.mark.parametrize("name", COMPRESSORS)
def test_truncated_chunk(name):
    """Without its last bytes, or with its first ones only."""
    store = MemoryStore()
    array = make(COMPRESSORS[name], store)
    codec = NUMCODECS[name.removeprefix("v2-").removeprefix("numcodecs.")]
    whole = codec.encode(NUMBERS[:SIZE].tobytes())
    for end in (-1, -3, 7):
        put(store, "0" if name.startswith("v2") else "c/0", whole[:end])
        with pytest.raises((ValueError, EOFError, OSError, RuntimeError)):
            bound_chunks(array)[0]


# --- stored ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compressors", [None, "auto"])
def test_a_sparse_file(tmp_path, compressors):
    array = make({"compressors": compressors}, tmp_path / "a")
    os.truncate(tmp_path / "a/c/1", 1 << 42)
    bounded = bound_chunks(array)
    assert np.array_equal(bounded[:SIZE], NUMBERS[:SIZE])
    with pytest.raises(ValueError, match=r"^c/1 takes 4,398,046,511,104 bytes, and no chunk of this array more than "):
        bounded[SIZE]


def test_a_shard_in_a_sparse_file(tmp_path):
    """Its index says where a chunk is, and that it is all that there is."""
    array = make({"shards": (2 * SIZE,), "compressors": None}, tmp_path / "a")
    path = tmp_path / "a/c/0"
    index = np.array([0, 1 << 42, 0, 8], "<u8").tobytes()
    os.truncate(path, 1 << 42)
    with open(path, "ab") as file:
        file.write(numcodecs.CRC32C(location="end").encode(index))
    with pytest.raises(ValueError, match=r"^c/0 takes 4,398,046,511,104 bytes"):
        bound_chunks(array)[0]


def test_a_member_of_an_archive(tmp_path):
    make({"compressors": None}, tmp_path / "a")
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(tmp_path / "a/zarr.json", "zarr.json")
        archive.write(tmp_path / "a/c/0", "c/0")
        archive.writestr("c/1", BOMB)
    bounded = bound_chunks(zarr.open_array(ZipStore(tmp_path / "a.zip"), mode="r"))
    assert np.array_equal(bounded[:SIZE], NUMBERS[:SIZE])
    with pytest.raises(ValueError, match=r"^c/1 takes 67,108,864 bytes, and no chunk of this array more than "):
        bounded[SIZE]


def test_a_group_with_a_bomb_is_no_source(tmp_path):
    group = zarr.create_group(tmp_path / "g.zarr")
    for name, numbers in {"indptr": np.arange(5), "indices": np.zeros(4, np.int32), "data": np.ones(4)}.items():
        group.create_array(name, data=numbers, compressors=GzipCodec())
    group.attrs["shape"] = [4, 4]
    (tmp_path / "g.zarr/data/c/0").write_bytes(numcodecs.GZip(9).encode(BOMB[: 1 << 22]))
    with pytest.raises(SourceError) as caught:
        list(GroupSource(tmp_path / "g.zarr").batches())
    assert str(caught.value) == (
        f"{tmp_path}/g.zarr: data cannot be read (ValueError: a chunk unpacks to more than 65,572 bytes, and its "
        "elements take less); check where it is, or write it again"
    )


def test_a_chunk_that_cannot_be_read_leaves_nothing_in_the_making(tmp_path):
    """At the end of a program Zarr says of each chunk that is still being read that it was destroyed."""
    group, n = zarr.create_group(tmp_path / "g.zarr"), 5000
    for name, numbers in {"indptr": np.arange(n + 1), "indices": np.zeros(n, np.int32), "data": np.ones(n)}.items():
        group.create_array(name, data=numbers, chunks=(20,), compressors=GzipCodec())
    group.attrs["shape"] = [n, 4]
    (tmp_path / "g.zarr/data/c/0").write_bytes(b"")
    with pytest.raises(SourceError, match="data cannot be read"):
        list(GroupSource(tmp_path / "g.zarr").batches())
    assert sync(count_tasks()) == 1, "that which counts"


async def count_tasks():
    return len(asyncio.all_tasks())
