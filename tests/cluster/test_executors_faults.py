"""Faults in the middle of rounds, loads and products, beside those of `test_faults`; and what tasks do that fail."""

from __future__ import annotations

import os
import signal
import threading
import time
from functools import partial

import dask
import numpy as np
import pytest
from distributed import Client

import mgspmv as mg
from mgspmv.errors import ClosedError, ClusterError, WorkerLostError
from tests.support.clusters import check_left, find_held, find_left, start_cluster, wait_idle
from tests.support.hearing import on_events
from tests.support.waiting import HANG_S, wait_for

EXECUTORS = ["tasks", "supersteps"]

LONG = {"norm": "fixed", "max_iter": 1_000_000}
"""A run that nothing ends but a fault, after which it does not go on."""
SOON_S = 0.3
"""After the first event, when workers are iterating again."""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return mg.generate("uniform", tmp_path_factory.mktemp("faults") / "graph.zarr", n_vertices=3000, n_edges=20_000)


@pytest.fixture(scope="module")
def three():
    """A cluster that is hurt again and again. Dask gives a worker up that is not there 15 s after it died, even when it
    was there in between and has died again."""
    with (
        dask.config.set({"distributed.deploy.lost-worker-timeout": "1h"}),
        start_cluster(3) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.fixture
def fragile(three):
    """The client of 3 workers that are all there, and on which a test must leave nothing."""
    three.wait_for_workers(3, timeout=HANG_S)
    before = find_left(three)
    yield three
    three.wait_for_workers(3, timeout=HANG_S)
    check_left(three, before)


def find_process(client, name):
    """Process id of the worker of that name."""
    [pid] = [
        pid
        for address, pid in client.run(os.getpid).items()
        if client.scheduler_info(n_workers=-1)["workers"][address]["name"] == name
    ]
    return pid


def kill(client, name):
    pid = find_process(client, name)
    return lambda: os.kill(pid, signal.SIGKILL)


def check_served(client, A, n_workers, executor="supersteps"):
    """The next run has the right bits on so many workers."""
    solution = mg.pagerank(A.on(client, executor=executor))
    assert solution.digest() == mg.pagerank(A).digest()
    assert solution.matrix["hardware"] == f"{n_workers} workers of 1 thread"


@pytest.mark.parametrize("executor", EXECUTORS)
def test_tasks_for_a_worker_that_is_gone_cost_the_user_nothing(executor, graph, fragile, monkeypatch):
    """They are submitted before the loss was noticed, when the scheduler knows no worker of that name."""
    monkeypatch.setattr("mgspmv.cluster.scheduler_client.LOOK_S", 0.5)
    act, scheduler = kill(fragile, 0), fragile.cluster.scheduler
    mine = fragile.submit(sum, [1, 2], workers=[2])
    assert mine.result() == 3
    n_before = len(scheduler.workers)

    def lose(event):
        if event.iteration == 3:
            act()
            assert wait_for(lambda: len(scheduler.workers) < n_before)

    with pytest.raises(WorkerLostError, match=r"^worker 0 "):
        mg.pagerank(graph.on(fragile, executor=executor, recover=0), **LONG, progress=on_events(lose))
    assert (fragile.status, mine.status) == ("running", "finished")
    assert mine.result() == 3
    mine.release()  # which frames of the error keep from being forgotten


def multiply_until_it_fails(D, x):
    while True:
        D @ x


def test_a_matrix_that_lost_a_worker_is_of_no_use_and_can_be_closed(graph, fragile):
    x = np.ones(graph.shape[1])
    D = graph.distribute(fragile)
    killed = threading.Timer(SOON_S, kill(fragile, 2))
    killed.start()
    with pytest.raises(WorkerLostError) as caught:
        multiply_until_it_fails(D, x)
    assert caught.value.worker == "2"
    fragile.wait_for_workers(3, timeout=HANG_S)
    for use in (lambda: D @ x, *(partial(mg.pagerank, D.on(executor=executor, recover=0)) for executor in EXECUTORS)):
        with pytest.raises((WorkerLostError, ClosedError), match="worker 2 "):
            use()
    D.close()
    with graph.distribute(fragile) as again:
        assert (again @ x).tobytes() == (graph @ x).tobytes()


def fail_in(dask_worker, method):
    """Let the second call of a run's method fail."""
    from mgspmv.cluster.iterations import CsrRanking
    from mgspmv.cluster.worker_run import WorkerRun

    kind = WorkerRun if method == "superstep" else CsrRanking
    calls, original = [], getattr(kind, method)

    def fail(self, *args):
        calls.append(method)
        if len(calls) == 2:
            setattr(kind, method, original)
            raise ZeroDivisionError("of this worker alone")
        return original(self, *args)

    setattr(kind, method, fail)


@pytest.mark.parametrize(("executor", "method"), [("supersteps", "superstep"), ("tasks", "step")])
def test_the_cause_is_raised_and_not_what_follows_from_it(executor, method, graph, client):
    last = list(client.scheduler_info(n_workers=-1)["workers"])[-1]
    client.run(fail_in, method=method, workers=[last])
    with pytest.raises(ZeroDivisionError, match=r"^of this worker alone$"):
        mg.pagerank(graph.on(client, executor=executor, recover=0), **LONG)
    check_served(client, graph, 4)


def compute_wrongly(dask_worker):
    from dataclasses import replace

    from mgspmv.cluster.worker_run import WorkerRun

    original = WorkerRun.superstep

    def change(self, n):
        if n > 0:
            WorkerRun.superstep = original
        report = original(self, n)
        return replace(report, events=[replace(e, change=e.change / 2) for e in report.events])

    WorkerRun.superstep = change


def test_workers_that_do_not_agree(graph, client):
    last = list(client.scheduler_info(n_workers=-1)["workers"])[-1]
    client.run(compute_wrongly, workers=[last])
    with pytest.raises(ClusterError, match=r"^the workers do not agree on the changes of this superstep; one of them"):
        mg.pagerank(graph.on(client))
    check_served(client, graph, 4)


def load_slowly(dask_worker):
    from mgspmv.store.stored_matrix import StoredMatrix

    original = StoredMatrix.read_block

    def read(self, *args):
        StoredMatrix.read_block = original
        time.sleep(1)
        return original(self, *args)

    StoredMatrix.read_block = read


def fail_to_load(dask_worker):
    from mgspmv.store.stored_matrix import StoredMatrix

    original = StoredMatrix.read_block

    def read(self, *args):
        StoredMatrix.read_block = original
        raise ZeroDivisionError("of this worker alone")

    StoredMatrix.read_block = read


def test_what_is_loaded_after_the_others_gave_up_is_not_kept(graph, client):
    first, *_, last = client.scheduler_info(n_workers=-1)["workers"]
    client.run(load_slowly, workers=[first])
    client.run(fail_to_load, workers=[last])
    with pytest.raises(ZeroDivisionError, match=r"^of this worker alone$"):
        graph.distribute(client)
    assert wait_idle(client)
    assert wait_for(lambda: find_held(client) == {})
    check_served(client, graph, 4)
