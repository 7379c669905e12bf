"""Progress in the terminal: bars on stderr while something long runs, never a byte on stdout; in a notebook below the
cell."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Protocol, Self

from mgspmv.errors import escape_controls
from mgspmv.iterate.left import RATE_WINDOW, predict_iterations_left

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bars
    from rich.progress import Task, TaskID

    from mgspmv.model import Event

LEAST_RATED_S = 1.0
"""Seconds after which a phase has a rate."""

SAID = {
    "join": "joining the workers",
    "queue": "waiting for another run",
    "start": "starting the run",
    "residual": "bounding the error",
    "recover": "recovering",
}
"""How phases are called whose names say little to people."""

NOTES = {"checkpoint": "checkpoint of iteration", "resume": "goes on after iteration"}
"""What is said of the iterations, and is no phase."""


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


class Line:
    """A line of the display, for one thing at a time: what runs, how far it is, how fast, and how long it takes yet.

    Parameters
    ----------
    bars : the display
    tol : the change at which the iteration stops, in the norm of its events; None where that is not known
    max_iter : most iterations; None where not known
    before : what stands before the names of phases
    """

    def __init__(self, bars: Bars, tol: float | None = None, max_iter: int | None = None, before: str = "") -> None:
        self._bars, self.tol, self.max_iter, self._before = bars, tol, max_iter, before
        self._begun_s, self._n_before = 0.0, 0
        self._changes: deque[float] = deque(maxlen=RATE_WINDOW)
        self._name: str | None = None
        self._note = ""
        self._task: TaskID | None = None

    def phase(self, name: str, total: int | None = None) -> None:
        """Begin a phase of `total` units; None where that is not known. The phase before it is done."""
        self._name, self._begun_s, self._n_before = name, time.monotonic(), 0
        self._changes.clear()
        description, count = self._describe(name), _count(0, total)
        if self._task is None:
            self._task = self._bars.add_task(description, total=total, count=count)
            return
        self._find_task().total = total
        # The line is used again: that of a second task would show before this one is removed, or after.
        self._bars.reset(self._task, description=description, count=count)

    def advance(self, n: int = 1) -> None:
        """`n` more units of the phase are done."""
        if self._task is not None:
            task = self._find_task()
            self._show(int(task.completed) + n, task.total, task.description)

    def on_progress(self, phase: str, done: int, total: int | None) -> None:
        """`done` of `total` units of `phase` are done; begins the phase when it is another one."""
        if phase in NOTES:
            self._note = f", {NOTES[phase]} {done:,}" if done else ""
            return
        if phase != self._name:
            self.phase(phase, total)
        self._show(done, total, self._describe(phase))

    def on_event(self, event: Event) -> None:
        """Show the iteration, its change and how many more the rate of convergence predicts."""
        if self._name != "iterate":
            self.phase("iterate", self.max_iter)
            self._n_before = event.iteration  # the rate is that of those after the first, which is seen as it ends
        self._changes.append(event.change)
        left = None if self.tol is None else predict_iterations_left(list(self._changes), self.tol)
        total = self.max_iter if left is None else event.iteration + left
        if self.max_iter is not None and total is not None:
            total = min(total, self.max_iter)
        prediction = "" if left is None else f", about {left} to go"
        self._show(
            event.iteration, total, f"{self._describe('iterate')}  change {event.change:.2e}{prediction}{self._note}"
        )

    def remove(self) -> None:
        """Take the line off the display."""
        if self._task is not None:
            self._bars.remove_task(self._task)

    def _describe(self, phase: str) -> str:
        return self._before + SAID.get(phase, phase)

    def _find_task(self) -> Task:
        return next(task for task in self._bars.tasks if task.id == self._task)

    def _show(self, done: int, total: float | None, description: str) -> None:
        assert self._task is not None
        self._find_task().total = total  # an update to None is taken for none
        count = _count(done, total) + describe_rate(done, total, time.monotonic() - self._begun_s, self._n_before)
        self._bars.update(self._task, completed=done, description=description, count=count)


class Progress:
    """One line on the terminal for the phase that runs; it goes when the context ends.

    Parameters
    ----------
    console : where to; default stderr
    tol, max_iter : as of `Line`
    """

    def __init__(
        self, console: Console | None = None, *, tol: float | None = None, max_iter: int | None = None
    ) -> None:
        self._bars = _make_bars(console)
        line = Line(self._bars, tol, max_iter)
        self.phase, self.advance = line.phase, line.advance
        self.on_progress, self.on_event = line.on_progress, line.on_event

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bars.stop()


class StepsProgress:
    """A line for each step that runs and one for all of them; what is said of steps that fail stays above.

    May be called by several threads.

    Parameters
    ----------
    n_steps : that there are
    console : where to; default stderr
    """

    def __init__(self, n_steps: int, console: Console | None = None) -> None:
        self._bars, self._n_steps = _make_bars(console), n_steps
        self._lines: dict[str, Line] = {}
        self._all = self._bars.add_task("steps", total=n_steps, count=_count(0, n_steps))
        self._n_ended, self._lock = 0, threading.Lock()

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bars.stop()

    def on_progress(self, step: str, phase: str, done: int, total: int | None) -> None:
        """`done` of `total` units of a phase of `step` are done."""
        with self._lock:
            self._find_line(step).on_progress(phase, done, total)

    def on_event(self, step: str, event: Event, tol: float | None, max_iter: int | None) -> None:
        """An iteration of `step` is done, which stops at the change `tol`, or after `max_iter`; None: not known."""
        with self._lock:
            line = self._find_line(step)
            line.tol, line.max_iter = tol, max_iter
            line.on_event(event)

    def end(self, step: str, said: str = "") -> None:
        """`step` has ended; `said` stays."""
        with self._lock:
            if step in self._lines:
                self._lines.pop(step).remove()
            self._n_ended += 1
            self._bars.update(self._all, completed=self._n_ended, count=_count(self._n_ended, self._n_steps))
            if said:
                self._bars.console.print(escape_controls(said), markup=False, highlight=False, soft_wrap=True)

    def _find_line(self, step: str) -> Line:
        if step not in self._lines:
            self._lines[step] = Line(self._bars, before=f"{step}: ")
        return self._lines[step]


def _make_bars(console: Console | None) -> Bars:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    description = TextColumn("{task.description}", markup=False)
    columns = (description, BarColumn(), TextColumn("{task.fields[count]}", markup=False), TimeElapsedColumn())
    if console is None and is_notebook():
        from mgspmv.monitor.notebook import NotebookBars

        return NotebookBars(*columns)
    return Progress(SpinnerColumn(), *columns, console=console or Console(stderr=True), transient=True)


def open_progress(*, tol: float | None = None, max_iter: int | None = None) -> Monitor:
    """Progress on stderr where that is a terminal, or below the cell of a notebook; else one that shows nothing."""
    return Progress(tol=tol, max_iter=max_iter) if is_watched() else NullProgress()


def is_watched() -> bool:
    """Whether there is somewhere to show progress."""
    return sys.stderr.isatty() or is_notebook()


def is_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


def describe_rate(done: int, total: float | None, elapsed_s: float, n_before: int = 0) -> str:
    """How many a second, and how long it takes until all are done; nothing of what took less than `LEAST_RATED_S`.

    Parameters
    ----------
    n_before : of `done`, those that were done before the time that is elapsed
    """
    if done <= n_before or elapsed_s < LEAST_RATED_S:
        return ""
    rate = (done - n_before) / elapsed_s
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
