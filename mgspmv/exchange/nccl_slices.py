"""Exchange of slices of z between devices by NCCL, and the columns of z that each device holds for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from mgspmv.exchange.exchange import GatheringExchange, Zeros
from mgspmv.exchange.ipc import IpcMemory
from mgspmv.exchange.nccl import NcclGroup
from mgspmv.model import StepSums
from mgspmv.partition import SLICE_SUMS, Slices

NEEDED = 0.5
"""Maximum fraction of the others' columns that each device reads for which it is sent these alone, packed, not all."""


class NcclExchange(GatheringExchange):
    """Exchange of devices that hold z of all columns, and send their slices on the stream of the kernels.

    z is overwritten when the product that read it is done.

    Parameters
    ----------
    bounds : first row of each device, and the number of rows
    """

    z: Any = None
    exchanged_bytes = 0

    def __init__(self, group: NcclGroup, bounds: Sequence[int]) -> None:
        self._group, self._bounds = group, bounds
        self._start, self._stop = bounds[group.rank : group.rank + 2]
        self.n_elements = bounds[-1] + self._stop - self._start

    def _allocate(self, zeros: Zeros) -> None:
        self.z, self._slot = zeros(self._bounds[-1]), zeros(self._stop - self._start)

    @property
    def nbytes(self) -> int:
        return int(self.z.nbytes + self._slot.nbytes)

    def slot(self) -> Any:
        return self._slot

    def get_own(self) -> Any:
        return self.z[self._start : self._stop]

    def exchange_columns(self, sums: Sequence[StepSums]) -> list[StepSums]:
        slices = [self.z[a:b] for a, b in pairwise(self._bounds)]
        slices[self._group.rank][...] = self._slot
        self._group.exchange([self._slot] * len(slices), slices)
        self.exchanged_bytes += int(self.z.nbytes - self._slot.nbytes)
        own = np.array([(s.change_l1, s.change_linf, s.dangling, s.n_wrong) for s in sums], np.int64)
        gathered = self.gather(own.reshape(-1))  # waits for the slices too
        columns = zip(*(of_one.reshape(own.shape).tolist() for of_one in gathered), strict=True)
        return [sum((StepSums(*one) for one in of_column), StepSums()) for of_column in columns]

    def gather(self, own: np.ndarray) -> list[np.ndarray]:
        return list(self._group.gather_hosts(own))


class NcclSlices:
    """Exchange of slices of z by NCCL.

    Parameters
    ----------
    columns : columns of z that each device holds
    n_terms : number of entries of the whole matrix, or of rows, if larger
    """

    def __init__(self, group: NcclGroup, columns: SharedColumns, n_terms: int) -> None:
        self.rank, self.slices, self.n_terms = group.rank, columns.slices, n_terms
        self._group, self._packing, self.wait = group, columns.packing, group.wait
        self._packed: dict[int, Any] = {}

    @property
    def received_elements(self) -> int:
        """Number of elements of z received from others."""
        starts = self.slices.starts
        return starts[-1] - (starts[self.rank + 1] - starts[self.rank])

    def share(self, n_bytes: int) -> IpcMemory | None:
        """Return memory that all devices write into; None if they cannot, or if slices are packed for each receiver."""
        return self._group.share(n_bytes) if self._packing is None else None

    def enqueue(self, z: Any) -> None:
        """Send the others the elements of this slice of z that they read, and receive theirs, on the current stream."""
        self._group.exchange(self.select(z), [z[a:b] for a, b in pairwise(self.slices.starts)])

    def select(self, z: Any) -> list[Any]:
        """Select on the current stream the elements of z to send to each device, by rank, valid until the next call."""
        starts, packing = self.slices.starts, self._packing
        own = z[starts[self.rank] : starts[self.rank + 1]]
        if packing is None:
            return [own] * (len(starts) - 1)
        import cupy

        packed = self._packed.get(z.itemsize)
        if packed is None:
            self._packed = {z.itemsize: cupy.empty(len(packing.elements), z.dtype)}
            packed = self._packed[z.itemsize]
        cupy.take(own, packing.elements, out=packed)
        return [packed[a:b] for a, b in pairwise(packing.starts)]


@dataclass(frozen=True, eq=False)
class Packing:
    """Elements of a device's slice to send to each of the others: those that the receiver reads."""

    elements: Any
    """int32, on the device: positions in the slice of columns and then of the sums, for one device after the other."""
    starts: tuple[int, ...]
    """Offset of the elements for each device, and the number of elements."""


@dataclass(frozen=True, eq=False)
class SharedColumns:
    """Columns of z that a device holds."""

    slices: Slices
    """Layout of z, one slice per device."""
    places: Any
    """(n_cols,) int32, on the device: position in z of each held column."""
    packing: Packing | None
    """Elements to send to each device; None to send the whole slice."""


def share_columns(
    group: NcclGroup, own: Any | None, n_sent: int, bounds: tuple[int, ...], mark: Callable[[], Any] | None
) -> SharedColumns:
    """Agree with the other devices on the columns of z that each holds.

    Parameters
    ----------
    own : (n_rows,) int32, on the device: positions of the rows among the columns that this device sends; None if it
        sends all, in their order
    n_sent : number of these columns
    bounds : first row of each device, and the number of rows
    mark : returns (n_cols,) bool, on the device: the columns that this device reads; None if it is likely to read
        most. Each device is sent just the columns that it reads if all have `mark` and read few of the others' columns
    """
    import cupy

    n, rank = group.n_devices, group.rank
    notes = group.gather(cupy.asarray([n_sent, int(mark is not None)], np.int32), [2] * n).get().reshape(n, 2)
    counts = notes[:, 0].astype(np.int64)
    slots = group.gather(cupy.arange(n_sent, dtype=np.int32) if own is None else own, np.diff(bounds).tolist())
    pieces = [slots[a:b] for a, b in pairwise(bounds)]
    if notes[:, 1].all() and mark is not None:
        is_read = mark()
        lists = [
            cupy.sort(piece[is_read[a:b]]) if owner != rank else piece[:0]
            for owner, (piece, (a, b)) in enumerate(zip(pieces, pairwise(bounds), strict=True))
        ]
        own_needs = cupy.asarray([len(one) for one in lists], np.int32)
        needs = group.gather(own_needs, [n] * n).get().reshape(n, n).astype(np.int64)
        if (needs.sum(axis=1) <= NEEDED * (counts.sum() - counts)).all():
            return _share_needed(group, pieces, lists, needs, int(counts[rank]))
    slices = Slices(tuple(map(int, counts)))
    for piece, start in zip(pieces, slices.starts, strict=False):
        piece += start
    return SharedColumns(slices, slots, None)


def _share_needed(
    group: NcclGroup, pieces: list[Any], lists: list[Any], needs: np.ndarray, n_sent: int
) -> SharedColumns:
    """Agree that each device is sent just the columns that it reads.

    Parameters
    ----------
    pieces : for each device, the positions of its rows in its slice
    lists : for each other device, the positions in its slice that are read here, ascending
    needs : [a, b] is the number of columns of b that a reads
    """
    import cupy

    rank = group.rank
    slices = Slices(tuple(n_sent if owner == rank else int(k) for owner, k in enumerate(needs[rank])))
    asked = [cupy.empty(int(k), np.int32) for k in needs[:, rank]]
    group.exchange(lists, asked)
    group.wait(cupy.cuda.get_current_stream())
    sums = slices.tails[rank] + cupy.arange(SLICE_SUMS, dtype=np.int32)
    elements = []
    for one in asked:  # padded to the slice length of the reader, see `Slices`
        padding = cupy.zeros(Slices((len(one),)).tails[0] - len(one), np.int32)
        elements += [one, padding, sums]
    lengths = [Slices((len(one),)).starts[-1] for one in asked]
    packing = Packing(cupy.concatenate(elements), (0, *accumulate(lengths)))
    places = [
        start + (piece if owner == rank else cupy.searchsorted(one, piece).astype(np.int32))
        for owner, (start, piece, one) in enumerate(zip(slices.starts, pieces, lists, strict=False))
    ]
    return SharedColumns(slices, cupy.concatenate(places).astype(np.int32), packing)
