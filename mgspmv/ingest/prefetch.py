"""Work on other threads whose results are returned in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from queue import Empty, Queue
from threading import Thread
from typing import Any, TypeVar

from mgspmv.heartbeat import beat

AHEAD = 2
"""Tasks queued per thread, to keep threads busy while the caller uses a result."""
PATIENCE_S = 1.0
"""Seconds to wait for a thread that may be blocked forever."""

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


class Prefetcher(Iterator[T]):
    """Iterator that takes items of another iterator ahead of time, on a thread.

    The thread may be blocked forever, for example by a pipe or a server; then neither `close` nor the end of the
    program waits for it.

    Parameters
    ----------
    items : the other iterator, which nothing else uses
    n_ahead : largest number of items taken ahead
    name : name of the thread
    """

    def __init__(self, items: Iterable[T], n_ahead: int, name: str) -> None:
        self._items, self._is_over = items, False
        self._taken: Queue[tuple[Any, BaseException | None]] = Queue(n_ahead)
        self._thread = Thread(target=self._run, name=name, daemon=True)

    def __next__(self) -> T:
        if self._is_over:
            raise StopIteration
        if self._thread.ident is None:
            self._thread.start()
        item, error = self._taken.get()
        beat()
        if error is not None:
            self.close()
            raise error
        taken: T = item
        return taken

    def close(self) -> bool:
        """Stop taking items; return whether the other iterator is free, or False if it still blocks the thread."""
        self._is_over = True
        if self._thread.ident is None:
            return True
        with suppress(Empty):
            while True:
                self._taken.get_nowait()  # frees a slot for the item that the thread is about to put
        self._thread.join(PATIENCE_S)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            for item in self._items:
                self._taken.put((item, None))
                if self._is_over:
                    return
            error: BaseException = StopIteration()
        except BaseException as raised:  # raised again by `__next__`
            error = raised
        self._taken.put((None, error))
