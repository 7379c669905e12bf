"""A store of ours as the source of another one, of the same entries with other options."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mgspmv.ingest.source import Layout
from mgspmv.ingest.stored import StoredRows, list_rows
from mgspmv.model import CooBatch, CsrBlock, Kind, default_threads, index_dtype
from mgspmv.store.read import StoredMatrix


class StoreSource:
    """The current version of a matrix store as a `Source`: its entries and its ids, in the numbers of its own source.

    Parameters
    ----------
    threads : that read; default one for each processor
    """

    def __init__(self, stored: StoredMatrix, threads: int | None = None) -> None:
        self.default_kind: Kind = stored.info.kind
        self.name = stored.info.url
        self._info, self._rows = stored.info, StoredRows(stored, threads or default_threads())

    def batches(self) -> Iterator[CooBatch]:
        """Give all entries row after row, at least one batch; of a graph the arc i -> j as (i, j).

        Raises
        ------
        StoreError : they cannot be read
        """
        dtype = index_dtype(self._info.shape[1])
        nothing = CsrBlock(0, self._info.shape[1], np.zeros(1, np.int64), np.zeros(0, dtype), self._make_values())
        yield self._give(nothing)
        for block in self._rows.blocks():
            yield self._give(block)

    def layout(self) -> Layout:
        """Shape and ids, and where the store itself came from."""
        info = self._info
        made = {"digest": info.digest, "version": info.version, "provenance": info.provenance}
        provenance = {"name": self.name, "format": "mgspmv", **made}
        return Layout(info.shape, self._rows.vertex_ids, provenance=provenance)

    def _give(self, block: CsrBlock) -> CooBatch:
        rows, cols = list_rows(block), block.indices
        if (order := self._rows.order) is not None:
            rows, cols = order[rows], order[cols]
        return CooBatch(cols, rows, block.data) if self._info.kind == "graph" else CooBatch(rows, cols, block.data)

    def _make_values(self) -> np.ndarray | None:
        return None if self._rows.dtype is None else np.zeros(0, self._rows.dtype)
