"""Slices and sums from worker to worker, each sending to each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from mgspmv.exchange.halo import Halo, pack
from mgspmv.model import StepSums

SMALL = 1 << 16
"""Bytes of a slice that is copied into its message, which takes less time than the header of an array of its own."""


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
    """One z, which is overwritten when the product that read it is done, and slots for the next slice.

    What is sent (the slot, and what is packed of it) takes turns with a second one: nobody begins a product before it
    has everybody's slice, so that what is written again, two steps after it was sent, has been received. For the same
    reason at most one message of each other worker waits here.

    Parameters
    ----------
    links : to the other workers
    halo : the columns that are held here
    wanted : for each worker, which rows of this one it asked for; None for all; any at the place of this worker
    dtype : of the vectors
    """

    def __init__(self, links: Links, halo: Halo, wanted: Sequence[np.ndarray | None], dtype: np.dtype[Any]) -> None:
        self._links, self._halo, self._wanted = links, halo, wanted
        # Each begins with the one after it, so that they do not all send to the same one first.
        ranks = range(len(wanted))
        self._others = [*ranks[halo.rank + 1 :], *ranks[: halo.rank]]
        self._starts = halo.starts
        self._number = 0
        self._early: dict[int, dict[str, Any]] = {}
        self.exchanged_bytes = 0
        self.waited_s = 0.0
        self._z: np.ndarray
        self._slots: tuple[np.ndarray, ...]
        self._packs: tuple[dict[int, np.ndarray], ...]
        self.restart(dtype)

    @property
    def z(self) -> np.ndarray:
        return self._z

    @property
    def nbytes(self) -> int:
        lists = self._halo.nbytes + sum(rows.nbytes for rows in self._wanted if rows is not None)
        sent = sum(s.nbytes for s in self._slots) + sum(out.nbytes for packs in self._packs for out in packs.values())
        return self._z.nbytes + sent + lists

    def slot(self, start: int, stop: int) -> np.ndarray:
        first = self._halo.bounds[self._halo.rank]
        return self._slots[self._number % 2][start - first : stop - first]

    def exchange(self, sums: StepSums, product_s: float = 0.0) -> StepSums:
        self._send(sums, product_s)
        self._put(self._halo.rank, self._slots[self._number % 2])
        slowest_s = product_s
        missing = set(self._others)
        while missing:
            rank, message = self._take(missing)
            missing.remove(rank)
            slice_ = np.frombuffer(message["z"], self._z.dtype)
            self._put(rank, slice_)
            self.exchanged_bytes += slice_.nbytes
            sums += StepSums(*message["sums"])
            slowest_s = max(slowest_s, message["product_s"])
        self.waited_s += slowest_s - product_s
        self._number += 1
        return sums

    def restart(self, dtype: np.dtype[Any]) -> None:
        self._z, self._slots, self._packs = np.empty(0), (), ()  # so that old and new are never there at once
        rank = self._halo.rank
        self._z = np.zeros(self._starts[-1], dtype)
        self._slots = tuple(np.zeros(self._starts[rank + 1] - self._starts[rank], dtype) for _ in range(2))
        sizes = {other: len(rows) for other in self._others if (rows := self._wanted[other]) is not None}
        self._packs = tuple({other: np.empty(size, dtype) for other, size in sizes.items()} for _ in range(2))

    def _put(self, rank: int, slice_: np.ndarray) -> None:
        self._z[self._starts[rank] : self._starts[rank + 1]] = slice_

    def _send(self, sums: StepSums, product_s: float) -> None:
        slot, packs = self._slots[self._number % 2], self._packs[self._number % 2]
        totals = (sums.change_l1, sums.change_linf, sums.dangling, sums.n_wrong)
        head = {"number": self._number, "product_s": product_s, "sums": totals}
        # All are packed before any is sent: while the event loop sends, this thread would wait for Python's lock.
        for rank, out in packs.items():
            pack(slot, self._wanted[rank], out)
        slices = {rank: packs.get(rank, slot) for rank in self._others}
        self._links.send({rank: {**head, "z": s.tobytes() if s.nbytes < SMALL else s} for rank, s in slices.items()})

    def _take(self, missing: set[int]) -> tuple[int, dict[str, Any]]:
        for rank in missing & self._early.keys():
            return rank, self._early.pop(rank)
        while True:
            rank, message = self._links.receive(sorted(missing))
            if message["number"] == self._number:
                return rank, message
            self._early[rank] = message
