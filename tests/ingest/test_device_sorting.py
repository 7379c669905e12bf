"""Entries sorted on a device, and by the reference of its kernels: the arrays of the sorter on the host."""

import itertools

import numpy as np
import pytest
from zarr.storage import MemoryStore

import mgspmv as mg
from mgspmv.api import stores
from mgspmv.api.arguments import as_matrix
from mgspmv.errors import CapacityError, SourceError
from mgspmv.ingest import device_sorting
from mgspmv.ingest.device_sorting import DeviceSorter, to_numpy
from mgspmv.ingest.entries import no_device
from mgspmv.ingest.in_memory import load_source
from mgspmv.ingest.open import open_source
from mgspmv.ingest.store_writing import find_budget, store_source
from mgspmv.kernels.device import Staging, free_device_memory
from mgspmv.model import IngestOptions, ignore
from mgspmv.store.held import PLACE, HeldMatrix

RNG = np.random.default_rng(5)
SRC, DST = RNG.integers(0, 500, (2, 3000))
WEIGHTS = RNG.random(3000).astype(np.float32)
NAMES = [f"v{k}" for k in SRC], [f"v{k}" for k in DST]
MUCH = 1 << 33
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


class HostStaging:
    """Copies arrays on the host, where the kernels' reference sorts them."""

    def put(self, array):
        return array.copy()

    def finish(self):
        pass


@pytest.fixture(params=["reference", pytest.param("device", marks=pytest.mark.gpu)])
def sorters(request, monkeypatch):
    """Function that makes a sorter, with the list of those that it made; however few entries there are."""
    monkeypatch.setattr(device_sorting, "LEAST", 1)
    made = []

    def make(host):
        if request.param == "device":
            made.append(DeviceSorter(host, Staging(host.threads), free_device_memory()))
        else:
            made.append(DeviceSorter(host, HostStaging(), MUCH))
        return made[-1]

    return make, made


def load(graph, options, make=no_device):
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
            np.testing.assert_array_equal(to_numpy(found.arrays[own]), array)
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


@pytest.mark.parametrize("name", ["dense", "negative", "float32", "names"])
@pytest.mark.parametrize("most_bytes", [0, 40_000])
def test_entries_that_do_not_fit_are_sorted_on_the_host(name, most_bytes, sorters):
    make, made = sorters

    def make_small(host):
        sorter = make(host)
        sorter._most_bytes = most_bytes
        return sorter

    options = IngestOptions("graph")
    assert load(GRAPHS[name], options, make_small).digest == load(GRAPHS[name], options).digest
    assert made[-1].is_moved


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
def test_errors_are_those_of_the_host(graph, options, sorters):
    make, _ = sorters
    messages = []
    for each in (no_device, make):
        with pytest.raises(SourceError) as error:
            load(graph, IngestOptions("graph", **options), each)
        messages.append(str(error.value))
    assert messages[0] == messages[1]


def test_sums_as_large_as_int64(sorters):
    graph = ([0, 0, 1, 1], [1, 1, 0, 0], [2**62, 2**62 - 1, -(2**62), -(2**62)])
    found = load(graph, IngestOptions("graph"), sorters[0])
    assert to_numpy(found.arrays["data"]).tolist() == [-(2**63), 2**63 - 1]


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
