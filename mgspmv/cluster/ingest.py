"""Ingest of a source by the workers of a cluster, in steps:

    read      each worker reads a part of the source: whole files, row groups or partitions
    number    each worker merges a range of ids; their ranks become the vertices' numbers
    exchange  entries are sent from the worker that read them to the worker of their rows
    sort      each worker sorts and merges its range of rows, and adds up columns
    write     each worker writes the chunks within its range; the client writes chunks shared by two ranges, and commits

The steps are those of `mgspmv.ingest.shard`, each a task on every worker; the client waits for all before the next.
The shard of a worker requests data of the other shards. The store does not depend on the workers, and is identical to
that made by one process.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import dask
import numpy as np
from distributed import Client, Worker, get_worker

from mgspmv.cluster.agent import ASK_OP, call_held, get_agent
from mgspmv.cluster.dask_cluster import Cluster, WorkerInfo
from mgspmv.cluster.executors import HeldObjects
from mgspmv.cluster.scheduling import enter_span
from mgspmv.errors import (
    ClusterError,
    MgspmvError,
    OptionError,
    SourceError,
    StoreError,
    WorkerLostError,
    WorkerTimeoutError,
)
from mgspmv.exchange.peer_comm import Member, worker_error
from mgspmv.heartbeat import beat
from mgspmv.ingest.budget import StoreSize, check_folder, check_memory, check_space, check_stated, make_budget
from mgspmv.ingest.entries import EntryCounts, choose_rule
from mgspmv.ingest.frames import FrameSource
from mgspmv.ingest.reports import make_report
from mgspmv.ingest.shard import OwnIds, PartSummary, Shard, ShardSpec
from mgspmv.ingest.source import FileSource, Layout
from mgspmv.ingest.values import find_least
from mgspmv.model import IngestOptions, MatrixInfo, Progress, index_dtype
from mgspmv.store.chunks import WrittenRange
from mgspmv.store.write import Version, begin_version
from mgspmv.validation import to_json

ASK_S = 240.0
"""Seconds for an answer of another shard, which may read a piece of a file for it; the patience if that is more. Less
than the watchdog's limit of the asking task, so that the error names the other worker."""
ENTRY_BYTES = 32
"""Minimum bytes per sorted entry: row and column numbers, and as much again for other uses."""


@dataclass(frozen=True)
class ShardOffer:
    """Description of a shard, sent to the worker that is to hold it."""

    spec: ShardSpec
    members: tuple[Member, ...]
    """Worker of each shard, by rank."""
    keys: tuple[str, ...]
    """Key under which each shard is held, by rank."""
    memory: int | None
    """Bytes that its process may take; None for half of `offered`."""
    offered: int
    """Bytes available on the worker when it joined."""
    threads: int
    scratch: str | None
    """Folder for temporary files; None for Dask's own."""
    patience: float
    """Seconds that a worker may be silent."""


class HeldShard(Shard):
    """Shard of an ingest on a worker."""

    def __init__(self, offer: ShardOffer, worker: Worker) -> None:
        self._worker, self._rank = worker, offer.spec.rank
        self._keys, self._members = offer.keys, offer.members
        self._limit_s = max(ASK_S, offer.patience)
        self._asked: set[Future[Any]] = set()
        self._asking = threading.Lock()
        folder = Path(worker.local_directory if offer.scratch is None else offer.scratch)
        check_folder(folder)
        budget = make_budget(offer.memory, offer.offered // 2, offer.threads, folder)
        super().__init__(offer.spec, budget, self._ask_shard, lambda phase, done, total: beat())
        self.n_terms = self.memory // ENTRY_BYTES
        """Number of entries sorted at a time."""

    def close(self, reason: str = "the ingest was aborted") -> None:
        """Close the shard and cancel its requests to others."""
        with self._asking:
            super().close()
        for future in list(self._asked):
            future.cancel()

    def _ask_shard(self, rank: int, question: str, *arguments: Any) -> Any:
        """Call a method of the shard of a rank, and return its answer; see `mgspmv.ingest.shard.Rpc`.

        Raises
        ------
        WorkerLostError, WorkerTimeoutError : its worker cannot be reached, or does not answer
        ClosedError : the ingest was aborted
        """
        if rank == self._rank:
            return getattr(self, question)(*arguments)
        with self._asking:
            self._check_open()
            future = asyncio.run_coroutine_threadsafe(
                self._request(rank, question, arguments), self._worker.loop.asyncio_loop
            )
            self._asked.add(future)
        try:
            answer = future.result(self._limit_s)
        except TimeoutError as error:
            future.cancel()
            what, why = f"did not answer for {self._limit_s:g} s", "it hangs, or the storage that it reads does"
            raise worker_error(WorkerTimeoutError, self._members, rank, "ingest", what, why) from error
        except OSError as error:  # connection errors of Dask are subclasses
            raise worker_error(
                WorkerLostError, self._members, rank, "ingest", "cannot be reached", str(error)
            ) from error
        finally:
            self._asked.discard(future)
        if "raised" in answer:
            raise answer["raised"]
        return answer["given"]

    async def _request(self, rank: int, question: str, arguments: tuple[Any, ...]) -> Any:
        call = getattr(self._worker.rpc(self._members[rank].address), ASK_OP)
        return await call(key=self._keys[rank], question=question, arguments=arguments)


def begin_share(key: str, offer: ShardOffer) -> int:
    """Make and hold a shard; return the bytes of memory that it may take."""
    shard = HeldShard(offer, get_worker())
    get_agent().held[key] = shard
    return shard.memory


SUM_BYTES = 32
"""Bytes per column while its degrees and weights are added up."""
SUM_PART = 4
"""Divisor of the memory that gives the maximum bytes for column sums."""


def ingest_on_cluster(
    source: Any,
    store: Any,
    options: IngestOptions,
    client: Any,
    describe: Callable[[dict[str, Any]], dict[str, Any]],
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
    if not isinstance(source, FileSource):
        raise OptionError(
            f"the workers of a cluster cannot read {source.name}, only edge lists, Matrix Market and Parquet files, "
            "and Dask DataFrames; leave out client="
        )
    check_memory(memory)
    report = on_progress or (lambda phase, done, total: None)
    cluster = Cluster(client, timeout)
    try:
        cluster = _choose_client(cluster, source)
        report("join", 0, None)
        workers = cluster.join(devices=False)
        with cluster.lease(lambda: report("queue", 0, None)), begin_version(store, base=base) as version:
            making = _IngestSteps(cluster, workers, source, options, report, allow_hypersparse=allow_hypersparse)
            try:
                making.begin(memory, threads, scratch)
                return making.run(version, describe)
            finally:
                making.end()
    finally:
        cluster.close()


def _choose_client(cluster: Cluster, source: FileSource) -> Cluster:
    """Return the cluster as seen by the client that holds the partitions of the source, if they are on a cluster.

    Raises
    ------
    OptionError : another cluster holds them
    """
    held = source.find_futures() if isinstance(source, FrameSource) else []
    if not held or held[0].client is cluster.client:
        return cluster
    client: Client = held[0].client
    if client.scheduler_info(n_workers=0).get("id") != cluster.client.scheduler_info(n_workers=0).get("id"):
        raise OptionError(
            f"the partitions of {source.name} are held by another cluster, not by {cluster}; pass the client= that "
            "holds them, or the DataFrame before persist()"
        )
    cluster.close()
    return Cluster(client, cluster.timeout)


class _IngestSteps:
    """Steps of an ingest, each on all workers."""

    def __init__(
        self,
        cluster: Cluster,
        workers: list[WorkerInfo],
        source: FileSource,
        options: IngestOptions,
        report: Progress,
        *,
        allow_hypersparse: bool,
    ) -> None:
        self._cluster, self._workers, self._source, self._options = cluster, workers, source, options
        self._allow_hypersparse = allow_hypersparse
        self._members: tuple[Member, ...] = tuple(w.member for w in workers)
        token = uuid.uuid4().hex
        keys = [f"mgspmv-ingest-{token}-{rank}" for rank in range(len(workers))]
        self._shards = HeldObjects(cluster, self._members, keys)
        self._kind = options.kind or source.default_kind
        self._report = report
        self._parts: list[Any] = []

    def begin(self, memory: int | None, threads: int | None, scratch: str | None) -> None:
        """Begin a shard on each worker."""
        with self._cluster.client.as_current():  # Dask plans for this cluster
            self._parts = [*self._source.split(len(self._workers))]
        parts = [*self._parts, *[None] * (len(self._workers) - len(self._parts))]  # nothing to read
        offers = []
        for rank, (part, worker) in enumerate(zip(parts, self._workers, strict=True)):
            about = (rank, len(parts), part, self._source.name, self._kind, self._options)
            limits = (memory, worker.memory, threads or worker.threads, scratch, self._cluster.patience)
            offers.append((ShardOffer(ShardSpec(*about), self._members, self._shards.keys, *limits),))
        self._report("begin", 0, None)
        memories = self._shards.make(begin_share, offers)
        self._most_columns = max(1, min(memories) // SUM_PART // SUM_BYTES)

    def run(self, version: Version, describe: Callable[[dict[str, Any]], dict[str, Any]]) -> MatrixInfo:
        """Run all steps, commit the version, and return its description."""
        if isinstance(self._source, FrameSource):
            self._compute_partitions(self._source)
        read: list[PartSummary] = self._do("read", "read")
        joined = self._source.join([own.told for own in read if own.told is not None])
        self._dtype = self._find_dtype(read)
        lows, highs = zip(*((0, -1), *(own.extent for own in read if own.extent is not None)), strict=True)
        stated = Layout((0, 0), are_ids=True, stated=joined.stated, claim=joined.claim)
        stated = stated.settle_claim((min(lows), max(highs)))
        shape, id_type = self._number(None if stated.are_ids else stated.shape[0])
        n_read, has_sums = sum(own.n_entries for own in read), self._kind != "matrix"
        size = StoreSize(shape, n_read, self._dtype, has_sums, self._options.transpose)
        check_stated(stated.stated, size, allow_hypersparse=self._allow_hypersparse)
        check_space(version.place, size)
        counted = self._do("number", "group", shape)
        nnz, least = self._build(shape, counted, "sort", transpose=self._options.transpose)
        if self._kind != "matrix":
            self._sum_columns(version, shape[1])
        self._write(version, "", shape, nnz)
        if id_type is not None:
            self._write_ids(version, shape[0], id_type)
        if self._options.transpose:
            counted, other = self._do("transpose", "group_transpose"), shape[::-1]
            n_entries, _ = self._build(other, counted, "sort the transpose", transpose=False)
            self._write(version, "transpose", other, n_entries)
        source, counts = dict(joined.provenance), sum((own.counts for own in read), EntryCounts())
        provenance, rule = describe(source), choose_rule(self._options, is_pattern=self._dtype is None)
        provenance["report"] = to_json(make_report(source, counts, sum(nnz), rule, provenance["options"]))
        attributes = version.describe(
            kind=self._kind,
            shape=shape,
            nnz=sum(nnz),
            dtype=self._dtype,
            index=index_dtype(shape[1]),
            duplicates=rule,
            vertex_ids=id_type,
            order=None,
            min_weight=least,
            provenance=provenance,
        )
        return version.commit(attributes)

    def end(self) -> None:
        """Release the shards, and wait for running tasks."""
        with suppress(ClusterError, OSError):
            self._cluster.free(self._shards.keys, self._members)
            self._cluster.await_done(self._shards.running)
        self._shards.release()

    # --- partitions of a Dask DataFrame

    def _compute_partitions(self, source: FrameSource) -> None:
        """Compute the partitions on the cluster, each into a local file of the worker that reads it later.

        Raises
        ------
        SourceError : they cannot be computed
        """
        cluster, client, phase = self._cluster, self._cluster.client, "compute"
        self._report(phase, 0, source.n_partitions)
        with client.as_current():  # Dask plans for this cluster
            partitions = source.list_partitions()
        with enter_span():
            computed = client.compute(partitions)
            owners = [(rank, number) for rank, part in enumerate(self._parts) for number in part.numbers]
            with dask.annotate(priority=1):  # before other partitions are computed, so that few are in memory
                kept = [
                    cluster.submit(
                        self._members[rank],
                        f"mgspmv-keep-{uuid.uuid4().hex}",
                        call_held,
                        self._shards.keys[rank],
                        "keep_partition",
                        number,
                        computed[number],
                    )
                    for rank, number in owners
                ]
        cluster.release(computed)  # each is dropped once it is in a file
        try:
            notify = lambda done: self._report(phase, done, source.n_partitions)  # noqa: E731
            cluster.settle(kept, self._members, phase, notify, ranks=[rank for rank, _ in owners])
        except MgspmvError:
            raise
        except Exception as error:
            raise SourceError(
                f"the partitions cannot be computed on the cluster ({type(error).__name__}: {error}); check that "
                ".compute() works, or write them with .to_parquet(FOLDER, write_index=False) and ingest the folder",
                source=self._source.name,
            ) from error.with_traceback(None)  # its frames would hold the user's data until a garbage collection
        finally:
            cluster.release(kept)

    # --- numbers

    def _find_dtype(self, read: Sequence[PartSummary]) -> np.dtype[Any] | None:
        dtypes = {own.dtype for own in read if own.n_entries} or {read[0].dtype}
        if len(dtypes) != 1:
            names = ", ".join(sorted("none" if dtype is None else dtype.name for dtype in dtypes))
            raise SourceError(f"parts of the source have values of different types: {names}", source=self._source.name)
        return dtypes.pop()

    def _number(self, claim: int | None) -> tuple[tuple[int, int], str | None]:
        """Number all vertices; return the numbers of rows and columns, and the type of ids as in `OwnIds`."""
        own: list[OwnIds] = self._do("number", "list_ids", claim, self._dtype)
        if (shape := own[0].shape) is not None:  # if any shard has a part, the first has one
            return shape, own[0].type
        sample, n = sorted(id for ids in own for id in ids.sample), len(own)
        cuts = [sample[len(sample) * rank // n] for rank in range(1, n)] if sample else [0] * (n - 1)
        counts: list[int] = self._do("number", "merge_ids", cuts, own[0].type)
        firsts = [0, *np.cumsum(counts).tolist()]
        are_numbers = all(self._do("number", "number_ids", firsts))
        return (firsts[-1], firsts[-1]), None if are_numbers else own[0].type

    def _write_ids(self, version: Version, n: int, type: str) -> None:
        version.create_array("vertex_ids", n, str if type == "string" else np.dtype(np.int64))
        written: list[dict[str, WrittenRange]] = self._do("write", "write_ids", version.address())
        version.finish_array("vertex_ids", [own["vertex_ids"] for own in written if own])

    # --- rows

    def _build(
        self, shape: tuple[int, int], counted: Sequence[tuple[np.ndarray, np.ndarray]], phase: str, *, transpose: bool
    ) -> tuple[list[int], float | None]:
        """Sort and merge all entries; return their number in each range of rows, and the least value."""
        n, rows, counts = len(self._members), counted[0][0], np.array([own for _, own in counted])
        weights = np.concatenate([[0], np.cumsum(counts.sum(axis=0) + np.diff(rows))])
        cuts = np.searchsorted(weights, [weights[-1] * rank // n for rank in range(n)]).tolist()
        self._cuts = [0, *cuts[1:], len(rows) - 1]
        self._bounds = [int(rows[cut]) for cut in self._cuts]
        self._bounds[-1] = shape[0]
        lengths = [counts[:, a:b].sum(axis=1).tolist() for a, b in pairwise(self._cuts)]
        self._do_each(
            "exchange", "take", [(pair, own) for pair, own in zip(pairwise(self._cuts), lengths, strict=True)]
        )
        made = self._do_each(phase, "build", [(pair, phase, transpose) for pair in pairwise(self._bounds)])
        return [n_entries for n_entries, _ in made], find_least(np.concatenate([lowest for _, lowest in made]))

    def _sum_columns(self, version: Version, n_cols: int) -> None:
        types = {"out_degree": np.int64} | ({} if self._dtype is None else {"out_weight": np.float64})
        for name, own in types.items():
            version.create_array(name, n_cols, np.dtype(own))
        n, written = len(self._members), list[dict[str, WrittenRange]]()
        for start in range(0, max(1, n_cols), self._most_columns):
            stop = min(start + self._most_columns, n_cols)
            self._do("add up columns", "add_up", start, stop)
            cuts = [start + (stop - start) * rank // n for rank in range(n + 1)]
            written += self._do_each(
                "add up columns", "write_sums", [(version.address(), *pair) for pair in pairwise(cuts)]
            )
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

    # --- tasks

    def _do(self, phase: str, step: str, *arguments: Any) -> list[Any]:
        """Run a step on all workers, with the same arguments."""
        return self._do_each(phase, step, [arguments] * len(self._members))

    def _do_each(self, phase: str, step: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Run a step on all workers, with separate arguments by rank, and report how many are done."""
        n = len(self._members)
        self._report(phase, 0, n)
        try:
            return self._shards.do_each(phase, step, arguments, lambda n_done: self._report(phase, n_done, n))
        except StoreError as error:
            raise type(error)(f"a worker failed to read or write: {error}") from error
