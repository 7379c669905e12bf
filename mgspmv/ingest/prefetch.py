"""Work on other threads whose results are returned in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from mgspmv.heartbeat import beat

AHEAD = 2
"""Tasks queued per thread, to keep threads busy while the caller uses a result."""

T = TypeVar("T")
R = TypeVar("R")


def prefetch_map(pool: ThreadPoolExecutor, function: Callable[[T], R], items: Iterable[T], n_ahead: int) -> Iterator[R]:
    """Yield the results of a function for the items, in order, while up to `n_ahead` later calls are under way."""
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
