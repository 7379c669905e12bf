"""What all workers give to all others between two steps."""

from __future__ import annotations

import numpy as np

from mgspmv.exchange.turns import Turns
from tests.support.peers import Network, run_workers


def check_everybody_has_what_each_gave_in_each_turn(n_workers):
    network = Network(n_workers, seed=n_workers)

    def work(rank):
        turns = Turns(network.links(rank), rank, n_workers)
        for turn in range(4):
            answers = turns.gather({"own": 10 * turn + rank, "rows": np.full(rank, turn)})
            assert [a["own"] for a in answers] == [10 * turn + r for r in range(n_workers)]
            assert [a["rows"].tolist() for a in answers] == [[turn] * r for r in range(n_workers)]
        assert turns.number == 4

    run_workers(network, n_workers, work)


def test_everybody_has_what_each_gave_in_each_turn():
    for n_workers in [1, 2, 5]:
        check_everybody_has_what_each_gave_in_each_turn(n_workers)


def test_what_comes_early_is_kept_for_its_turn():
    class Scripted:
        def __init__(self):
            self.arrivals = [(1, 0), (1, 1), (2, 0), (2, 1)]

        def send(self, messages):
            assert sorted(messages) == [1, 2]

        def receive(self, missing):
            rank, number = self.arrivals.pop(0)
            return rank, {"number": number, "own": (rank, number)}

    turns = Turns(Scripted(), 0, 3)
    for number in range(2):
        assert [a["own"] for a in turns.gather({"own": (0, number)})] == [(r, number) for r in range(3)]
