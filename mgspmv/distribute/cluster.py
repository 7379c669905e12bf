"""A Dask cluster as seen by a client: its workers, tasks pinned to them, and waits that end.

Every wait is watched: a worker that left the cluster, one whose event loop does not answer for `timeout` seconds, and
one with a task that hangs (see `mgspmv.distribute.watchdog`) end it with an error that names the worker, its rank and
the phase.
"""

from __future__ import annotations

import asyncio
import uuid
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from distributed import Client, Future
from distributed.comm import CommClosedError
from distributed.versions import get_versions

from mgspmv.distribute.agent import ABORT_OP, DESCRIBE_OP, FREE_OP, PING_OP, install
from mgspmv.distribute.calling import call_worker
from mgspmv.distribute.cancelling import find_check
from mgspmv.distribute.connect import connect_client
from mgspmv.distribute.lease import hold_lease
from mgspmv.distribute.spans import enter_default
from mgspmv.distribute.watchdog import do_watched
from mgspmv.errors import (
    ClusterError,
    MgspmvError,
    OptionError,
    RunAbortedError,
    SchedulerNotFoundError,
    VersionMismatchError,
    WorkerLostError,
    WorkerMemoryError,
    WorkerTimeoutError,
)
from mgspmv.exchange.links import Member, blame
from mgspmv.model import ignore

T = TypeVar("T")

JOIN_S = 10.0
"""Minimum seconds for a worker to answer before it joins a run."""
INSTALL_S = 60.0
"""Minimum seconds for a worker to import its modules, maybe from a slow file system, and answer."""
REJOIN_S = 5.0
"""Seconds as `JOIN_S` for a run that resumes: short, so that a hanging worker does not delay the others again."""
BACK_S = 1.0
"""Seconds for a worker that was silent to answer again."""
RETURN_S = 5.0
"""Seconds in which lost workers may return before the others continue without them."""
POLL_S = 0.2
"""Seconds between two checks whether lost workers have returned."""
TICK_S = 0.5
"""Seconds between two calls of `on_tick` while tasks are waited for."""
LOOK_S = 1.0
"""Seconds between two checks of the workers in the cluster."""
PING_S = 2.0
"""Seconds between two pings of a worker."""
LATE_S = 1.0
"""Seconds of delay above which this process itself was stopped, so that silence is not blamed on the workers."""
FREE_S = 5.0
"""Seconds for a worker to free the objects it holds; one that does not answer frees them when the key is released."""
CANCEL_S = 0.1
"""Seconds after which a task that continues is cancelled again."""
PATIENCE = 0.75
"""Fraction of the timeout that a worker may be silent. The rest is for ending the run on the others."""
GRACE_S = 1.0
"""Seconds to wait for other tasks to fail too, as the first error to arrive may not be the cause."""
CHECKED = ("mgspmv", "dask", "distributed", "numpy", "numba", "zarr")
"""Packages of which workers must have the client's versions, in addition to Python."""


@dataclass(frozen=True)
class DeviceInfo:
    """Description of a worker's current CUDA device."""

    problem: str | None = None
    """Problem that prevents its use; the other fields are then not set. None if it can be used."""
    name: str = ""
    id: str = ""
    """Id of the device, unique among all hosts."""
    memory: int = 0
    """Bytes of free device memory."""
    bandwidth: float = 0.0
    """Memory bandwidth in bytes per second."""
    nccl_problem: str | None = None
    """Problem that prevents connections by NCCL; None if there is none."""


@dataclass(frozen=True)
class WorkerInfo:
    """Resources of a worker of a cluster."""

    member: Member
    threads: int
    """Number of threads given by its cluster."""
    memory: int
    """Bytes of host memory that it may still allocate."""
    device: DeviceInfo = DeviceInfo("it was not asked")
    parts: frozenset[str] = frozenset()
    """Keys of the parts of matrices that it holds."""


class Cluster:
    """A client's view of a Dask cluster.

    Parameters
    ----------
    client : a `distributed.Client`, the address of a scheduler, or a cluster object such as `LocalCluster`
    timeout : seconds after which work ends with an error when a worker has hung

    Attributes
    ----------
    patience : seconds that a worker may be silent, somewhat less than the time-out
    is_owner : whether the client was made here, and is closed with this object
    n_joined : workers that joined the last time

    Raises
    ------
    OptionError : none of these, or an asynchronous client
    SchedulerNotFoundError : no scheduler answers there
    """

    def __init__(self, client: Any, timeout: float) -> None:
        if not timeout > 0:
            raise OptionError(f"timeout must be a positive number of seconds, not {timeout!r}")
        self.timeout = float(timeout)
        self.patience = PATIENCE * self.timeout
        self.n_joined = 0
        self._silent: set[Member] = set()
        self._starved: set[Member] = set()
        self._is_silent = False  # the scheduler, which relays messages to workers
        self._call: Future | None = None  # task that waits for a first worker
        self.is_owner = not isinstance(client, Client)
        self.client: Client = connect_client(client, self.timeout) if self.is_owner else client
        if self.client.asynchronous:
            raise OptionError("the client is asynchronous; pass one made with asynchronous=False")
        if self.client.status != "running":
            raise SchedulerNotFoundError(f"the client is {self.client.status}; make a new one")

    def close(self) -> None:
        """Close the client unless it was passed in, and release the worker that was called."""
        if self._call is not None:
            self._call.release()
            self._call = None
        if self.is_owner:
            self.client.close()

    def __str__(self) -> str:
        scheduler = self.client.scheduler
        return "a closed cluster" if scheduler is None else str(scheduler.address)

    @property
    def dashboard_link(self) -> str | None:
        """URL of Dask's dashboard; None where the scheduler serves none."""
        try:
            return self.client.dashboard_link or None
        except KeyError:  # raised by Dask for a scheduler that it did not start
            return None

    # --- workers

    def join(self, *, devices: bool, is_again: bool = False) -> list[WorkerInfo]:
        """Check the workers and install an agent on each. Workers that do not answer, and those with a task that hangs,
        are left out, with a warning. Without workers, a task waits for one, so that an adaptive cluster starts one.

        Parameters
        ----------
        devices : ask them for their devices
        is_again : workers joined before; do not wait long for those that do not answer, and leave out those that
            cannot join

        Raises
        ------
        ClusterError : there are no workers
        VersionMismatchError : a worker has other versions of the `CHECKED` packages than this process
        """
        self._call_worker()
        workers, left_out = self._sync(self._join(devices, is_again))
        self.n_joined = len(workers)
        for member, why in left_out.items():
            warnings.warn(f"worker {member} {why}", stacklevel=4)
        return workers

    async def _join(self, devices: bool, is_again: bool) -> tuple[list[WorkerInfo], dict[Member, str]]:
        wait_s = REJOIN_S if is_again else max(JOIN_S, self.patience)
        until_s = self.timeout if is_again else wait_s
        workers = await self._list_workers()
        everyone = [*workers]
        silent = await self._find_silent(everyone)
        starved = self._starved.intersection(everyone)
        asked = [member for member in everyone if member not in silent | starved] or everyone
        answers = await self._ask_present(asked, {"op": "versions", "packages": [*CHECKED]}, wait_s, until_s)
        self._silent.update(member for member in asked if member not in answers)
        versions = {member: answer["packages"] for member, answer in answers.items()}
        unfit = {m: f"{said[0]}, and is left out" for m in versions if (said := list_differences({m: versions[m]}))}
        if unfit and (not is_again or len(unfit) == len(versions)):
            differences = "; ".join(list_differences(versions))
            raise VersionMismatchError(f"{differences}. Install the same versions on all workers as here", phase="join")
        fit = [member for member in versions if member not in unfit]
        await asyncio.gather(*map(self._install, fit))
        message = {"op": DESCRIBE_OP, "devices": devices}
        described = await self._ask_present(fit, message, max(JOIN_S, wait_s), until_s)
        hanging = {m: _describe_hang(told["hangs"]) for m, told in described.items() if "hangs" in told}
        if len(hanging) == len(described):
            all_said = "; ".join(f"worker {member} {said}" for member, said in hanging.items())
            raise WorkerTimeoutError(f"{self} has nobody to compute (during join): {all_said}", phase="join")
        infos = [
            WorkerInfo(
                m,
                workers[m]["nthreads"],
                _find_memory(workers, m, told["free_memory"]),
                DeviceInfo(**told["device"]),
                frozenset(told["parts"]),
            )
            for m, told in described.items()
            if m not in hanging
        ]
        absent = {m: "does not answer and is left out" for m in everyone if m not in described}
        why = "had no memory left, and is left out until it is restarted"
        return infos, hanging | absent | unfit | dict.fromkeys(starved - described.keys(), why)

    def describe_workers(self) -> dict[Member, dict[str, Any]]:
        """Return the scheduler's description of each worker in any state, without waiting for workers.

        Raises
        ------
        SchedulerNotFoundError : it does not answer
        """

        return self._sync(self._describe_workers())

    async def _describe_workers(self) -> dict[Member, dict[str, Any]]:
        workers = (await self._ask(self._scheduler().identity(n_workers=-1), "join"))["workers"]
        return {Member(worker["name"], address): worker for address, worker in workers.items()}

    def ask_each(self, members: Iterable[Member], message: dict[str, Any], wait_s: float) -> dict[Member, Any]:
        """Return the answers of workers to a message, with an exception for each that does not come in `wait_s`."""
        return self._sync(self._ask_each(dict.fromkeys(members, message), wait_s))

    def await_workers(self, n: int) -> None:
        """Wait up to `RETURN_S` until n workers answer, without those left out for lack of memory; then for one, up to
        `timeout`.

        Raises
        ------
        WorkerTimeoutError : no worker answers
        """
        self._call_worker()
        self._sync(self._await_workers(n))

    def _call_worker(self) -> None:
        if self._call is None and not self.describe_workers():
            self._call = call_worker(self.client)

    async def _await_workers(self, n: int) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        while (n_found := len(await self._find_answering())) < n - len(self._starved):
            waited_s = loop.time() - began
            if waited_s > (RETURN_S if n_found else self.timeout):
                break
            await asyncio.sleep(POLL_S)
        if not n_found:
            raise WorkerTimeoutError(
                f"no worker of {self} came back within {self.timeout:g} s (during join); start some", phase="join"
            )

    def find_gone(self, members: Iterable[Member]) -> list[Member]:
        """Return the members that have left the cluster, or do not run."""
        running = {member.address for member, w in self.describe_workers().items() if w["status"] == "running"}
        return [member for member in members if member.address not in running]

    async def _find_answering(self) -> list[Member]:
        """Find the running workers, except those that are still silent and those left out for lack of memory."""
        running = [member for member, w in (await self._describe_workers()).items() if w["status"] == "running"]
        silent = await self._find_silent(running)
        return [member for member in running if member not in silent | self._starved]

    async def _find_silent(self, members: Sequence[Member]) -> set[Member]:
        """Find the members that did not answer before, and still do not."""
        known = [member for member in members if member in self._silent]
        self._silent -= (await self._find_answers(known, {"op": "identity"}, BACK_S)).keys()
        return self._silent.intersection(known)

    async def _find_answers(
        self, members: Iterable[Member], message: dict[str, Any], wait_s: float
    ) -> dict[Member, Any]:
        """Return the answers of the members that answer in time."""
        answers = await self._ask_each(dict.fromkeys(members, message), wait_s)
        return {member: answer for member, answer in answers.items() if not isinstance(answer, Exception)}

    async def _ask_present(
        self, members: Iterable[Member], message: dict[str, Any], wait_s: float, until_s: float
    ) -> dict[Member, Any]:
        """Return the answers that come within `wait_s`; where none does, ask again until `until_s` have passed."""
        loop, asked = asyncio.get_running_loop(), list(members)
        deadline = loop.time() + until_s
        while not (present := await self._find_answers(asked, message, wait_s)):
            if loop.time() >= deadline:
                names = ", ".join(str(member.name) for member in asked)
                raise WorkerTimeoutError(
                    f"none of the workers of {self} answered within {max(wait_s, until_s):g} s (during join, workers "
                    f"{names}); they hang, or cannot be reached",
                    phase="join",
                )
        return present

    async def _list_workers(self) -> dict[Member, dict[str, Any]]:
        """List the running workers, in the order of their names."""
        with suppress(TimeoutError):
            await self.client.wait_for_workers(1, timeout=self.timeout)
        workers = await self._describe_workers()
        running = {member: w for member, w in workers.items() if w["status"] == "running"}
        if not running:
            states = ", ".join(sorted({w["status"] for w in workers.values()}))
            why = f"{states}, after {self.timeout:g} s" if states else f"none came for a task within {self.timeout:g} s"
            raise ClusterError(
                f"{self} has no running workers ({why}); start some, or raise the timeout where a cluster that adapts "
                "takes longer to start them",
                phase="join",
            )
        return dict(sorted(running.items(), key=lambda item: (str(type(item[0].name)), item[0].name)))

    async def _install(self, member: Member) -> None:
        try:
            answers = await asyncio.wait_for(
                self.client.run(install, workers=[member.address], on_error="return"), max(INSTALL_S, self.timeout)
            )
        except TimeoutError as error:
            raise WorkerTimeoutError(
                f"worker {member} could not be given what it needs within {max(INSTALL_S, self.timeout):g} s (during "
                "join); its event loop is busy, or it imports from a slow file system",
                worker=str(member.name),
                phase="join",
            ) from error
        answer = answers.get(member.address)
        if isinstance(answer, BaseException):
            await self._check_members([member], "join")
            raise ClusterError(f"worker {member}: {answer}", worker=str(member.name), phase="join") from answer

    # --- tasks

    def submit(self, member: Member, key: str, function: Callable[..., Any], *args: Any) -> Future:
        """Start a task on one worker and nowhere else; never twice. The worker watches it, and the client that waits
        for it must watch the worker.

        By address: a worker restarted under the same name has lost the data that tasks need, and integer names, as in
        `LocalCluster`, are rejected by the scheduler while there is no such worker.
        """
        with enter_default():
            return self.client.submit(
                do_watched,
                self.patience,
                function,
                *args,
                key=key,
                workers=[member.address],
                allow_other_workers=False,
                pure=False,
                retries=0,
            )

    def check_members(self, members: Sequence[Member], phase: str) -> None:
        """Check that all members are in the cluster.

        Raises
        ------
        WorkerLostError : a member has left the cluster
        """
        self._sync(self._check_members(members, phase))

    def settle(
        self,
        futures: Sequence[Future],
        members: Sequence[Member],
        phase: str,
        on_done: Callable[[int], None] | None = None,
        on_tick: Callable[[], None] | None = None,
        ranks: Sequence[int] | None = None,
    ) -> list[Any]:
        """Wait for the results of tasks, one on each of the members unless `ranks` says otherwise.

        Parameters
        ----------
        members : workers to watch
        on_done : called with the number of tasks that are done
        on_tick : called at least every `TICK_S`
        ranks : ranks of the members that have the tasks

        Raises
        ------
        WorkerLostError, WorkerTimeoutError : a member left the cluster, or does not answer
        MgspmvError : raised by a task
        KeyboardInterrupt : the run was cancelled
        Exception : raised by a callback
        """
        tasks = list(zip(range(len(members)) if ranks is None else ranks, futures, strict=True))
        told = SimpleQueue[int | None]()
        work = self._watch(self._gather(tasks, members, phase, told.put), members, phase)
        check, hear, tick = find_check(), on_done or ignore, on_tick or ignore
        settling = asyncio.run_coroutine_threadsafe(work, self._find_loop())
        settling.add_done_callback(lambda _: told.put(None))
        try:
            n_done: int | None = 0
            while n_done is not None:
                check()
                tick()
                with suppress(Empty):
                    if n_done := told.get(timeout=TICK_S):
                        hear(n_done)
            return settling.result()
        except CommClosedError as error:
            raise self._lost(error) from error
        finally:
            settling.cancel()  # no effect if it is done
            del settling  # it holds the error, whose traceback holds this frame

    def release(self, futures: Iterable[Future]) -> None:
        """Release tasks that failed, or whose results are no longer needed.

        Otherwise they are kept for ever: Dask keeps the error of a task, the error its frames, and these the futures.
        `Client.cancel` must not be used: for a key without a dependent, such as one of a graph that came too late, it
        breaks the client's connection, and with it all that the user has on the cluster.
        """
        for future in futures:
            future.release()

    def await_done(self, futures: Sequence[Future]) -> None:
        """Wait until these finished, failed or were cancelled, for `timeout` seconds at most."""

        async def wait() -> None:
            done = _watch_done(futures)
            for _ in futures:
                await done.get()

        with suppress(TimeoutError):
            self._sync(asyncio.wait_for(wait(), self.timeout))

    @contextmanager
    def scatter_each(
        self, pieces: Sequence[Any], members: Sequence[Member], phase: str, task: str
    ) -> Iterator[list[Future]]:
        """Send a piece to each of the first members, from which Dask copies them to others when their tasks need them;
        they are released when the context ends, also by an error.

        Parameters
        ----------
        task : key prefix of the tasks that take the data, and of the data's keys, which puts these in the same span;
            under another prefix Dask makes a new span each time, which the scheduler keeps

        As fast as `broadcast=True`, which must not be used: if a worker is lost meanwhile, the scheduler tries to
        reach it for 30 s, and until then no client of the cluster can broadcast.
        """

        async def send() -> list[Future]:
            sending = [
                asyncio.ensure_future(self._send(piece, members, rank, phase, task))
                for rank, piece in enumerate(pieces)
            ]
            try:
                return list(await asyncio.gather(*sending))
            except BaseException:
                await _cancel(sending)
                self.release(each.result() for each in sending if not each.cancelled() and each.exception() is None)
                raise

        sent = self._sync(self._watch(send(), members, phase))
        try:
            yield sent
        finally:
            self.release(sent)

    async def _send(self, data: Any, members: Sequence[Member], rank: int, phase: str, task: str) -> Future:
        """Scatter data to a member. If cancelled, release the data once it has arrived, which Dask does not do."""
        key = f"{task}-{uuid.uuid4().hex}"
        sending = asyncio.ensure_future(self.client.scatter({key: data}, workers=[members[rank].address]))
        sending.add_done_callback(lambda done: done.cancelled() or done.exception())  # mark the error as retrieved
        try:
            sent: dict[str, Future] = await asyncio.shield(sending)
        except TimeoutError as error:
            why = f"{error}; Dask pauses workers whose memory is short"
            raise blame(WorkerTimeoutError, members, rank, phase, "takes no data", why) from error
        return sent[key]

    def free(self, keys: Sequence[str], members: Iterable[Member]) -> None:
        """Free what the keys hold, one key per member, at once on members that answer; do not wait for the others."""
        if self._is_silent:
            return
        messages = [{"op": FREE_OP, "keys": [key]} for key in keys]
        self._sync(self._tell_each(members, messages, min(FREE_S, self.timeout)))

    def abort(self, keys: Sequence[str], members: Iterable[Member], reason: str) -> list[Member]:
        """End the sessions of a run, wait for their tasks, and return the members whose tasks may still be running."""
        messages = [{"op": ABORT_OP, "key": key, "reason": reason, "wait_s": self.timeout / 2} for key in keys]
        answers = self._sync(self._tell_each(members, messages, self.timeout))
        return [member for member, answer in answers.items() if answer is not True]

    def lease(self, on_wait: Callable[[], None]) -> AbstractContextManager[None]:
        """Hold the exclusive lease to load or iterate on this cluster; `on_wait` is called while another run has it."""
        self._scheduler()
        return hold_lease(self.client, self.timeout, on_wait)

    # --- waiting

    def check_client(self) -> None:
        """Check that the client is connected to its scheduler.

        Raises
        ------
        SchedulerNotFoundError : the client was closed, or lost its scheduler
        """
        self._scheduler()

    def _scheduler(self) -> Any:
        scheduler = self.client.scheduler
        if scheduler is None or self.client.status != "running":
            raise SchedulerNotFoundError("the connection to the scheduler was lost; start the cluster again")
        return scheduler

    def _sync(self, work: Coroutine[Any, Any, T]) -> T:
        async def run() -> T:
            return await work

        try:
            result: T = self.client.sync(run)
        except CommClosedError as error:
            raise self._lost(error) from error
        return result

    def _lost(self, error: Exception) -> SchedulerNotFoundError:
        return SchedulerNotFoundError(f"the connection to {self} was lost: {error}")

    def _find_loop(self) -> asyncio.AbstractEventLoop:
        self._scheduler()
        loop: asyncio.AbstractEventLoop = self.client.loop.asyncio_loop
        return loop

    async def _ask(self, request: Awaitable[T], phase: str) -> T:
        """Wait up to `patience` for the scheduler's answer to a request."""
        try:
            answer = await asyncio.wait_for(request, self.patience)
        except (OSError, TimeoutError) as error:
            self._is_silent = True
            raise SchedulerNotFoundError(
                f"{self} did not answer within {self.patience:g} s (during {phase})", phase=phase
            ) from error
        self._is_silent = False
        return answer

    async def _watch(self, work: Coroutine[Any, Any, T], members: Sequence[Member], phase: str) -> T:
        """Await the work, and raise if a member is lost or silent meanwhile."""
        working = asyncio.ensure_future(work)
        watching = [asyncio.ensure_future(self._watch_members(members, phase))]
        for rank in range(len(members)):
            watching.append(asyncio.ensure_future(self._watch_answers(members, rank, phase)))
        try:
            await asyncio.wait([working, *watching], return_when=asyncio.FIRST_COMPLETED)
            for watch in watching:
                if watch.done() and not working.done():
                    watch.result()
            return await working
        except (KeyError, CommClosedError):  # raised by Dask for a worker unknown or just lost
            await asyncio.sleep(GRACE_S)
            await self._check_members(members, phase)
            raise
        finally:
            await _cancel([working, *watching])

    async def _watch_members(self, members: Sequence[Member], phase: str) -> None:
        """Raise when a member has left the cluster, or was paused for longer than `patience`."""
        loop = asyncio.get_running_loop()
        ran = {member: loop.time() for member in members}
        while True:
            await asyncio.sleep(LOOK_S)
            await self._check_members(members, phase)
            running = await self._ask(self._scheduler().ncores_running(workers=[m.address for m in members]), phase)
            ran |= {member: loop.time() for member in members if member.address in running}
            for rank, member in enumerate(members):
                if loop.time() > ran[member] + self.patience:
                    why = "which Dask does when its memory is short; give it more, or use more workers"
                    raise blame(WorkerTimeoutError, members, rank, phase, f"was paused for {self.patience:g} s", why)

    async def _check_members(self, members: Sequence[Member], phase: str) -> None:
        there = await self._ask(self._scheduler().ncores(workers=[m.address for m in members]), phase)
        for rank, member in enumerate(members):
            if member.address not in there:
                why = "it died, or was taken out of the cluster"
                raise blame(WorkerLostError, members, rank, phase, "is gone", why)

    async def _watch_answers(self, members: Sequence[Member], rank: int, phase: str) -> None:
        """Raise when a member's event loop does not answer for `patience` seconds, or reports a task that hangs."""
        loop, member = asyncio.get_running_loop(), members[rank]
        pause_s = min(PING_S, self.timeout / 8)
        answered = loop.time()
        while True:
            began = loop.time()
            await asyncio.sleep(pause_s)
            left_s = max(0.0, answered + self.patience - began - pause_s)
            answer = (await self._ask_each({member: {"op": PING_OP}}, left_s))[member]
            is_late = loop.time() - began - pause_s - left_s > LATE_S
            if is_late or not isinstance(answer, Exception):
                answered = loop.time()
            if not isinstance(answer, Exception):
                for hung_in, what, why in answer[:1]:
                    raise blame(WorkerTimeoutError, members, rank, hung_in or phase, what, why)
            if loop.time() >= answered + self.patience:
                await self._check_members(members, phase)  # pings go through the scheduler, which may hang itself
                self._silent.add(member)
                why = "it hangs, or cannot be reached"
                raise blame(WorkerTimeoutError, members, rank, phase, f"did not answer for {self.patience:g} s", why)

    async def _ask_each(self, messages: Mapping[Member, dict[str, Any]], wait_s: float) -> dict[Member, Any]:
        """Send messages to workers through the scheduler; return answers, an exception for each that does not come."""

        async def ask(address: str, message: dict[str, Any]) -> Any:
            request = self._scheduler().broadcast(msg=message, workers=[address], on_error="return")
            return (await asyncio.wait_for(request, wait_s))[address]

        asking = (ask(member.address, message) for member, message in messages.items())
        return dict(zip(messages, await asyncio.gather(*asking, return_exceptions=True), strict=True))

    async def _tell_each(
        self, members: Iterable[Member], messages: Iterable[dict[str, Any]], wait_s: float
    ) -> dict[Member, Any]:
        """Send messages as `_ask_each` does, except to members that left the cluster or did not answer before."""
        told = {m: message for m, message in zip(members, messages, strict=True) if m not in self._silent}
        there = await self._ask(self._scheduler().ncores(workers=[member.address for member in told]), "end")
        return await self._ask_each({m: message for m, message in told.items() if m.address in there}, wait_s)

    async def _gather(
        self,
        tasks: Sequence[tuple[int, Future]],
        members: Sequence[Member],
        phase: str,
        on_done: Callable[[int], None],
    ) -> list[Any]:
        futures = [future for _, future in tasks]
        done = _watch_done(futures)
        for n_done in range(1, len(tasks) + 1):
            if (await done.get()).status != "finished":
                raise await self._find_cause(tasks, members, phase)
            on_done(n_done)
        results: list[Any] = await self.client.gather(futures, errors="skip")
        if len(results) < len(tasks):  # the worker that had or reported them was just lost
            raise await self._find_cause(tasks, members, phase)
        return results

    async def _find_cause(
        self, tasks: Sequence[tuple[int, Future]], members: Sequence[Member], phase: str
    ) -> BaseException:
        """Return the error that made tasks fail: when one does, the others fail too, as they lose its link."""
        await asyncio.sleep(GRACE_S)
        await self._check_members(members, phase)
        failures = [(rank, task) for rank, task in tasks if task.status == "error"]
        if not failures:
            return ClusterError(f"the tasks were cancelled (during {phase}); was the cluster restarted?", phase=phase)
        causes = [_explain(await task.exception(), members, rank, phase) for rank, task in failures]
        cause = min(causes, key=_rank_cause)
        if isinstance(cause, WorkerMemoryError) and cause.rank is not None:
            self._starved.add(members[cause.rank])
        return cause


def _explain(error: BaseException, members: Sequence[Member], rank: int, phase: str) -> BaseException:
    """Return a task's error, with Python's errors for exhausted memory translated to `WorkerMemoryError`."""
    if isinstance(error, MgspmvError):
        return error
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "start new thread" in str(error)):
        said = f"{type(error).__name__}: {error}".removesuffix(": ")
        return WorkerMemoryError(
            f"worker {members[rank]} has no memory left (during {phase}): {said}; give it more, or use more workers",
            worker=str(members[rank].name),
            rank=rank,
            phase=phase,
        )
    return error


def list_differences(found: dict[Member, dict[str, Any]]) -> list[str]:
    """Describe which workers have other versions than this process, one text per package.

    Parameters
    ----------
    found : versions by package, with Python's, as returned by the workers' op `versions`
    """
    wanted = get_versions(packages=[*CHECKED])["packages"]
    return [
        f"worker {member} has {name} {packages.get(name) or 'not installed'}, not {wanted[name]}"
        for member, packages in found.items()
        for name in ("python", *CHECKED)
        if packages.get(name) != wanted[name]
    ]


def _describe_hang(hangs: Sequence[tuple[str, str, str]]) -> str:
    """Format the first hang that an agent reported, to follow the name of its worker."""
    [(phase, what, _), *_] = hangs
    return f"{what} (during {phase or 'a task'}) and is left out until it goes on or is restarted"


def _find_memory(workers: dict[Member, dict[str, Any]], member: Member, free_on_host: int) -> int:
    """Return the bytes that a worker may still take, by its memory limit and its share of its host's free memory."""
    worker = workers[member]
    free: int = free_on_host // sum(w["host"] == worker["host"] for w in workers.values())
    limit = worker["memory_limit"]
    return min(free, max(0, int(limit - worker["metrics"]["memory"]))) if limit else free


async def _cancel(tasks: Sequence[asyncio.Future[Any]]) -> None:
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


def _watch_done(futures: Iterable[Future]) -> asyncio.Queue[Future]:
    """Return a queue that gets each future when it is done. Dask's `as_completed` can miss simultaneous ones."""
    loop, done = asyncio.get_running_loop(), asyncio.Queue[Future]()
    for future in futures:
        future.add_done_callback(lambda f: loop.call_soon_threadsafe(done.put_nowait, f))
    return done


def _rank_cause(error: BaseException) -> int:
    """Return a sort key that is low for an error likely to have caused the others."""
    if not isinstance(error, ClusterError):
        return 0
    order = {WorkerMemoryError: 0, WorkerTimeoutError: 1, ClusterError: 2, WorkerLostError: 3, RunAbortedError: 4}
    return order.get(type(error), 2)
