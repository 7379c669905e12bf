"""Connections between the workers of a run over Dask's comms, with the protocol of the cluster: TCP, TLS or UCX.

Of each pair of workers the one of lower rank connects, and the connection stays open for the run. Messages are not
answered, which halves their number, and a broken connection shows at once that a worker is lost. Workers wait for each
other without limit: the client watches those that are silent, and a watchdog on each its tasks.

Coroutines run on the worker's event loop; `send` and `receive` are called by the thread of its task.
"""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np
from distributed.comm import connect
from distributed.protocol import to_serialize

from mgspmv.errors import ClusterError, RunAbortedError, WorkerLostError
from mgspmv.heartbeat import Heartbeat, find_heartbeat

LINK_OP = "mgspmv_link"
"""Operation by which a worker opens a connection to another one; see `PeerComm.accept`."""


@dataclass(frozen=True)
class Member:
    """Worker of a run."""

    name: str | int
    """Name in the cluster and in errors; unchanged when the worker is restarted."""
    address: str
    """Address of its comm, such as tcp://10.0.0.2:40331."""

    def __str__(self) -> str:
        return self.address if self.name == self.address else f"{self.name} ({self.address})"


def worker_error(
    kind: type[ClusterError], members: Sequence[Member], rank: int, phase: str, what: str, why: str = ""
) -> ClusterError:
    """Make an error about the worker of a rank.

    Parameters
    ----------
    phase : phase of the run
    what : action or failure of the worker, as a predicate
    why : explanation, as a separate clause
    """
    member, more = members[rank], f"; {why}" if why else ""
    message = f"worker {member} {what} (during {phase}, rank {rank}){more}"
    return kind(message, worker=str(member.name), rank=rank, phase=phase)


@dataclass(frozen=True)
class RunSpec:
    """Description of a run of any kind, the same for all of its workers."""

    run: str
    """Run id."""
    members: tuple[Member, ...]
    """Workers of the run, by rank."""
    patience: float
    """Seconds for a worker to accept a connection."""


class Message(TypedDict, total=False):
    """Message between two workers of a run; each kind has some of the entries."""

    number: int
    """Number of the turn."""
    own_s: float
    """Seconds that the sender worked between turns."""
    z: np.ndarray | bytes
    """Elements of a vector."""
    sums: Sequence[tuple[int, int, int, int]]
    """Fields of the `StepSums` of each column."""
    own: Any
    """Value of the sender that all gather."""
    asked: Sequence[np.ndarray | None]
    """First message: rows of the receiver that each product of the sender reads; None for all."""
    group: str | None
    """First message of a device: name of the group of NCCL that it is in; None for none."""
    host: str
    """Likewise: id of its host."""
    network: str
    """Likewise: id of its network namespace."""


_PLAIN = (int, float, str, bytes, list, type(None))
"""Types of entries of messages that Dask's comms send as they are."""


class PeerComm:
    """Connections of one worker to all others of a run.

    Parameters
    ----------
    worker : the `distributed.Worker` of this process

    Attributes
    ----------
    heartbeat : heartbeat of the last task of the run, with its phase for messages
    """

    def __init__(self, worker: Any, rank: int, spec: RunSpec) -> None:
        self._worker, self._loop = worker, worker.loop.asyncio_loop
        self.run, self._rank, self._members, self._patience = spec.run, rank, spec.members, spec.patience
        self._inbox: queue.SimpleQueue[tuple[int, Message | None]] = queue.SimpleQueue()
        self._comms: dict[int, Any] = {}
        self._opened = [asyncio.Event() for _ in spec.members]
        self._gone: set[int] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._end: str | None = None
        self.heartbeat = Heartbeat()
        self.heartbeat.phase = "connect"

    @property
    def is_encrypted(self) -> bool:
        """True if all connections are encrypted and use certificates."""
        return all(member.address.startswith("tls://") for member in self._members)

    def connect(self) -> None:
        """Begin to connect to all others."""
        self._loop.call_soon_threadsafe(self._start_links)

    def send(self, messages: Mapping[int, Message]) -> None:
        """Send messages by rank, without waiting, even for connections. An array in a message must not change before it
        was received."""
        self._loop.call_soon_threadsafe(self._start_writes, messages)

    def receive(self, missing: Sequence[int]) -> tuple[int, Message]:
        """Wait for the next message of any worker; `missing` are the ranks whose messages are awaited.

        Raises
        ------
        WorkerLostError : the connection to a missing worker is broken
        RunAbortedError : the run was ended from outside
        """
        self.heartbeat.waits, self.heartbeat.awaited = True, min(missing)
        try:
            while True:
                self._check(missing)
                rank, message = self._inbox.get()
                if message is not None:
                    return rank, message
        finally:
            self.heartbeat.beat()
            self.heartbeat.waits, self.heartbeat.awaited = False, None

    def check(self) -> None:
        """Check all other workers."""
        self._check([r for r in range(len(self._members)) if r != self._rank])

    def _check(self, missing: Sequence[int]) -> None:
        if self._end is not None:
            raise RunAbortedError(self._end, phase=self.heartbeat.phase)
        for rank in self._gone.intersection(missing):
            about = (rank, self.heartbeat.phase, "closed its connection", "it died, or aborted the run")
            raise worker_error(WorkerLostError, self._members, *about)

    @contextmanager
    def active(self, phase: str) -> Iterator[Heartbeat]:
        """Name worker and phase in the errors of a task of the run.

        Parameters
        ----------
        phase : first phase of the task

        Returns
        -------
        The heartbeat of the task.
        """
        self.heartbeat = find_heartbeat()
        self.heartbeat.phase = phase
        try:
            yield self.heartbeat
        except ClusterError as error:
            if error.worker is None and not isinstance(error, RunAbortedError):
                raise worker_error(
                    type(error), self._members, self._rank, self.heartbeat.phase, "failed", str(error)
                ) from error
            raise

    def close(self, reason: str) -> None:
        """Close the connections; a waiting task raises with the reason."""
        if self._end is None:
            self._end = reason
            self._inbox.put((-1, None))
            self._loop.call_soon_threadsafe(self._stop)

    def _start_links(self) -> None:
        for rank in range(self._rank + 1, len(self._members)):
            self._start_task(self._open, rank)

    def _start_writes(self, messages: Mapping[int, Message]) -> None:
        for rank, message in messages.items():
            self._start_task(self._write, rank, message)

    def _start_task(self, function: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> None:
        if self._end is None:
            task = self._loop.create_task(function(*args))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        for comm in self._comms.values():
            comm.abort()

    async def _open(self, rank: int) -> None:
        arguments = self._worker.connection_args
        try:
            comm = await connect(self._members[rank].address, timeout=self._patience, **arguments)
            await comm.write({"op": LINK_OP, "run": self.run, "rank": self._rank, "reply": False})
        except OSError:
            self._lose(rank)
        else:
            await self.accept(comm, rank)

    async def accept(self, comm: Any, rank: int) -> None:
        """Serve a connection: read until it breaks or the run ends."""
        self._comms[rank] = comm
        self._opened[rank].set()
        try:
            while self._end is None:
                self._inbox.put((rank, await comm.read()))
        except OSError:
            pass  # closed by the other side, or by the end of the run
        finally:
            comm.abort()
            self._lose(rank)

    async def _write(self, rank: int, message: Message) -> None:
        wrapped = {k: v if isinstance(v, _PLAIN) else to_serialize(v) for k, v in message.items()}
        await self._opened[rank].wait()
        try:
            await self._comms[rank].write(wrapped)
        except OSError:
            self._lose(rank)

    def _lose(self, rank: int) -> None:
        self._gone.add(rank)
        self._inbox.put((rank, None))
