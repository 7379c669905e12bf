"""Progress of pipelines: a line for all steps, and one for the step that runs."""

from __future__ import annotations

import io
import re
from types import SimpleNamespace

from rich.console import Console

from mgspmv.model import Event
from mgspmv.pipeline.showing import StepsProgress
from mgspmv.pipeline.steps import Step
from mgspmv.report.record import StepOutcome


def test_steps_one_after_another():
    console = Console(file=io.StringIO(), force_terminal=True, width=120, color_system=None)
    steps = StepsProgress(3, console)
    with steps.bars:
        steps.on_progress("web: read", 3, 10)
        assert show(steps, console) == ["steps 0/3", "web: read 3/10"]
        steps.on_step(StepOutcome("web", "matrix", "made", 1.0, None))
        steps.on_progress("wiki: sort", 1, None)
        assert show(steps, console) == ["steps 1/3", "wiki: sort 1/?"]
        steps.on_step(StepOutcome("wiki", "matrix", "failed", 1.0, None, "line 3 of wiki.txt is not an edge"))
        asked = SimpleNamespace(tol=1e-3, tol_mode="l1", stop="change", max_iter=100)
        for k in (1, 2, 3):
            steps.on_progress("roads/run: iterate", k, 100)
            event = Event("run", 0, k, 0.5**k, (0.1,), (0.0,), (0.0,), (0,), (0,))
            steps.on_event(Step("roads/run", "pagerank", "roads", asked, "out"), event)
        iterating = "roads/run: iterate change 1.25e-01, about 7 to go 3/10"
        assert show(steps, console) == ["steps 2/3", iterating]
    assert console.file.getvalue().count("wiki failed: line 3 of wiki.txt") == 1


def show(steps, console) -> list[str]:
    """The lines of the frame that is drawn next, without their bars and times."""
    console.file.seek(0, io.SEEK_END)
    before = console.file.tell()
    steps.bars.refresh()
    drawn = console.file.getvalue()[before:]
    lines = [
        " ".join(re.sub("[⠀-⣿━╸╺]", " ", re.sub(r"\x1b\[[?0-9;]*[a-zA-Z]", "", line)).split())
        for line in drawn.splitlines()
    ]
    return [line.removesuffix(" 0:00:00").removesuffix(" -:--:--") for line in lines if line]
