"""Exclusive lease of a cluster, held by its scheduler: one run at a time has it, and the next one waits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from distributed import Client, Semaphore

from mgspmv.cluster.cancellation import check_cancelled
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
