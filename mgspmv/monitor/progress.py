"""Progress in the terminal: bars on stderr while something long runs, never a byte on stdout."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Protocol, Self

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

    from mgspmv.model import Event

RATE_WINDOW = 5
"""Iterations over which the rate of convergence is taken, so that one odd change does not upset the prediction."""

LEAST_RATED_S = 1.0
"""Seconds after which a phase has a rate."""

SILENT_S = 0.5
"""Seconds without a word after which another step is shown than the one before."""

SAID = {
    "join": "joining the workers",
    "queue": "waiting for another run",
    "start": "starting the run",
    "residual": "bounding the error",
}
"""How phases are called whose names say little to people."""


class Monitor(Protocol):
    """What shows the progress of ingesting and ranking; a context manager."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *exception: object) -> None: ...

    def phase(self, name: str, total: int | None = None) -> None:
        """Begin a phase of `total` units; None where that is not known. The phase before it is done."""
        ...

    def advance(self, n: int = 1) -> None:
        """`n` more units of the phase are done."""
        ...

    def on_progress(self, phase: str, done: int, total: int | None) -> None:
        """`done` of `total` units of `phase` are done; begins the phase when it is another one."""
        ...

    def on_event(self, event: Event) -> None:
        """An iteration is done."""
        ...


class NullProgress:
    """Shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def phase(self, name: str, total: int | None = None) -> None:
        pass

    def advance(self, n: int = 1) -> None:
        pass

    def on_progress(self, phase: str, done: int, total: int | None) -> None:
        pass

    def on_event(self, event: Event) -> None:
        pass


class Progress:
    """One line on the terminal for the phase that runs; it goes when the context ends.

    Parameters
    ----------
    console : where to; default stderr
    tol : the change at which the iteration stops, in the norm of its events; None where it stops after `max_iter`
    max_iter : most iterations; None where not known
    """

    def __init__(
        self, console: Console | None = None, *, tol: float | None = None, max_iter: int | None = None
    ) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bars

        self._begun_s = 0.0
        self._tol, self._max_iter = tol, max_iter
        self._changes: deque[float] = deque(maxlen=RATE_WINDOW)
        self._name: str | None = None
        self._task: TaskID | None = None
        self._bars = Bars(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[count]}", markup=False),
            TimeElapsedColumn(),
            console=console or Console(stderr=True),
            transient=True,
        )

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bars.stop()

    def phase(self, name: str, total: int | None = None) -> None:
        """Begin a phase of `total` units; None where that is not known. The phase before it is done."""
        self._name, self._begun_s = name, time.monotonic()
        description, count = SAID.get(name, name), _count(0, total)
        if self._task is None:
            self._task = self._bars.add_task(description, total=total, count=count)
            return
        self._bars.tasks[0].total = total
        # The line is used again: that of a second task would show before this one is removed, or after.
        self._bars.reset(self._task, description=description, count=count)

    def advance(self, n: int = 1) -> None:
        """`n` more units of the phase are done."""
        if self._task is not None:
            task = self._bars.tasks[0]
            self._show(int(task.completed) + n, task.total, task.description)

    def on_progress(self, phase: str, done: int, total: int | None) -> None:
        """`done` of `total` units of `phase` are done; begins the phase when it is another one."""
        if phase != self._name:
            self.phase(phase, total)
        self._show(done, total, SAID.get(phase, phase))

    def _show(self, done: int, total: float | None, description: str) -> None:
        assert self._task is not None
        self._bars.tasks[0].total = total  # an update to None is taken for none
        count = _count(done, total)
        if self._name != "iterate":
            count += describe_rate(done, total, time.monotonic() - self._begun_s)
        self._bars.update(self._task, completed=done, description=description, count=count)

    def on_event(self, event: Event) -> None:
        """Show the iteration, its change and how many more the rate of convergence predicts."""
        self._changes.append(event.change)
        left = None if self._tol is None else predict_iterations_left(list(self._changes), self._tol)
        total = self._max_iter if left is None else event.iteration + left
        if self._max_iter is not None and total is not None:
            total = min(total, self._max_iter)
        if self._name != "iterate":
            self.phase("iterate", total)
        self._show(event.iteration, total, _describe_iteration(event, left))


class Foremost:
    """Shows one of several steps that report at a time, by the part of a phase's name before the colon.

    Another one is shown when this has been silent for `SILENT_S`. May be called by several threads.
    """

    def __init__(self, monitor: Monitor) -> None:
        self._monitor, self._lock = monitor, threading.Lock()
        self._shown, self._at = "", -math.inf

    def on_progress(self, phase: str, done: int, total: int | None) -> None:
        """`done` of `total` units of `phase` are done."""
        step, now = phase.partition(":")[0], time.monotonic()
        with self._lock:
            if step != self._shown and now - self._at < SILENT_S:
                return
            self._shown, self._at = step, now
            self._monitor.on_progress(phase, done, total)


def open_progress(*, tol: float | None = None, max_iter: int | None = None) -> Monitor:
    """Progress on stderr where that is a terminal, else one that shows nothing."""
    return Progress(tol=tol, max_iter=max_iter) if sys.stderr.isatty() else NullProgress()


def predict_iterations_left(changes: list[float], tol: float) -> int | None:
    """How many more iterations bring the change below `tol`, when it goes on shrinking as in `changes`.

    With the rate r = (last / first)^(1 / steps) of `changes` it is the least k with last r^k < tol.

    Returns
    -------
    0 when the last change is below `tol`; None when no rate is known or the change does not shrink.
    """
    last = changes[-1]
    if last < tol:
        return 0
    first, steps = changes[0], len(changes) - 1
    if steps == 0 or tol <= 0 or not (math.isfinite(first) and last < first):
        return None
    rate = math.log(last / first) / steps
    return math.floor(math.log(tol / last) / rate) + 1


def describe_rate(done: int, total: float | None, elapsed_s: float) -> str:
    """How many a second, and how long it takes until all are done; nothing of what took less than `LEAST_RATED_S`."""
    if not done or elapsed_s < LEAST_RATED_S:
        return ""
    rate = done / elapsed_s
    scale, unit = next((s, u) for s, u in ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, "")) if rate >= s or s == 1.0)
    left = "" if total is None or done >= total else f", {format_time((total - done) / rate)} left"
    return f"  {rate / scale:.3g}{unit}/s{left}"


def format_time(seconds: float) -> str:
    """Minutes and seconds, with hours before them where there are any."""
    minutes, own = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{own:02}" if hours else f"{minutes}:{own:02}"


def _count(done: int, total: float | None) -> str:
    """How many of how many; nothing where neither is known."""
    if total is None:
        return f"{done:,}/?" if done else ""
    return f"{done:,}/{int(total):,}"


def _describe_iteration(event: Event, left: int | None) -> str:
    prediction = "" if left is None else f", about {left} to go"
    return f"iterate  change {event.change:.2e}{prediction}"
