"""Progress of commands and of calls of the Python API: lines of Rich on stderr of a terminal, or below the cell of a
notebook; stdout is never written."""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from functools import wraps
from inspect import signature
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar

from mgspmv.display import format_scaled
from mgspmv.errors import OptionError, translating
from mgspmv.logs import log_call

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bars
    from rich.progress import Task

    from mgspmv.model import Event, Phase, Progress

P = ParamSpec("P")
R = TypeVar("R")
ProgressOption = Callable[["Phase | Event"], None] | bool | None
"""Argument of calls: a function that is called with each `Phase` and each `Event` of an iteration; True shows the
progress, False does not; None shows it within `show_progress`."""

LEAST_RATED_S = 1.0
"""Seconds after which the rate of a phase is shown."""
REFRESH_S = 0.2
"""Least seconds between two updates of the display in a notebook."""

SAID = {
    "join": "joining the workers",
    "queue": "waiting for another run",
    "start": "starting the run",
    "compile": "compiling kernels (first run only)",
    "residual": "bounding the error",
    "recover": "recovering",
}
"""Descriptions of phases whose names are too technical for users."""

NOTES = {"checkpoint": "checkpoint of iteration", "resume": "resumed after iteration"}
"""Texts for progress that reports an iteration, by its name; these are not phases."""

_TITLE: ContextVar[str | None] = ContextVar("_TITLE", default=None)
"""Text before the phases of calls; None if they are not shown."""


# --- lines -----------------------------------------------------------------------------------------------------------
RATE_WINDOW = 5
"""Iterations over which the rate of convergence is measured, so that one outlier does not distort the prediction."""


class ProgressLine:
    """Line for one phase at a time: its name, units done, rate and remaining time; removed when the context ends.

    Parameters
    ----------
    console : output; default stderr, or below the cell of a notebook
    tol : the change at which the iteration stops, in the norm of its events; None if unknown
    max_iter : maximum number of iterations; None if unknown
    is_shown : default: if a console is given, stderr is a terminal, or this is a notebook
    """

    def __init__(
        self,
        console: Console | None = None,
        *,
        tol: float | None = None,
        max_iter: int | None = None,
        is_shown: bool | None = None,
    ) -> None:
        if is_shown is None:
            is_shown = console is not None or can_show()
        self._bars, self._tol, self._max_iter = _make_bars(console, is_shown=is_shown), tol, max_iter
        self.title = ""
        """Text before each phase."""
        self._changes: deque[float] = deque(maxlen=RATE_WINDOW)
        self._name: str | None = None
        self._note = ""
        self._task: Task | None = None

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bars.stop()

    def phase(self, name: str, total: int | None = None) -> None:
        """Begin a phase of `total` units, None if unknown; the phase before it ends."""
        self._name = name
        self._changes.clear()
        description = self.title + SAID.get(name, name)
        if self._task is None:
            number = self._bars.add_task(description, total=total)
            self._task = next(task for task in self._bars.tasks if task.id == number)
            return
        # The line is reused: a second task would appear before this one is removed, or after.
        self._task.total = total
        self._bars.reset(self._task.id, description=description)

    def hear(self, news: Phase | Event) -> None:
        """Show a phase or an iteration."""
        from mgspmv.model import Event

        if isinstance(news, Event):
            self._show_iteration(news)
        elif news.name in NOTES:
            self._note = f", {NOTES[news.name]} {news.done:,}" if news.done else ""
        else:
            if news.name != self._name:
                self.phase(news.name, news.total)
            self._show(news.done, news.total)

    def _show_iteration(self, event: Event) -> None:
        """Show its change, and the further iterations predicted from the rate of convergence."""
        if self._name != "iterate":
            self.phase("iterate", self._max_iter)
        self._changes.append(event.change)
        left = None if self._tol is None else predict_iterations_left(list(self._changes), self._tol)
        total = self._max_iter if left is None else event.iteration + left
        if self._max_iter is not None and total is not None:
            total = min(total, self._max_iter)
        prediction = "" if left is None else f", about {left} to go"
        said = f"{self.title}iterate  change {event.change:.2e}{prediction}{self._note}"
        self._show(event.iteration, total, description=said)

    def _show(self, done: int, total: float | None, **changes: Any) -> None:
        assert self._task is not None
        self._task.total = total  # an update to None is ignored
        self._bars.update(self._task.id, completed=done, **changes)


def _make_bars(console: Console | None, *, is_shown: bool) -> Bars:
    """Return the display of lines, on `console`; default stderr, or below the cell of a notebook."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.text import Text

    class CountColumn(ProgressColumn):
        def render(self, task: Task) -> Text:
            """Show the units done and in all, the rate per second, and the remaining time."""
            done, total = int(task.completed), task.total
            count = f"{done:,}/{int(total):,}" if total is not None else f"{done:,}/?" if done else ""
            if task.speed is None or (task.elapsed or 0.0) < LEAST_RATED_S:
                return Text(count)
            left = ""
            if task.remaining and task.time_remaining:
                left = f", {timedelta(seconds=task.time_remaining)} left"
            return Text(f"{count}  {format_scaled(task.speed)}/s{left}")

    class NotebookBars(Progress):
        """Display of lines in a notebook, redrawn at each change; Rich's own one needs `ipywidgets`."""

        handle: Any = None
        drawn_s = 0.0

        def start(self) -> None:
            from IPython.display import HTML, display

            self.handle = display(HTML(""), display_id=True)  # type: ignore[no-untyped-call]

        def stop(self) -> None:
            from IPython.display import HTML

            self.handle.update(HTML(""))  # type: ignore[no-untyped-call]

        def update(self, *args: Any, **kwargs: Any) -> None:
            super().update(*args, **kwargs)
            self.refresh()

        def refresh(self) -> None:
            if self.handle is not None and time.monotonic() - self.drawn_s >= REFRESH_S:
                self.drawn_s = time.monotonic()
                self.handle.update(self.make_tasks_table(self.tasks))

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), CountColumn(), TimeElapsedColumn())
    if console is None and is_shown and is_notebook():
        return NotebookBars(*columns, auto_refresh=False)
    return Progress(
        SpinnerColumn(), *columns, console=console or Console(stderr=True), transient=True, disable=not is_shown
    )


def can_show() -> bool:
    """Return whether progress is visible: stderr is a terminal, or this process is the kernel of a notebook."""
    return sys.stderr.isatty() or is_notebook()


def is_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


# --- calls of the API ------------------------------------------------------------------------------------------------


@contextmanager
def show_progress() -> Iterator[None]:
    """Show the progress of each call within the context: phase, change, iterations left, rate and time left.

    In a terminal it is on stderr, in a notebook below the cell: one line for the current call, removed when it ends;
    in a pipeline it begins with the step. If stderr is not a terminal, nothing is shown. A function given as `progress`
    of a call is called as well; `progress=False` of a call shows nothing of it.

    Examples
    --------
    >>> import mgspmv as mg
    >>> with mg.show_progress():
    ...     web = mg.ingest(([0, 1, 2, 2], [1, 2, 0, 1]))
    ...     ranks = mg.pagerank(web)
    >>> len(ranks)
    3
    """
    with _set_title(""):
        yield


@contextmanager
def name_calls(title: str) -> Iterator[None]:
    """Show a title before the phases of calls within the context, if these are shown."""
    with _set_title(None if _TITLE.get() is None else title):
        yield


@contextmanager
def _set_title(title: str | None) -> Iterator[None]:
    before = _TITLE.set(title)
    try:
        yield
    finally:
        _TITLE.reset(before)


def watched(call: Callable[P, R], *, predicts: bool = False) -> Callable[P, R]:
    """Decorate a call that takes `progress` for `show_progress`; and log how it ends.

    Parameters
    ----------
    predicts : also show how many iterations are left, for a call that iterates one vector
    """
    takes = signature(call)

    @wraps(call)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        title, asked = _TITLE.get(), kwargs.get("progress")
        if not (asked is None or isinstance(asked, bool) or callable(asked)):
            raise OptionError(f"progress must be a function, True, False or None, not {asked!r}")
        is_shown = asked if isinstance(asked, bool) else title is not None
        with log_call(call.__name__), translating(), _set_title(None):  # nested calls get no line
            if not is_shown:
                return call(*args, **kwargs)
            given = takes.bind(*args, **kwargs)
            given.apply_defaults()
            known = given.arguments | given.arguments.get("running", {})
            from mgspmv.kernels.modules import watch_compiling
            from mgspmv.model import Phase

            line = ProgressLine(**_read_end(known) if predicts else {})
            line.title = title or ""
            # Kernels are compiled until the next phase or iteration.
            with line, watch_compiling(lambda: line.hear(Phase("compile", 0, None))):
                told: Any = {**kwargs, "progress": notify_all(line.hear, asked if callable(asked) else None)}
                return call(*args, **told)

    return run


def notify_all(*hearers: Callable[..., None] | None) -> Callable[..., None]:
    """Return a function that calls each of `hearers` that is not None."""

    def notify(*told: Any) -> None:
        for hear in hearers:
            if hear is not None:
                hear(*told)

    return notify


def make_report(progress: ProgressOption) -> Progress:
    """Return a function of (phase, done, total) that calls a given function with a `Phase`."""
    from mgspmv.model import Phase, ignore

    if not callable(progress):
        return ignore
    hear = progress
    return lambda phase, done, total: hear(Phase(phase, done, total))


def _read_end(known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the change at which an iteration stops, None if that is unknown, and its most iterations."""
    from mgspmv.solvers.options import DEFAULT_TOL
    from mgspmv.store.stored_matrix import MatrixProperties

    A = known.get("A")
    n = A.shape[0] if isinstance(A, MatrixProperties) else None
    norm, tol = known.get("norm", "l1"), known.get("tol")
    change: float | None = DEFAULT_TOL if tol is None else tol
    if norm == "fixed" or known.get("stop", "change") != "change":
        change = None
    elif change is not None and norm == "l1_per_node":
        change = None if n is None else change * n
    return {"tol": change, "max_iter": known.get("max_iter", 100)}


def predict_iterations_left(changes: list[float], tol: float, n_steps: int | None = None) -> int | None:
    """Predict how many more iterations bring the change below `tol`, at the rate of `changes`.

    With the rate r = (last / first)^(1 / n_steps) of `changes` it is the least k with last r^k < tol.

    Parameters
    ----------
    n_steps : iterations from the first change to the last; None if these are of consecutive iterations

    Returns
    -------
    0 when the last change is below `tol`; None when the rate is unknown or the change does not shrink.
    """
    last = changes[-1]
    if last < tol:
        return 0
    first, steps = changes[0], len(changes) - 1 if n_steps is None else n_steps
    if steps == 0 or tol <= 0 or not (math.isfinite(first) and last < first):
        return None
    rate = math.log(last / first) / steps
    return math.floor(math.log(tol / last) / rate) + 1
