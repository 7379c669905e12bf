"""Vectors from worker to worker that are cut by one matrix's rows and read by another one's columns.

In HITS the rows of A and those of its transpose are cut at different places, and each product reads what the other one
made: a worker has the elements of some rows, and asks for those that its block reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from mgspmv.exchange.halo import Halo, pack
from mgspmv.exchange.peer import SMALL
from mgspmv.exchange.turns import Turns


class Columns:
    """The columns of x that a block reads, from the workers that have the elements of x.

    Parameters
    ----------
    halo : the columns, by the workers that have their elements, which may be cut otherwise than the block's rows
    wanted : for each worker, which elements of this one it asked for, by `Halo.ask`; None for all
    dtype : of the vectors
    """

    def __init__(self, turns: Turns, halo: Halo, wanted: Sequence[np.ndarray | None], dtype: np.dtype[Any]) -> None:
        self._turns, self._halo, self._wanted = turns, halo, wanted
        self._starts = halo.starts
        self._held = np.zeros(self._starts[-1], dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of the columns, of lists of them, and of what is sent."""
        lists = [rows for k, rows in enumerate(self._wanted) if rows is not None and k != self._turns.rank]
        sent = sum(len(rows) for rows in lists) * self._held.itemsize
        return self._held.nbytes + self._halo.nbytes + sum(rows.nbytes for rows in lists) + sent

    def gather(self, x: np.ndarray) -> np.ndarray:
        """(n_held,): the columns, which the next call overwrites.

        Parameters
        ----------
        x : (n_own,) the elements of this worker, which must not be written to any more
        """
        rank = self._turns.rank
        slices = {k: _select(x, rows) for k, rows in enumerate(self._wanted) if k != rank}
        self._put(rank, _select(x, self._halo.needed[rank]))
        received = self._turns.trade({k: {"x": s.tobytes() if s.nbytes < SMALL else s} for k, s in slices.items()})
        for owner, message in received.items():
            slice_ = np.frombuffer(message["x"], self._held.dtype)
            self._put(owner, slice_)
            self._turns.received_bytes += slice_.nbytes
        return self._held

    def _put(self, owner: int, slice_: np.ndarray) -> None:
        self._held[self._starts[owner] : self._starts[owner + 1]] = slice_


def hold_all(rank: int, bounds: tuple[int, ...]) -> Halo:
    """All columns, of workers whose rows are cut there."""
    return Halo(rank, bounds, (None,) * (len(bounds) - 1))


def cut_again(halo: Halo, bounds: tuple[int, ...]) -> Halo:
    """The same columns, by workers whose elements are cut otherwise.

    Parameters
    ----------
    bounds : first element of each worker, and their number
    """
    if bounds == halo.bounds:
        return halo
    needed = tuple(_find_held(halo, start, stop) for start, stop in pairwise(bounds))
    return Halo(halo.rank, bounds, needed)


def _find_held(halo: Halo, start: int, stop: int) -> np.ndarray | None:
    """The held columns from start to stop, counted from start; None for all."""
    pieces = list(_generate_held(halo, start, stop))
    if sum(map(len, pieces)) == stop - start:
        return None
    return np.concatenate(pieces).astype(np.int32 if stop - start < 2**31 else np.int64)


def _generate_held(halo: Halo, start: int, stop: int) -> Iterator[np.ndarray]:
    """The same, of each worker that the halo knows."""
    for (first, last), rows in zip(pairwise(halo.bounds), halo.needed, strict=True):
        low, high = max(start, first), max(start, first, min(stop, last))
        if rows is None:
            yield np.arange(low - start, high - start)
        else:
            begin, end = np.searchsorted(rows, [low - first, high - first])
            yield rows[begin:end] + (np.int64(first) - start)


def _select(x: np.ndarray, rows: np.ndarray | None) -> np.ndarray:
    """x[rows]; x itself for all."""
    if rows is None:
        return x
    out = np.empty(len(rows), x.dtype)
    pack(x, rows, out)
    return out
