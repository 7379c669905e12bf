"""Progress of the steps of a run, in a terminal or a notebook."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from mgspmv.model import Event
from mgspmv.monitor.progress import StepsProgress, find_change, is_watched, take_turn, tell_all
from mgspmv.pipeline.reading import Definition
from mgspmv.pipeline.steps import Step, list_steps
from mgspmv.report.record import StepOutcome


@contextmanager
def watch_steps(
    definition: Definition, hearers: dict[str, Callable[..., Any] | None]
) -> Iterator[dict[str, Callable[..., None]]]:
    """Give what a run is to call: the hearers that it was given and, where `show_progress` asks for it, the display."""

    def on_progress(name: str, done: int, total: int | None) -> None:
        step, _, phase = name.partition(": ")
        if phase != "iterate":  # of which `on_event` tells more
            shown.on_step_progress(step, phase, done, total)

    def on_event(step: Step, event: Event) -> None:
        asked = step.section
        if step.kind == "pagerank":  # of batches the vectors that have ended are shown
            change = find_change(asked.tol, asked.tol_mode, stop=asked.stop)
            shown.on_step_event(step.name, event, change, asked.max_iter)

    def on_step(outcome: StepOutcome) -> None:
        shown.end(f"{outcome.name} failed: {outcome.error}" if outcome.state == "failed" else "")

    with take_turn() as is_wanted:
        if not (is_wanted and is_watched()):
            yield {name: tell_all(hear) for name, hear in hearers.items()}
            return
        lanes = list_steps(definition.pipeline, str(definition.folder))
        with StepsProgress(sum(map(len, lanes.values()))) as shown:
            display: dict[str, Any] = {"on_progress": on_progress, "on_event": on_event, "on_step": on_step}
            yield {name: tell_all(display[name], hear) for name, hear in hearers.items()}
