"""Transport of slices and sums between workers, all to all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mgspmv.exchange.columns import Columns
from mgspmv.exchange.halo import Halo
from mgspmv.exchange.turns import Turns
from mgspmv.model import StepSums


class PeerTransport:
    """Transport with one z, overwritten when the product that read it is done, and slots for the next slice.

    Two slots alternate, as the send buffers of `Columns` do: a slot is written again two turns after it was sent, when
    it has been received.

    Parameters
    ----------
    turns : turns of the links to the other workers, one per exchange
    halo : the columns held here
    wanted : for each worker, the rows of this one that it asked for; None for all; ignored for this worker
    dtype : of the vectors
    zeros : makes the buffers, from (rows, dtype)
    """

    def __init__(
        self,
        turns: Turns,
        halo: Halo,
        wanted: Sequence[np.ndarray | None],
        dtype: np.dtype[Any],
        zeros: Callable[[int, Any], np.ndarray] = np.zeros,
    ) -> None:
        self._turns, self._halo, self._wanted, self._zeros = turns, halo, wanted, zeros
        self.exchanged_bytes = 0
        self._columns: Columns | None
        self._slots: tuple[np.ndarray, ...]
        self.restart(dtype)

    @property
    def waited_s(self) -> float:
        return self._turns.waited_s

    @property
    def z(self) -> np.ndarray:
        assert self._columns is not None
        return self._columns.held

    @property
    def nbytes(self) -> int:
        assert self._columns is not None
        return self._columns.nbytes + sum(slot.nbytes for slot in self._slots)

    def slot(self) -> np.ndarray:
        return self._slots[self._turns.number % 2]

    def get_own(self) -> np.ndarray:
        rank = self._halo.rank
        return self.z[self._halo.starts[rank] : self._halo.starts[rank + 1]]

    def exchange_columns(self, sums: Sequence[StepSums]) -> list[StepSums]:
        assert self._columns is not None
        own, before = self.slot(), self._turns.received_bytes
        told = [(s.change_l1, s.change_linf, s.dangling, s.n_wrong) for s in sums]
        totals = list(sums)
        for message in self._columns.trade(own, {"sums": told}).values():
            totals = [total + StepSums(*other) for total, other in zip(totals, message["sums"], strict=True)]
        self.exchanged_bytes += self._turns.received_bytes - before
        return totals

    def restart(self, dtype: np.dtype[Any]) -> None:
        self._columns, self._slots = None, ()  # free the old ones before the new are allocated
        self._columns = Columns(self._turns, self._halo, self._wanted, dtype, self._zeros)
        self._slots = tuple(self._zeros(self._halo.count(self._halo.rank), dtype) for _ in range(2))
