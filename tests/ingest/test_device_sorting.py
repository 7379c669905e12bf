"""Entries sorted on a device, at once or range by range, and by the reference of its kernels: as on the host."""

import itertools

import numpy as np
import pytest
from scipy.sparse import coo_array
from zarr.storage import MemoryStore

import mgspmv as mg
from mgspmv.api import stores
from mgspmv.api.arguments import as_matrix
from mgspmv.errors import CapacityError, SourceError
from mgspmv.ingest import device_sorting, objects, tables
from mgspmv.ingest.budget import find_budget
from mgspmv.ingest.build import load_source
from mgspmv.ingest.device_sorting import DeviceSorter
from mgspmv.ingest.open import open_source
from mgspmv.ingest.store_writing import store_source
from mgspmv.kernels.device import free_device_memory
from mgspmv.kernels.formats import to_host
from mgspmv.kernels.staging import Staging
from mgspmv.model import IngestOptions, ignore
from mgspmv.store.held import PLACE, HeldMatrix
from tests.support.device_shares import HostStaging

RNG = np.random.default_rng(5)
SRC, DST = RNG.integers(0, 500, (2, 3000))
WEIGHTS = RNG.random(3000).astype(np.float32)
NAMES = [f"v{k}" for k in SRC], [f"v{k}" for k in DST]
MUCH = 1 << 33
LITTLE = 40_000
"""Bytes of a device on which a part of these graphs is sorted at a time."""
GRAPHS = {
    "dense": (SRC, DST),
    "int32": (SRC.astype(np.int32), DST.astype(np.int32)),
    "gaps": (2 * SRC, 2 * DST),
    "negative": (SRC - 3, DST - 3),
    "float32": (SRC, DST, WEIGHTS),
    "sparse": (SRC * 10**12, DST * 10**12, WEIGHTS.astype(np.float64)),
    "int64": (SRC, DST, (10 * WEIGHTS).astype(np.int64)),
    "names": NAMES,
    "weighted names": (*NAMES, WEIGHTS),
}
SPILLED = GRAPHS | {
    "sparse float32": (SRC * 10**12, DST * 10**12, WEIGHTS),
    "sparse from 1000 on": tuple(np.where(np.arange(3000) < 1000, own, own * 10**12) for own in (SRC, DST)),
    "matrix": coo_array((WEIGHTS, (SRC, DST)), shape=(520, 520)),
}


@pytest.fixture(params=["reference", pytest.param("device", marks=pytest.mark.gpu)])
def sorters(request, monkeypatch):
    """Function that makes a sorter, with the list of those that it made; however few entries there are."""
    monkeypatch.setattr(device_sorting, "LEAST", 1)
    made = []

    def make(host):
        if request.param == "device":
            made.append(DeviceSorter(host, Staging(), free_device_memory()))
        else:
            made.append(DeviceSorter(host, HostStaging(), MUCH))
        return made[-1]

    return make, made


@pytest.fixture
def little(sorters, monkeypatch):
    """As `sorters`, for a device with little memory, and batches, pieces and blocks of few entries."""
    make, made = sorters
    monkeypatch.setattr(tables, "BATCH_ROWS", 350)
    monkeypatch.setattr(objects, "BATCH_ENTRIES", 700)
    monkeypatch.setattr(device_sorting, "PIECE", 200)

    def make_little(host):
        sorter = make(host)
        sorter.most_bytes = LITTLE
        return sorter

    return make_little, made


def load(graph, options, make=None):
    room = find_budget(PLACE)
    return load_source(open_source(graph, threads=2, id_room=room.for_ids), options, ignore, room, make)


def list_options(has_weights):
    rules = (None, "sum", "first", "keep") if has_weights else (None, "first", "keep")
    for rule, loops, symmetrize, transpose in itertools.product(rules, ("keep", "drop"), (False, True), (False, True)):
        yield IngestOptions("graph", rule, loops, symmetrize, None, transpose)


@pytest.mark.parametrize("name", GRAPHS)
def test_arrays_are_those_of_the_host(name, sorters):
    make, made = sorters
    graph = GRAPHS[name]
    for options in list_options(has_weights=len(graph) == 3):
        wanted, found = load(graph, options), load(graph, options, make)
        assert not made[-1].is_moved
        assert found.info == wanted.info
        assert found.arrays.keys() == wanted.arrays.keys()
        for own, array in wanted.arrays.items():
            assert found.arrays[own].dtype == array.dtype
            np.testing.assert_array_equal(to_host(found.arrays[own]), array)
        assert found.digest == wanted.digest
    assert found.digest == mg.ingest(graph, **vars(options)).info.digest


@pytest.mark.parametrize("name", GRAPHS)
def test_stores_are_those_of_the_host(name, sorters):
    make, made = sorters
    graph, place = GRAPHS[name], MemoryStore()
    room = find_budget(place)
    source = open_source(graph, threads=2, id_room=room.for_ids)
    options = IngestOptions("graph", transpose=True)
    store_source(source, place, options, lambda made_from: made_from, ignore, room, base=None, make_device_sorter=make)
    assert not made[-1].is_moved
    assert mg.verify(place) == []
    assert mg.open(place).info.digest == mg.ingest(graph).info.digest


@pytest.mark.parametrize("name", SPILLED)
def test_entries_that_do_not_fit_are_sorted_in_ranges(name, little, monkeypatch):
    make, made = little
    monkeypatch.setattr(device_sorting, "sort_keys", count_keys(device_sorting.sort_keys, counted := []))
    graph = SPILLED[name]
    for options in list_options(has_weights=len(graph) == 3 if isinstance(graph, tuple) else True):
        counted.clear()
        wanted, found = load(graph, options), load(graph, options, make)
        assert made[-1].is_moved
        assert len(counted) > 2
        assert max(counted) <= LITTLE // 24
        assert sum(counted) == made[-1].n_entries
        assert found.info == wanted.info
        assert found.digest == wanted.digest
        for own, array in wanted.arrays.items():
            assert found.arrays[own].dtype == array.dtype
            np.testing.assert_array_equal(found.arrays[own], array)


def count_keys(sort, counted):
    def count(keys, *args, **kwargs):
        counted.append(len(keys))
        return sort(keys, *args, **kwargs)

    return count


@pytest.mark.parametrize("name", SPILLED)
def test_stores_of_ranges_are_those_of_the_host(name, little):
    make, made = little
    graph, place = SPILLED[name], MemoryStore()
    room = find_budget(place)
    source = open_source(graph, threads=2, id_room=room.for_ids)
    options, writing = IngestOptions("graph", transpose=True), {"base": None, "make_device_sorter": make}
    stored = store_source(source, place, options, lambda made_from: made_from, ignore, room, **writing)
    assert made[-1].is_moved
    assert not isinstance(stored, HeldMatrix)
    assert mg.verify(place) == []
    assert mg.open(place).info.digest == mg.ingest(graph, kind="graph").info.digest


@pytest.mark.parametrize("has_weights", [False, True])
def test_rows_that_are_merged_in_several_ranges(has_weights, little):
    make, made = little
    columns = RNG.integers(0, 500, 6000)
    graph = (np.append(columns, SRC), np.append(np.full(6000, 77), DST), np.arange(9000))[: 2 + has_weights]
    for rule in ("first", "keep"):
        options = IngestOptions("graph", rule, transpose=True)
        assert load(graph, options, make).digest == load(graph, options).digest
        assert made[-1].is_moved


def test_rows_that_are_far_apart(little):
    make, made = little
    graph = (1000 * SRC, np.where(DST < 10, DST, 999_999))
    options = IngestOptions("graph", "keep", self_loops="drop")
    wanted, found = (load(graph, options, own).digest for own in (None, make))
    assert found == wanted
    matrix = coo_array((WEIGHTS, (1000 * SRC, 1000 * DST)), shape=(600_000, 600_000))
    assert load(matrix, IngestOptions("graph"), make).digest == load(matrix, IngestOptions("graph")).digest
    assert made[-1].is_moved


@pytest.mark.parametrize("name", ["dense", "sparse"])
def test_more_entries_than_are_sorted_at_a_time(name, sorters, monkeypatch):
    make, made = sorters
    options = IngestOptions("graph", "keep", transpose=True)
    monkeypatch.setattr(device_sorting, "MOST_ENTRIES", 900)
    monkeypatch.setattr(device_sorting, "sort_keys", count_keys(device_sorting.sort_keys, counted := []))
    assert load(GRAPHS[name], options, make).digest == load(GRAPHS[name], options).digest
    assert made[-1].is_moved
    assert max(counted) <= 900
    assert sum(counted) == 3000


def test_entries_at_one_place_that_do_not_fit(little):
    graph = (np.append(SRC, np.full(2000, 3)), np.append(DST, np.full(2000, 7)))
    with pytest.raises(CapacityError, match=r"at row 7, column 3 do not fit into the memory of the device"):
        load(graph, IngestOptions("graph"), little[0])


@pytest.mark.parametrize("name", ["dense", "negative", "float32", "names"])
@pytest.mark.parametrize("memory", [{"most_bytes": 0}, {"most_bytes": 100}, {"host_bytes": 20_000}])
def test_entries_are_sorted_whatever_the_memory(name, memory, little, monkeypatch):
    """On the host where the device has none, from files where the host has little."""
    make, made = little

    def make_less(host):
        sorter = make(host)
        sorter.most_bytes = memory.get("most_bytes", LITTLE)
        host.reserve(host._memory - memory.get("host_bytes", MUCH))
        return sorter

    options = IngestOptions("graph")
    monkeypatch.setattr(device_sorting, "sort_keys", count_keys(device_sorting.sort_keys, counted := []))
    assert load(GRAPHS[name], options, make_less).digest == load(GRAPHS[name], options).digest
    assert made[-1].is_moved
    assert bool(counted) == ("host_bytes" in memory)


def test_few_entries_are_sorted_on_the_host(sorters, monkeypatch):
    make, made = sorters
    options = IngestOptions("graph")
    monkeypatch.setattr(device_sorting, "LEAST", 3001)
    assert load(GRAPHS["gaps"], options, make).digest == load(GRAPHS["gaps"], options).digest
    assert not made


@pytest.mark.parametrize(
    ("graph", "options"),
    [
        ((SRC, DST), {"duplicates": "error"}),
        ((SRC, DST), {"duplicates": "error", "self_loops": "drop"}),
        (NAMES, {"duplicates": "error"}),
        ((SRC, DST), {"self_loops": "error"}),
        (([0, 0], [1, 1], [2**62, 2**62]), {}),
        (([0, 0], [1, 1], [-(2**62), -(2**63) + 1]), {}),
        ((SRC, DST, np.where(WEIGHTS > 0.5, np.inf, WEIGHTS)), {}),
        ((SRC, DST, np.where(WEIGHTS > 0.5, np.nan, WEIGHTS)), {}),
    ],
)
@pytest.mark.parametrize("is_small", [False, True])
def test_errors_are_those_of_the_host(graph, options, is_small, sorters, little):
    make, made = little if is_small else sorters
    if is_small and len(graph[0]) == 2:  # the entry whose sum is too large is among others
        graph = tuple(np.append(own, more) for own, more in zip(graph, (SRC + 2, DST + 2, SRC), strict=True))
    messages = []
    for each in (None, make):
        with pytest.raises(SourceError) as error:
            load(graph, IngestOptions("graph", **options), each)
        messages.append(str(error.value))
    assert messages[0] == messages[1]
    assert made[-1].is_moved == is_small


def test_sums_as_large_as_int64(sorters):
    graph = ([0, 0, 1, 1], [1, 1, 0, 0], [2**62, 2**62 - 1, -(2**62), -(2**62)])
    found = load(graph, IngestOptions("graph"), sorters[0])
    assert to_host(found.arrays["data"]).tolist() == [-(2**63), 2**63 - 1]


class OutOfMemoryError(MemoryError):
    """Named as CuPy's."""


def test_memory_that_others_take(sorters, monkeypatch):
    make, _ = sorters

    def fail(*arguments, **options):
        raise OutOfMemoryError("out of memory allocating 8 bytes")

    monkeypatch.setattr(device_sorting, "build_rows", fail)
    message = r"3,000 entries do not fit into the memory that is left on the device \(out of .*CUDA_VISIBLE_DEVICES="
    with pytest.raises(CapacityError, match=message):
        load(GRAPHS["dense"], IngestOptions("graph"), make)


@pytest.mark.gpu
@pytest.mark.parametrize("weight", [False, True])
def test_graphs_held_on_a_device_that_are_streamed(weight, sorters):
    graph = (SRC, DST, WEIGHTS)[: 2 + weight]
    wanted = mg.pagerank(mg.ingest(graph).on("cpu"))
    with as_matrix(graph) as A:
        placed = A.on("cuda", device_memory=int(1.1 * A.plan(device_memory=1000, backend="cpu").least_device_memory))
        with pytest.warns(UserWarning, match="do not fit in GPU memory"):
            ranks = mg.pagerank(placed)
    assert ranks.digest() == wanted.digest()


@pytest.mark.parametrize("name", GRAPHS)
def test_matrices_written_are_held_until_they_are_closed(name, sorters, monkeypatch, tmp_path):
    monkeypatch.setattr(stores, "sort_on_device", sorters[0])
    graph = GRAPHS[name]
    wanted = mg.pagerank(graph)
    with mg.ingest(graph, tmp_path / "g.zarr", transpose=True) as A:
        stored = A.stored
        assert isinstance(stored, HeldMatrix)
        assert A.info == mg.open(tmp_path / "g.zarr").info
        assert stored.address() == mg.open(tmp_path / "g.zarr").stored.address()
        assert A.T.stored.address() == mg.open(tmp_path / "g.zarr").T.stored.address()
        assert mg.pagerank(A).digest() == wanted.digest()
        assert mg.pagerank(A.T).digest() == mg.pagerank(mg.open(tmp_path / "g.zarr").T).digest()
        np.testing.assert_array_equal(A.vertex_ids, mg.open(tmp_path / "g.zarr").vertex_ids)
    assert A.stored is stored.written
    assert mg.pagerank(A).digest() == wanted.digest()
    assert mg.update(A, delete=(graph[0][:1], graph[1][:1])).info.number == 2


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["dense", "int32", "gaps", "negative", "float32", "sparse", "int64"])
def test_arrays_on_a_device_are_ranked_without_a_copy(name, sorters, monkeypatch):
    import cupy

    graph = GRAPHS[name]
    wanted = {precision: mg.pagerank(mg.ingest(graph).on("cpu"), precision=precision) for precision in ("exact",)}
    there = tuple(map(cupy.asarray, graph))
    monkeypatch.setattr(cupy.ndarray, "get", refuse_large(cupy.ndarray.get))
    for precision, ranks in wanted.items():
        found = mg.pagerank(there, precision=precision)
        assert found.digest() == ranks.digest()
        assert found.ids.tolist() == ranks.ids.tolist()
    if len(there) == 2:
        assert mg.pagerank(cupy.stack(there)).digest() == wanted["exact"].digest()


def refuse_large(get):
    """Copy no array to the host that has an element for each entry."""

    def copy(array, *args, **kwargs):
        assert array.size < 2500
        return get(array, *args, **kwargs)

    return copy


CALLS = {
    "top": lambda graph: [own[0] for own in mg.pagerank(graph, stop="topk:5", precision="float64").top(5)],
    "float32": lambda graph: mg.pagerank(graph, precision="float32").values,
    "dangling": lambda graph: mg.pagerank(graph, dangling="uniform", precision="float64").values,
    "batch": lambda graph: mg.pagerank_batch(graph, [{3: 1.0}, {5: 1.0}]).values,
    "hits": lambda graph: mg.hits(graph).hubs.values,
    "katz": lambda graph: mg.katz(graph, alpha=0.01).values,
    "eigenvector": lambda graph: mg.eigenvector_centrality(graph).values,
}


@pytest.mark.gpu
@pytest.mark.parametrize("weight", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_calls_on_graphs_held_on_a_device(name, weight, sorters):
    call, graph = CALLS[name], (SRC, DST, WEIGHTS)[: 2 + weight]
    np.testing.assert_allclose(call(graph), call(mg.ingest(graph, transpose=True).on("cpu")), rtol=1e-5, atol=1e-9)
