"""Rows of a matrix that the workers have built and hold in memory, without a store."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from mgspmv.exchange.peer_comm import Member
from mgspmv.kernels.catalogue import Backend
from mgspmv.model import MatrixInfo
from mgspmv.partition import INGEST_FIRST
from mgspmv.store.held import HeldMatrix
from mgspmv.store.stored_matrix import HostArray, Range

if TYPE_CHECKING:
    from mgspmv.exchange.nccl import NcclGroup

LOST = f"the rows of a lost worker cannot be read again, as they are in no store; {INGEST_FIRST}"
"""Remedy where workers that hold rows are lost."""


@dataclass(frozen=True)
class RowsAddress:
    """Address of the rows of a matrix that workers have built, a block each."""

    info: MatrixInfo
    members: tuple[Member, ...]
    """Workers that hold the rows, by rank."""
    keys: tuple[str, ...]
    """Key under which each worker holds what built its rows."""
    bounds: tuple[int, ...]
    """First row of each worker, and the number of rows."""
    nnz: tuple[int, ...]
    """Number of entries of each worker."""

    @property
    def ends(self) -> Any:
        """Row pointers at the bounds."""
        return dict(zip(self.bounds, accumulate(self.nnz, initial=0), strict=True))


@dataclass(frozen=True, kw_only=True, repr=False)
class WorkerRows(HeldMatrix):
    """Rows of a matrix on the worker that holds them, which are read as those of a store are.

    Arrays have the elements of these rows alone: row pointers into the whole matrix, columns, values, and the degrees
    and weights of their vertices.
    """

    first_row: int
    first_entry: int
    backend: Backend
    """Backend that computes with them."""
    group: NcclGroup | None
    """Devices of all workers, if their entries were exchanged by NCCL."""

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(int(array.nbytes) for array in [*self.arrays.values()])

    def read_range(self, asked: Range, threads: int | None = None) -> Any:
        """Read elements that are on this worker, see `StoredMatrix.read_array`.

        Columns on a host may be written to: all of rows that compute there are given to their first reader.
        """
        name, start, stop = asked.name, asked.start, asked.stop
        first = self.first_entry if name in ("indices", "data") else self.first_row
        end = first + len(self.arrays[name])
        stop = end if stop is None else stop
        if not first <= start <= stop <= end:
            raise IndexError(f"elements {start}..{stop} of {name}, but this worker has {first}..{end}")
        found = super().read_range(replace(asked, start=start - first, stop=stop - first), threads)
        if name == "indptr":
            return found.copy()  # readers count from their first row
        if name != "indices" or asked.allocate is not HostArray or not isinstance(self.arrays[name], np.ndarray):
            return found
        if self.backend == "cpu" and len(found) == len(self.arrays[name]):
            self.arrays.pop(name)
            return found
        return found.copy()
