"""Matrix whose rows the workers of a cluster hold without a store, as its client knows it."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from mgspmv.cluster.dask_cluster import Cluster
from mgspmv.cluster.load import HeldObjects, HeldRowBlock
from mgspmv.cluster.worker_rows import RowsAddress
from mgspmv.errors import OptionError
from mgspmv.partition import INGEST_FIRST
from mgspmv.store.stored_matrix import Range, StoredMatrix


@dataclass(frozen=True, kw_only=True, repr=False)
class ClusterRows(StoredMatrix):
    """Matrix whose rows the workers hold without a store. `arrays` has the ids of the vertices, if there are any; their
    degrees and weights are fetched from the workers."""

    cluster: Cluster
    rows: RowsAddress
    blocks: list[HeldRowBlock] = field(default_factory=list)
    """Row blocks that the workers hold, by rank, once they are loaded."""

    def read_range(self, asked: Range, threads: int | None = None) -> Any:
        """Return elements of an array that has one per vertex; see `StoredMatrix.read_array`.

        Raises
        ------
        OptionError : another array, which the workers alone have
        ClusterError : a worker is lost
        """
        name, start, stop = asked.name, asked.start, asked.stop
        if name in self.arrays:
            return self.arrays[name][start:stop]
        if name not in ("out_degree", "out_weight"):
            raise OptionError(
                f"the workers alone have the entries of this matrix, which is in no store; {INGEST_FIRST}"
            )
        stop = self.info.shape[0] if stop is None else stop
        cut = [(max(start, first), min(stop, end)) for first, end in pairwise(self.rows.bounds)]
        ranks = [rank for rank, (a, b) in enumerate(cut) if a < b]
        blocks = HeldObjects(self.cluster, self.rows.members, [block.future.key for block in self.blocks])
        try:
            parts = blocks.do_each("fetch", "fetch", [(name, *cut[rank]) for rank in ranks], ranks=ranks)
        finally:
            blocks.release()
        return np.concatenate(parts or [np.zeros(0)])

    @property
    def digest(self) -> str:
        raise OptionError(
            f"this matrix is in no store, and has no digest by which a checkpoint is found again; {INGEST_FIRST}"
        )

    def address(self) -> RowsAddress:
        return self.rows
