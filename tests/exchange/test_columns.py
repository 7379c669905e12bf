"""Columns of vectors from whoever has them, cut by one matrix's rows and read by another one's columns."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgspmv.exchange import columns
from mgspmv.exchange.columns import Columns, TimedTurns, cut_again, hold_all
from mgspmv.exchange.halo import Halo, find_asked
from tests.support.peers import Network, run_workers

FLOAT64 = np.dtype(np.float64)


@pytest.fixture(autouse=True)
def _without_copies(monkeypatch):
    """Slices go by reference, also small ones, so that whoever writes into what was sent is found out."""
    monkeypatch.setattr(columns, "SMALL", 0)


def make_halo(rank, bounds, held):
    """Of the columns that a mask marks; all of a worker as None."""
    needed = (None if held[a:b].all() else np.flatnonzero(held[a:b]).astype(np.int32) for a, b in pairwise(bounds))
    return Halo(rank, bounds, tuple(needed))


def list_columns(halo):
    """The global numbers of what is held, in the order of holding it."""
    return halo.select(np.arange(halo.bounds[-1])).tolist()


@given(st.data())
def test_columns_cut_again_are_the_same(data):
    n = data.draw(st.integers(0, 20))
    held = np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)), bool)
    cuts = st.lists(st.integers(0, n), min_size=2, max_size=2).map(lambda c: (0, *sorted(c), n))
    old, new = data.draw(cuts), data.draw(cuts)
    halo = make_halo(1, old, held)
    again = cut_again(halo, new)
    assert list_columns(again) == list_columns(halo) == np.flatnonzero(held).tolist()
    wanted = make_halo(1, new, held)
    for found, rows in zip(again.needed, wanted.needed, strict=True):
        assert (found is None) == (rows is None)
        assert found is None or found.dtype == np.int32
    assert (again.bounds, again.rank) == (new, 1)


def test_columns_that_are_cut_alike_are_left_as_they_are():
    halo = make_halo(0, (0, 2, 5), np.array([1, 0, 1, 1, 0], bool))
    assert cut_again(halo, (0, 2, 5)) is halo


def gather_by_turns(network, rank, all_halos, n_turns):
    """In each turn, a vector of each kind goes round, and a number; what this worker got."""
    turns = TimedTurns(network.links(rank), rank, len(all_halos[0]))
    shared = []
    for halos in all_halos:
        first, last = halos[rank].bounds[rank : rank + 2]
        wanted = [find_asked(h.ask(rank), last - first) for h in halos]
        shared.append((Columns(turns, halos[rank], wanted, FLOAT64), first, last))
    turns.begin()
    got = []
    for turn in range(n_turns):
        for k, (own, first, last) in enumerate(shared):
            got.append(own.gather(100.0 * turn + 1000 * k + np.arange(first, last)).tolist())
        told = turns.tell({"value": rank * turn})
        got.append(sorted(message["value"] for message in told.values()))
    return got, turns


def check_each_has_the_columns_that_it_reads(seed):
    rng, n = np.random.default_rng(seed), 30
    cuts = [(0, 7, 12, 12, n), (0, 0, 20, 25, n)]
    masks = rng.random((2, 4, n)) < rng.choice([0.1, 0.5, 1.0], (2, 4, 1))
    # What is made by the rows of one is read by the columns of the other.
    all_halos = [[cut_again(make_halo(r, cuts[1 - k], masks[k, r]), cuts[k]) for r in range(4)] for k in range(2)]
    network = Network(4, seed)
    found = run_workers(network, 4, lambda rank: gather_by_turns(network, rank, all_halos, 3))
    for rank, (got, turns) in enumerate(found):
        wanted = []
        for turn in range(3):
            wanted += [(100.0 * turn + 1000 * k + np.flatnonzero(masks[k, rank])).tolist() for k in range(2)]
            wanted.append(sorted(r * turn for r in range(4) if r != rank))
        assert got == wanted
        mine = sum(int(masks[k, rank, slice(*cuts[k][rank : rank + 2])].sum()) for k in range(2))
        assert turns.received_bytes == 3 * 8 * (int(masks[:, rank].sum()) - mine)
        assert min(turns.exchanged_s, turns.waited_s) >= 0


def test_each_has_the_columns_that_it_reads():
    for seed in range(5):
        check_each_has_the_columns_that_it_reads(seed)


def test_one_worker_needs_no_others():
    network = Network(1)
    [(got, turns)] = run_workers(network, 1, lambda rank: gather_by_turns(network, rank, [[hold_all(0, (0, 3))]], 2))
    assert got == [[0, 1, 2], [], [100, 101, 102], []]
    assert turns.received_bytes == 0


def test_bytes_are_those_of_columns_lists_and_what_is_sent():
    halo = make_halo(0, (0, 4, 8), np.array([1, 1, 1, 1, 1, 0, 0, 1], bool))
    turns = TimedTurns(Network(2).links(0), 0, 2)
    assert Columns(turns, halo, [None, np.array([1, 3], np.int32)], FLOAT64).nbytes == 6 * 8 + 2 * 4 + 2 * 4 + 2 * 8
    assert Columns(turns, halo, [None, None], FLOAT64).nbytes == 6 * 8 + 2 * 4
