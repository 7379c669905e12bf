"""Ingest of a source into a store by the workers of a cluster, in the steps of `mgspmv.cluster.ingest_steps`, then

    write     each worker writes the chunks within its range; the client writes chunks shared by two ranges, and commits

The store does not depend on the workers, and is identical to that made by one process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mgspmv.cluster.dask_cluster import Cluster
from mgspmv.cluster.ingest_steps import Describe, IngestSteps, check_source, choose_client
from mgspmv.errors import OptionError
from mgspmv.ingest.budget import check_memory, check_space
from mgspmv.ingest.entries import choose_rule
from mgspmv.model import IngestOptions, MatrixInfo, Progress, index_dtype
from mgspmv.store.chunks import WrittenRange
from mgspmv.store.write import Version, begin_version
from mgspmv.validation import to_json


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
    on_progress: Progress | None,
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
    report = on_progress or (lambda phase, done, total: None)
    cluster = Cluster(client, timeout)
    try:
        cluster = choose_client(cluster, source)
        report("join", 0, None)
        workers = cluster.join(devices=False)
        with cluster.lease(lambda: report("queue", 0, None)), begin_version(store, base=base) as version:
            making = _StoreSteps(cluster, workers, source, options, report, allow_hypersparse=allow_hypersparse)
            try:
                making.begin(memory, threads, scratch)
                return making.run(version, describe)
            finally:
                making.end()
    finally:
        cluster.close()


class _StoreSteps(IngestSteps):
    """Steps of an ingest into a store."""

    def run(self, version: Version, describe: Describe) -> MatrixInfo:
        """Run all steps, commit the version, and return its description."""
        numbered = self._read()
        shape = numbered.shape
        check_space(version.place, self._find_size(numbered))
        counted = self._do("number", "group", shape)
        nnz, least = self._build(shape, counted, "sort", transpose=self._options.transpose)
        if self._kind != "matrix":
            self._sum_columns(version, shape[1])
        self._write(version, "", shape, nnz)
        if numbered.id_type is not None:
            self._write_ids(version, shape[0], numbered.id_type)
        if self._options.transpose:
            counted, other = self._do("transpose", "group_transpose"), shape[::-1]
            n_entries, _ = self._build(other, counted, "sort the transpose", transpose=False)
            self._write(version, "transpose", other, n_entries)
        rule = choose_rule(self._options, is_pattern=self._dtype is None)
        provenance = numbered.describe(describe, rule, sum(nnz))
        attributes = version.describe(
            kind=self._kind,
            shape=shape,
            nnz=sum(nnz),
            dtype=self._dtype,
            index=index_dtype(shape[1]),
            duplicates=rule,
            vertex_ids=numbered.id_type,
            order=None,
            min_weight=least,
            provenance=provenance | {"report": to_json(provenance["report"])},
        )
        return version.commit(attributes)

    def _write_ids(self, version: Version, n: int, type: str) -> None:
        version.create_array("vertex_ids", n, str if type == "string" else np.dtype(np.int64))
        written: list[dict[str, WrittenRange]] = self._do("write", "write_ids", version.address())
        version.finish_array("vertex_ids", [own["vertex_ids"] for own in written if own])

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
