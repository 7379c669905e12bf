"""How the slices and sums of a step reach every worker."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from mgspmv.model import StepSums


class Transport(Protocol):
    """Holds the vector z that products read, and brings the next one together."""

    exchanged_bytes: int
    """Bytes received from others so far."""

    @property
    def z(self) -> np.ndarray:
        """(n_cols,): what the next product reads."""
        ...

    def slot(self, start: int, stop: int) -> np.ndarray:
        """(stop - start,): where the owner of these rows writes its slice of the next z."""
        ...

    def exchange(self, sums: StepSums) -> StepSums:
        """Make everybody's slots the new z; give everybody's sums, added."""
        ...


class LocalTransport:
    """All rows belong to this process: two buffers take turns and nothing moves."""

    exchanged_bytes = 0

    def __init__(self, n_cols: int, dtype: np.dtype[Any]) -> None:
        self._current, self._next = np.zeros(n_cols, dtype), np.zeros(n_cols, dtype)

    @property
    def z(self) -> np.ndarray:
        return self._current

    def slot(self, start: int, stop: int) -> np.ndarray:
        return self._next[start:stop]

    def exchange(self, sums: StepSums) -> StepSums:
        self._current, self._next = self._next, self._current
        return sums
