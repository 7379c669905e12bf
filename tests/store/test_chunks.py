"""Chunks of a store: their sizes, checksums, and what is refused that is not as it was written."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import struct
from functools import partial
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
import zarr
from numcodecs import blosc
from zarr.buffer.cpu import buffer_prototype
from zarr.codecs import BloscCodec, Crc32cCodec
from zarr.storage import LocalStore, MemoryStore, WrapperStore

from mgspmv.errors import ChecksumError, StoreDamagedError
from mgspmv.store import chunks, digests
from mgspmv.store.access import wait_for
from mgspmv.store.chunks import MOST_CHUNK
from mgspmv.store.digests import digest_array
from mgspmv.store.read import open_store
from mgspmv.store.stored_matrix import StoredMatrix
from mgspmv.store.write import write_array
from tests.support.arrays import CsrArrays, write_store
from tests.support.memory import measure_peak
from tests.support.pairwise import cover_pairs
from tests.support.stores import ARRAYS, WatchingStore, change_json, find_group, forget_records, make_arrays, make_scipy


def test_chunks_are_compressed_checked_and_all_written(tiny_chunks):
    zeros = CsrArrays("matrix", (40, 9), np.zeros(41, np.int64), np.zeros(0, np.int32), None, "first")
    full = make_arrays(make_scipy(40, 9), "matrix")
    for arrays in (zeros, dataclasses.replace(full, data=np.zeros(len(full.indices)))):
        place = MemoryStore()
        write_store(place, arrays)
        for name, array in open_store(place).group.arrays():
            codecs = array.metadata.to_dict()["codecs"]
            assert [codec["name"] for codec in codecs] == ["bytes", "blosc", "crc32c"]
            assert codecs[1]["configuration"]["cname"] == "lz4"
            assert array.chunks == (min(7, max(1, len(getattr(arrays, name)))),)
            assert array.shards is None
            assert array.nchunks_initialized == array.nchunks == -(-array.shape[0] // array.chunks[0])


def test_array_digest_is_sha256_of_the_pieces_sha256(tiny_chunks):
    values = np.arange(17, dtype=np.int64)
    pieces = [hashlib.sha256(values[k : k + 7].tobytes()).digest() for k in (0, 7, 14)]
    assert digest_array(values) == hashlib.sha256(b"".join(pieces)).hexdigest()
    assert digest_array(values.astype(">i8")) == digest_array(values)
    assert digest_array(np.array(["ab", "c"], object)) != digest_array(np.array(["a", "bc"], object))
    assert digest_array(np.array(["ab", "c"], object)) == digest_array(np.array(["ab", "c"]))


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float32, np.float64, str])
def test_an_array_is_described_as_zarr_does_and_by_one_request(dtype, tiny_chunks):
    for n in (0, 3, 20):
        ours, theirs = (zarr.open_group(WatchingStore(), mode="w").create_group("a") for _ in range(2))
        ours.store.calls.clear()
        chunks.create_array(ours, "x", n, dtype)[:] = np.zeros(n, object if dtype is str else dtype)
        keys = [f"a/x/c/{k}" for k in range(-(-n // tiny_chunks))]  # those that hold zeros alone, too
        described, *written = [key for operation, key in ours.store.calls if operation == "set"]
        assert (described, sorted(written)) == ("a/x/zarr.json", keys), n
        assert [key for operation, key in ours.store.calls if operation == "get" and "/c/" not in key] == [], n
        theirs.create_array(
            "x",
            shape=(n,),
            chunks=(min(tiny_chunks, max(n, 1)),),
            dtype=dtype,
            compressors=[BloscCodec(cname="lz4", clevel=1, shuffle="shuffle"), Crc32cCodec()],
            attributes={
                "encoding-type": "string-array" if dtype is str else "array",
                "encoding-version": "0.2.0",
            },
        )
        left, right = (
            wait_for(group.store.get("a/x/zarr.json", buffer_prototype)).to_bytes() for group in (ours, theirs)
        )
        assert left == right, n


@dataclasses.dataclass
class ByZarr:
    """Chunks as Zarr decodes them."""

    array: zarr.Array[Any]

    def read(self, piece: slice, target: np.ndarray) -> None:
        target[:] = self.array[piece]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_chunks_are_read_as_zarr_reads_them(tmp_path, small_chunks, monkeypatch, dtype):
    write_store(tmp_path / "store", make_arrays(make_scipy(150, 40, 0.3)))
    stored = open_store(tmp_path / "store")
    n, nnz = stored.info.shape[0], stored.info.nnz
    for as_object in (False, True):
        if as_object:  # a store object of the user, below ours
            stored = open_store(LocalStore(tmp_path / "store"))
        parts = [(0, n), (n // 3, n // 3 + 1), (n - 2, n), (0, 0)]
        by_files = [stored.read_block(*part, dtype) for part in parts]
        with monkeypatch.context() as patch:
            patch.setattr(chunks, "LocalStore", MemoryStore)
            by_objects = [stored.read_block(*part, dtype) for part in parts]
            patch.setattr(chunks, "find_chunks", lambda array, checksums: ByZarr(array))
            by_zarr = [stored.read_block(*part, dtype) for part in parts]
        for ways in zip(by_files, by_objects, by_zarr, strict=True):
            for name in ("indptr", "indices", "data"):
                assert len({getattr(way, name).dtype for way in ways}) == 1
                assert len({getattr(way, name).tobytes() for way in ways}) == 1
    assert nnz > 200


def test_chunks_are_written_as_zarr_writes_them(tmp_path, small_chunks):
    for store in (LocalStore(tmp_path), MemoryStore()):
        for n in (1, 99, 100, 101, 250):
            numbers = np.random.default_rng(n).integers(0, 2**40, n)
            for elements in (numbers, numbers.astype(str).astype(object)):
                group = zarr.open_group(store, mode="w")
                written = write_array(group, "x", elements, 2)
                keys = [f"x/c/{k}" for k in range(-(-n // 100))]
                ours = [wait_for(store.get(key, buffer_prototype)).to_bytes() for key in keys]
                assert written.checksums.tolist() == [int.from_bytes(own[-4:], "little") for own in ours]
                np.testing.assert_array_equal(group["x"][:], elements)
                group["x"][:] = elements
                assert [wait_for(store.get(key, buffer_prototype)).to_bytes() for key in keys] == ours


@pytest.mark.parametrize(("more", "is_read"), [(0, True), (1, False), (1 << 60, False)])
def test_chunks_that_could_unpack_to_all_memory_are_refused(planted, more, is_read):
    store, _ = planted
    path = find_group(store) / "indices" / "zarr.json"
    grid = {"name": "regular", "configuration": {"chunk_shape": [MOST_CHUNK + more]}}
    change_json(path, lambda document: document.update(chunk_grid=grid))
    if is_read:
        assert open_store(store).info.nnz > 0
        return
    with pytest.raises(
        StoreDamagedError,
        match=rf"indices has chunks of {MOST_CHUNK + more:,} elements, but at most 16,777,216 are allowed",
    ):
        open_store(store)


OURS = [{"name": "blosc", "configuration": {"cname": "lz4", "clevel": 1, "shuffle": "noshuffle", "blocksize": 0}}]


CODECS = {
    "gzip": ([{"name": "gzip", "configuration": {"level": 1}}], "gzip"),
    "zstd and a checksum": (
        [{"name": "zstd", "configuration": {"level": 1, "checksum": False}}, {"name": "crc32c"}],
        "zstd, crc32c",
    ),
    "no checksum": (OURS, "blosc"),
    "blosc twice": ([*OURS, *OURS, {"name": "crc32c"}], "blosc, blosc, crc32c"),
}


@pytest.mark.parametrize("codecs", CODECS)
def test_other_codecs_than_those_that_are_written_are_refused(damaged, codecs):
    others, said = CODECS[codecs]
    for name in ARRAYS:
        first = "vlen-utf8" if name == "vertex_ids" else "bytes"
        path = find_group(damaged) / name / "zarr.json"
        sound = path.read_bytes()
        change_json(path, lambda document: document.update(codecs=[document["codecs"][0], *others]))
        message = (
            rf"web\.zarr: .*/{name} has the codecs {first}, {said} instead of {first}, blosc, crc32c, which give every "
            "chunk a checksum; ingest again or restore a copy$"
        )
        with pytest.raises(StoreDamagedError, match=message):
            open_store(damaged)
        path.write_bytes(sound)


def test_chunks_of_other_names_are_refused(damaged):
    encoding = {"name": "v2", "configuration": {"separator": "."}}
    path = find_group(damaged) / "indices"
    change_json(path / "zarr.json", lambda document: document.update(chunk_key_encoding=encoding))
    (path / "c" / "0").rename(path / "0")
    with pytest.raises(StoreDamagedError, match="indices has chunk names of another form than c/0; ingest again"):
        open_store(damaged)


def craft_chunk(path: Path, change: Any) -> None:
    """Change the frame of a chunk, and make its checksum anew."""
    frame = bytearray(path.read_bytes()[:-4])
    change(frame)
    path.write_bytes(frame + google_crc32c.value(bytes(frame)).to_bytes(4, "little"))


FRAMES = {
    "more": (4, 1 << 30, "unpacks to 1,073,741,824 bytes"),
    "more than there can be": (4, 0xFFFFFFF0, "unpacks to 4,294,967,280 bytes"),
    "less": (4, 1, "unpacks to 1 bytes"),
    "longer": (12, 1 << 20, "its header states 1,048,576"),
    "shorter": (12, 17, "its header states 17"),
}


AS_FILES_AND_OBJECTS = {"files": Path, "objects": lambda path: WrapperStore(LocalStore(path))}


@cover_pairs(frame=FRAMES, make_place=AS_FILES_AND_OBJECTS)
def test_frames_that_say_something_else_are_refused_before_they_are_unpacked(damaged, frame, make_place):
    place, number, unpacked = frame
    for name in ARRAYS:
        said = unpacked
        if name == "vertex_ids" and place == 4:
            said = "at most 2,147,483,631 are allowed" if number > 1 << 31 else "2 strings|instead of|decompress"
        chunk = find_group(damaged) / name / "c" / "0"
        sound = chunk.read_bytes()
        craft_chunk(chunk, lambda raw: struct.pack_into("<I", raw, place, number))
        forget_records(damaged)
        stored = open_store(make_place(damaged))
        part = stored.transpose() if "/" in name else stored
        most = (1 << 20) + (number if name == "vertex_ids" and number == 1 << 30 else 0)
        assert measure_peak(partial(read_damaged, part, name, said)) < most, name
        chunk.write_bytes(sound)


def read_damaged(part: StoredMatrix, name: str, said: str) -> None:
    with pytest.raises(ChecksumError, match=rf"/{name}, elements 0 to .* are damaged \(.*({said})"):
        part.read_array(name.rpartition("/")[2])


@pytest.mark.parametrize("make_place", AS_FILES_AND_OBJECTS.values(), ids=AS_FILES_AND_OBJECTS.keys())
def test_strings_without_end_are_refused_before_they_have_places(damaged, make_place):
    chunk = find_group(damaged) / "vertex_ids" / "c" / "0"

    def change(frame: bytearray) -> None:
        text = bytearray(blosc.decompress(bytes(frame)))
        text[:4] = (1 << 28).to_bytes(4, "little")
        frame[:] = blosc.compress(bytes(text), b"lz4", 1)

    craft_chunk(chunk, change)
    forget_records(damaged)
    stored = open_store(make_place(damaged))

    def read() -> None:
        with pytest.raises(ChecksumError, match=r"its header states 268,435,456 strings instead of 6"):
            stored.read_array("vertex_ids")

    assert measure_peak(read) < 1 << 20


def test_a_chunk_that_has_more_bytes_than_are_written_is_not_read(damaged):
    os.truncate(find_group(damaged) / "indices" / "c" / "0", 1 << 40)  # which takes no room on a disk
    stored = open_store(damaged)
    with pytest.raises(ChecksumError, match=r"it has 1,099,511,627,776 bytes, but at most 48 are allowed"):
        stored.read_array("indices")


@pytest.mark.parametrize("elements", [4, 9])
def test_chunks_of_another_length_than_ours_are_read(tmp_path, small_chunks, monkeypatch, elements):
    write_store(tmp_path / "a", make_arrays(make_scipy(60, 40)))
    wanted = open_store(tmp_path / "a").read_array("indices")
    monkeypatch.setattr(digests, "CHUNK_ELEMENTS", elements)
    for place in (tmp_path / "a", WrapperStore(LocalStore(tmp_path / "a"))):
        assert open_store(place).read_array("indices", 3, 95).tolist() == wanted[3:95].tolist()
    write_store(tmp_path / "b", make_arrays(make_scipy(60, 40)))
    monkeypatch.setattr(digests, "CHUNK_ELEMENTS", 100)
    assert open_store(tmp_path / "b").read_array("indices", 3, 95).tolist() == wanted[3:95].tolist()
