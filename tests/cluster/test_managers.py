"""Starting clusters by classes of Dask: what these are given, what is waited for, and an end whatever happens."""

from __future__ import annotations

import inspect
import logging
import sys
from types import ModuleType

import dask
import pytest
from distributed import Client, LocalCluster

import mgspmv as mg
from mgspmv.cluster import managers
from mgspmv.cluster.managers import MANAGERS, load, start_cluster
from mgspmv.cluster.security import use_tls
from mgspmv.errors import ClusterError, MissingDependencyError, OptionError
from tests.support.certificates import make_certificates

HERE = "tests.cluster.test_managers"
IN_PROCESS = {"processes": False, "dashboard_address": None}


class Closing(LocalCluster):
    """A class of a user's own, which tells of its end."""

    closed: list[str] = []  # noqa: RUF012

    def close(self, *given):
        self.closed.append("closed")
        return super().close(*given)


class Failing(LocalCluster):
    def __init__(self, name="failing"):
        raise RuntimeError("Cluster failed to start") from OSError("no room")


def refuse(error, *given, **options):
    with pytest.raises(error) as caught, start_cluster(*given, **options):
        pytest.fail("it was started")
    return str(caught.value)


@pytest.fixture
def closed(monkeypatch):
    monkeypatch.setattr(Closing, "closed", [])
    return Closing.closed


def test_a_class_is_given_its_options_and_scaled(closed):
    told = []
    with start_cluster(f"{HERE}:Closing", 3, on_note=told.append, name="own", n_workers=1, **IN_PROCESS) as cluster:
        assert isinstance(cluster, Closing)
        assert (cluster.name, len(cluster.scheduler_info["workers"])) == ("own", 3)
    assert "closed" in closed
    assert told == [f"waiting for 3 workers of {HERE}:Closing, 120 s at most; check the logs of its workers"]


def test_it_is_closed_after_an_error_and_an_interrupt(closed):
    for error in (ValueError, KeyboardInterrupt):
        with pytest.raises(error), start_cluster(f"{HERE}:Closing", n_workers=1, **IN_PROCESS):
            raise error
        assert closed
        closed.clear()


def test_workers_that_do_not_come(closed):
    message = refuse(ClusterError, f"{HERE}:Closing", n_workers=0, wait=0.1, **IN_PROCESS)
    assert message == (
        f"1 of 1 workers of {HERE}:Closing did not join within 0.1 s; check the logs of its workers, or increase the "
        "option wait"
    )
    assert closed


def test_starts_that_fail():
    message = refuse(ClusterError, f"{HERE}:Failing")
    assert message == f"{HERE}:Failing does not start: no room; check the logs of its workers"
    message = refuse(OptionError, f"{HERE}:Failing", size=3)
    assert message.startswith(f"{HERE}:Failing rejects its options: ")
    assert message.endswith("got an unexpected keyword argument 'size'")
    message = refuse(OptionError, "distributed:LocalCluster", security="none", **IN_PROCESS)
    assert message == "distributed:LocalCluster rejects its options: security must be a Security object"


def test_names_that_are_not_known():
    message = refuse(OptionError, "collections:OrderedDict", 2)
    assert "is not a cluster class of Dask: it has no scheduler_address, scale, wait_for_workers, close" in message
    message = refuse(OptionError, "lokal")
    assert message == (
        "cluster must be one of local, cuda, slurm, pbs, ssh, kubernetes, or module:Class of a Dask cluster class, not "
        "'lokal'"
    )
    assert refuse(MissingDependencyError, "no_such:Class").startswith("no_such:Class cannot be imported: No module")
    assert "no attribute 'NoClass'" in refuse(MissingDependencyError, "distributed:NoClass")


def test_options_that_a_class_does_not_take():
    for kind, options in (("slurm", {"workers": 2, "cores": 1, "memory": "1GB"}), ("ssh", {"hosts": "a,b"})):
        message = refuse(OptionError, kind, **options, size=1)
        assert " rejects its options: " in message
        assert "unexpected keyword argument 'size'" in message
    assert refuse(OptionError, "local", wait=0) == "the option wait must be a positive number, not 0"
    assert refuse(OptionError, "slurm", 1, gpus="all") == "the option gpus must be a positive number, not 'all'"


def test_numbers_of_workers():
    assert "needs the number of workers; pass workers=" in refuse(OptionError, "slurm", cores=1, memory="1GB")
    message = refuse(OptionError, "pbs", 6, gpus=4, cores=1, memory="1GB")
    assert message == "workers=6 is not a multiple of gpus, 4; each GPU has one worker"
    for given in ({"hosts": "a"}, {}):
        assert "pass the option hosts, such as a,a,b" in refuse(OptionError, "ssh", **given)
    assert "leave out workers=" in refuse(OptionError, "ssh", 2, hosts="a,b")


def test_packages_that_are_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "dask_jobqueue", None)
    message = refuse(MissingDependencyError, "slurm", 1)
    assert message.startswith("dask_jobqueue:SLURMCluster cannot be imported: import of dask_jobqueue halted")
    assert message.endswith("; install mgspmv[jobqueue]")
    monkeypatch.setitem(sys.modules, "asyncssh", None)
    assert "requires the `asyncssh` package to be installed" in refuse(ClusterError, "ssh", hosts="a,b")


@pytest.mark.slow
def test_local_workers_with_options_of_the_class():
    with start_cluster("local", 1, 2, name="own", local_directory=None) as cluster, Client(cluster) as client:
        [worker] = client.scheduler_info()["workers"].values()
        assert (cluster.name, worker["nthreads"], worker["memory_limit"]) == ("own", 2, 0)
        assert cluster.scheduler_address.startswith("tcp://127.0.0.1:")
        assert cluster.dashboard_link.startswith("http://127.0.0.1:")


@pytest.fixture
def queued(monkeypatch):
    """Clusters whose jobs are not queued."""
    monkeypatch.setattr(managers, "_scale", lambda *given: None)
    monkeypatch.setattr(managers, "_await_workers", lambda *given: None)


def test_a_worker_for_each_gpu_of_jobs(queued, tmp_path):
    asked = {"cores": 8, "memory": "10GB", "gpus": 4, "interface": "lo", "worker_extra_args": ["--lifetime", "1h"]}
    with start_cluster("slurm", 8, 2, walltime="01:00:00", job_extra_directives=["--qos=low"], **asked) as cluster:
        script = cluster.job_script()
    for words in ("--gpus-per-node=4", "--qos=low", "-t 01:00:00"):
        assert f"#SBATCH {words}\n" in script
    assert " -m dask_cuda.cli tcp://127.0.0.1:" in script
    assert "--lifetime 1h --memory-limit 0 --no-dashboard --dashboard-address 127.0.0.1:0 --nthreads 2 " in script
    assert "--device-memory-limit 0" in script
    assert "--preload" not in script
    spec = "select=1:ncpus=8:mem=10gb:ngpus=4"
    encrypted = use_tls(make_certificates(tmp_path / "tls"))
    with encrypted, start_cluster("pbs", 4, resource_spec=spec, **asked) as cluster:
        script = cluster.job_script()
    assert f"#PBS -l {spec}\n" in script
    assert " --preload mgspmv.cluster.security" in script
    assert f"export DASK_DISTRIBUTED__COMM__TLS__WORKER__KEY={tmp_path}/tls/key.pem\n" in script
    assert f"--tls-cert {tmp_path}/tls/cert.pem" in script


def test_dask_configures_jobs_too(queued):
    with (
        dask.config.set({"jobqueue.slurm.cores": 2, "jobqueue.slurm.memory": "1GB", "jobqueue.slurm.queue": "night"}),
        dask.config.set({"jobqueue.slurm.job-script-prologue": ["module load x"], "jobqueue.slurm.interface": "lo"}),
        start_cluster("slurm", 2) as cluster,
    ):
        script = cluster.job_script()
    assert "#SBATCH -p night\n" in script
    assert "\nmodule load x\n" in script


def prepare(kind, workers=None, threads=None, gpus=None, **options):
    given, wanted = MANAGERS[kind].prepare(kind, workers, threads, gpus, options)
    assert {*given} <= {*inspect.signature(load(MANAGERS[kind].target)).parameters} | {"silence_logs"}
    return given, wanted


def test_hosts():
    given, wanted = prepare("ssh", threads=3, hosts="a, b,c", connect_options={"port": 23}, remote_python="/p")
    assert wanted == 2
    assert given == {
        "hosts": ["a", "b", "c"],
        "remote_python": "/p",
        "connect_options": {"connect_timeout": 15, "keepalive_interval": 15, "port": 23},
        "worker_options": {"memory_limit": 0, "dashboard_address": "127.0.0.1:0", "death_timeout": 60, "nthreads": 3},
        "scheduler_options": {"port": 0, "dashboard_address": "127.0.0.1:8787"},
        "silence_logs": logging.CRITICAL,
    }
    several = [{"port": 1}, {"port": 2, "connect_timeout": 1}]
    given, wanted = prepare("ssh", hosts=["a", "b"], connect_options=several, worker_options={"n_workers": 5})
    assert wanted == 5
    assert [own["connect_timeout"] for own in given["connect_options"]] == [15, 1]


def test_a_worker_for_each_gpu_of_hosts_and_pods(tmp_path):
    with use_tls(make_certificates(tmp_path / "tls")):
        given, wanted = prepare("ssh", gpus=4, hosts="a,b,c")
    assert (wanted, given["worker_class"]) == (8, "dask_cuda.CUDAWorker")
    assert given["worker_options"]["device_memory_limit"] == 0
    assert given["worker_options"]["preload"] == ["mgspmv.cluster.security"]
    assert given["scheduler_options"]["dashboard_address"] == ":8787"
    given, wanted = prepare("kubernetes", 4, 8, gpus=2, image="own:1")
    assert (wanted, given["n_workers"], given["image"]) == (4, 2, "own:1")
    command = "dask cuda worker --device-memory-limit 0 --memory-limit 0 --nthreads 8"
    assert given["worker_command"] == command.split()
    assert prepare("kubernetes", 2)[0]["worker_command"] == ["dask", "worker", "--memory-limit", "0"]


@pytest.mark.gpu
def test_a_gpu_of_this_machine(tmp_path):
    graph = mg.generate("rmat", tmp_path / "g.zarr", scale=9, seed=1)
    with start_cluster("cuda", 1) as cluster, Client(cluster) as client:
        solution = mg.pagerank(graph.on(client))
    assert solution.digest() == mg.pagerank(graph.on("cpu")).digest()
    assert solution.matrix["transport"] in ("nccl", "ipc")


def test_dask_jobqueue_does_not_take_interrupts(monkeypatch):
    import signal

    module = ModuleType("taking")
    before = signal.getsignal(signal.SIGINT)

    def take(name):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        module.Class = object
        return module

    monkeypatch.setattr(managers.importlib, "import_module", take)
    assert load("taking:Class") is object
    assert signal.getsignal(signal.SIGINT) is before
