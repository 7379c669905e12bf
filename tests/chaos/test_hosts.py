"""Hosts in network namespaces have links that can be cut and slowed."""

from __future__ import annotations

import socket
import time

import pytest

from tests.support.hosts import NAMESPACES, Network, why_not_split
from tests.support.waiting import HANG_S

pytestmark = pytest.mark.external("ip", "tc")
needs_hosts = pytest.mark.skipif(bool(why_not_split()), reason=why_not_split() or "it can be done")


def send(here, there, n_bytes):
    here.sendall(bytes(n_bytes))
    while n_bytes:
        n_bytes -= len(there.recv(n_bytes))


@needs_hosts
def test_links_are_cut_and_slowed():
    with Network(is_split=True) as network:
        first, second = network.add_host("a"), network.add_host("b")
        with (
            first.do(lambda: socket.create_server((first.address, 0))) as server,
            second.do(lambda: socket.create_connection(server.getsockname(), timeout=HANG_S)) as here,
            server.accept()[0] as there,
        ):
            there.settimeout(0.5)
            second.cut()
            with pytest.raises(TimeoutError):
                send(here, there, 1)
            second.join()
            there.settimeout(HANG_S)
            assert there.recv(1) == bytes(1)  # the packet on the way arrives
            second.slow(256)
            began_s = time.monotonic()
            send(here, there, 32_000)
            assert time.monotonic() - began_s > 0.7, "256 kbit in a second"
            second.hasten()
            send(here, there, 32_000)


@needs_hosts
def test_hosts_of_a_killed_run_are_removed():
    killed = Network(is_split=True).__enter__()
    space = killed.add_host("a").namespace
    assert (NAMESPACES / space).exists()
    killed._lock.close()
    with Network(is_split=True) as network:
        assert network._number == killed._number
        assert not (NAMESPACES / space).exists()
        network.add_host("a")
    assert not (NAMESPACES / space).exists()
