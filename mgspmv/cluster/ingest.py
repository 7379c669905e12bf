"""Ingest by the workers of a cluster, in the steps of `mgspmv.cluster.ingest_steps`: into a store, where then

    write     each worker writes the chunks within its range; the client writes chunks shared by two ranges, and commits

or into row blocks without a store, where each worker keeps its rows, with the degrees and weights of their vertices,
and the client the ids of all vertices. A store is identical to that made by one process.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from mgspmv.cluster.dask_cluster import Cluster
from mgspmv.cluster.ingest_steps import Describe, DeviceOffer, IngestSteps, check_source, choose_client
from mgspmv.cluster.load import WorkerPlacement, choose_placement, load_matrix
from mgspmv.cluster.matrix import ClusterRows, DistributedMatrix
from mgspmv.cluster.worker_rows import RowsAddress
from mgspmv.display import format_bytes
from mgspmv.errors import CapacityError, OptionError
from mgspmv.ingest.budget import check_memory, check_space
from mgspmv.ingest.device_shard import RowSample, list_buckets
from mgspmv.ingest.device_sorting import are_marked, is_worth_a_device
from mgspmv.ingest.numbering import IdType
from mgspmv.kernels.entry_sorting import MOST_ENTRIES
from mgspmv.model import IngestOptions, MatrixInfo, Precision, Progress, index_dtype
from mgspmv.partition import INGEST_FIRST, Planner, limit
from mgspmv.solvers.options import Placement, Reads
from mgspmv.store.chunks import WrittenRange
from mgspmv.store.held import PLACE
from mgspmv.store.stored_matrix import find_least
from mgspmv.store.write import Version, begin_version
from mgspmv.validation import to_json

SAMPLE_MARGIN = 1.05
"""Factor by which the rows of a worker may have more entries than a sample says."""


# --- into a store ----------------------------------------------------------------------------------------------------


def ingest_on_cluster(
    source: Any,
    store: Any,
    options: IngestOptions,
    client: Any,
    describe: Describe,
    *,
    memory: int | None,
    threads: int | None,
    scratch: str | None,
    timeout: float,
    base: str | None,
    allow_hypersparse: bool,
    report: Progress,
) -> MatrixInfo:
    """Let the workers of a cluster ingest a source; see `mgspmv.ingest`.

    Parameters
    ----------
    describe : makes the provenance of the store from that of the source
    memory : bytes that the process of each worker may take; None for half of its available memory
    scratch : a folder that exists on each worker; None for Dask's own

    Returns
    -------
    The description of the new version.

    Raises
    ------
    OptionError : an order, which is not supported on a cluster, or a source that only this process can read
    """
    if options.order != "none":
        raise OptionError(
            f"order={options.order!r} is not supported on a cluster; leave out order= and reorder the store "
            "afterwards, or leave out client="
        )
    source = check_source(source, "leave out client=")
    check_memory(memory)
    cluster = Cluster(client, timeout)
    try:
        cluster = choose_client(cluster, source)
        report("join", 0, None)
        workers = cluster.join(devices=False)
        with (
            cluster.lease(lambda: report("queue", 0, None)),
            begin_version(store, base=base) as version,
            _StoreSteps(cluster, workers, source, options, report, allow_hypersparse=allow_hypersparse) as making,
        ):
            making.begin(memory, threads, scratch)
            return making.run(version, describe)
    finally:
        cluster.close()


class _StoreSteps(IngestSteps):
    """Steps of an ingest into a store."""

    def run(self, version: Version, describe: Describe) -> MatrixInfo:
        """Run all steps, commit the version, and return its description."""
        self._read()
        shape = self._shape
        check_space(version.place, self._size)
        counted = self._do("number", "group", shape)
        nnz, least = self._build(shape, counted, "sort", transpose=self._options.transpose)
        if self._kind != "matrix":
            self._sum_columns(version, shape[1])
        self._write(version, "", shape, nnz)
        if self._id_type is not None:
            version.create_array("vertex_ids", shape[0], str if self._id_type == "string" else np.dtype(np.int64))
            ids: list[dict[str, WrittenRange]] = self._do("write", "write_ids", version.address())
            version.finish_array("vertex_ids", [own["vertex_ids"] for own in ids if own])
        if self._options.transpose:
            counted, other = self._do("transpose", "group_transpose"), shape[::-1]
            n_entries, _ = self._build(other, counted, "sort the transpose", transpose=False)
            self._write(version, "transpose", other, n_entries)
        info = self._describe(describe, sum(nnz), least)
        info.provenance["report"] = to_json(info.provenance["report"])
        return version.commit(version.describe(info))

    def _sum_columns(self, version: Version, n_cols: int) -> None:
        types = {"out_degree": np.int64} | ({} if self._dtype is None else {"out_weight": np.float64})
        for name, own in types.items():
            version.create_array(name, n_cols, np.dtype(own))
        n, address = len(self._members), version.address()
        cut = lambda start, stop: [start + (stop - start) * rank // n for rank in range(n + 1)]  # noqa: E731
        written = self._add_up(n_cols, cut, "write_sums", address)
        for name in types:
            version.finish_array(name, [own[name] for own in written])

    def _write(self, version: Version, place: str, shape: tuple[int, int], nnz: Sequence[int]) -> None:
        sizes = {"indptr": (shape[0] + 1, np.dtype(np.int64)), "indices": (sum(nnz), index_dtype(shape[1]))}
        sizes |= {} if self._dtype is None else {"data": (sum(nnz), self._dtype)}
        prefix, phase = (f"{place}/", "write the transpose") if place else ("", "write")
        version.open_rows(place, shape, has_values=self._dtype is not None)
        for name, size in sizes.items():
            version.create_array(f"{prefix}{name}", *size)
        firsts = [0, *np.cumsum(nnz).tolist()][:-1]
        written = self._do_each(phase, "write", [(version.address(), prefix, first) for first in firsts])
        for name in sizes:
            version.finish_array(f"{prefix}{name}", [own[f"{prefix}{name}"] for own in written])


# --- without a store -------------------------------------------------------------------------------------------------


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
    source.hashes_files = False
    check_memory(memory)
    cluster = Cluster(place.client, place.timeout)
    try:
        cluster = choose_client(cluster, source)
        report("join", 0, None)
        workers = cluster.join(devices=place.backend != "cpu")
        places = choose_placement(workers, place.backend, place.transport)
        devices = find_devices(places, place.limits.device)
        with (
            cluster.lease(lambda: report("queue", 0, None)),
            _EdgeSteps(cluster, workers, source, options, report, allow_hypersparse=allow_hypersparse) as reading,
        ):
            reading.begin(memory, place.threads, scratch, places.backend, devices)
            stored = reading.run(describe, reads.precision or "exact")
            loading = load_matrix(stored, cluster, place, reads, report, has_lease=True)
        stored.blocks.extend(loading.parts)
        return DistributedMatrix(stored, cluster, (place, reads), loading)
    except BaseException:
        cluster.close()
        raise


def find_devices(places: WorkerPlacement, most_bytes: int | None) -> DeviceOffer | None:
    """Return the devices of workers that NCCL connects; None for others, on whose hosts entries are sorted.

    Parameters
    ----------
    most_bytes : limit of the memory of each device; None for none
    """
    if places.transport != "nccl" or places.device_memory is None:
        return None
    return DeviceOffer(uuid.uuid4().hex, limit(places.device_memory, most_bytes) or 0, places.may_share)


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
        self._read()
        info = self._describe(describe)
        need, free = self._size.nbytes // len(self._workers), min(w.memory for w in self._workers)
        if need > free:
            raise CapacityError(
                f"{self._n_entries:,} entries take {format_bytes(need)} on each of {len(self._workers)} workers, "
                f"and one of them has {format_bytes(free)}; {INGEST_FIRST}"
            )
        costs = Planner(info, (), precision).costs
        self._costs = costs["bytes_per_nonzero"], costs["bytes_per_row"]
        if (built := self._build_on_devices()) is None:
            built = self._build(info.shape, self._do("number", "group", info.shape), "sort", transpose=False)
            if self._kind != "matrix":  # columns are cut by the rows of the workers
                cut = lambda start, stop: [min(max(bound, start), stop) for bound in self._bounds]  # noqa: E731
                self._add_up(info.shape[1], cut, "keep_sums")
        nnz, least = built
        arrays = {} if self._id_type is None else {"vertex_ids": np.concatenate(self._do("number", "list_own_ids"))}
        info = self._describe(describe, sum(nnz), least)
        rows = RowsAddress(info, self._members, self._shards.keys, tuple(self._bounds), tuple(nnz))
        return ClusterRows(info=info, place=PLACE, arrays=arrays, cluster=self._cluster, rows=rows)

    def _number(self, claim: int | None, extent: tuple[int, int]) -> tuple[tuple[int, int], IdType | None]:
        """Number vertices as `IngestSteps` does, small integers on the devices that have the entries."""
        high = extent[1]
        is_marked = claim is None and high >= 0 and are_marked(extent, self._n_entries)
        if not (is_marked and self._suits_devices() and all(self._do("number", "can_mark", high))):
            return super()._number(claim, extent)
        n = self._do("number", "mark_ids", high, self._dtype)[0]
        return (n, n), None if n == high + 1 else "int64"

    def _suits_devices(self) -> bool:
        return self._has_devices and self._kind == "graph" and is_worth_a_device(self._n_entries)

    def _build_on_devices(self) -> tuple[list[int], float | None] | None:
        """Build the rows on the devices of the workers; return as `_build`, or None if the entries do not suit them."""
        n = self._shape[0]
        if not self._suits_devices():
            return None
        samples: list[RowSample | None] = self._do("number", "sample_rows", n)
        found = [sample for sample in samples if sample is not None]
        if len(found) < len(samples):
            return None
        rows, counts = list_buckets(n), np.sum([sample.counts for sample in found], axis=0)
        self._cut_rows(rows, counts, n)
        for sample, (first, stop) in zip(found, pairwise(self._cuts), strict=True):
            n_received = int(SAMPLE_MARGIN * counts[first:stop].sum())
            if n_received > MOST_ENTRIES or sample.find_bytes(n_received, n) > sample.most_bytes:
                return None
        self._do("exchange", "trade", self._bounds)
        made = self._do("sort", "build_on_device", self._bounds)
        return [nnz for nnz, _ in made], find_least(np.array([least for _, own in made for least in own]))
