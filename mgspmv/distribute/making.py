"""Generated graphs, made by the workers of a cluster straight into a store.

    count    each worker counts the rows of a share of the entries, so that ranges of rows can be cut alike
    make     each makes every entry and keeps those of its range of rows, sorted; on its device where it has one
    sum      each adds up the columns of its range, from the others' rows
    write    each writes the chunks that lie in its ranges; the client writes those between two ranges, and the rest

What comes out does not depend on the workers, and is what one process makes.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from mgspmv.distribute.agent import get_agent
from mgspmv.distribute.cluster import Cluster, WorkerInfo
from mgspmv.distribute.places import choose_backends
from mgspmv.distribute.spans import Spans
from mgspmv.errors import CapacityError, OptionError, StoreError
from mgspmv.exchange.links import Member
from mgspmv.ingest.build import ColumnSums, PartialSums, build_rows, count_all, count_buckets
from mgspmv.ingest.counts import EntryCounts, make_report
from mgspmv.ingest.entries import choose_rule
from mgspmv.ingest.generate import GeneratedSource
from mgspmv.kernels import generated
from mgspmv.kernels.catalogue import Backend
from mgspmv.marks import find_marks
from mgspmv.model import GeneratorRule, IngestOptions, MatrixInfo, Progress, bucket_shift, index_dtype
from mgspmv.store.ranges import WrittenRange, finish_ranges, write_range
from mgspmv.store.write import (
    StoreSize,
    Version,
    VersionAddress,
    begin_version,
    check_space,
    find_least,
    mark_values,
)

HOST_BYTES = 3
"""How many times the bytes of its rows a worker takes on its host, where that makes and sorts them."""


@dataclass(frozen=True)
class MakingSpec:
    """What workers are told of a graph that they make."""

    source: GeneratedSource
    options: IngestOptions
    rule: GeneratorRule | None
    """By which devices make it; None where only hosts can."""
    threads: int


class Made:
    """A range of rows that a worker holds until it is written, and of columns of the same numbers."""

    def __init__(self, spec: MakingSpec, backend: Backend, rows: list[int], most: list[int]) -> None:
        source, options = spec.source, spec.options
        self.start, self.stop, self.threads = rows[0], rows[-1], spec.threads
        self.data: np.ndarray | None = None
        self.measured = EntryCounts()
        if backend == "cuda" and spec.rule is not None:
            merge = choose_rule(options, is_pattern=True) != "keep"
            self.indptr, self.indices = generated.make_rows(spec.rule, rows, most, merge=merge)
        else:
            made = build_rows(source, options, self.start, self.stop, spec.threads)
            self.indptr, self.indices, self.data, self.measured = made
        self.degree: np.ndarray | None = None
        self.weight: np.ndarray | None = None
        self._kind, self._name = options.kind or source.default_kind, source.name
        if self._kind != "matrix":
            self._sums = self._sum(0, source.layout().shape[1])
            self._sums.add(self.indices, self.data)

    def close(self) -> None:
        """Nothing is to be done."""

    def give_columns(self, start: int, stop: int) -> PartialSums:
        """What the rows add to columns `start` .. `stop` - 1."""
        return self._sums.give(start, stop)

    def add_columns(self, others: Sequence[PartialSums]) -> None:
        """Keep the sums of the own columns: those of all workers, by rank."""
        sums = self._sum(self.start, self.stop)  # what the rows add is still to be given to other workers
        for other in others:
            sums.join(other)
        self.degree, self.weight = sums.finish()

    def _sum(self, start: int, stop: int) -> ColumnSums:
        return ColumnSums(self._kind, self._name, None if self.data is None else self.data.dtype, start, stop)


# --- tasks -----------------------------------------------------------------------------------------------------------


def count_entries(spec: MakingSpec, backend: Backend, begin: int, end: int) -> np.ndarray:
    """Entries of these numbers by bucket of rows."""
    find_marks().n_terms = end - begin
    if backend == "cuda" and spec.rule is not None:
        return generated.count_buckets(spec.rule, begin, end)
    return count_buckets(spec.source, spec.options, begin, end, spec.threads)


def make_range(
    key: str, spec: MakingSpec, backend: Backend, rows: list[int], most: list[int]
) -> tuple[int, str | None, float | None, EntryCounts]:
    """Make rows and hold them; how many entries they have, the dtype of their values, the least, and the range of all
    values, also of other rows."""
    find_marks().n_terms = spec.source.n_slots  # each worker makes all entries
    made = Made(spec, backend, rows, most)
    get_agent().hold_made(key, made)
    dtype = None if made.data is None else made.data.dtype.name
    return len(made.indices), dtype, find_least(made.data), made.measured


def give_columns(key: str, start: int, stop: int) -> PartialSums:
    """See `Made.give_columns`."""
    made: Made = get_agent().get_made(key)
    return made.give_columns(start, stop)


def add_columns(key: str, others: list[PartialSums]) -> None:
    """See `Made.add_columns`."""
    get_agent().get_made(key).add_columns(others)


def write_made(key: str, address: VersionAddress, first_entry: int, is_last: bool) -> dict[str, WrittenRange]:
    """Write what is held.

    Parameters
    ----------
    first_entry : number of the first entry among all
    """
    made, group = get_agent().get_made(key), address.open()
    indptr = made.indptr + first_entry
    arrays = {
        "indptr": (made.start, indptr if is_last else indptr[:-1]),
        "indices": (first_entry, made.indices),
        "data": (first_entry, made.data),
        "out_degree": (made.start, made.degree),
        "out_weight": (made.start, made.weight),
    }
    there = {name: pair for name, pair in arrays.items() if pair[1] is not None and name in group}
    return {name: write_range(group, name, start, own, made.threads) for name, (start, own) in there.items()}


# --- the client ------------------------------------------------------------------------------------------------------


def make_on_cluster(
    source: Any,
    store: Any,
    options: IngestOptions,
    client: Any,
    provenance: dict[str, Any],
    *,
    backend: str,
    threads: int | None,
    timeout: float,
    base: str | None,
    on_progress: Progress | None,
) -> MatrixInfo:
    """Let the workers of a cluster make a generated matrix; see `mgspmv.api.generate`."""
    if options.transpose or options.order != "none" or options.duplicates == "error" or options.kind == "stochastic":
        raise OptionError(
            "on a cluster a graph is made without transpose=, order=, duplicates='error' and kind='stochastic'; "
            "leave them out and reorder it afterwards, or leave out client="
        )
    report = on_progress or (lambda phase, done, total: None)
    cluster = Cluster(client, timeout)
    try:
        report("join", 0, None)
        workers = cluster.join(devices=backend != "cpu")
        backends = choose_backends(workers, backend)
        with cluster.lease(lambda: report("queue", 0, None)), begin_version(store, base=base) as version:
            making = _Making(cluster, workers, backends, source, options, threads, report)
            making.make()
            return making.write(version, provenance)
    finally:
        cluster.close()


class _Making:
    """The steps of making a matrix, each on all workers."""

    def __init__(
        self,
        cluster: Cluster,
        workers: list[WorkerInfo],
        backends: Sequence[Backend],
        source: GeneratedSource,
        options: IngestOptions,
        threads: int | None,
        report: Progress,
    ) -> None:
        self._cluster, self._workers, self._backends, self._report = cluster, workers, backends, report
        self._members: tuple[Member, ...] = tuple(w.member for w in workers)
        self._specs = [_specify(source, options, threads or w.threads) for w in workers]
        self._source, self._options, self._shape = source, options, source.layout().shape
        self._keys = [f"mgspmv-make-{uuid.uuid4().hex}" for _ in workers]
        self._spans = Spans("generate")
        self._held: list[Any] = []

    def make(self) -> None:
        """Let every worker make and hold its rows, and the sums of its columns."""
        n, shift = len(self._workers), bucket_shift(self._shape[0])
        cuts = [self._source.n_slots * k // n for k in range(n + 1)]
        self._report("count", 0, n)
        ranks = range(n)
        counted = self._do(
            "count", count_entries, [(self._specs[k], self._backends[k], *cuts[k : k + 2]) for k in ranks]
        )
        counts = np.add.reduce(counted)
        self._counts = count_all(self._source, self._options, int(counts.sum()))
        # Rows of the matrix for each bucket, and of workers of about equal numbers of entries and rows.
        rows = np.minimum(np.arange(len(counts) + 1, dtype=np.int64) << shift, self._shape[0])
        weights = np.concatenate([[0], np.cumsum(counts + np.diff(rows))])
        bounds = [*np.searchsorted(weights, [weights[-1] * k // n for k in range(n)]).tolist(), len(counts)]
        ranges = [(rows[a : b + 1].tolist(), counts[a:b].tolist()) for a, b in pairwise(bounds)]
        for k in ranks:
            self._check_room(k, sum(ranges[k][1]), ranges[k][0][-1] - ranges[k][0][0])
        self._report("make", 0, n)
        arguments = [(self._keys[k], self._specs[k], self._backends[k], *ranges[k]) for k in ranks]
        self._bounds = [r[0][0] for r in ranges] + [self._shape[0]]
        self._made = self._do("make", make_range, arguments, keys=self._keys)
        if self._kind != "matrix":
            self._sum_columns()

    @property
    def _kind(self) -> str:
        return self._options.kind or self._source.default_kind

    def write(self, version: Version, provenance: dict[str, Any]) -> MatrixInfo:
        """Write all of it and name the version; what that says of itself."""
        (n_rows, n_cols), index = self._shape, index_dtype(self._shape[1])
        lengths = [n for n, *_ in self._made]
        dtypes = {dtype for _, dtype, _, _ in self._made}
        assert len(dtypes) == 1, f"workers made values of several dtypes: {dtypes}"
        dtype = dtypes.pop()
        nnz, sizes = sum(lengths), {"indptr": (n_rows + 1, np.dtype(np.int64)), "indices": (sum(lengths), index)}
        values = None if dtype is None else np.dtype(dtype)
        check_space(version.place, StoreSize(self._shape, nnz, values, self._kind != "matrix", has_transpose=False))
        if dtype is not None:
            sizes["data"] = (nnz, np.dtype(dtype))
            mark_values(version.group, self._shape)
        if self._kind != "matrix":
            sizes["out_degree"] = (n_cols, np.dtype(np.int64))
            if dtype is not None:
                sizes["out_weight"] = (n_cols, np.dtype(np.float64))
        for name, (size, own) in sizes.items():
            version.create_array(name, size, own)
        address, firsts, last = version.address(), np.cumsum([0, *lengths]).tolist(), len(lengths) - 1
        self._report("write", 0, len(lengths))
        arguments = [
            (key, address, first, k == last) for k, (key, first) in enumerate(zip(self._keys, firsts, strict=False))
        ]
        written = self._do("write", write_made, arguments)
        arrays = {name: finish_ranges(version.group, name, [w[name] for w in written]) for name in sizes}
        least = [value for _, _, value, _ in self._made if value is not None]
        source, rule = dict(provenance["source"]), choose_rule(self._options, is_pattern=dtype is None)
        report = make_report(source, self._counts + self._made[0][3], nnz, rule, provenance["options"])
        attributes = version.describe(
            arrays,
            kind=self._kind,
            shape=list(self._shape),
            nnz=nnz,
            dtype=dtype,
            index_dtype=index.name,
            duplicates=rule,
            vertex_ids=None,
            order=None,
            min_weight=min(least, default=None),
            nbytes=sum(size * own.itemsize for size, own in sizes.values()),
            provenance=provenance | {"source": source, "report": report.to_json()},
        )
        info = version.commit(attributes)
        self._cluster.free(self._keys, self._members)
        self._cluster.release(self._held)
        return info

    def _sum_columns(self) -> None:
        token, n = uuid.uuid4().hex, len(self._keys)
        with self._spans.enter("sum"):
            given = [
                [
                    self._cluster.submit(
                        member,
                        f"mgspmv-columns-{token}-{k}-{owner}",
                        give_columns,
                        key,
                        *self._bounds[owner : owner + 2],
                    )
                    for k, (member, key) in enumerate(zip(self._members, self._keys, strict=True))
                ]
                for owner in range(n)
            ]
        try:
            self._do("sum", add_columns, [(self._keys[owner], given[owner]) for owner in range(n)])
        finally:
            self._cluster.release([future for futures in given for future in futures])

    def _do(
        self, phase: str, function: Callable[..., Any], arguments: list[tuple[Any, ...]], keys: list[str] | None = None
    ) -> list[Any]:
        """A task on each worker; those of `keys` are kept, for what they made is held for them."""
        token, members = uuid.uuid4().hex, self._members
        named = keys or [f"mgspmv-{phase}-{token}-{rank}" for rank in range(len(members))]
        with self._spans.enter(phase):
            futures = [
                self._cluster.submit(member, key, function, *own)
                for member, key, own in zip(members, named, arguments, strict=True)
            ]
        self._held += futures if keys else []
        try:
            return self._cluster.settle(futures, members, phase, lambda done: self._report(phase, done, len(members)))
        except StoreError as error:
            raise type(error)(f"a worker cannot write the store: {error}") from error
        finally:
            if not keys:
                self._cluster.release(futures)

    def _check_room(self, rank: int, n_entries: int, n_rows: int) -> None:
        on_device = self._backends[rank] == "cuda" and self._specs[rank].rule is not None
        size = index_dtype(self._shape[1]).itemsize * n_entries + 8 * (n_rows + self._shape[1])
        need, worker = size if on_device else HOST_BYTES * size, self._workers[rank]
        if need > worker.memory:
            raise CapacityError(
                f"worker {worker.member} would need {need / 1e9:.3g} GB of host memory for its {n_entries:,} entries, "
                f"and has {worker.memory / 1e9:.3g} GB; use more workers"
            )


def _specify(source: GeneratedSource, options: IngestOptions, threads: int) -> MakingSpec:
    rule = source.find_rule()
    kind = options.kind or source.default_kind
    if rule is not None and options.self_loops != "error":
        drops = options.self_loops == "drop"
        rule = replace(rule, is_transposed=kind == "graph", drops_loops=drops, is_mirrored=options.symmetrize)
    else:
        rule = None
    return MakingSpec(source, options, rule, threads)
