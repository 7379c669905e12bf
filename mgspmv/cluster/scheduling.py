"""Requests of runs to the Dask scheduler, in addition to their tasks.

lease     exclusive, held by the scheduler: one run at a time has it, and the next one waits
cancel    another process logs an event on the scheduler, which sends it to the client of the run: its wait for the
          workers raises KeyboardInterrupt, as Ctrl-C does
span      one for all tasks of mgspmv, in which Dask shows them on its dashboard and in performance reports. A
          scheduler keeps spans for as long as it lives, and makes a new one for each task outside of any, so that
          the id is derived from names
worker    a task that makes an adaptive cluster without workers start one, and keep it: such a cluster ends workers
          without tasks, even if they hold row blocks, which are not results of tasks
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any
from weakref import WeakSet

import dask
from distributed import Client, Future, Semaphore, get_worker, secede

from mgspmv.errors import SchedulerNotFoundError

NAME = "mgspmv-lease"
POLL_S = 1.0
"""Seconds of one request for the lease. An interrupt waits for the end of a request, which may have been granted."""
RELEASE_S = 5.0
"""Seconds for the scheduler to take the lease back."""

logger = logging.getLogger("mgspmv.runs")


@contextmanager
def hold_lease(client: Client, timeout: float, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the lease to load or iterate on a cluster. Dask ends the lease of a client that died, after 30 s.

    Parameters
    ----------
    timeout : seconds to wait for an answer of the scheduler
    on_wait : called when another client has the lease

    Raises
    ------
    SchedulerNotFoundError : the scheduler did not answer
    KeyboardInterrupt : the waiting run was cancelled
    """
    semaphore = Semaphore(max_leases=1, name=NAME, scheduler_rpc=client.scheduler, loop=client.loop)
    try:
        if not _request(semaphore, 0.0, timeout):
            logger.info("waiting for the end of another run on %s", client)
            on_wait()
            while not _request(semaphore, POLL_S, timeout):
                check_cancelled()
        try:
            yield
        finally:
            _give_back(semaphore, timeout)
    finally:
        semaphore.refresh_callback.stop()


def _request(semaphore: Semaphore, wait_s: float, timeout: float) -> bool:
    """Request the lease once, and return whether it was granted."""

    async def ask() -> bool:
        return bool(await semaphore.acquire(timeout=wait_s))

    answer = asyncio.run_coroutine_threadsafe(ask(), semaphore.loop.asyncio_loop)
    try:
        return answer.result(wait_s + timeout)
    except (OSError, TimeoutError) as error:
        raise SchedulerNotFoundError(f"the scheduler did not answer within {timeout:g} s", phase="queue") from error
    except BaseException:
        with suppress(Exception):
            if answer.result(wait_s + timeout):
                _give_back(semaphore, timeout)
        raise


def _give_back(semaphore: Semaphore, timeout: float) -> None:
    async def release() -> None:
        await semaphore.release()

    with suppress(TimeoutError):  # a scheduler that has stopped holds no lease
        asyncio.run_coroutine_threadsafe(release(), semaphore.loop.asyncio_loop).result(min(RELEASE_S, timeout))


# --- cancel ----------------------------------------------------------------------------------------------------------

CANCEL_TOPIC = "mgspmv-cancel"
"""Topic of Dask's events; the messages are run ids."""

_cancelled: dict[str, threading.Event] = {}
"""Cancel event of each run of this process, by run id."""
_subscribed: WeakSet[Any] = WeakSet()
"""Scheduler connections on which this process has subscribed to the topic."""
_CURRENT: ContextVar[threading.Event | None] = ContextVar("_CURRENT", default=None)
"""Cancel event of the run that this thread waits for."""


@contextmanager
def listen_for_cancel(client: Client, run: str) -> Iterator[None]:
    """Let other processes cancel the run that this thread makes within the context."""
    if client.scheduler_comm not in _subscribed:
        client.subscribe_topic(CANCEL_TOPIC, _hear)
        _subscribed.add(client.scheduler_comm)
    token = _CURRENT.set(_cancelled.setdefault(run, threading.Event()))
    try:
        yield
    finally:
        _CURRENT.reset(token)
        del _cancelled[run]


def _hear(event: tuple[float, str]) -> None:
    _, run = event
    if run in _cancelled:
        _cancelled[run].set()


def check_cancelled() -> None:
    """Raise once after the run of this thread was cancelled."""
    cancelled = _CURRENT.get()
    if cancelled is not None and cancelled.is_set():
        cancelled.clear()  # cleanup after the run may wait too
        raise KeyboardInterrupt


# --- span, and a first worker ----------------------------------------------------------------------------------------

TAG = "mgspmv"
"""Name of the span."""


@contextmanager
def enter_span() -> Iterator[None]:
    """Put tasks that are submitted into the span, nested in the open spans of the user."""
    span = dask.get_annotations().get("span") or {"name": (), "ids": ()}
    if TAG not in span["name"]:
        own = str(uuid.uuid5(uuid.NAMESPACE_OID, "/".join([*span["ids"][-1:], TAG])))
        span = {"name": (*span["name"], TAG), "ids": (*span["ids"], own)}
    with dask.annotate(span=span):
        yield


NEED_S = 0.2
"""Seconds between two checks whether the worker is still needed."""


def call_worker(client: Client) -> Future:
    """Submit a task that waits for a worker, and occupies it until the future is released."""
    key = f"mgspmv-call-{uuid.uuid4().hex}"
    with enter_span():
        return client.submit(stay, key, key=key, pure=False)


def stay(key: str) -> None:
    """Run on this worker until the task's key is released; its thread is given to other tasks meanwhile."""
    worker = get_worker()
    secede()
    while worker.status.name == "running" and (own := worker.state.tasks.get(key)) and own.state != "cancelled":
        time.sleep(NEED_S)
