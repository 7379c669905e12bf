"""Edges read into the row blocks of the workers of a cluster, without a store.

The steps are those of `mgspmv.cluster.ingest_steps`. Then each worker keeps its rows, with the degrees and weights of
their vertices, and the client the ids of all vertices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mgspmv.cluster.cluster_rows import ClusterRows
from mgspmv.cluster.dask_cluster import Cluster
from mgspmv.cluster.ingest_steps import Describe, IngestSteps, Numbered, check_source, choose_client
from mgspmv.cluster.load import choose_placement, load_matrix
from mgspmv.cluster.matrix import DistributedMatrix
from mgspmv.cluster.worker_rows import RowsAddress
from mgspmv.display.numbers import format_bytes
from mgspmv.errors import CapacityError
from mgspmv.ingest.budget import check_memory
from mgspmv.ingest.entries import choose_rule
from mgspmv.ingest.in_memory import VERSION
from mgspmv.model import IngestOptions, MatrixInfo, Precision, Progress, index_dtype
from mgspmv.partition import INGEST_FIRST, find_costs
from mgspmv.solvers.options import Placement, Reads
from mgspmv.store.held import PLACE
from mgspmv.store.stored_matrix import FORMAT_VERSION


def read_edges_on_cluster(
    source: Any,
    options: IngestOptions,
    place: Placement,
    reads: Reads,
    describe: Describe,
    *,
    memory: int | None,
    scratch: str | None,
    allow_hypersparse: bool,
    report: Progress,
) -> DistributedMatrix:
    """Let the workers of a cluster read a source and hold its rows; see `mgspmv.read_edges`.

    Parameters
    ----------
    memory, scratch : of each worker, as for `ingest_on_cluster`
    """
    source = check_source(source, "pass them to mg.ingest, and distribute its matrix")
    check_memory(memory)
    cluster = Cluster(place.client, place.timeout)
    try:
        cluster = choose_client(cluster, source)
        report("join", 0, None)
        workers = cluster.join(devices=place.backend != "cpu")
        places = choose_placement(workers, place.backend, place.transport)
        with cluster.lease(lambda: report("queue", 0, None)):
            reading = _EdgeSteps(cluster, workers, source, options, report, allow_hypersparse=allow_hypersparse)
            try:
                reading.begin(memory, place.threads, scratch, places.backend)
                stored = reading.run(describe, reads.precision or "exact")
                loading = load_matrix(stored, cluster, place, reads, report, has_lease=True)
            finally:
                reading.end()
        stored.blocks.extend(loading.parts)
        return DistributedMatrix(stored, cluster, (place, reads), loading)
    except BaseException:
        cluster.close()
        raise


class _EdgeSteps(IngestSteps):
    """Steps of reading edges whose rows the workers keep."""

    keeps_rows = True

    def run(self, describe: Describe, precision: Precision) -> ClusterRows:
        """Run all steps, and return the matrix, whose rows are to be loaded.

        Parameters
        ----------
        precision : of most runs, for which rows are cut

        Raises
        ------
        CapacityError : the rows do not fit in the memory of a worker
        """
        numbered = self._read()
        info = self._describe_matrix(numbered, describe)
        need, free = self._find_size(numbered).nbytes // len(self._workers), min(w.memory for w in self._workers)
        if need > free:
            raise CapacityError(
                f"{numbered.n_entries:,} entries take {format_bytes(need)} on each of {len(self._workers)} workers, "
                f"and one of them has {format_bytes(free)}; {INGEST_FIRST}"
            )
        costs = find_costs(info, precision)
        self._costs = costs["bytes_per_nonzero"], costs["bytes_per_row"]
        nnz, least = self._build(info.shape, self._do("number", "group", info.shape), "sort", transpose=False)
        if self._kind != "matrix":
            self._add_up(info.shape[1], self._cut_columns, "keep_sums")
        arrays = {} if numbered.id_type is None else {"vertex_ids": np.concatenate(self._do("number", "list_own_ids"))}
        info = self._describe_matrix(numbered, describe, sum(nnz), least)
        rows = RowsAddress(info, self._members, self._shards.keys, tuple(self._bounds), tuple(nnz))
        return ClusterRows(info=info, place=PLACE, arrays=arrays, cluster=self._cluster, rows=rows)

    def _cut_columns(self, start: int, stop: int) -> Sequence[int]:
        """Cut columns by the rows of the workers."""
        return [min(max(bound, start), stop) for bound in self._bounds]

    def _describe_matrix(
        self, numbered: Numbered, describe: Describe, nnz: int = 0, least: float | None = None
    ) -> MatrixInfo:
        rule, dtype = choose_rule(self._options, is_pattern=numbered.dtype is None), numbered.dtype
        size = replace(self._find_size(numbered), n_entries=nnz)
        return MatrixInfo(
            url=PLACE,
            kind=self._kind,
            shape=numbered.shape,
            nnz=nnz,
            dtype=None if dtype is None else dtype.name,  # type: ignore[arg-type]
            index_dtype=index_dtype(numbered.shape[1]).name,  # type: ignore[arg-type]
            duplicates=rule,
            vertex_ids=numbered.id_type,  # type: ignore[arg-type]
            min_weight=least,
            has_transpose=False,
            version=VERSION,
            format_version=FORMAT_VERSION,
            digest="",
            nbytes=size.nbytes,
            provenance=numbered.describe(describe, rule, nnz),
        )
