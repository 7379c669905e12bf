"""Panels, z of many vectors at once, of one width after the other, and small arrays between who computes them.

Each of the workers opens the same panels in the same order, and lets go of what it opened when it opens another one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from mgspmv.exchange.halo import Halo
from mgspmv.exchange.peer import PeerTransport
from mgspmv.exchange.staged import StagedTransport
from mgspmv.exchange.transport import LocalTransport, Panel
from mgspmv.exchange.turns import Links, Turns
from mgspmv.model import StepSums

if TYPE_CHECKING:  # it imports Dask
    from mgspmv.exchange.nccl import NcclGroup

Zeros = Callable[[int, int, Any], Any]
"""Makes (rows, width) zeros of a dtype where the kernels compute."""


class Panels(Protocol):
    """Opens panels of all who compute together."""

    def open(self, width: int, dtype: np.dtype[Any]) -> Panel:
        """One of so many columns, all 0."""
        ...

    def gather(self, own: np.ndarray) -> list[np.ndarray]:
        """Arrays of the host, of one dtype and length, of everybody, by rank; `own` is not written to any more."""
        ...

    def count_bytes(self, width: int, itemsize: int) -> int:
        """Bytes that a panel takes where the kernels compute."""
        ...

    def count_staged_bytes(self, width: int, itemsize: int) -> int:
        """Bytes that it takes on the host besides."""
        ...


class LocalPanels:
    """All rows belong to this process.

    Parameters
    ----------
    n_cols : of the matrix
    """

    def __init__(self, n_cols: int, zeros: Zeros) -> None:
        self._n_cols, self._zeros = n_cols, zeros

    def open(self, width: int, dtype: np.dtype[Any]) -> LocalTransport:
        return LocalTransport(self._n_cols, dtype, lambda n, dtype: self._zeros(n, width, dtype))

    def gather(self, own: np.ndarray) -> list[np.ndarray]:
        return [own]

    def count_bytes(self, width: int, itemsize: int) -> int:
        return 2 * self._n_cols * width * itemsize

    def count_staged_bytes(self, width: int, itemsize: int) -> int:
        return 0


class PeerPanels:
    """Slices go from worker to worker over their links.

    Parameters
    ----------
    links, halo, wanted : as for `PeerTransport`
    """

    def __init__(self, links: Links, halo: Halo, wanted: Sequence[np.ndarray | None], zeros: Zeros) -> None:
        self._links, self._halo, self._wanted, self._zeros = links, halo, wanted, zeros
        self._turns = Turns(links, halo.rank, len(wanted))

    def open(self, width: int, dtype: np.dtype[Any]) -> Panel:
        return self._open(width, dtype)

    def gather(self, own: np.ndarray) -> list[np.ndarray]:
        return [answer["own"] for answer in self._turns.gather({"own": own})]

    def count_bytes(self, width: int, itemsize: int) -> int:
        """Of z, of the slots and what is packed of them, and of the messages of others, of which two may be there."""
        n_held, n_rows = self._halo.starts[-1], self._halo.count(self._halo.rank)
        n_packed = sum(len(rows) for rows in self._wanted if rows is not None)
        return (n_held + 2 * (n_rows + n_packed) + 2 * (n_held - n_rows)) * width * itemsize

    def count_staged_bytes(self, width: int, itemsize: int) -> int:
        return 0

    def _open(self, width: int, dtype: np.dtype[Any]) -> PeerTransport:
        make = lambda n, dtype: self._zeros(n, width, dtype)  # noqa: E731
        return PeerTransport(self._links, self._halo, self._wanted, dtype, make, self._turns)


class StagedPanels(PeerPanels):
    """As `PeerPanels`, with kernels on a device.

    Parameters
    ----------
    put, get : as for `StagedTransport`
    """

    def __init__(
        self,
        links: Links,
        halo: Halo,
        wanted: Sequence[np.ndarray | None],
        put: Callable[[np.ndarray], Any],
        get: Callable[[Any], np.ndarray],
    ) -> None:
        super().__init__(links, halo, wanted, lambda n, width, dtype: np.zeros((n, width), dtype))
        self._put, self._get = put, get

    def open(self, width: int, dtype: np.dtype[Any]) -> Panel:
        rank, zeros = self._halo.rank, lambda n, dtype: self._zeros(n, width, dtype)
        rows = self._halo.bounds[rank], self._halo.bounds[rank + 1]
        return StagedTransport(self._open(width, dtype), *rows, dtype, self._put, self._get, zeros)

    def count_bytes(self, width: int, itemsize: int) -> int:
        return (self._halo.starts[-1] + self._halo.count(self._halo.rank)) * width * itemsize

    def count_staged_bytes(self, width: int, itemsize: int) -> int:
        return super().count_bytes(width, itemsize)


class NcclPanels:
    """Each device holds z of all columns, and sends its slices to all others on the stream of the kernels.

    Parameters
    ----------
    bounds : first row of each device, and the number of rows
    check : as for `NcclGroup`
    """

    def __init__(self, group: NcclGroup, bounds: Sequence[int], zeros: Zeros, check: Callable[[], None]) -> None:
        self._group, self._bounds, self._zeros, self._check = group, bounds, zeros, check

    def open(self, width: int, dtype: np.dtype[Any]) -> Panel:
        return _NcclPanel(self, self._group, self._bounds, self._zeros, width, dtype)

    def gather(self, own: np.ndarray) -> list[np.ndarray]:
        import cupy

        n = self._group.n_devices
        found: np.ndarray = self._group.gather(cupy.asarray(own), [len(own)] * n, self._check).get()
        return list(found.reshape(n, len(own)))

    def count_bytes(self, width: int, itemsize: int) -> int:
        rank = self._group.rank
        return (self._bounds[-1] + self._bounds[rank + 1] - self._bounds[rank]) * width * itemsize

    def count_staged_bytes(self, width: int, itemsize: int) -> int:
        return 0


class _NcclPanel:
    """z of all columns, which is overwritten when the product that read it is done, and a slot for the next slice."""

    waited_s = 0.0

    def __init__(
        self,
        panels: NcclPanels,
        group: NcclGroup,
        bounds: Sequence[int],
        zeros: Zeros,
        width: int,
        dtype: np.dtype[Any],
    ) -> None:
        self._panels, self._group = panels, group
        self._z, self._first = zeros(bounds[-1], width, dtype), bounds[group.rank]
        self._slot = zeros(bounds[group.rank + 1] - self._first, width, dtype)
        self._slices = [self._z[a:b] for a, b in pairwise(bounds)]
        self.exchanged_bytes = 0

    @property
    def z(self) -> Any:
        return self._z

    @property
    def nbytes(self) -> int:
        return int(self._z.nbytes + self._slot.nbytes)

    def slot(self, start: int, stop: int) -> Any:
        return self._slot[start - self._first : stop - self._first]

    def exchange_columns(self, sums: Sequence[StepSums], product_s: float = 0.0) -> list[StepSums]:
        self._slices[self._group.rank][...] = self._slot
        self._group.exchange([self._slot] * len(self._slices), self._slices)
        self.exchanged_bytes += int(self._z.nbytes - self._slot.nbytes)
        own = np.array([(s.change_l1, s.change_linf, s.dangling, s.n_wrong) for s in sums], np.int64)
        everybody = self._panels.gather(own.reshape(-1))  # which waits for the slices too
        columns = zip(*(of_one.reshape(own.shape).tolist() for of_one in everybody), strict=True)
        return [sum((StepSums(*one) for one in of_column), StepSums()) for of_column in columns]
