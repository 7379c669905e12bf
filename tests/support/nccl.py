"""NCCL played between threads, each with a device."""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections import deque
from functools import partial
from itertools import count, pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from mgspmv.exchange import nccl as module
from mgspmv.exchange.nccl import NcclGroup
from tests.support.peers import Network, StuckError, run_workers
from tests.support.waiting import HANG_S


class PlayedNccl:
    """CuPy's binding of NCCL between threads, each with a device, a stream and what it has put on it.

    Bytes go from address to address when somebody looks whether a stream is done, one message a look.
    """

    NCCL_UINT8 = 1
    NcclError = type("NcclError", (RuntimeError,), {})

    def __init__(self):
        self.available = True
        self.made = []
        """Communicators."""
        self.connecting = None
        """Called with the rank, if any, before devices connect."""
        self._numbers, self._thread, self._lock = count(1), threading.local(), threading.Lock()
        self._meetings, self._posted, self._streams = {}, {}, {}

    def get_unique_id(self):
        return bytes([255, 0, next(self._numbers)]) * 42

    def NcclCommunicator(self, n_devices, unique_id, rank):
        assert type(unique_id) is bytes
        if self.connecting is not None:
            self.connecting(rank)
        with self._lock:
            meeting = self._meetings.setdefault(unique_id, threading.Barrier(n_devices))
        meeting.wait(HANG_S)
        communicator = PlayedCommunicator(self, unique_id, rank)
        self.made.append(communicator)
        return communicator

    def groupStart(self):
        assert getattr(self._thread, "group", None) is None, "groups are nested"
        self._thread.group = []

    def groupEnd(self):
        group, self._thread.group = self._thread.group, None
        with self._lock:
            for key, kind, transfer, stream in group:
                sent, wanted = self._posted.setdefault(key, (deque(), deque()))
                (sent if kind == "send" else wanted).append(transfer)
                self._streams.setdefault(stream, []).append(transfer)

    def post(self, communicator, other, kind, address, n_bytes, dtype, stream):
        assert not communicator.n_aborted, "the communicator was aborted"
        assert dtype == self.NCCL_UINT8
        pair = (communicator.rank, other) if kind == "send" else (other, communicator.rank)
        transfer = SimpleNamespace(address=address, n_bytes=n_bytes, is_done=False)
        self._thread.group.append(((communicator.unique_id, *pair), kind, transfer, stream))

    def look(self, transfers):
        """Deliver one message of any; whether these were delivered."""
        with self._lock:
            for sent, wanted in self._posted.values():
                if sent and wanted:
                    source, target = sent.popleft(), wanted.popleft()
                    assert source.n_bytes == target.n_bytes, "what is sent is not what is received"
                    ctypes.memmove(target.address, source.address, source.n_bytes)
                    source.is_done = target.is_done = True
                    break
            return all(t.is_done for t in transfers)

    def list_enqueued(self, stream):
        with self._lock:
            return list(self._streams.get(stream, ()))

    def give_up(self):
        """Nobody waits for others any more."""
        for meeting in self._meetings.values():
            meeting.abort()


class PlayedCommunicator:
    def __init__(self, nccl, unique_id, rank):
        self._nccl, self.unique_id, self.rank = nccl, unique_id, rank
        self.device = PlayedDevice.current.number
        self.sent_to, self.n_aborted, self.error = [], 0, None

    def send(self, address, n, dtype, other, stream):
        self.sent_to.append(other)
        self._nccl.post(self, other, "send", address, n, dtype, stream)

    def recv(self, address, n, dtype, other, stream):
        self._nccl.post(self, other, "recv", address, n, dtype, stream)

    def check_async_error(self):
        if self.error is not None:
            raise self.error

    def abort(self):
        self.n_aborted += 1


class PlayedDevice:
    """The current one of a thread, which is device 0 until another one is made current."""

    current = threading.local()

    def __init__(self):
        self.number = getattr(self.current, "number", 0)

    def __enter__(self):
        self._before, self.current.number = PlayedDevice().number, self.number

    def __exit__(self, *error):
        self.current.number = self._before

    def synchronize(self):
        pass


class PlayedStream:
    """The one of a thread."""

    def __init__(self, nccl, non_blocking=True):
        self._nccl, self.ptr = nccl, threading.get_ident()

    def __enter__(self):
        pass

    def __exit__(self, *error):
        pass

    def synchronize(self):
        mark = self.record()
        while not mark.done:
            time.sleep(0.001)

    def record(self):
        return PlayedMark(self._nccl, self._nccl.list_enqueued(self.ptr))


class PlayedMark:
    def __init__(self, nccl, transfers):
        self._nccl, self._transfers = nccl, transfers

    @property
    def done(self):
        return self._nccl.look(self._transfers)


class DeviceArray(np.ndarray):
    """Says where it is as CuPy's arrays do, and has to be asked for."""

    @property
    def data(self):
        assert self.flags.c_contiguous, "what is sent is not contiguous"
        return SimpleNamespace(ptr=self.ctypes.data)

    def get(self):
        return np.array(self)


def on_device(array):
    return np.array(array).view(DeviceArray)


def call_on_device(function, *args, **given):
    return function(*args, **given).view(DeviceArray)


@pytest.fixture
def nccl(monkeypatch):
    """NCCL and CuPy that are played, with device 7 + rank for the thread of each."""
    played = PlayedNccl()
    streams = {"get_current_stream": lambda: PlayedStream(played), "Stream": partial(PlayedStream, played)}
    cuda = SimpleNamespace(nccl=played, Device=PlayedDevice, **streams)
    functions = (np.asarray, np.arange, np.zeros, np.concatenate, np.sort, np.searchsorted, np.take)
    made = {f.__name__: partial(call_on_device, f) for f in functions}
    cupy = SimpleNamespace(cuda=cuda, empty=lambda n, dtype: on_device(np.full(n, -7).astype(dtype)), **made)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)
    monkeypatch.setenv(module.LOOPBACK[0], "")  # so that it is as it was afterwards
    monkeypatch.delenv(module.LOOPBACK[0])
    yield played
    played.give_up()


def run_ranks(n, work):
    """`work(rank)` of each rank in a thread with a device of its own."""

    def on_own(rank):
        PlayedDevice.current.number = 7 + rank
        return work(rank)

    return run_workers(Network(n), n, on_own)


def make_check(patience_s=HANG_S):
    """All are well, until it takes too long for a test."""
    deadline = time.monotonic() + patience_s

    def check():
        if time.monotonic() > deadline:
            raise StuckError("somebody waits for ever")

    return check


def exchange(group, array, bounds):
    """Each its part of an array, which all get."""
    parts = [array[a:b] for a, b in pairwise(bounds)]
    group.exchange([parts[group.rank]] * len(parts), parts)


def start_groups(nccl, n):
    unique_id = nccl.get_unique_id()
    return run_ranks(n, lambda rank: NcclGroup(rank, n, unique_id, make_check(), may_share=True))


class Failing:
    """Raises when it is called for the nth time."""

    def __init__(self, error, n=5):
        self.error, self.left = error, n

    def __call__(self):
        self.left -= 1
        if not self.left:
            raise self.error
