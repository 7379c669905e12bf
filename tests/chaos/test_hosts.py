"""Hosts reach each other over links that can be cut and slowed, and nothing of them stays."""

from __future__ import annotations

import socket
import time

import pytest

from tests.support.hosts import NAMESPACES, Network, why_not_split

pytestmark = pytest.mark.skipif(bool(why_not_split()), reason=why_not_split() or "it can be done")

WAIT_S = 0.5


@pytest.fixture
def network():
    with Network(is_split=True) as made:
        yield made


@pytest.fixture
def link(network):
    """A second host, and both ends of a connection to the first one."""
    first, second = network.add_host("a"), network.add_host("b")
    with (
        first.do(lambda: socket.create_server((first.address, 0))) as server,
        second.do(lambda: socket.create_connection(server.getsockname(), timeout=5)) as here,
        server.accept()[0] as there,
    ):
        there.settimeout(WAIT_S)
        yield second, here, there


def send(here, there, n_bytes=1):
    here.sendall(bytes(n_bytes))
    while n_bytes:
        n_bytes -= len(there.recv(n_bytes))


def test_a_link_that_is_cut_says_nothing(link):
    host, here, there = link
    send(here, there)
    host.cut()
    with pytest.raises(TimeoutError):
        send(here, there)
    host.join()
    there.settimeout(10)
    assert there.recv(1) == bytes(1)  # what was on the way comes
    send(here, there)


def test_a_link_that_is_slow_takes_its_time(link):
    host, here, there = link
    there.settimeout(10)
    host.slow(256)
    slow_s = time_send(here, there)
    assert slow_s > 0.7
    host.hasten()
    host.hasten()
    assert time_send(here, there) < slow_s / 2


def time_send(here, there):
    began_s = time.monotonic()
    send(here, there, 32_000)
    return time.monotonic() - began_s


def test_this_machine_reaches_hosts(network):
    host = network.add_host("a")
    with host.do(lambda: socket.create_server((host.address, 0))) as server:
        socket.create_connection(server.getsockname(), timeout=5).close()


def test_what_a_killed_run_left_behind_is_removed():
    killed = Network(is_split=True).__enter__()
    space = killed.add_host("a").namespace
    assert (NAMESPACES / space).exists()
    killed._lock.close()
    with Network(is_split=True) as network:
        assert network._number == killed._number
        assert not (NAMESPACES / space).exists()
        network.add_host("a")
    assert not (NAMESPACES / space).exists()


def test_two_networks_at_a_time():
    with Network(is_split=True) as one, Network(is_split=True) as other:
        assert one.add_host("a").address != other.add_host("a").address


def test_without_namespaces_all_hosts_are_this_machine():
    with Network(is_split=False) as network:
        assert {network.add_host(name).address for name in "ab"} == {"127.0.0.1"}
