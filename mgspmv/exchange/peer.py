"""Slices and sums from worker to worker, each sending to each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mgspmv.exchange.halo import Halo, pack
from mgspmv.exchange.turns import Links, Turns
from mgspmv.model import StepSums

SMALL = 1 << 16
"""Bytes of a slice that is copied into its message, which takes less time than the header of an array of its own."""


class PeerTransport:
    """One z, which is overwritten when the product that read it is done, and slots for the next slice.

    What is sent (the slot, and what is packed of it) takes turns with a second one: nobody begins a product before it
    has everybody's slice, so that what is written again, two turns after it was sent, has been received.

    Parameters
    ----------
    links : to the other workers
    halo : the columns that are held here
    wanted : for each worker, which rows of this one it asked for; None for all; any at the place of this worker
    dtype : of the vectors
    zeros : makes the buffers, from (rows, dtype)
    turns : of the links, where other transports use these too; each exchange takes one
    """

    def __init__(
        self,
        links: Links,
        halo: Halo,
        wanted: Sequence[np.ndarray | None],
        dtype: np.dtype[Any],
        zeros: Callable[[int, Any], np.ndarray] = np.zeros,
        turns: Turns | None = None,
    ) -> None:
        self._turns = turns or Turns(links, halo.rank, len(wanted))
        self._halo, self._wanted, self._zeros = halo, wanted, zeros
        self._starts = halo.starts
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
        return self._slots[self._turns.number % 2][start - first : stop - first]

    def get_own(self, start: int, stop: int) -> np.ndarray:
        before = self._starts[self._halo.rank] - self._halo.bounds[self._halo.rank]
        return self._z[start + before : stop + before]

    def gather(self, given: dict[str, Any]) -> list[dict[str, Any]]:
        """As `Turns.gather`, between two steps."""
        return self._turns.gather(given)

    def exchange_columns(self, sums: Sequence[StepSums], product_s: float = 0.0) -> list[StepSums]:
        self._send(sums, product_s)
        totals = list(sums)
        self._put(self._halo.rank, self._slots[self._turns.number % 2])
        slowest_s = product_s
        missing = set(self._turns.others)
        while missing:
            rank, message = self._turns.take(missing)
            missing.remove(rank)
            slice_ = np.frombuffer(message["z"], self._z.dtype).reshape(-1, *self._z.shape[1:])
            self._put(rank, slice_)
            self.exchanged_bytes += slice_.nbytes
            totals = [total + StepSums(*own) for total, own in zip(totals, message["sums"], strict=True)]
            slowest_s = max(slowest_s, message["product_s"])
        self.waited_s += slowest_s - product_s
        self._turns.end()
        return totals

    def restart(self, dtype: np.dtype[Any]) -> None:
        self._z = np.empty(0)
        self._slots, self._packs = (), ()  # so that old and new are never there at once
        rank = self._halo.rank
        self._z = self._zeros(self._starts[-1], dtype)
        self._slots = tuple(self._zeros(self._starts[rank + 1] - self._starts[rank], dtype) for _ in range(2))
        sizes = {other: len(rows) for other in self._turns.others if (rows := self._wanted[other]) is not None}
        shape = self._z.shape[1:]
        self._packs = tuple({other: np.empty((k, *shape), dtype) for other, k in sizes.items()} for _ in range(2))

    def _put(self, rank: int, slice_: np.ndarray) -> None:
        self._z[self._starts[rank] : self._starts[rank + 1]] = slice_

    def _send(self, sums: Sequence[StepSums], product_s: float) -> None:
        turn = self._turns.number % 2
        slot, packs = self._slots[turn], self._packs[turn]
        totals = [(s.change_l1, s.change_linf, s.dangling, s.n_wrong) for s in sums]
        head = {"product_s": product_s, "sums": totals}
        # All are packed before any is sent: while the event loop sends, this thread would wait for Python's lock.
        for rank, out in packs.items():
            pack(slot, self._wanted[rank], out)
        slices = {rank: packs.get(rank, slot) for rank in self._turns.others}
        self._turns.send({rank: {**head, "z": s.tobytes() if s.nbytes < SMALL else s} for rank, s in slices.items()})
