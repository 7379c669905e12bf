"""Exchanges of the slices and sums of a step, of one vector or of several, one per column.

    local     one process with all rows
    client    rounds of tasks: the client joins and sends z (`mgspmv.exchange.peer`)
    peer      from worker to worker over Dask's comms (likewise)
    nccl      from device to device (`mgspmv.exchange.nccl_slices`)

Steps on a device that are enqueued several at a time exchange on its stream, by NCCL or by writing into each other's
memory (`mgspmv.exchange.ipc`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, NamedTuple, Self

import numpy as np

from mgspmv.model import StepSums

Zeros = Callable[[int], Any]
"""Function that makes zeros with a number of rows in the memory of the kernels."""


class DeviceCopies(NamedTuple):
    """Copies of vectors to and from a device, for exchanges between hosts."""

    put: Callable[[np.ndarray], Any]
    get: Callable[[Any], np.ndarray]


class Exchange(ABC):
    """Exchange between the processes of a run, all of which call its methods in the same order.

    `open` returns an exchange with vectors: the z that products read, and a slot for this process's slice of the next.

    Attributes
    ----------
    n_elements : elements of an open exchange of one column in the memory of the kernels
    n_staged : additional elements of such an exchange on the host
    """

    n_elements = n_staged = 0

    @property
    @abstractmethod
    def z(self) -> Any:
        """Vectors that the next product reads, at the columns of this process's blocks."""

    @property
    def exchanged_bytes(self) -> int:
        """Total bytes received from other processes."""
        return 0

    @property
    def waited_s(self) -> float:
        """Total seconds that other processes took longer for their products than this one."""
        return 0.0

    def open(self, zeros: Zeros) -> Self:
        """Return this exchange with vectors that a function makes."""
        opened = copy(self)
        opened._allocate(zeros)
        return opened

    @abstractmethod
    def _allocate(self, zeros: Zeros) -> None:
        """Make z and the slot."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes held for vectors and for moving them."""

    @abstractmethod
    def slot(self) -> Any:
        """Return the array, (n_rows,) or (n_rows, k), into which this process writes its slice of the next z."""

    @abstractmethod
    def get_own(self) -> Any:
        """Return this process's slice of the last exchange, in the shape of `slot`."""

    @abstractmethod
    def exchange_columns(self, sums: Sequence[StepSums]) -> list[StepSums]:
        """Make the slots of all processes the new z, and return the total sums of each column over all of them."""


class GatheringExchange(Exchange):
    """Exchange by which processes gather other arrays too, as those of a batch do."""

    @abstractmethod
    def gather(self, own: np.ndarray) -> list[np.ndarray]:
        """Gather host arrays of one dtype and length from all processes, by rank; they must not be modified."""


class LocalExchange(GatheringExchange):
    """Exchange of one process with all rows, of a matrix of `n_cols` columns: two buffers are swapped."""

    z: Any = None

    def __init__(self, n_cols: int) -> None:
        self._n_cols, self.n_elements = n_cols, 2 * n_cols

    def _allocate(self, zeros: Zeros) -> None:
        self.z, self._next = zeros(self._n_cols), zeros(self._n_cols)

    @property
    def nbytes(self) -> int:
        return 2 * int(self.z.nbytes)

    def slot(self) -> Any:
        return self._next

    def get_own(self) -> Any:
        return self.z

    def exchange_columns(self, sums: Sequence[StepSums]) -> list[StepSums]:
        self.z, self._next = self._next, self.z
        return list(sums)

    def gather(self, own: np.ndarray) -> list[np.ndarray]:
        return [own]
