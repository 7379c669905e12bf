"""Columns that a block reads and their positions on its worker: its own rows, and rows of others (the halo).

A worker holds z for the columns that it reads, in ascending order, and its indices refer to these:

    global columns   | rows of worker 0 | rows of worker 1 | rows of worker 2 |
    worker 1 holds   | the few it reads | all, they are its own | all, it reads most |

Row sums keep the order of their terms, so a product is bit-identical to that with all columns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numba import njit

from mgspmv.model import CsrBlock, index_dtype
from mgspmv.partition import DENSE
from mgspmv.store.digests import cut_pieces, run_parts


@dataclass(frozen=True, eq=False)
class Halo:
    """Columns that one worker holds, by their owners."""

    rank: int
    """Rank of the worker."""
    bounds: tuple[int, ...]
    """First row of each worker, and the number of rows."""
    needed: tuple[np.ndarray | None, ...]
    """Rows of each worker held here: int32 or int64, ascending, relative to its first row; None for all."""

    @property
    def starts(self) -> tuple[int, ...]:
        """Offset of each owner's columns among the held ones, and the number of held columns."""
        return tuple(int(n) for n in np.cumsum([0, *(self.count(owner) for owner in range(len(self.needed)))]))

    @property
    def nbytes(self) -> int:
        """Bytes of the lists."""
        return sum(rows.nbytes for rows in self.needed if rows is not None)

    def count(self, owner: int) -> int:
        """Return the number of held columns of an owner."""
        rows = self.needed[owner]
        return self.bounds[owner + 1] - self.bounds[owner] if rows is None else len(rows)

    def select(self, x: np.ndarray) -> np.ndarray:
        """Select the held columns of x, (n_cols,) or (n_cols, k): shape (n_held,) or (n_held, k)."""
        starts = self.starts
        held = np.empty((starts[-1], *x.shape[1:]), x.dtype)
        for owner, rows in enumerate(self.needed):
            part, place = x[self.bounds[owner] : self.bounds[owner + 1]], held[starts[owner] : starts[owner + 1]]
            if rows is None:
                place[:] = part
            else:
                pack(part, rows, place)
        return held


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
    run_parts(lambda piece: _mark(block.indices[piece], mask), cut_pieces(0, block.nnz), threads)
    needed = tuple(_choose(mask[a:b]) for a, b in pairwise(bounds))
    halo = Halo(rank, bounds, needed)
    if halo.starts[-1] == block.n_cols:
        return block, halo
    places = np.cumsum(mask, dtype=block.indices.dtype)
    run_parts(lambda piece: _renumber(block.indices[piece], places), cut_pieces(0, block.nnz), threads)
    return replace(block, n_cols=halo.starts[-1]), halo


@njit(nogil=True, cache=True)
def pack(x: np.ndarray, rows: np.ndarray, out: np.ndarray) -> None:
    """Compute out = x[rows], without NumPy's copy of the rows as int64; x (n,) or (n, k)."""
    for k in range(len(rows)):
        if x.ndim == 1:
            out[k] = x[np.uint64(rows[k])]
        else:  # without slices, which Numba copies slowly
            for j in range(x.shape[1]):
                out[k, j] = x[np.uint64(rows[k]), j]


def _choose(mask: np.ndarray) -> np.ndarray | None:
    """Return the marked rows; if they are many, mark all and return None."""
    if np.count_nonzero(mask) > DENSE * len(mask) or not len(mask):
        mask[:] = True
        return None
    return np.flatnonzero(mask).astype(index_dtype(len(mask)))


@njit(nogil=True, cache=True)
def _mark(indices: np.ndarray, mask: np.ndarray) -> None:
    for k in range(len(indices)):
        mask[np.uint64(indices[k])] = True


@njit(nogil=True, cache=True)
def _renumber(indices: np.ndarray, places: np.ndarray) -> None:
    for k in range(len(indices)):
        indices[k] = places[np.uint64(indices[k])] - 1
