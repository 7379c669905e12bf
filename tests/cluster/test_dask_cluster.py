"""A client's view of a cluster: versions, and waits that end whatever their watch is doing at that moment."""

from __future__ import annotations

import asyncio

import pytest

import mgspmv as mg
from mgspmv.cluster import agent as agent_module
from mgspmv.cluster import dask_cluster as module
from mgspmv.cluster.dask_cluster import Cluster
from mgspmv.errors import ClusterError, VersionMismatchError, WorkerTimeoutError
from tests.support.clusters import check_left, find_left
from tests.support.waiting import HANG_S, wait_for

CHECKED = ["python", "mgspmv", "dask", "distributed", "numpy", "numba", "zarr"]


@pytest.fixture
def graph(tmp_path):
    return mg.generate("rmat", tmp_path / "graph.zarr", scale=6)


@pytest.mark.parametrize("name", CHECKED)
def test_workers_of_another_version_are_refused(name, graph, in_process, monkeypatch):
    get_versions = module.get_versions
    here = get_versions(packages=CHECKED[1:])["packages"]

    def get_others(packages):
        return {"packages": get_versions(packages=packages)["packages"] | {name: "0.0.1"}}

    monkeypatch.setattr(module, "get_versions", get_others)
    client = in_process(2)
    with pytest.raises(VersionMismatchError) as caught:
        graph.distribute(client)
    names = client.run(lambda dask_worker: dask_worker.name)  # the client may know older ones
    workers = [f"worker {own} ({address})" for address, own in sorted(names.items(), key=lambda pair: pair[1])]
    differences = "; ".join(f"{worker} has {name} {here[name]}, not 0.0.1" for worker in workers)
    assert str(caught.value) == f"{differences}. Install the same versions on all workers as here"
    assert here[name][0].isdigit()


def test_workers_are_waited_for_as_long_as_they_may_be_silent(graph, in_process, monkeypatch):
    monkeypatch.setattr(module, "JOIN_S", 0.1)
    client = in_process(2)
    for worker in client.cluster.workers.values():

        async def answer_late(answer=worker.versions, **message):
            await asyncio.sleep(0.3)
            return answer(**message)

        monkeypatch.setitem(worker.handlers, "versions", answer_late)
    with graph.distribute(client, timeout=HANG_S) as D:
        assert len(D.workers) == 2
    with pytest.raises(WorkerTimeoutError) as caught:
        graph.distribute(client, timeout=0.2)
    assert str(caught.value) == (
        f"none of the workers of {client.scheduler.address} answered within 0.15 s (during join, workers 0, 1); they "
        "hang, or cannot be reached"
    )


def test_a_worker_that_hangs_while_it_joins_is_left_out(graph, in_process, monkeypatch):
    monkeypatch.setattr(module, "INSTALL_S", 0.1)
    client = in_process(2)
    worker, describe = client.cluster.workers[1], module.describe_worker
    address = worker.address

    async def hang(devices, dask_worker):
        if dask_worker.address == address:
            await asyncio.Event().wait()
        return await describe(devices, dask_worker=dask_worker)

    monkeypatch.setattr(module, "describe_worker", hang)
    with pytest.warns(UserWarning, match="left out") as warned, graph.distribute(client, timeout=3) as D:
        assert D.workers == (0,)
    assert [str(w.message) for w in warned] == [f"worker 1 ({worker.address}) does not answer and is left out"]


def test_pieces_of_which_one_is_not_taken_are_let_go_of(graph, in_process, monkeypatch):
    client = in_process(3)
    with graph.distribute(client) as D:
        before, scatter, taken = find_left(client), client.scatter, asyncio.Semaphore(0)

        async def take(data, workers):
            if workers != [D.members[1].address]:
                sent = await scatter(data, workers=workers)
                taken.release()
                return sent
            await taken.acquire()
            await taken.acquire()
            raise TimeoutError("no valid workers found")

        monkeypatch.setattr(client, "scatter", take)
        with pytest.raises(WorkerTimeoutError, match="did not accept data") as caught:  # whose frames have the futures
            D.cluster.scatter_each([[0], [1], [2]], D.members, "start", "mgspmv-begin").__enter__()
        monkeypatch.undo()
        assert caught.value.rank == 1
        check_left(client, before)


def test_a_piece_that_comes_after_another_was_not_taken_is_let_go_of(graph, in_process, monkeypatch):
    client = in_process(2)
    with graph.distribute(client) as D:
        before, scatter, has_failed, late = find_left(client), client.scatter, asyncio.Event(), []

        async def take(data, workers):
            if workers == [D.members[1].address]:
                has_failed.set()
                raise TimeoutError("no valid workers found")
            await has_failed.wait()
            await asyncio.sleep(0.2)  # the other error has ended the call meanwhile, or soon will
            sent = await scatter(data, workers=workers)
            late.extend(sent.values())  # else the collector of garbage would let go of them some time
            return sent

        monkeypatch.setattr(client, "scatter", take)
        with pytest.raises(WorkerTimeoutError, match="did not accept data"):
            D.cluster.scatter_each([[0], [1]], D.members, "start", "mgspmv-begin").__enter__()
        monkeypatch.undo()
        assert wait_for(lambda: late)
        check_left(client, before)


@pytest.mark.parametrize(("backend", "is_asked"), [("cpu", False), ("auto", True)])
def test_devices_are_asked_for_where_they_may_be_used(graph, in_process, monkeypatch, backend, is_asked):
    client, asked = in_process(2), []
    monkeypatch.setattr(
        agent_module, "find_device", lambda: asked.append(1) or agent_module.DeviceInfo("there is none")
    )
    graph.distribute(client, backend=backend).close()
    assert len(asked) == 2 * is_asked


def test_results_that_are_lost_when_all_is_done(in_process, monkeypatch):
    """As where the scheduler dies between the end of the last task and the fetching of what they gave."""
    client = in_process(2)
    cluster = Cluster(client, HANG_S)
    members = [worker.member for worker in cluster.join(devices=False)]
    futures = [cluster.submit(member, f"mgspmv-lost-{rank}", int) for rank, member in enumerate(members)]

    gather = client.gather

    def lose(*given, **options):
        client.futures[futures[0].key].cancel(reason="scheduler-connection-lost", msg="its connection broke")
        return gather(*given, **options)

    monkeypatch.setattr(client, "gather", lose)
    with pytest.raises(ClusterError, match=r"the tasks were cancelled \(during load\)"):
        cluster.settle(futures, members, "load")
    monkeypatch.undo()
    cluster.release(futures)
    again = [cluster.submit(member, f"mgspmv-found-{rank}", int) for rank, member in enumerate(members)]
    assert cluster.settle(again, members, "load") == [0] * len(members)
    cluster.release(again)
