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
