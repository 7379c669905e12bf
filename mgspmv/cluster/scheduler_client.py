"""Messages of a client to the scheduler and the workers of a Dask cluster, and bounded waits for them.

Every wait ends with an error, with worker, rank and phase, if a worker leaves the cluster, if its event loop is silent
for `timeout` seconds, or if one of its tasks hangs (see `mgspmv.cluster.agent`). The scheduler knows all of it from
Dask's heartbeats of the workers, to which agents add the tasks that hang.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from distributed import Client
from distributed.comm import CommClosedError

from mgspmv.cluster.agent import HANGS
from mgspmv.cluster.connect import connect_client
from mgspmv.errors import MgspmvError, OptionError, SchedulerNotFoundError, WorkerLostError, WorkerTimeoutError
from mgspmv.exchange.peer_comm import Member, worker_error
from mgspmv.model import Recovery

T = TypeVar("T")
End = Callable[[int, int], Recovery]
"""Function called when a run resumes, with the number of iterations made and of workers; returns the record."""

LOOK_S = 1.0
"""Seconds between two checks of the workers in the cluster."""
CANCEL_S = 0.1
"""Seconds after which a task that still runs is cancelled again."""
PATIENCE = 0.75
"""Fraction of the timeout that a worker may be silent; the rest is for ending the run on the others."""
GRACE_S = 1.0
"""Seconds to wait for other tasks to fail too, as the first error to arrive may not be the cause."""


class SchedulerClient:
    """Client of a Dask scheduler that sends messages to it and the workers, and watches them.

    Parameters
    ----------
    client : a `distributed.Client`, the address of a scheduler, or a cluster object such as `LocalCluster`
    timeout : seconds after which work ends with an error when a worker has hung

    Attributes
    ----------
    patience : seconds that a worker may be silent, somewhat less than the time-out
    is_owner : whether the client was made here, and is closed with this object

    Raises
    ------
    OptionError : `client` is none of these, or is asynchronous
    SchedulerNotFoundError : no scheduler answers
    """

    def __init__(self, client: Any, timeout: float) -> None:
        if not (isinstance(timeout, int | float) and timeout > 0):
            raise OptionError(f"timeout must be a positive number of seconds, not {timeout!r}")
        self.timeout = float(timeout)
        self.patience = PATIENCE * self.timeout
        self._silent: set[Member] = set()
        self._is_silent = False  # the scheduler, which relays messages to workers
        self.is_owner = not isinstance(client, Client)
        self.client: Client = connect_client(client, self.timeout) if self.is_owner else client
        if self.client.asynchronous:
            raise OptionError("the client is asynchronous; pass one made with asynchronous=False")
        if self.client.status != "running":
            raise SchedulerNotFoundError(f"the client is {self.client.status}; make a new one")

    def close(self) -> None:
        """Close the client unless it was passed in."""
        if self.is_owner:
            self.client.close()

    def __str__(self) -> str:
        scheduler = self.client.scheduler
        return "a closed cluster" if scheduler is None else str(scheduler.address)

    def check_client(self) -> Any:
        """Return the connection to the scheduler, for requests.

        Raises
        ------
        SchedulerNotFoundError : the client was closed, or lost its scheduler
        """
        scheduler = self.client.scheduler
        if scheduler is None or self.client.status != "running":
            raise SchedulerNotFoundError("the connection to the scheduler was lost; start the cluster again")
        return scheduler

    def _sync(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            result: T = self.client.sync(lambda: work)
        except CommClosedError as error:
            raise self._lost(error) from error
        return result

    def _lost(self, error: Exception) -> SchedulerNotFoundError:
        return SchedulerNotFoundError(f"the connection to {self} was lost: {error}")

    # --- messages

    def describe_workers(self) -> dict[Member, dict[str, Any]]:
        """Return the scheduler's description of each worker in any state, without waiting for workers."""
        return self._sync(self._describe_workers())

    async def _describe_workers(self, phase: str = "join") -> dict[Member, dict[str, Any]]:
        try:
            answer = await asyncio.wait_for(self.check_client().identity(n_workers=-1), self.patience)
        except (OSError, TimeoutError) as error:
            self._is_silent = True
            said = f"{self} did not answer within {self.patience:g} s (during {phase})"
            said = said if isinstance(error, TimeoutError) else f"the connection to {self} was lost: {error}"
            raise SchedulerNotFoundError(said, phase=phase) from error
        self._is_silent = False
        return {Member(worker["name"], address): worker for address, worker in answer["workers"].items()}

    def find_gone(self, members: Iterable[Member]) -> list[Member]:
        """Return the members that have left the cluster, or do not run."""
        running = {member.address for member, w in self.describe_workers().items() if w["status"] == "running"}
        return [member for member in members if member.address not in running]

    async def _ask_each(self, members: Iterable[Member], message: dict[str, Any], wait_s: float) -> dict[Member, Any]:
        """Send a message to workers, through the scheduler; return the answers of those that answer in time."""

        async def ask(member: Member) -> Any:
            request = self.check_client().broadcast(msg=message, workers=[member.address], on_error="return")
            return (await asyncio.wait_for(request, wait_s))[member.address]

        asked = [*members]
        answers = await asyncio.gather(*map(ask, asked), return_exceptions=True)
        return {m: own for m, own in zip(asked, answers, strict=True) if not isinstance(own, Exception)}

    def ask_reachable(self, members: Iterable[Member], message: dict[str, Any], wait_s: float) -> None:
        """Send a message to those members that are in the cluster and answered before, and wait for their answers."""

        async def ask() -> None:
            present = await self._describe_workers("end")
            await self._ask_each([m for m in members if m in present and m not in self._silent], message, wait_s)

        self._sync(ask())

    async def _ask_present(
        self, members: Iterable[Member], message: dict[str, Any], wait_s: float, until_s: float
    ) -> dict[Member, Any]:
        """Return the answers received within `wait_s`; if there are none, ask again until `until_s` have passed."""
        loop, asked = asyncio.get_running_loop(), list(members)
        deadline = loop.time() + until_s
        while not (present := await self._ask_each(asked, message, wait_s)):
            if loop.time() >= deadline:
                names = ", ".join(str(member.name) for member in asked)
                raise WorkerTimeoutError(
                    f"none of the workers of {self} answered within {max(wait_s, until_s):g} s (during join, workers "
                    f"{names}); they hang, or cannot be reached",
                    phase="join",
                )
        return present

    # --- watching

    async def _watch(self, work: Coroutine[Any, Any, T], members: Sequence[Member], phase: str) -> T:
        """Await the work, and raise if a member is lost or silent meanwhile."""
        working, watching = asyncio.ensure_future(work), asyncio.ensure_future(self._watch_members(members, phase))
        try:
            await asyncio.wait([working, watching], return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                watching.result()
            return await working
        except (KeyError, CommClosedError):  # raised by Dask for a worker unknown or just lost
            await asyncio.sleep(GRACE_S)
            await self._check_members(members, phase)
            raise
        finally:
            await cancel_all([working, watching])

    async def _watch_members(self, members: Sequence[Member], phase: str) -> None:
        """Raise when a member has left the cluster, has a task that hangs, or was silent or paused for longer than
        `patience`, by what the scheduler knows of its heartbeats."""
        loop = asyncio.get_running_loop()
        looked_s, pause_s = loop.time(), min(LOOK_S, self.timeout / 8)
        idle_s, seen = [0.0] * len(members), list[float | None]([None] * len(members))
        while True:
            await asyncio.sleep(pause_s)
            workers = await self._check_members(members, phase)
            # A longer pause means that this process was stopped: the silence is then not the worker's.
            elapsed_s, looked_s = min(loop.time() - looked_s, 2 * pause_s), loop.time()
            for rank, worker in enumerate(workers):
                is_heard, seen[rank] = seen[rank] not in (None, worker["last_seen"]), worker["last_seen"]
                if is_heard and (hangs := worker["metrics"].get(HANGS)):
                    hung_in, what, why, awaited = hangs[0]
                    about = rank if awaited is None else awaited
                    raise worker_error(WorkerTimeoutError, members, about, hung_in or phase, what, why)
                is_running = worker["status"] == "running"
                idle_s[rank] = 0.0 if is_heard and is_running else idle_s[rank] + elapsed_s
                if idle_s[rank] > self.patience:
                    what, why = "did not answer", "it hangs, or cannot be reached"
                    if not is_running:
                        what = "was paused"
                        why = "Dask pauses a worker that runs out of memory; give it more, or use more workers"
                    else:
                        self._silent.add(members[rank])
                    said = f"{what} for {self.patience:g} s"
                    raise worker_error(WorkerTimeoutError, members, rank, phase, said, why)

    async def _check_members(self, members: Sequence[Member], phase: str) -> list[dict[str, Any]]:
        """Check that all members are in the cluster, and return the scheduler's descriptions of them."""
        workers = await self._describe_workers(phase)
        for rank, member in enumerate(members):
            if member not in workers:
                why = "it died, or was removed"
                raise worker_error(WorkerLostError, members, rank, phase, "left the cluster", why)
        return [workers[member] for member in members]


def record_failure(error: MgspmvError, iteration: int, n_workers: int) -> End:
    """Record the loss of a worker from its error; return a function that completes the record when the run resumes."""
    kind, began = "silent" if isinstance(error, WorkerTimeoutError) else "lost", time.perf_counter()
    worker, said = getattr(error, "worker", None), str(error)

    def end(resumed_after: int, n_left: int) -> Recovery:
        seconds = time.perf_counter() - began
        return Recovery(kind, iteration, resumed_after, worker, said, seconds, n_workers, n_left)

    return end


async def cancel_all(tasks: Sequence[asyncio.Future[Any]]) -> None:
    """Cancel tasks and wait until they have ended.

    Once is not enough: in Python 3.11 a task that is cancelled in `asyncio.wait_for` just as the answer comes gets the
    answer and continues.
    """
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=CANCEL_S)
    await asyncio.gather(*tasks, return_exceptions=True)
