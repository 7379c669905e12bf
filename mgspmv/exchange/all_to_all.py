"""Rounds of messages between workers, called turns: in each, every worker sends one message to every other."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the module imports Dask
    from mgspmv.exchange.peer_comm import PeerComm


class AllToAll:
    """All-to-all exchange in numbered turns, by which a message that arrives early is told from one of this turn.

    A worker begins a turn when it has received all messages of the previous one. Another worker is at most one turn
    ahead, and so at most one early message of each is kept.

    Parameters
    ----------
    peer_comm : connections to the other workers
    rank : rank of this worker
    n_workers : number of workers, with this one

    Attributes
    ----------
    number : number of this turn
    others : ranks of the other workers, from the next one on, so that not all send to the same one first
    exchanged_s : total seconds of trades, without waiting
    waited_s : total seconds that the slowest worker took longer between trades than this one
    received_bytes : total bytes of vectors, counted by the callers of `trade`
    """

    def __init__(self, peer_comm: PeerComm, rank: int, n_workers: int) -> None:
        self._peer_comm, self.rank = peer_comm, rank
        self._early: dict[int, dict[str, Any]] = {}
        self.number = 0
        self._since = time.perf_counter()
        self.exchanged_s = self.waited_s = 0.0
        self.received_bytes = 0
        self.others = (*range(rank + 1, n_workers), *range(rank))

    def begin(self) -> None:
        """Restart the time of this worker's work, which its next trade ends."""
        self._since = time.perf_counter()

    def gather(self, given: dict[str, Any]) -> list[dict[str, Any]]:
        """Gather the values of all workers, by rank, in a separate turn.

        Parameters
        ----------
        given : numbers, and arrays that are not written to again
        """
        answers = {self.rank: given, **self.trade(dict.fromkeys(self.others, given))}
        return [answers[rank] for rank in sorted(answers)]

    def trade(self, messages: Mapping[int, dict[str, Any]]) -> dict[int, dict[str, Any]]:
        """Exchange messages with each other worker, by rank, in a separate turn. Arrays in them must not be written to
        before the turn after the next."""
        began = time.perf_counter()
        own_s = began - self._since
        self._peer_comm.send({r: {"number": self.number, "own_s": own_s, **message} for r, message in messages.items()})
        received: dict[int, dict[str, Any]] = {}
        while missing := set(self.others) - received.keys():
            rank, received[rank] = self._take(missing)
        self.number += 1
        self._since = time.perf_counter()
        elapsed_s = self._since - began
        slowest_s = max([own_s, *(message["own_s"] for message in received.values())])
        waited_s = min(elapsed_s, slowest_s - own_s)
        self.waited_s += waited_s
        self.exchanged_s += elapsed_s - waited_s
        return received

    def _take(self, missing: set[int]) -> tuple[int, dict[str, Any]]:
        """Return the next message of this turn from any of these workers, with its sender's rank first."""
        for rank in missing & self._early.keys():
            return rank, self._early.pop(rank)
        while True:
            rank, message = self._peer_comm.receive(sorted(missing))
            if message["number"] == self.number:
                return rank, message
            self._early[rank] = message
