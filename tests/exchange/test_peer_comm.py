"""Connections between the workers of a run, on workers of Dask in this process."""

from __future__ import annotations

import asyncio
import queue
import threading
from contextlib import ExitStack, closing
from itertools import count

import numpy as np
import pytest
from distributed.core import Status as ServerStatus

from mgspmv.errors import RunAbortedError, WorkerLostError
from mgspmv.exchange.peer import AllToAll
from mgspmv.exchange.peer_comm import LINK_OP, Member, PeerComm, RunSpec
from mgspmv.heartbeat import make_heartbeat
from tests.support.clusters import start_cluster
from tests.support.ports import find_free_port
from tests.support.waiting import HANG_S, wait_for

RUNS = (f"run {k}" for k in count())


over_both = pytest.mark.parametrize("workers", ["tcp://", "inproc://"], indirect=True)
"""Over sockets, and by reference as Dask does within a process."""


@pytest.fixture(scope="module")
def _clusters():
    with ExitStack() as stack:
        clusters = {}

        def get_cluster(protocol):
            if protocol not in clusters:
                clusters[protocol] = stack.enter_context(start_cluster(3, processes=False, protocol=protocol))
            return clusters[protocol]

        yield get_cluster


@pytest.fixture
def workers(_clusters, request):
    """Three workers of Dask, on one event loop."""
    cluster = _clusters(getattr(request, "param", "tcp://"))
    return [cluster.workers[k] for k in range(3)]


class Run:
    """Links between some workers, closed at the end.

    A worker hands what is opened to it to its links, as the agent of a worker does.
    """

    def __init__(self, workers, patience=HANG_S, members=None):
        self.name, self.workers = next(RUNS), workers
        self.members = members or [Member(w.name, w.address) for w in workers]
        self.opened = []
        self.gates = {}
        spec = RunSpec(self.name, tuple(self.members), patience)
        self.links = [PeerComm(w, rank, spec) for rank, w in enumerate(workers)]
        self.turns = [AllToAll(links, rank, len(self.members)) for rank, links in enumerate(self.links)]
        for rank, worker in enumerate(workers):
            worker.handlers[LINK_OP] = self._make_handler(rank)

    def make_hello(self, rank, other):
        asked = None if rank == other - 1 else np.arange(10 * rank, 10 * rank + other, dtype=np.uint8)
        return {"hello": (rank, other), "asked": asked}

    def greet(self, rank):
        """A call that greets all others."""
        turns = self.turns[rank]
        return Call(turns.greet, {other: self.make_hello(rank, other) for other in turns.others})

    def _make_handler(self, own):
        async def accept(comm, run, rank):
            if run == self.name:
                self.opened.append((rank, own))
                if (rank, own) in self.gates:
                    await self.gates[rank, own].wait()
                await self.links[own].accept(comm, rank)
            comm.abort()
            return ServerStatus.dont_reply

        return accept

    def close(self):
        for links in self.links:
            links.close("the test is over")
        for (_, rank), gate in self.gates.items():
            self.workers[rank].loop.asyncio_loop.call_soon_threadsafe(gate.set)


@pytest.fixture
def make_run(workers):
    with ExitStack() as stack:
        yield lambda n=2, **options: stack.enter_context(closing(Run(workers[:n], **options)))


class Call(threading.Thread):
    """A call in a thread of its own, begun at once."""

    def __init__(self, function, *args):
        super().__init__(daemon=True)
        self._call, self.value, self.error = (function, args), None, None
        self.start()

    def run(self):
        function, args = self._call
        try:
            self.value = function(*args)
        except BaseException as error:
            self.error = error

    def result(self):
        self.join(HANG_S)
        assert not self.is_alive(), "the call does not end"
        if self.error is not None:
            raise self.error
        return self.value


def connect_all(run):
    return [call.result() for call in [run.greet(rank) for rank in range(len(run.links))]]


class WatchedInbox:
    """The inbox of links, with a sign for what comes and for who waits."""

    def __init__(self, links):
        self._inbox = links._inbox
        links._inbox = self
        self.messages = queue.SimpleQueue()
        self.is_awaited = threading.Event()

    def put(self, item):
        self._inbox.put(item)
        self.messages.put(item)

    def get(self):
        self.is_awaited.set()
        return self._inbox.get()


def equal(found, wanted):
    """Whether two messages are the same, which have arrays in them."""
    return found.keys() == wanted.keys() and all(
        np.array_equal(found[k], v) and found[k].dtype == v.dtype if isinstance(v, np.ndarray) else found[k] == v
        for k, v in wanted.items()
    )


@over_both
def test_everybody_has_the_hello_of_everybody(make_run):
    run = make_run(3)
    for rank, hellos in enumerate(connect_all(run)):
        assert hellos.keys() == {0, 1, 2} - {rank}
        for other, hello in hellos.items():
            wanted = run.make_hello(other, rank)
            assert equal({key: hello[key] for key in wanted}, wanted)
    assert sorted(run.opened) == [(0, 1), (0, 2), (1, 2)]


@over_both
def test_data_that_come_before_the_hello_of_another_are_kept(make_run):
    """Worker 1 has all hellos and begins, while worker 0 still waits for that of worker 2."""
    run = make_run(3)
    gate = run.gates[0, 2] = asyncio.Event()
    inbox = WatchedInbox(run.links[0])
    slow, fast, other = map(run.greet, range(3))
    fast.result()
    run.links[1].send({0: {"number": 1, "own_s": 0.0, "z": np.arange(3)}})
    while (inbox.messages.get(timeout=HANG_S)[1] or {}).get("number") != 1:
        pass
    assert slow.is_alive()
    run.workers[2].loop.asyncio_loop.call_soon_threadsafe(gate.set)
    assert slow.result().keys() == {1, 2}
    assert other.result().keys() == {0, 1}
    run.links[2].send({0: {"number": 1, "own_s": 0.0}})
    received = run.turns[0].trade({1: {}, 2: {}})
    assert (received.keys(), len(received[1]["z"])) == ({1, 2}, 3)


def test_a_run_that_the_other_worker_does_not_know(make_run):
    run = make_run(2)
    run.name = "another run"
    with pytest.raises(WorkerLostError) as caught:
        run.greet(0).result()
    assert (caught.value.worker, caught.value.phase) == ("1", "connect")


def test_a_worker_that_is_not_there_is_named(make_run, workers):
    address = f"tcp://127.0.0.1:{find_free_port()}"
    members = [Member(0, workers[0].address), Member("gone", address)]
    run = make_run(1, patience=0.5, members=members)
    with pytest.raises(WorkerLostError, match=rf"^worker gone \({address}\) ") as caught:
        run.greet(0).result()
    assert (caught.value.worker, caught.value.phase) == ("gone", "connect")


@over_both
def test_messages_arrive_whole_and_once(make_run):
    run = make_run(3)
    connect_all(run)
    sent = {rank: [] for rank in range(3)}
    for number, size in enumerate([0, 1, 2_000_000, 7, 300_000, 0]):
        for rank in range(3):
            dtype = (np.int64, np.float32, np.float64)[rank]
            message = {"number": number, "z": np.arange(size).astype(dtype), "sums": (2**62, -1), "raw": bytes(rank)}
            sent[rank].append(message)
            run.links[rank].send({other: message for other in range(3) if other != rank})
    for rank in range(3):
        others = [other for other in range(3) if other != rank]
        received = {other: {} for other in others}
        for _ in range(12):
            sender, message = run.links[rank].receive(others)
            assert message["number"] not in received[sender]
            received[sender][message["number"]] = message
        for other in others:
            assert all(equal(received[other][wanted["number"]], wanted) for wanted in sent[other])


@over_both
def test_a_lost_worker_is_named_at_once(make_run):
    run = make_run(3)
    connect_all(run)
    run.links[0].heartbeat.phase = "iteration 7"
    waiting = Call(run.links[0].receive, [1, 2])
    run.links[2].close("it is killed")
    with pytest.raises(WorkerLostError) as caught:
        waiting.result()
    assert str(caught.value) == (
        f"worker {run.members[2]} closed its connection (during iteration 7, rank 2); it died, or aborted the run"
    )
    assert (caught.value.worker, caught.value.rank, caught.value.phase) == ("2", 2, "iteration 7")
    assert isinstance(caught.value, ConnectionError)
    run.links[0].send({2: {"number": 1}, 1: {"number": 1}})
    assert run.links[1].receive([0]) == (0, {"number": 1})


def test_a_look_at_the_others_finds_what_a_wait_for_them_does(make_run):
    run = make_run(3)
    connect_all(run)
    links = run.links[0]
    links.check()
    inbox = WatchedInbox(links)
    run.links[2].close("it is killed")
    assert inbox.messages.get(timeout=HANG_S) == (2, None)
    with pytest.raises(WorkerLostError, match=r"worker 2 \(.*\) closed its connection"):
        links.check()
    links.close("it is given up")
    with pytest.raises(RunAbortedError, match="it is given up"):
        links.check()


def test_a_task_that_waits_says_for_whom(make_run):
    run = make_run(3)
    connect_all(run)

    def wait_for_message():
        with make_heartbeat() as marks:
            watched.append(marks)
            with run.links[0].active("iteration 1"):
                return run.links[0].receive([1, 2])

    watched = []
    waiting = Call(wait_for_message)
    assert wait_for(lambda: watched and watched[0].waits)
    assert (watched[0].n, watched[0].phase, watched[0].awaited) == (0, "iteration 1", 1)
    run.links[1].send({0: {"number": 1}})
    assert waiting.result() == (1, {"number": 1})
    assert (watched[0].n, watched[0].waits, watched[0].awaited) == (1, False, None)


@over_both
@pytest.mark.parametrize("is_connected", [True, False])
def test_who_waits_is_told_why_it_ended(make_run, is_connected):
    run = make_run(2)
    run.gates[0, 1] = asyncio.Event()
    if is_connected:
        run.gates.clear()
        connect_all(run)
    run.links[0].heartbeat.phase = "iteration 3"
    inbox = WatchedInbox(run.links[0])
    waiting = Call(run.links[0].receive, [1]) if is_connected else run.greet(0)
    assert inbox.is_awaited.wait(HANG_S)
    run.links[0].close("run 5 was given up: interrupted")
    run.links[0].close("for another reason")
    with pytest.raises(RunAbortedError, match=r"^run 5 was given up: interrupted$") as caught:
        waiting.result()
    assert (caught.value.worker, caught.value.phase) == (None, "iteration 3")
    with pytest.raises(RunAbortedError, match=r"^run 5 was given up"):
        run.links[0].receive([1])


@over_both
def test_nothing_is_left_on_the_event_loop(make_run, workers):
    run = make_run(3)
    connect_all(run)
    run.links[0].send({1: {"z": np.zeros(10**6)}})
    comms = [comm for links in run.links for comm in links._comms.values()]
    assert len(comms) == 6
    run.close()

    async def drain():
        while any(links._tasks for links in run.links) or not all(comm.closed() for comm in comms):
            await asyncio.sleep(0.01)

    assert (
        asyncio.run_coroutine_threadsafe(asyncio.wait_for(drain(), HANG_S), workers[0].loop.asyncio_loop).result(HANG_S)
        is None
    )


@pytest.mark.parametrize(("protocols", "is_encrypted"), [(("tls", "tls"), True), (("tls", "tcp"), False)])
def test_links_are_encrypted_where_all_workers_are(workers, protocols, is_encrypted):
    members = [Member(rank, f"{protocol}://10.0.0.{rank}:40331") for rank, protocol in enumerate(protocols)]
    links = PeerComm(workers[0], 0, RunSpec(next(RUNS), tuple(members), HANG_S))
    assert links.is_encrypted is is_encrypted
