"""Slices of a device by transports that know only the host: what moves them is the copies, and nothing else."""

from __future__ import annotations

import numpy as np

from mgspmv.exchange.all_to_all import AllToAll
from mgspmv.exchange.halo import Halo
from mgspmv.exchange.peer import PeerTransport
from mgspmv.exchange.transport import HostStagedTransport
from mgspmv.model import StepSums
from tests.support.peers import Network, run_workers


class OnDevice:
    """A vector that NumPy cannot read; kernels, as tests do, get at it by `memory`."""

    __array_ufunc__ = None

    def __init__(self, memory):
        self.memory = memory

    def __array__(self, *args, **kwargs):
        raise TypeError("this is on a device")

    def __getitem__(self, part):
        return OnDevice(self.memory[part])

    @property
    def nbytes(self):
        return self.memory.nbytes


class Copies:
    """Counts vectors that go to the device and to the host, by their elements."""

    def __init__(self):
        self.put_sizes, self.got_sizes = [], []

    def put(self, array):
        assert type(array) is np.ndarray
        self.put_sizes.append(len(array))
        return OnDevice(array.copy())

    def get(self, vector):
        assert type(vector) is OnDevice
        self.got_sizes.append(len(vector.memory))
        return vector.memory.copy()


def check_devices_hold_what_all_of_them_wrote(bounds):
    n, n_workers = bounds[-1], len(bounds) - 1
    network = Network(n_workers, seed=1)

    def work(rank):
        start, stop = bounds[rank : rank + 2]
        everybody = (None,) * n_workers
        turns = AllToAll(network.links(rank), rank, n_workers)
        copies = Copies()
        for step in range(1, 8):
            dtype = np.dtype(np.int64 if step < 5 else np.float32)
            if step in (1, 5):
                peer = PeerTransport(turns, Halo(rank, bounds, everybody), everybody, dtype)
                staged = HostStagedTransport(peer, copies.put, copies.get)
                assert staged.z.memory.tolist() == [0] * n
            z = (1000 * step + np.arange(n)).astype(dtype)
            staged.slot().memory[:] = z[start:stop]
            [sums] = staged.exchange_columns([StepSums(step, step + rank, 2 * rank, 1)])
            assert sums == StepSums(n_workers * step, step + n_workers - 1, n_workers * (n_workers - 1), n_workers)
            read = staged.z.memory
            assert (read.dtype, read.tolist()) == (dtype, z.tolist())
        assert copies.got_sizes == [stop - start] * 7
        assert staged.exchanged_bytes == peer.exchanged_bytes == (4 * 8 + 3 * 4) * (n - (stop - start))

    run_workers(network, n_workers, work)


def test_devices_hold_what_all_of_them_wrote():
    for bounds in [(0, 11, 20), (0, 7, 9, 20), (0, 0, 9, 9, 20)]:
        check_devices_hold_what_all_of_them_wrote(bounds)
