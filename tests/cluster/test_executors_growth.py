"""What runs send and leave behind: no message carries the matrix, and nothing grows with the number of iterations."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import psutil
import pytest
from dask.sizeof import sizeof
from distributed import Client
from distributed.comm import tcp

import mgspmv as mg
from mgspmv.store.stored_matrix import StoredMatrix
from tests.support.clusters import start_cluster
from tests.support.hearing import on_events

EXECUTORS = ["tasks", "supersteps"]
N = 2000


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    """A graph of few vertices and many edges: its vectors are far smaller than the matrix."""
    A = mg.generate("uniform", tmp_path_factory.mktemp("dense") / "graph.zarr", n_vertices=N, n_edges=2_400_000)
    assert A.info.nbytes > 7_000_000
    return A


class Traffic:
    """Bytes that client and scheduler, which are in this process, send and receive over TCP."""

    def __init__(self, monkeypatch):
        self.n_bytes = 0
        self.largest = 0
        to_frames, from_frames = tcp.to_frames, tcp.from_frames

        async def count_sent(*args, **options):
            frames = await to_frames(*args, **options)
            self.count(frames)
            return frames

        async def count_received(frames, *args, **options):
            self.count(frames)
            return await from_frames(frames, *args, **options)

        monkeypatch.setattr(tcp, "to_frames", count_sent)
        monkeypatch.setattr(tcp, "from_frames", count_received)

    def count(self, frames):
        n_bytes = sum(memoryview(frame).nbytes for frame in ([frames] if isinstance(frames, bytes) else frames))
        self.n_bytes += n_bytes
        self.largest = max(self.largest, n_bytes)

    def take(self):
        """Bytes since the last time, and the largest message of them."""
        taken = self.n_bytes, self.largest
        self.n_bytes = self.largest = 0
        return taken


@pytest.fixture
def traffic(monkeypatch):
    return Traffic(monkeypatch)


def test_no_message_carries_the_matrix(dense, traffic, client, monkeypatch):
    def refuse(*args):
        raise AssertionError("the client read entries of the matrix")

    monkeypatch.setattr(StoredMatrix, "read_block", refuse)
    monkeypatch.setattr(StoredMatrix, "read_values", refuse)
    traffic.take()
    with dense.distribute(client) as D:
        assert traffic.take()[0] < dense.info.nbytes / 10
        mg.pagerank(D, norm="fixed", max_iter=10)
        assert traffic.take()[0] < dense.info.nbytes / 10
        D @ np.ones(N)
        assert traffic.take()[0] < 20 * 8 * N


def test_supersteps_send_no_vectors_through_the_scheduler(dense, traffic, client):
    n_bytes = []
    with dense.distribute(client) as D:
        for max_iter in (20, 20, 120):
            traffic.take()
            solution = mg.pagerank(D, norm="fixed", max_iter=max_iter)
            n_bytes.append(traffic.take()[0])
    assert min(solution.events[-1].exchanged_bytes) >= 8 * N / 2
    assert (n_bytes[2] - n_bytes[1]) / 100 < 8 * N / 4


def test_the_scheduler_driven_form_sends_vectors_and_no_more(dense, traffic, client):
    with dense.distribute(client) as D:
        n_bytes = []
        for max_iter in (10, 10, 30):
            traffic.take()
            mg.pagerank(D.on(executor="tasks"), norm="fixed", max_iter=max_iter)
            n_bytes.append(traffic.take())
    sent_twice = 2 * 8 * N * (4 + 1)  # z to each worker and a slice from each, seen by who sends and who receives
    assert (n_bytes[2][0] - n_bytes[1][0]) / 20 < 2 * sent_twice
    assert n_bytes[2][1] < 2 * 8 * N


def test_what_workers_hold_is_what_the_plan_says(dense, client):
    with dense.distribute(client) as D:
        event = mg.pagerank(D, norm="fixed", max_iter=2).events[-1]
        for held, planned, (a, b) in zip(event.memory_bytes, D.plan.workers, pairwise(D.bounds), strict=True):
            assert planned.block_bytes < held <= planned.memory_bytes
            assert planned.block_bytes < dense.info.nbytes / 3
            assert 0 < b - a < N
        stored = client.run(lambda dask_worker: sizeof(dict(dask_worker.data)))
        assert max(stored.values()) < 8 * N  # what Dask has in its own books is not the matrix


@pytest.fixture(scope="module")
def two():
    with start_cluster(2) as cluster, Client(cluster, set_as_default=False) as client:
        yield client


def count_of_worker(dask_worker):
    process = psutil.Process()
    return {"tasks": len(dask_worker.state.tasks), "data": len(dask_worker.data), "files": process.num_fds()}


def count_all(client):
    """Numbers of what there is on client, scheduler and workers; scheduler and client are in this process."""
    scheduler = client.cluster.scheduler
    counts = {
        "tasks": len(scheduler.tasks),
        "task groups": len(scheduler.task_groups),
        "task prefixes": len(scheduler.task_prefixes),
        "futures": len(client.futures),
        "files": psutil.Process().num_fds(),
    }
    for number, worker in enumerate(client.run(count_of_worker).values()):
        counts |= {f"{name} of worker {number}": count for name, count in worker.items()}
    return counts


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["supersteps", pytest.param("tasks", marks=pytest.mark.weekly)])
def test_nothing_grows_with_the_number_of_iterations(executor, two, tmp_path):
    """What is kept shows in each 200 iterations; logs that fill up and jumps of a process of many tests, in some."""
    n = 20_000
    mg.generate("uniform", tmp_path / "graph.zarr", n_vertices=n, n_edges=3000)
    counts, resident = [], []

    def look(event):
        if event.iteration % 200 == 0:
            counts.append(count_all(two))
            resident.append(psutil.Process().memory_info().rss)

    with mg.open_matrix(tmp_path / "graph.zarr").distribute(two) as D:
        solution = mg.pagerank(D.on(executor=executor), norm="fixed", max_iter=1000, progress=on_events(look))
    assert solution.iterations == 1000
    first, *_, last = counts
    grown = {name: (first[name], last[name]) for name in first if last[name] > first[name] + 8}
    assert grown == {}
    assert min(np.diff(resident)) < 200 * 8 * n / 8  # an eighth of the vector of each iteration


@pytest.mark.slow
def test_nothing_grows_with_the_number_of_runs(two, tmp_path):
    A = mg.generate("uniform", tmp_path / "graph.zarr", n_vertices=500, n_edges=3000)
    counts = []
    for _ in range(3):
        for _ in range(5):
            with A.distribute(two) as D:
                for executor in EXECUTORS:
                    mg.pagerank(D.on(executor=executor), norm="fixed", max_iter=2)
                D @ np.ones(500)
        counts.append(count_all(two))
    first, *_, last = counts
    grown = {name: (first[name], last[name]) for name in first if last[name] > first[name] + 4}
    assert grown == {}
