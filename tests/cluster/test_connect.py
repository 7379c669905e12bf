"""Reaching a cluster: what is taken for one, clusters that cannot be used, and connections that are encrypted.

Starting workers on the GPUs of a machine, which are played here.
"""

from __future__ import annotations

import asyncio
import json
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import dask
import psutil
import pytest
from distributed import Client

import mgspmv as mg
from mgspmv.cluster import connect
from mgspmv.cluster.connect import has_devices, start_cuda, start_local
from mgspmv.cluster.security import use_tls
from mgspmv.errors import CapacityError, ClusterError, MissingDependencyError, OptionError, SchedulerNotFoundError
from tests.support.certificates import make_certificates
from tests.support.clusters import start_cluster
from tests.support.waiting import wait_for


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return mg.generate("uniform", tmp_path_factory.mktemp("connect") / "graph.zarr", n_vertices=300, n_edges=2000)


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


MORE = "start some, or increase timeout= if an adaptive cluster takes longer to start them"


def test_workers_that_are_full(graph):
    """Dask pauses a worker whose process has more memory than it was given."""
    with (
        start_cluster(1, processes=False, memory_limit="1 MB") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        [worker] = cluster.scheduler.workers.values()
        assert wait_for(lambda: worker.status.name == "paused")
        message = refused(graph, client, ClusterError, timeout=1)
    assert message == f"{cluster.scheduler_address} has no running workers (paused, after 1 s); {MORE}"


def test_workers_that_have_no_memory_left(graph):
    with (
        dask.config.set({"distributed.worker.memory.pause": False}),
        start_cluster(1, processes=False, memory_limit="1 MB") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        [worker] = cluster.scheduler.workers.values()
        assert wait_for(lambda: worker.metrics["memory"] > 10**6)
        message = refused(graph, client, CapacityError)
    assert "on 1 worker needs" in message
    assert "of host memory on one of them, which has 0 B; no number of workers of that size suffices" in message


def test_the_file_of_a_scheduler(graph, client, tmp_path):
    (tmp_path / "scheduler.json").write_text(json.dumps({"address": client.scheduler.address}))
    with graph.distribute(str(tmp_path / "scheduler.json")) as D:
        assert D.members
    for text in ("", "[]", "{}"):
        (tmp_path / "other.json").write_text(text)
        message = refused(graph, str(tmp_path / "other.json"), OptionError)
        assert message.startswith(f"{tmp_path / 'other.json'} is not a scheduler file (")
        assert message.endswith("; pass a file written by `dask scheduler --scheduler-file`, or the address")


def test_more_workers_than_memory(monkeypatch):
    monkeypatch.setattr(connect, "free_memory", lambda: 10**9)
    with pytest.raises(CapacityError) as caught:
        start_local(6, 1)
    assert str(caught.value) == (
        "6 workers take 1.2 GB before they hold rows, and this machine has 1 GB free; start 5 at most"
    )


def test_addresses_where_nobody_can_listen():
    for host, why in (("192.0.2.77", "Cannot assign requested address"), ("nowhere.invalid", "not known")):
        with pytest.raises(ClusterError, match=f"^the scheduler cannot listen at {host}: .*{why}; choose another port"):
            start_local(1, 1, host=host)


@pytest.mark.slow
def test_local_workers_that_do_not_end_in_time_are_waited_for():
    """Dask gives the end of a worker 5 s; here it has none, which is as if the machine had too much else to do."""
    with start_local(1, 1) as cluster:
        [nanny] = cluster.workers.values()
        process = psutil.Process(nanny.pid)
        nanny.close_gracefully()  # else it starts another worker
        cluster.sync(nanny.kill, timeout=0)
        assert not process.is_running()


# --- GPUs of this machine --------------------------------------------------------------------------------------------


def play_module(monkeypatch, name, **attributes):
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    vars(module).update(attributes)
    monkeypatch.setitem(sys.modules, name, module)


class PlayedDriver:
    """What NVML says of this machine."""

    class NVMLError(Exception):
        pass

    class NotFoundError(NVMLError):
        def __str__(self):
            return "NVML Shared Library Not Found"

    def __init__(self, n_devices):
        self.n_devices, self.is_begun = n_devices, False

    def nvmlInit(self):
        if self.n_devices is None:
            raise self.NotFoundError
        self.is_begun = True

    def nvmlDeviceGetCount(self):
        assert self.is_begun
        return self.n_devices


def play_driver(monkeypatch, n_devices):
    driver = PlayedDriver(n_devices)
    names = ("NVMLError", "nvmlInit", "nvmlDeviceGetCount")
    play_module(monkeypatch, "pynvml", **{name: getattr(driver, name) for name in names})


class PlayedCluster:
    pass


@pytest.fixture
def started(monkeypatch):
    """What clusters of GPU workers are started with, on a machine of 4 GPUs and 12 processors."""
    calls = []
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    play_driver(monkeypatch, 4)
    play_module(monkeypatch, "dask_cuda", LocalCUDACluster=PlayedCluster)
    monkeypatch.setitem(sys.modules, "distributed_ucxx", None)
    monkeypatch.setattr(connect, "default_threads", lambda: 12)
    monkeypatch.setattr(connect, "_start", lambda kind, **given: calls.append((kind, given)) or "started")
    return calls


@pytest.mark.parametrize(
    ("asked", "n_workers", "threads"),
    [
        ({}, 4, 3),
        ({"n_workers": 1}, 1, 12),
        ({"n_workers": 3}, 3, 4),
        ({"n_workers": 2, "threads": 5}, 2, 5),
        ({"threads": 1}, 4, 1),
    ],
)
def test_a_worker_for_each_device_that_share_the_processors(started, asked, n_workers, threads):
    assert start_cuda(**asked) == "started"
    [(kind, given)] = started
    assert kind is PlayedCluster
    assert given == {
        "n_workers": n_workers,
        "threads_per_worker": threads,
        "device_memory_limit": None,
        "protocol": "tcp",
    }


def test_what_is_preloaded_is_so_on_devices_too(monkeypatch, tmp_path):
    """As for pages that ask for a certificate: dask-cuda would preload its own module in place of it."""
    given = {}
    play_driver(monkeypatch, 4)
    play_module(monkeypatch, "dask_cuda", LocalCUDACluster=lambda **options: given.update(options))
    with use_tls(make_certificates(tmp_path / "tls")):
        start_cuda()
    assert given["preload"] == ["mgspmv.cluster.security"]


@pytest.mark.parametrize(
    ("visible", "n_workers"),
    [
        ("0,1", 2),
        ("3", 1),
        (" 2, GPU-8ab3f3d8 ,", 2),
        ("0,1,2,3", 4),
        (None, 4),
        ("1,9,2", 1),
        ("1,-1,2", 1),
        ("0,0", 1),
    ],
)
def test_devices_that_are_visible_have_workers(started, monkeypatch, visible, n_workers):
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    start_cuda()
    assert started[0][1]["n_workers"] == n_workers
    with pytest.raises(ClusterError, match=f"this machine has {n_workers} GPUs; request 1 to {n_workers}$"):
        start_cuda(n_workers + 1)


@pytest.mark.parametrize("visible", ["", " ", ",", "-1", "4,0"])
def test_no_device_is_visible(started, monkeypatch, visible):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(ClusterError) as caught:
        start_cuda(1)
    assert str(caught.value) == (
        f"there is no GPU on this machine for workers: CUDA_VISIBLE_DEVICES={visible!r} selects none of "
        "its 4; use cluster='local', or a machine with GPUs"
    )
    assert caught.value.phase == "start"
    assert started == []


def test_a_driver_that_gives_no_device_is_told_of(started, monkeypatch, tmp_path):
    play_driver(monkeypatch, None)
    (tmp_path / "version").write_text("580")
    monkeypatch.setattr(connect, "DRIVER", tmp_path / "version")
    with pytest.warns(UserWarning, match=r"driver is loaded, but no GPU can be used \(.*\): workers use processors"):
        assert not has_devices()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # somebody wants none
    assert not has_devices()


def test_no_driver(started, monkeypatch):
    play_driver(monkeypatch, None)
    with pytest.raises(ClusterError) as caught:
        start_cuda()
    assert str(caught.value) == (
        "there is no GPU on this machine for workers: NVIDIA's driver finds none (NVML Shared Library Not Found); use "
        "cluster='local', or a machine with GPUs"
    )
    assert caught.value.phase == "start"
    assert isinstance(caught.value.__cause__, PlayedDriver.NVMLError)
    assert started == []


def test_dask_cuda_is_missing(started, monkeypatch):
    monkeypatch.setitem(sys.modules, "dask_cuda", None)
    with pytest.raises(MissingDependencyError) as caught:
        start_cuda()
    assert str(caught.value) == (
        "a cluster of GPU workers needs dask-cuda, which is not installed; install mgspmv[cuda12] or mgspmv[cuda13]"
    )
    assert started == []


def test_ucx_needs_what_dask_knows_it_by(started, monkeypatch):
    with pytest.raises(MissingDependencyError) as caught:
        start_cuda(protocol="ucxx")
    assert str(caught.value) == (
        "protocol='ucxx' needs distributed-ucxx, which is not installed; install mgspmv[ucxx12] or mgspmv[ucxx13]"
    )
    assert started == []
    play_module(monkeypatch, "distributed_ucxx")
    start_cuda(protocol="ucxx")
    assert started[0][1]["protocol"] == "ucxx"


def test_a_cluster_that_does_not_start():
    given = {}

    def make(**options):
        given.update(options)
        raise RuntimeError("Cluster failed to start") from MemoryError("no memory on GPU 1")

    with pytest.raises(ClusterError, match="a worker of the local cluster did not start: no memory on GPU 1") as caught:
        connect._start(make, n_workers=2, device_memory_limit=None)
    assert caught.value.phase == "start"
    assert {"n_workers": 2, "device_memory_limit": None, "memory_limit": 0}.items() <= given.items()
    assert given["worker_class"] is connect.PatientNanny


@pytest.mark.parametrize("is_of_workers", [False, True])
def test_options_that_the_class_does_not_take(is_of_workers):
    def make(**options):
        try:
            raise TypeError("unexpected argument")
        except TypeError as error:
            if is_of_workers:
                raise RuntimeError("Nanny failed to start") from error
            raise

    with pytest.raises(OptionError, match="invalid options of the local cluster: unexpected argument"):
        connect._start(make)
