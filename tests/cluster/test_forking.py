"""The server that worker processes are forked from."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from mgspmv.cluster import forking
from mgspmv.cluster.forking import ENVIRON, METHOD, VARIABLES, choose_method

SCRIPT = """
import json, os, signal, sys

def describe():
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    variables = {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "NEW")}
    is_loaded = "mgspmv.cluster.iterations" in sys.modules
    return {"parent": os.getppid(), "ignores": signal.SIGINT in blocked and signal.SIGHUP in blocked,
            "loaded": is_loaded, **variables}

if __name__ == "__main__":
    from mgspmv.cluster.forking import begin_server
    begin_server(has_devices=False)
    assert "OMP_NUM_THREADS" not in os.environ and "numpy" not in sys.modules
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    from distributed import Client
    from mgspmv.cluster.connect import start_local
    found = []
    for value in (None, None, "1"):
        if value is not None:
            os.environ["NEW"] = value
        with start_local(2, 1, dashboard_address=":0") as cluster, Client(cluster) as client:
            found.append([*client.run(describe).values()])
    print(json.dumps({"pid": os.getpid(), "found": found}))
"""


def test_workers_are_forked_with_loaded_modules_unless_the_environment_has_changed(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    done = subprocess.run([sys.executable, path], env=environment, stdout=subprocess.PIPE, check=True)
    answer = json.loads(done.stdout)
    *clusters, spawned = answer["found"]
    forked = [worker for cluster in clusters for worker in cluster]
    assert all(worker["loaded"] for worker in forked)
    assert len({worker["parent"] for worker in forked}) == 1, "of both clusters"
    assert forked[0]["parent"] != answer["pid"]
    assert {worker["NEW"] for worker in spawned} == {"1"}
    assert {worker["parent"] for worker in spawned} == {answer["pid"]}
    assert all(worker["ignores"] and worker["OMP_NUM_THREADS"] == "1" for worker in (*forked, *spawned))


def test_dasks_defaults_are_known():
    import dask
    import distributed  # noqa: F401 (it sets them)

    defaults = dask.config.get(ENVIRON)
    assert {name: str(value) for name, value in defaults.items()}.items() <= VARIABLES.items()
    assert dask.config.get(METHOD) == "spawn"


@pytest.mark.parametrize(
    ("configured", "environ", "method"),
    [
        ("spawn", {"OMP_NUM_THREADS": 1}, "forkserver"),
        ("spawn", {}, "forkserver"),
        ("spawn", {"OMP_NUM_THREADS": 4}, "spawn"),
        ("spawn", {"OTHER": 1}, "spawn"),
        ("fork", {}, "fork"),
    ],
)
def test_what_is_configured_is_done(configured, environ, method, monkeypatch):
    monkeypatch.delenv(forking.METHOD_VARIABLE, raising=False)
    monkeypatch.setattr(forking, "_environment", {})
    assert choose_method(configured, environ) == method


def test_a_variable_asks_for_new_processes(monkeypatch):
    monkeypatch.setattr(forking, "_environment", {})
    monkeypatch.setenv(forking.METHOD_VARIABLE, "spawn")
    assert choose_method("spawn", {}) == "spawn"


@pytest.mark.slow
@pytest.mark.parametrize("length", [71, 72, 90])
def test_workers_start_where_the_path_of_temporary_files_is_long(length, tmp_path):
    """A socket's path has an end: beyond it workers are spawned."""
    folder = "/tmp/" + "x" * (length - 5)
    os.makedirs(folder, exist_ok=True)
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    try:
        environment |= {"TMPDIR": folder}
        done = subprocess.run([sys.executable, path], env=environment, stdout=subprocess.PIPE, check=True)
    finally:
        shutil.rmtree(folder)
    answer = json.loads(done.stdout)
    parents = {worker["parent"] for worker in answer["found"][0]}
    assert len(parents) == 1
    assert (answer["pid"] in parents) == (length > 71)
