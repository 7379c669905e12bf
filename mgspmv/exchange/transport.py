"""Transports of the slices and sums of a step: in one process, through the client, and for vectors on a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from mgspmv.exchange.halo import Halo
from mgspmv.model import StepSums


class Transport(Protocol):
    """Holder of the z that products read, of one vector or one per column, which assembles the next z from slices."""

    @property
    def exchanged_bytes(self) -> int:
        """Total bytes received from other workers."""
        ...

    @property
    def waited_s(self) -> float:
        """Total seconds that other workers took longer for their products than this one."""
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


class ClientTransport:
    """Transport through the client, which sets z by `give` and takes the slice by `take`, and adds up the sums.

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


class HostStagedTransport:
    """Transport of device vectors, copied from and to those of a transport on the host.

    Parameters
    ----------
    staged : the transport on the host
    put, get : copy a vector to the device, and to the host
    """

    def __init__(self, staged: Transport, put: Callable[[np.ndarray], Any], get: Callable[[Any], np.ndarray]) -> None:
        self._staged, self._put, self._get = staged, put, get
        self._own = put(staged.slot())

    @property
    def exchanged_bytes(self) -> int:
        return self._staged.exchanged_bytes

    @property
    def waited_s(self) -> float:
        return self._staged.waited_s

    @property
    def z(self) -> Any:
        return self._put(self._staged.z)

    @property
    def nbytes(self) -> int:
        return self._staged.nbytes + int(self._own.nbytes)

    def slot(self) -> Any:
        return self._own

    def get_own(self) -> Any:
        return self._own

    def exchange_columns(self, sums: Sequence[StepSums]) -> list[StepSums]:
        self._staged.slot()[:] = self._get(self._own)
        return self._staged.exchange_columns(sums)
