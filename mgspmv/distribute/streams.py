"""Streams of Dask's messages that stand still because a clock was put back.

Dask sends what is put into a stream some milliseconds later, and waits for that by the time of day: where the clock is
put back by an hour in between, for an hour. Connections for questions and answers do not wait, so that who asks can
also let the messages go.
"""

from __future__ import annotations

from distributed import Scheduler
from distributed.batched import BatchedSend


def wake(stream: BatchedSend) -> None:
    """Let messages go that wait."""
    if stream.buffer and stream.next_deadline is not None:
        stream.next_deadline = 0.0
        stream.waker.set()


async def wake_scheduler(dask_scheduler: Scheduler) -> None:
    """The same of all streams of a scheduler, on which this is called."""
    for stream in [*dask_scheduler.stream_comms.values(), *dask_scheduler.client_comms.values()]:
        wake(stream)
