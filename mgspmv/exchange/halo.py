"""Which columns a block reads, and where its worker keeps them: its own rows, and what it needs of others (the halo).

A worker holds z for the columns that it reads, in ascending order, and its indices count in these:

    global columns   | rows of worker 0 | rows of worker 1 | rows of worker 2 |
    worker 1 holds   | the few it reads | all, they are its own | all, it reads most |

Row sums keep the order of their terms, so a product has the bits that it has without.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numba import njit

from mgspmv.model import CsrBlock, default_threads
from mgspmv.partition import DENSE

_PIECE = 1 << 20


@dataclass(frozen=True, eq=False)
class Halo:
    """The columns that one worker holds, by their owners."""

    rank: int
    """Which of the workers this is."""
    bounds: tuple[int, ...]
    """First row of each worker, and the number of rows."""
    needed: tuple[np.ndarray | None, ...]
    """Of each worker, the rows that are held here: int32 or int64, ascending, from 0 at its first; None for all."""

    @property
    def starts(self) -> tuple[int, ...]:
        """Where the columns of each worker begin in what is held, and how many are held."""
        return tuple(int(n) for n in np.cumsum([0, *(self.count(owner) for owner in range(len(self.needed)))]))

    @property
    def nbytes(self) -> int:
        """Bytes of the lists."""
        return sum(rows.nbytes for rows in self.needed if rows is not None)

    def count(self, owner: int) -> int:
        """How many columns of a worker are held."""
        rows = self.needed[owner]
        return self.bounds[owner + 1] - self.bounds[owner] if rows is None else len(rows)

    def select(self, x: np.ndarray) -> np.ndarray:
        """The held columns of x, (n_cols,) or (n_cols, k): shape (n_held,) or (n_held, k)."""
        starts = self.starts
        held = np.empty((starts[-1], *x.shape[1:]), x.dtype)
        for owner, rows in enumerate(self.needed):
            part, place = x[self.bounds[owner] : self.bounds[owner + 1]], held[starts[owner] : starts[owner + 1]]
            if rows is None:
                place[:] = part
            else:
                pack(part, rows, place)
        return held

    def ask(self, owner: int) -> np.ndarray | None:
        """What to tell a worker of the rows that are needed of it: a bit each, packed; None for all."""
        rows = self.needed[owner]
        if rows is None:
            return None
        mask = np.zeros(self.bounds[owner + 1] - self.bounds[owner], np.bool_)
        mask[rows] = True
        return np.packbits(mask)


def find_asked(asked: np.ndarray | None, n_rows: int) -> np.ndarray | None:
    """Rows of a worker that another one asked for with `Halo.ask`, ascending; None for all."""
    return None if asked is None else _find_set(np.unpackbits(asked, count=n_rows).view(np.bool_))


def make_halo(block: CsrBlock, rank: int, bounds: tuple[int, ...], threads: int | None = None) -> tuple[CsrBlock, Halo]:
    """Renumber the columns of a block to those that it reads. Its indices are overwritten.

    Parameters
    ----------
    bounds : first row of each worker, and the number of rows, which is that of the columns
    """
    if len(bounds) == 2:
        return block, Halo(rank, bounds, (None,))
    mask = np.zeros(block.n_cols, np.bool_)
    mask[bounds[rank] : bounds[rank + 1]] = True
    _run_pieces(_mark, block.indices, mask, threads)
    needed = tuple(_choose(mask[a:b]) for a, b in pairwise(bounds))
    halo = Halo(rank, bounds, needed)
    if halo.starts[-1] == block.n_cols:
        return block, halo
    places = np.cumsum(mask, dtype=block.indices.dtype)
    _run_pieces(_renumber, block.indices, places, threads)
    return replace(block, n_cols=halo.starts[-1]), halo


@njit(nogil=True, cache=True)
def pack(x: np.ndarray, rows: np.ndarray, out: np.ndarray) -> None:
    """out = x[rows], without the copy of the rows as int64 that NumPy makes; x (n,) or (n, k)."""
    for k in range(len(rows)):
        out[k] = x[np.uint64(rows[k])]


def _choose(mask: np.ndarray) -> np.ndarray | None:
    """The marked rows; None, and all of them marked, where they are many."""
    if np.count_nonzero(mask) > DENSE * len(mask) or not len(mask):
        mask[:] = True
        return None
    return _find_set(mask)


def _find_set(mask: np.ndarray) -> np.ndarray:
    return np.flatnonzero(mask).astype(np.int32 if len(mask) < 2**31 else np.int64)


def _run_pieces(
    function: Callable[[np.ndarray, np.ndarray], None], indices: np.ndarray, table: np.ndarray, threads: int | None
) -> None:
    pieces: list[Any] = [indices[k : k + _PIECE] for k in range(0, len(indices), _PIECE)]
    if len(pieces) < 2:
        function(indices, table)
        return
    with ThreadPoolExecutor(threads or default_threads()) as pool:
        for future in [pool.submit(function, piece, table) for piece in pieces]:
            future.result()


@njit(nogil=True, cache=True)
def _mark(indices: np.ndarray, mask: np.ndarray) -> None:
    for k in range(len(indices)):
        mask[np.uint64(indices[k])] = True


@njit(nogil=True, cache=True)
def _renumber(indices: np.ndarray, places: np.ndarray) -> None:
    for k in range(len(indices)):
        indices[k] = places[np.uint64(indices[k])] - 1
