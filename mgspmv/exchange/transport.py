"""How the slices and sums of a step reach every worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from mgspmv.model import StepSums


class Transport(Protocol):
    """Holds z of one vector or, a column each, of many, which products read, and brings the next one together."""

    @property
    def exchanged_bytes(self) -> int:
        """Bytes received from others so far."""
        ...

    @property
    def waited_s(self) -> float:
        """Seconds so far that others took longer for their products than this worker."""
        ...

    @property
    def z(self) -> Any:
        """What the next product reads, at the columns of this worker's blocks."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes held for vectors and for moving them."""
        ...

    def slot(self) -> Any:
        """(n_rows,), or so many rows of all columns: where this worker writes its slice of the next z."""
        ...

    def get_own(self) -> Any:
        """As `slot`: of the rows of this worker, what the last exchange made z of."""
        ...

    def exchange_columns(self, sums: Sequence[StepSums]) -> list[StepSums]:
        """Make everybody's slots the new z; give everybody's sums of each column, added."""
        ...

    def restart(self, dtype: np.dtype[Any]) -> None:
        """Drop the vectors and hold ones of this dtype, all 0."""
        ...


class LocalTransport:
    """All rows belong to this process: two buffers take turns and nothing moves.

    Parameters
    ----------
    zeros : makes the buffers, from (rows, dtype), where the kernels compute
    """

    exchanged_bytes = 0
    waited_s = 0.0

    def __init__(self, n_cols: int, dtype: np.dtype[Any], zeros: Callable[[int, Any], Any] = np.zeros) -> None:
        self._n_cols, self._zeros = n_cols, zeros
        self._current: Any
        self._next: Any
        self.restart(dtype)

    @property
    def z(self) -> Any:
        return self._current

    @property
    def nbytes(self) -> int:
        return 2 * int(self._current.nbytes)

    def slot(self) -> Any:
        return self._next

    def exchange_columns(self, sums: Sequence[StepSums]) -> list[StepSums]:
        self._current, self._next = self._next, self._current
        return list(sums)

    def restart(self, dtype: np.dtype[Any]) -> None:
        self._current = self._next = np.empty(0)  # before the new ones, so that both are never there at once
        self._current, self._next = self._zeros(self._n_cols, dtype), self._zeros(self._n_cols, dtype)

    def get_own(self) -> Any:
        return self._current
