"""Steps of an ingest by the workers of a cluster:

    read      each worker reads a part of the source: whole files, row groups or partitions
    number    each worker merges a range of ids; their ranks become the vertices' numbers
    exchange  entries are sent from the worker that read them to the worker of their rows
    sort      each worker sorts and merges its range of rows, and adds up columns

The steps are those of `mgspmv.ingest.shard`, each a task on every worker; the client waits for all before the next.
The shard of a worker requests data of the other shards.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, replace
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Any, Self

import dask
import numpy as np
from distributed import Client, Worker, get_worker

from mgspmv.cluster.agent import ASK_OP, call_held, get_agent
from mgspmv.cluster.dask_cluster import Cluster, WorkerInfo
from mgspmv.cluster.load import HeldObjects
from mgspmv.cluster.scheduling import enter_span
from mgspmv.cluster.worker_rows import RowsAddress, WorkerRows
from mgspmv.errors import (
    ClusterError,
    MgspmvError,
    OptionError,
    SourceError,
    StoreError,
    WorkerLostError,
    WorkerTimeoutError,
)
from mgspmv.exchange.nccl import NcclGroup, greet, join_group
from mgspmv.exchange.peer import AllToAll
from mgspmv.exchange.peer_comm import Member, PeerComm, RunSpec, worker_error
from mgspmv.heartbeat import beat
from mgspmv.ingest.budget import StoreSize, check_folder, check_stated, make_budget
from mgspmv.ingest.device_shard import DeviceShard
from mgspmv.ingest.device_sorting import make_device_sorter
from mgspmv.ingest.entries import choose_rule
from mgspmv.ingest.frames import FrameSource
from mgspmv.ingest.numbering import IdType
from mgspmv.ingest.shard import OwnIds, PartSummary, ShardSpec
from mgspmv.ingest.source import FileSource
from mgspmv.ingest_report import EntryCounts, make_report
from mgspmv.kernels.catalogue import Backend
from mgspmv.kernels.device import current_device, use_device
from mgspmv.model import IngestOptions, MatrixInfo, Progress
from mgspmv.store.held import describe_unstored
from mgspmv.store.stored_matrix import find_least

Describe = Callable[[dict[str, Any]], dict[str, Any]]
"""Makes the provenance of a matrix from that of its source."""
ASK_S = 240.0
"""Seconds for an answer of another shard, which may read a piece of a file for it; the patience if that is more. Less
than the watchdog's limit of the asking task, so that the error names the other worker."""
ENTRY_BYTES = 32
"""Minimum bytes per sorted entry: row and column numbers, and as much again for other uses."""


@dataclass(frozen=True)
class DeviceOffer:
    """Description of the devices on which shards may sort and exchange entries."""

    run: str
    """Id by which the shards connect."""
    most_bytes: int
    """Memory of each device that may be used."""
    may_share: bool
    """Whether devices of one host may write into each other's memory."""


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
    backend: Backend = "cpu"
    """Backend of the rows that it keeps."""
    devices: DeviceOffer | None = None
    """Devices of all shards; None to sort on hosts."""


class HeldShard(DeviceShard):
    """Shard of an ingest on a worker."""

    def __init__(self, offer: ShardOffer, worker: Worker) -> None:
        self._worker, self._offer, self._rank = worker, offer, offer.spec.rank
        self._limit_s = max(ASK_S, offer.patience)
        self._asked: set[Future[Any]] = set()
        self._asking = threading.Lock()
        folder = Path(worker.local_directory if offer.scratch is None else offer.scratch)
        check_folder(folder)
        budget = make_budget(offer.memory, offer.offered // 2, offer.threads, folder)
        super().__init__(offer.spec, budget, self._ask_shard, lambda phase, done, total: beat())
        self.n_terms = self.memory // ENTRY_BYTES
        """Number of entries sorted at a time."""
        self.run, self.links = "", None
        if offer.devices is not None:
            self.run = offer.devices.run
            self.links = PeerComm(worker, self._rank, RunSpec(self.run, offer.members, offer.patience))
            self.use_device(make_device_sorter(self._given, offer.devices.most_bytes))

    def close(self, reason: str = "the ingest was aborted") -> None:
        """Close the shard and cancel its requests to others."""
        if self.links is not None:
            self.links.close(reason)
        if self.device_group is not None:
            self.device_group.close()
        with self._asking:
            super().close()
        for future in list(self._asked):
            future.cancel()

    def take_rows(self, address: RowsAddress) -> WorkerRows:
        """Return the rows that this shard has built and kept."""
        first_row = address.bounds[self._rank]
        first_entry = address.ends[first_row]
        group, self.device_group = self.device_group, None
        return WorkerRows(
            info=address.info,
            place=address.info.url,
            arrays=self.take_arrays(first_entry),
            first_row=first_row,
            first_entry=first_entry,
            backend=self._offer.backend,
            group=group,
        )

    def read(self) -> PartSummary:
        """Read this share's part, while its device is connected with the others."""
        devices = self._offer.devices
        if devices is None or self._spec.n_shares == 1:
            return super().read()
        with ThreadPoolExecutor(1, "mgspmv-connect") as pool:
            connecting = pool.submit(copy_context().run, self._connect, current_device(), devices)
            summary = super().read()
            self.device_group = connecting.result()
        return summary

    def _connect(self, device: int, devices: DeviceOffer) -> NcclGroup:
        assert self.links is not None
        with use_device(device), self.links.active("connect"):
            turns = AllToAll(self.links, self._rank, self._spec.n_shares)
            hellos = turns.greet(dict.fromkeys(turns.others, greet(None)))
            return join_group(turns, hellos, None, may_share=devices.may_share)

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
            raise worker_error(WorkerTimeoutError, self._offer.members, rank, "ingest", what, why) from error
        except OSError as error:  # connection errors of Dask are subclasses
            lost = WorkerLostError, self._offer.members, rank, "ingest", "cannot be reached", str(error)
            raise worker_error(*lost) from error
        finally:
            self._asked.discard(future)
        if "raised" in answer:
            raise answer["raised"]
        return answer["given"]

    async def _request(self, rank: int, question: str, arguments: tuple[Any, ...]) -> Any:
        call = getattr(self._worker.rpc(self._offer.members[rank].address), ASK_OP)
        return await call(key=self._offer.keys[rank], question=question, arguments=arguments)


def begin_share(key: str, offer: ShardOffer) -> int:
    """Make and hold a shard; return the bytes of memory that it may take."""
    shard = HeldShard(offer, get_worker())
    get_agent().held[key] = shard
    return shard.memory


SUM_BYTES = 32
"""Bytes per column while its degrees and weights are added up."""
SUM_PART = 4
"""Divisor of the memory that gives the maximum bytes for column sums."""


def check_source(source: Any, remedy: str) -> FileSource:
    """Return the source; raise `OptionError` if workers cannot read it."""
    if isinstance(source, FileSource):
        return source
    raise OptionError(
        f"the workers of a cluster cannot read {source.name}, only edge lists, Matrix Market and Parquet files, and "
        f"Dask DataFrames; {remedy}"
    )


def choose_client(cluster: Cluster, source: FileSource) -> Cluster:
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


class IngestSteps:
    """Steps of an ingest, each on all workers; a context manager that ends them."""

    keeps_rows = False

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
        token, self._report = uuid.uuid4().hex, report
        keys = [f"mgspmv-ingest-{token}-{rank}" for rank in range(len(workers))]
        self._shards = HeldObjects(cluster, self._members, keys)
        self._kind = options.kind or source.default_kind
        self._parts: list[Any] = []
        self._costs = (1, 1)
        """Weights of an entry and of a row by which rows are cut."""

    def begin(
        self,
        memory: int | None,
        threads: int | None,
        scratch: str | None,
        backend: Backend = "cpu",
        devices: DeviceOffer | None = None,
    ) -> None:
        """Begin a shard on each worker; arguments as in `ShardOffer`."""
        self._has_devices = devices is not None
        with self._cluster.client.as_current():  # Dask plans for this cluster
            self._parts = [*self._source.split(len(self._workers))]
        offers, n = [], len(self._workers)
        for rank, (part, worker) in enumerate(zip_longest(self._parts, self._workers)):  # some may have nothing to read
            own = ShardSpec(rank, n, part, self._source.name, self._kind, self._options, self.keeps_rows)
            limits = (memory, worker.memory, threads or worker.threads, scratch, self._cluster.patience)
            offers.append((ShardOffer(own, self._members, self._shards.keys, *limits, backend, devices),))
        self._report("begin", 0, None)
        memories = self._shards.make(begin_share, offers)
        self._most_columns = max(1, min(memories) // SUM_PART // SUM_BYTES)

    def _read(self) -> None:
        """Read the source, and number its vertices."""
        if isinstance(self._source, FrameSource):
            self._compute_partitions(self._source)
        read: list[PartSummary] = self._do("read", "read")
        joined = self._source.join([own.told for own in read if own.told is not None])
        dtypes = {own.dtype for own in read if own.n_entries} or {read[0].dtype}
        if len(dtypes) != 1:
            names = ", ".join(sorted("none" if dtype is None else dtype.name for dtype in dtypes))
            raise SourceError(f"parts of the source have values of different types: {names}", source=self._source.name)
        self._dtype = dtypes.pop()
        lows, highs = zip(*((0, -1), *(own.extent for own in read if own.extent is not None)), strict=True)
        extent = min(lows), max(highs)
        stated = joined.settle_claim(extent)
        self._source_provenance = joined.provenance
        self._n_entries = sum(own.n_entries for own in read)
        self._counts = sum((own.counts for own in read), EntryCounts())
        self._shape, self._id_type = self._number(None if stated.are_ids else stated.shape[0], extent)
        check_stated(stated.stated, self._size, allow_hypersparse=self._allow_hypersparse)

    @property
    def _size(self) -> StoreSize:
        has_sums, has_transpose = self._kind != "matrix", self._options.transpose
        return StoreSize(self._shape, self._n_entries, self._dtype, has_sums, has_transpose)

    def _describe(self, describe: Describe, nnz: int = 0, least: float | None = None) -> MatrixInfo:
        """Describe the matrix, with the report of the ingest.

        Parameters
        ----------
        nnz, least : number of entries and least value, once they are sorted
        """
        source, rule = dict(self._source_provenance), choose_rule(self._options, is_pattern=self._dtype is None)
        provenance = describe(source)
        provenance["report"] = make_report(source, self._counts, nnz, rule, provenance["options"])
        nbytes = replace(self._size, n_entries=nnz).nbytes
        own = self._kind, self._shape, nnz, self._dtype, rule, self._id_type, least
        return describe_unstored(*own, provenance, nbytes=nbytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Release the shards, and wait for running tasks; those of lost workers never end."""
        with suppress(ClusterError, OSError):
            self._cluster.free(self._shards.keys, self._members)
            if tasks := list(zip(self._members, self._shards.running, strict=False)):
                present = self._cluster.describe_workers()
                self._cluster.await_done([task for member, task in tasks if member in present])
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

    def _number(self, claim: int | None, extent: tuple[int, int]) -> tuple[tuple[int, int], IdType | None]:
        """Number all vertices; return the numbers of rows and columns, and the type of ids as in `OwnIds`.

        Parameters
        ----------
        extent : 0 or the least id that is to be numbered, and the greatest; -1 if there is none
        """
        own: list[OwnIds] = self._do("number", "list_ids", claim, self._dtype)
        if (shape := own[0].shape) is not None:  # if any shard has a part, the first has one
            return shape, own[0].type
        sample, n = sorted(id for ids in own for id in ids.sample), len(own)
        cuts = [sample[len(sample) * rank // n] for rank in range(1, n)] if sample else [0] * (n - 1)
        counts: list[int] = self._do("number", "merge_ids", cuts, own[0].type)
        firsts = [0, *np.cumsum(counts).tolist()]
        are_numbers = all(self._do("number", "number_ids", firsts))
        return (firsts[-1], firsts[-1]), None if are_numbers else own[0].type

    # --- rows

    def _build(
        self, shape: tuple[int, int], counted: Sequence[tuple[np.ndarray, np.ndarray]], phase: str, *, transpose: bool
    ) -> tuple[list[int], float | None]:
        """Sort and merge all entries; return their number in each range of rows, and the least value."""
        rows, counts = counted[0][0], np.array([own for _, own in counted])
        self._cut_rows(rows, counts.sum(axis=0), shape[0])
        lengths = [counts[:, a:b].sum(axis=1).tolist() for a, b in pairwise(self._cuts)]
        self._do_each(
            "exchange", "take", [(pair, own) for pair, own in zip(pairwise(self._cuts), lengths, strict=True)]
        )
        made = self._do_each(phase, "build", [(pair, phase, transpose) for pair in pairwise(self._bounds)])
        return [n_entries for n_entries, _ in made], find_least(np.concatenate([lowest for _, lowest in made]))

    def _cut_rows(self, rows: np.ndarray, counts: np.ndarray, n_rows: int) -> None:
        """Choose the rows of each worker.

        Parameters
        ----------
        rows, counts : first row of each bucket, and the end of the last, and the number of entries of each
        """
        n, (of_entry, of_row) = len(self._members), self._costs
        weights = np.concatenate([[0], np.cumsum(of_entry * counts + of_row * np.diff(rows))])
        cuts = np.searchsorted(weights, [weights[-1] * rank // n for rank in range(n)]).tolist()
        self._cuts = [0, *cuts[1:], len(rows) - 1]
        self._bounds = [*(int(rows[cut]) for cut in self._cuts[:-1]), n_rows]

    def _add_up(self, n_cols: int, cut: Callable[[int, int], Sequence[int]], step: str, *arguments: Any) -> list[Any]:
        """Add up some columns at a time, and run a step for parts of them, one of each worker; return its results.

        Parameters
        ----------
        cut : returns the first column of each part, and the end, of a range of columns
        """
        found = []
        for start in range(0, max(1, n_cols), self._most_columns):
            stop = min(start + self._most_columns, n_cols)
            self._do("add up columns", "add_up", start, stop)
            parts = pairwise(cut(start, stop))
            found += self._do_each("add up columns", step, [(*arguments, *part) for part in parts])
        return found

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
