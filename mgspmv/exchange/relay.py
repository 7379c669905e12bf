"""Transport through the client: it takes each worker's slice and sends back the whole vector."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mgspmv.exchange.halo import Halo
from mgspmv.model import StepSums


class RelayTransport:
    """Transport with z set by `give` and slices returned by `take`; sums are those of this worker alone.

    Parameters
    ----------
    halo : the columns held here
    dtype : of the vectors
    """

    waited_s = 0.0

    def __init__(self, halo: Halo, dtype: np.dtype[Any]) -> None:
        self._halo = halo
        self.exchanged_bytes = 0
        self.z: np.ndarray = np.empty(0, dtype)
        self._own: np.ndarray = np.empty(halo.count(halo.rank), dtype)

    @property
    def nbytes(self) -> int:
        return self.z.nbytes + self._own.nbytes + self._halo.nbytes

    def give(self, z: np.ndarray) -> None:
        """Select from z, (n_cols,), the columns that the next product reads."""
        self.z = self._halo.select(z)
        self.exchanged_bytes += z.nbytes

    def take(self) -> np.ndarray:
        """Return this worker's slice of the next z, (n_rows,), in a buffer owned by the caller from now on."""
        own, self._own = self._own, np.empty_like(self._own)
        return own

    def slot(self) -> np.ndarray:
        return self._own

    def get_own(self) -> np.ndarray:
        """Return this worker's slice before it is taken."""
        return self._own

    def exchange_columns(self, sums: Sequence[StepSums]) -> list[StepSums]:
        return list(sums)
