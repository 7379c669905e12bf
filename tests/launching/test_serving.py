"""What the process of a cluster starts, where it listens and what it tells, with clusters that are played.

tests/cli/test_clusters.py and tests/deploy/test_systemd.py start real ones.
"""

from __future__ import annotations

import logging
import signal
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import dask
import pytest
from dask.utils import parse_timedelta

from mgspmv.distribute.connect import Serving
from mgspmv.launching import serving
from mgspmv.launching.serving import Asked
from mgspmv.launching.state import find_cluster, list_clusters
from tests.support.commands import invoke, invoke_json


class PlayedCluster(nullcontext):
    """As dask-cuda's, which names workers by their devices."""

    workers: ClassVar = {device: {"options": {"nthreads": 6}} for device in (2, 3)}
    worker_spec = workers
    scheduler_address, dashboard_link = "tcp://127.0.0.1:1", "http://127.0.0.1:2/status"
    scheduler = SimpleNamespace(identity=lambda: {"address": "tcp://127.0.0.1:1"})


@pytest.fixture
def played(tmp_path, monkeypatch):
    """What is started, and what is known of it while it is served."""
    told = SimpleNamespace(started=[], launched=None, config={}, files=[])

    def start(kind):
        return lambda *given: told.started.append((kind, *given)) or PlayedCluster()

    def look():
        [told.launched] = list_clusters()
        told.config = dask.config.get("distributed.comm.require-encryption")
        told.events_kept = dask.config.get("distributed.scheduler.events-cleanup-delay")
        told.files = [path.name for path in Path(told.launched.certificates or "/nowhere").glob("*")]

    monkeypatch.setenv("MGSPMV_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(serving, "start_cuda", start("cuda"))
    monkeypatch.setattr(serving, "start_local", start("cpu"))
    monkeypatch.setattr(serving, "has_devices", lambda: True)
    monkeypatch.setattr(serving, "_catch_signals", lambda: SimpleNamespace(wait=look))
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield told
    for number, handler in before.items():
        signal.signal(number, handler)


def start(*options: str) -> str:
    """What the command says."""
    return invoke("cluster", "start", "--foreground", *options)[1]


LOCAL = Serving(log_level=logging.WARNING)


def test_workers_are_on_gpus_where_there_are_any(played, monkeypatch):
    said = start("--workers", "2", "--protocol", "ucxx")
    assert played.started.pop() == ("cuda", 2, None, "ucxx", LOCAL)
    assert said.startswith("cluster default runs: 2 GPU workers of 6 threads, process ")
    launched = played.launched
    assert (launched.state, launched.backend, launched.n_workers, launched.threads) == ("running", "cuda", 2, 6)
    assert list_clusters() == []
    monkeypatch.setattr(serving, "has_devices", lambda: False)
    start("--threads", "3", "--port", "8786", "--name", "other")
    assert played.started.pop() == ("cpu", None, 3, Serving(port=8786, log_level=logging.WARNING))
    assert played.launched.name == "other"


def test_events_of_clients_that_left_are_kept_for_a_minute(played):
    start()
    assert parse_timedelta(played.events_kept) == 60


def test_a_backend_that_is_asked_for_is_taken(played):
    for backend in ("cpu", "cuda"):
        start("--backend", backend)
        assert played.started.pop()[0] == backend


def test_its_answer_is_that_it_is_stopped(played):
    assert invoke_json("cluster", "start", "--foreground") == {"cluster": "default", "state": "stopped"}


def test_others_are_let_in_by_certificates(played):
    pytest.importorskip("cryptography", reason="certificates are made with it")
    said = start("--host", "10.0.0.1", "--tls", "temporary")
    assert played.started.pop()[-1] == Serving("10.0.0.1", 0, "10.0.0.1", logging.WARNING)
    assert played.config is True
    assert sorted(played.files) == ["ca.pem", "cert.pem", "key.pem"]
    assert f"--scheduler tcp://127.0.0.1:1 --tls {played.launched.certificates}   ranks a store on it" in said
    assert "warning" not in said
    assert not Path(played.launched.certificates).exists()


@pytest.mark.parametrize("host", ["0.0.0.0", "gpu-1.example.org", "::"])
def test_others_are_let_in_without_and_that_is_said(played, host):
    said = start("--host", host)
    assert said.endswith(
        f"warning: whoever reaches {host} can run code here; --tls lets in nobody without a certificate\n"
    )
    assert played.started.pop()[-1] == Serving(host, 0, "127.0.0.1", logging.WARNING), "the dashboard has no password"


def test_the_dashboard_is_where_it_is_asked_for(played):
    start("--dashboard-port", "0", "--dashboard-origin", "hub.example.org", "--dashboard-origin", "d.example.org:8443")
    serving = played.started.pop()[-1]
    assert (serving.dashboard_port, serving.dashboard_origins) == (0, ("hub.example.org", "d.example.org:8443"))


@pytest.mark.parametrize(
    ("serving", "address"),
    [
        (Serving(), "127.0.0.1:8787"),
        (Serving(port=8786), "127.0.0.1:8787"),
        (Serving(port=8787), "127.0.0.1:0"),
        (Serving(port=8787, dashboard_port=8788), "127.0.0.1:8788"),
        (Serving(dashboard_port=0), "127.0.0.1:0"),
    ],
)
def test_the_scheduler_has_its_port_first(serving, address):
    assert serving.dashboard_address == address


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--port", "8787", "--dashboard-port", "8787"), "--port and --dashboard-port are both 8787; choose another"),
        (("--dashboard-origin", "https://a.example/"), "--dashboard-origin takes a host as the browser's address"),
    ],
)
def test_what_no_dashboard_can_be_is_refused(played, options, said):
    assert invoke("cluster", "start", "--foreground", *options, code=2)[1].startswith(f"error: {said}")
    assert played.started == []


def test_addresses_that_only_this_machine_reaches():
    assert all(Asked(host=host).is_local for host in ("localhost", "127.0.0.1", "127.0.0.2", "::1"))


def test_nothing_is_left_when_it_fails(played, monkeypatch):
    def fail():
        assert find_cluster("default").state == "running"
        raise RuntimeError("no more")

    monkeypatch.setattr(serving, "_catch_signals", lambda: SimpleNamespace(wait=fail))
    assert "error: RuntimeError: no more" in invoke("cluster", "start", "--foreground", code=1)[1]
    assert list_clusters() == []
