"""Progress of a detached run: written by it every second, and shown by who looks at it later."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from mgspmv.detached import Progress, Stage, write
from mgspmv.errors import StoreError
from mgspmv.model import Event
from mgspmv.monitor.progress import NOTES, Monitor, StepsMonitor

BEAT_S = 1.0
"""From one writing to the next. Also when nothing happened: who is on another host sees by it that the run is alive."""

CONNECTING = ("connecting", "starting workers")
"""Phases after which the command may still turn out to be of no use."""


class Recording:
    """Writes how far a run is into its folder; a context manager, which a thread writes beside.

    What is told costs the run an assignment, however often it is.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._is_on = self._is_ending = False
        self._stages: dict[str, Stage] = {}
        self._n_steps: int | None = None
        self._n_ended = 0
        self._wake = threading.Event()
        self._writer = threading.Thread(target=self._write_on, name="mgspmv-progress", daemon=True)

    def __enter__(self) -> Self:
        self._write()
        self._writer.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if not self._is_ending:
            self._is_ending = True
            self.write_soon()
            self._writer.join()
            self._write()

    def take_over(self) -> None:
        """Tell that what was asked for is being done."""
        if not self._is_on:
            self._is_on = True
            self.write_soon()

    def set_stage(self, step: str, stage: Stage) -> None:
        """Tell how far a step is."""
        self._stages[step] = stage

    def write_soon(self) -> None:
        """Write what is told now, and not only when it is time for it."""
        self._wake.set()

    def open_line(self, tol: float | None, max_iter: int | None) -> RecordedLine:
        """What a single run tells; arguments as of `mgspmv.monitor.progress.Line`."""
        return RecordedLine(self, tol=tol, max_iter=max_iter)

    def open_steps(self, n_steps: int) -> RecordedSteps:
        """What so many steps of a pipeline tell."""
        self._n_steps = n_steps
        self.take_over()
        return RecordedSteps(self)

    def end_step(self, step: str) -> None:
        """A step has ended."""
        self._stages.pop(step, None)
        self._n_ended += 1

    def _write_on(self) -> None:
        while not self._is_ending:
            self._wake.wait(BEAT_S)
            self._wake.clear()
            self._write()

    def _write(self) -> None:
        told = Progress(time.time(), self._is_on, dict(self._stages), self._n_steps, self._n_ended)
        with suppress(StoreError):  # of a full disk, which the run may do without; the next one may be written
            write(self._folder, told)


class RecordedLine:
    """Records where a line of the display would show; a `Monitor`."""

    def __init__(
        self, recording: Recording, step: str = "", *, tol: float | None = None, max_iter: int | None = None
    ) -> None:
        self._recording, self._step = recording, step
        self._stage = Stage("start", tol=tol, max_iter=max_iter)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def phase(self, name: str, total: int | None = None) -> None:
        self._set(phase=name, done=0, total=total)
        if name not in CONNECTING:
            self._recording.take_over()

    def advance(self, n: int = 1) -> None:
        self._set(done=self._stage.done + n)

    def on_progress(self, phase: str, done: int, total: int | None) -> None:
        if phase in NOTES:
            self._set(kept=done)
            self._recording.write_soon()
        else:
            self._set(phase=phase, done=done, total=total)
        self._recording.take_over()

    def on_event(self, event: Event) -> None:
        change = event.change if math.isfinite(event.change) else None
        self._set(phase="iterate", iteration=event.iteration, change=change)
        self._recording.take_over()

    def expect(self, tol: float | None, max_iter: int | None) -> None:
        """Take when it ends."""
        self._set(tol=tol, max_iter=max_iter)

    def _set(self, **fields: Any) -> None:
        self._stage = replace(self._stage, **fields)
        self._recording.set_stage(self._step, self._stage)


class RecordedSteps:
    """Records where `StepsProgress` would show."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._lines: dict[str, RecordedLine] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def on_progress(self, step: str, phase: str, done: int, total: int | None) -> None:
        with self._lock:
            self._find_line(step).on_progress(phase, done, total)

    def on_event(self, step: str, event: Event, tol: float | None, max_iter: int | None) -> None:
        with self._lock:
            line = self._find_line(step)
            line.expect(tol, max_iter)
            line.on_event(event)

    def end(self, step: str, said: str = "") -> None:
        with self._lock:
            self._lines.pop(step, None)
            self._recording.end_step(step)

    def _find_line(self, step: str) -> RecordedLine:
        if step not in self._lines:
            self._lines[step] = RecordedLine(self._recording, step)
        return self._lines[step]


class Replay:
    """Shows what a run wrote of its progress, as if it were told here.

    Parameters
    ----------
    open_line, open_steps : as `mgspmv.monitor.progress.Progress` and `StepsProgress`; called once it is known which
    """

    def __init__(self, open_line: Callable[..., Monitor], open_steps: Callable[[int], StepsMonitor]) -> None:
        self._open_line, self._open_steps = open_line, open_steps
        self._line: Monitor | None = None
        self._steps: StepsMonitor | None = None
        self._shown: dict[str, Stage] = {}
        self._n_ended = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        for shown in (self._line, self._steps):
            if shown is not None:
                shown.__exit__(*exception)

    def show(self, progress: Progress) -> None:
        """Show what is new."""
        if progress.n_steps is not None:
            self._show_steps(progress.n_steps, progress)
        elif progress.stages.get("", self._shown.get("")) != self._shown.get(""):
            self._show_line(progress.stages[""])
        self._shown = progress.stages

    def _show_line(self, stage: Stage) -> None:
        if self._line is None:
            self._line = self._open_line(tol=stage.tol, max_iter=stage.max_iter).__enter__()
        if stage.kept:
            self._line.on_progress("checkpoint", stage.kept, None)
        if stage.phase == "iterate":
            self._line.on_event(_make_event(stage))
        else:
            self._line.on_progress(stage.phase, stage.done, stage.total)

    def _show_steps(self, n_steps: int, progress: Progress) -> None:
        if self._steps is None:
            self._steps = self._open_steps(n_steps).__enter__()
        for step, stage in progress.stages.items():
            if stage.phase == "iterate":
                self._steps.on_event(step, _make_event(stage), stage.tol, stage.max_iter)
            else:
                self._steps.on_progress(step, stage.phase, stage.done, stage.total)
        gone = [step for step in self._shown if step not in progress.stages]
        n_unseen = progress.n_ended - self._n_ended - len(gone)  # that began and ended between two looks
        for step in [*gone, *[""] * n_unseen]:
            self._steps.end(step)
        self._n_ended = progress.n_ended


def _make_event(stage: Stage) -> Event:
    change = math.nan if stage.change is None else stage.change
    return Event("", 0, stage.iteration, change, (), (), (), (), ())
