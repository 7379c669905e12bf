"""Recovery of PageRank runs on clusters of threads and on the shared one, whose workers a test must not kill."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from distributed import Client, get_worker

import mgspmv as mg
import mgspmv.cluster.dask_cluster
from mgspmv.errors import OptionError, VersionMismatchError, WorkerLostError, WorkerMemoryError
from mgspmv.solvers.steps import LocalSteps
from tests.support.clusters import start_cluster
from tests.support.hearing import on_both, on_events

FIXED = {"norm": "fixed", "max_iter": 30}


@pytest.fixture(autouse=True)
def _short_supersteps(monkeypatch):
    """Of an iteration each, so that there are many checkpoints."""
    monkeypatch.setattr("mgspmv.cluster.executors.choose_length", lambda events: 1)


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return mg.generate("uniform", tmp_path_factory.mktemp("recovery") / "graph.zarr", n_vertices=300, n_edges=2000)


@pytest.fixture(scope="module")
def wanted(graph):
    return mg.pagerank(graph, **FIXED)


@pytest.fixture
def is_full(monkeypatch):
    """A sign for the worker of name 1 to have no memory left for its steps."""
    advance, is_full = LocalSteps.advance, threading.Event()

    def fail(self, *args, **options):
        if is_full.is_set() and get_worker().name == 1:
            raise MemoryError
        return advance(self, *args, **options)

    monkeypatch.setattr(LocalSteps, "advance", fail)
    return is_full


@pytest.fixture
def three():
    """A client of three workers of its own, of which it leaves one out."""
    with start_cluster(3, processes=False) as cluster, Client(cluster, set_as_default=False) as client:
        yield client


@pytest.mark.parametrize(("executor", "is_kept"), [("supersteps", False), ("supersteps", True), ("tasks", True)])
def test_a_run_goes_on_without_a_worker_that_is_lost(executor, is_kept, graph, wanted, three, is_full, tmp_path):
    """It is lost at the seventh iteration, or when a checkpoint was written, for which the run goes slowly."""
    kept = {"checkpoint": mg.Checkpoint(tmp_path / "c", every_s=0)} if is_kept else {}
    events = []

    def on_event(event):
        events.append(event)
        if event.iteration == 7 and not is_kept:
            is_full.set()
        elif is_kept and event.iteration >= 10 and not is_full.is_set():
            time.sleep(0.5)

    def on_progress(phase, done, total):
        if phase == "checkpoint":
            is_full.set()

    with pytest.warns(UserWarning, match=r"^worker 1 .* had no memory left, and is left out until it is restarted$"):
        solution = mg.pagerank(
            graph.on(three, executor=executor), **kept, **FIXED, progress=on_both(on_event, on_progress)
        )
    assert (solution.digest(), solution.changes) == (wanted.digest(), wanted.changes)
    [recovery] = solution.recoveries
    assert (recovery.kind, recovery.worker) == ("lost", "1")
    assert (recovery.workers_before, recovery.workers_after) == (3, 2)
    assert (recovery.resumed_after > 0) == is_kept
    again = next(event for event in events if event.epoch == 1)
    assert again.iteration == recovery.resumed_after + 1
    assert [event.iteration for event in solution.events] == list(range(1, FIXED["max_iter"] + 1))


def test_a_loss_ends_a_run_that_may_not_recover(graph, three, is_full):
    is_full.set()
    with pytest.raises(WorkerMemoryError, match=r"^worker 1 \(.* has no memory left \(during iteration") as caught:
        mg.pagerank(graph.on(three, recover=0), **FIXED)
    assert (caught.value.worker, caught.value.exit_code) == ("1", 6)


def test_what_the_caller_raises_is_no_loss(graph, client):
    def refuse(event):
        raise WorkerLostError("of the caller", worker="1")

    with pytest.raises(WorkerLostError, match="of the caller"):
        mg.pagerank(graph.on(client), progress=on_events(refuse))


@pytest.mark.parametrize("recover", [-1, 1.5, True])
def test_times_that_make_no_sense(recover, graph):
    with pytest.raises(OptionError, match="recover must be an integer of 0 or more"):
        mg.pagerank(graph.on(recover=recover))


def test_a_worker_of_another_version_is_left_out_of_a_recovery(graph, in_process, monkeypatch):
    """One that came meanwhile, of those that are there; where nobody else is, it is told."""
    versions, unfit = mgspmv.cluster.dask_cluster.list_differences, set()
    monkeypatch.setattr(
        mgspmv.cluster.dask_cluster,
        "list_differences",
        lambda found: [f"worker {m} has zarr 0.0.1, not 3" for m in found if m.name in unfit] or versions(found),
    )
    client = in_process(2)
    with graph.distribute(client) as D:
        unfit.add(1)
        with pytest.warns(UserWarning, match=r"^worker 1 \(.*\) worker 1 .* has zarr 0.0.1, not 3, and is left out$"):
            D.redistribute()
        assert D.workers == (0,)
        unfit.add(0)
        with pytest.raises(VersionMismatchError, match=r"worker 0 .*; worker 1 .*Install the same versions"):
            D.redistribute()
        unfit.clear()
        D.redistribute()
        assert D.workers == (0, 1)


def test_who_is_silent_when_it_is_asked_to_go_on_is_asked_again(graph, in_process, monkeypatch):
    monkeypatch.setattr(mgspmv.cluster.dask_cluster, "REJOIN_S", 0.2)
    client, asked = in_process(1), []
    [worker] = client.cluster.workers.values()
    with graph.distribute(client) as D:

        async def answer_late(answer=worker.versions, **message):
            asked.append(message)
            if len(asked) < 3:
                await asyncio.sleep(0.4)
            return answer(**message)

        monkeypatch.setitem(worker.handlers, "versions", answer_late)
        D.redistribute()
        assert D.workers == (0,)
        assert len(asked) >= 3
