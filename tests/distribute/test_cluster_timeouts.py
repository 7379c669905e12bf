"""Every time-out names the worker, its rank and what was being done."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from mgspmv.distribute import cluster as cluster_module
from mgspmv.distribute import ingesting
from mgspmv.distribute.cluster import Cluster
from mgspmv.doctor.cluster import settle_within
from mgspmv.errors import WorkerMemoryError, WorkerTimeoutError
from mgspmv.exchange import nccl
from mgspmv.exchange.links import DaskLinks, Member
from tests.support.waiting import HANG_S

MEMBERS = (Member(0, "tcp://10.0.0.1:1"), Member("gpu-7", "tcp://10.0.0.2:2"))
HANG = ("iteration 7", "got no further for 30 s", "its log has the stacks of its threads")


def make_links(rank: int) -> DaskLinks:
    loop = SimpleNamespace(call_soon_threadsafe=lambda *_: None)
    worker = SimpleNamespace(loop=SimpleNamespace(asyncio_loop=loop))
    links = DaskLinks(worker, "run", rank, MEMBERS, lambda other: {}, 0.1)
    links.phase = "iteration 7"
    return links


def be_silent():
    links = make_links(0)
    links.begin_wait()
    links.receive([1])


def hang():
    links = make_links(1)
    links.fail(*HANG[1:])
    links.check()


def be_told_of_a_hang():
    told = {"failure": "worker gpu-7 (tcp://10.0.0.2:2) hangs (during iteration 7, rank 1)"}
    links = make_links(0)
    links._take(1, told | {"worker": "gpu-7", "rank": 1, "phase": "iteration 7"})
    links.check()


def not_be_found_by_nccl(monkeypatch):
    go_on = threading.Event()
    monkeypatch.setattr(nccl, "CONNECT_S", 0.05)
    communicator = SimpleNamespace(abort=lambda: None)
    played = SimpleNamespace(NcclCommunicator=lambda *_: go_on.wait(HANG_S) and communicator)
    device = {"__enter__": lambda self: None, "__exit__": lambda self, *error: None, "synchronize": lambda self: None}
    cuda = SimpleNamespace(Device=type("Device", (), device))
    monkeypatch.setitem(__import__("sys").modules, "cupy", SimpleNamespace(cuda=cuda))
    try:
        with make_links(1).active("iteration 7"):
            nccl._connect(played, 1, 2, b"id", lambda: None)
    finally:
        go_on.set()


def make_cluster(**scheduler):
    """A view of a cluster whose scheduler answers this."""
    cluster = object.__new__(Cluster)
    cluster.timeout, cluster.patience = 0.2, 0.1
    cluster._silent, cluster._starved, cluster._forgetting = set(), set(), set()
    cluster.client = SimpleNamespace(scheduler=None)

    async def list_all(workers):
        return dict.fromkeys(workers, 1)

    cluster._scheduler = lambda: SimpleNamespace(**{"ncores": list_all, "ncores_running": list_all} | scheduler)
    return cluster


def be_paused(monkeypatch):
    monkeypatch.setattr(cluster_module, "LOOK_S", 0.05)

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


def take_no_data():
    async def scatter(*data, **options):
        raise TimeoutError("no valid workers found")

    cluster = make_cluster()
    cluster.client = SimpleNamespace(scatter=scatter)
    cluster._forget = lambda key, sending: asyncio.sleep(0)
    asyncio.run(cluster._send([1], MEMBERS, 1, "iteration 7", "mgspmv-step"))


def take_no_part():
    def settle(futures, members, phase, on_tick):
        while True:
            on_tick()

    cluster = SimpleNamespace(settle=settle)
    futures = [SimpleNamespace(status="finished"), SimpleNamespace(status="pending")]
    settle_within(cluster, futures, MEMBERS, "iteration 7", 0.05)


def not_answer_a_share(monkeypatch):
    monkeypatch.setattr(ingesting, "ASK_S", 0.05)
    monkeypatch.setattr(ingesting.asyncio, "run_coroutine_threadsafe", lambda work, loop: (work.close(), Future())[1])
    worker = SimpleNamespace(address=MEMBERS[0].address, loop=SimpleNamespace(asyncio_loop=None))
    ingesting._Peers(worker, [(member, "key") for member in MEMBERS], 0.01).ask(1, "give_ids")


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


def all_hang(monkeypatch):
    cluster = make_cluster()

    async def list_workers():
        return {member: {} for member in MEMBERS}

    async def ask(members, message, wait_s, until_s):
        return {member: {"packages": {}, "hangs": [HANG]} for member in members}

    monkeypatch.setattr(cluster_module, "list_differences", lambda found: [])
    cluster._list_workers, cluster._ask_present, cluster._install = list_workers, ask, lambda member: asyncio.sleep(0)
    asyncio.run(cluster._join(False, False))


def let_nobody_come_back():
    async def identity(n_workers):
        return {"workers": {}}

    asyncio.run(make_cluster(identity=identity)._await_workers(2))


BY_RANK = {
    "DaskLinks._check": be_silent,
    "DaskLinks.fail": hang,
    "DaskLinks._take": be_told_of_a_hang,
    "_connect": not_be_found_by_nccl,
    "Cluster._watch_members": be_paused,
    "Cluster._watch_answers": answer_nothing,
    "Cluster._watch_answers, which says that it hangs": answer_that_it_hangs,
    "Cluster._send": take_no_data,
    "settle_within.check": take_no_part,
    "_Peers.ask": not_answer_a_share,
}
"""Where it is raised, and how to come there, about the worker of rank 1."""
JOINING = {
    "Cluster._install": not_take_the_agent,
    "Cluster._ask_present": let_nobody_join,
    "Cluster._join": all_hang,
}
"""Those of workers that have no ranks yet."""
NOBODY = {"Cluster._await_workers": let_nobody_come_back}
"""Those of no worker in particular."""


def bring_about(action, monkeypatch):
    with pytest.raises(WorkerTimeoutError) as caught:
        action(monkeypatch) if action.__code__.co_argcount else action()
    return caught.value


@pytest.mark.parametrize("name", list(BY_RANK))
def test_a_time_out_names_worker_rank_and_phase(name, monkeypatch):
    error = bring_about(BY_RANK[name], monkeypatch)
    assert (error.worker, error.rank) == ("gpu-7", 1)
    phase = "ingest" if name == "_Peers.ask" else "iteration 7"
    assert error.phase == phase
    for part in ("gpu-7", f"during {phase}", "rank 1"):
        assert part in str(error)
    if name not in ("DaskLinks._take", "Cluster._send"):
        assert re.search(r" (for|within) [\d.]+ s", str(error))
    assert "\n" not in str(error)


def test_a_time_out_before_there_are_ranks_names_worker_and_phase(monkeypatch):
    for name in list(JOINING):
        error = bring_about(JOINING[name], monkeypatch)
        assert (error.rank, error.phase) == (None, "join"), name
        assert "gpu-7" in str(error), name
        assert "during join" in str(error), name


@pytest.mark.parametrize("name", list(NOBODY))
def test_a_time_out_of_no_worker_names_the_phase(name, monkeypatch):
    error = bring_about(NOBODY[name], monkeypatch)
    assert (error.worker, error.rank, error.phase) == (None, None, "join")
    assert "during join" in str(error)


def test_a_client_that_was_stopped_itself_blames_nobody(monkeypatch):
    monkeypatch.setattr(cluster_module, "LATE_S", 0.1)
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


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't start new thread")])
def test_a_task_that_finds_no_memory_names_its_worker(error, monkeypatch):
    monkeypatch.setattr(cluster_module, "GRACE_S", 0.0)

    async def get_exception():
        return error

    futures = [SimpleNamespace(status="finished"), SimpleNamespace(status="error", exception=get_exception)]
    cluster = make_cluster()
    cause = asyncio.run(cluster._find_cause(dict(enumerate(futures)), MEMBERS, "load"))
    assert isinstance(cause, WorkerMemoryError)
    assert (cause.worker, cause.rank, cause.phase, cause.exit_code) == ("gpu-7", 1, "load", 6)
    assert [*cluster._starved] == [MEMBERS[1]], "it is left out then"
    assert re.fullmatch(r"worker gpu-7 \(.*\) has no memory left \(during load\): .*; give it more, .*", str(cause))
