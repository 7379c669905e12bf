"""Slices and sums from worker to worker, each sending to each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from mgspmv.exchange.halo import Halo, pack
from mgspmv.model import StepSums


class Links(Protocol):
    """Connections to all other workers of a run."""

    def send(self, messages: Mapping[int, dict[str, Any]]) -> None:
        """Send a message to each of these, without waiting. They are read before long, but not at once."""
        ...

    def receive(self, missing: Sequence[int]) -> tuple[int, dict[str, Any]]:
        """Wait for the next message of any of them, and give who sent it.

        Parameters
        ----------
        missing : who has not sent yet what is waited for
        """
        ...


class PeerTransport:
    """Two buffers that take turns, filled with what others send; what is packed for them takes turns too.

    The numbers of messages keep workers in step: nobody sends a second slice before it has everybody's first, so that a
    buffer is written again only when all have read from it, and at most one message of each other worker waits.

    Parameters
    ----------
    links : to the other workers
    halo : the columns that are held here
    wanted : for each worker, which rows of this one it asked for; None for all; any at the place of this worker
    dtype : of the vectors
    """

    def __init__(self, links: Links, halo: Halo, wanted: Sequence[np.ndarray | None], dtype: np.dtype[Any]) -> None:
        self._links, self._halo, self._wanted = links, halo, wanted
        self._others = [rank for rank in range(len(wanted)) if rank != halo.rank]
        self._starts = halo.starts
        self._number = 0
        self._early: dict[int, dict[str, Any]] = {}
        self.exchanged_bytes = 0
        self.waited_s = 0.0
        self._current: np.ndarray
        self._next: np.ndarray
        self._packs: tuple[dict[int, np.ndarray], ...]
        self.restart(dtype)

    @property
    def z(self) -> np.ndarray:
        return self._current

    @property
    def nbytes(self) -> int:
        lists = self._halo.nbytes + sum(rows.nbytes for rows in self._wanted if rows is not None)
        packed = sum(out.nbytes for packs in self._packs for out in packs.values())
        return 2 * self._current.nbytes + lists + packed

    def slot(self, start: int, stop: int) -> np.ndarray:
        first = self._halo.bounds[self._halo.rank]
        return self._own[start - first : stop - first]

    def exchange(self, sums: StepSums, product_s: float = 0.0) -> StepSums:
        self._number += 1
        self._send(sums, product_s)
        slowest_s = product_s
        missing = set(self._others)
        while missing:
            rank, message = self._take(missing)
            missing.remove(rank)
            slice_ = message["z"]
            self._next[self._starts[rank] : self._starts[rank + 1]] = slice_
            self.exchanged_bytes += slice_.nbytes
            sums += StepSums(*message["sums"])
            slowest_s = max(slowest_s, message["product_s"])
        self.waited_s += slowest_s - product_s
        self._current, self._next = self._next, self._current
        return sums

    def restart(self, dtype: np.dtype[Any]) -> None:
        self._current = self._next = np.empty(0)  # before the new ones, so that both are never there at once
        self._packs = ()
        self._current, self._next = (np.zeros(self._starts[-1], dtype) for _ in range(2))
        rows = {rank: rows for rank, rows in enumerate(self._wanted) if rows is not None}
        self._packs = tuple({rank: np.empty(len(r), dtype) for rank, r in rows.items()} for _ in range(2))

    @property
    def _own(self) -> np.ndarray:
        rank = self._halo.rank
        return self._next[self._starts[rank] : self._starts[rank + 1]]

    def _send(self, sums: StepSums, product_s: float) -> None:
        own = self._own
        totals = (sums.change_l1, sums.change_linf, sums.dangling, sums.n_wrong)
        head = {"number": self._number, "product_s": product_s, "sums": totals}
        # Each begins with the one after it, so that they do not all send to the same one first. All are packed before
        # any is sent: while the event loop sends, this thread would wait for Python's lock.
        order = sorted(self._others, key=lambda other: (other - self._halo.rank) % len(self._wanted))
        packs = self._packs[self._number % 2]
        for rank, out in packs.items():
            pack(own, self._wanted[rank], out)
        self._links.send({rank: {**head, "z": packs.get(rank, own)} for rank in order})

    def _take(self, missing: set[int]) -> tuple[int, dict[str, Any]]:
        for rank in missing & self._early.keys():
            return rank, self._early.pop(rank)
        while True:
            rank, message = self._links.receive(sorted(missing))
            if message["number"] == self._number:
                return rank, message
            self._early[rank] = message
