"""Agent on each worker, which holds row blocks of matrices and the state of runs, and the tasks that run there.

Each object belongs to the key of the task that made it. When Dask releases the key, because the client closed the
matrix or disconnected, the agent frees the object.

A watchdog, called by the worker's event loop, finds tasks that hang while the loop still answers. A task shows progress
by heartbeats; see `mgspmv.heartbeat`. One without a heartbeat for longer than its limit counts as hanging: clients that
wait for it get an error, and the stacks of all threads of the process are logged. The thread of the task cannot be
ended: while it hangs, runs leave the worker out. If it resumes, the worker is used again.

Limit of a task in seconds without a heartbeat, never less than a worker may be silent:

    in iterations     `SLOWEST` times the slowest iteration of the run so far
    otherwise         `BEGIN_S` plus the time of its products at `SLOW_PER_S`; each piece read or written is a heartbeat

A task that waits for other workers may do so `WAITS` times as long: by then those that work, and hang, were found.
Time in which the process was stopped, or was not scheduled, does not count.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import dask
from distributed import Worker, WorkerPlugin, get_worker
from distributed.core import Status as ServerStatus
from distributed.protocol import to_serialize
from distributed.protocol.pickle import loads
from tornado.ioloop import PeriodicCallback

from mgspmv.cluster.row_block import DeviceRowBlock, RowBlock, RowBlockSpec
from mgspmv.cluster.security import HOSTS, guard
from mgspmv.cluster.worker_metrics import METRICS
from mgspmv.cluster.worker_rows import RowsAddress
from mgspmv.cluster.worker_run import Report, TaskSpec, WorkerRun
from mgspmv.errors import ClosedError, StoreError, add_to_message, is_operators, translating
from mgspmv.exchange.nccl import await_ends, find_nccl_problem, find_stuck, let_go
from mgspmv.exchange.peer_comm import LINK_OP
from mgspmv.heartbeat import Heartbeat, find_heartbeat, make_heartbeat
from mgspmv.kernels.catalogue import Backend
from mgspmv.kernels.device import (
    describe_device,
    device_id,
    find_device_problem,
    free_device_memory,
    release_device_memory,
)
from mgspmv.logs import WORKERS
from mgspmv.model import free_memory
from mgspmv.store.stored_matrix import StoredMatrix

NAME = "mgspmv"
"""Name of the plugin on each worker."""
END_S = 2.0
"""Seconds to wait for the device memory of earlier runs to be freed before free memory is measured."""
FREE_OP, ABORT_OP = "mgspmv_free", "mgspmv_abort"
"""Operations that a client requests from an agent, through the scheduler."""
HANGS = "mgspmv_hangs"
"""Metric in the heartbeats of a worker to the scheduler: its hanging tasks, see `WatchedTask.describe`."""
ASK_OP = "mgspmv_ask"
"""Operation that another worker requests from an agent."""
LOOK_S = 0.5
"""Seconds between two checks of the tasks."""
SLOWEST = 20.0
"""Maximum ratio of the time of an iteration to that of the slowest one so far. Other processes on the machine, and a
hot processor, slow it down by less."""
BEGIN_S = 300.0
"""Seconds without a heartbeat outside iterations: a compiler without a cache on a busy machine takes up to a minute per
kernel, and a piece of 16 MiB takes this long at 60 kB/s."""
SLOW_PER_S = 1e7
"""Multiplications per second of the slowest worker: a hundredth of the rate of one thread."""
WAITS = 2.0
"""Ratio of the limits of a task that waits for other workers and of one that works."""
Hang = tuple[str, str, str, int | None]
"""Phase of a hanging task; `what` and `why` for `mgspmv.exchange.peer_comm.worker_error`; and the rank of the worker
that they are about, if it is another one, which keeps this one waiting."""

_DASK_LOG = logging.getLogger("distributed.worker.mgspmv")
"""Logger whose records appear in Dask's log of a worker."""


@dataclass(eq=False)
class WatchedTask:
    """A task that is watched."""

    heartbeat: Heartbeat
    patience: float
    n_seen: int = 0
    idle_s: float = 0.0
    """Seconds without a heartbeat, at the last check or at the one that found the hang."""
    hangs: bool = False

    @property
    def limit_s(self) -> float:
        """Maximum seconds between two heartbeats."""
        heartbeat = self.heartbeat
        slowest_s = heartbeat.slowest_s
        own_s = BEGIN_S + heartbeat.n_terms / SLOW_PER_S if slowest_s is None else SLOWEST * slowest_s
        return max(self.patience, own_s) * (WAITS if heartbeat.waits else 1.0)

    def look(self, elapsed_s: float) -> bool:
        """Return True if the task newly counts as hanging, `elapsed_s` seconds after the last check."""
        if (n := self.heartbeat.n) != self.n_seen:
            self.n_seen, self.idle_s, self.hangs = n, 0.0, False
        elif not self.hangs:
            self.idle_s += elapsed_s
            self.hangs = self.idle_s > self.limit_s
            return self.hangs
        return False

    def describe(self) -> Hang:
        """Describe the hang of this task."""
        heartbeat = self.heartbeat
        if not heartbeat.waits:
            what = f"made no progress for {self.idle_s:.3g} s"
            return heartbeat.phase, what, "its log has the stacks of its threads", None
        if heartbeat.awaited is None:
            what = f"waited {self.idle_s:.3g} s for other workers, and none made progress"
            return heartbeat.phase, what, "the log of each has the stacks of its threads", None
        what = f"was silent for {self.idle_s:.3g} s"
        return heartbeat.phase, what, "it hangs, or other tasks occupy its threads", heartbeat.awaited


class Watchdog:
    """Watchdog of the tasks of a worker."""

    def __init__(self, worker: Worker) -> None:
        self._worker, self._tasks = worker, set[WatchedTask]()
        self._looked_s = time.monotonic()

    @contextmanager
    def watch(self, patience: float) -> Iterator[None]:
        """Watch the work of this thread within the context.

        Parameters
        ----------
        patience : seconds that a worker may be silent
        """
        with make_heartbeat() as heartbeat:
            task = WatchedTask(heartbeat, patience)
            self._tasks.add(task)
            try:
                yield
            finally:
                self._tasks.remove(task)

    def list_hangs(self) -> list[WatchedTask]:
        """Return the tasks that hang now."""
        return [task for task in [*self._tasks] if task.hangs]

    def look(self) -> None:
        """Find the tasks that hang, and log them, with the stacks of all threads."""
        now_s = time.monotonic()
        # A longer pause means that the process was stopped.
        elapsed_s, self._looked_s = min(now_s - self._looked_s, 2 * LOOK_S), now_s
        for task in [*self._tasks]:
            if task.look(elapsed_s):
                (phase, what, _, awaited), name, stacks = task.describe(), self._worker.name, describe_threads()
                about = f"worker {name}" if awaited is None else f"worker {name} waits for rank {awaited}, which"
                WORKERS.error("%s %s", about, what, extra={"worker": name, "phase": phase, "stacks": stacks})
                _DASK_LOG.error("%s %s (during %s)\n%s", about, what, phase or "a task", stacks)


def describe_threads() -> str:
    """Return the stacks of all threads of this process as text."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sys._current_frames().items()
    return "\n".join(f"thread {names.get(k, k)}:\n{''.join(traceback.format_stack(frame))}" for k, frame in frames)


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
    nccl_problem: str | None = None
    """Problem that prevents connections by NCCL; None if there is none."""


NOT_ASKED = DeviceInfo("it was not asked")


@dataclass(frozen=True)
class FreeMemory:
    """Bytes that a worker may still allocate for a run with a block."""

    host: int
    """On the host, which other workers may share."""
    device: int | None
    """On its device, which other workers may share; None if it computes on the host."""
    block_bytes: int
    """Bytes of the block that it already holds."""


@dataclass(frozen=True)
class WorkerDescription:
    """Answer of an agent to a client that joins."""

    hangs: Sequence[Hang]
    """Tasks that hang; the other fields are set only if there are none."""
    free_memory: int = 0
    """Bytes of host memory."""
    device: DeviceInfo = NOT_ASKED
    parts: frozenset[str] = frozenset()
    """Keys of the objects that it holds."""


class Agent(WorkerPlugin):  # type: ignore[misc]  # Dask has no types
    """Agent that holds the row blocks and runs of a worker, and answers clients and other workers.

    Attributes
    ----------
    held : row blocks, runs and shards of ingests, by the key of the task that made them; each until its key is released
    """

    name = NAME

    def setup(self, worker: Worker) -> None:
        if hosts := dask.config.get(HOSTS, None):
            guard(worker.http_application, hosts)
        self._worker = worker
        self.held: dict[str, Any] = {}
        self._ending: WeakValueDictionary[str, WorkerRun] = WeakValueDictionary()  # running tasks hold their runs
        self.watchdog = Watchdog(worker)
        watching = PeriodicCallback(self.watchdog.look, 1000 * LOOK_S)
        worker.periodic_callbacks[NAME] = watching  # Dask stops it when the worker closes
        watching.start()
        worker.metrics[HANGS] = lambda _: self.list_hangs()
        METRICS.holders.add(self)
        worker.handlers.update(
            {FREE_OP: self.free, ABORT_OP: self.abort, LINK_OP: self.accept_link, ASK_OP: self.answer}
        )

    def teardown(self, worker: Worker) -> None:
        METRICS.holders.discard(self)
        for held in [*self.held.values()]:
            held.close("the worker closed")
        self.held.clear()

    def transition(self, key: Any, start: str, finish: str, **kwargs: Any) -> None:
        """Free the objects of a task when its result is released; count failed tasks."""
        if finish in ("released", "forgotten"):
            self.let_go(key)
        if finish == "error" and str(key).startswith("mgspmv-"):
            error = self._worker.state.tasks[key].exception
            if error is not None:  # Dask keeps no error of a task whose key was released before it failed
                METRICS.count_failure(type(loads(error.data)).__name__)

    # --- for the tasks

    def get(self, key: str) -> Any:
        """Return the row block, run or shard of a key, for a task that may use all of its entries between two marks.

        Raises
        ------
        ClosedError : it is not held, or no longer
        """
        if key not in self.held:
            raise ClosedError(
                f"worker {self._worker.name} does not hold the data of this task: the matrix was closed, the run "
                "ended, or the worker was restarted; distribute the matrix, or ingest, again"
            )
        find_heartbeat().n_terms = self.held[key].n_terms
        return self.held[key]

    def measure_held(self) -> tuple[int, int]:
        """Return the bytes held for row blocks, and for the rows and vectors of runs."""
        held = [*self.held.values()]
        rows = sum(part.nbytes for part in held if isinstance(part, RowBlock))
        return rows, sum(run.held_bytes for run in held if isinstance(run, WorkerRun))

    # --- for clients and other workers

    async def free(self, keys: list[str]) -> None:
        """Free the objects of these keys at once."""
        for key in keys:
            self.let_go(key)

    async def abort(self, run: str, reason: str, wait_s: float) -> bool:
        """End a run: its tasks raise with the reason. Wait up to `wait_s` for them, unless they hang and are not just
        waiting for others; return whether all ended."""
        held = [*self.held.items(), *self._ending.items()]
        own = {key: each for key, each in held if isinstance(each, WorkerRun) and each.run == run}
        for each in own.values():
            each.close(reason)
        deadline = time.monotonic() + wait_s
        while any(each.is_busy for each in own.values()):
            if time.monotonic() > deadline or self.list_hangs(waits=False):
                break
            await asyncio.sleep(0.01)
        for key in own:
            self.let_go(key)
        return not any(each.is_busy for each in own.values())

    async def answer(self, key: str, question: str, arguments: Sequence[Any]) -> dict[str, object]:
        """Answer a request of another worker's shard to the shard here; see `mgspmv.ingest.shard`."""
        try:
            given = await asyncio.to_thread(getattr(self.get(key), question), *arguments)
        except Exception as error:
            return {"raised": to_serialize(error)}
        return {"given": to_serialize(given)}

    async def accept_link(self, comm: Any, run: str, rank: int) -> Any:
        """Serve a connection from another worker of a run until it closes; close it if the run is unknown here."""
        for held in [*self.held.values()]:
            if getattr(held, "run", None) == run:
                await held.links.accept(comm, rank)
        comm.abort()
        return ServerStatus.dont_reply

    def list_hangs(self, *, waits: bool = True) -> list[Hang]:
        """Describe the hanging tasks of this worker; `waits` includes tasks that just wait for other workers."""
        hangs = [hang.describe() for hang in self.watchdog.list_hangs() if waits or not hang.heartbeat.waits]
        if (stuck := find_stuck()) is not None:
            hangs.append(("end", *stuck, None))
        return hangs

    def let_go(self, key: Any) -> None:
        """Free the object of a key, if it is held. Called on the event loop."""
        if key not in self.held:
            return
        held = [self.held.pop(key)]  # a list, which `let_go` can empty: another reference would keep the object alive
        held[0].close("the run ended" if isinstance(held[0], WorkerRun) else "the matrix was closed")
        if isinstance(held[0], WorkerRun):
            self._ending[key] = held[0]
        if isinstance(held[0], DeviceRowBlock):
            let_go(held, release_device_memory)


def find_device() -> DeviceInfo:
    """Describe the current device."""
    if (problem := find_device_problem()) is not None:
        return DeviceInfo(problem)
    await_ends(END_S)
    return DeviceInfo(None, describe_device(), device_id(), free_device_memory(), find_nccl_problem())


async def describe_worker(devices: bool, dask_worker: Worker) -> WorkerDescription:
    """Install an agent on a worker that has none. Describe free memory, device and held keys; only the hanging tasks if
    there are any. The first query of the device allocates some of its memory."""
    if NAME not in dask_worker.plugins:
        await dask_worker.plugin_add(plugin=Agent(), name=NAME, catch_errors=False)
    agent = dask_worker.plugins[NAME]
    if hangs := agent.list_hangs():
        return WorkerDescription(hangs)
    device = await asyncio.to_thread(find_device) if devices else DeviceInfo("backend='cpu' was requested")
    return WorkerDescription((), free_memory(), device, frozenset(agent.held))


def get_agent() -> Agent:
    """Return the agent of the worker on which this task runs."""
    worker = get_worker()
    if NAME not in worker.plugins:
        raise ClosedError(
            f"worker {worker.name} has no mgspmv agent: it was restarted at the same address; distribute the matrix, "
            "or ingest, again"
        )
    agent: Agent = worker.plugins[NAME]
    return agent


# --- tasks -----------------------------------------------------------------------------------------------------------
# Each is pinned to a worker; `key` is the key of the task that loaded the row block or began the run.


def do_watched(patience: float, function: Callable[..., Any], *args: Any) -> Any:
    """Call a function in a watched task; `patience` as in `Watchdog.watch`. The worker is added to errors of the
    operating system that an operator can fix."""
    with get_agent().watchdog.watch(patience):
        try:
            with translating():
                return function(*args)
        except StoreError as error:
            if not is_operators(error.__cause__):
                raise
            raise add_to_message(error, f"this is on worker {get_worker().name}") from error.__cause__


def load_row_block(key: str, spec: RowBlockSpec) -> int:
    """Read a row block and hold it; return its bytes. One on a device is read when it is first used."""
    find_heartbeat().n_terms = spec.plan.nnz
    agent, address = get_agent(), spec.address
    stored: StoredMatrix
    if isinstance(address, RowsAddress):
        stored = agent.get(address.keys[spec.rank]).take_rows(address)
    else:
        stored = address.open()
    part = (DeviceRowBlock if spec.backend == "cuda" else RowBlock)(spec, stored)
    agent.held[key] = part
    METRICS.has_device |= part.backend == "cuda"
    return part.nbytes


def measure_free(key: str, backend: Backend, block_key: str | None, dtype: str | None) -> FreeMemory:
    """Measure the memory that is free for a run.

    Parameters
    ----------
    block_key : key of the block, if the worker may already hold it; its values are of `dtype`
    """
    agent, worker = get_agent(), get_worker()
    block, limit = None if block_key is None else agent.held.get(block_key), worker.memory_manager.memory_limit
    host = free_memory()
    if limit is not None:
        host = min(host, max(0, limit - worker.monitor.get_process_memory()))
    device = None
    if backend == "cuda":
        await_ends(END_S)
        device = free_device_memory()
    return FreeMemory(host, device, 0 if block is None else block.count_bytes(dtype))


def begin_run(key: str, block_keys: Sequence[str], spec: TaskSpec[Any], piece: Any) -> int | str:
    """Make and hold the state of a run; return its hardware: number of threads, or name of the device.

    Parameters
    ----------
    block_keys : keys of its row blocks
    spec : description of the run, the same for all workers
    piece : inputs of this worker, as for `make_iteration`
    """
    from mgspmv.cluster.iterations import make_iteration  # imported here, as it loads all solvers

    agent, worker = get_agent(), get_worker()
    iteration = make_iteration(worker, [agent.get(block_key) for block_key in block_keys], spec, piece)
    agent.held[key] = WorkerRun(worker, spec, iteration)
    return iteration.computes


def begin_alone(
    key: str, block_keys: Sequence[str], spec: TaskSpec[Any], piece: bytes, most_s: float
) -> tuple[int | str, float, Report]:
    """Begin a run that needs nothing of other workers, and make its first superstep, of about `most_s` seconds; the run
    is freed at its end. Other parameters as for `begin_run`; `piece` is pickled, as Dask pickles the task with it.

    Returns
    -------
    The hardware as `begin_run` does, the seconds of the superstep, and its report.
    """
    computes, agent = begin_run(key, block_keys, spec, loads(piece)), get_agent()
    run: WorkerRun = agent.get(key)
    run.on_end = partial(get_worker().loop.add_callback, agent.let_go, key)
    run.start()
    began = time.perf_counter()
    report = run.superstep(None, most_s)
    return computes, time.perf_counter() - began, report


def call_held(key: str, method: str, *arguments: Any) -> Any:
    """Call a method of a row block, run or shard; it may take the results of other tasks."""
    return getattr(get_agent().get(key), method)(*arguments)
