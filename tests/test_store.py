"""The matrix store: what is written comes back, in part or whole, or is refused with the right error."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import pickle
import re
import shutil
import struct
import sys
import threading
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
import scipy.sparse as sp
import zarr
from memory import measure_peak
from numcodecs import blosc
from stores import (
    Crash,
    CrashingStore,
    FarStore,
    WatchingStore,
    find_group,
    make_arrays,
    make_scipy,
    make_stochastic,
    make_transpose,
)
from zarr.abc.store import Store
from zarr.buffer.cpu import buffer_prototype
from zarr.codecs import BloscCodec, Crc32cCodec
from zarr.core.sync import collect_aiterator, sync
from zarr.storage import FsspecStore, LocalStore, MemoryStore, WrapperStore

import mgspmv
from mgspmv.errors import (
    CapacityError,
    ChecksumError,
    MgspmvError,
    MissingChunkError,
    MissingDependencyError,
    MissingTransposeError,
    OptionError,
    StoreDamagedError,
    StoreError,
    StoreExistsError,
    StoreFormatError,
    StoreNotFoundError,
    StoreUnfinishedError,
    TruncatedArrayError,
)
from mgspmv.model import CsrArrays, CsrBlock, MatrixInfo
from mgspmv.store import chunks
from mgspmv.store.chunks import MOST_CHUNK, _ChunkFiles, _ChunkObjects, find_chunks
from mgspmv.store.digests import digest_array
from mgspmv.store.ranges import finish_ranges, write_range
from mgspmv.store.read import StoreAddress, StoredMatrix, open_store, read_array_digests
from mgspmv.store.versions import FORMAT_VERSION, check_target, drop_versions, list_versions
from mgspmv.store.write import begin_version, write_array, write_store

STRING_IDS = np.array(["", "Zürich", "a", "aa", "日本", "𝔾"], dtype=object)
INTEGER_IDS = np.array([-(2**63), -1, 0, 7, 2**40, 2**63 - 1], dtype=np.int64)


@pytest.fixture
def tiny_chunks(monkeypatch: pytest.MonkeyPatch) -> int:
    """Chunks of 7 elements, so that small matrices have many."""
    monkeypatch.setattr(chunks, "CHUNK_ELEMENTS", 7)
    return 7


def read_scipy(stored: StoredMatrix, dtype: Any = np.float64, rows: tuple[int, int] | None = None) -> sp.csr_array:
    start, stop = rows or (0, stored.info.shape[0])
    block = stored.read_block(start, stop, dtype)
    assert (block.row_offset, block.n_rows, block.n_cols) == (start, stop - start, stored.info.shape[1])
    data = np.ones(block.nnz) if block.data is None else block.data
    return sp.csr_array((data, block.indices, block.indptr), shape=(stop - start, block.n_cols))


def assert_same_csr(found: sp.csr_array, expected: sp.csr_array) -> None:
    assert found.shape == expected.shape
    assert found.indptr.tolist() == expected.indptr.tolist()
    assert found.indices.tolist() == expected.indices.tolist()
    assert found.data.tobytes() == expected.data.tobytes()


def change_json(path: Path, change: Any) -> None:
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


# --- round trips -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("dtype", [np.int64, np.float32, np.float64])
def test_values_come_back_bit_by_bit(tiny_chunks, dtype, threads):
    matrix = make_scipy(23, 31, dtype=dtype)
    place = MemoryStore()
    info = write_store(place, make_arrays(matrix), threads=threads)
    stored = open_store(place)
    assert stored.info == info
    assert (info.kind, info.shape, info.nnz, info.dtype) == ("matrix", (23, 31), matrix.nnz, np.dtype(dtype).name)
    assert (info.index_dtype, info.duplicates, info.format_version) == ("int32", "sum", FORMAT_VERSION)
    assert (info.vertex_ids, info.has_transpose, info.is_pattern) == (None, False, False)
    assert info.min_weight == matrix.data.min()
    assert info.nbytes == 8 * 24 + (4 + np.dtype(dtype).itemsize) * matrix.nnz
    data = stored.read_array("data", threads=threads)
    assert data.dtype == dtype
    assert data.tobytes() == matrix.data.tobytes()
    for wanted in (np.float32, np.float64):
        expected = matrix.astype(wanted)
        found = stored.read_block(0, 23, wanted, threads)
        assert found.data.dtype == wanted
        assert found.data.tobytes() == expected.data.tobytes()
    assert stored.read_block(0, 23, None).data is None


@pytest.mark.parametrize("pattern", [False, True])
@pytest.mark.parametrize("kind", ["graph", "stochastic"])
def test_graphs_have_out_degrees_and_weights(tiny_chunks, kind, pattern):
    matrix = make_stochastic(17)
    place = MemoryStore()
    info = write_store(place, make_arrays(matrix, kind, pattern=pattern))
    stored = open_store(place)
    assert (info.kind, info.is_pattern) == (kind, pattern)
    assert stored.read_array("out_degree").tolist() == (matrix.toarray() != 0).sum(axis=0).tolist()
    assert "out_weight" not in stored.group if pattern else True
    if not pattern:
        assert stored.read_array("out_weight").tobytes() == matrix.sum(axis=0).tobytes()
    expected = sp.csr_array((matrix != 0).astype(float)) if pattern else matrix
    assert_same_csr(read_scipy(stored), expected)


def test_pattern_has_no_values():
    place = MemoryStore()
    info = write_store(place, make_arrays(make_scipy(5, 6), pattern=True))
    assert (info.dtype, info.min_weight, info.is_pattern, info.duplicates) == (None, None, True, "first")
    stored = open_store(place)
    assert stored.read_block(0, 5, np.float64).data is None
    assert sorted(stored.group.array_keys()) == ["indices", "indptr"]
    with pytest.raises(StoreDamagedError, match=r"the array .*/data is missing"):
        stored.read_array("data")


@pytest.mark.parametrize(("ids", "said"), [(STRING_IDS, "string"), (INTEGER_IDS, "int64")], ids=["strings", "integers"])
def test_vertex_ids_come_back(tiny_chunks, monkeypatch, ids, said):
    monkeypatch.setattr(chunks, "CHUNK_ELEMENTS", 4)
    place = MemoryStore()
    assert write_store(place, make_arrays(make_scipy(6, 6), "graph", ids=ids)).vertex_ids == said
    found = open_store(place).read_array("vertex_ids")
    assert found.tolist() == ids.tolist()
    assert found.dtype == ids.dtype
    assert open_store(place).read_array("vertex_ids", 3, 6).tolist() == ids[3:].tolist()


def test_zarr_and_we_read_each_others_strings(tiny_chunks, monkeypatch, tmp_path):
    """In a folder, chunks go past Zarr; the last one here is not full."""
    monkeypatch.setattr(chunks, "CHUNK_ELEMENTS", 4)
    arrays = make_arrays(make_scipy(6, 6), "graph", ids=STRING_IDS)
    by_us = write_store(tmp_path / "us.zarr", arrays)
    group = open_store(tmp_path / "us.zarr").group
    assert group["vertex_ids"][:].tolist() == STRING_IDS.tolist()
    shutil.rmtree(tmp_path / "us.zarr" / group.path / "vertex_ids" / "c")
    group = zarr.open_group(tmp_path / "us.zarr" / group.path, mode="r+")
    group["vertex_ids"][:] = STRING_IDS
    assert open_store(tmp_path / "us.zarr").read_array("vertex_ids", 1, 6).tolist() == STRING_IDS[1:].tolist()
    assert by_us.digest == write_store(MemoryStore(), arrays).digest


def test_ids_in_a_fixed_width_array_are_strings_too():
    place = MemoryStore()
    info = write_store(place, make_arrays(make_scipy(3, 3), "graph", ids=np.array(["a", "b", "ccc"])))
    assert info.vertex_ids == "string"
    assert open_store(place).read_array("vertex_ids").tolist() == ["a", "b", "ccc"]


@pytest.mark.parametrize("pattern", [False, True])
def test_transpose_comes_back(tiny_chunks, pattern):
    matrix = make_scipy(13, 19)
    place = MemoryStore()
    arrays = make_arrays(matrix, pattern=pattern)
    info = write_store(place, arrays, transpose=make_transpose(matrix, pattern=pattern))
    assert info.has_transpose
    transposed = open_store(place).transpose()
    assert transposed.info.shape == (19, 13)
    expected = sp.csr_array(matrix.T)
    expected.sort_indices()
    assert_same_csr(read_scipy(transposed), sp.csr_array((expected != 0).astype(float)) if pattern else expected)
    assert_same_csr(read_scipy(transposed, rows=(5, 11)), sp.csr_array(read_scipy(transposed)[5:11]))
    assert transposed.transpose().info == info


@pytest.mark.parametrize("pattern", [False, True])
def test_transpose_of_a_graph_is_the_reversed_graph(pattern):
    matrix, place = make_scipy(6, 6), MemoryStore()
    arrays = make_arrays(matrix, "graph", ids=STRING_IDS, pattern=pattern)
    write_store(place, arrays, transpose=make_transpose(matrix, pattern=pattern))
    stored = open_store(place)
    assert (stored.transpose().info.kind, stored.transpose().info.vertex_ids) == ("graph", "string")
    assert stored.read_out_degree().tolist() == np.bincount(matrix.indices, minlength=6).tolist()
    assert stored.transpose().read_out_degree().tolist() == np.diff(matrix.indptr).tolist()
    assert stored.transpose().read_out_degree(2, 5).tolist() == np.diff(matrix.indptr)[2:5].tolist()
    assert stored.transpose().read_arrays().kind == "matrix"


def test_transpose_of_a_stochastic_matrix_is_a_matrix():
    matrix, place = make_stochastic(6), MemoryStore()
    write_store(place, make_arrays(matrix, "stochastic", ids=STRING_IDS), transpose=make_transpose(matrix))
    info = open_store(place).transpose().info
    assert (info.kind, info.vertex_ids) == ("matrix", None)


@pytest.mark.parametrize("shape", [(4, 4), (2, 5), (0, 3), (3, 0), (0, 0)])
@pytest.mark.parametrize("kind", ["matrix", "graph"])
@pytest.mark.parametrize("pattern", [False, True])
def test_nothing_in_it(shape, kind, pattern):
    if kind == "graph" and shape[0] != shape[1]:
        shape = (max(shape), max(shape))
    matrix = sp.csr_array(shape)
    place = MemoryStore()
    info = write_store(place, make_arrays(matrix, kind, pattern=pattern), transpose=make_transpose(matrix))
    assert (info.shape, info.nnz, info.min_weight) == (shape, 0, None)
    stored = open_store(place)
    assert_same_csr(read_scipy(stored), matrix)
    assert read_scipy(stored.transpose()).shape == shape[::-1]


def test_int64_indices(tiny_chunks):
    matrix = make_scipy(9, 11)
    place = MemoryStore()
    transposed = make_arrays(sp.csr_array(matrix.T), index_dtype=np.int64)
    assert write_store(place, make_arrays(matrix, index_dtype=np.int64), transpose=transposed).index_dtype == "int64"
    stored = open_store(place)
    assert stored.read_block(2, 7, np.float64).indices.dtype == np.int64
    assert_same_csr(read_scipy(stored), matrix)
    assert stored.transpose().info.index_dtype == "int64"


def test_columns_beyond_int32():
    columns = np.array([0, 2**31, 2**40], dtype=np.int64)
    arrays = CsrArrays("matrix", (2, 2**40 + 1), np.array([0, 1, 3]), columns, np.array([1.0, 2.0, 3.0]), "sum")
    place = MemoryStore()
    write_store(place, arrays)
    block = open_store(place).read_block(0, 2, np.float64)
    assert block.indices.tolist() == columns.tolist()
    assert block.n_cols == 2**40 + 1


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_come_back(odd, tmp_path):
    matrix = sp.csr_array(np.array([[1.0, odd], [0.0, 2.0]]))
    info = write_store(tmp_path / "m", make_arrays(matrix))
    assert_same_csr(read_scipy(open_store(tmp_path / "m")), matrix)
    assert info.min_weight == (1.0 if odd == np.inf else None)
    text = (find_group(tmp_path / "m") / "zarr.json").read_text()
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_information_is_kept(tmp_path):
    provenance = {"source": {"name": "web.mtx", "bytes": 12}, "program": "mgspmv 1"}
    reported = []
    info = write_store(
        tmp_path / "m", make_arrays(make_scipy(9, 9)), provenance=provenance, on_progress=lambda *a: reported.append(a)
    )
    assert info.provenance == provenance
    assert info.url == str(tmp_path / "m")
    assert re.fullmatch(r"v000001-[0-9a-f]{8}", info.version)
    done = [n for phase, n, total in reported]
    assert done == sorted(done)
    assert {(phase, total) for phase, n, total in reported} == {("write", 10 + 2 * info.nnz)}
    assert done[-1] == 10 + 2 * info.nnz


# --- chunks ----------------------------------------------------------------------------------------------------------


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


def test_chunks_hold_4_to_8_mib(tmp_path):
    n = chunks.CHUNK_ELEMENTS + 1
    arrays = CsrArrays("matrix", (1, n), np.array([0, n]), np.arange(n, dtype=np.int32), np.ones(n), "sum")
    write_store(tmp_path / "m", arrays)
    group = open_store(tmp_path / "m").group
    sizes = {name: array.chunks[0] * array.dtype.itemsize for name, array in group.arrays() if name != "indptr"}
    assert sizes == {"indices": 4 * 2**20, "data": 8 * 2**20}


def test_digests_do_not_depend_on_chunks_in_flight(tiny_chunks):
    arrays = make_arrays(make_scipy(30, 30), "graph")
    infos = [write_store(MemoryStore(), arrays, threads=threads) for threads in (1, 2, 5)]
    assert len({info.digest for info in infos}) == 1
    assert digest_array(arrays.data, threads=1) == digest_array(arrays.data, threads=4)


def test_array_digest_is_sha256_of_the_pieces_sha256(tiny_chunks):
    values = np.arange(17, dtype=np.int64)
    pieces = [hashlib.sha256(values[k : k + 7].tobytes()).digest() for k in (0, 7, 14)]
    assert digest_array(values) == hashlib.sha256(b"".join(pieces)).hexdigest()
    assert digest_array(values.astype(">i8")) == digest_array(values)
    assert digest_array(np.array(["ab", "c"], object)) != digest_array(np.array(["a", "bc"], object))
    assert digest_array(np.array(["ab", "c"], object)) == digest_array(np.array(["ab", "c"]))


# --- digests of matrices ---------------------------------------------------------------------------------------------


def digest(arrays: CsrArrays, **options: Any) -> str:
    return write_store(MemoryStore(), arrays, **options).digest


def test_digest_is_the_matrix_and_nothing_else():
    matrix = make_scipy(12, 12)
    same = digest(make_arrays(matrix, "graph"))
    assert digest(make_arrays(matrix, "graph"), provenance={"created": "later"}) == same
    assert digest(make_arrays(matrix, "graph"), transpose=make_transpose(matrix)) == same
    place = MemoryStore()
    write_store(place, make_arrays(make_scipy(4, 4)))
    assert write_store(place, make_arrays(matrix, "graph"), overwrite=True).digest == same


def test_digest_differs_when_anything_differs():
    matrix = make_stochastic(6)
    other_value, other_place = matrix.copy(), matrix.copy()
    other_value.data[3] = np.nextafter(other_value.data[3], 2)
    other_place.indices[-1] = 5 if other_place.indices[-1] < 5 else 4
    wider = sp.csr_array((matrix.data, matrix.indices, matrix.indptr), shape=(6, 7))
    bits = make_arrays(matrix)
    integers = np.frombuffer(INTEGER_IDS.tobytes(), dtype=np.int64)
    digests = [
        digest(make_arrays(matrix, "graph")),
        digest(make_arrays(matrix, "stochastic")),
        digest(bits),
        digest(make_arrays(wider)),
        digest(make_arrays(matrix, pattern=True)),
        digest(make_arrays(matrix, "graph", pattern=True)),
        digest(make_arrays(other_value)),
        digest(make_arrays(other_place)),
        digest(make_arrays(matrix.astype(np.float32))),
        digest(dataclasses.replace(bits, data=bits.data.view(np.int64))),
        digest(make_arrays(matrix, index_dtype=np.int64)),
        digest(make_arrays(matrix, "graph", ids=STRING_IDS)),
        digest(make_arrays(matrix, "graph", ids=integers)),
    ]
    assert len(set(digests)) == len(digests)


# --- row ranges ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64, None])
def test_any_rows_equal_scipy_slices_and_read_their_chunks_only(tiny_chunks, dtype):
    matrix = make_scipy(61, 40, 0.15, dtype=np.float32)
    watched = WatchingStore()
    write_store(watched, make_arrays(matrix))
    stored = open_store(watched)
    rng = np.random.default_rng(1)
    ranges = [(0, 61), (0, 0), (61, 61), (60, 61), (0, 1), *(sorted(rng.integers(0, 62, 2)) for _ in range(25))]
    for start, stop in ranges:
        watched.calls.clear()
        found = read_scipy(stored, dtype, (int(start), int(stop)))
        expected = sp.csr_array(matrix[start:stop]).astype(dtype or np.float64)
        if dtype is None:
            expected.data[:] = 1
        assert_same_csr(found, expected)
        first, last = int(matrix.indptr[start]), int(matrix.indptr[stop])
        needed = {f"indptr/c/{k}" for k in range(start // 7, stop // 7 + 1)}
        if last > first:
            entries = range(first // 7, (last - 1) // 7 + 1)
            needed |= {f"{name}/c/{k}" for name in ("indices", "data")[: 1 if dtype is None else 2] for k in entries}
        read = [key.split("/", 2)[2] for key in watched.chunks_read()]
        assert sorted(read) == sorted(needed)


def test_a_part_of_an_array_reads_its_chunks_only(tiny_chunks):
    watched = WatchingStore()
    write_store(watched, make_arrays(make_scipy(30, 30)))
    stored = open_store(watched)
    whole = stored.read_array("indptr")
    watched.calls.clear()
    assert stored.read_array("indptr", 8, 15).tolist() == whole[8:15].tolist()
    assert [key.rpartition("/")[2] for key in watched.chunks_read()] == ["1", "2"]


def test_opening_reads_no_chunk(tiny_chunks):
    watched = WatchingStore()
    matrix = make_scipy(6, 6)
    write_store(watched, make_arrays(matrix, "graph", ids=STRING_IDS), transpose=make_transpose(matrix))
    watched.calls.clear()
    open_store(watched)
    assert watched.chunks_read() == []
    assert watched.keys("set") == []


@pytest.mark.parametrize("n", [0, 3, 20])
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float32, np.float64, str])
def test_an_array_is_described_as_zarr_does_and_by_one_request(dtype, n, tiny_chunks):
    ours, theirs = (zarr.open_group(WatchingStore(), mode="w").create_group("a") for _ in range(2))
    ours.store.calls.clear()
    chunks.create_array(ours, "x", n, dtype)[:] = np.zeros(n, object if dtype is str else dtype)
    keys = [f"a/x/c/{k}" for k in range(-(-n // tiny_chunks))]  # those that hold zeros alone, too
    described, *written = [key for operation, key in ours.store.calls if operation == "set"]
    assert (described, sorted(written)) == ("a/x/zarr.json", keys)
    assert [key for operation, key in ours.store.calls if operation == "get" and "/c/" not in key] == []
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
    left, right = (sync(group.store.get("a/x/zarr.json", buffer_prototype)).to_bytes() for group in (ours, theirs))
    assert left == right


def test_a_store_that_is_far_away_is_asked_a_few_times_for_all_of_it(tiny_chunks):
    far, matrix = FarStore(), make_scipy(6, 6)
    arrays = make_arrays(matrix, "graph", ids=STRING_IDS, order=np.arange(6, dtype=np.int32)[::-1].copy())
    write_store(far, arrays, transpose=make_transpose(matrix))
    far.calls.clear()
    stored = open_store(far)
    assert 1 < far.n_rounds <= 4  # the root, the version, its arrays, their chunks
    assert len(stored.arrays) == 10
    far.calls.clear()
    stored.read_block(0, 6, np.float64)
    assert {key for key in far.keys("get") if "/c/" not in key} == set()
    assert 1 < far.n_rounds <= 3  # row pointers, columns, values


def test_threads_read_at_the_same_time(tiny_chunks, monkeypatch):
    place = MemoryStore()
    write_store(place, make_arrays(make_scipy(30, 30)))
    stored = open_store(place)
    barrier = threading.Barrier(3, timeout=30)
    plain, waited = _ChunkObjects.fetch, []

    def wait_for_others(self: Any, number: str) -> Any:
        waited.append(barrier.wait())
        return plain(self, number)

    monkeypatch.setattr(_ChunkObjects, "fetch", wait_for_others)
    assert len(stored.read_array("indptr", 0, 21, threads=3)) == 21
    assert sorted(waited) == [0, 1, 2]


# --- memory ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def alone():
    """Runs functions in a process that does nothing else, whose memory is therefore theirs."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        yield lambda function, *args: pool.submit(function, *args).result()


def measure_reading(place: Path, chunk_elements: int, threads: int, dtype: Any) -> tuple[int, int]:
    """Bytes of the whole matrix as a block, and the most that is held while it is read."""
    chunks.CHUNK_ELEMENTS = chunk_elements
    stored = open_store(place)

    def read() -> CsrBlock:
        return stored.read_block(0, stored.info.shape[0], dtype, threads)

    return read().nbytes, measure_peak(read)  # imports and caches are not counted


def assert_reads_within_memory(
    alone: Any, arrays: CsrArrays, chunk_elements: int, threads: int, dtype: Any, place: Path
) -> None:
    write_store(place, arrays)
    nbytes, peak = alone(measure_reading, place, chunk_elements, threads, dtype)
    chunk = 2 * 8 * chunk_elements
    assert nbytes <= peak <= 1.1 * nbytes + threads * chunk


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, None])
def test_reading_takes_the_block_and_a_chunk_a_thread(alone, monkeypatch, tmp_path, threads, dtype):
    monkeypatch.setattr(chunks, "CHUNK_ELEMENTS", 1 << 14)
    rng = np.random.default_rng(0)
    n, each = 20_000, 20
    indices = np.sort(rng.integers(0, n, (n, each), dtype=np.int32), axis=1).ravel()
    arrays = CsrArrays("matrix", (n, n), np.arange(0, n * each + 1, each), indices, rng.random(n * each), "keep")
    assert_reads_within_memory(alone, arrays, 1 << 14, threads, dtype, tmp_path / "m")


def test_reading_rows_without_entries_takes_little_more_than_the_pointers(alone, monkeypatch, tmp_path):
    monkeypatch.setattr(chunks, "CHUNK_ELEMENTS", 1 << 14)
    n = 1_000_000
    arrays = CsrArrays("matrix", (n, n), np.zeros(n + 1, np.int64), np.zeros(0, np.int32), np.zeros(0), "sum")
    assert_reads_within_memory(alone, arrays, 1 << 14, 2, np.float64, tmp_path / "m")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64, None])
def test_reading_a_large_block_takes_the_block_and_a_chunk_a_thread(alone, tmp_path, dtype):
    rng = np.random.default_rng(0)
    n, each = 500_000, 60
    indices = np.sort(rng.integers(0, n, (n, each), dtype=np.int32), axis=1).ravel()
    arrays = CsrArrays("matrix", (n, n), np.arange(0, n * each + 1, each), indices, rng.random(n * each), "keep")
    assert arrays.indices.nbytes > 100e6
    assert_reads_within_memory(alone, arrays, chunks.CHUNK_ELEMENTS, 2, dtype, tmp_path / "m")


# --- versions --------------------------------------------------------------------------------------------------------


def list_keys(place: Store) -> list[str]:
    return sorted(collect_aiterator(place.list()))


def list_version_names(place: Store) -> list[str]:
    """Names of which anything is left."""
    return sorted({key.split("/")[1] for key in list_keys(place) if key.startswith("versions/v")})


def test_overwriting_makes_a_new_version_and_drops_the_old(tiny_chunks):
    place = MemoryStore()
    first, second = make_scipy(10, 10, seed=1), make_scipy(12, 9, seed=2)
    old = write_store(place, make_arrays(first))
    new = write_store(place, make_arrays(second), overwrite=True)
    assert old.version.startswith("v000001-")
    assert new.version.startswith("v000002-")
    assert list_version_names(place) == [new.version]
    assert_same_csr(read_scipy(open_store(place)), second)


@pytest.mark.parametrize("again", [False, True])
def test_naming_the_version_is_the_last_write(tiny_chunks, again):
    watched = WatchingStore()
    matrix = make_scipy(6, 6)
    if again:
        write_store(watched, make_arrays(matrix))
        watched.calls.clear()
    arrays = make_arrays(matrix, "graph", ids=STRING_IDS)
    info = write_store(watched, arrays, transpose=make_transpose(matrix), overwrite=again)
    changes = [call for call in watched.calls if call[0] != "get"]
    last_set = max(k for k, (operation, _) in enumerate(changes) if operation == "set")
    assert changes[last_set] == ("set", "zarr.json")
    assert ("set", f"versions/{info.version}/zarr.json") in changes[:last_set]
    if again:
        assert watched.keys("set").count("zarr.json") == 1
        assert all(operation == "set" for operation, _ in changes[: last_set + 1])
        assert len(changes) > last_set + 1
    else:
        assert len(changes) == last_set + 1


def count_writes(arrays: CsrArrays, transpose: CsrArrays, old: CsrArrays | None) -> int:
    watched = WatchingStore()
    if old is not None:
        write_store(watched, old)
        watched.calls.clear()
    write_store(watched, arrays, transpose=transpose, overwrite=True)
    return len(watched.keys("set")) + len(watched.keys("delete"))


@pytest.mark.parametrize(
    "stays_down", [pytest.param(False, id="one write fails", marks=pytest.mark.slow), pytest.param(True, id="it dies")]
)
@pytest.mark.parametrize("had_version", [False, True], ids=["new store", "overwriting"])
def test_a_crash_at_any_write_leaves_the_old_version_or_none(tiny_chunks, had_version, stays_down):
    old, new = make_scipy(3, 3, 0.5, seed=1), make_scipy(6, 6, seed=2)
    arrays, transpose = make_arrays(new, "graph"), make_transpose(new)
    n_writes = count_writes(arrays, transpose, make_arrays(old) if had_version else None)
    seen = set()
    for at in range(1, n_writes + 1):
        place = MemoryStore()
        if had_version:
            write_store(place, make_arrays(old))
        with pytest.raises((Crash, StoreError)):
            write_store(CrashingStore(place, at=at, stays_down=stays_down), arrays, transpose=transpose, overwrite=True)
        try:
            stored = open_store(place)
        except (StoreNotFoundError, StoreUnfinishedError) as error:
            assert not had_version
            seen.add(type(error))
        else:
            found = read_scipy(stored)
            is_new = found.shape == new.shape
            assert_same_csr(found, new if is_new else old)
            seen.add("new" if is_new else "old")
        assert write_store(place, arrays, transpose=transpose, overwrite=had_version).shape == (6, 6)
        assert_same_csr(read_scipy(open_store(place)), new)
        assert list_version_names(place) == [open_store(place).info.version]
    assert seen == ({"old", "new"} if had_version else {StoreNotFoundError, StoreUnfinishedError})


def test_a_write_that_fails_after_it_came_through_harms_nothing(tiny_chunks):
    old, new = make_scipy(4, 4, seed=1), make_scipy(6, 6, seed=2)

    class LosingAnswers(WatchingStore):
        async def set(self, key: str, value: Any) -> None:
            await super().set(key, value)
            if key == "zarr.json":
                raise Crash("no answer")

    place = MemoryStore()
    write_store(place, make_arrays(old))
    with pytest.raises(Crash):
        write_store(LosingAnswers(place), make_arrays(new), overwrite=True)
    assert_same_csr(read_scipy(open_store(place)), new)


def test_an_error_while_writing_leaves_no_trace(tiny_chunks):
    place = MemoryStore()

    def interrupt(phase: str, done: int, total: int | None) -> None:
        if done > 0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_store(place, make_arrays(make_scipy(5, 5)), on_progress=interrupt)
    assert place._store_dict == {}
    with pytest.raises(StoreNotFoundError):
        open_store(place)


def test_an_error_while_replacing_leaves_what_was_there(tiny_chunks, tmp_path):
    info = write_store(tmp_path / "m", make_arrays(make_scipy(5, 5)))
    with pytest.raises(RuntimeError), begin_version(tmp_path / "m", overwrite=True):
        raise RuntimeError
    assert open_store(tmp_path / "m").info == info
    assert list_version_names(LocalStore(tmp_path / "m")) == [info.version]


@pytest.mark.parametrize("is_there", [False, True], ids=["no folder", "an empty folder"])
def test_an_error_before_there_was_a_store_leaves_none(tmp_path, is_there):
    if is_there:
        (tmp_path / "m").mkdir()
    with pytest.raises(AttributeError), begin_version(tmp_path / "m", overwrite=False) as version:
        version.write_array("indptr", np.arange(9)).missing  # noqa: B018  # an array is there when it fails
    assert list(tmp_path.iterdir()) == []


def test_an_error_leaves_what_others_began_meanwhile(tmp_path):
    with begin_version(tmp_path / "m", overwrite=False) as other:
        with pytest.raises(RuntimeError), begin_version(tmp_path / "m", overwrite=False):
            raise RuntimeError
        assert other.name in list_version_names(LocalStore(tmp_path / "m"))
        other.is_named = True


@pytest.mark.parametrize("loses", ["zarr.json", None], ids=["without its zarr.json", "whole"])
def test_leftovers_go_with_the_next_overwrite(tiny_chunks, tmp_path, loses):
    write_store(tmp_path / "m", make_arrays(make_scipy(4, 4)))
    leftover = tmp_path / "m/versions/v000009-00000000"
    shutil.copytree(find_group(tmp_path / "m"), leftover)
    if loses:
        (leftover / loses).unlink()
    info = write_store(tmp_path / "m", make_arrays(make_scipy(5, 5)), overwrite=True)
    assert info.version.startswith("v000010-")
    assert sorted(path.name for path in (tmp_path / "m/versions").iterdir()) == [info.version, "zarr.json"]


def test_metadata_whose_writing_was_killed_go_with_the_next_version(tmp_path):
    write_store(tmp_path / "m", make_arrays(make_scipy(3, 3)))
    for folder in (tmp_path / "m", tmp_path / "m/versions"):
        (folder / f"zarr.{'0a' * 16}.partial").write_bytes(b"{")
    write_store(tmp_path / "m", make_arrays(make_scipy(4, 4)), overwrite=True)
    assert not list((tmp_path / "m").rglob("*.partial"))


def test_a_store_can_be_made_where_its_very_first_write_was_killed(tmp_path):
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / f"zarr.{'0a' * 16}.partial").write_bytes(b"{")
    assert check_target(tmp_path / "m", overwrite=False)
    (tmp_path / "m" / "zarr.txt").write_bytes(b"{")
    with pytest.raises(StoreExistsError, match="exists and is not a Zarr group"):
        check_target(tmp_path / "m", overwrite=False)


def test_a_version_that_another_ingest_swept_away_is_not_named(tiny_chunks):
    place = MemoryStore()
    first, second = make_arrays(make_scipy(4, 4, seed=1)), make_arrays(make_scipy(6, 6, seed=2))

    def overtake(phase: str, done: int, total: int | None) -> None:
        if done == total:
            write_store(place, second, overwrite=True)

    with pytest.raises(StoreDamagedError):
        write_store(place, first, on_progress=overtake)
    assert open_store(place).info.shape == (6, 6)
    assert list_version_names(place) == [open_store(place).info.version]


def test_a_reader_of_a_dropped_version_gets_an_error_and_no_zeros(tiny_chunks, tmp_path):
    write_store(tmp_path / "m", make_arrays(make_scipy(20, 20, seed=1)))
    reader = open_store(tmp_path / "m")
    write_store(tmp_path / "m", make_arrays(make_scipy(20, 20, seed=2)), overwrite=True)
    with pytest.raises(StoreDamagedError, match="missing; open it again if it was replaced since it was opened"):
        reader.read_block(0, 20, np.float64)


def test_chunks_that_go_while_reading_are_an_error_and_no_zeros(tiny_chunks, tmp_path):
    write_store(tmp_path / "m", make_arrays(make_scipy(20, 20)))
    reader = open_store(tmp_path / "m")
    for name in ("indptr", "indices", "data"):
        shutil.move(find_group(tmp_path / "m") / name / "c" / "1", tmp_path / "away")
        with pytest.raises(MissingChunkError, match=rf"m: .*/{name}, elements 7 to 14 are missing; open it again if"):
            reader.read_block(0, 20, np.float64)
        shutil.move(tmp_path / "away", find_group(tmp_path / "m") / name / "c" / "1")
    assert reader.read_block(0, 20, np.float64).nnz == reader.info.nnz


def test_the_fused_pipeline_reads_no_zeros_either(tiny_chunks, tmp_path):
    if not hasattr(zarr.core.codec_pipeline, "FusedCodecPipeline"):
        pytest.skip("this Zarr has no fused codec pipeline")
    with zarr.config.set({"codec_pipeline.path": "zarr.core.codec_pipeline.FusedCodecPipeline"}):
        write_store(tmp_path / "m", make_arrays(make_scipy(20, 20)))
        reader = open_store(tmp_path / "m")
        assert_same_csr(read_scipy(reader), make_scipy(20, 20))
        (find_group(tmp_path / "m") / "indptr" / "c" / "1").unlink()
        with pytest.raises(MissingChunkError, match="indptr, elements 7 to 14 are missing"):
            reader.read_array("indptr")


# --- several versions ------------------------------------------------------------------------------------------------


def add_version(place: Any, matrix: sp.csr_array, keep: int | None = None) -> MatrixInfo:
    """A version beside the ones that are there."""
    base = open_store(place).info.version
    write_store(elsewhere := MemoryStore(), make_arrays(matrix))
    made = open_store(elsewhere)
    with begin_version(place, overwrite=True, base=base, keep=keep) as version:
        digests = {name: version.write_array(name, made.read_array(name)) for name in made.group.array_keys()}
        version.commit(version.describe(digests, **{name: getattr(made.info, name) for name in CLAIMS}))
    return open_store(place).info


CLAIMS = ("kind", "shape", "nnz", "dtype", "index_dtype", "duplicates", "vertex_ids", "min_weight", "nbytes", "order")


@pytest.fixture(params=["local", "memory"])
def several(request, tmp_path):
    """A store of three versions, their matrices, and what they say of themselves."""
    place = LocalStore(tmp_path / "m") if request.param == "local" else MemoryStore()
    matrices = [make_scipy(5, k, seed=k) for k in (4, 5, 6)]
    infos = [write_store(place, make_arrays(matrices[0]))]
    infos += [add_version(place, matrix) for matrix in matrices[1:]]
    return place, matrices, infos


def test_versions_are_listed_and_opened(several):
    place, matrices, infos = several
    assert list_versions(place) == infos
    assert [info.number for info in infos] == [1, 2, 3]
    for info, matrix in zip(infos, matrices, strict=True):
        for version in (info.version, info.number):
            stored = open_store(place, version)
            assert stored.info == info
            assert_same_csr(read_scipy(stored), matrix)
    assert open_store(place).info == infos[-1]


@pytest.mark.parametrize("version", [0, 4, "v000002", "v000002-00000000", "2", ""])
def test_a_version_that_there_is_not(several, version):
    place, _, infos = several
    names = ", ".join(info.version for info in infos)
    with pytest.raises(StoreError) as caught:
        open_store(place, version)
    assert str(caught.value) == f"{infos[0].url} has no version {version!r}; it has {names}"


def test_versions_say_when_they_were_written(several):
    _, _, infos = several
    times = [datetime.fromisoformat(info.created) for info in infos]
    assert times == sorted(times)
    assert abs(datetime.now(UTC) - times[-1]) < timedelta(minutes=5)


def test_a_version_of_the_time_before_that_was_noted(tmp_path):
    write_store(tmp_path / "m", make_arrays(make_scipy(3, 3)))
    change_json(
        find_group(tmp_path / "m") / "zarr.json", lambda document: document["attributes"]["mgspmv"].pop("created")
    )
    assert open_store(tmp_path / "m").info.created is None


@pytest.mark.parametrize("keep", [1, 2, 3, 9])
def test_versions_are_dropped_on_request(several, keep):
    place, _, infos = several
    assert drop_versions(place, keep=keep) == [info.version for info in infos[:-keep]]
    assert list_versions(place) == infos[-keep:]
    assert list_version_names(place) == [info.version for info in infos[-keep:]]
    assert drop_versions(place, keep=keep) == []


@pytest.mark.parametrize("keep", [0, -1, True, 1.5, "1"])
def test_the_current_version_is_never_dropped(several, keep):
    place, _, infos = several
    with pytest.raises(OptionError, match="keep must be at least 1, the current version is never dropped; not"):
        drop_versions(place, keep=keep)
    assert list_versions(place) == infos


def test_what_is_no_store_has_no_versions(tmp_path):
    for function in (list_versions, lambda place: drop_versions(place, keep=1)):
        with pytest.raises(StoreNotFoundError):
            function(tmp_path / "none")
    with begin_version(tmp_path / "begun", overwrite=False):
        pass
    with pytest.raises(StoreUnfinishedError):
        list_versions(tmp_path / "begun")


def test_names_of_versions_go_before_their_arrays(several):
    """So that a drop that is interrupted leaves no version that is not whole."""
    place, _, infos = several
    calls = WatchingStore(place)
    drop_versions(calls, keep=1)
    changes = [call for call in calls.calls if call[0] != "get"]
    assert changes[0] == ("set", "zarr.json")
    assert {operation for operation, _ in changes[1:]} == {"delete"}
    assert zarr.open_group(place, mode="r").attrs["mgspmv"]["current"] == infos[-1].version


def test_a_drop_that_is_interrupted(several):
    place, matrices, infos = several
    for at in (1, 2):
        with pytest.raises(Crash):
            drop_versions(CrashingStore(place, at=at, stays_down=True), keep=1)
        assert list_versions(place) == (infos if at == 1 else infos[-1:])
        assert_same_csr(read_scipy(open_store(place)), matrices[-1])
    assert len(list_version_names(place)) > 1
    info = add_version(place, matrices[0])
    assert list_versions(place) == [infos[-1], info]
    assert list_version_names(place) == [infos[-1].version, info.version]


def test_what_was_never_named_is_no_version(several):
    """Though it is whole: a process that was killed before its last write leaves that."""
    place, matrices, infos = several
    with begin_version(place, overwrite=True, base=infos[-1].version, keep=None) as version:
        group = zarr.open_group(place, mode="r", path=f"versions/{infos[0].version}")
        for name, array in group.arrays():
            version.write_array(name, array[:])
        version.group.attrs["mgspmv"] = dict(group.attrs["mgspmv"])  # and never commit
    leftover = version.name
    assert leftover in list_version_names(place)
    assert list_versions(place) == infos
    for version in (4, leftover):
        with pytest.raises(StoreError, match="has no version"):
            open_store(place, version)
    info = add_version(place, matrices[1])
    assert info.number == 5
    assert list_version_names(place) == [other.version for other in [*infos, info]]


def test_a_version_from_one_that_is_not_current_is_refused(several):
    place, matrices, infos = several
    message = (
        f"holds version {infos[-1].version} and not {infos[0].version}, which was opened; it was changed by another"
    )
    with pytest.raises(StoreError, match=message), begin_version(place, overwrite=True, base=infos[0].version):
        pytest.fail("it began")
    with pytest.raises(StoreError, match=message):
        write_store(place, make_arrays(matrices[0]), overwrite=True, base=infos[0].version)
    assert list_versions(place) == infos
    assert list_version_names(place) == [info.version for info in infos]


def test_an_overwrite_drops_all_versions(several):
    place, matrices, _ = several
    info = write_store(place, make_arrays(matrices[0]), overwrite=True)
    assert list_versions(place) == [info]
    assert list_version_names(place) == [info.version]
    assert info.number == 4


def test_an_address_is_of_its_version_as_long_as_that_is_there(several, tmp_path):
    place, matrices, infos = several
    if not isinstance(place, LocalStore):
        pytest.skip("a store in memory has no address")
    addresses = [open_store(place, info.number).address() for info in infos]
    for address, matrix in zip(addresses, matrices, strict=True):
        assert_same_csr(read_scipy(pickle.loads(pickle.dumps(address)).open()), matrix)
    drop_versions(place, keep=2)
    with pytest.raises(
        StoreError, match=f"holds version {infos[2].version} and not {infos[0].version}, which was opened"
    ):
        addresses[0].open()
    assert addresses[1].open().info.version == infos[1].version


# --- damage ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def damaged(tiny_chunks, tmp_path: Path) -> Path:
    """A sound store with all arrays, to be damaged."""
    matrix = make_scipy(6, 6, 0.6)
    arrays = make_arrays(matrix, "graph", ids=STRING_IDS)
    write_store(tmp_path / "web.zarr", arrays, transpose=make_transpose(matrix))
    return tmp_path / "web.zarr"


OWN = ("indptr", "indices", "data", "out_degree", "out_weight", "vertex_ids")
ARRAYS = (*OWN, "transpose/indptr", "transpose/indices", "transpose/data")


def read_all(root: Path) -> None:
    stored = open_store(root)
    for name in OWN:
        stored.read_array(name)
    for name in ("indptr", "indices", "data"):
        stored.transpose().read_array(name)


def test_the_undamaged_store_is_read(damaged):
    read_all(damaged)


@pytest.mark.parametrize("name", ARRAYS)
def test_missing_chunk(damaged, name):
    (find_group(damaged) / name / "c" / "0").unlink()
    with pytest.raises(
        MissingChunkError, match=rf"web\.zarr: .*/{name} has \d of its \d chunks; ingest again or restore a copy"
    ) as caught:
        open_store(damaged)
    assert caught.value.exit_code == 4


@pytest.mark.parametrize("name", ARRAYS)
def test_flipped_bits(damaged, name):
    chunk = find_group(damaged) / name / "c" / "0"
    sound = chunk.read_bytes()
    message = rf"web\.zarr: .*/{name}, elements 0 to \d are damaged \(.*; ingest again or restore a copy"
    for place in {*range(0, len(sound), len(sound) // 8), *range(len(sound) - 4, len(sound))}:
        bits = bytearray(sound)
        bits[place] ^= 1 << place % 8
        chunk.write_bytes(bits)
        open_store(damaged)
        with pytest.raises(ChecksumError, match=message):
            read_all(damaged)
    chunk.write_bytes(sound)
    read_all(damaged)


def test_flipped_bits_of_an_order(tmp_path):
    mgspmv.ingest(make_scipy(6, 6, 0.6), tmp_path / "web.zarr", kind="graph", order="degree")
    group = find_group(tmp_path / "web.zarr")
    assert sorted(path.name for path in group.iterdir() if path.is_dir()) == sorted([*OWN[:-1], "order"])
    chunk = group / "order" / "c" / "0"
    chunk.write_bytes(bytes([chunk.read_bytes()[0] ^ 2]) + chunk.read_bytes()[1:])
    with pytest.raises(ChecksumError, match=r"/order, elements 0 to \d are damaged"):
        open_store(tmp_path / "web.zarr").read_order()


@pytest.mark.parametrize("name", ARRAYS)
def test_truncated_chunk(damaged, name):
    chunk = find_group(damaged) / name / "c" / "0"
    sound = chunk.read_bytes()
    for length in (0, 1, 3, 4, 5, len(sound) // 2, len(sound) - 1):
        chunk.write_bytes(sound[:length])
        with pytest.raises(ChecksumError, match=f"/{name}, elements 0 to .* are damaged"):
            read_all(damaged)
    chunk.write_bytes(sound + b"x")
    with pytest.raises(ChecksumError):
        read_all(damaged)


@pytest.mark.parametrize("by", [-1, 1])
@pytest.mark.parametrize("name", ARRAYS)
def test_truncated_array(damaged, name, by):
    path = find_group(damaged) / name / "zarr.json"
    length = json.loads(path.read_text())["shape"][0]
    change_json(path, lambda document: document.update(shape=[length + by]))
    with pytest.raises(
        TruncatedArrayError, match=rf"/{name} has shape \({length + by},\), should have \({length},\); ingest again"
    ):
        open_store(damaged)


def test_an_array_of_two_dimensions_is_refused(damaged):
    group = zarr.open_group(find_group(damaged), mode="a")
    del group["data"]
    group.create_array("data", shape=(2, 3), dtype="float64")
    with pytest.raises(TruncatedArrayError, match=r"/data has shape \(2, 3\)"):
        open_store(damaged)


@pytest.mark.parametrize("name", [name for name in ARRAYS if name != "transpose/indices"])
def test_array_of_another_dtype(damaged, name):
    other = {"int64": "float64", "float64": "int64", "int32": "float32", "string": "int64"}

    def change(document: dict[str, Any]) -> None:
        document["data_type"] = other[document["data_type"]]
        document["fill_value"] = 0
        document["codecs"][0] = {"name": "bytes", "configuration": {"endian": "little"}}

    change_json(find_group(damaged) / name / "zarr.json", change)
    with pytest.raises(StoreDamagedError, match=rf"/{name} has dtype \w+, should have \w+; ingest again"):
        open_store(damaged)


@pytest.mark.parametrize("name", ARRAYS)
def test_missing_array(damaged, name):
    shutil.rmtree(find_group(damaged) / name)
    with pytest.raises(StoreDamagedError, match=f"{name.rpartition('/')[2]}") as caught:
        open_store(damaged)
    assert type(caught.value) is StoreDamagedError
    assert "missing" in str(caught.value) or "transpose" in name


@pytest.mark.parametrize("how", ["empty", "cut", "list", "null", "object", "bytes"])
@pytest.mark.parametrize("name", ["", *ARRAYS, "transpose"])
def test_damaged_attributes(damaged, name, how):
    path = find_group(damaged) / name / "zarr.json"
    sound = path.read_bytes()
    texts = {"empty": b"", "cut": sound[:-9], "list": b"[]", "null": b"null", "object": b"{}", "bytes": b"\xff\xfe"}
    path.write_bytes(texts[how])
    with pytest.raises(StoreDamagedError, match=r"web\.zarr: the .* ingest again or restore a copy"):
        open_store(damaged)


@pytest.mark.parametrize("field", ["kind", "shape", "nnz", "dtype", "digest", "duplicates"])
def test_missing_attribute_of_the_version(damaged, field):
    change_json(find_group(damaged) / "zarr.json", lambda document: document["attributes"]["mgspmv"].pop(field))
    with pytest.raises(StoreDamagedError, match=r"the attributes in versions/.*zarr\.json are damaged"):
        open_store(damaged)


def test_missing_version(damaged):
    shutil.rmtree(find_group(damaged))
    with pytest.raises(StoreDamagedError, match=r"the version versions/v000001-\w+ is missing; ingest again"):
        open_store(damaged)


@pytest.mark.parametrize("version", [0, FORMAT_VERSION + 1, "2.0"])
def test_other_format_version_is_named_with_the_remedy(damaged, version):
    change_json(damaged / "zarr.json", lambda document: document["attributes"]["mgspmv"].update(format_version=version))
    with pytest.raises(
        StoreFormatError,
        match=rf"has store format {version} and this program reads format {FORMAT_VERSION}; "
        rf"convert it with `mgspmv ingest SOURCE {re.escape(str(damaged))} --overwrite` from its source",
    ):
        open_store(damaged)
    write_store(damaged, make_arrays(make_scipy(3, 3)), overwrite=True)
    assert open_store(damaged).info.shape == (3, 3)


def test_unfinished(tmp_path):
    with begin_version(tmp_path / "m", overwrite=False):
        pass  # and never commit
    with pytest.raises(StoreUnfinishedError, match=r"m was begun and never finished; run its `mgspmv ingest` again"):
        open_store(tmp_path / "m")
    write_store(tmp_path / "m", make_arrays(make_scipy(3, 3)))
    assert open_store(tmp_path / "m").info.shape == (3, 3)


@pytest.mark.parametrize("fall", [[0, 5, 3], [0, 2, 99], [-3, 2, 5]], ids=["falls", "too high", "negative"])
def test_row_pointers_that_do_not_ascend(tmp_path, fall):
    write_store(tmp_path / "m", make_arrays(sp.csr_array(np.array([[1.0, 2, 0], [3, 4, 5]]))))
    group = zarr.open_group(find_group(tmp_path / "m"), mode="r+")
    group["indptr"][:] = fall
    with pytest.raises(StoreDamagedError, match="indptr does not ascend in rows 0 to 2"):
        open_store(tmp_path / "m").read_block(0, 2, np.float64)


def test_row_pointers_that_fall_at_the_end_of_a_piece(tiny_chunks, tmp_path):
    arrays = CsrArrays("matrix", (20, 50), np.arange(0, 42, 2), np.arange(40, dtype=np.int32), None, "first")
    for row in range(1, 20):
        write_store(tmp_path / "m", arrays, overwrite=True)
        zarr.open_group(find_group(tmp_path / "m"), mode="r+")["indptr"][row] = 2 * row + 3
        with pytest.raises(StoreDamagedError, match="indptr does not ascend"):
            open_store(tmp_path / "m").read_block(0, 20, None)


# --- places ----------------------------------------------------------------------------------------------------------


def test_nothing_there(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    missing = tmp_path / "none"
    for place in (missing, str(missing), f"file://{missing}", f"obstore+file://{missing}", tmp_path / "empty",
                  tmp_path / "file", f"memory://{missing}", MemoryStore(), LocalStore(missing)):  # fmt: skip
        with pytest.raises(StoreNotFoundError, match=r"there is no matrix store at .*; make one with `mgspmv ingest`"):
            open_store(place)
    assert not missing.exists()


def test_not_a_matrix_store(tmp_path):
    zarr.open_group(tmp_path / "group", mode="w", attributes={"mgspmv": {"other": 1}})
    zarr.open_group(tmp_path / "plain", mode="w")
    for name in ("group", "plain"):
        with pytest.raises(StoreFormatError, match=f"{name} is a Zarr group but not a matrix store of mgspmv; make"):
            open_store(tmp_path / name)
    zarr.create_array(tmp_path / "array", shape=(3,), dtype="int64")
    (tmp_path / "text").mkdir()
    (tmp_path / "text/zarr.json").write_text("no JSON")
    for name in ("array", "text"):
        with pytest.raises((StoreFormatError, StoreNotFoundError), match=name):
            open_store(tmp_path / name)
    zarr.open_group(tmp_path / "v2", mode="w", zarr_format=2)
    with pytest.raises(StoreNotFoundError):
        open_store(tmp_path / "v2")


@pytest.mark.parametrize("overwrite", [False, True])
def test_foreign_places_are_not_written_to(tmp_path, overwrite):
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/notes.txt").write_text("x")
    zarr.open_group(tmp_path / "group", mode="w", attributes={"mine": 1})
    zarr.open_group(tmp_path / "v2", mode="w", zarr_format=2)
    zarr.create_array(tmp_path / "array", shape=(3,), dtype="int64")
    (tmp_path / "text").mkdir()
    (tmp_path / "text/zarr.json").write_text("no JSON")
    reasons = {
        "file": "exists and is not a Zarr group",
        "folder": "exists and is not a Zarr group",
        "group": "is a Zarr group that mgspmv did not write",
        "v2": "exists and is not a Zarr group",
        "array": "(exists and is not a Zarr group|has a zarr.json that is no group's)",
        "text": "has a zarr.json that is no group's",
    }
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for name, reason in reasons.items():
        for place in (tmp_path / name, f"file://{tmp_path / name}"):
            with pytest.raises(StoreExistsError, match=f"{name} {reason}.*; choose another place"):
                check_target(place, overwrite=overwrite)
            with pytest.raises(StoreExistsError):
                write_store(place, make_arrays(make_scipy(3, 3)), overwrite=overwrite)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def make_obstore_url(path: Path) -> str:
    pytest.importorskip("obstore")
    return f"obstore+file://{path}"


def make_watched(path: Path) -> Store:
    return WatchingStore(LocalStore(path))


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(
    "open_place", [LocalStore, make_obstore_url, make_watched], ids=["local", "obstore", "wrapped"]
)
def test_foreign_things_in_a_zarr_store_are_not_written_to(tmp_path, open_place, overwrite):
    (tmp_path / "versions/v20240101").mkdir(parents=True)
    notes = tmp_path / "versions/v20240101/notes.txt"
    notes.write_text("x")
    place = open_place(tmp_path)
    with pytest.raises(StoreExistsError, match="exists and is not a Zarr group; choose another place"):
        write_store(place, make_arrays(make_scipy(3, 3)), overwrite=overwrite)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [notes]


@pytest.mark.parametrize("name", ["v20240101", "other", ".DS_Store", "v000001-web", "v000001-0123456z"])
def test_what_is_no_version_is_left_among_the_versions(tmp_path, name):
    write_store(tmp_path / "m", make_arrays(make_scipy(3, 3)))
    notes = tmp_path / "m/versions" / name / "notes.txt"
    notes.parent.mkdir()
    notes.write_text("x")
    info = write_store(tmp_path / "m", make_arrays(make_scipy(4, 4)), overwrite=True)
    assert info.version.startswith("v000002-")
    assert notes.read_text() == "x"


def test_a_matrix_is_replaced_on_request_only(tmp_path):
    write_store(tmp_path / "m", make_arrays(make_scipy(3, 3)))
    for place in (tmp_path / "m", LocalStore(tmp_path / "m")):
        with pytest.raises(
            StoreExistsError, match=r"m holds a matrix; pass overwrite=True \(--overwrite\) or choose another place"
        ) as caught:
            write_store(place, make_arrays(make_scipy(4, 4)))
        assert isinstance(caught.value, FileExistsError)
    check_target(tmp_path / "m", overwrite=True)
    assert open_store(tmp_path / "m").info.shape == (3, 3)


def test_places_that_are_free(tmp_path):
    (tmp_path / "empty").mkdir()
    for place in (tmp_path / "empty", tmp_path / "none", f"memory://{tmp_path}/none", MemoryStore()):
        check_target(place, overwrite=False)
    assert not (tmp_path / "none").exists()


def make_obstore(path: Path) -> Store:
    store = pytest.importorskip("obstore.store")
    return zarr.storage.ObjectStore(store.LocalStore(path, mkdir=True))


PLACES = {
    "path": lambda path: path,
    "string": str,
    "file URL": lambda path: f"file://{path}",
    "fsspec URL": lambda path: f"memory://{path}",
    "obstore URL": lambda path: f"obstore+file://{path}",
    "obstore object": make_obstore,
    "memory object": lambda path: MemoryStore(),
    "local object": LocalStore,
}


@pytest.mark.parametrize("make_place", PLACES.values(), ids=PLACES.keys())
def test_places(tiny_chunks, tmp_path, make_place):
    place = make_place(tmp_path / "some folder" / "web.zarr")
    if isinstance(place, str) and place.startswith("obstore"):
        pytest.importorskip("obstore")
    matrix = make_scipy(20, 12, seed=3)
    with pytest.raises(StoreNotFoundError):
        open_store(place)
    write_store(place, make_arrays(make_scipy(5, 5)))
    write_store(place, make_arrays(matrix), overwrite=True)
    with pytest.raises(StoreExistsError):
        write_store(place, make_arrays(matrix))
    stored = open_store(place)
    assert_same_csr(read_scipy(stored), matrix)
    assert_same_csr(read_scipy(stored, rows=(3, 9)), sp.csr_array(matrix[3:9]))
    assert isinstance(place, Store) or stored.info.url == str(place)


def test_fsspec_memory_is_not_the_disk(tmp_path):
    write_store(f"memory://{tmp_path}/m", make_arrays(make_scipy(3, 3)))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "operation", [open_store, lambda url: check_target(url, overwrite=False)], ids=["open", "make"]
)
def test_urls_that_nothing_opens(operation):
    with pytest.raises(OptionError, match=r"nix://a is not a URL that can be opened \(.*nix.*\); pass a path or"):
        operation("nix://a")
    pytest.importorskip("obstore")
    with pytest.raises(OptionError, match=r"obstore\+nix://a is not a URL that can be opened"):
        operation("obstore+nix://a")


def test_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(MissingDependencyError, match=r"obstore\+s3://b/m needs a package that is not installed .*obst"):
        open_store("obstore+s3://b/m")


# --- for other processes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rows", [(0, 23), (0, 0), (23, 23), (5, 6), (4, 19)])
def test_values_alone_are_those_of_the_block(tiny_chunks, rows, dtype):
    matrix = make_scipy(23, 31)
    write_store(place := MemoryStore(), make_arrays(matrix))
    stored = open_store(place)
    values = stored.read_values(*rows, dtype, threads=3)
    assert values.dtype == dtype
    assert values.tobytes() == matrix[rows[0] : rows[1]].data.astype(dtype).tobytes()
    assert values.tobytes() == stored.read_block(*rows, dtype).data.tobytes()
    assert stored.read_values(*rows, None) is None


def test_a_pattern_has_no_values_alone():
    write_store(place := MemoryStore(), make_arrays(make_scipy(5, 6), pattern=True))
    assert open_store(place).read_values(1, 4, np.float64) is None


def test_values_alone_read_their_chunks_only(tiny_chunks):
    matrix = make_scipy(40, 30)
    write_store(place := MemoryStore(), make_arrays(matrix))
    stored = open_store(watched := WatchingStore(place))
    watched.calls.clear()
    stored.read_values(9, 12, np.float64)
    read = {key.partition("-")[2].partition("/")[2] for key in watched.chunks_read()}
    first, last = matrix.indptr[[9, 12]]
    assert read == {"indptr/c/1", *(f"data/c/{k}" for k in range(first // 7, -(-last // 7)))}


ADDRESSED = {
    "path": lambda path: path,
    "string": str,
    "relative path": lambda path: path.relative_to(Path.cwd()),
    "relative string": lambda path: os.path.join(".", path.relative_to(Path.cwd())),
    "file URL": lambda path: f"file://{path}",
    "obstore URL": lambda path: f"obstore+file://{path}",
    "local object": LocalStore,
    "relative local object": lambda path: LocalStore(path.relative_to(Path.cwd())),
}


@pytest.mark.parametrize("make_place", ADDRESSED.values(), ids=ADDRESSED.keys())
def test_an_address_of_a_path_leads_there_from_any_folder(monkeypatch, tmp_path, make_place):
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    path = tmp_path / "here" / "some folder" / "web.zarr"
    place = make_place(path)
    if str(place).startswith("obstore"):
        pytest.importorskip("obstore")
    matrix = make_scipy(20, 12)
    write_store(path, make_arrays(matrix))
    stored = open_store(place)
    address = stored.address()
    assert address == StoreAddress(str(path), stored.info.version, stored.info.digest, False)
    sent = pickle.dumps(address)
    assert len(sent) < 1000
    monkeypatch.chdir(tmp_path / "there")
    again = pickle.loads(sent).open()
    assert again.info == dataclasses.replace(stored.info, url=str(path))
    assert_same_csr(read_scipy(again), matrix)


KEPT = {
    "obstore object": make_obstore,
    "fsspec object": lambda path: FsspecStore.from_url(f"file://{path}"),
    "wrapped object": lambda path: WrapperStore(LocalStore(path)),
}


@pytest.mark.parametrize("make_place", KEPT.values(), ids=KEPT.keys())
def test_an_address_of_a_zarr_store_is_that_store(tmp_path, make_place):
    matrix = make_scipy(20, 12)
    write_store(tmp_path / "web.zarr", make_arrays(matrix))
    place = make_place(tmp_path / "web.zarr")
    address = open_store(place).address()
    assert address.place is place
    assert_same_csr(read_scipy(pickle.loads(pickle.dumps(address)).open()), matrix)


def test_an_address_of_a_url_is_that_url(monkeypatch):
    write_store(place := MemoryStore(), make_arrays(make_scipy(3, 3)))
    stored = dataclasses.replace(open_store(place), place="s3://bucket/web.zarr")
    assert stored.address().place == "s3://bucket/web.zarr"


@pytest.mark.parametrize("which", ["matrix", "transpose", "matrix of the transpose"])
def test_an_address_of_a_transpose(tmp_path, which):
    matrix = make_scipy(8, 5)
    write_store(tmp_path / "m", make_arrays(matrix), transpose=make_transpose(matrix))
    stored = open_store(tmp_path / "m")
    named = {"matrix": stored, "transpose": stored.transpose()}.get(which, stored.transpose().transpose())
    address = named.address()
    assert address.is_transpose is (which == "transpose")
    again = address.open()
    assert again.info == dataclasses.replace(named.info, url=str(tmp_path / "m"))
    assert_same_csr(read_scipy(again), sp.csr_array(matrix.T) if which == "transpose" else matrix)


def make_obstore_in_memory(path: Path) -> Store:
    return zarr.storage.ObjectStore(pytest.importorskip("obstore.store").MemoryStore())


IN_MEMORY = {
    "object": lambda path: MemoryStore(),
    "URL": lambda path: f"memory://{path}",
    "fsspec object": lambda path: FsspecStore.from_url(f"memory://{path}"),
    "obstore object": make_obstore_in_memory,
    "wrapped object": lambda path: WatchingStore(MemoryStore()),
    "twice wrapped object": lambda path: WrapperStore(WatchingStore(MemoryStore())),
    "wrapped fsspec object": lambda path: WrapperStore(FsspecStore.from_url(f"memory://{path}")),
}


@pytest.mark.parametrize("make_place", IN_MEMORY.values(), ids=IN_MEMORY.keys())
def test_a_store_in_memory_has_no_address(tmp_path, make_place):
    place = make_place(tmp_path)
    matrix = make_scipy(5, 5)
    write_store(place, make_arrays(matrix), transpose=make_transpose(matrix))
    stored = open_store(place)
    for named in (stored, stored.transpose()):
        with pytest.raises(OptionError) as caught:
            named.address()
        assert str(caught.value) == (
            f"{stored.info.url} is in the memory of this process, where the workers of a cluster cannot reach it; "
            "use a path or URL that all of them can reach"
        )


@pytest.mark.parametrize("is_same", [True, False], ids=["by the same", "by another"])
def test_a_store_that_was_replaced_is_not_taken_for_the_one_that_was_opened(tmp_path, is_same):
    matrix = make_scipy(8, 5)
    write_store(tmp_path / "m", make_arrays(matrix), transpose=make_transpose(matrix))
    stored = open_store(tmp_path / "m")
    addresses = [stored.address(), stored.transpose().address()]
    other = matrix if is_same else make_scipy(8, 5, seed=1)
    info = write_store(tmp_path / "m", make_arrays(other), transpose=make_transpose(other), overwrite=True)
    for address in addresses:
        with pytest.raises(StoreError) as caught:
            address.open()
        assert type(caught.value) is StoreError
        assert str(caught.value) == (
            f"{tmp_path / 'm'} holds version {info.version} and not {stored.info.version}, which was opened; it was "
            "replaced since then, or this machine has another file there: open it again"
        )
    assert open_store(tmp_path / "m").address().open().info == info


def test_another_file_of_the_same_version_is_not_taken_for_it(tmp_path):
    """As where each machine has a disk of its own, and the names of two versions are the same by chance."""
    write_store(tmp_path / "m", make_arrays(make_scipy(8, 5)))
    address = open_store(tmp_path / "m").address()
    with pytest.raises(StoreError, match="or this machine has another file there"):
        dataclasses.replace(address, digest="0" * 64).open()
    with pytest.raises(StoreNotFoundError, match="there is no matrix store at"):
        dataclasses.replace(address, place=str(tmp_path / "none")).open()


# --- conventions -----------------------------------------------------------------------------------------------------


def test_a_version_with_values_is_an_anndata_csr_matrix(tmp_path):
    matrix = make_scipy(6, 6)
    arrays = make_arrays(matrix, "graph", ids=STRING_IDS)
    write_store(tmp_path / "m", arrays, transpose=make_transpose(matrix))
    group = find_group(tmp_path / "m")

    def read_attributes(name: str) -> dict[str, Any]:
        document = json.loads((group / name / "zarr.json").read_text())
        assert document["zarr_format"] == 3
        return {key: value for key, value in document["attributes"].items() if key != "mgspmv"}

    for name in ("", "transpose"):
        expected = {"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": [6, 6]}
        assert read_attributes(name) == expected
    for name in ("indptr", "indices", "data", "out_degree", "out_weight", "transpose/data"):
        assert read_attributes(name) == {"encoding-type": "array", "encoding-version": "0.2.0"}
    assert read_attributes("vertex_ids") == {"encoding-type": "string-array", "encoding-version": "0.2.0"}


def test_a_pattern_is_no_anndata_matrix(tmp_path):
    write_store(tmp_path / "m", make_arrays(make_scipy(4, 4), pattern=True))
    assert list(json.loads((find_group(tmp_path / "m") / "zarr.json").read_text())["attributes"]) == ["mgspmv"]


@pytest.mark.parametrize("dtype", [np.int64, np.float32, np.float64])
def test_anndata_reads_it(tmp_path, dtype):
    anndata_io = pytest.importorskip("anndata.io")
    matrix = make_scipy(9, 6, dtype=dtype)
    write_store(tmp_path / "m", make_arrays(matrix), transpose=make_transpose(matrix))
    group = zarr.open_group(find_group(tmp_path / "m"), mode="r")
    for found, expected in ((group, matrix), (group["transpose"], matrix.T)):
        read = anndata_io.read_elem(found)
        assert read.dtype == dtype
        assert read.shape == expected.shape
        assert (read.toarray() == expected.toarray()).all()


def test_array_digests_are_recorded_for_each_array(tmp_path):
    matrix = make_scipy(6, 6)
    arrays = make_arrays(matrix, "graph", ids=STRING_IDS)
    write_store(tmp_path / "m", arrays, transpose=make_transpose(matrix))
    recorded = read_array_digests(open_store(tmp_path / "m"))
    assert recorded.keys() == set(ARRAYS)
    assert recorded["vertex_ids"] == digest_array(STRING_IDS)


def test_every_error_is_one_of_ours_and_a_built_in():
    for error in (StoreNotFoundError, StoreExistsError, StoreUnfinishedError, StoreFormatError, StoreDamagedError):
        assert issubclass(error, StoreError)
        assert issubclass(error, MgspmvError)
        assert issubclass(error, OSError)
    for error in (MissingChunkError, ChecksumError, TruncatedArrayError):
        assert issubclass(error, StoreDamagedError)
    assert issubclass(StoreNotFoundError, FileNotFoundError)
    assert issubclass(MissingTransposeError, ValueError)


# --- written by several, each a range --------------------------------------------------------------------------------


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(chunks, "CHUNK_ELEMENTS", 100)


@pytest.fixture
def begin_array(tmp_path, small_chunks):
    """`begin_array(n)` is a version under construction with an array of n elements, and the elements."""
    with ExitStack() as stack:

        def begin(n):
            version = stack.enter_context(begin_version(tmp_path / "store", overwrite=False))
            version.create_array("indptr", n, np.int64)
            elements = np.random.default_rng(n).integers(0, 50, n)
            elements[: n // 2] = 0  # chunks of zeros are written too
            return version, elements

        yield begin


@pytest.mark.parametrize("n", [0, 1, 99, 100, 101, 730])
@pytest.mark.parametrize("cuts", [[], [0.5], [0.0, 0.3, 0.301, 0.302, 0.9, 1.0]])
def test_an_array_that_several_write(tmp_path, begin_array, n, cuts):
    version, elements = begin_array(n)
    bounds = [0, *(int(cut * n) for cut in cuts), n]
    ranges = []
    for start, stop in pairwise(bounds):
        group = pickle.loads(pickle.dumps(version.address())).open()
        ranges.append(write_range(group, "indptr", start, elements[start:stop], threads=2))
    assert finish_ranges(version.group, "indptr", ranges[::-1]) == digest_array(elements)
    chunks = tmp_path / "store" / version.group.path / "indptr" / "c"
    assert len(list(chunks.iterdir()) if n else []) == -(-n // 100)
    np.testing.assert_array_equal(version.group["indptr"][:], elements)


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_an_array_of_which_a_range_is_missing(begin_array, lost):
    version, elements = begin_array(730)
    ranges = [
        write_range(version.group, "indptr", start, elements[start:stop])
        for k, (start, stop) in enumerate([(0, 250), (250, 260), (260, 730)])
        if k != lost
    ]
    with pytest.raises(StoreDamagedError, match=r"indptr: \d of 8 chunks were not written"):
        finish_ranges(version.group, "indptr", ranges)


def test_a_version_in_the_memory_of_this_process_has_no_address():
    with begin_version(MemoryStore(), overwrite=False) as version, pytest.raises(OptionError, match="in the memory of"):
        version.address()


# --- chunks that are read past Zarr ----------------------------------------------------------------------------------


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
        assert _ChunkFiles.find(stored.group["indices"]) is not None
        with monkeypatch.context() as patch:
            patch.setattr(_ChunkFiles, "find", lambda array: None)
            by_objects = [stored.read_block(*part, dtype) for part in parts]
            patch.setattr(chunks, "find_chunks", ByZarr)
            by_zarr = [stored.read_block(*part, dtype) for part in parts]
        for ways in zip(by_files, by_objects, by_zarr, strict=True):
            for name in ("indptr", "indices", "data"):
                assert len({getattr(way, name).dtype for way in ways}) == 1
                assert len({getattr(way, name).tobytes() for way in ways}) == 1
    assert nnz > 200


def test_arrays_that_zarr_has_to_read(tmp_path):
    group = zarr.open_group(tmp_path / "a", mode="w")
    plain = {"shape": (10,), "chunks": (5,), "dtype": np.int64}
    assert _ChunkFiles.find(group.create_array("zstd", **plain)) is None
    compressors = [zarr.codecs.BloscCodec(cname="lz4"), zarr.codecs.Crc32cCodec()]
    assert _ChunkFiles.find(group.create_array("ours", **plain, compressors=compressors)) is not None
    big = zarr.codecs.BytesCodec(endian="big")
    array = group.create_array("big", **plain, compressors=compressors, serializer=big)
    assert _ChunkFiles.find(array) is None
    array[:] = np.arange(10)
    elements = np.zeros(7)
    find_chunks(array).read(slice(2, 9), elements)
    assert elements.tolist() == [2, 3, 4, 5, 6, 7, 8]
    in_memory = zarr.open_group(MemoryStore(), mode="w").create_array("ours", **plain, compressors=compressors)
    assert _ChunkFiles.find(in_memory) is None
    wrapped = WrapperStore(LocalStore(tmp_path / "b"))  # of a user, who is to see what is read
    array = zarr.open_group(wrapped, mode="w").create_array("ours", **plain, compressors=compressors)
    assert _ChunkFiles.find(array) is None


@pytest.mark.parametrize("n", [1, 99, 100, 101, 250])
def test_chunks_are_written_as_zarr_writes_them(tmp_path, small_chunks, monkeypatch, n):
    elements = np.random.default_rng(n).integers(0, 2**40, n)
    written = []
    for by_zarr in (False, True):
        if by_zarr:
            monkeypatch.setattr(_ChunkFiles, "find", lambda array: None)
        group = zarr.open_group(tmp_path / f"{by_zarr}", mode="w")
        write_array(group, "x", elements, 2)
        written.append({p.name: p.read_bytes() for p in (tmp_path / f"{by_zarr}" / "x" / "c").iterdir()})
        np.testing.assert_array_equal(group["x"][:], elements)
    assert written[0] == written[1]


@pytest.mark.parametrize("work", [open_store, lambda url: check_target(url, overwrite=True)], ids=["open", "make"])
def test_a_url_that_cannot_be_reached(work, monkeypatch):
    class NoCredentials(Exception):
        """As a library behind a URL has them."""

    def fail(*args, **kwargs):
        raise NoCredentials("Unable to locate credentials.\nRequestId: 7")

    monkeypatch.setattr("zarr.open_group", fail)
    with pytest.raises(
        StoreError, match=r"memory://x cannot be reached: Unable to locate credentials; check the address"
    ):
        work("memory://x")


# --- what leads out of the store -------------------------------------------------------------------------------------


@pytest.fixture
def planted(tmp_path):
    """A store, and a folder beside it that is nobody's business."""
    store, secret = tmp_path / "store", tmp_path / "secret"
    write_store(store, make_arrays(make_scipy(50, 40)))
    (secret / "v000009-00000000").mkdir(parents=True)
    (secret / "v000009-00000000" / "file").write_text("mine")
    return store, secret


def find_version(store):
    [version] = (store / "versions").glob("v*")
    return version


def replace_by_link(path, secret, *, is_folder):
    """Move what is there to the secret place, where a link leads to it: who follows that reads what was there."""
    moved = secret / path.name
    shutil.move(path, moved)
    path.symlink_to(moved, target_is_directory=is_folder)


LINKS = ["zarr.json", "versions", "versions/zarr.json", "V", "V/zarr.json", "V/indices", "V/indices/zarr.json"]
LINKS += ["V/indices/c", "V/indices/c/0"]


@pytest.mark.parametrize("name", LINKS)
def test_links_that_lead_out_of_a_store_are_refused(planted, name):
    store, secret = planted
    name = name.replace("V", f"versions/{find_version(store).name}")
    replace_by_link(store / name, secret, is_folder=(store / name).is_dir())
    for use in (open_store, list_versions if "indices" not in name else open_store):
        with pytest.raises(StoreError) as caught:
            use(store)
        assert f": {name} is a symbolic link that leads out of the store, to {secret}" in str(caught.value)
        assert "\n" not in str(caught.value)


def test_links_within_a_store_and_to_it_are_followed(planted, tmp_path):
    store, _ = planted
    chunk = find_version(store) / "indices" / "c" / "0"
    chunk.rename(chunk.with_name("kept"))
    chunk.symlink_to("kept")
    (tmp_path / "there").symlink_to(store)
    assert (
        open_store(tmp_path / "there").read_array("indices").tobytes()
        == open_store(store).read_array("indices").tobytes()
    )


@pytest.mark.parametrize("name", ["../../secret", "/etc", "v000009-00000000/../../../secret", "", 7, None, "v1"])
@pytest.mark.parametrize("where", ["current", "older"])
def test_attributes_that_name_no_version_are_refused_and_nothing_is_removed(planted, name, where):
    store, secret = planted
    root = json.loads((store / "zarr.json").read_text())
    own = root["attributes"]["mgspmv"]
    own |= {"current": name} if where == "current" else {"older": [name]}
    (store / "zarr.json").write_text(json.dumps(root))
    uses = [open_store, list_versions, lambda place: drop_versions(place, keep=1)]
    for use in uses:
        with pytest.raises(
            StoreUnfinishedError if name is None and where == "current" else StoreDamagedError
        ) as caught:
            use(store)
        assert repr(name) in str(caught.value) or name is None
    assert (secret / "v000009-00000000" / "file").read_text() == "mine"


def test_nothing_is_written_or_removed_through_links(planted):
    store, secret = planted
    shutil.rmtree(store / "versions")
    (store / "versions").symlink_to(secret)
    before = sorted(path.name for path in secret.rglob("*"))
    with pytest.raises(StoreError, match="versions is a symbolic link that leads out of the store"):
        write_store(store, make_arrays(make_scipy(5, 5)), overwrite=True)
    assert sorted(path.name for path in secret.rglob("*")) == before


def test_a_version_that_is_a_link_is_not_followed_when_it_is_removed(planted):
    store, secret = planted
    (store / "versions" / "v000002-00000000").symlink_to(secret)
    write_store(store, make_arrays(make_scipy(5, 5, seed=5)), overwrite=True)
    assert (secret / "v000009-00000000" / "file").read_text() == "mine"
    assert open_store(store).info.shape == (5, 5)


# --- chunks that are not what was written, and have a checksum -------------------------------------------------------


@pytest.mark.parametrize(("more", "is_read"), [(0, True), (1, False), (1 << 60, False)])
def test_chunks_that_could_unpack_to_all_memory_are_refused(planted, more, is_read):
    store, _ = planted
    path = find_version(store) / "indices" / "zarr.json"
    grid = {"name": "regular", "configuration": {"chunk_shape": [MOST_CHUNK + more]}}
    change_json(path, lambda document: document.update(chunk_grid=grid))
    if is_read:
        assert open_store(store).info.nnz > 0
        return
    with pytest.raises(
        StoreDamagedError,
        match=rf"indices has chunks of {MOST_CHUNK + more:,} elements, and at most 16,777,216 are read",
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
@pytest.mark.parametrize("name", ARRAYS)
def test_other_codecs_than_those_that_are_written_are_refused(damaged, name, codecs):
    others, said = CODECS[codecs]
    first = "vlen-utf8" if name == "vertex_ids" else "bytes"
    path = find_group(damaged) / name / "zarr.json"
    change_json(path, lambda document: document.update(codecs=[document["codecs"][0], *others]))
    message = (
        rf"web\.zarr: .*/{name} has the codecs {first}, {said} instead of {first}, blosc, crc32c, by which every chunk "
        "has a checksum; ingest again or restore a copy$"
    )
    with pytest.raises(StoreDamagedError, match=message):
        open_store(damaged)


def test_chunks_of_other_names_are_refused(damaged):
    encoding = {"name": "v2", "configuration": {"separator": "."}}
    path = find_group(damaged) / "indices"
    change_json(path / "zarr.json", lambda document: document.update(chunk_key_encoding=encoding))
    (path / "c" / "0").rename(path / "0")
    with pytest.raises(StoreDamagedError, match="indices names its chunks in another way than c/0; ingest again"):
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
    "longer": (12, 1 << 20, "says that it has 1,048,576"),
    "shorter": (12, 17, "says that it has 17"),
}


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("make_place", [Path, lambda path: WrapperStore(LocalStore(path))], ids=["files", "objects"])
def test_frames_that_say_something_else_are_refused_before_they_are_unpacked(damaged, name, frame, make_place):
    place, number, said = FRAMES[frame]
    if name == "vertex_ids" and place == 4:
        said = "at most 2,147,483,631 are written" if number > 1 << 31 else "2 strings|instead of|decompress"
    craft_chunk(find_group(damaged) / name / "c" / "0", lambda raw: struct.pack_into("<I", raw, place, number))
    stored = open_store(make_place(damaged))
    part = stored.transpose() if "/" in name else stored

    def read() -> None:
        with pytest.raises(ChecksumError, match=rf"/{name}, elements 0 to .* are damaged \(.*({said})"):
            part.read_array(name.rpartition("/")[2])

    assert measure_peak(read) < (1 << 20) + (number if name == "vertex_ids" and number == 1 << 30 else 0)


@pytest.mark.parametrize("make_place", [Path, lambda path: WrapperStore(LocalStore(path))], ids=["files", "objects"])
def test_strings_without_end_are_refused_before_they_have_places(damaged, make_place):
    chunk = find_group(damaged) / "vertex_ids" / "c" / "0"

    def change(frame: bytearray) -> None:
        text = bytearray(blosc.decompress(bytes(frame)))
        text[:4] = (1 << 28).to_bytes(4, "little")
        frame[:] = blosc.compress(bytes(text), b"lz4", 1)

    craft_chunk(chunk, change)
    stored = open_store(make_place(damaged))

    def read() -> None:
        with pytest.raises(ChecksumError, match=r"says that it holds 268,435,456 strings instead of 6"):
            stored.read_array("vertex_ids")

    assert measure_peak(read) < 1 << 20


def test_strings_that_do_not_fit_into_memory_are_refused(damaged, monkeypatch):
    monkeypatch.setattr(chunks, "free_memory", lambda: 100)
    stored = open_store(damaged)
    with pytest.raises(CapacityError, match=r"a chunk of strings unpacks to \d+ B, and 100 B of memory are free; read"):
        stored.read_array("vertex_ids")


def test_a_chunk_that_has_more_bytes_than_are_written_is_not_read(damaged):
    os.truncate(find_group(damaged) / "indices" / "c" / "0", 1 << 40)  # which takes no room on a disk
    stored = open_store(damaged)
    with pytest.raises(ChecksumError, match=r"it has 1,099,511,627,776 bytes, and at most 48 are written"):
        stored.read_array("indices")


@pytest.mark.parametrize("elements", [4, 9])
def test_chunks_of_another_length_than_ours_are_read(tmp_path, small_chunks, monkeypatch, elements):
    write_store(tmp_path / "a", make_arrays(make_scipy(60, 40)))
    wanted = open_store(tmp_path / "a").read_array("indices")
    monkeypatch.setattr(chunks, "CHUNK_ELEMENTS", elements)
    for place in (tmp_path / "a", WrapperStore(LocalStore(tmp_path / "a"))):
        assert open_store(place).read_array("indices", 3, 95).tolist() == wanted[3:95].tolist()
    write_store(tmp_path / "b", make_arrays(make_scipy(60, 40)))
    monkeypatch.setattr(chunks, "CHUNK_ELEMENTS", 100)
    assert open_store(tmp_path / "b").read_array("indices", 3, 95).tolist() == wanted[3:95].tolist()
