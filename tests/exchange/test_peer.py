"""Slices and sums between workers: what each sent is what each holds, in any order of messages."""

from __future__ import annotations

import time
from functools import partial

import numpy as np
import pytest

from mgspmv.exchange import peer
from mgspmv.exchange.peer import AllToAll, Halo, PeerExchange
from mgspmv.model import StepSums
from tests.support.peers import Network, StuckError, run_workers

INT64 = np.dtype(np.int64)


@pytest.fixture(autouse=True)
def _without_copies(monkeypatch):
    """Slices go by reference, also small ones, so that whoever writes into what was sent is found out."""
    monkeypatch.setattr(peer, "SMALL", 0)


def random_halos(bounds, seed=0):
    """For each worker, some columns of every other one, or all of them."""
    rng = np.random.default_rng(seed)

    def choose(size):
        rows = np.flatnonzero(rng.random(size) < rng.choice([0, 0.1, 0.4])).astype(np.int32)
        return None if rng.random() < 0.3 or not size else rows

    sizes = np.diff(bounds)
    return [
        Halo(rank, bounds, tuple(None if owner == rank else choose(size) for owner, size in enumerate(sizes)))
        for rank in range(len(sizes))
    ]


def make_opener(links, halos, rank):
    """Opens transports of one worker; the others ask it for what they need."""
    halos[rank].bounds[rank + 1] - halos[rank].bounds[rank]
    wanted = [h.needed[rank] for h in halos]
    return PeerExchange(AllToAll(links, rank, len(halos)), halos[rank], wanted).open


def make_transport(links, halos, rank):
    return make_opener(links, halos, rank)(partial(np.zeros, dtype=INT64))


def make_z(step, n, dtype=INT64):
    """What all workers together write in a step."""
    return (1000 * step + np.arange(n)).astype(dtype)


def write_own(transport, halo, z):
    """Fill the slot of a worker's rows."""
    transport.slot()[:] = z[halo.bounds[halo.rank] : halo.bounds[halo.rank + 1]]


BOUNDS = {
    "two": (0, 11, 20),
    "three": (0, 7, 9, 20),
    "five": (0, 4, 8, 13, 17, 20),
    "without rows": (0, 0, 9, 9, 20),
    "more than rows": (0, 1, 1, 2, 3, 3),
}


def check_slices(bounds, last):
    n, n_workers = bounds[-1], len(bounds) - 1
    for seed in range(3):
        halos = random_halos(bounds, seed)
        network = Network(n_workers, seed, last)

        def work(rank, halos=halos, network=network):
            transport = make_transport(network.links(rank), halos, rank)
            for step in range(1, 7):
                z = make_z(step, n)
                write_own(transport, halos[rank], z)
                [sums] = transport.exchange_columns([StepSums(step, step + rank, 2 * rank, rank == 1)])
                assert sums == StepSums(n_workers * step, step + n_workers - 1, n_workers * (n_workers - 1), 1)
                assert transport.z.tolist() == halos[rank].select(z).tolist()

        run_workers(network, n_workers, work)
        assert network.most_waiting <= 2


@pytest.mark.parametrize("small", [0, 30, 1000], ids=["arrays", "arrays and bytes", "bytes"])
@pytest.mark.parametrize("last", [None, 0, 1])
def test_everybody_holds_what_everybody_wrote(monkeypatch, last, small):
    monkeypatch.setattr(peer, "SMALL", small)
    for bounds in BOUNDS.values():
        check_slices(bounds, last)


def test_what_was_sent_is_not_written_again_before_it_was_read():
    """Arrays go by reference here, and are compared with copies when they are delivered."""
    bounds = BOUNDS["five"]
    halos = random_halos(bounds, seed=2)
    network = Network(5, last=3)
    assert {rows is None for halo in halos for rows in halo.needed} == {True, False}

    class Checked:
        def __init__(self, rank):
            self._links = network.links(rank)

        def send(self, messages):
            self._links.send({rank: m | {"as sent": bytes(m["z"])} for rank, m in messages.items()})

        def receive(self, missing):
            sender, message = self._links.receive(missing)
            assert isinstance(message["z"], np.ndarray)
            assert bytes(message["z"]) == message["as sent"]
            return sender, message

    def work(rank):
        open_transport = make_opener(Checked(rank), halos, rank)
        for step in range(1, 9):
            if step in (1, 6):
                transport = open_transport(partial(np.zeros, dtype=INT64))
            write_own(transport, halos[rank], make_z(step, 20))
            transport.exchange_columns([StepSums()])

    run_workers(network, 5, work)


def test_messages_that_come_early_are_kept_for_their_step():
    """Worker 1 has everybody's first slices, and sends its second one before worker 2's first one is here."""
    halos = random_halos((0, 2, 4, 6))
    halos = [Halo(h.rank, h.bounds, (None,) * 3) for h in halos]

    class Scripted:
        def __init__(self, *arrivals):
            self.arrivals, self.asked, self.numbers = list(arrivals), [], []

        def send(self, messages):
            assert sorted(messages) == [1, 2]
            self.numbers.append(messages[1]["number"])

        def receive(self, missing):
            self.asked.append(list(missing))
            rank, step = self.arrivals.pop(0)
            z = make_z(step, 6)[2 * rank : 2 * rank + 2]
            return rank, {"number": self.numbers[0] + step, "z": z, "sums": [(step, 0, 0, 0)], "own_s": 0.0}

    links = Scripted((1, 0), (1, 1), (2, 0), (2, 1), (2, 2), (1, 2))
    transport = make_transport(links, halos, 0)
    for step in range(3):
        write_own(transport, halos[0], make_z(step, 6))
        assert transport.exchange_columns([StepSums(change_l1=step)])[0].change_l1 == 3 * step
        assert transport.z.tolist() == make_z(step, 6).tolist()
    assert links.asked == [[1, 2], [2], [2], [2], [1, 2], [1]]


def test_only_what_was_asked_for_is_sent():
    halos = random_halos(BOUNDS["three"], seed=4)
    network = Network(3)
    links = [network.links(rank) for rank in range(3)]

    def work(rank):
        transport = make_transport(links[rank], halos, rank)
        for step in (1, 2):
            write_own(transport, halos[rank], make_z(step, 20))
            transport.exchange_columns([StepSums()])
        return transport.exchanged_bytes

    received = run_workers(network, 3, work)
    for rank in range(3):
        assert [memoryview(m["z"]).nbytes for _, m in links[rank].sent] == 2 * [
            8 * halos[other].count(rank) for other in ((rank + 1) % 3, (rank + 2) % 3)
        ]
        others = sum(halos[rank].count(other) for other in range(3) if other != rank)
        assert received[rank] == 2 * 8 * others


def test_a_worker_that_gives_up_leaves_the_others_waiting():
    """Who waits is woken by the links alone; a transport makes nothing up."""
    halos = random_halos(BOUNDS["three"])
    network = Network(3)

    def work(rank):
        transport = make_transport(network.links(rank), halos, rank)
        for step in (1, 2, 3):
            if (rank, step) == (1, 3):
                return
            write_own(transport, halos[rank], make_z(step, 20))
            transport.exchange_columns([StepSums()])

    with pytest.raises(StuckError):
        run_workers(network, 3, work)


def test_sums_are_exact_whatever_their_size():
    """Each fits an int64, their sum does not; no float64 tells the last digits."""
    n_workers = 5
    halos = random_halos(BOUNDS["five"])
    network = Network(n_workers, seed=5)
    given = [StepSums(2**62 - rank, 2**62 - 3 * rank, 2**61 + rank, 2**40 + rank) for rank in range(n_workers)]

    def work(rank):
        transport = make_transport(network.links(rank), halos, rank)
        return [transport.exchange_columns([given[rank]])[0] for _ in range(3)]

    wanted = StepSums(5 * 2**62 - 10, 2**62, 5 * 2**61 + 10, 5 * 2**40 + 10)
    assert run_workers(network, n_workers, work) == [[wanted] * 3] * n_workers


@pytest.mark.parametrize(("other_s", "waits"), [(1000.0, True), (0.0, False)])
def test_who_is_faster_than_the_slowest_waits_for_it(other_s, waits):
    class Late:
        def send(self, messages):
            pass

        def receive(self, missing):
            time.sleep(0.1)
            return 1, {"number": 0, "own_s": other_s, "z": np.zeros(1, np.int64), "sums": [(0, 0, 0, 0)]}

    transport = make_transport(Late(), [Halo(rank, (0, 1, 2), (None, None)) for rank in range(2)], 0)
    transport.exchange_columns([StepSums()])
    assert (transport.waited_s >= 0.1) is waits


@pytest.mark.parametrize("small", [0, 1000], ids=["arrays", "bytes"])
def test_opened_in_another_dtype_while_others_are_still_in_the_old_one(monkeypatch, small):
    monkeypatch.setattr(peer, "SMALL", small)
    bounds = BOUNDS["three"]
    halos = random_halos(bounds, seed=1)

    def work(rank, network):
        open_transport = make_opener(network.links(rank), halos, rank)
        for dtype in (INT64, np.dtype(np.float64), np.dtype(np.float32)):
            transport = open_transport(partial(np.zeros, dtype=dtype))
            assert transport.z.dtype == transport.slot().dtype == dtype
            assert not transport.z.any()
            for step in (1, 2):
                z = make_z(step, 20, dtype) / dtype.type(4) if dtype.kind == "f" else make_z(step, 20)
                write_own(transport, halos[rank], z)
                transport.exchange_columns([StepSums()])
                assert transport.z.dtype == dtype
                assert transport.z.tolist() == halos[rank].select(z).tolist()

    for last in range(3):
        run_workers(network := Network(3, seed=last, last=last), 3, partial(work, network=network))
