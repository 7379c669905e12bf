"""Exchange of panels between workers: the z of several vectors, one per column; and of small arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from mgspmv.exchange.all_to_all import AllToAll
from mgspmv.exchange.halo import Halo
from mgspmv.exchange.peer import PeerTransport
from mgspmv.exchange.transport import HostStagedTransport, LocalTransport, Transport
from mgspmv.model import StepSums

if TYPE_CHECKING:  # the module imports Dask
    from mgspmv.exchange.nccl import NcclGroup

Zeros = Callable[[int, int, Any], Any]
"""Function that makes (rows, width) zeros of a dtype in the memory of the kernels."""
Gather = Callable[[np.ndarray], list[np.ndarray]]
"""Function that gathers host arrays of one dtype and length from all workers, by rank; they must not be modified."""


@dataclass(frozen=True, eq=False)
class MultivectorExchange:
    """Functions to open panels and to gather arrays; all workers call them in the same order."""

    open: Callable[[int, np.dtype[Any]], Transport]
    """Function that makes a panel of zeros with a number of columns and a dtype."""
    gather: Gather
    n_elements: int
    """Number of elements of a panel with one column in the memory of the kernels."""
    n_staged: int = 0
    """Number of additional elements of such a panel on the host."""


def make_local(n_cols: int, zeros: Zeros) -> MultivectorExchange:
    """Make panels for one process with all rows.

    Parameters
    ----------
    n_cols : number of columns of the matrix
    """
    return MultivectorExchange(
        lambda width, dtype: LocalTransport(n_cols, dtype, lambda n, dtype: zeros(n, width, dtype)),
        lambda own: [own],
        2 * n_cols,
    )


def make_peer(turns: AllToAll, halo: Halo, requested: Sequence[np.ndarray | None], zeros: Zeros) -> MultivectorExchange:
    """Make panels whose slices are sent from worker to worker; parameters as in `PeerTransport`."""

    def open_panel(width: int, dtype: np.dtype[Any]) -> PeerTransport:
        return PeerTransport(turns, halo, requested, dtype, lambda n, dtype: zeros(n, width, dtype))

    # Elements of z, of two slots and their packed elements, and of up to two messages of each other worker.
    n_held, n_rows = halo.starts[-1], halo.count(halo.rank)
    n_packed = sum(len(rows) for rows in requested if rows is not None)
    n_elements = n_held + 2 * (n_rows + n_packed) + 2 * (n_held - n_rows)
    return MultivectorExchange(
        open_panel, lambda own: [answer["own"] for answer in turns.gather({"own": own})], n_elements
    )


def make_host_staged(
    turns: AllToAll,
    halo: Halo,
    requested: Sequence[np.ndarray | None],
    put: Callable[[np.ndarray], Any],
    get: Callable[[Any], np.ndarray],
) -> MultivectorExchange:
    """Make panels as `make_peer` does, for kernels on a device; `put` and `get` as in `HostStagedTransport`."""
    host = make_peer(turns, halo, requested, lambda n, width, dtype: np.zeros((n, width), dtype))

    def open_panel(width: int, dtype: np.dtype[Any]) -> HostStagedTransport:
        return HostStagedTransport(host.open(width, dtype), put, get)

    return MultivectorExchange(open_panel, host.gather, halo.starts[-1] + halo.count(halo.rank), host.n_elements)


def make_nccl(group: NcclGroup, bounds: Sequence[int], zeros: Zeros) -> MultivectorExchange:
    """Make panels of devices that hold z of all columns, and send their slices on the stream of the kernels.

    Parameters
    ----------
    bounds : first row of each device, and the number of rows
    """

    def gather(own: np.ndarray) -> list[np.ndarray]:
        return list(group.gather_hosts(own))

    def open_panel(width: int, dtype: np.dtype[Any]) -> _NcclMultivector:
        return _NcclMultivector(group, bounds, lambda n, dtype: zeros(n, width, dtype), gather, dtype)

    return MultivectorExchange(open_panel, gather, bounds[-1] + bounds[group.rank + 1] - bounds[group.rank])


class _NcclMultivector:
    """Panel with z of all columns, overwritten when the product that read it is done, and a slot for the next slice."""

    waited_s = 0.0

    def __init__(
        self,
        group: NcclGroup,
        bounds: Sequence[int],
        zeros: Callable[[int, Any], Any],
        gather: Gather,
        dtype: np.dtype[Any],
    ) -> None:
        self._group, self._bounds, self._gather = group, bounds, gather
        self.exchanged_bytes = 0
        self.z = zeros(bounds[-1], dtype)
        self._slot = zeros(bounds[group.rank + 1] - bounds[group.rank], dtype)

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
