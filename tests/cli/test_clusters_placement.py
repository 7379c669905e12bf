"""`mgspmv pagerank` and `spmv` on clusters: the embedded results, and nothing but the answer on stdout."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest

import mgspmv.cluster.connect
from mgspmv.batch_results import load_batch
from mgspmv.cli.clusters import parse_setting, quieten_dask
from mgspmv.cli.output import shorten_warnings
from mgspmv.kernels import device
from mgspmv.results import load_solution
from tests.support.clusters import find_left
from tests.support.commands import ENVIRONMENT, invoke, invoke_json, start
from tests.support.ports import find_free_port
from tests.support.waiting import HANG_S, wait_for

DASHBOARD = re.compile(r"dashboard: https?://\S+:\d+/pagerank\n")
ENDLESS = ("--norm", "fixed", "--max-iter", "100000000")
PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}


@pytest.fixture(scope="module")
def stores(tmp_path_factory) -> Path:
    """A folder with a graph, and with a matrix and its x."""
    folder = tmp_path_factory.mktemp("stores")
    invoke("generate", "rmat", str(folder / "g.zarr"), "--scale", "9", "--edge-factor", "8")
    invoke("generate", "stencil2d", str(folder / "a.zarr"), "--nx", "20", "--ny", "30")
    np.save(folder / "x.npy", np.random.default_rng(5).normal(size=600))
    return folder


@pytest.fixture(autouse=True)
def folder(stores, tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "150")
    for store in stores.iterdir():
        Path(store.name).symlink_to(store)
    return tmp_path


@pytest.mark.slow
def test_pagerank_on_local_workers(folder):
    embedded = invoke_json("pagerank", "g.zarr", "-o", "e.zarr")
    on_cluster = ("--cluster", "local", "--workers", "2", "--threads", "1")
    log = ("--log", "log.jsonl", "--debug")
    with start("pagerank", "g.zarr", "-o", "c.zarr", "--json", *on_cluster, *log, **PIPES) as process:
        stdout, stderr = process.communicate(timeout=HANG_S)
    assert process.returncode == 0, stderr
    answer = json.loads(stdout)
    assert DASHBOARD.fullmatch(stderr)
    assert (answer["options"]["executor"], embedded["options"]["executor"]) == ("supersteps", "embedded")
    assert answer["matrix"]["hardware"] == "2 workers of 1 thread"
    assert answer["digest"] == embedded["digest"]
    assert load_solution("c.zarr").values.tobytes() == load_solution("e.zarr").values.tobytes()
    assert answer["changes"] == embedded["changes"]
    assert answer["top"] == embedded["top"]
    lines = [json.loads(line) for line in Path("log.jsonl").read_text().splitlines()]
    iterations = [line for line in lines if "change" in line]
    assert [line["change"] for line in iterations] == answer["changes"]
    assert {len(line["product_s"]) for line in iterations} == {2}


@pytest.mark.parametrize("executor", ["auto", "tasks", "supersteps"])
def test_pagerank_on_a_running_cluster(cluster, client, executor):
    embedded = invoke_json("pagerank", "g.zarr")
    on_cluster = ("--scheduler", cluster.scheduler_address, "--executor", executor)
    answer = invoke_json("pagerank", "g.zarr", *on_cluster)
    assert answer["digest"] == embedded["digest"]
    assert answer["changes"] == embedded["changes"]
    assert answer["options"]["executor"] == ("supersteps" if executor == "auto" else executor)


def test_many_vectors_on_a_running_cluster(cluster, client):
    Path("seeds.csv").write_text("vector,vertex\na,1\na,2\nb,7\n")
    options = ("--personalization", "seeds.csv", "--keep-top", "3", "--width", "2", "--threads", "1")
    embedded = invoke_json("pagerank-batch", "g.zarr", *options)
    on_cluster = ("--scheduler", cluster.scheduler_address, "--transport", "peer")
    answer = invoke_json("pagerank-batch", "g.zarr", *options, *on_cluster, "-o", "c.parquet")
    assert answer["digest"] == embedded["digest"]
    assert [v["iterations"] for v in answer["vectors"]] == [v["iterations"] for v in embedded["vectors"]]
    assert (answer["options"]["executor"], embedded["options"]["executor"]) == ("supersteps", "embedded")
    assert answer["matrix"]["hardware"] == "4 workers of 1 thread"
    assert load_batch("c.parquet").top()["b"] == [(e["id"], e["rank"]) for e in embedded["vectors"][1]["top"]]


def test_plan_for_a_running_cluster(cluster, client):
    on_cluster = ("--scheduler", cluster.scheduler_address, "--backend", "cpu")
    answer = invoke_json("plan", "g.zarr", *on_cluster)
    with mgspmv.open_matrix("g.zarr").distribute(client, backend="cpu") as D:
        assert [w["start"] for w in answer["workers"]] == list(D.bounds[:-1])
        assert [w["memory_bytes"] for w in answer["workers"]] == [w.memory_bytes for w in D.plan.workers]
    assert answer["workers"][-1]["stop"] == 512
    stdout, stderr = invoke("plan", "g.zarr", *on_cluster)
    assert len(re.findall(r"^ *\d +[\d,]+ \.\. [\d,]+ ", stdout, re.MULTILINE)) == 4
    assert stderr == "", "the scheduler has no dashboard"


def test_the_backend_cuda_needs_cupy(monkeypatch):
    monkeypatch.setattr(device, "find_device_problem", lambda: "CuPy is not installed")
    for command in (["pagerank", "g.zarr"], ["spmv", "a.zarr", "x.npy", "-o", "z.npy"]):
        error = invoke_json(*command, "--backend", "cuda", code=2)["error"]
        assert error["type"] == "MissingDependencyError"
        assert error["message"].startswith("--backend cuda needs CuPy, which is not installed; install mgspmv[cuda12]")


def test_what_options_of_a_cluster_are():
    written = {
        "cores=8": 8,
        "wait=0.5": 0.5,
        "nanny=false": False,
        "hosts=a,b": "a,b",
        'hosts=["a", "b"]': ["a", "b"],
        "worker_options={nthreads = 2}": {"nthreads": 2},
        'worker_options={"nthreads": 2}': {"nthreads": 2},
        "walltime=01:00:00": "01:00:00",
        'account="007"': "007",
        "memory=64 GB": "64 GB",
        "extra= --a=b": "--a=b",
        "interface=null": None,
    }
    for text, value in written.items():
        assert parse_setting("--cluster-option", text, "a=b") == (text.partition("=")[0], value)


def test_a_class_in_place_of_a_name(folder):
    Path("given.toml").write_text(
        """
        [cluster]
        kind = "distributed:LocalCluster"
        workers = 2
        options = {processes = false, dashboard_address = ":0", threads_per_worker = 1}
        [matrix.web]
        open = "g.zarr"
        [run]
        """
    )
    said = invoke("run", "given.toml")[1]
    assert "waiting for 2 workers of distributed:LocalCluster, 120 s at most" in said
    given = ["processes=false", "dashboard_address=:0", "threads_per_worker=1"]
    words = [word for text in given for word in ("--cluster-option", text)]
    answer = invoke_json("pagerank", "g.zarr", "--cluster", "distributed:LocalCluster", "--workers", "2", *words)
    assert answer["digest"] == invoke_json("pagerank", "g.zarr")["digest"]
    assert answer["matrix"]["hardware"] == "2 workers of 1 thread"


RANK, BATCH, MULTIPLY = ["pagerank", "g.zarr"], ["pagerank-batch", "g.zarr"], ["spmv", "a.zarr", "x.npy", "-o", "y.npy"]


@pytest.mark.parametrize(
    ("command", "args", "message"),
    [
        (RANK, ["--workers", "2"], "--workers is the size of a started cluster; add --cluster, or leave it out"),
        (RANK, ["--cluster", "local", "--scheduler", "a:1"],
         "--cluster starts a cluster and --scheduler uses a running one"),
        (BATCH, ["--cluster", "ssh", "--cluster-option", "hosts=a"],
         "pass the option hosts, such as a,a,b, and leave out --workers"),
        (MULTIPLY, ["--cluster", "lokal"],
         "--cluster must be one of local, cuda, slurm, pbs, ssh, kubernetes, or module:Class of a Dask cluster class"),
        (RANK, ["--cluster", "slurm"], "--cluster slurm needs the number of workers; pass --workers"),
        (RANK, ["--cluster", "pbs", "--workers", "1", "--cluster-option", "cpus=1"],
         "dask_jobqueue:PBSCluster rejects its options: Got unexpected keyword argument 'cpus'"),
        (RANK, ["--cluster-option", "a=1"],
         "--cluster-option configures a started cluster; add --cluster, or leave it out"),
        (RANK, ["--cluster", "local", "--cluster-option", "a"],
         "--cluster-option a: expected KEY=VALUE, such as queue=gpu"),
        (RANK, ["--cluster", "local", "--cluster-option", "workers=2"], "use --cluster, --workers and --threads"),
        (RANK, ["--cluster", "ssh", "--tls", "temporary"], "temporary certificates exist on this machine only"),
        (RANK, ["--cluster", "local", "--timeout", "0"],
         "--timeout must be a positive number of seconds, not 0"),
        (MULTIPLY, ["--tls", "temporary"],
         "--tls encrypts the connections of a cluster; add --cluster or --scheduler"),
        (RANK, ["--scheduler", "tls://a:1", "--tls", "temporary"],
         "--tls temporary needs --cluster; name"),
        (BATCH, ["--cluster", "local", "--tls", "nowhere"],
         "nowhere has no ca.pem; a folder for --tls has ca.pem, cert.pem"),
        (RANK, ["--executor", "supersteps"],
         "--executor supersteps needs a cluster; pass one as --cluster or --scheduler"),
        (RANK, ["--cluster", "slurm", "--workers", "2", "--transport", "x"],
         "--transport must be one of 'auto', 'nccl', 'peer', not 'x'"),
        (RANK, ["--cluster", "slurm", "--workers", "2", "--executor", "embedded"],
         "--executor embedded computes in this process; leave out --cluster and --scheduler"),
        (RANK, ["--executor", "peer"],
         "--executor must be one of 'auto', 'embedded', 'tasks', 'supersteps', not 'peer'"),
    ],
)  # fmt: skip
def test_usage(command, args, message):
    stdout, stderr = invoke(*command, *args, code=2)
    assert stdout == ""
    assert stderr.startswith("error: ")
    assert message in stderr


@contextmanager
def listen(reply: bytes) -> Iterator[str]:
    """Address of a server that answers each connection with some bytes, or with silence."""
    held = []

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            connection.sendall(reply)
            held.append(connection)

    with socket.create_server(("127.0.0.1", 0)) as server:
        serving = threading.Thread(target=serve)
        serving.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        serving.join(HANG_S)
    for connection in held:
        connection.close()


def refuse(address: str, code: int, timeout_s: float = 1) -> str:
    """What is said of an address that no scheduler has."""
    stdout, stderr = invoke("pagerank", "g.zarr", "--scheduler", address, "--timeout", f"{timeout_s}", code=code)
    assert stdout == ""
    return stderr


def test_nobody_listens():
    address = f"127.0.0.1:{find_free_port()}"
    stderr = refuse(address, code=7)
    assert stderr.startswith(f"error: no Dask scheduler answers at {address} within 1 s (")
    assert "Connection refused" in stderr or "Timed out trying to connect" in stderr  # as the last try ended
    assert stderr.endswith("; is it running, and is this its address, such as tcp://10.0.0.1:8786?\n")


def test_somebody_answers_who_is_no_scheduler(cluster):
    with listen(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n") as address:
        assert refuse(address, code=7).startswith(f"error: no Dask scheduler answers at {address} within 1 s")
    address = cluster.workers[0].worker_address
    said = refuse(address, code=2, timeout_s=HANG_S)
    assert said == f"error: {address} is the address of a worker, not of a scheduler\n"


@pytest.mark.parametrize("address", ["", "scheduler", "udp://127.0.0.1:8786", "tls://127.0.0.1:8786"])
def test_what_is_no_address(address):
    stderr = refuse(address, code=2)
    assert stderr.startswith(f"error: {address!r} is neither the address of a scheduler (")
    assert stderr.endswith(") nor a scheduler file; pass an address such as tcp://10.0.0.1:8786\n")


def test_warnings_are_short_and_loggers_silent(capsys):
    with shorten_warnings(), quieten_dask():
        warnings.warn("worker a\n  does not answer", stacklevel=1)
        for name in ("distributed.worker", "of.what.is.loaded.later"):
            logging.getLogger(name).error("Compute Failed")
    assert capsys.readouterr().err == "warning: worker a does not answer\n"
    with pytest.warns(UserWarning, match="as usual"):
        warnings.warn("as usual", stacklevel=1)


@pytest.mark.slow
def test_warnings_of_workers_are_short():
    code = "import warnings\nfrom distributed import Client\nfrom mgspmv.cluster.connect import start_local\n"
    code += "if __name__ == '__main__':\n    with start_local(1) as cluster, Client(cluster) as client:\n"
    code += "        client.submit(warnings.warn, 'no cache\\nhere').result()\n"
    Path("warned.py").write_text(code)
    done = subprocess.run([sys.executable, "warned.py"], env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert done.stderr == "warning: worker 0: no cache here\n"


INTERRUPTED = r"interrupted; (after \d+ iterations, change \S+; )?nothing is written\n"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_leaves_a_running_cluster_usable(number, cluster, client):
    on_cluster = ("--scheduler", cluster.scheduler_address)
    before = find_left(client)
    with start("pagerank", "g.zarr", *on_cluster, *ENDLESS, **PIPES) as process:
        assert wait_for(lambda: any("mgspmv-superstep" in left for left in find_left(client) - before), HANG_S)
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=HANG_S)
    assert process.returncode == 130, stderr
    assert stdout == ""
    assert re.fullmatch(INTERRUPTED, stderr), "the scheduler has no dashboard"
    assert not [left for left in find_left(client) if left.startswith("lease")]
    assert invoke_json("pagerank", "g.zarr", *on_cluster)["status"] == "converged"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "moment"),
    [
        (signal.SIGINT, "the workers start"),
        (signal.SIGTERM, "the workers start"),
        (signal.SIGINT, "the run goes on"),
        (signal.SIGTERM, "the run goes on"),
        (signal.SIGHUP, "the run goes on"),
    ],
)
def test_interrupt_ends_local_workers(number, moment, folder, monkeypatch):
    """What a terminal or a batch system sends goes to the workers too. Keys are gone."""
    (temporary := folder / "tmp").mkdir()
    monkeypatch.setitem(ENVIRONMENT, "TMPDIR", str(temporary))
    on_cluster = ("--cluster", "local", "--workers", "2", "--tls", "temporary", *ENDLESS)
    log = ("--log", "log.jsonl", "--debug")
    with start("pagerank", "g.zarr", *on_cluster, *log, **PIPES, start_new_session=True) as process:
        if moment == "the workers start":
            begun = psutil.Process(process.pid)
            assert wait_for(lambda: len(begun.children(recursive=True)) > 2, HANG_S)  # a server and a tracker besides
            shown = ""
        else:
            shown = process.stderr.readline()
            assert DASHBOARD.fullmatch(shown)
            assert wait_for(lambda: '"change"' in Path("log.jsonl").read_text())
        assert [*temporary.glob("mgspmv-tls-*/key.pem")]
        os.killpg(process.pid, number)
        stdout, stderr = process.communicate(timeout=HANG_S)
    assert process.returncode == 130, stderr
    assert stdout == ""
    said, _, more = stderr.partition("\n")
    assert re.fullmatch(INTERRUPTED, f"{said}\n")
    assert not more or (number == signal.SIGTERM and "resource_tracker" in more)  # it clears up after killed workers
    assert wait_for(lambda: not is_there(process.pid))
    assert not [*temporary.glob("mgspmv-tls-*")]


def is_there(group: int) -> bool:
    """Whether a process group has processes."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
