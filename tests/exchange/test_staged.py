"""Slices of a device by transports that know only the host: what moves them is the copies, and nothing else."""

from __future__ import annotations

import numpy as np

from mgspmv.exchange.halo import Halo
from mgspmv.exchange.peer import PeerTransport
from mgspmv.exchange.relay import RelayTransport
from mgspmv.exchange.staged import StagedTransport
from mgspmv.model import StepSums
from tests.support.peers import Network, run_workers

HALO = Halo(1, (0, 4, 9, 12), (np.array([1, 3], np.int32), None, None))
"""Of the worker of rows 4 to 9, which reads two rows of the one before it and all of the one after it."""
HELD = [1, 3, 4, 5, 6, 7, 8, 9, 10, 11]

DTYPES = [np.int64, np.float32, np.float64]


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


class Played:
    """A transport that notes what it is asked for, and how its slots stood when it was asked to exchange them."""

    def __init__(self, n_rows, dtype):
        self.slots, self.calls = np.full(n_rows, -1, dtype), []
        self.exchanged_bytes, self.waited_s, self.nbytes = 70, 0.5, 900
        self.z = np.arange(3.0)

    def slot(self, start, stop):
        self.calls.append(("slot", start, stop))
        return self.slots[start - 4 : stop - 4]

    def exchange(self, sums, product_s):
        self.calls.append(("exchange", sums, product_s, self.slots.tolist()))
        self.exchanged_bytes, self.waited_s = 140, 0.75
        return sums + sums

    def restart(self, dtype):
        self.calls.append(("restart", dtype))
        self.slots = np.zeros(len(self.slots), dtype)


def stage(transport, dtype, start=4, stop=9):
    copies = Copies()
    return StagedTransport(transport, start, stop, np.dtype(dtype), copies.put, copies.get), copies


def test_what_was_given_to_the_host_is_read_on_the_device():
    for dtype in DTYPES:
        relay = RelayTransport(HALO, np.dtype(dtype))
        staged, copies = stage(relay, dtype)
        for step in (1, 2):
            z = (100 * step + np.arange(12)).astype(dtype)
            relay.give(z)
            read = staged.z
            assert type(read) is OnDevice, dtype
            assert read.memory.dtype == dtype, dtype
            assert read.memory.tolist() == z[HELD].tolist(), dtype
        assert copies.put_sizes[-2:] == [10, 10], dtype
        assert copies.got_sizes == [], dtype


def test_what_the_device_wrote_is_taken_from_the_host():
    for dtype in DTYPES:
        relay = RelayTransport(HALO, np.dtype(dtype))
        staged, copies = stage(relay, dtype)
        for step in (1, 2):
            for start, stop in ((4, 6), (6, 9)):
                staged.slot(start, stop).memory[:] = 10 * step + np.arange(start, stop)
            sums = StepSums(2**62 - 1, 3, 2**62 + step, 1)
            assert staged.exchange(sums, 2.0) == sums, dtype
            taken = relay.take()
            assert taken.dtype == dtype, dtype
            assert taken.tolist() == [10 * step + k for k in range(4, 9)], dtype
            assert copies.got_sizes == [5] * step, dtype
        assert copies.put_sizes == [5], dtype  # the slots, once


def test_slots_are_on_the_device_and_reach_the_host_when_they_are_exchanged():
    played = Played(5, np.int64)
    staged, copies = stage(played, np.int64)
    assert staged.slot(4, 9).memory.tolist() == [0] * 5
    staged.slot(5, 7).memory[:] = [8, 9]
    assert played.calls == copies.got_sizes == []
    sums = StepSums(1, 2, 3, 0)
    assert staged.exchange(sums, 1.5) == sums + sums
    assert played.calls == [("slot", 4, 9), ("exchange", sums, 1.5, [0, 8, 9, 0, 0])]
    assert staged.exchange(sums) == sums + sums
    assert played.calls[-1] == ("exchange", sums, 0.0, [0, 8, 9, 0, 0])


def test_what_is_measured_is_of_the_other_transport():
    played = Played(5, np.float32)
    staged, _ = stage(played, np.float32)
    assert (staged.exchanged_bytes, staged.waited_s) == (70, 0.5)
    staged.exchange(StepSums())
    assert (staged.exchanged_bytes, staged.waited_s) == (140, 0.75)
    assert staged.nbytes == 900 + 4 * 5
    assert type(staged.nbytes) is int


def test_restarted_in_another_dtype():
    for dtype in DTYPES:
        relay = RelayTransport(HALO, np.dtype(np.int64))
        staged, copies = stage(relay, np.int64)
        staged.slot(4, 9).memory[:] = 7
        staged.restart(np.dtype(dtype))
        assert copies.put_sizes == [5, 5], dtype
        own = staged.slot(4, 9).memory
        assert (own.dtype, own.tolist()) == (dtype, [0] * 5), dtype
        own[:] = [0.5, 1, 2, 3, 4]
        staged.exchange(StepSums())
        taken = relay.take()
        assert (taken.dtype, taken.tolist()) == (dtype, np.array([0.5, 1, 2, 3, 4]).astype(dtype).tolist()), dtype
        relay.give((np.arange(12) / 2).astype(dtype))
        assert staged.z.memory.dtype == dtype, dtype


def check_devices_hold_what_all_of_them_wrote(bounds):
    n, n_workers = bounds[-1], len(bounds) - 1
    network = Network(n_workers, seed=1)

    def work(rank):
        start, stop = bounds[rank : rank + 2]
        everybody = (None,) * n_workers
        peer = PeerTransport(network.links(rank), Halo(rank, bounds, everybody), everybody, np.dtype(np.int64))
        staged, copies = stage(peer, np.int64, start, stop)
        for step in range(1, 8):
            dtype = np.dtype(np.int64 if step < 5 else np.float32)
            if step == 5:
                staged.restart(dtype)
                assert staged.z.memory.tolist() == [0] * n
            z = (1000 * step + np.arange(n)).astype(dtype)
            staged.slot(start, stop).memory[:] = z[start:stop]
            sums = staged.exchange(StepSums(step, step + rank, 2 * rank, 1))
            assert sums == StepSums(n_workers * step, step + n_workers - 1, n_workers * (n_workers - 1), n_workers)
            read = staged.z.memory
            assert (read.dtype, read.tolist()) == (dtype, z.tolist())
        assert copies.got_sizes == [stop - start] * 7
        assert staged.exchanged_bytes == peer.exchanged_bytes == (4 * 8 + 3 * 4) * (n - (stop - start))

    run_workers(network, n_workers, work)


def test_devices_hold_what_all_of_them_wrote():
    for bounds in [(0, 11, 20), (0, 7, 9, 20), (0, 0, 9, 9, 20)]:
        check_devices_hold_what_all_of_them_wrote(bounds)
