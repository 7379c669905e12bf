"""Transport of a device's slices through the host, by a transport of host memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mgspmv.exchange.transport import Transport
from mgspmv.model import StepSums


class StagedTransport:
    """Transport of device vectors, copied from and to those of a transport on the host.

    Parameters
    ----------
    staged : the transport on the host
    n_rows : rows of this worker
    put, get : copy a vector to the device, and to the host
    zeros : makes the initial vectors on the host, from (rows, dtype)
    """

    def __init__(
        self,
        staged: Transport,
        n_rows: int,
        dtype: np.dtype[Any],
        put: Callable[[np.ndarray], Any],
        get: Callable[[Any], np.ndarray],
        zeros: Callable[[int, Any], np.ndarray] = np.zeros,
    ) -> None:
        self._staged, self._n_rows, self._put, self._get, self._zeros = staged, n_rows, put, get, zeros
        self._own = put(zeros(n_rows, dtype))

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

    def restart(self, dtype: np.dtype[Any]) -> None:
        self._staged.restart(dtype)
        self._own = self._put(self._zeros(self._n_rows, dtype))
