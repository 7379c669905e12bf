"""Exchanges of the slices and sums of a step, of one vector or of several, one per column.

An `Exchange` opens the vectors of a run, each a `Transport` that holds z and assembles the next one from slices:

    local     one process with all rows
    client    rounds of tasks: the client joins and sends z
    peer      from worker to worker over Dask's comms (`mgspmv.exchange.peer`)
    nccl      from device to device
    staged    vectors on a device, by a client or peer transport of its host
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from mgspmv.model import StepSums

if TYPE_CHECKING:  # a process alone needs none of them
    from mgspmv.exchange.halo import Halo
    from mgspmv.exchange.nccl import NcclGroup
    from mgspmv.exchange.peer import AllToAll

Zeros = Callable[[int], Any]
"""Function that makes zeros with a number of rows in the memory of the kernels."""
Open = Callable[[Zeros], "Transport"]
"""Function that opens a transport for the vectors that a function makes."""
Gather = Callable[[np.ndarray], list[np.ndarray]]
"""Function that gathers host arrays of one dtype and length from all workers, by rank; they must not be modified."""


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


@dataclass(frozen=True, eq=False)
class Exchange:
    """Functions to open transports and to gather arrays; all workers call them in the same order."""

    open: Open
    gather: Gather
    n_elements: int
    """Number of elements of a transport of one column in the memory of the kernels."""
    n_staged: int = 0
    """Number of additional elements of such a transport on the host."""


def make_local(n_cols: int) -> Exchange:
    """Make the exchange of one process with all rows, of a matrix of `n_cols` columns."""
    return Exchange(partial(LocalTransport, n_cols), lambda own: [own], 2 * n_cols)


def make_peer(turns: AllToAll, halo: Halo, requested: Sequence[np.ndarray | None]) -> Exchange:
    """Make an exchange by `PeerTransport`."""
    from mgspmv.exchange.peer import PeerTransport

    # Elements of z, of two slots and their packed elements, and of up to two messages of each other worker.
    n_held, n_rows = halo.starts[-1], halo.count(halo.rank)
    n_packed = sum(len(rows) for rows in requested if rows is not None)
    n_elements = n_held + 2 * (n_rows + n_packed) + 2 * (n_held - n_rows)

    def gather(own: np.ndarray) -> list[np.ndarray]:
        return [answer["own"] for answer in turns.gather({"own": own})]

    return Exchange(partial(PeerTransport, turns, halo, requested), gather, n_elements)


def make_host_staged(
    host: Exchange, halo: Halo, put: Callable[[np.ndarray], Any], get: Callable[[Any], np.ndarray]
) -> Exchange:
    """Make an exchange of vectors on a device by one of its host; `put` and `get` as in `HostStagedTransport`."""
    n_elements = halo.starts[-1] + halo.count(halo.rank)
    return Exchange(partial(HostStagedTransport, host.open, put, get), host.gather, n_elements, host.n_elements)


def make_nccl(group: NcclGroup, bounds: Sequence[int]) -> Exchange:
    """Make an exchange of devices that hold z of all columns, and send their slices on the stream of the kernels.

    Parameters
    ----------
    bounds : first row of each device, and the number of rows
    """

    def gather(own: np.ndarray) -> list[np.ndarray]:
        return list(group.gather_hosts(own))

    n_elements = bounds[-1] + bounds[group.rank + 1] - bounds[group.rank]
    return Exchange(partial(NcclTransport, group, bounds, gather), gather, n_elements)


class LocalTransport:
    """Transport for one process with all rows: two buffers are swapped and nothing is copied."""

    exchanged_bytes = 0
    waited_s = 0.0

    def __init__(self, n_cols: int, zeros: Zeros) -> None:
        self.z, self._next = zeros(n_cols), zeros(n_cols)

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
    """

    waited_s = 0.0

    def __init__(self, halo: Halo, zeros: Zeros) -> None:
        self._halo = halo
        self.exchanged_bytes = 0
        self.z: np.ndarray = zeros(0)
        self._own: np.ndarray = zeros(halo.count(halo.rank))

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
    open_host : opens the transport on the host
    put, get : copy a vector to the device, and to the host
    """

    def __init__(
        self, open_host: Open, put: Callable[[np.ndarray], Any], get: Callable[[Any], np.ndarray], zeros: Zeros
    ) -> None:
        none = zeros(0)
        self._staged = open_host(lambda n: np.zeros((n, *none.shape[1:]), none.dtype))
        self._put, self._get = put, get
        self._own = put(self._staged.slot())

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


class NcclTransport:
    """Transport by NCCL with all of z, overwritten when the product that read it is done, and a slot for the next
    slice."""

    waited_s = 0.0

    def __init__(self, group: NcclGroup, bounds: Sequence[int], gather: Gather, zeros: Zeros) -> None:
        self._group, self._bounds, self._gather = group, bounds, gather
        self.exchanged_bytes = 0
        self.z = zeros(bounds[-1])
        self._slot = zeros(bounds[group.rank + 1] - bounds[group.rank])

    @property
    def nbytes(self) -> int:
        return int(self.z.nbytes + self._slot.nbytes)

    def slot(self) -> Any:
        return self._slot

    def get_own(self) -> Any:
        return self.z[self._bounds[self._group.rank] : self._bounds[self._group.rank + 1]]

    def exchange_columns(self, sums: Sequence[StepSums]) -> list[StepSums]:
        slices = [self.z[a:b] for a, b in pairwise(self._bounds)]
        slices[self._group.rank][...] = self._slot
        self._group.exchange([self._slot] * len(slices), slices)
        self.exchanged_bytes += int(self.z.nbytes - self._slot.nbytes)
        own = np.array([(s.change_l1, s.change_linf, s.dangling, s.n_wrong) for s in sums], np.int64)
        gathered = self._gather(own.reshape(-1))  # waits for the slices too
        columns = zip(*(of_one.reshape(own.shape).tolist() for of_one in gathered), strict=True)
        return [sum((StepSums(*one) for one in of_column), StepSums()) for of_column in columns]
