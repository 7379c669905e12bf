"""`--cluster slurm` and `pbs`: workers in jobs, by a Slurm of the tests' own, and nothing that stays in its queue.

PBS is played by programs of these names, which run jobs as processes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from mgspmv.cli.mode import say
from mgspmv.distribute import jobs
from mgspmv.distribute.jobs import KEYS, Job, parse_job, start_jobs
from mgspmv.distribute.tls import make_certificates, use_tls
from mgspmv.errors import ClusterError, MissingDependencyError, OptionError
from tests.support.commands import ENVIRONMENT, PROGRAM, TINY_RMAT, invoke, invoke_json
from tests.support.slurm import Slurm, needs_slurm, start_slurm
from tests.support.waiting import HANG_S, wait_for

PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
ENDLESS = ("--tol-mode", "fixed", "--max-iter", "100000000")


# --- what is asked for -----------------------------------------------------------------------------------------------


def test_what_a_job_asks_for():
    given = ["queue=gpu", "cores=8", "memory=64GB", "gpus=4", "directive=--constraint=a100", "directive=--qos low"]
    wanted = Job("gpu", cores=8, memory=64 * 10**9, gpus=4, directives=("--constraint=a100", "--qos low"))
    assert parse_job(given) == wanted
    assert parse_job(["wait=60", "interface=ib0", "protocol=ucxx", "walltime=01:00:00", "account=a"]) == Job(
        account="a", walltime="01:00:00", interface="ib0", protocol="ucxx", wait=60
    )
    assert parse_job([]) == Job()


WRONG_JOBS = [
    (["partition=gpu"], f"job 'partition=gpu': wanted KEY=VALUE, where KEY is one of {', '.join(KEYS)}"),
    (["queue"], "job 'queue': wanted KEY=VALUE"),
    (["queue="], "job 'queue=': wanted KEY=VALUE"),
    (["gpus=0"], "job gpus=0: wanted a number from 1 on"),
    (["cores=two"], "job cores=two: wanted a number from 1 on"),
    (["memory=much"], "much"),
    (["protocol=ib"], "job protocol=ib: wanted tcp or ucxx"),
    (["queue=a", "queue=b"], "job 'queue=b': queue is given twice"),
    (["directive=a\nb"], "a value is one line"),
]


def test_jobs_that_are_refused():
    for given, message in WRONG_JOBS:
        with pytest.raises(OptionError) as caught:
            parse_job(given)
        assert message in str(caught.value)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--cluster", "slurm"], "--cluster slurm and pbs start workers in jobs of --nodes N; give both or neither"),
        (["--cluster", "local", "--nodes", "2"], "--cluster slurm and pbs start workers in jobs of --nodes N"),
        (["--cluster", "local", "--job", "gpus=1"], "--job is what jobs of --cluster slurm or pbs ask for"),
        (["--cluster", "slurm", "--nodes", "1", "--job", "gpu=1"], "job 'gpu=1': wanted KEY=VALUE"),
        (["--cluster", "pbs", "--nodes", "1", "--tls", "temporary"], "do not have certificates that are made here"),
    ],
)
def test_options_that_are_refused(args, message):
    invoke(*TINY_RMAT, "--quiet")
    for command in ("pagerank", "plan"):
        assert message in invoke(command, "r.zarr", *args, code=2)[1], command


def test_what_is_not_installed(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingDependencyError, match="queued by qsub, which is not on this machine"):
        enter("pbs", 1, Job())
    monkeypatch.setattr(jobs.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        MissingDependencyError, match=r"dask-jobqueue, which is not installed; install mgspmv\[jobqueue"
    ):
        enter("slurm", 1, Job())


def test_pipelines_in_jobs(monkeypatch):
    asked = []

    def start(*given):
        asked.append(given)
        raise ClusterError("Slurm refuses the job")

    monkeypatch.setattr(jobs, "start_jobs", start)
    invoke(*TINY_RMAT, "--quiet")
    text = (
        '[cluster]\nkind = "slurm"\nnodes = 2\njob = ["queue=gpu", "gpus=4"]\nthreads = 1\n'
        '[matrix.web]\nopen = "r.zarr"\n[run.plain]\nmatrix = "web"\n'
    )
    Path("p.toml").write_text(text)
    assert invoke("run", "p.toml", code=7) == ("", "error: web/plain: Slurm refuses the job\n")
    assert asked == [("slurm", 2, Job("gpu", gpus=4), None, 1, None, say)]
    for right, wrong, message in (
        ("nodes = 2\n", "", "cluster.nodes: how many jobs goes with kind"),
        ('"gpus=4"', '"gpus=0"', "cluster.job: job gpus=0: wanted a number from 1 on"),
        ("threads = 1", 'tls = "temporary"', "cluster.tls: hosts do not have certificates"),
    ):
        Path("p.toml").write_text(text.replace(right, wrong))
        assert message in invoke("run", "p.toml", code=2)[1]


def enter(*given, **options) -> None:
    with start_jobs(*given, **options):
        pytest.fail("it was started")


# --- Slurm -----------------------------------------------------------------------------------------------------------


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
    assert not list(Path(os.environ["MGSPMV_STATE"]).glob("jobs-*"))


def start(*args: str) -> subprocess.Popen[str]:
    return subprocess.Popen([*PROGRAM, *args], **PIPES)


@needs_slurm
def test_pagerank_on_two_nodes(slurm):
    invoke("generate", "rmat", "g.zarr", "--scale", "9", "--edge-factor", "8", "--quiet")
    with start("pagerank", "g.zarr", "--cluster", "slurm", "--nodes", "2", "--threads", "1", "--json") as process:
        stdout, stderr = process.communicate(timeout=HANG_S)
    assert process.returncode == 0, stderr
    answer = json.loads(stdout)
    assert answer["digest"] == invoke_json("pagerank", "g.zarr")["digest"]
    assert answer["matrix"]["hardware"] == "2 workers of 1 threads"
    assert "waiting for 2 of 2 workers, jobs of Slurm: " in stderr
    assert slurm.list_jobs() == []


@needs_slurm
@pytest.mark.filterwarnings("ignore:whoever reaches")
def test_what_jobs_wait_for_is_told_until_workers_join(slurm, tmp_path):
    """Workers of these jobs begin when it was told that both run, which may be said late."""
    python, may_begin, told = tmp_path / "python", tmp_path / "may_begin", []
    python.write_text(f'#!/bin/sh\nwhile [ ! -e {may_begin} ]; do sleep 0.1; done\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)

    def hear(text):
        told.append(text)
        if text == "waiting for 2 of 2 workers, jobs of Slurm: 2 RUNNING":
            may_begin.touch()

    with start_jobs("slurm", 2, Job(wait=HANG_S), threads=1, python=str(python), on_wait=hear) as cluster:
        assert len(cluster.scheduler.workers) == 2
    assert all(text.startswith("waiting for 2 of 2 workers, jobs of Slurm: ") for text in told[:-1])
    assert all(before != after for before, after in pairwise(told))


@needs_slurm
def test_a_partition_that_there_is_not_is_one_line(slurm):
    invoke(*TINY_RMAT, "--quiet")
    options = ("--cluster", "slurm", "--nodes", "2", "--job", "queue=nowhere")
    [*_, line] = invoke("pagerank", "r.zarr", *options, code=7)[1].splitlines()
    assert line.startswith("error: Slurm refuses the job: invalid partition specified: nowhere / ")
    assert line.endswith("; correct --job, or what jobqueue.yaml of Dask has")


@needs_slurm
@pytest.mark.filterwarnings("ignore:whoever reaches")
def test_jobs_that_end_before_workers_join(slurm):
    with pytest.raises(ClusterError, match=r"job \d+ of Slurm ended before its workers joined \(said: .*/no/python"):
        enter("slurm", 1, Job(), python="/no/python")


@needs_slurm
@pytest.mark.filterwarnings("ignore:whoever reaches")
def test_jobs_that_wait_for_long(slurm):
    told = []
    message = (
        "after 1 s still waiting for 1 of 1 workers, jobs of Slurm: 1 PENDING .*Partition.*so the jobs are cancelled"
    )
    with pytest.raises(ClusterError, match=message):
        enter("slurm", 1, Job(queue="closed", wait=1), on_wait=told.append)
    assert told[-1].startswith("waiting for 1 of 1 workers, jobs of Slurm: 1 PENDING")


@needs_slurm
def test_jobs_that_encrypt(slurm, tmp_path):
    make_certificates(tmp_path / "certificates")
    job = Job(cores=2, memory=10**9, interface="lo", directives=("--comment=mine",))
    with use_tls(tmp_path / "certificates"), start_jobs("slurm", 1, job, 2) as cluster:
        assert cluster.scheduler_address.startswith("tls://127.0.0.1:")
        assert [worker.nthreads for worker in cluster.scheduler.workers.values()] == [1, 1]
        [own] = slurm.list_jobs()
        asked = slurm.find(int(own.split()[0]))
        assert (asked["Comment"], asked["CPUs/Task"], asked["MinMemoryNode"]) == ("mine", "2", "954M")


@needs_slurm
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_job_stays_when_the_command_is_ended(slurm, number):
    invoke(*TINY_RMAT, "--quiet")
    with start("pagerank", "r.zarr", "--cluster", "slurm", "--nodes", "1", *ENDLESS) as process:
        for line in process.stderr:
            if line.startswith("dashboard: "):
                break
        assert len(slurm.list_jobs()) == 1
        process.send_signal(number)
        said = process.communicate(timeout=HANG_S)
    assert process.returncode == (130 if number == signal.SIGINT else -signal.SIGKILL), said
    for left in Path(os.environ["MGSPMV_STATE"]).glob("jobs-*") if number == signal.SIGKILL else []:
        subprocess.run(["rm", "-rf", left])


# --- PBS, played -----------------------------------------------------------------------------------------------------

PLAYED = {
    "qsub": 'cp "$1" job; logs=$(sed -n "s/^#PBS -o //p" job)\n'
    'setsid bash -c \'exec bash job > "$0/mgspmv.o$$" 2>&1\' "$logs" > /dev/null 2>&1 & echo "$!.played"',
    "qdel": 'kill -s TERM -- "-${1%%.*}"',
    "qstat": 'kill -0 "${1%%.*}" 2> /dev/null || { echo "qstat: Unknown Job Id $1" >&2; exit 153; }\n'
    'echo "Job id  Name  User  Time Use S Queue"; echo "$1  mgspmv  me  00:00:01 R main"',
}
"""What each program does with the id of a job, which is that of its process."""


@pytest.fixture
def pbs(tmp_path, monkeypatch):
    for name, text in PLAYED.items():
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/bash\n{text}\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", ENVIRONMENT["PYTHONPATH"])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:whoever reaches")
def test_pbs(pbs, tmp_path):
    told = []
    job = Job("gpu", account="a", cores=2, memory=10**9, directives=("-M me@example.org",))
    with start_jobs("pbs", 1, job, on_wait=told.append) as cluster:
        assert [worker.nthreads for worker in cluster.scheduler.workers.values()] == [2]
    said = (tmp_path / "job").read_text().splitlines()
    wanted = ["-q gpu", "-A a", "-l select=1:ncpus=2:mem=954mb", "-M me@example.org"]
    assert set(said) >= {f"#PBS {directive}" for directive in wanted}
    assert told == ["waiting for 1 of 1 workers, jobs of PBS: 1 RUNNING"]
    with pytest.raises(ClusterError, match=r"job \d+ of PBS ended before its workers joined \(said: .*/no/python"):
        enter("pbs", 1, job, python="/no/python")
    with pytest.raises(OptionError, match="PBS must be told what a node has: give cores and memory of the job"):
        enter("pbs", 1, Job())


def test_gpus_of_jobs(pbs, tmp_path, monkeypatch):
    """What is asked for them; there are none here."""
    monkeypatch.setattr(jobs, "_await_joined", lambda *given: None)
    with start_jobs("pbs", 1, Job(cores=8, memory=10**10, gpus=4, interface="lo")) as cluster:
        script = cluster.job_script()
    assert "#PBS -l select=1:ncpus=8:mem=9537mb:ngpus=4" in script
    assert " -m dask_cuda.cli tcp://127.0.0.1:" in script
    assert "--device-memory-limit 0" in script
    assert "--nworkers" not in script
    assert "--preload" not in script
    make_certificates(tmp_path / "tls")
    job = Job(cores=8, memory=10**10, gpus=4, interface="lo")
    with use_tls(tmp_path / "tls"), start_jobs("pbs", 1, job) as cluster:
        assert " --preload mgspmv.distribute.tls" in cluster.job_script()
    with pytest.raises(OptionError, match="each of the 4 GPUs of a node has a worker, so there cannot be 2"):
        enter("pbs", 1, Job(cores=8, memory=10**10, gpus=4), 2)


@pytest.mark.gpu
def test_a_job_that_has_a_gpu(pbs):
    invoke(*TINY_RMAT, "--quiet")
    wanted = invoke_json("pagerank", "r.zarr")["digest"]
    job = [word for said in ("gpus=1", "cores=4", "memory=8GB", "interface=lo") for word in ("--job", said)]
    answer = invoke_json("pagerank", "r.zarr", "--cluster", "pbs", "--nodes", "1", *job)
    assert (answer["digest"], answer["matrix"]["transport"]) == (wanted, "nccl")
