"""Matrix whose rows the workers of a cluster hold without a store, as its client knows it."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from mgspmv.cluster.agent import call_held
from mgspmv.cluster.dask_cluster import Cluster
from mgspmv.cluster.load import HeldRowBlock
from mgspmv.cluster.worker_rows import RowsAddress
from mgspmv.errors import OptionError
from mgspmv.partition import INGEST_FIRST
from mgspmv.store.stored_matrix import Allocate, HostArray, StoredMatrix


@dataclass(frozen=True, kw_only=True, repr=False)
class ClusterRows(StoredMatrix):
    """Matrix whose rows the workers hold without a store. `arrays` has the ids of the vertices, if there are any; their
    degrees and weights are fetched from the workers."""

    cluster: Cluster
    rows: RowsAddress
    blocks: list[HeldRowBlock] = field(default_factory=list)
    """Row blocks that the workers hold, by rank, once they are loaded."""

    def read_array(
        self,
        name: str,
        start: int = 0,
        stop: int | None = None,
        threads: int | None = None,
        allocate: Allocate = HostArray,
        *,
        dtype: Any = None,
        checks: bool = True,
    ) -> np.ndarray:
        """Return elements of an array that has one per vertex; see `StoredMatrix.read_array`.

        Raises
        ------
        OptionError : another array, which the workers alone have
        ClusterError : a worker is lost
        """
        found: np.ndarray
        if name in self.arrays:
            found = self.arrays[name][start:stop]
            return found
        if name not in ("out_degree", "out_weight"):
            raise OptionError(
                f"the workers alone have the entries of this matrix, which is in no store; {INGEST_FIRST}"
            )
        stop = self.info.shape[0] if stop is None else stop
        ranks, futures, token = list[int](), list[Any](), uuid.uuid4().hex
        for rank, (first, end) in enumerate(pairwise(self.rows.bounds)):
            if (a := max(start, first)) < (b := min(stop, end)):
                ranks.append(rank)
                given = call_held, self.blocks[rank].future.key, "fetch", name, a, b
                futures.append(self.cluster.submit(self.rows.members[rank], f"mgspmv-fetch-{token}-{rank}", *given))
        try:
            parts = self.cluster.settle(futures, self.rows.members, "fetch", ranks=ranks)
        finally:
            self.cluster.release(futures)
        found = np.concatenate(parts or [np.zeros(0)])
        return found

    @property
    def digest(self) -> str:
        raise OptionError(
            f"this matrix is in no store, and has no digest by which a checkpoint is found again; {INGEST_FIRST}"
        )

    def address(self) -> RowsAddress:
        return self.rows
