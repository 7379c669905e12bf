"""Cancelling a run from another process.

The cancelling process logs an event on the scheduler, which sends it to the client of the run. There the wait for the
workers raises KeyboardInterrupt in the thread of the run, as Ctrl-C does.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from weakref import WeakSet

from distributed import Client

TOPIC = "mgspmv-cancel"
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
        client.subscribe_topic(TOPIC, _hear)
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
    """Raise once after the run of this thread was cancelled.

    Raises
    ------
    KeyboardInterrupt : it was cancelled
    """
    cancelled = _CURRENT.get()
    if cancelled is not None and cancelled.is_set():
        cancelled.clear()  # cleanup after the run may wait too
        raise KeyboardInterrupt
