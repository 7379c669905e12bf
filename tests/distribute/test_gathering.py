"""An all-gather between workers: what is right, what is not, and who is named."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from mgspmv.distribute import gathering
from mgspmv.distribute.cluster import Cluster
from mgspmv.distribute.gathering import ROUNDS, Gathering, gather_on_cluster
from mgspmv.exchange.peer import PeerTransport
from mgspmv.exchange.turns import Turns
from tests.support.clusters import find_held
from tests.support.waiting import wait_for


@pytest.fixture
def trio(in_process):
    return Cluster(in_process(3), 20)


def list_members(cluster):
    return [worker.member for worker in cluster.join(devices=False)]


def test_all_hosts_hear_from_all(trio, in_process):
    members = list_members(trio)
    for n in (3, 1):
        found = gather_on_cluster(trio, members[:n], "peer", 20)
        assert [one.problem for one in found] == [None] * n
        assert all(one.latency_s > 0 and one.is_direct is False for one in found)
        assert all((one.bytes_per_s > 0) == (n > 1) for one in found)
    assert wait_for(lambda: not find_held(in_process(3)))


def test_between_processes(client):
    cluster = Cluster(client, 20)
    found = gather_on_cluster(cluster, list_members(cluster), "peer", 20)
    assert [one.problem for one in found] == [None] * 4


def test_a_slice_that_changed_on_its_way_is_found(trio, monkeypatch):
    members = list_members(trio)
    put = PeerTransport._put

    def change(self, rank, slice_):
        put(self, rank, slice_ + (rank == 1 and self._halo.rank == 2))

    monkeypatch.setattr(PeerTransport, "_put", change)
    found = gather_on_cluster(trio, members, "peer", 20)
    assert [one.problem for one in found] == [
        None,
        None,
        f"the slice of worker {members[1]} did not arrive as it was sent",
    ]


def test_who_fails_is_named_and_nothing_is_left(trio, monkeypatch, in_process):
    members = list_members(trio)
    gather = Gathering.gather

    def fail(self):
        if self._rank == 1:
            self.close("it gave up")
            raise ValueError("worker 1 has no memory")
        return gather(self)

    monkeypatch.setattr(Gathering, "gather", fail)
    with pytest.raises(ValueError, match="worker 1 has no memory"):
        gather_on_cluster(trio, members, "peer", 20)
    assert wait_for(lambda: not find_held(in_process(3)))


# --- devices ---------------------------------------------------------------------------------------------------------


class PlayedGroup:
    """As `NcclGroup`, whose messages go over the links."""

    def __init__(self, links, rank, n, damages):
        self.n_devices, self._rank, self._damages = n, rank, damages
        self._turns, self.n_closed = Turns(links, rank, n), 0

    def gather(self, own, sizes, check):
        check()
        pieces = [told["own"] for told in self._turns.gather({"own": np.asarray(own)})]
        assert [len(piece) for piece in pieces] == list(sizes)
        gathered = np.concatenate(pieces) + self._damages
        return SimpleNamespace(get=lambda: gathered)

    def share(self, n_bytes, check):
        return object() if n_bytes else None

    def close(self):
        self.n_closed += 1


@pytest.fixture
def groups(monkeypatch):
    """`groups(damages)`: devices are played, and those of rank 0 get what is not as it was sent; gives their groups."""
    made = []

    def play(damages):
        def join(links, hellos, rank, held, check, *, may_share):
            assert may_share
            assert held is None
            made.append(PlayedGroup(links, rank, len(hellos) + 1, damages if rank == 0 else 0))
            return made[-1]

        device = SimpleNamespace(synchronize=lambda: None)
        cuda = SimpleNamespace(Device=lambda: device)
        played = SimpleNamespace(arange=np.arange, zeros=np.zeros, cuda=cuda)
        monkeypatch.setitem(sys.modules, "cupy", played)
        monkeypatch.setattr(gathering, "join_group", join)
        return made

    return play


@pytest.mark.parametrize("damages", [0, 1])
def test_devices(trio, groups, damages):
    made = groups(damages)
    members = list_members(trio)
    first, *others = gather_on_cluster(trio, members, "nccl", 20)
    assert (first.problem is None) == (damages == 0)
    assert damages == 0 or first.problem == f"the slice of worker {members[0]} did not arrive as it was sent"
    for one in others:
        assert one.problem is None
        assert one.is_direct
        assert one.latency_s > 0
    assert [group.n_closed for group in made] == [1, 1, 1]
    assert made[0]._turns.number == 2 * ROUNDS + 1


@pytest.mark.slow
@pytest.mark.gpu
def test_real_devices():
    pytest.importorskip("dask_cuda", reason="dask-cuda is not installed, which starts a worker for each GPU")
    from mgspmv.distribute.connect import start_cuda

    with start_cuda() as started:
        cluster = Cluster(started, 60)
        try:
            members = [worker.member for worker in cluster.join(devices=True)]
            if len(members) < 2:
                pytest.skip("needs two GPUs, and there is one")
            found = gather_on_cluster(cluster, members, "nccl", 120)
        finally:
            cluster.close()
    assert [one.problem for one in found] == [None] * len(members)
    assert min(one.bytes_per_s for one in found) > 1e8
