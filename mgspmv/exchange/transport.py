"""Transports of the slices and sums of a step to every worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from mgspmv.model import StepSums


class Transport(Protocol):
    """Holder of the z that products read, of one vector or one per column, which assembles the next z from slices."""

    @property
    def exchanged_bytes(self) -> int:
        """Bytes received from others so far."""
        ...

    @property
    def waited_s(self) -> float:
        """Seconds so far that other workers took longer for their products than this one."""
        ...

    @property
    def z(self) -> Any:
        """Vector that the next product reads, at the columns of this worker's blocks."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes held for vectors and for moving them."""
        ...

    def slot(self) -> Any:
        """Return the array, (n_rows,) or (n_rows, k), into which this worker writes its slice of the next z."""
        ...

    def get_own(self) -> Any:
        """Return this worker's slice of the last exchange, in the shape of `slot`."""
        ...

    def exchange_columns(self, sums: Sequence[StepSums]) -> list[StepSums]:
        """Make the slots of all workers the new z, and return the total sums of each column over all workers."""
        ...


class LocalTransport:
    """Transport for one process with all rows: two buffers are swapped and nothing is copied.

    Parameters
    ----------
    zeros : makes the buffers, from (rows, dtype), in the memory of the kernels
    """

    exchanged_bytes = 0
    waited_s = 0.0

    def __init__(self, n_cols: int, dtype: np.dtype[Any], zeros: Callable[[int, Any], Any] = np.zeros) -> None:
        self.z, self._next = zeros(n_cols, dtype), zeros(n_cols, dtype)

    @property
    def nbytes(self) -> int:
        return 2 * int(self.z.nbytes)

    def slot(self) -> Any:
        return self._next

    def exchange_columns(self, sums: Sequence[StepSums]) -> list[StepSums]:
        self.z, self._next = self._next, self.z
        return list(sums)

    def get_own(self) -> Any:
        return self.z
