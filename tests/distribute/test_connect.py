"""Reaching a cluster: what is taken for one, clusters that cannot be used, and connections that are encrypted."""

from __future__ import annotations

import asyncio

import dask
import psutil
import pytest
from clusters import start_cluster, wait_for
from distributed import Client

import mgspmv as mg
from mgspmv.distribute.connect import start_local
from mgspmv.errors import CapacityError, ClusterError, OptionError, SchedulerNotFoundError


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    store = tmp_path_factory.mktemp("connect") / "graph.zarr"
    mg.generate("uniform", store, n_vertices=300, n_edges=2000)
    return mg.open_matrix(store)


def refused(graph, client, error, **options):
    with pytest.raises(error) as caught:
        graph.distribute(client, **options)
    assert type(caught.value) is error
    return str(caught.value)


def test_asynchronous_clients_are_refused(graph, client):
    async def distribute():
        async with Client(client.scheduler.address, asynchronous=True, set_as_default=False) as own:
            return refused(graph, own, OptionError)

    assert asyncio.run(distribute()) == "the client is asynchronous; pass one made with asynchronous=False"


def test_closed_clients_are_refused(graph, client):
    with Client(client.scheduler.address, set_as_default=False) as own:
        pass
    assert refused(graph, own, SchedulerNotFoundError) == "the client is closed; make a new one"


def test_nobody_answers(graph):
    message = refused(graph, "tcp://127.0.0.1:1", SchedulerNotFoundError, timeout=1)
    assert message.startswith("no Dask scheduler answers at tcp://127.0.0.1:1 within 1 s (")
    assert message.endswith("); is it running, and is this its address, such as tcp://10.0.0.1:8786?")


@pytest.mark.parametrize("address", ["", "carrier-pigeon://10.0.0.1:8786", "tcp://somewhere"])
def test_what_is_no_address(address, graph):
    message = refused(graph, address, OptionError)
    assert message.startswith(f"{address!r} is no address of a scheduler (")
    assert message.endswith("); such as tcp://10.0.0.1:8786")


def test_the_address_of_a_worker(graph, client):
    address = next(iter(client.scheduler_info(n_workers=-1)["workers"]))
    assert refused(graph, address, OptionError) == f"{address} is the address of a worker, not of a scheduler"


def test_a_cluster_without_workers(graph):
    with start_cluster(0, processes=False) as cluster, Client(cluster, set_as_default=False) as client:
        message = refused(graph, client, ClusterError, timeout=0.5)
    assert message == f"{cluster.scheduler_address} has no running workers (none came, after 0.5 s); start some"


def test_workers_that_are_full(graph):
    """Dask pauses a worker whose process has more memory than it was given."""
    with (
        start_cluster(1, processes=False, memory_limit="1 MB") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        [worker] = cluster.scheduler.workers.values()
        assert wait_for(lambda: worker.status.name == "paused")
        message = refused(graph, client, ClusterError, timeout=1)
    assert message == f"{cluster.scheduler_address} has no running workers (paused, after 1 s); start some"


def test_workers_that_have_no_memory_left(graph):
    with (
        dask.config.set({"distributed.worker.memory.pause": False}),
        start_cluster(1, processes=False, memory_limit="1 MB") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        [worker] = cluster.scheduler.workers.values()
        assert wait_for(lambda: worker.metrics["memory"] > 10**6)
        message = refused(graph, client, CapacityError)
    assert "on 1 workers needs" in message
    assert "of host memory on one of them, which has 0 GB; no number of workers of that size would do" in message


@pytest.mark.slow
def test_local_workers_that_do_not_end_in_time_are_waited_for():
    """Dask gives the end of a worker 5 s; here it has none, which is as if the machine had too much else to do."""
    with start_local(1, 1) as cluster:
        [nanny] = cluster.workers.values()
        process = psutil.Process(nanny.pid)
        nanny.close_gracefully()  # else it starts another worker
        cluster.sync(nanny.kill, timeout=0)
        assert not process.is_running()


@pytest.mark.slow
def test_connections_that_are_encrypted(graph):
    pytest.importorskip("cryptography", reason="certificates are made with it")
    from distributed.security import Security

    with (
        start_cluster(2, protocol="tls", security=Security.temporary()) as cluster,
        Client(cluster, set_as_default=False) as client,
        graph.distribute(client) as D,
    ):
        assert {member.address.split(":")[0] for member in D.members} == {"tls"}
        wanted = mg.pagerank(graph)
        for drive in ("superstep", "scheduler"):
            solution = mg.pagerank(D, drive=drive)
            assert (solution.digest(), solution.changes) == (wanted.digest(), wanted.changes)
