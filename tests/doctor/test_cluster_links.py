"""Vectors between all workers: what is right, what is not, and who is named."""

from __future__ import annotations

import re
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from mgspmv.cluster.dask_cluster import Cluster
from mgspmv.doctor import cluster as module
from mgspmv.doctor.cluster import LinkTrial
from mgspmv.errors import ClusterError
from mgspmv.exchange.peer import AllToAll
from tests.support.clusters import find_held
from tests.support.waiting import wait_for


@pytest.fixture
def trio(in_process):
    cluster = Cluster(in_process(3), 20)
    return module._Reached(cluster, 20, cluster.join(devices=False))


def test_all_hosts_hear_from_all(trio, in_process):
    for n in (3, 1):
        del trio.workers[n:]
        module._exchange(trio, "peer")
    assert wait_for(lambda: not find_held(in_process(3)))


def test_a_slice_that_changed_on_its_way_is_found(trio, monkeypatch):
    gather = AllToAll.gather

    def change(self, given):
        return [own + (rank == 1 and self.rank == 2) for rank, own in enumerate(gather(self, given))]

    monkeypatch.setattr(AllToAll, "gather", change)
    with pytest.raises(ClusterError, match=f"the slice of worker {re.escape(str(trio.members[1]))} was changed"):
        module._exchange(trio, "peer")


def test_who_fails_is_named_and_nothing_is_left(trio, monkeypatch, in_process):
    exchange = LinkTrial.exchange

    def fail(self, transport):
        if self.rank == 1:
            self.close("it gave up")
            raise ValueError("worker 1 has no memory")
        return exchange(self, transport)

    monkeypatch.setattr(LinkTrial, "exchange", fail)
    with pytest.raises(ValueError, match="worker 1 has no memory"):
        module._exchange(trio, "peer")
    assert wait_for(lambda: not find_held(in_process(3)))


class PlayedGroup:
    """As `NcclGroup`, whose messages go over the links."""

    def __init__(self, turns, damages):
        self._damages, self._turns, self.n_closed = damages, turns, 0
        self.check = turns.peer_comm.check

    def gather(self, own, sizes):
        self.check()
        pieces = [told["own"] for told in self._turns.gather({"own": np.asarray(own)})]
        assert [len(piece) for piece in pieces] == list(sizes)
        return np.concatenate(pieces) + self._damages

    def close(self):
        self.n_closed += 1


@pytest.mark.parametrize("damages", [0, 1])
def test_devices(damages, trio, monkeypatch):
    groups = []

    def join(turns, hellos, held, *, may_share):
        assert may_share
        assert held is None
        assert len(hellos) == 2
        groups.append(PlayedGroup(turns, damages if turns.rank == 0 else 0))
        return groups[-1]

    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(asarray=np.asarray, asnumpy=np.asarray, zeros=np.zeros))
    monkeypatch.setattr(module, "join_group", join)
    wanted = f"the slice of worker {re.escape(str(trio.members[0]))} was changed in transfer"
    with pytest.raises(ClusterError, match=wanted) if damages else nullcontext():
        module._exchange(trio, "nccl")
    assert [group.n_closed for group in groups] == [1, 1, 1]


@pytest.mark.slow
@pytest.mark.gpu
def test_real_devices():
    pytest.importorskip("dask_cuda", reason="dask-cuda is not installed, which starts a worker for each GPU")
    from mgspmv.cluster.connect import start_cuda

    with start_cuda() as started:
        cluster = Cluster(started, 60)
        try:
            reached = module._Reached(cluster, 120, cluster.join(devices=True))
            if len(reached.members) < 2:
                pytest.skip("needs two GPUs, and there is one")
            module._exchange(reached, "nccl")
        finally:
            cluster.close()
