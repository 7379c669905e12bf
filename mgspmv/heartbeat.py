"""Marks by which the thread of a task shows progress, so that a slow task can be told from a hanging one.

Work done piece by piece (reading, writing, iterating) makes a mark for each piece; the thread's watcher counts the
seconds without one. A mark costs one addition, with or without a watcher. `prefetch_map` makes one for each result of
work on other threads.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

AHEAD = 2
"""Calls of `prefetch_map` queued per thread, to keep threads busy while the caller uses a result."""
_HEARTBEAT: ContextVar[Heartbeat | None] = ContextVar("_HEARTBEAT", default=None)
"""Marks of the task that this thread works for."""


class Heartbeat:
    """Progress of a task.

    Attributes
    ----------
    n : marks so far
    phase : current operation, for messages
    waits : whether it waits for other workers
    awaited : rank of one of them; None if not known
    n_terms : most products computed between two marks
    slowest_s : seconds of the slowest iteration of the run so far; None before the first one, and outside of iterations
    """

    def __init__(self) -> None:
        self.n, self.phase, self.waits = 0, "", False
        self.awaited: int | None = None
        self.n_terms = 0
        self.slowest_s: float | None = None
        self._began_s = time.monotonic()

    def beat(self) -> None:
        """Add a mark."""
        self.n += 1

    def begin_steps(self, slowest_s: float | None) -> None:
        """Begin the iterations of a run whose slowest one so far took `slowest_s`."""
        self.slowest_s, self._began_s = slowest_s, time.monotonic()

    def end_step(self) -> None:
        """Add a mark for an iteration, and time it."""
        now = time.monotonic()
        self.slowest_s, self._began_s = max(self.slowest_s or 0.0, now - self._began_s), now
        self.n += 1


def find_heartbeat() -> Heartbeat:
    """Return the marks of the task of this thread, or new ones without a watcher."""
    return _HEARTBEAT.get() or Heartbeat()


def beat() -> None:
    """Add a mark to the task of this thread, if it has one."""
    if (heartbeat := _HEARTBEAT.get()) is not None:
        heartbeat.beat()


@contextmanager
def make_heartbeat() -> Iterator[Heartbeat]:
    """Yield new marks, which `beat` uses within the context."""
    heartbeat = Heartbeat()
    token = _HEARTBEAT.set(heartbeat)
    try:
        yield heartbeat
    finally:
        _HEARTBEAT.reset(token)


def prefetch_map(pool: ThreadPoolExecutor, function: Callable[[T], R], items: Iterable[T], n_ahead: int) -> Iterator[R]:
    """Yield the results of a function for the items, in order, and add a mark for each, while up to `n_ahead` later
    calls are under way."""
    ahead: deque[Future[R]] = deque()
    try:
        for item in items:
            ahead.append(pool.submit(function, item))
            if len(ahead) > n_ahead:
                yield _take(ahead)
        while ahead:
            yield _take(ahead)
    finally:
        for future in ahead:
            future.cancel()


def _take(ahead: deque[Future[R]]) -> R:
    """Wait for the next result and return it."""
    result = ahead.popleft().result()
    beat()
    return result
