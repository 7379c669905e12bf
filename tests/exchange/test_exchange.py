"""Exchanges: everybody holds what everybody wrote, by links, through hosts and by NCCL, which is played; batches over
them have the bits of one process; and slices of a device are moved by copies alone."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import zarr

import mgspmv as mg
from mgspmv.exchange import peer
from mgspmv.exchange.exchange import DeviceCopies, LocalExchange
from mgspmv.exchange.nccl_slices import NcclExchange
from mgspmv.exchange.peer import AllToAll, Halo, PeerExchange, make_halo
from mgspmv.kernels.cpu_many import CpuMany
from mgspmv.model import StepSums
from mgspmv.solvers.batch import Batch, BatchTask, ManyRows
from mgspmv.solvers.options import PageRankOptions
from mgspmv.solvers.vectors import make_queries
from tests.exchange.test_peer import random_halos
from tests.support.nccl import DeviceArray, run_ranks, start_groups
from tests.support.peers import Network, run_workers

BOUNDS = {"two": (0, 11, 20), "four": (0, 7, 9, 15, 20), "without rows": (0, 0, 9, 9, 20)}
KINDS = ("peer", "staged", "nccl")


@pytest.fixture(autouse=True)
def _without_copies(monkeypatch):
    """Slices go by reference, also small ones, so that whoever writes into what was sent is found out."""
    monkeypatch.setattr(peer, "SMALL", 0)


def open_panel(panels, width, dtype):
    """A panel of `width` columns."""
    return panels.open(lambda n: np.zeros((n, width), dtype))


class PlayedExchange(NcclExchange):
    """The exchange by NCCL, of host arrays that pass for those of a device."""

    def open(self, zeros):
        return super().open(lambda n: zeros(n).view(DeviceArray))


def find_wanted(halos, rank):
    halos[rank].bounds[rank + 1] - halos[rank].bounds[rank]
    return [halo.needed[rank] for halo in halos]


def run_panels(played, kind, halos, work):
    """`work(rank, panels)` of each worker."""
    n = len(halos)
    if kind == "nccl":
        groups = start_groups(played, n)
        bounds = halos[0].bounds
        return run_ranks(n, lambda rank: work(rank, PlayedExchange(groups[rank], bounds)))
    network = Network(n, seed=3)

    def work_linked(rank):
        turns, wanted = AllToAll(network.links(rank), rank, n), find_wanted(halos, rank)
        device = DeviceCopies(np.array, np.array) if kind == "staged" else None
        return work(rank, PeerExchange(turns, halos[rank], wanted, device))

    return run_workers(network, n, work_linked)


def check_everybody_holds_what_everybody_wrote(nccl, kind, bounds):
    """In one panel and, while it goes on, in another one of another width and dtype, and with arrays in between."""
    n, n_workers = bounds[-1], len(bounds) - 1
    halos = random_halos(bounds)
    if kind == "nccl":
        halos = [Halo(rank, bounds, (None,) * n_workers) for rank in range(n_workers)]

    def write(panel, rank, step, width, dtype):
        z = (1000 * step + np.arange(n * width)).reshape(n, width).astype(dtype)
        panel.slot()[...] = z[bounds[rank] : bounds[rank + 1]]
        before = panel.exchanged_bytes
        own = [StepSums(step + c, rank * c, 2**62 // n_workers, rank) for c in range(width)]
        sums = panel.exchange_columns(own)
        assert np.asarray(panel.z).tolist() == halos[rank].select(z).tolist()
        received = (halos[rank].starts[-1] - (bounds[rank + 1] - bounds[rank])) * width * np.dtype(dtype).itemsize
        assert panel.exchanged_bytes - before == received
        total, most = sum(range(n_workers)), n_workers - 1
        wanted = [
            StepSums(n_workers * (step + c), most * c, 2**62 // n_workers * n_workers, total) for c in range(width)
        ]
        assert sums == wanted

    def work(rank, panels):
        wide, other = open_panel(panels, 4, np.int64), None
        for step in range(1, 8):
            write(wide, rank, step, 4, np.int64)
            if step == 2:
                other = open_panel(panels, 2, np.float64)
            if step in (2, 3, 6):
                write(other, rank, 50 + step, 2, np.float64)
                gathered = panels.gather(np.array([rank, 0.5 * step]))
                assert [own.tolist() for own in gathered] == [[r, 0.5 * step] for r in range(n_workers)]
        lists = halos[rank].nbytes + sum(own.nbytes for own in find_wanted(halos, rank) if own is not None)
        assert 0 < wide.nbytes <= (panels.n_elements + panels.n_staged) * 4 * 8 + lists
        narrow = open_panel(panels, 2, np.float32)
        write(narrow, rank, 9, 2, np.float32)

    run_panels(nccl, kind, halos, work)


@pytest.mark.parametrize("kind", KINDS)
def test_everybody_holds_what_everybody_wrote(nccl, kind):
    for bounds in BOUNDS.values():
        check_everybody_holds_what_everybody_wrote(nccl, kind, bounds)


def check_batches_have_the_bits_of_one_process(nccl, kind, precision):
    rng = np.random.default_rng(1)
    store, bounds = zarr.storage.MemoryStore(), (0, 40, 41, 100, 130)
    A = mg.ingest((*rng.integers(0, 130, (2, 900)), rng.random(900)), store, kind="graph", n_vertices=130)
    seeds = [{int(v): 1.0 for v in rng.integers(0, 130, 3)} for _ in range(9)] + [None]
    options = PageRankOptions(precision=precision)
    queries = make_queries(seeds, [0.85], 130, None)
    dtype = np.float32 if precision == "float32" else np.float64
    blocks = [A.stored.read_block(a, b, dtype) for a, b in pairwise(bounds)]
    weight, halos = A.out_weights.read(True), [Halo(rank, bounds, (None,) * 4) for rank in range(4)]
    if kind != "nccl":
        blocks, halos = zip(*(make_halo(block, rank, bounds) for rank, block in enumerate(blocks)), strict=True)

    def rank_own(rank, panels):
        own, kept = weight[bounds[rank] : bounds[rank + 1]], []
        rows = ManyRows(CpuMany(blocks[rank], precision, 1), own, np.empty(0), n_dangling=int((own == 0).sum()))
        task = BatchTask("", options, options.threshold(130, A.nnz), None)
        keep = lambda k: kept.append(replace(k, ranks=np.array(k.ranks)))  # noqa: E731
        of_rows = [query.cut(*bounds[rank : rank + 2]) for query in queries]
        batch = Batch(rows, of_rows, task, 4, panels, None, keep)
        batch.start()
        assert len(list(batch.advance())) == batch.iteration
        return batch.collect().values, {k: x for own in kept for k, x in zip(own.numbers, own.ranks, strict=True)}

    wanted = mg.pagerank_batch(A.on("cpu"), seeds, precision=precision, width=4)
    found = run_panels(nccl, kind, halos, rank_own)
    for k in range(len(seeds)):
        ranks = np.concatenate([own[k] for _, own in found])
        assert ranks.tobytes() == wanted.values[k].tobytes()
        assert {endings[k].changes for endings, _ in found} == {wanted.changes[k]}
        [bound] = {endings[k].error_bound_l1 for endings, _ in found}
        assert bound == pytest.approx(wanted.error_bounds_l1[k], rel=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_batches_have_the_bits_of_one_process(nccl, kind):
    for precision in ["exact", "float64", "float32"]:
        check_batches_have_the_bits_of_one_process(nccl, kind, precision)


def test_one_process_holds_all_itself():
    panels = LocalExchange(6)
    panel = open_panel(panels, 2, np.float32)
    panel.slot()[:] = 3
    assert panel.exchange_columns([StepSums(1), StepSums(2)]) == [StepSums(1), StepSums(2)]
    assert panel.z.tolist() == [[3.0, 3.0]] * 6
    assert panels.gather(np.arange(3))[0].tolist() == [0, 1, 2]
    assert (panel.nbytes, panels.n_staged) == (panels.n_elements * 2 * 4, 0)


class OnDevice:
    """A vector that NumPy cannot read; kernels, as tests do, get at it by `memory`."""

    __array_ufunc__ = None

    def __init__(self, memory):
        self.memory = memory

    def __array__(self, *args, **kwargs):
        raise TypeError("this is on a device")

    def __getitem__(self, part):
        return OnDevice(self.memory[part])

    @property
    def nbytes(self):
        return self.memory.nbytes


class Copies:
    """Counts vectors that go to the device and to the host, by their elements."""

    def __init__(self):
        self.put_sizes, self.got_sizes = [], []

    def put(self, array):
        assert type(array) is np.ndarray
        self.put_sizes.append(len(array))
        return OnDevice(array.copy())

    def get(self, vector):
        assert type(vector) is OnDevice
        self.got_sizes.append(len(vector.memory))
        return vector.memory.copy()


def check_devices_hold_what_all_of_them_wrote(bounds):
    n, n_workers = bounds[-1], len(bounds) - 1
    network = Network(n_workers, seed=1)

    def work(rank):
        start, stop = bounds[rank : rank + 2]
        everybody = (None,) * n_workers
        turns = AllToAll(network.links(rank), rank, n_workers)
        copies = Copies()
        for step in range(1, 8):
            dtype = np.dtype(np.int64 if step < 5 else np.float32)
            if step in (1, 5):
                device = DeviceCopies(copies.put, copies.get)
                staged = PeerExchange(turns, Halo(rank, bounds, everybody), everybody, device)
                staged = staged.open(partial(np.zeros, dtype=dtype))
                assert staged.z.memory.tolist() == [0] * n
            z = (1000 * step + np.arange(n)).astype(dtype)
            staged.slot().memory[:] = z[start:stop]
            [sums] = staged.exchange_columns([StepSums(step, step + rank, 2 * rank, 1)])
            assert sums == StepSums(n_workers * step, step + n_workers - 1, n_workers * (n_workers - 1), n_workers)
            read = staged.z.memory
            assert (read.dtype, read.tolist()) == (dtype, z.tolist())
        assert copies.got_sizes == [stop - start] * 7
        assert staged.exchanged_bytes == (4 * 8 + 3 * 4) * (n - (stop - start))

    run_workers(network, n_workers, work)


def test_devices_hold_what_all_of_them_wrote():
    for bounds in [(0, 11, 20), (0, 7, 9, 20), (0, 0, 9, 9, 20)]:
        check_devices_hold_what_all_of_them_wrote(bounds)
