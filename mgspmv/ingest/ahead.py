"""Work of several threads whose results come in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

AHEAD = 2
"""Tasks under way for each thread that make up for the times between two that are read."""

T = TypeVar("T")
R = TypeVar("R")


def map_ahead(pool: ThreadPoolExecutor, function: Callable[[T], R], items: Iterable[T], n_ahead: int) -> Iterator[R]:
    """What a function makes of items, in their order, with so many of them under way; the others wait."""
    ahead: deque[Future[R]] = deque()
    try:
        for item in items:
            ahead.append(pool.submit(function, item))
            if len(ahead) > n_ahead:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
    finally:
        for future in ahead:
            future.cancel()
