"""Work of other threads whose results come in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from itertools import repeat
from typing import TypeVar

AHEAD = 2
"""Tasks under way for each thread that make up for the times between two that are read."""

T = TypeVar("T")
R = TypeVar("R")


def map_ahead(
    pool: ThreadPoolExecutor, function: Callable[[T], R], items: Iterable[T], n_ahead: int
) -> Generator[R, None, None]:
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


def iterate_ahead(items: Iterator[T], n_ahead: int, name: str) -> Generator[T, None, None]:
    """The items of an iterator, so many of which a thread of its own takes from it before they are asked for.

    Closed, it waits for the item that is under way; then the iterator is nobody's any more.

    Parameters
    ----------
    name : of the thread
    """
    end = object()
    with (
        ThreadPoolExecutor(1, name) as pool,
        closing(map_ahead(pool, lambda _: next(items, end), repeat(None), n_ahead)) as taken,
    ):
        for item in taken:
            if item is end:
                return
            yield item  # type: ignore[misc]  # no other object than an item
