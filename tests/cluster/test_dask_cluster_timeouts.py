"""Every time-out names the worker, its rank and what was being done."""

from __future__ import annotations

import asyncio
import re
import tempfile
import time
from concurrent.futures import Future
from contextlib import closing
from types import SimpleNamespace

import pytest

from mgspmv.cluster import dask_cluster as cluster_module
from mgspmv.cluster import ingest, scheduler_client
from mgspmv.cluster.dask_cluster import Cluster
from mgspmv.cluster.ingest import HeldShard, ShardOffer
from mgspmv.errors import WorkerTimeoutError
from mgspmv.exchange.peer_comm import Member
from mgspmv.ingest.shard import ShardSpec
from mgspmv.model import IngestOptions

MEMBERS = (Member(0, "tcp://10.0.0.1:1"), Member("gpu-7", "tcp://10.0.0.2:2"))
HANG = ("iteration 7", "made no progress for 30 s", "its log has the stacks of its threads")


def make_cluster(**scheduler):
    """A view of a cluster whose scheduler answers this."""
    cluster = object.__new__(Cluster)
    cluster.timeout, cluster.patience = 0.2, 0.1
    cluster._silent, cluster._starved = set(), set()
    cluster.client = SimpleNamespace(scheduler=None)

    async def list_all(workers):
        return dict.fromkeys(workers, 1)

    cluster.check_client = lambda: SimpleNamespace(**{"ncores": list_all, "ncores_running": list_all} | scheduler)
    return cluster


def be_paused(monkeypatch):
    monkeypatch.setattr(scheduler_client, "LOOK_S", 0.05)

    async def list_running(workers):
        return {workers[0]: 1}

    asyncio.run(make_cluster(ncores_running=list_running)._watch_members(MEMBERS, "iteration 7"))


def answer_nothing():
    async def broadcast(**message):
        await asyncio.Event().wait()

    asyncio.run(make_cluster(broadcast=broadcast)._watch_answers(MEMBERS, 1, "iteration 7"))


def answer_that_it_hangs():
    async def broadcast(msg, workers, on_error):
        return {workers[0]: [HANG]}

    asyncio.run(make_cluster(broadcast=broadcast)._watch_answers(MEMBERS, 1, "iterations 1 to 9"))


def not_answer_a_share(monkeypatch):
    monkeypatch.setattr(ingest, "ASK_S", 0.05)
    monkeypatch.setattr(ingest.asyncio, "run_coroutine_threadsafe", lambda work, loop: (work.close(), Future())[1])
    worker = SimpleNamespace(rpc=None, loop=SimpleNamespace(asyncio_loop=None))
    spec = ShardSpec(0, 2, None, "", "graph", IngestOptions())
    offer = ShardOffer(spec, MEMBERS, ("a", "b"), None, 1 << 32, 1, tempfile.gettempdir(), 0.01)
    with closing(HeldShard(offer, worker)) as share:
        share._ask_shard(1, "give_ids")


def not_take_the_agent(monkeypatch):
    monkeypatch.setattr(cluster_module, "INSTALL_S", 0.05)
    cluster = make_cluster()

    async def run(*args, **options):
        await asyncio.Event().wait()

    cluster.client = SimpleNamespace(run=run)
    asyncio.run(cluster._install(MEMBERS[1]))


def let_nobody_join():
    async def broadcast(**message):
        await asyncio.Event().wait()

    asyncio.run(make_cluster(broadcast=broadcast)._ask_present(MEMBERS, {"op": "versions"}, 0.05, 0.05))


def bring_about(action, monkeypatch):
    with pytest.raises(WorkerTimeoutError) as caught:
        action(monkeypatch) if action.__code__.co_argcount else action()
    return caught.value


@pytest.mark.parametrize(
    ("action", "rank", "phase"),
    [
        (be_paused, 1, "iteration 7"),
        (answer_nothing, 1, "iteration 7"),
        (answer_that_it_hangs, 1, "iteration 7"),
        (not_answer_a_share, 1, "ingest"),
        (not_take_the_agent, None, "join"),
        (let_nobody_join, None, "join"),
    ],
)
def test_a_time_out_names_worker_rank_and_phase(action, rank, phase, monkeypatch):
    error = bring_about(action, monkeypatch)
    assert (error.rank, error.phase) == (rank, phase)
    assert "gpu-7" in str(error)
    assert f"during {phase}" in str(error)
    if rank is not None:
        assert error.worker == "gpu-7"
        assert re.search(r" (for|within) [\d.]+ s", str(error))
    assert "\n" not in str(error)


def test_a_client_that_was_stopped_itself_blames_nobody(monkeypatch):
    monkeypatch.setattr(scheduler_client, "LATE_S", 0.1)
    asked = []

    async def broadcast(msg, workers, on_error):
        asked.append(msg)
        if len(asked) == 1:
            time.sleep(0.5)  # five times as long as it may be silent
            await asyncio.Event().wait()
        if len(asked) == 3:
            raise KeyboardInterrupt
        return {workers[0]: []}

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(make_cluster(broadcast=broadcast)._watch_answers(MEMBERS, 1, "iteration 7"))
