"""Progress of the steps of a run, in a terminal or a notebook."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mgspmv.errors import escape_controls
from mgspmv.model import Event
from mgspmv.monitor.progress import Line, find_change, is_watched, make_bars, take_turn, tell_all
from mgspmv.pipeline.reading import Definition
from mgspmv.pipeline.steps import Step, list_steps
from mgspmv.report.record import StepOutcome

if TYPE_CHECKING:
    from rich.console import Console


class StepsProgress:
    """Display with a line for all steps of a pipeline and one for the current step; errors of steps stay above.

    Parameters
    ----------
    n_steps : number of steps
    console : as in `make_bars`
    """

    def __init__(self, n_steps: int, console: Console | None = None) -> None:
        self.bars = make_bars(console)
        self._steps, self._step = Line(self.bars), Line(self.bars)
        self._steps.phase("steps", n_steps)

    def on_progress(self, name: str, done: int, total: int | None) -> None:
        """Show `done` of `total` units of "step: phase"."""
        step, _, phase = name.partition(": ")
        if phase != "iterate":  # `on_event` shows these in more detail
            self._step.before = f"{step}: "
            self._step.on_progress(phase, done, total)

    def on_event(self, step: Step, event: Event) -> None:
        """Show an iteration of a step."""
        asked, line = step.section, self._step
        if step.kind == "pagerank":  # a batch shows the number of vectors that have ended
            line.tol, line.max_iter = find_change(asked.tol, asked.tol_mode, stop=asked.stop), asked.max_iter
            line.before = f"{step.name}: "
            line.on_event(event)

    def on_step(self, outcome: StepOutcome) -> None:
        """Show that a step has ended."""
        self._step.remove()
        self._step = Line(self.bars)
        self._steps.advance()
        if outcome.state == "failed":
            said = escape_controls(f"{outcome.name} failed: {outcome.error}")
            self.bars.console.print(said, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def watch_steps(
    definition: Definition, hearers: dict[str, Callable[..., Any] | None]
) -> Iterator[dict[str, Callable[..., None]]]:
    """Yield the callbacks of a run: those passed to it and, if `show_progress` requests it, those of the display."""
    with take_turn() as is_wanted:
        if not (is_wanted and is_watched()):
            yield {name: tell_all(hear) for name, hear in hearers.items()}
            return
        shown = StepsProgress(sum(map(len, list_steps(definition.pipeline, str(definition.folder)).values())))
        with shown.bars:
            yield {name: tell_all(getattr(shown, name), hear) for name, hear in hearers.items()}
