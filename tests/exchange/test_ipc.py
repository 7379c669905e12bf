"""Memory that devices write into, with CUDA's handles played: who gets which addresses, and what if there are none."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import numpy as np
import pytest

from mgspmv.errors import CapacityError
from mgspmv.exchange import ipc
from mgspmv.exchange.ipc import MOST_DEVICES, UNIT
from tests.exchange.test_nccl import join_all
from tests.support.nccl import DeviceArray, run_ranks, start_groups


class PlayedMemory:
    """Bytes of the host that are taken for those of devices; addresses that others opened are 1 higher."""

    CUDARuntimeError = type("CUDARuntimeError", (RuntimeError,), {})

    def __init__(self):
        self.held, self.opened, self.closed = {}, [], []
        self.refused: set[int] = set()
        """Addresses that nobody can open."""
        self.has_handles, self.arrives, self.room = True, True, 1 << 40

    def allocate(self, n_bytes):
        if n_bytes > self.room:
            raise self.CUDARuntimeError("cudaErrorMemoryAllocation: out of memory")
        buffer = ctypes.create_string_buffer(b"x" * n_bytes, n_bytes)
        self.held[ctypes.addressof(buffer)] = n_bytes
        return buffer

    def point(self, buffer, offset):
        ptr = ctypes.addressof(buffer) + offset
        return SimpleNamespace(ptr=ptr, buffer=buffer, memset=lambda value, n: ctypes.memset(ptr, value, n))

    def ipcGetMemHandle(self, ptr):
        if not self.has_handles:
            raise self.CUDARuntimeError("cudaErrorNotSupported")
        assert ptr in self.held
        return ptr.to_bytes(8, "little") + bytes(56)

    def ipcOpenMemHandle(self, handle):
        assert len(handle) == 64
        ptr = int.from_bytes(handle[:8], "little")
        if ptr in self.refused:
            raise self.CUDARuntimeError("cudaErrorInvalidDevice")
        self.opened.append(ptr + 1)
        return ptr + 1

    def find_words(self, address, n):
        if address % 8 == 1 and not self.arrives:
            return np.zeros(n, np.int64)
        return on_device_of((ctypes.c_int64 * n).from_address(address - address % 8))

    def ipcCloseMemHandle(self, address):
        self.closed.append(address)


def on_device_of(words):
    return np.frombuffer(words, np.int64).view(DeviceArray)


@pytest.fixture
def played(nccl, monkeypatch):
    """Memory that is played beside NCCL and CuPy."""
    import cupy

    memory = PlayedMemory()
    cupy.cuda.runtime = memory
    cupy.get_default_memory_pool = lambda: SimpleNamespace(free_all_blocks=lambda: None)
    cupy.cuda.Memory, cupy.cuda.MemoryPointer = memory.allocate, memory.point
    cupy.cuda.memory = SimpleNamespace(OutOfMemoryError=MemoryError)
    monkeypatch.setattr(cupy.cuda.Device, "synchronize", lambda self: None, raising=False)

    monkeypatch.setattr(ipc, "_find_words", memory.find_words)

    class Pinned(bytearray):
        ptr = 99

    cupy.cuda.alloc_pinned_memory = Pinned
    return memory


def share_all(groups, n_bytes):
    return run_ranks(len(groups), lambda rank: groups[rank].share(n_bytes))


def test_everybody_knows_where_the_memory_of_all_is(nccl, played):
    groups = start_groups(nccl, 3)
    shared = share_all(groups, UNIT + 5)
    own = [int(one.own.ptr) for one in shared]
    assert len(set(own)) == 3
    for rank, one in enumerate(shared):
        assert one.n_bytes == groups[rank].nbytes == 2 * UNIT
        assert one.own.buffer.raw == bytes(2 * UNIT)
        assert one.addresses == tuple(ptr + (k != rank) for k, ptr in enumerate(own))
        assert (one.round, one.is_given_up, one._given_up.tolist()) == (0, 99, [0])
    assert share_all(groups, UNIT) == shared
    assert not played.closed


def test_one_way_that_is_missing_is_none_for_all_and_tried_once(nccl, played, monkeypatch):
    groups, opened = start_groups(nccl, 3), []
    open_handle = played.ipcOpenMemHandle

    def refuse_some(handle):
        opened.append(handle)
        if len(opened) == 4:
            raise played.CUDARuntimeError("cudaErrorPeerAccessUnsupported")
        return open_handle(handle)

    monkeypatch.setattr(played, "ipcOpenMemHandle", refuse_some)
    assert share_all(groups, 1) == [None] * 3
    assert sorted(played.closed) == sorted(played.opened)
    assert share_all(groups, 1) == [None] * 3
    assert len(opened) <= 6
    assert [group.nbytes for group in groups] == [0] * 3


def test_without_handles_there_is_none(nccl, played):
    played.has_handles = False
    assert share_all(start_groups(nccl, 2), 1) == [None, None]
    assert not played.opened


def test_where_what_is_written_does_not_arrive_there_is_none(nccl, played):
    played.arrives = False
    assert share_all(start_groups(nccl, 3), 1) == [None] * 3
    assert len(played.opened) == 6
    assert sorted(played.closed) == sorted(played.opened)


@pytest.mark.parametrize("may_share", [False, True])
@pytest.mark.parametrize("others", ["of the host", "of another host", "too many"])
def test_which_groups_have_some(nccl, played, others, may_share):
    """Those of one host; where there are too many, not so many that are played connect."""
    n = 2 if others != "too many" else MOST_DEVICES + 1
    groups, _ = join_all([None] * n, hosts=[0, 1] if others == "of another host" else None, may_share=may_share)
    shared = share_all(groups, 1)
    assert [one is not None for one in shared] == [may_share and others == "of the host"] * n
    assert bool(played.opened) == (shared[0] is not None)


def test_no_room_is_said(nccl, played):
    [group] = start_groups(nccl, 1)
    played.room = UNIT
    with pytest.raises(CapacityError, match=r"the 4,194,304 bytes of vectors that other devices write into do not fit"):
        group.share(UNIT + 1)


def test_who_aborts_gives_up_waiting_and_closes(nccl, played):
    groups = start_groups(nccl, 2)
    shared = share_all(groups, 1)
    groups[0].abort()
    assert shared[0]._given_up.tolist() == [1]
    assert shared[1]._given_up.tolist() == [0]
    assert played.closed == [int(shared[1].own.ptr) + 1]
    assert groups[0].nbytes == 0
    groups[0].abort()
    assert len(played.closed) == 1
