"""Share of an ingest whose entries, if they suit its device, are sorted and exchanged there; see `mgspmv.ingest.shard`.

    read             upload the entries of its part
    mark_ids         number small integers, which all devices mark
    sample_rows      count some of them by rows, so that rows are cut
    trade            sort them, and exchange those of other shares' rows from device to device
    build_on_device  sort and merge the entries of its rows, and add up columns

Entries are keys, see `mgspmv.ingest.device_sorting`, and have the order of the parts where they are at the same place.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from operator import add
from typing import Any

import numpy as np

from mgspmv.errors import CapacityError
from mgspmv.exchange.nccl import NcclGroup
from mgspmv.ingest.build import join_sums
from mgspmv.ingest.device_sorting import MARK_BYTES, DeviceSorter, find_sort_bytes
from mgspmv.ingest.entries import SortedSource, choose_rule
from mgspmv.ingest.shard import Shard, SharedIds
from mgspmv.ingest.source import Layout, infinite_error
from mgspmv.kernels.entry_sorting import count_columns, count_infinite, order_keys, sum_columns
from mgspmv.kernels.formats import array_module
from mgspmv.model import INT32_LIMIT
from mgspmv.partition import INGEST_FIRST
from mgspmv.store.held import HeldArrays

JOINED_MARKS = 3
"""Most copies of the marks while those of all devices are joined."""
BUCKET_BITS = 16
"""Bits of the number of a bucket of rows."""
TURN_BYTES = 32
"""Most bytes per entry while the values of columns are added up."""
COLUMN_BYTES = 24
"""Most bytes per column, and per array of sums, while sums are exchanged."""


@dataclass(frozen=True, eq=False)
class RowSample:
    """Entries of a share on its device."""

    counts: np.ndarray
    """Approximate number of entries in each bucket of rows, see `list_buckets`."""
    n_entries: int
    value_bytes: int
    most_bytes: int
    """Memory of the device that may be used."""

    def find_bytes(self, n_received: int, n_cols: int) -> int:
        """Return the most bytes of the device that are taken until the rows are built.

        Parameters
        ----------
        n_received : number of entries in the rows of this share
        """
        exchanged = (8 + self.value_bytes) * (self.n_entries + n_received)
        sorted_bytes = (find_sort_bytes(self.value_bytes) + (TURN_BYTES if self.value_bytes else 0)) * n_received
        return max(exchanged, sorted_bytes) + COLUMN_BYTES * n_cols * (2 if self.value_bytes else 1)


def list_buckets(n_rows: int) -> np.ndarray:
    """Return the first row of each bucket, and the number of rows."""
    shift = _find_shift(n_rows)
    rows: np.ndarray = np.minimum(np.arange(-(-n_rows >> shift) + 1) << shift, n_rows)
    return rows


def _find_shift(n_rows: int) -> int:
    return max(0, (n_rows - 1).bit_length() - BUCKET_BITS)


@contextmanager
def reporting_memory() -> Iterator[None]:
    """Raise `CapacityError` in place of CuPy's error if the memory of the device does not suffice."""
    try:
        yield
    except Exception as error:
        if type(error).__name__ != "OutOfMemoryError":
            raise
        raise CapacityError(
            f"the entries do not fit into the memory that is left on a device ({error}); {INGEST_FIRST}"
        ) from error


class DeviceShard(Shard):
    """Share of an ingest that may have a device.

    Attributes
    ----------
    device_group : devices of all shares, if there are several
    """

    device_group: NcclGroup | None = None
    _keys: Any = None
    _values: Any = None
    _bits = 0
    _built: HeldArrays | None = None

    def use_device(self, device: DeviceSorter) -> None:
        """Upload entries to a device as they are read."""
        self._device = device
        self._held.callback(self._drop)

    def can_mark(self, high: int) -> bool:
        """Return whether the entries are on the device, with ids, and a table of the ids up to `high` fits there."""
        device, part = self._device, self._spec.part
        has_ids = device is not None and not device.is_moved and (part is None or part.layout().are_ids)
        return has_ids and device is not None and device.fits(JOINED_MARKS * MARK_BYTES * (high + 1))

    @reporting_memory()
    def mark_ids(self, high: int, dtype: np.dtype[Any] | None) -> int:
        """Number all ids with the devices of all shares, which call this together in place of `list_ids`; return how
        many there are.

        Parameters
        ----------
        high : greatest id
        dtype : as for `list_ids`

        Raises
        ------
        SourceError : as for `EntryFeed.check`
        """
        assert self._device is not None
        self._dtype, self._rule = dtype, choose_rule(self._spec.options, is_pattern=dtype is None)
        if self._spec.part is not None:
            self._feed.check(self._spec.part.layout())
        ids = self._device.number_marked(high, self._join_marks)
        self._ids = ids[: 0 if self._spec.rank else None].copy()
        return len(ids)

    def _join_marks(self, seen: Any) -> None:
        if self.device_group is None:
            return
        n, xp = self._spec.n_shares, array_module(seen)
        cuts = [len(seen) * k // n for k in range(n + 1)]
        marks = self.device_group.trade([seen[a:b] for a, b in pairwise(cuts)]).reshape(n, -1)
        seen[:] = self.device_group.trade([reduce(xp.maximum, [*marks])] * n)

    def _leave_device(self) -> None:
        if self._device is not None and (table := self._device.get_table()) is not None:
            self._positions = table
        super()._leave_device()

    def sample_rows(self, n_rows: int) -> RowSample | None:
        """Return a sample of the entries on the device; None if they are on the host, or do not suit it."""
        device = self._device
        if device is None or device.is_moved or not 0 < n_rows < INT32_LIMIT:
            return None
        counts = device.sample_rows(_find_shift(n_rows), len(list_buckets(n_rows)) - 1)
        value_bytes = 0 if self._dtype is None else self._dtype.itemsize
        return RowSample(counts, device.n_entries, value_bytes, device.most_bytes)

    @reporting_memory()
    def trade(self, bounds: Sequence[int]) -> None:
        """Exchange entries with the devices of all shares, which call this together.

        Parameters
        ----------
        bounds : first row of each share, and the number of rows and columns
        """
        assert self._device is not None
        keys, values, self._bits = self._device.take(bounds[-1], self._dtype)
        if self.device_group is not None:
            if len(keys):
                keys, order = order_keys(keys, has_values=values is not None)
                values = None if order is None else values[order]
                del order
            cuts = [bisect_left(range(len(keys)), row << self._bits, key=lambda k: int(keys[k])) for row in bounds]
            keys = self.device_group.trade([keys[a:b] for a, b in pairwise(cuts)])
            if values is not None:
                values = self.device_group.trade([values[a:b] for a, b in pairwise(cuts)])
        self._keys, self._values = keys, values

    @reporting_memory()
    def build_on_device(self, bounds: Sequence[int]) -> tuple[int, list[float]]:
        """Sort and merge the entries of this share's rows, and add up columns with the other shares, which call this
        together; return the number of entries, and their least value.

        Parameters
        ----------
        bounds : as for `trade`

        Raises
        ------
        SourceError : as for `mgspmv.ingest.device_sorting.Merging`; a weight that is not finite
        """
        n, first, stop = bounds[-1], *bounds[self._spec.rank : self._spec.rank + 2]
        keys, values, xp = self._keys, self._values, array_module(self._keys)
        self._keys = self._values = None
        ids: Any = SharedIds([0, n], self._ask)
        given = self._dtype, self._rule, Layout((n, n), vertex_ids=ids), self._spec.name, self._given
        merging = SortedSource("graph", *given, drops_loops=self._spec.options.self_loops == "drop").merging
        if len(keys):
            indptr, indices, data = merging.build(keys, values, self._bits, stop - first, first)
        else:
            indptr, indices, data = xp.zeros(stop - first + 1, np.int64), xp.zeros(0, np.int32), values
        del keys, values
        self._notify("sort", 1, None)
        if data is not None and (n_infinite := count_infinite(data)):
            raise infinite_error("graph", n_infinite, self._spec.name)
        degree = count_columns(indices, n)
        arrays = {"indptr": indptr, "indices": indices, "out_degree": reduce(add, self._trade_columns(degree, bounds))}
        if data is not None:
            low = xp.zeros(n, np.float64)
            parts = [sum_columns(indptr, indices, data, degree, low), low]
            (high, *highs), (low, *lows) = (self._trade_columns(own, bounds) for own in parts)
            for pair in zip(highs, lows, strict=True):
                join_sums(high, low, *pair)
            arrays |= {"data": data, "out_weight": high + low}
        self._built = arrays
        return len(indices), [float(data.min())] if data is not None and len(data) else []

    def _trade_columns(self, sums: Any, bounds: Sequence[int]) -> list[Any]:
        """Return the sums that each share has of the columns of this share, by rank."""
        if self.device_group is None:
            return [sums]
        own = self.device_group.trade([sums[a:b] for a, b in pairwise(bounds)])
        return [*own.reshape(self._spec.n_shares, -1)]

    def take_arrays(self, first_entry: int) -> HeldArrays:
        if self._built is None:
            return super().take_arrays(first_entry)
        arrays, self._built = self._built, None
        arrays["indptr"] += first_entry
        return arrays

    def _drop(self) -> None:
        assert self._device is not None
        self._device.close()
        self._keys = self._values = self._built = None
