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

from mgspmv.cluster import ingest_steps
from mgspmv.cluster.agent import HANGS
from mgspmv.cluster.dask_cluster import Cluster
from mgspmv.cluster.ingest_steps import HeldShard, ShardOffer
from mgspmv.errors import WorkerTimeoutError
from mgspmv.exchange.peer_comm import Member
from mgspmv.ingest.shard import ShardSpec
from mgspmv.model import IngestOptions

MEMBERS = (Member(0, "tcp://10.0.0.1:1"), Member("gpu-7", "tcp://10.0.0.2:2"))
HANG = ("iteration 7", "made no progress for 30 s", "its log has the stacks of its threads", None)


def make_cluster(second=None, **scheduler):
    """A view of a cluster whose scheduler answers this.

    `second` makes the description of the second of two workers, from the number of times that it was asked for.
    """
    cluster = object.__new__(Cluster)
    cluster.timeout, cluster.patience = 0.2, 0.1
    cluster._silent, cluster._starved = set(), set()
    cluster.client = SimpleNamespace(scheduler=None)
    asked = []

    async def identity(n_workers):
        asked.append(n_workers)
        running = {"status": "running", "metrics": {}, "last_seen": len(asked)}
        described = (running, running | (second(len(asked)) if second else {}))
        return {"workers": {m.address: {"name": m.name} | d for m, d in zip(MEMBERS, described, strict=True)}}

    cluster.check_client = lambda: SimpleNamespace(**{"identity": identity} | scheduler)
    return cluster


def watch(second, phase="iteration 7"):
    asyncio.run(make_cluster(second)._watch_members(MEMBERS, phase))


def be_paused():
    watch(lambda n: {"status": "paused"})


def be_silent():
    watch(lambda n: {"last_seen": 1})


def hang():
    watch(lambda n: {"metrics": {HANGS: [HANG]}}, "iterations 1 to 9")


def keep_another_waiting():
    def describe(n):
        return {"metrics": {HANGS: [("iteration 7", "was silent for 9 s", "other tasks occupy its threads", 1)]}}

    watch(describe, "iterations 1 to 9")


def not_answer_a_share(monkeypatch):
    monkeypatch.setattr(ingest_steps, "ASK_S", 0.05)
    monkeypatch.setattr(
        ingest_steps.asyncio, "run_coroutine_threadsafe", lambda work, loop: (work.close(), Future())[1]
    )
    worker = SimpleNamespace(rpc=None, loop=SimpleNamespace(asyncio_loop=None))
    spec = ShardSpec(0, 2, None, "", "graph", IngestOptions())
    offer = ShardOffer(spec, MEMBERS, ("a", "b"), None, 1 << 32, 1, tempfile.gettempdir(), 0.01)
    with closing(HeldShard(offer, worker)) as share:
        share._ask_shard(1, "give_ids")


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
        (be_silent, 1, "iteration 7"),
        (hang, 1, "iteration 7"),
        (keep_another_waiting, 1, "iteration 7"),
        (not_answer_a_share, 1, "ingest"),
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


def test_a_client_that_was_stopped_itself_blames_nobody():
    def describe(n):
        if n == 9:
            raise KeyboardInterrupt
        time.sleep(0.05)  # looks take place at a third of the pace
        return {"last_seen": n // 3}

    with pytest.raises(KeyboardInterrupt):
        watch(describe)


def test_a_hang_that_was_over_before_the_watch_is_not_taken_for_one_of_now():
    def describe(n):
        if n == 4:
            raise KeyboardInterrupt
        return {"metrics": {HANGS: [HANG] if n < 3 else []}, "last_seen": 1 if n < 3 else n}

    with pytest.raises(KeyboardInterrupt):
        watch(describe)
