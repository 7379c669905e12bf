"""Exchange of the columns of a vector that blocks read, sent all to all by the workers that have its elements.

In HITS the rows of A and of its transpose are cut at different bounds, and each product reads the result of the other:
a worker has the elements of some rows, and requests those that its block reads. PageRank also exchanges sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from mgspmv.exchange.all_to_all import AllToAll
from mgspmv.exchange.halo import Halo, pack
from mgspmv.model import StepSums

SMALL = 1 << 16
"""Maximum bytes of a slice that is copied into its message: faster than a separate frame with its header."""


class HaloColumns:
    """Columns of x that a block reads, received from the workers that have the elements of x.

    Parameters
    ----------
    halo : the columns, by the workers that have their elements, which may be cut differently from the block's rows
    requested : for each worker, the elements of this one that it asked for by `Halo.ask`; None for all
    zeros : makes the columns, from their number

    Attributes
    ----------
    z : (n_held,) or (n_held, k): the columns, which each trade overwrites
    """

    def __init__(
        self,
        turns: AllToAll,
        halo: Halo,
        requested: Sequence[np.ndarray | None],
        zeros: Callable[[int], np.ndarray],
    ) -> None:
        self._turns, self._halo = turns, halo
        self._starts = halo.starts
        self.z = zeros(self._starts[-1])
        self._requested = {other: rows for other in turns.others if (rows := requested[other]) is not None}
        self._packs = [{other: zeros(len(rows)) for other, rows in self._requested.items()} for _ in range(2)]

    @property
    def nbytes(self) -> int:
        """Bytes of the columns, of their index lists, and of send buffers."""
        lists: list[np.ndarray] = [*self._requested.values(), *(out for packs in self._packs for out in packs.values())]
        return self.z.nbytes + self._halo.nbytes + sum(array.nbytes for array in lists)

    def gather(self, x: np.ndarray) -> np.ndarray:
        """Exchange elements of x and return the columns; see `trade`."""
        self.trade(x, {})
        return self.z

    def trade(self, x: np.ndarray, added: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
        """Exchange elements of x, write the columns, and return the messages of the others by rank.

        Parameters
        ----------
        x : (n_own,) or (n_own, k) the elements of this worker, not to be written to before the turn after the next
        added : additional entries of each message
        """
        rank, packs, own = self._turns.rank, self._packs[self._turns.number % 2], self._halo.needed[self._turns.rank]
        # All are packed before any is sent: while the event loop sends, this thread would wait for the GIL.
        for other, out in packs.items():
            pack(x, self._requested[other], out)
        slices = {other: packs.get(other, x) for other in self._turns.others}
        if own is None:
            self._put(rank, x)
        else:
            pack(x, own, self.z[self._starts[rank] : self._starts[rank + 1]])
        received = self._turns.trade(
            {other: {**added, "z": s.tobytes() if s.nbytes < SMALL else s} for other, s in slices.items()}
        )
        for owner, message in received.items():
            slice_ = np.frombuffer(message["z"], self.z.dtype).reshape(-1, *self.z.shape[1:])
            self._put(owner, slice_)
            self._turns.received_bytes += slice_.nbytes
        return received

    def _put(self, owner: int, slice_: np.ndarray) -> None:
        self.z[self._starts[owner] : self._starts[owner + 1]] = slice_


class PeerTransport(HaloColumns):
    """Transport with one z, overwritten when the product that read it is done, and slots for the next slice.

    Two slots alternate, as the send buffers of `HaloColumns` do: a slot is written again two turns after it was sent,
    when it has been received.

    Parameters
    ----------
    zeros : makes the columns and the slots, from their number
    """

    def __init__(
        self,
        turns: AllToAll,
        halo: Halo,
        requested: Sequence[np.ndarray | None],
        zeros: Callable[[int], np.ndarray],
    ) -> None:
        super().__init__(turns, halo, requested, zeros)
        self._slots = tuple(zeros(halo.count(halo.rank)) for _ in range(2))

    @property
    def exchanged_bytes(self) -> int:
        return self._turns.received_bytes

    @property
    def waited_s(self) -> float:
        return self._turns.waited_s

    @property
    def nbytes(self) -> int:
        return super().nbytes + sum(slot.nbytes for slot in self._slots)

    def slot(self) -> np.ndarray:
        return self._slots[self._turns.number % 2]

    def get_own(self) -> np.ndarray:
        rank = self._halo.rank
        return self.z[self._starts[rank] : self._starts[rank + 1]]

    def exchange_columns(self, sums: Sequence[StepSums]) -> list[StepSums]:
        own = [(s.change_l1, s.change_linf, s.dangling, s.n_wrong) for s in sums]
        totals = list(sums)
        for message in self.trade(self.slot(), {"sums": own}).values():
            totals = [total + StepSums(*other) for total, other in zip(totals, message["sums"], strict=True)]
        return totals


def hold_all(rank: int, bounds: tuple[int, ...]) -> Halo:
    """Return a halo of all columns, with rows cut at these bounds."""
    return Halo(rank, bounds, (None,) * (len(bounds) - 1))


def cut_again(halo: Halo, bounds: tuple[int, ...]) -> Halo:
    """Return a halo of the same columns, with elements cut at other bounds.

    Parameters
    ----------
    bounds : first element of each worker, and their number
    """
    if bounds == halo.bounds:
        return halo
    needed = tuple(_find_held(halo, start, stop) for start, stop in pairwise(bounds))
    return Halo(halo.rank, bounds, needed)


def _find_held(halo: Halo, start: int, stop: int) -> np.ndarray | None:
    """Find the held columns from start to stop, counted from start; None for all."""
    pieces = list(_generate_held(halo, start, stop))
    if sum(map(len, pieces)) == stop - start:
        return None
    return np.concatenate(pieces).astype(np.int32 if stop - start < 2**31 else np.int64)


def _generate_held(halo: Halo, start: int, stop: int) -> Iterator[np.ndarray]:
    """Yield the held columns from start to stop, counted from start, for each worker of the halo."""
    for (first, last), rows in zip(pairwise(halo.bounds), halo.needed, strict=True):
        low, high = max(start, first), max(start, first, min(stop, last))
        if rows is None:
            yield np.arange(low - start, high - start)
        else:
            begin, end = np.searchsorted(rows, [low - first, high - first])
            yield rows[begin:end] + (np.int64(first) - start)
