"""Reading a version of a store: what was written comes back, in part or whole, in the memory that it may take."""

from __future__ import annotations

import re
import shutil
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import zarr
from zarr.storage import MemoryStore

from mgspmv.model import CsrBlock
from mgspmv.store import digests
from mgspmv.store.read import open_store
from mgspmv.store.stored_matrix import FORMAT_VERSION
from tests.support.arrays import CsrArrays, read_arrays, write_store
from tests.support.memory import measure_peak
from tests.support.stores import (
    INTEGER_IDS,
    STRING_IDS,
    FarStore,
    WatchingStore,
    assert_same_csr,
    make_arrays,
    make_scipy,
    make_stochastic,
    make_transpose,
    read_scipy,
)


@pytest.mark.parametrize("dtype", [np.int64, np.float32, np.float64])
def test_values_come_back_bit_by_bit(tiny_chunks, dtype):
    matrix = make_scipy(23, 31, dtype=dtype)
    for threads in (1, 3):
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
            part = stored.read_entries(5, stored.read_pointers(5, 9), wanted, threads)
            assert (part.row_offset, part.indptr[0], part.indptr.dtype) == (5, 0, np.int64)
            part_csr = sp.csr_array((part.data, part.indices, part.indptr), shape=(4, 31))
            assert (part_csr != expected[5:9]).nnz == 0
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


@pytest.mark.parametrize(("ids", "said"), [(STRING_IDS, "string"), (INTEGER_IDS, "int64")], ids=["strings", "integers"])
def test_vertex_ids_come_back(tiny_chunks, monkeypatch, ids, said):
    monkeypatch.setattr(digests, "CHUNK_ELEMENTS", 4)
    place = MemoryStore()
    assert write_store(place, make_arrays(make_scipy(6, 6), "graph", ids=ids)).vertex_ids == said
    found = open_store(place).read_array("vertex_ids")
    assert found.tolist() == ids.tolist()
    assert found.dtype == ids.dtype
    assert open_store(place).read_array("vertex_ids", 3, 6).tolist() == ids[3:].tolist()


def test_zarr_and_we_read_each_others_strings(tiny_chunks, monkeypatch, tmp_path):
    """In a folder, chunks go past Zarr; the last one here is not full."""
    monkeypatch.setattr(digests, "CHUNK_ELEMENTS", 4)
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
    assert read_arrays(stored.transpose()).kind == "matrix"


@pytest.mark.parametrize("kind", ["matrix", "graph"])
@pytest.mark.parametrize("pattern", [False, True])
def test_nothing_in_it(kind, pattern):
    for shape in ((4, 4), (2, 5), (0, 3), (3, 0), (0, 0)):
        if kind == "graph" and shape[0] != shape[1]:
            continue
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


def test_a_store_that_is_far_away_is_asked_a_few_times_for_all_of_it():
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
    assert far.n_rounds == 3  # row pointers, columns, values, of a chunk each


@pytest.fixture(scope="module")
def alone():
    """Runs functions in a process that does nothing else, whose memory is therefore theirs."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        yield lambda function, *args: pool.submit(function, *args).result()


def measure_reading(place: Path, chunk_elements: int, threads: int, dtype: Any) -> tuple[int, int]:
    """Bytes of the whole matrix as a block, and the most that is held while it is read."""
    digests.CHUNK_ELEMENTS = chunk_elements
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


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64, None])
def test_reading_a_large_block_takes_the_block_and_a_chunk_a_thread(alone, tmp_path, dtype):
    rng = np.random.default_rng(0)
    n, each = 500_000, 60
    indices = np.sort(rng.integers(0, n, (n, each), dtype=np.int32), axis=1).ravel()
    arrays = CsrArrays("matrix", (n, n), np.arange(0, n * each + 1, each), indices, rng.random(n * each), "keep")
    assert arrays.indices.nbytes > 100e6
    assert_reads_within_memory(alone, arrays, digests.CHUNK_ELEMENTS, 2, dtype, tmp_path / "m")
