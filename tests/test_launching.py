"""What the process of a cluster starts, where it listens and what it records, with clusters that are played.

tests/cli/test_clusters.py and tests/deploy/test_systemd.py start real ones.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import dask
import psutil
import pytest
from dask.utils import parse_timedelta

from mgspmv import launching
from mgspmv.errors import ClusterError, StoreError
from mgspmv.launching import Launched, find_cluster, list_clusters, register, stop
from tests.support.commands import invoke, invoke_json
from tests.support.waiting import HANG_S


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("MGSPMV_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


# --- which clusters there are ----------------------------------------------------------------------------------------


def describe(pid: int, name: str = "one") -> Launched:
    return Launched(name, pid, psutil.Process(pid).create_time())


def test_a_name_is_had_while_the_context_lasts(state):
    own = replace(describe(os.getpid()), scheduler="tcp://127.0.0.1:1")
    with register(own):
        assert (find_cluster("one"), own.state) == (own, "running")
        assert state.stat().st_mode & 0o777 == 0o700
        with register(replace(own, name="another", scheduler=None)):
            assert [(c.name, c.state) for c in list_clusters()] == [("another", "starting"), ("one", "running")]
        with pytest.raises(ClusterError, match=r"^a cluster 'one' is running on this machine already, at tcp://127"):
            register(own).__enter__()
    assert list_clusters() == []


def test_entries_of_processes_that_are_gone_count_for_nothing(state):
    with subprocess.Popen(["true"]) as gone:
        ended = describe(gone.pid)
    reused = replace(describe(os.getpid(), "reused"), began=1.0)
    launching._find_folder().mkdir(parents=True)
    for each in (ended, reused):
        launching._write(each)
    assert list_clusters() == []
    with register(own := describe(os.getpid())):
        assert find_cluster("one") == own


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"name": "one"}'])
def test_what_cannot_be_read_counts_for_nothing(state, text):
    launching._find_folder().mkdir(parents=True)
    (launching._find_folder() / "one.json").write_text(text)
    assert list_clusters() == []
    with register(own := describe(os.getpid())):
        assert list_clusters() == [own]


def test_a_folder_that_cannot_be_written(state):
    state.write_text("")
    with pytest.raises(StoreError):
        register(describe(os.getpid())).__enter__()


SLEEPS = "import os, time\nwhile os.getppid() == {pid}: time.sleep(0.05)"
"""A process that ends soon after the one above it, as workers do."""
BELOW = """
import os, signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.{on_sigterm})
below = subprocess.Popen([sys.executable, "-c", sys.argv[1].format(pid=os.getpid())])
print(below.pid, flush=True)
below.wait()
"""


@pytest.mark.parametrize(("on_sigterm", "is_clean"), [("SIG_DFL", True), ("SIG_IGN", False)])
def test_processes_that_end_and_that_do_not(on_sigterm, is_clean):
    command = [sys.executable, "-c", BELOW.format(on_sigterm=on_sigterm), SLEEPS]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as started:
        below = psutil.Process(int(started.stdout.readline()))
        with register(describe(started.pid)):
            assert stop(find_cluster("one"), HANG_S if is_clean else 0.3) == is_clean
            assert list_clusters() == []
        assert not below.is_running()


def test_another_process_of_the_same_number_is_left_alone():
    assert stop(replace(describe(os.getpid()), began=1.0), 0.5)


# --- what is started -------------------------------------------------------------------------------------------------


class PlayedCluster(nullcontext):
    workers: ClassVar = {2: None, 3: None}
    scheduler_address, dashboard_link = "tcp://127.0.0.1:1", "http://127.0.0.1:2/status"


@pytest.fixture
def played(monkeypatch):
    """What is started, and what is recorded of it while it is served."""
    told = SimpleNamespace(started=[], launched=None, is_encrypted=None, events_kept="", files=[])

    def start(kind):
        return lambda *given, **serving: told.started.append((kind, *given, serving)) or PlayedCluster()

    def look():
        [told.launched] = list_clusters()
        told.is_encrypted = dask.config.get("distributed.comm.require-encryption")
        told.events_kept = dask.config.get("distributed.scheduler.events-cleanup-delay")
        told.files = [path.name for path in Path(told.launched.certificates or "/nowhere").glob("*.pem")]

    monkeypatch.setattr(launching, "start_cuda", start("cuda"))
    monkeypatch.setattr(launching, "start_local", start("cpu"))
    monkeypatch.setattr(launching, "_find_dashboard", lambda cluster: cluster.dashboard_link)
    monkeypatch.setattr(launching, "has_devices", lambda: True)
    monkeypatch.setattr(launching, "_catch_signals", lambda: SimpleNamespace(wait=look))
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield told
    for number, handler in before.items():
        signal.signal(number, handler)


SERVING = {
    "host": "127.0.0.1",
    "scheduler_port": 0,
    "dashboard_port": None,
    "dashboard_origins": [],
    "silence_logs": logging.WARNING,
}
"""Where a cluster listens by default."""


def start(*options: str) -> str:
    """What the command says."""
    return invoke("cluster", "start", "--foreground", *options)[1]


def test_workers_are_on_gpus_where_there_are_any(played, monkeypatch):
    said = start("--workers", "2", "--protocol", "ucxx")
    assert played.started.pop() == ("cuda", 2, None, "ucxx", SERVING)
    assert said.startswith("cluster default runs: 2 GPU workers, process ")
    launched = played.launched
    assert (launched.state, launched.backend, launched.workers) == ("running", "cuda", 2)
    assert parse_timedelta(played.events_kept) == 60, "of clients that left"
    assert list_clusters() == []
    monkeypatch.setattr(launching, "has_devices", lambda: False)
    start("--threads", "3", "--port", "8786", "--name", "other")
    assert played.started.pop() == ("cpu", None, 3, SERVING | {"scheduler_port": 8786})
    assert played.launched.name == "other"


@pytest.mark.parametrize("backend", ["cpu", "cuda"])
def test_a_backend_that_is_asked_for_is_taken(played, backend):
    assert invoke_json("cluster", "start", "--foreground", "--backend", backend) == {
        "cluster": "default",
        "state": "stopped",
    }
    assert played.started.pop()[0] == backend


def test_others_are_let_in_by_certificates(played):
    pytest.importorskip("cryptography", reason="certificates are made with it")
    said = start("--host", "10.0.0.1", "--tls", "temporary")
    assert played.started.pop()[-1] == SERVING | {"host": "10.0.0.1", "dashboard_host": "10.0.0.1"}
    assert played.is_encrypted is True
    assert sorted(played.files) == ["ca.pem", "cert.pem", "key.pem"]
    assert f"--scheduler tcp://127.0.0.1:1 --tls {played.launched.certificates}   ranks a store on it" in said
    assert "warning" not in said
    assert not Path(played.launched.certificates).exists()


@pytest.mark.parametrize("host", ["0.0.0.0", "gpu-1.example.org", "::"])
def test_others_are_let_in_without_and_that_is_said(played, host):
    said = start("--host", host)
    assert said.endswith(f"warning: clients that reach {host} can run code here; add --tls to require certificates\n")
    assert played.started.pop()[-1] == SERVING | {"host": host}, "the dashboard has no password"


def test_the_dashboard_is_where_it_is_asked_for(played):
    start("--dashboard-port", "0", "--dashboard-origin", "hub.example.org", "--dashboard-origin", "d.example.org:8443")
    serving = played.started.pop()[-1]
    assert serving == SERVING | {"dashboard_port": 0, "dashboard_origins": ["hub.example.org", "d.example.org:8443"]}


def test_nothing_is_left_when_it_fails(played, monkeypatch):
    def fail():
        assert find_cluster("default").state == "running"
        raise RuntimeError("no more")

    monkeypatch.setattr(launching, "_catch_signals", lambda: SimpleNamespace(wait=fail))
    assert "error: RuntimeError: no more" in invoke("cluster", "start", "--foreground", code=1)[1]
    assert list_clusters() == []
