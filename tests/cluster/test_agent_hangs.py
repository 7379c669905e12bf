"""Tasks that hang while their workers answer: an error in bounded time that says where, and workers that are left out
until they go on. And what is only slow."""

from __future__ import annotations

import gc
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest
from distributed import Client

import mgspmv as mg
from mgspmv.errors import WorkerTimeoutError
from tests.support.clusters import check_left, find_left, start_cluster, wait_idle
from tests.support.waiting import HANG_S

pytestmark = pytest.mark.slow

ENDLESS = {"norm": "fixed", "max_iter": 10**6}
TIMEOUT_S = 4.0


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return mg.generate("rmat", tmp_path_factory.mktemp("hangs") / "graph.zarr", scale=10, edge_factor=8)


@pytest.fixture(scope="module")
def wanted(graph):
    return mg.pagerank(graph).digest()


@pytest.fixture(scope="module")
def two(graph):
    """The client of two workers that have compiled what they need, which would keep them silent for too long."""
    with start_cluster(2) as cluster, Client(cluster, set_as_default=False) as client, graph.distribute(client) as D:
        for executor in ("supersteps", "tasks"):
            mg.pagerank(D.on(executor=executor))
        mg.eigenvector_centrality(D)
        mg.pagerank_batch(D, [None, {1: 1.0}])
        D @ np.ones(graph.shape[1])
        yield client


@pytest.fixture
def fragile(two):
    """The same client, on which a test must leave nothing, and nothing that waits for the garbage collector."""
    before = find_left(two)
    gc.disable()
    try:
        yield two
        check_left(two, before)
    finally:
        gc.enable()


def patch_method(dask_worker, where, name, call, seconds):
    """Let a call of a method, counted from 1, wait for a sign, or all later ones take so many seconds."""
    import importlib

    module, kind = where.split(":")
    owner = getattr(importlib.import_module(module), kind)
    original, go_on, calls = getattr(owner, name), threading.Event(), []

    def delayed(self, *args, **options):
        calls.append(name)
        if seconds is None and len(calls) == call:
            go_on.wait(120)
        elif seconds is not None and len(calls) >= call:
            time.sleep(seconds)
        return original(self, *args, **options)

    def restore():
        setattr(owner, name, original)
        go_on.set()

    setattr(owner, name, delayed)
    dask_worker.mgspmv_restore = restore


def restore_method(dask_worker):
    dask_worker.mgspmv_restore()


def set_limit(dask_worker, begin_s):
    from mgspmv.cluster import agent

    agent.BEGIN_S = begin_s


def set_chunks(n):
    from mgspmv.store import digests

    digests.CHUNK_ELEMENTS = n


@contextmanager
def patched(client, worker, where, name, call, seconds=None):
    """On one worker; everything is as before at the end."""
    workers = client.scheduler_info(n_workers=-1)["workers"]
    [address] = [a for a, w in workers.items() if w["name"] == worker]
    client.run(patch_method, where=where, name=name, call=call, seconds=seconds, workers=[address])
    try:
        yield
    finally:
        client.run(restore_method, workers=[address])
        assert wait_idle(client)


@contextmanager
def limited(client, begin_s):
    """How long tasks may be without a mark, out of iterations."""
    client.run(set_limit, begin_s=begin_s)
    try:
        yield
    finally:
        client.run(set_limit, begin_s=300.0)


STEPS = ("mgspmv.solvers.steps:LocalSteps", "advance")
READS = ("mgspmv.store.read:StoredMatrix", "read_block")
PRODUCTS = ("mgspmv.cluster.row_block:RowBlock", "multiply")
POWERS = ("mgspmv.cluster.iterations:PowerProducts", "_multiply_all")
PASSES = ("mgspmv.solvers.batch:Batch", "_step")


def rank(graph, client, **options):
    return mg.pagerank(graph.on(client, timeout=TIMEOUT_S, recover=0), **ENDLESS, **options)


@pytest.mark.parametrize(
    ("where", "run", "phase"),
    [
        (STEPS, rank, "iteration 7"),
        (POWERS, lambda A, c: mg.eigenvector_centrality(A.on(c, timeout=TIMEOUT_S), **ENDLESS), "iteration 7"),
        (PASSES, lambda A, c: mg.pagerank_batch(A.on(c, timeout=TIMEOUT_S), [None], tol=1e-15), "iteration 7"),
    ],
    ids=["pagerank", "eigenvector", "batch"],
)
def test_a_task_that_hangs_in_an_iteration_ends_the_run(where, run, phase, graph, wanted, fragile):
    with patched(fragile, 1, *where, call=7):
        began = time.monotonic()
        with pytest.raises(WorkerTimeoutError, match=r"^worker 1 \(tcp://.*\) made no progress for ") as caught:
            run(graph, fragile)
        assert time.monotonic() - began < 2 * TIMEOUT_S + HANG_S
        assert (caught.value.worker, caught.value.rank, caught.value.phase) == ("1", 1, phase)
        assert f"(during {phase}, rank 1); its log has the stacks of its threads" in str(caught.value)
        logs = fragile.get_worker_logs()
        stacks = [text for of_worker in logs.values() for _, text in of_worker if "made no progress" in text]
        assert any("go_on.wait(120)" in text for text in stacks)
        with pytest.warns(UserWarning, match=r"^worker 1 \(tcp://.* and is left out until it resumes or is restarted"):
            left = mg.pagerank(graph.on(fragile))
        assert (left.digest(), left.matrix["hardware"]) == (wanted, "1 worker of 1 thread")
    caught = None  # its traceback holds what the run held
    again = mg.pagerank(graph.on(fragile))
    assert (again.digest(), again.matrix["hardware"]) == (wanted, "2 workers of 1 thread")


def test_a_run_goes_on_without_a_worker_that_hangs(graph, wanted, fragile):
    with patched(fragile, 1, *STEPS, call=7):
        with pytest.warns(UserWarning, match=r"^worker 1 \(tcp://.* and is left out until it resumes or is restarted"):
            left = mg.pagerank(graph.on(fragile, timeout=TIMEOUT_S))
        [recovery] = left.recoveries
        assert (left.digest(), recovery.worker, recovery.workers_after) == (wanted, "1", 1)
    assert mg.pagerank(graph.on(fragile)).digest() == wanted


def test_a_worker_that_hangs_while_it_loads(graph, fragile):
    with limited(fragile, 2.0), patched(fragile, 0, *READS, call=1):
        with pytest.raises(WorkerTimeoutError, match=r"^worker 0 \(tcp://.*\(during load, rank 0\)") as caught:
            graph.distribute(fragile, timeout=TIMEOUT_S, recover=0)
        assert caught.value.phase == "load"
        caught = None


def test_a_product_that_hangs_and_the_matrix_after_it(graph, fragile):
    x = np.ones(graph.shape[1])
    with graph.distribute(fragile, timeout=TIMEOUT_S) as D:
        with limited(fragile, 2.0), patched(fragile, 1, *PRODUCTS, call=2):
            first = D @ x
            for use in (lambda: D @ x, lambda: mg.pagerank(D.on(recover=0))):  # the second one ends as soon as it asks
                began = time.monotonic()
                with pytest.raises(WorkerTimeoutError, match=r"^worker 1 \(tcp://.*, rank 1\)"):
                    use()
                assert time.monotonic() - began < TIMEOUT_S + HANG_S
        assert (D @ x).tobytes() == first.tobytes()


def test_a_task_that_waits_for_its_turn_is_waited_for(graph, wanted, fragile):
    [address, _] = fragile.scheduler_info(n_workers=-1)["workers"]
    timeout_s = 5 * TIMEOUT_S  # longer than a worker of a busy machine may be silent
    other = fragile.submit(time.sleep, 1.5 * timeout_s, workers=[address], pure=False)
    assert mg.pagerank(graph.on(fragile, timeout=timeout_s, recover=0)).digest() == wanted
    other.result()


def test_an_ingest_that_hangs(tmp_path, fragile):
    lists = tmp_path / "edges.tsv"
    lists.write_text("".join(f"{k}\t{k * 7 % 100}\n" for k in range(100)))
    mg.ingest(lists, tmp_path / "first.zarr", client=fragile)  # who imports what that takes answers nobody
    with (
        limited(fragile, 2.0),
        patched(fragile, 1, "mgspmv.ingest.shard:Shard", "group", call=1),
        pytest.raises(WorkerTimeoutError, match=r"^worker 1 \(tcp://.*\(during number, rank 1\)"),
    ):
        mg.ingest(lists, tmp_path / "store.zarr", client=fragile, timeout=4 * TIMEOUT_S, memory=1 << 30)
    assert mg.ingest(lists, tmp_path / "store.zarr", client=fragile).info.shape == (100, 100)


def test_a_worker_that_is_slow_is_waited_for(graph, fragile):
    """Each of its iterations takes longer than it might be silent."""
    with patched(fragile, 1, *STEPS, call=1, seconds=1.5 * TIMEOUT_S):
        solution = mg.pagerank(graph.on(fragile, timeout=TIMEOUT_S), norm="fixed", max_iter=3)
    assert solution.digest() == mg.pagerank(graph, norm="fixed", max_iter=3).digest()


def test_a_worker_that_reads_slowly_is_waited_for(tmp_path, fragile, monkeypatch):
    """All of it takes longer than a task may be without a mark, and no piece does; others wait for it."""
    monkeypatch.setattr("mgspmv.store.digests.CHUNK_ELEMENTS", 1 << 12)
    fragile.run(set_chunks, n=1 << 12)
    try:
        A = mg.generate("uniform", tmp_path / "slow.zarr", n_vertices=3000, n_edges=200_000)
        with limited(fragile, 2.0), patched(fragile, 1, "mgspmv.store.chunks:Chunks", "read", call=1, seconds=0.3):
            began = time.monotonic()
            with A.distribute(fragile, timeout=TIMEOUT_S, threads=1):
                assert time.monotonic() - began > 4.0
    finally:
        fragile.run(set_chunks, n=1 << 20)
