"""Shard of an ingest held by a worker, which requests data of the other shards."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distributed import Worker, get_worker

from mgspmv.cluster.agent import ASK_OP, get_agent
from mgspmv.errors import WorkerLostError, WorkerTimeoutError
from mgspmv.exchange.peer_comm import Member, worker_error
from mgspmv.heartbeat import beat
from mgspmv.ingest.shard import Shard, ShardSpec
from mgspmv.ingest.store_writing import check_folder, make_budget

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
