"""Clusters of a real Slurm and a real SSH server: workers that join, nothing that stays, and starts that fail."""

from __future__ import annotations

import json
import re
import signal
import subprocess

import pytest

from mgspmv.cluster.managers import start_cluster
from mgspmv.cluster.security import use_tls
from mgspmv.errors import ClusterError
from tests.support.certificates import make_certificates
from tests.support.commands import PROGRAM, invoke, invoke_json
from tests.support.slurm import Slurm, needs_slurm, start_slurm
from tests.support.sshd import Server, needs_sshd, serve_ssh
from tests.support.waiting import HANG_S, wait_for

pytestmark = pytest.mark.filterwarnings("ignore:any program that can connect to")
PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
ENDLESS = ("--norm", "fixed", "--max-iter", "100000000")
JOBS = {"cores": 1, "memory": "1GB"}


@pytest.fixture
def graph(tmp_path, monkeypatch) -> str:
    """The digest of the ranks of g.zarr in this folder."""
    monkeypatch.chdir(tmp_path)
    invoke("generate", "rmat", "g.zarr", "--scale", "9", "--edge-factor", "8", "--quiet")
    return str(invoke_json("pagerank", "g.zarr")["digest"])


def name_options(options) -> list[str]:
    return [word for key, value in options.items() for word in ("--cluster-option", f"{key}={json.dumps(value)}")]


def start(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen([*PROGRAM, "pagerank", "g.zarr", *words], **PIPES)


def check_ranks(digest: str, hardware: str, *words: str) -> str:
    """What a command wrote to stderr that ranks the graph on a cluster."""
    with start("--json", *words) as process:
        stdout, stderr = process.communicate(timeout=HANG_S)
    assert process.returncode == 0, stderr
    answer = json.loads(stdout)
    assert (answer["digest"], answer["matrix"]["hardware"]) == (digest, hardware)
    return stderr


def end_on_the_way(number: signal.Signals, *words: str) -> None:
    """Send a signal to a command that iterates on a cluster."""
    with start(*ENDLESS, *words) as process:
        for line in process.stderr:
            if line.startswith("dashboard: "):
                break
        process.send_signal(number)
        said = process.communicate(timeout=HANG_S)
    assert process.returncode == (130 if number == signal.SIGINT else -signal.SIGKILL), said


def refuse(*given, **options) -> str:
    with pytest.raises(ClusterError) as caught, start_cluster(*given, **options):
        pytest.fail("it was started")
    assert "\n" not in str(caught.value)
    assert caught.value.phase == "start"
    return str(caught.value)


@pytest.fixture(scope="module")
def _slurm(tmp_path_factory):
    with start_slurm(tmp_path_factory.mktemp("slurm")) as started:
        yield started


@pytest.fixture
def slurm(_slurm: Slurm, monkeypatch):
    """One that this process uses, and nothing that stays in its queue."""
    for name in ("SLURM_CONF", "PATH", "PYTHONPATH"):
        monkeypatch.setenv(name, _slurm.environment[name])
    yield _slurm
    assert wait_for(lambda: not _slurm.list_jobs()), _slurm.list_jobs()


@needs_slurm
def test_pagerank_in_jobs_of_slurm(slurm, graph):
    words = ("--cluster", "slurm", "--workers", "2", *name_options(JOBS))
    said = check_ranks(graph, "2 workers of 1 thread", *words)
    assert "waiting for 2 workers of dask_jobqueue:SLURMCluster, 600 s at most; check squeue" in said
    assert re.search(r"dashboard: http://127\.0\.0\.1:\d+/pagerank\n", said)
    assert [job for job in slurm.list_jobs() if not job.endswith("COMPLETING")] == []  # which Slurm clears away itself


@needs_slurm
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_job_stays_when_the_command_is_ended(slurm, graph, number):
    end_on_the_way(number, "--cluster", "slurm", "--workers", "1", *name_options(JOBS))


@needs_slurm
def test_jobs_that_encrypt_and_pass_options_on(slurm, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = {
        "cores": 2,
        "processes": 2,
        "memory": "1GB",
        "interface": "lo",
        "job_extra_directives": ["--comment=own"],
    }
    with use_tls(make_certificates(tmp_path / "tls")), start_cluster("slurm", 2, 1, **options) as cluster:
        assert cluster.scheduler_address.startswith("tls://127.0.0.1:")
        assert cluster.dashboard_link.startswith("https://")
        assert [worker["nthreads"] for worker in cluster.scheduler_info["workers"].values()] == [1, 1]
        [job] = slurm.list_jobs()
        asked = slurm.find(int(job.split()[0]))
        assert (asked["Comment"], asked["CPUs/Task"]) == ("own", "2")


@needs_slurm
def test_jobs_that_slurm_refuses(slurm):
    message = refuse("slurm", 1, queue="nowhere", **JOBS)
    assert message.startswith("dask_jobqueue:SLURMCluster does not start: sbatch: error: invalid partition specified:")


@needs_slurm
def test_jobs_that_wait_for_too_long(slurm):
    message = refuse("slurm", 2, queue="closed", wait=1, **JOBS)
    assert message == (
        "2 of 2 workers of dask_jobqueue:SLURMCluster did not join within 1 s (missing: SLURMCluster-0, "
        "SLURMCluster-1); check squeue, and the logs of jobs in the folder of the option log_directory, or increase "
        "the option wait"
    )


@pytest.fixture(scope="module")
def _server(tmp_path_factory):
    pytest.importorskip("asyncssh", reason="asyncssh is not installed, by which Dask uses SSH")
    with serve_ssh(tmp_path_factory.mktemp("ssh")) as server:
        yield server


@pytest.fixture
def server(_server: Server):
    """One that nothing stays of."""
    yield _server
    assert wait_for(lambda: not _server.list_left()), _server.list_left()


@needs_sshd
def test_pagerank_on_hosts(server, graph):
    options = name_options({"connect_options": server.connect_options})
    words = ("--cluster", "ssh", "--cluster-option", "hosts=127.0.0.1,127.0.0.1,127.0.0.1", "--threads", "1", *options)
    check_ranks(graph, "2 workers of 1 thread", *words)


@needs_sshd
def test_no_worker_stays_on_hosts_when_the_command_is_interrupted(server, graph):
    options = {"hosts": ["127.0.0.1"] * 2, "connect_options": server.connect_options}
    end_on_the_way(signal.SIGINT, "--cluster", "ssh", *name_options(options))


@needs_sshd
def test_hosts_that_encrypt(server, tmp_path):
    options = {"hosts": ["127.0.0.1"] * 2, "connect_options": server.connect_options}
    options |= {"worker_options": {"n_workers": 2, "nthreads": 3}}
    with use_tls(make_certificates(tmp_path / "tls")), start_cluster("ssh", **options) as cluster:
        assert cluster.scheduler_address.startswith("tls://")
        assert [worker["nthreads"] for worker in cluster.scheduler_info["workers"].values()] == [3, 3]


@needs_sshd
def test_hosts_that_do_not_start_workers(server):
    hosts, connect = ["127.0.0.1"] * 2, server.connect_options
    message = refuse("ssh", hosts=hosts, connect_options=connect, remote_python="/no/python")
    assert message.startswith("distributed:SSHCluster does not start: ")
    message = refuse("ssh", hosts=hosts, connect_options=connect | {"client_keys": [str(server.folder / "host")]})
    assert "Permission denied" in message
    message = refuse("ssh", hosts=hosts, connect_options=connect | {"known_hosts": str(server.folder / "own.pub")})
    assert "Host key is not trusted" in message
