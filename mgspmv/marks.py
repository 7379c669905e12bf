"""Marks by which the thread of a task shows that it gets on, so that what is slow is told from what hangs.

What goes piece by piece (reading, writing, iterating) marks each of them; who watches the thread counts the seconds in
which there was none. Marking is an addition, whoever watches or not.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_MARKS: ContextVar[Marks | None] = ContextVar("_MARKS", default=None)
"""Of the task that this thread works for."""


class Marks:
    """What a task has to show.

    Attributes
    ----------
    n : marks so far
    phase : what is being done, for messages
    waits : whether it waits for other workers
    n_terms : products that it makes at most between two marks
    slowest_s : seconds of the slowest iteration of the run so far; None while there is none, and out of iterations
    """

    def __init__(self) -> None:
        self.n, self.phase, self.waits = 0, "", False
        self.n_terms = 0
        self.slowest_s: float | None = None
        self._began_s = time.monotonic()

    def mark(self) -> None:
        """Note that something was done."""
        self.n += 1

    def begin_steps(self, slowest_s: float | None) -> None:
        """Iterations come now, of a run whose slowest one so far took so long."""
        self.slowest_s, self._began_s = slowest_s, time.monotonic()

    def end_step(self) -> None:
        """Note that an iteration was made."""
        now = time.monotonic()
        self.slowest_s, self._began_s = max(self.slowest_s or 0.0, now - self._began_s), now
        self.n += 1


def find_marks() -> Marks:
    """Those of the task that this thread works for, or some that nobody watches."""
    return _MARKS.get() or Marks()


def mark() -> None:
    """Note that the task that this thread works for has done something."""
    if (marks := _MARKS.get()) is not None:
        marks.mark()


@contextmanager
def make_marks() -> Iterator[Marks]:
    """Marks of what is done in the context."""
    marks = Marks()
    token = _MARKS.set(marks)
    try:
        yield marks
    finally:
        _MARKS.reset(token)
