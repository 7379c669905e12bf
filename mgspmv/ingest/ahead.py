"""Work of other threads whose results come in order."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from threading import Thread
from types import TracebackType
from typing import Any, Generic, TypeVar

from mgspmv.marks import mark

AHEAD = 2
"""Tasks under way for each thread that make up for the times between two that are read."""
PATIENCE_S = 1.0
"""How long a thread is waited for that may never come back."""

T = TypeVar("T")
R = TypeVar("R")


class Readers:
    """Threads that read from what may keep them waiting for ever, such as a pipe or a server.

    Differs from ThreadPoolExecutor in that neither the end of the context nor that of the program waits for them, so
    that Ctrl-C ends a program whatever its source does.

    Parameters
    ----------
    n : how many
    name : of each, before its number
    """

    def __init__(self, n: int, name: str) -> None:
        self._work: SimpleQueue[tuple[Future[Any], Callable[..., Any], Any] | None] = SimpleQueue()
        self._threads = [Thread(target=self._run, name=f"{name}_{k}", daemon=True) for k in range(n)]
        for thread in self._threads:
            thread.start()

    def submit(self, function: Callable[..., R], /, *args: Any) -> Future[R]:
        """Have a function called."""
        future: Future[R] = Future()
        self._work.put((future, function, args))
        return future

    def close(self) -> bool:
        """End the threads, once all was done that was not cancelled; tell whether they ended, or keep one waiting."""
        for _ in self._threads:
            self._work.put(None)
        until = time.monotonic() + PATIENCE_S
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def __enter__(self) -> Readers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self) -> None:
        while (task := self._work.get()) is not None:
            future, function, args = task
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(function(*args))
            except BaseException as error:  # whoever asks for the result gets it
                future.set_exception(error)
            del task, future, function, args  # nothing is kept while there is nothing to do


def map_ahead(
    pool: Readers | ThreadPoolExecutor, function: Callable[[T], R], items: Iterable[T], n_ahead: int
) -> Iterator[R]:
    """What a function makes of items, in their order, with so many of them under way; the others wait."""
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
    """The next result, once it is there."""
    result = ahead.popleft().result()
    mark()
    return result


class Ahead(Generic[T]):
    """An iterator over the items of another, so many of which a thread takes from it before they are asked for.

    Parameters
    ----------
    items : the other, which is nobody else's
    name : of the thread
    """

    def __init__(self, items: Iterator[T], n_ahead: int, name: str) -> None:
        self._items, self._n_ahead, self._name, self._end = items, n_ahead, name, object()
        self._reader: Readers | None = None
        self._taken: deque[Future[Any]] = deque()
        self._is_over = False

    def begin(self) -> None:
        """Have the first items taken, without waiting for them."""
        if self._reader is None and not self._is_over:
            self._reader = Readers(1, self._name)
            for _ in range(self._n_ahead):
                self._take(self._reader)

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        self.begin()
        if self._reader is None or self._is_over:
            raise StopIteration
        self._take(self._reader)
        try:
            item: T = _take(self._taken)
        except BaseException:
            self.close()
            raise
        if item is self._end:
            self.close()
            raise StopIteration
        return item

    def close(self) -> bool:
        """Take no more, and tell whether the other iterator is free, or still keeps the thread waiting."""
        self._is_over = True
        for future in self._taken:
            future.cancel()
        return self._reader is None or self._reader.close()

    def _take(self, reader: Readers) -> None:
        self._taken.append(reader.submit(next, self._items, self._end))
