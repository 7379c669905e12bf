"""Slices by NCCL, which is played here: what every device gets, and how a wait ends when others do not come."""

from __future__ import annotations

import os
import threading
import time
import weakref
from functools import partial
from queue import SimpleQueue
from types import SimpleNamespace

import numpy as np
import pytest

from mgspmv.errors import ClusterError, RunAbortedError, WorkerLostError
from mgspmv.exchange import nccl as module
from mgspmv.exchange.nccl import NcclGroup, await_ends, find_nccl_problem, find_stuck, greet, join_group, let_go
from mgspmv.exchange.peer import AllToAll
from mgspmv.heartbeat import make_heartbeat
from tests.support.nccl import (
    Failing,
    PlayedDevice,
    PlayedStream,
    exchange,
    make_check,
    on_device,
    run_ranks,
    start_groups,
)
from tests.support.peers import StuckError
from tests.support.waiting import HANG_S, wait_for

BOUNDS = {
    "one": (0, 5),
    "two": (0, 3, 8),
    "five": (0, 4, 5, 13, 17, 20),
    "without rows": (0, 0, 9, 9, 20, 20),
    "none": (0, 0, 0),
}


@pytest.mark.parametrize("n", [1, 2, 5])
def test_arrays_of_any_length_are_traded(n, nccl):
    groups = start_groups(nccl, n)

    def work(rank):
        return groups[rank].trade(
            [on_device(np.arange(to * (rank + to) % 4) + 10 * rank + 100 * to) for to in range(n)]
        )

    for to, found in enumerate(run_ranks(n, work)):
        wanted = [10 * rank + 100 * to + k for rank in range(n) for k in range(to * (rank + to) % 4)]
        assert found.tolist() == wanted


@pytest.mark.parametrize("bounds", BOUNDS.values(), ids=BOUNDS.keys())
def test_everybody_gets_the_parts_of_everybody(nccl, bounds):
    n = len(bounds) - 1
    groups = start_groups(nccl, n)

    def work(rank, dtype):
        array, (a, b) = on_device(np.full(bounds[-1], -1, dtype)), bounds[rank : rank + 2]
        for step in range(1, 6):
            wanted = (1000 * step + np.arange(bounds[-1])).astype(dtype)
            array[a:b] = wanted[a:b]
            exchange(groups[rank], array, bounds)
            groups[rank].wait(PlayedStream(nccl))
            assert array.tolist() == wanted.tolist(), dtype

    for dtype in (np.int64, np.float32, np.int32):
        run_ranks(n, partial(work, dtype=dtype))
    assert [c.n_aborted for c in nccl.made] == [0] * n


def test_each_gets_what_is_meant_for_it(nccl):
    """Some nothing; and what is at the place of a device itself is left alone."""
    groups = start_groups(nccl, 4)

    def make(sender, receiver):
        return on_device(np.full((2 * sender + receiver) % 3, 10.0 * sender + receiver))

    def work(rank):
        sent = [make(rank, other) for other in range(4)]
        received = [on_device(np.full(len(make(sender, rank)), -1.0)) for sender in range(4)]
        received[rank] = on_device(np.full(5, -1.0))
        groups[rank].exchange(sent, received)
        groups[rank].wait(PlayedStream(nccl))
        wanted = [make(sender, rank).tolist() if sender != rank else [-1] * 5 for sender in range(4)]
        assert [one.tolist() for one in received] == wanted

    run_ranks(4, work)


def test_what_is_closed_gives_back_its_memory_before_the_next_connects(nccl):
    (group,) = start_groups(nccl, 1)
    order, goes_on = [], threading.Event()

    def abort():
        goes_on.wait(HANG_S)
        order.append("closed")

    nccl.made[0].abort = abort
    nccl.connecting = lambda rank: order.append("connects")
    group.close()
    assert order == []  # it is not waited for here
    threading.Timer(0.2, goes_on.set).start()
    start_groups(nccl, 1)
    assert order == ["closed", "connects"]


def leave_alone(nccl):
    """A group of two of which only the first sends."""
    group, _ = start_groups(nccl, 2)
    exchange(group, on_device(np.zeros(2)), (0, 1, 2))
    communicator = next(c for c in nccl.made if c.rank == 0)
    return group, communicator


@pytest.mark.parametrize("error", [WorkerLostError("worker 1 is gone"), RunAbortedError("given up"), SystemExit()])
def test_what_is_found_while_waiting_ends_the_wait_and_the_group(nccl, error):
    group, communicator = leave_alone(nccl)
    assert group.is_alive
    failing = Failing(error)
    group.check = failing
    with pytest.raises(type(error)) as caught:
        group.wait(PlayedStream(nccl))
    assert caught.value is error
    assert failing.left == 0
    assert (group.is_alive, communicator.n_aborted) == (False, 1)
    group.abort()
    assert communicator.n_aborted == 1


def test_an_error_of_nccl_ends_the_wait_and_the_group(nccl):
    group, communicator = leave_alone(nccl)
    communicator.error = nccl.NcclError("NCCL_ERROR_REMOTE_ERROR: remote process exited")
    with pytest.raises(ClusterError) as caught:
        group.wait(PlayedStream(nccl))
    assert str(caught.value) == ("NCCL failed on this device, rank 0: NCCL_ERROR_REMOTE_ERROR: remote process exited")
    assert caught.value.__cause__ is communicator.error
    assert (group.is_alive, communicator.n_aborted) == (False, 1)


@pytest.mark.parametrize("at", ["send", "recv"])
def test_an_error_of_nccl_while_enqueuing_ends_the_group(nccl, monkeypatch, at):
    group, _ = start_groups(nccl, 2)
    communicator = next(c for c in nccl.made if c.rank == 0)
    error = nccl.NcclError("NCCL_ERROR_UNHANDLED_CUDA_ERROR: unhandled cuda error")

    def fail(*_):
        raise error

    monkeypatch.setattr(communicator, at, fail)
    for message in (
        "NCCL failed on this device, rank 0: NCCL_ERROR_UNHANDLED",
        "NCCL was aborted on this device, rank 0",
    ):
        with pytest.raises(ClusterError, match=message):
            exchange(group, on_device(np.zeros(2)), (0, 1, 2))
    assert (group.is_alive, communicator.n_aborted) == (False, 1)
    nccl.groupStart()  # the group of messages was ended too
    nccl.groupEnd()


def test_nccl_that_cannot_connect(nccl):
    error = nccl.NcclError("NCCL_ERROR_SYSTEM_ERROR: unhandled system error")

    def refuse(rank):
        raise error

    nccl.connecting = refuse
    with pytest.raises(ClusterError) as caught:
        NcclGroup(1, 2, nccl.get_unique_id(), make_check(), may_share=True)
    assert str(caught.value) == (
        "NCCL cannot connect the devices of 2 workers: NCCL_ERROR_SYSTEM_ERROR: unhandled system error (rank 1); "
        "NCCL_DEBUG=INFO in the workers' environment gives details"
    )
    assert (caught.value.phase, caught.value.__cause__) == ("connect", error)


def test_devices_that_do_not_find_each_other_in_time(nccl, monkeypatch):
    monkeypatch.setattr(module, "CONNECT_S", 0.2)
    began = time.monotonic()
    with pytest.raises(ClusterError) as caught:
        NcclGroup(0, 2, nccl.get_unique_id(), make_check(), may_share=True)
    assert time.monotonic() - began >= 0.2
    assert str(caught.value) == (
        "NCCL did not connect the devices of 2 workers within 0.2 s (rank 0); in the workers' environment "
        "NCCL_DEBUG=INFO gives details, NCCL_SOCKET_IFNAME sets the network"
    )
    assert caught.value.phase == "connect"


@pytest.mark.parametrize("error", [WorkerLostError("worker 1 is gone"), RunAbortedError("given up")])
def test_workers_are_watched_while_devices_connect(nccl, error):
    failing = Failing(error)
    with pytest.raises(type(error)) as caught:
        NcclGroup(0, 2, nccl.get_unique_id(), failing, may_share=True)
    assert caught.value is error
    assert failing.left == 0


@pytest.mark.parametrize("error", [WorkerLostError("worker 1 is gone"), RunAbortedError("given up")])
def test_what_connects_without_being_done_is_aborted(nccl, monkeypatch, error):
    """A pair of devices that do not send each other anything, as NCCL leaves those whose other side was stopped."""
    is_given_up = threading.Event()
    monkeypatch.setattr(module, "_send_to_all", lambda *_: is_given_up.wait(HANG_S))
    with pytest.raises(type(error)):
        run_ranks(2, lambda rank: NcclGroup(rank, 2, b"x" * 128, Failing(error, 20), may_share=True))
    is_given_up.set()
    assert wait_for(lambda: [c.n_aborted for c in nccl.made] == [1, 1])


def connect_too_late(nccl):
    """A group that its first device gave up before the second one came, whose communicator is made all the same."""
    unique_id, error = nccl.get_unique_id(), WorkerLostError("worker 1 is gone")
    for rank in (0, 1):
        with pytest.raises(WorkerLostError, match="worker 1 is gone"):
            run_ranks(1, lambda _, rank=rank: NcclGroup(rank, 2, unique_id, Failing(error, 20), may_share=True))
    assert wait_for(lambda: len(nccl.made) == 2)
    return next(c for c in nccl.made if c.rank == 0)


def test_what_connects_after_it_was_given_up_is_aborted(nccl):
    """As where a worker is stopped while devices connect, and goes on later."""
    communicator = connect_too_late(nccl)
    assert wait_for(lambda: [c.n_aborted for c in nccl.made] == [1, 1])
    assert communicator.sent_to == []
    assert find_stuck() is None


def test_what_is_given_up_before_it_connects_does_not_connect(nccl):
    (group,) = start_groups(nccl, 1)
    goes_on, ranks, before = threading.Event(), [], {*threading.enumerate()}
    nccl.made[0].abort = lambda: goes_on.wait(HANG_S)
    nccl.connecting = ranks.append
    group.close()
    with pytest.raises(RunAbortedError, match="given up"):
        NcclGroup(1, 2, nccl.get_unique_id(), Failing(RunAbortedError("given up")), may_share=True)
    assert {*threading.enumerate()} != before, "a thread waits for what is closed"
    goes_on.set()
    assert wait_for(lambda: {*threading.enumerate()} <= before)
    assert ranks == []


@pytest.fixture
def endless(nccl, monkeypatch):
    """A device that does not come to rest until it is told to."""
    is_over = threading.Event()
    monkeypatch.setattr(PlayedDevice, "synchronize", lambda self: is_over.wait(HANG_S))
    monkeypatch.setattr(module, "ABORT_S", 0.2)
    yield is_over
    is_over.set()
    assert wait_for(lambda: find_stuck() is None)


def test_a_device_that_does_not_come_to_rest_is_waited_for_within_bounds(nccl, endless):
    group, communicator = leave_alone(nccl)
    began = time.monotonic()
    group.check = Failing(WorkerLostError("worker 1 is gone"))
    with pytest.raises(WorkerLostError, match="worker 1 is gone"):
        group.wait(PlayedStream(nccl))
    assert time.monotonic() - began >= 0.2
    assert not endless.is_set()
    assert (group.is_alive, communicator.n_aborted) == (False, 1)
    assert find_stuck() == (
        "has a GPU that does not become idle",
        "restart the worker",
    )
    endless.set()
    assert wait_for(lambda: find_stuck() is None)


def test_what_is_let_go_of_is_not_waited_for(nccl, endless):
    group, communicator = leave_alone(nccl)
    group.close()
    assert not group.is_alive
    assert wait_for(lambda: communicator.n_aborted == 1)
    assert find_stuck() is None


def test_memory_is_given_back_when_the_device_has_come_to_rest(nccl, endless):
    """Who asks for that does not wait; whoever wants the memory of the device can. This process has it before that."""

    class Used:
        pass

    group, _ = leave_alone(nccl)
    used, freed = Used(), []
    left, held = weakref.ref(used), [used]
    del used
    group.close()
    PlayedDevice.current.number = 9
    let_go(held, lambda: freed.append(PlayedDevice().number))
    await_ends(0.1)
    assert wait_for(lambda: left() is None)
    assert (held, freed) == ([], [])
    endless.set()
    await_ends(HANG_S)
    assert freed == [9]


def follow(group, nccl, stages, looks):
    """What the marks of a wait say at each look: how many there were, and whether it waits for others."""
    seen = []

    def check():
        seen.append((marks.n, marks.waits))
        if len(seen) > 30:
            looks()
        if len(seen) > 40:
            raise StuckError

    group.check = check
    with make_heartbeat() as marks, pytest.raises(StuckError):
        group.wait(PlayedStream(nccl), stages)
    assert not marks.waits
    return seen


def test_a_device_that_is_at_work_does_not_wait_for_others(nccl):
    group, _ = leave_alone(nccl)
    stages = [SimpleNamespace(done=done) for done in (True, True, False, False)]
    seen = follow(group, nccl, stages, lambda: setattr(stages[2], "done", True))
    assert (0, False) in seen[:30]
    assert seen[29] == (1, False)  # two of four are done: the second product is under way
    assert seen[-1] == (2, True)  # and now it is, and the slices of others are missing


class PlayedLinks:
    def __init__(self, boxes, rank, is_encrypted=False):
        self._boxes, self._rank, self.is_encrypted = boxes, rank, is_encrypted
        self.n_sent, self.check = 0, make_check()

    def send(self, messages):
        for other, message in messages.items():
            self.n_sent += 1
            # as bytes of another kind, which is what may come of them on their way
            sent = {key: bytearray(value) if isinstance(value, bytes) else value for key, value in message.items()}
            self._boxes[other].put((self._rank, sent))

    def receive(self, missing):
        assert missing
        return self._boxes[self._rank].get(timeout=HANG_S)


def join_all(held, hosts=None, *, may_share=True, networks=None, is_encrypted=False):
    """The group of each rank, which held these before, and how many messages were sent.

    Parameters
    ----------
    hosts, networks : of each rank but this; None for one
    """
    n = len(held)
    boxes = [SimpleQueue() for _ in range(n)]
    links = [PlayedLinks(boxes, rank, is_encrypted) for rank in range(n)]
    hellos = [greet(group) for group in held]
    for hello, host in zip(hellos, hosts or (), strict=False):
        hello["host"] = host
    for hello, network in zip(hellos, networks or (), strict=False):
        hello["network"] = network

    def work(rank):
        others = {other: hellos[other] for other in range(n) if other != rank}
        return join_group(AllToAll(links[rank], rank, n), others, held[rank], may_share=may_share)

    return run_ranks(n, work), sum(link.n_sent for link in links)


def check_exchange(nccl, groups):
    n = len(groups)

    def work(rank):
        array = on_device(np.full(n, -1))
        array[rank] = rank
        exchange(groups[rank], array, range(n + 1))
        groups[rank].wait(PlayedStream(nccl))
        assert array.tolist() == list(range(n))

    run_ranks(n, work)


def test_who_has_no_group_makes_one_with_the_others(nccl):
    groups, n_sent = join_all([None] * 3)
    assert n_sent == 6
    assert [(g.rank, g.n_devices) for g in groups] == [(0, 3), (1, 3), (2, 3)]
    assert len({g.name for g in groups}) == 1
    check_exchange(nccl, groups)


@pytest.mark.parametrize("hosts", [None, "aab"])
def test_a_group_that_all_have_is_used_again(nccl, hosts):
    held, _ = join_all([None] * 3, hosts)
    checks = [group.check for group in held]
    groups, n_sent = join_all(held, hosts)
    assert n_sent == 0
    assert all(group is before for group, before in zip(groups, held, strict=True))
    assert all(group.check is not check for group, check in zip(groups, checks, strict=True))
    assert [c.n_aborted for c in nccl.made] == [0] * 3
    check_exchange(nccl, groups)


@pytest.mark.parametrize(("rank", "lost"), [(0, "none"), (2, "aborted"), (0, "another"), (2, "none")])
def test_a_group_that_one_has_not_is_made_anew_by_all(nccl, rank, lost):
    before, _ = join_all([None] * 3)
    held = list(before)
    if lost == "none":
        held[rank] = None
    elif lost == "aborted":
        held[rank].abort()
    else:
        held[rank] = join_all([None] * 3)[0][rank]
    groups, n_sent = join_all(held)
    assert n_sent == 6
    assert len({g.name for g in groups}) == 1
    assert groups[0].name not in {before[0].name, *(g.name for g in held if g is not None)}
    assert all(group.is_alive for group in groups)
    assert not any(group.is_alive for group in held if group is not None)
    check_exchange(nccl, groups)


@pytest.fixture
def seen(nccl):
    """What the environment says of the network whenever NCCL is used."""
    said, get_unique_id = [], nccl.get_unique_id
    look = lambda *_: said.append(os.environ.get("NCCL_SOCKET_IFNAME"))  # noqa: E731
    nccl.get_unique_id, nccl.connecting = lambda: (look(), get_unique_id())[1], look
    return said


@pytest.mark.parametrize(
    ("is_encrypted", "networks", "said", "wanted"),
    [
        (True, None, None, "lo"),
        (True, None, "ib0", "ib0"),
        (True, "aab", None, None),
        (False, None, None, None),
    ],
    ids=["one host", "one host and said", "several hosts", "without TLS"],
)
def test_with_tls_nccl_stays_on_the_host(nccl, seen, monkeypatch, is_encrypted, networks, said, wanted):
    """From its first use on."""
    if said is not None:
        monkeypatch.setenv("NCCL_SOCKET_IFNAME", said)
    join_all([None] * 3, networks=networks, is_encrypted=is_encrypted)
    assert seen == [wanted] * 4, "of a unique id and three communicators"


def test_what_is_missing_is_named(nccl):
    assert find_nccl_problem() is None
    nccl.available = False
    assert find_nccl_problem() == ("CuPy finds no NCCL; install mgspmv[cuda12] or mgspmv[cuda13], which include it")
