"""`mgspmv cluster`: what is started stays, is found again and ended; what fails leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
from pathlib import Path

import psutil
import pytest

from mgspmv.launching import list_clusters, stop
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
        stop(cluster, HANG_S)


def ask(*options: str, code: int = 0) -> dict:
    [asked] = invoke_json("cluster", "status", "default", *options, code=code)["clusters"]
    return asked


def list_processes(pid: int) -> list[psutil.Process]:
    """A process and all below it."""
    return [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]


def are_gone(processes: list[psutil.Process], timeout_s: float = 0.0) -> bool:
    return not psutil.wait_procs(processes, timeout_s)[1]


@pytest.mark.slow
def test_from_start_to_stop():
    invoke("generate", "rmat", "g.zarr", "--scale", "8", "--quiet")
    told = invoke_json("cluster", "start", "--workers", "2", "--threads", "1", "--backend", "cpu")
    assert (told["cluster"], told["state"], told["workers"], told["backend"]) == ("default", "running", 2, "cpu")
    assert told["scheduler"].startswith("tcp://127.0.0.1:")
    assert re.fullmatch(r"http://127.0.0.1:\d+/pagerank", told["dashboard"])
    processes = list_processes(told["pid"])
    assert len(processes) > 2
    assert os.getsid(told["pid"]) == told["pid"] != os.getsid(0)
    asked = ask()
    assert {key: asked[key] for key in told} == told
    assert (asked["joined"], asked["runs"], asked["problem"]) == (2, [], None)

    _, stderr = invoke("cluster", "start", code=7)
    assert f"a cluster 'default' is running on this machine already, at {told['scheduler']}, as process " in stderr
    assert "`mgspmv cluster stop default` stops it, another --name starts a second one" in stderr

    endless = ("--norm", "fixed", "--max-iter", "100000000", "--scheduler", told["scheduler"])
    ranking = subprocess.Popen([*PROGRAM, "pagerank", "g.zarr", *endless], env=os.environ, stderr=subprocess.PIPE)
    assert wait_for(lambda: ask()["runs"], HANG_S)
    [run] = ask()["runs"]
    assert invoke_json("status")["runs"][0]["run"] == run, "the only cluster of this machine"
    assert "2 of 2      1   default   running   cpu       tcp://127.0.0.1:" in invoke("cluster", "status")[0]
    assert told["dashboard"] in invoke("cluster", "status", "default")[0]

    stdout, _ = invoke("cluster", "stop")
    assert stdout == f"cluster default is stopped\n  run {run} ended with it\n"
    assert are_gone(processes)
    assert list_clusters() == []
    _, stderr = ranking.communicate(timeout=HANG_S)
    assert ranking.returncode == 7
    assert b"error: the connection to " in stderr


@pytest.mark.slow
def test_one_that_is_killed_and_one_that_hangs(monkeypatch):
    killed = invoke_json("cluster", "start", *ONE)
    processes = list_processes(killed["pid"])
    os.kill(killed["pid"], signal.SIGKILL)
    assert are_gone(processes, HANG_S), "workers are still there"
    assert "no cluster 'default' runs on this machine (running: none)" in invoke("cluster", "stop", code=2)[1]

    assert invoke("cluster", "start", *ONE)[0].startswith("cluster default runs: 1 CPU workers, process ")
    again = ask()
    processes = list_processes(again["pid"])
    monkeypatch.setattr("mgspmv.cli.clusters.ASK_S", 0.5)
    os.kill(again["pid"], signal.SIGSTOP)
    asked = ask("--wait", "1", code=7)
    assert asked["state"] == "silent"
    assert asked["problem"].startswith(f"no Dask scheduler answers at {again['scheduler']}")
    stdout, _ = invoke("cluster", "stop", "--wait", "0.5")
    assert stdout == "cluster default did not exit within 0.5 s and was killed\n"
    assert are_gone(processes)
    assert list_clusters() == []


def test_there_are_none():
    assert invoke("cluster", "status")[0] == "no clusters run on this machine; `mgspmv cluster start` starts one\n"
    assert invoke_json("cluster", "status") == {"clusters": []}
    for command in ("status", "stop"):
        assert "no cluster 'x' runs on this machine (running: none)" in invoke("cluster", command, "x", code=2)[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--name", "../x"], "--name takes letters, digits, '.', '_' and '-', a letter or digit first, not '../x'"),
        (["--name", "a\n"], "--name takes letters"),
        (["--backend", "tpu"], "--backend must be"),
        (["--protocol", "ucxx", "--backend", "cpu"], "--protocol ucxx is for workers on GPUs"),
        (["--wait", "0"], "Invalid value for '--wait': "),
        (["--dashboard-origin", "https://a.example/"], "--dashboard-origin must be a host as in the browser's address"),
    ],
)
def test_what_cannot_be_started(options, message):
    stdout, stderr = invoke("cluster", "start", *options, code=2)
    assert stdout == ""
    assert message in stderr
    assert list_clusters() == []


@pytest.mark.slow
def test_starts_that_fail_end_with_the_error_of_their_process(folder, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        error = invoke_json("cluster", "start", *ONE, "--port", str(port), code=7)["error"]
    assert error["message"].startswith(
        f"cluster 'default' did not start: the scheduler cannot listen at 127.0.0.1:{port}"
    )
    for options, code, said in (
        (["--workers", "100000", "--backend", "cpu"], 6, "100000 workers take 2e+04 GB before they hold rows"),
        (["--tls", "nowhere", *ONE], 2, "nowhere has no ca.pem"),
    ):
        assert f"cluster 'default' did not start: {said}" in invoke("cluster", "start", *options, code=code)[1]
    Path("broken.py").write_text("raise RuntimeError('no disk for this worker')")
    monkeypatch.setenv("PYTHONPATH", f"{folder}:{ENVIRONMENT['PYTHONPATH']}")
    monkeypatch.setenv("DASK_DISTRIBUTED__WORKER__PRELOAD", "broken")
    _, stderr = invoke("cluster", "start", *ONE, code=7)
    assert stderr.endswith("a worker of the local cluster did not start: no disk for this worker\n")
    assert list_clusters() == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("import os; os.kill(os.getpid(), 9)", "it ended with -9; see "),
        ("import time; time.sleep(600)", "its workers did not join within 1.5 s, and it was stopped; see "),
    ],
)
def test_a_process_that_ends_or_is_late(program, why, monkeypatch):
    monkeypatch.setattr("mgspmv.launching._PROGRAM", program)
    before = psutil.Process().children(recursive=True)
    error = invoke_json("cluster", "start", *ONE, "--wait", "1.5", code=7)["error"]["message"]
    assert error.startswith(f"cluster 'default' did not start: {why}")
    assert [p for p in psutil.Process().children(recursive=True) if p not in before] == []


@pytest.mark.slow
def test_a_start_that_is_told_to_end():
    pipe = subprocess.PIPE
    with subprocess.Popen([*PROGRAM, "cluster", "start", *ONE], env=os.environ, stderr=pipe, text=True) as starting:
        assert wait_for(list_clusters, HANG_S)
        processes = list_processes(starting.pid)
        starting.terminate()
        _, stderr = starting.communicate(timeout=HANG_S)
    assert (starting.returncode, stderr) == (130, "interrupted\n")
    assert are_gone(processes)
    assert list_clusters() == []
