"""`mgspmv cluster`: what is started goes on alone, is found again and ended; what fails leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from pathlib import Path

import psutil
import pytest

from mgspmv.launching.state import end_processes, list_clusters
from mgspmv.processes import Process, find_birth
from tests.support.commands import ENVIRONMENT, PROGRAM, invoke, invoke_json
from tests.support.waiting import HANG_S, wait_for

ONE = ("--workers", "1", "--threads", "1", "--backend", "cpu")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The folder that commands run in; no cluster is left when the test ends."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "150")
    monkeypatch.setenv("MGSPMV_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("PYTHONPATH", ENVIRONMENT["PYTHONPATH"])
    yield tmp_path
    for cluster in list_clusters():
        end_processes(cluster.process, HANG_S)


def ask(name: str = "default", *options: str, code: int = 0) -> dict:
    [asked] = invoke_json("cluster", "status", name, *options, code=code)["clusters"]
    return asked


def list_processes(pid: int) -> list[Process]:
    """A process and all below it."""
    return [Process.find(p.pid) for p in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True))]


def are_gone(processes: list[Process]) -> bool:
    return not any(process.is_there for process in processes)


def list_left() -> list[str]:
    """Of clusters in the folder where they are kept."""
    return [path.name for path in Path("state").glob("clusters/*/*") if path.name != ".lock"]


@pytest.mark.slow
def test_from_start_to_stop():
    invoke("generate", "rmat", "g.zarr", "--scale", "8", "--quiet")
    told = invoke_json("cluster", "start", "--workers", "2", "--threads", "1", "--backend", "cpu")
    assert (told["cluster"], told["state"], told["workers"], told["backend"]) == ("default", "running", 2, "cpu")
    assert told["scheduler"].startswith("tcp://127.0.0.1:")
    assert told["dashboard"].startswith("http://127.0.0.1:")
    processes = list_processes(told["pid"])
    assert os.getsid(told["pid"]) == told["pid"] != os.getsid(0)

    asked = ask()
    assert {key: asked[key] for key in told} == told
    assert [(worker["state"], worker["threads"]) for worker in asked["joined"]] == [("running", 1)] * 2
    assert min(worker["memory_bytes"] for worker in asked["joined"]) > 10**7
    assert (asked["runs"], asked["problem"]) == ([], None)

    _, stderr = invoke("cluster", "start", code=7)
    assert f"a cluster 'default' is running on this machine already, at {told['scheduler']}, as process " in stderr
    assert "`mgspmv cluster stop default` ends it, --name starts another" in stderr

    endless = ("--tol-mode", "fixed", "--max-iter", "100000000", "--scheduler", told["scheduler_file"])
    ranking = subprocess.Popen([*PROGRAM, "pagerank", "g.zarr", *endless], env=os.environ, stderr=subprocess.PIPE)
    assert wait_for(lambda: any(run["iterations"] for run in ask()["runs"]), HANG_S)
    [going_on] = ask()["runs"]
    assert going_on["operation"] == "pagerank"
    listed, shown = invoke("cluster", "status")[0], invoke("cluster", "status", "default")[0]
    assert "2 of 2      1   default   running   cpu       tcp://127.0.0.1:" in listed
    assert f"scheduler file  {told['scheduler_file']}\n" in shown
    assert f"{going_on['run']}   pagerank" in shown

    stdout, _ = invoke("cluster", "stop")
    assert stdout.startswith(f"cluster default is stopped\n  run {going_on['run']}, pagerank of ")
    assert are_gone(processes)
    assert list_left() == []
    _, stderr = ranking.communicate(timeout=HANG_S)
    assert ranking.returncode == 7
    assert b"the connection to the scheduler was lost" in stderr or b"did not answer" in stderr


@pytest.mark.slow
def test_one_that_is_killed_is_lost_and_its_name_is_free(monkeypatch):
    killed = invoke_json("cluster", "start", *ONE)
    processes = list_processes(killed["pid"])
    os.kill(killed["pid"], signal.SIGKILL)
    assert wait_for(lambda: are_gone(processes)), "workers are still there"
    assert (ask(code=7)["state"], ask(code=7)["joined"]) == ("lost", None)
    assert "mgspmv cluster start --name default" in invoke("cluster", "status", "default", code=7)[0]

    assert invoke("cluster", "start", *ONE)[0].startswith("cluster default runs: 1 CPU workers of 1 threads, process ")
    again = ask()
    assert (again["state"], again["pid"] != killed["pid"]) == ("running", True)
    processes = list_processes(again["pid"])
    monkeypatch.setattr("mgspmv.cli.clusters.ASK_S", 0.5)
    os.kill(again["pid"], signal.SIGSTOP)
    asked = ask("default", "--timeout", "1", code=7)
    assert asked["problem"].startswith(f"no Dask scheduler answers at {again['scheduler']}")
    assert invoke("cluster", "stop", "--timeout", "0.5")[0] == (
        "cluster default did not end within 0.5 s, and was killed\n"
    )
    assert are_gone(processes)
    assert list_left() == []


def test_one_that_was_lost_is_cleared_away():
    gone = subprocess.Popen(["true"])
    process = {"pid": gone.pid, "birth": find_birth(gone.pid)}
    gone.wait()
    told = {"name": "old", "host": "h", "process": process, "began": 0.0, "version": "0.1.0"}
    place = Path("state", "clusters", os.uname().nodename, "old")
    place.mkdir(parents=True)
    (place / "cluster.json").write_text(json.dumps(told))
    assert ask("old", code=7)["state"] == "lost"
    assert invoke("cluster", "stop", "old")[0] == "cluster old was lost, and its name is free\n"
    assert list_left() == []


def test_there_are_none():
    assert invoke("cluster", "status")[0] == (
        "there are no clusters on this machine; `mgspmv cluster start` starts one\n"
    )
    assert invoke_json("cluster", "status") == {"clusters": []}
    for command in ("status", "stop"):
        assert "there is no cluster 'x' on this machine in " in invoke("cluster", command, "x", code=2)[1]
        assert invoke_json("cluster", command, "x", code=2)["error"]["type"] == "OptionError"


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--name", "../x"], 2, "a cluster cannot be named '../x'"),
        (["--backend", "tpu"], 2, "--backend must be"),
        (["--protocol", "ucxx", "--backend", "cpu"], 2, "--protocol ucxx is for workers on GPUs"),
        (["--timeout", "0"], 2, "--timeout must be a positive number of seconds, not 0"),
        (["--workers", "100000", "--backend", "cpu"], 6, "100000 workers take 2e+04 GB before they hold rows"),
        (["--tls", "nowhere", *ONE], 2, "nowhere has no ca.pem"),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, list) else "",
)
def test_what_cannot_be_started(options, code, message):
    stdout, stderr = invoke("cluster", "start", *options, code=code)
    assert stdout == ""
    assert message in stderr
    assert list_left() == []


@pytest.mark.slow
def test_a_port_that_is_taken():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        error = invoke_json("cluster", "start", *ONE, "--port", str(port), code=7)["error"]
    assert error["type"] == "ClusterError"
    assert error["message"].startswith(f"the scheduler cannot listen at 127.0.0.1:{port}: ")
    assert list_left() == []


@pytest.mark.slow
def test_a_worker_that_does_not_start(folder, monkeypatch):
    Path("broken.py").write_text("raise RuntimeError('no disk for this worker')")
    monkeypatch.setenv("PYTHONPATH", f"{folder}:{ENVIRONMENT['PYTHONPATH']}")
    monkeypatch.setenv("DASK_DISTRIBUTED__WORKER__PRELOAD", "broken")
    _, stderr = invoke("cluster", "start", *ONE, code=7)
    assert stderr.endswith("error: a worker of the local cluster did not start: no disk for this worker\n")
    assert list_left() == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("said", "log"), [("", "its log is empty"), ("print('waits', file=sys.stderr)", "its log ends with:\nwaits")]
)
def test_a_process_that_ends(said, log, monkeypatch):
    program = f"import os, sys; {said or 'pass'}; sys.stderr.flush(); os.kill(os.getpid(), 9)"
    monkeypatch.setattr("mgspmv.launching.starting._PROGRAM", program)
    error = invoke_json("cluster", "start", *ONE, code=7)["error"]["message"]
    assert error == f"cluster 'default' did not start: it ended with -9; {log}"
    assert list_left() == []


@pytest.mark.slow
def test_workers_that_do_not_join_in_time(monkeypatch):
    monkeypatch.setattr("mgspmv.launching.starting._PROGRAM", "import time; time.sleep(600)")
    before = psutil.Process().children(recursive=True)
    error = invoke_json("cluster", "start", *ONE, "--timeout", "1.5", code=7)["error"]["message"]
    assert error == (
        "cluster 'default' did not start: its workers have not joined within 1.5 s, and it was ended; its log is empty"
    )
    assert [p for p in psutil.Process().children(recursive=True) if p not in before] == []
    assert list_left() == []


@pytest.mark.slow
def test_a_start_that_is_told_to_end():
    pipe = subprocess.PIPE
    with subprocess.Popen([*PROGRAM, "cluster", "start", *ONE], env=os.environ, stderr=pipe, text=True) as starting:
        assert wait_for(lambda: len(list_clusters()) == 1 and list_clusters()[0].process.pid != starting.pid, HANG_S)
        processes = list_processes(starting.pid)
        starting.terminate()
        _, stderr = starting.communicate(timeout=HANG_S)
    assert (starting.returncode, stderr) == (130, "interrupted\n")
    assert are_gone(processes)
    assert list_left() == []
