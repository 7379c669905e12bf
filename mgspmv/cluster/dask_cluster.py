"""A Dask cluster as seen by a client: its workers, and tasks pinned to them."""

from __future__ import annotations

import asyncio
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, wait
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import distributed
from distributed import Future
from distributed.comm import CommClosedError
from distributed.versions import get_versions

from mgspmv.cluster.agent import (
    ABORT_OP,
    FREE_OP,
    NOT_ASKED,
    DeviceInfo,
    Hang,
    WorkerDescription,
    describe_worker,
    do_watched,
)
from mgspmv.cluster.scheduler_client import GRACE_S, SchedulerClient, cancel_all
from mgspmv.cluster.scheduling import call_worker, check_cancelled, enter_span, hold_lease
from mgspmv.errors import (
    ClusterError,
    MgspmvError,
    RunAbortedError,
    VersionMismatchError,
    WorkerLostError,
    WorkerMemoryError,
    WorkerTimeoutError,
)
from mgspmv.exchange.peer_comm import Member, worker_error
from mgspmv.model import ignore

JOIN_S = 10.0
"""Seconds for a worker to answer when it joins a run; the patience if that is more."""
INSTALL_S = 60.0
"""Seconds for a worker to import its modules, maybe from a slow file system; the timeout if that is more."""
REJOIN_S = 5.0
"""Seconds as `JOIN_S` for a run that resumes: short, so that a hanging worker does not delay the others again."""
BACK_S = 1.0
"""Seconds for a worker that was silent to answer again."""
RETURN_S = 5.0
"""Seconds in which lost workers may return before the others continue without them."""
POLL_S = 0.2
"""Seconds between two checks whether lost workers have returned."""
TICK_S = 0.5
"""Seconds between two looks whether the run was cancelled, and how many tasks are done, while they are waited for."""
FREE_S = 5.0
"""Seconds for a worker to free the objects it holds; one that does not answer frees them when the key is released."""
CHECKED = ("mgspmv", "dask", "distributed", "numpy", "numba", "zarr")
"""Packages of which workers must have the client's versions, in addition to Python."""


@dataclass(frozen=True)
class WorkerInfo:
    """Resources of a worker of a cluster."""

    member: Member
    threads: int
    """Number of threads given by its cluster."""
    memory: int
    """Bytes of host memory that it may still allocate."""
    device: DeviceInfo = NOT_ASKED
    parts: frozenset[str] = frozenset()
    """Keys of the parts of matrices that it holds."""


class Cluster(SchedulerClient):
    """A client's view of a Dask cluster.

    Attributes
    ----------
    n_joined : workers that joined the last time
    """

    def __init__(self, client: Any, timeout: float) -> None:
        self.n_joined = 0
        self._starved: set[Member] = set()  # members that ran out of memory
        self._call: Future | None = None  # task that waits for a first worker
        super().__init__(client, timeout)

    def close(self) -> None:
        """Close the client unless it was passed in, and release the worker that was called."""
        if self._call is not None:
            self._call.release()
            self._call = None
        super().close()

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
        answered = await asyncio.gather(*(self._describe(member, devices) for member in fit))
        described = {member: told for member, told in zip(fit, answered, strict=True) if told is not None}
        hanging = {m: _describe_hang(told.hangs) for m, told in described.items() if told.hangs}
        if len(hanging) == len(described):
            failures = hanging or dict.fromkeys(fit, "does not answer")
            all_said = "; ".join(f"worker {member} {said}" for member, said in failures.items())
            raise WorkerTimeoutError(f"no worker of {self} can compute (during join): {all_said}", phase="join")
        infos = [
            WorkerInfo(m, workers[m]["nthreads"], _find_memory(workers, m, told.free_memory), told.device, told.parts)
            for m, told in described.items()
            if m not in hanging
        ]
        absent = {m: "does not answer and is left out" for m in everyone if m not in described}
        why = "had no memory left, and is left out until it is restarted"
        return infos, hanging | absent | unfit | dict.fromkeys(starved - described.keys(), why)

    def await_workers(self, n: int) -> None:
        """Wait up to `RETURN_S` until n workers answer, without those left out for lack of memory; then for one, up to
        `timeout`.
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

    async def _find_answering(self) -> list[Member]:
        """Find the running workers, except those that are still silent and those left out for lack of memory."""
        running = [member for member, w in (await self._describe_workers()).items() if w["status"] == "running"]
        silent = await self._find_silent(running)
        return [member for member in running if member not in silent | self._starved]

    async def _find_silent(self, members: Sequence[Member]) -> set[Member]:
        """Find the members that did not answer before, and still do not."""
        known = [member for member in members if member in self._silent]
        self._silent -= (await self._ask_each(known, {"op": "identity"}, BACK_S)).keys()
        return self._silent.intersection(known)

    async def _list_workers(self) -> dict[Member, dict[str, Any]]:
        """List the running workers, in the order of their names."""
        with suppress(TimeoutError):
            await self.client.wait_for_workers(1, timeout=self.timeout)
        workers = await self._describe_workers()
        running = {member: w for member, w in workers.items() if w["status"] == "running"}
        if not running:
            states = ", ".join(sorted({w["status"] for w in workers.values()}))
            why = f"{states}, after {self.timeout:g} s" if states else f"none started within {self.timeout:g} s"
            raise ClusterError(
                f"{self} has no running workers ({why}); start some, or increase timeout= if an adaptive cluster takes "
                "longer to start them",
                phase="join",
            )
        return dict(sorted(running.items(), key=lambda item: (str(type(item[0].name)), item[0].name)))

    async def _describe(self, member: Member, devices: bool) -> WorkerDescription | None:
        """Install an agent on a member, and return its description; None if it does not answer."""
        asked = self.client.run(describe_worker, devices, workers=[member.address], on_error="return")
        try:
            answer = (await asyncio.wait_for(asked, max(INSTALL_S, self.timeout))).get(member.address)
        except TimeoutError:
            self._silent.add(member)
            return None
        if not isinstance(answer, WorkerDescription):
            await self._check_members([member], "join")
            raise ClusterError(f"worker {member}: {answer}", worker=str(member.name), phase="join") from answer
        return answer

    # --- tasks

    def submit(self, member: Member, key: str, function: Callable[..., Any], *args: Any) -> Future:
        """Start a task on one worker only, without retries. The worker watches the task; the waiting client must watch
        the worker.

        The worker is given by address: one restarted under the same name has lost the data that tasks need, and integer
        names, as in `LocalCluster`, are rejected by the scheduler while there is no such worker.
        """
        with enter_span():
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

    def settle(
        self,
        futures: Sequence[Future],
        members: Sequence[Member],
        phase: str,
        on_done: Callable[[int], None] = ignore,
        ranks: Sequence[int] | None = None,
    ) -> list[Any]:
        """Wait for the results of tasks: one on each member, or on the members of `ranks`.

        Parameters
        ----------
        members : workers to watch
        on_done : called with each number of tasks that are done, from 1
        ranks : ranks of the members that have the tasks

        Raises
        ------
        WorkerLostError, WorkerTimeoutError : a member left the cluster, or does not answer
        MgspmvError : raised by a task
        KeyboardInterrupt : the run was cancelled
        Exception : raised by a callback
        """
        self.check_client()
        tasks = list(zip(range(len(members)) if ranks is None else ranks, futures, strict=True))
        work = self._watch(self._gather(tasks, members, phase), members, phase)
        n_done = 0
        settling = asyncio.run_coroutine_threadsafe(work, self.client.loop.asyncio_loop)
        try:
            while not settling.done():
                check_cancelled()
                wait([settling], TICK_S)
                while n_done < sum(future.status == "finished" for future in futures):
                    n_done += 1
                    on_done(n_done)
            return settling.result()
        except CommClosedError as error:
            raise self._lost(error) from error
        finally:
            settling.cancel()  # no effect if it is done
            del settling  # it holds the error, whose traceback holds this frame

    async def _gather(self, tasks: Sequence[tuple[int, Future]], members: Sequence[Member], phase: str) -> list[Any]:
        futures = [future for _, future in tasks]
        loop, done = asyncio.get_running_loop(), asyncio.Queue[Future]()
        for future in futures:  # Dask's `as_completed` can miss simultaneous ones
            future.add_done_callback(lambda own: loop.call_soon_threadsafe(done.put_nowait, own))
        for _ in tasks:
            if (await done.get()).status != "finished":
                raise await self._find_cause(tasks, members, phase)
        results: list[Any] = await self.client.gather(futures, errors="skip")
        if len(results) < len(tasks):  # the worker that had or reported them was just lost
            raise await self._find_cause(tasks, members, phase)
        return results

    async def _find_cause(
        self, tasks: Sequence[tuple[int, Future]], members: Sequence[Member], phase: str
    ) -> BaseException:
        """Return the error that made tasks fail: when one fails, the others lose their connection to it and fail."""
        await asyncio.sleep(GRACE_S)
        await self._check_members(members, phase)
        failures = [(rank, task) for rank, task in tasks if task.status == "error"]
        if not failures:
            return ClusterError(f"the tasks were cancelled (during {phase}); was the cluster restarted?", phase=phase)
        causes = [_translate_error(await task.exception(), members, rank, phase) for rank, task in failures]
        cause = min(causes, key=_rank_cause)
        if isinstance(cause, WorkerMemoryError) and cause.rank is not None:
            self._starved.add(members[cause.rank])
        return cause

    def release(self, futures: Iterable[Future]) -> None:
        """Release tasks that failed, or whose results are no longer needed.

        Otherwise they are kept forever: Dask keeps the error of a task, the error its frames, and these the futures.
        `Client.cancel` must not be used: for a key without a dependent, such as one of a graph that arrived too late,
        it breaks the client's connection, and with it all tasks and data of the user on the cluster.
        """
        for future in futures:
            future.release()

    def await_done(self, futures: Sequence[Future]) -> None:
        """Wait until these finished, failed or were cancelled, for `timeout` seconds at most."""
        with suppress(TimeoutError, CancelledError), self.client.as_current():
            distributed.wait([*futures], self.timeout)

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
                await cancel_all(sending)
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

        def release(done: asyncio.Future[dict[str, Future]]) -> None:
            if not done.cancelled() and done.exception() is None:
                self.release(done.result().values())

        try:
            sent: dict[str, Future] = await asyncio.shield(sending)
        except asyncio.CancelledError:
            sending.add_done_callback(release)
            raise
        except TimeoutError as error:
            why = f"{error}; Dask pauses workers that run out of memory"
            raise worker_error(WorkerTimeoutError, members, rank, phase, "did not accept data", why) from error
        return sent[key]

    def free(self, keys: Sequence[str], members: Iterable[Member]) -> None:
        """Free the objects of the keys at once on members that answer, without waiting for others."""
        if not self._is_silent:
            self.ask_reachable(members, {"op": FREE_OP, "keys": keys}, min(FREE_S, self.timeout))

    def abort(self, run: str, members: Iterable[Member], reason: str) -> None:
        """Abort a run, and wait for its tasks on members that answer."""
        message = {"op": ABORT_OP, "run": run, "reason": reason, "wait_s": self.timeout / 2}
        self.ask_reachable(members, message, self.timeout)

    def lease(self, on_wait: Callable[[], None]) -> AbstractContextManager[None]:
        """Hold the exclusive lease to load or iterate on this cluster; `on_wait` is called while another run has it."""
        self.check_client()
        return hold_lease(self.client, self.timeout, on_wait)


def _translate_error(error: BaseException, members: Sequence[Member], rank: int, phase: str) -> BaseException:
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
    """Describe the workers whose versions differ from those of this process, one text per package.

    Parameters
    ----------
    found : versions by package, with Python's, as returned by the workers' op `versions`
    """
    expected = get_versions(packages=[*CHECKED])["packages"]
    return [
        f"worker {member} has {name} {packages.get(name) or 'not installed'}, not {expected[name]}"
        for member, packages in found.items()
        for name in ("python", *CHECKED)
        if packages.get(name) != expected[name]
    ]


def _describe_hang(hangs: Sequence[Hang]) -> str:
    """Format the first hang that an agent reported, to follow the name of its worker."""
    [(phase, what, *_), *_] = hangs
    return f"{what} (during {phase or 'a task'}) and is left out until it resumes or is restarted"


def _find_memory(workers: dict[Member, dict[str, Any]], member: Member, free_on_host: int) -> int:
    """Return the bytes that a worker may still allocate, by its memory limit and its part of its host's free memory."""
    worker = workers[member]
    free: int = free_on_host // sum(w["host"] == worker["host"] for w in workers.values())
    limit = worker["memory_limit"]
    return min(free, max(0, int(limit - worker["metrics"]["memory"]))) if limit else free


def _rank_cause(error: BaseException) -> int:
    """Return a sort key that is low for an error likely to have caused the others."""
    if not isinstance(error, ClusterError):
        return 0
    order = {WorkerMemoryError: 0, WorkerTimeoutError: 1, ClusterError: 2, WorkerLostError: 3, RunAbortedError: 4}
    return order.get(type(error), 2)
