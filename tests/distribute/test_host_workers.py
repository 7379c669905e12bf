"""What a host that SSH reaches starts: on GPUs, which are played here, and where it starts nothing."""

from __future__ import annotations

import io
import json
import os
import socket
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from mgspmv.distribute import host_workers
from mgspmv.distribute.host_workers import MARK, find_versions
from mgspmv.distribute.tls import make_certificates


@pytest.fixture
def started(monkeypatch):
    """What dask-cuda's program was told, on a host of three GPUs."""
    told = []
    module, package = ModuleType("dask_cuda.cli"), ModuleType("dask_cuda")
    package.__spec__ = ModuleSpec("dask_cuda", None)
    module.worker = lambda args: told.append((args, os.environ["CUDA_VISIBLE_DEVICES"]))
    monkeypatch.setitem(sys.modules, "dask_cuda", package)
    monkeypatch.setitem(sys.modules, "dask_cuda.cli", module)
    monkeypatch.setattr(host_workers, "has_devices", lambda: True)
    monkeypatch.setattr(host_workers, "list_devices", lambda: ["0", "1", "GPU-5"])
    monkeypatch.setattr(host_workers, "_end_with_input", lambda: None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,GPU-5")
    monkeypatch.setattr("mgspmv.distribute.connect.default_threads", lambda: 12)
    return told


@pytest.fixture
def ask(monkeypatch, capsys):
    """Ask for workers; the exit code, and the answer."""

    def ask(versions=None, **asked):
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            given = {"scheduler": f"tcp://127.0.0.1:{port}", "name": "a/worker"} | asked
            monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps([versions or find_versions(), given]) + "\n"))
            code = host_workers.main()
        shown, mark, answer = capsys.readouterr().out.partition(MARK)
        assert (shown, mark) == ("", MARK)
        return code, json.loads(answer)

    return ask


def test_a_worker_for_each_gpu(started, ask):
    assert ask() == (0, {"workers": 3})
    [(args, visible)] = started
    assert visible == "0,1,GPU-5"
    assert args[0].startswith("tcp://127.0.0.1:")
    assert " ".join(args[1:]) == (
        "--name a/worker --host 127.0.0.1 --no-dashboard --dashboard-address 127.0.0.1:0 --device-memory-limit 0 "
        "--nthreads 4 --memory-limit 0"
    )


def test_workers_with_certificates(started, ask, tmp_path):
    """Their pages ask for one too: dask-cuda would preload its own module in place of what does that."""
    make_certificates(tmp_path / "tls")
    assert ask(certificates=str(tmp_path / "tls")) == (0, {"workers": 3})
    [(args, _)] = started
    assert args[args.index("--preload") + 1] == "mgspmv.distribute.tls"


def test_workers_of_some_gpus(started, ask):
    assert ask(workers=2, threads=5) == (0, {"workers": 2})
    [(args, visible)] = started
    assert visible == "0,1"
    assert args[args.index("--nthreads") + 1] == "5"


def test_what_is_refused(started, ask, monkeypatch):
    code, answer = ask(workers=4)
    assert (code, answer["kind"]) == (7, "ClusterError")
    assert answer["error"] == "4 workers are asked for and 3 GPUs are there; ask for fewer"
    code, answer = ask(["0.0.1", "3.11"])
    assert (code, answer["kind"]) == (7, "VersionMismatchError")
    code, answer = ask(scheduler="tcp://127.0.0.1:1")
    assert (code, answer["kind"]) == (7, "ClusterError")
    assert "it does not reach the scheduler at tcp://127.0.0.1:1 (" in answer["error"]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    code, answer = ask()
    assert (code, answer["kind"]) == (1, "MissingDependencyError")
    assert "needs dask-cuda, which is not installed" in answer["error"]
    assert started == []
