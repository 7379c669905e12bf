"""Which hosts and pages of browsers the dashboards of clusters that are started here answer."""

from __future__ import annotations

import http.client
import socket

import dask
import pytest
from distributed import Client
from tornado.httputil import HTTPHeaders, HTTPServerRequest, RequestStartLine

import mgspmv as mg
from mgspmv.cluster import connect
from mgspmv.cluster.connect import start_local
from mgspmv.cluster.security import ORIGINS, UnknownHosts, list_hosts, parse_host
from mgspmv.errors import ClusterError
from tests.support.ports import find_free_port
from tests.support.waiting import HANG_S

OWN = ["127.0.0.1", "dash.example.org", "proxy.example.org:8443", "*.lab.example.org"]


@pytest.mark.parametrize(
    ("hosts", "host", "origin", "is_refused"),
    [
        (OWN, "127.0.0.1:8787", None, False),
        (OWN, "localhost:9000", "http://localhost:9000", False),  # by a tunnel from another port
        (OWN, "127.0.0.1:8787", "http://localhost:8888", False),
        (OWN, "127.0.0.1:8787", "https://evil.example", True),
        (OWN, "127.0.0.1:8787", "http://127.0.0.1.evil.example:8787", True),
        (OWN, "evil.example:8787", None, True),  # a name that a site turned to this machine
        (OWN, "10.0.0.7:8787", None, False),
        (OWN, "10.0.0.7:8787", "http://10.0.0.8:8787", True),
        (OWN, "dash.example.org", "https://dash.example.org", False),
        (OWN, "dash.example.org.evil.example", None, True),
        (OWN, "proxy.example.org:8444", None, True),
        (["proxy.example.org:8443"], "proxy.example.org", None, True),
        (OWN, "a.lab.example.org", None, False),
        (OWN, "lab.example.org", None, True),
        (["0.0.0.0"], "10.0.0.7:8787", "http://10.0.0.7:8787", False),
        (["0.0.0.0"], "evil.example:8787", None, True),
        (["0.0.0.0"], "10.0.0.7:8787", "http://evil.example:8787", True),
        (["[2001:db8::1]"], "[2001:db8::1]:8787", None, False),
    ],
)
def test_who_is_refused(hosts, host, origin, is_refused):
    headers = HTTPHeaders({"Host": host} | ({} if origin is None else {"Origin": origin}))
    request = HTTPServerRequest(headers=headers, start_line=RequestStartLine("GET", "/status", "HTTP/1.1"))
    assert (UnknownHosts(hosts).match(request) is not None) is is_refused


def test_what_users_configured_is_let_in_too():
    assert list_hosts(["127.0.0.1", "::1"], ["a.example"]) == ["127.0.0.1", "[::1]", "a.example"]
    assert {"0.0.0.0", socket.gethostname()} <= {*list_hosts(["0.0.0.0"], [])}
    with dask.config.set({ORIGINS: ["b.example:8787"]}):
        assert list_hosts(["127.0.0.1"], []) == ["127.0.0.1", "b.example:8787"]


@pytest.mark.parametrize("host", ["https://a.example", "a.example/x", "a:b", "", "a.example:", "ä.example", "a b"])
def test_what_is_no_host(host):
    with pytest.raises(ValueError, match="not a host"):
        parse_host(host)


def ask(port, path, **headers):
    """Status of an answer to a browser."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANG_S)
    try:
        connection.request("GET", path, headers=headers)
        return connection.getresponse().status
    finally:
        connection.close()


UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "x" * 22 + "==",
    "Sec-WebSocket-Protocol": "bokeh, token",
}


@pytest.mark.slow
def test_dashboards_of_schedulers_and_workers(tmp_path):
    mg.generate("rmat", tmp_path / "g.zarr", scale=5, seed=1)
    serving = {"dashboard_origins": ["dash.example.org"]}
    with start_local(1, 1, **serving) as cluster, Client(cluster, set_as_default=False) as client:
        mg.pagerank(mg.open_matrix(tmp_path / "g.zarr").on(client))  # which adds a page, and an agent to workers
        scheduler = cluster.scheduler.http_server.port
        [worker] = cluster.scheduler.workers.values()
        for port, paths in (
            (scheduler, ("/status", "/pagerank", "/metrics", "/info/main/workers.html", "/json/counts.json")),
            (worker.services["dashboard"], ("/health", "/metrics")),
        ):
            for path in paths:
                assert ask(port, path) == 200, path
                assert ask(port, path, Host="dash.example.org", Origin="https://dash.example.org") == 200, path
                assert ask(port, path, Host="evil.example") == 403, path
                assert ask(port, path, Origin="https://evil.example") == 403, path
        for path in ("/status/ws", "/pagerank/ws", "/eventstream"):
            assert ask(scheduler, path, **UPGRADE, Origin="https://evil.example") == 403, path
            assert ask(scheduler, path, **UPGRADE, Host="evil.example", Origin="http://evil.example") == 403, path
        assert ask(scheduler, "/eventstream", **UPGRADE, Origin=f"http://127.0.0.1:{scheduler}") == 101


@pytest.mark.slow
def test_the_dashboard_gives_way_to_the_scheduler(monkeypatch):
    port = find_free_port()
    monkeypatch.setattr(connect, "DASHBOARD_PORT", port)  # 8787 may be taken here
    with start_local(1, 1, scheduler_port=port) as cluster:
        assert cluster.scheduler_address == f"tcp://127.0.0.1:{port}"
        assert cluster.scheduler.http_server.port not in (0, port)
        taken = cluster.scheduler.http_server.port
        with pytest.raises(ClusterError, match=f"the dashboard cannot listen at 127.0.0.1:{taken}, which is in use"):
            start_local(1, 1, dashboard_port=taken)
    with start_local(1, 1, dashboard_port=taken) as cluster:
        assert cluster.scheduler.http_server.port == taken
