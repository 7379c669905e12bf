"""Progress: what is shown, where, and when not."""

from __future__ import annotations

import io
import re
import sys

import pytest
from rich.console import Console

from mgspmv.model import Event, Phase
from mgspmv.monitor.progress import ProgressLine


def make_event(iteration: int, change: float) -> Event:
    return Event("run", 0, iteration, change, (0.1,), (0.0,), (0.0,), (0,), (0,))


def make_console() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=120, color_system=None, _environ={})


def test_phases_are_shown_with_their_counts():
    console = make_console()
    with ProgressLine(console) as progress:
        progress.phase("read [1/2]", 10)
        progress.hear(Phase("read [1/2]", 4, 10))
        progress._bars.refresh()
        assert "read [1/2]" in console.file.getvalue()
        assert "4/10" in console.file.getvalue()
        progress.phase("sort")
        progress._bars.refresh()
        last = console.file.getvalue().splitlines()[-1]
        assert "sort" in last
        assert "read" not in last
        assert "/" not in last
        progress.hear(Phase("sort", 3, None))
        progress._bars.refresh()
        assert "3/?" in console.file.getvalue().splitlines()[-1]


def test_a_phase_takes_the_line_of_the_one_before_it():
    """No frame is of two phases, or of none."""
    console = make_console()
    with ProgressLine(console) as progress:
        for phase, done, total in (
            ("join", 0, None),
            ("queue", 0, None),
            ("load", 0, 2),
            ("load", 2, 2),
            ("start", 0, None),
            ("residual", 0, None),
        ):
            progress.hear(Phase(phase, done, total))
            progress._bars.refresh()
    frames = [" ".join(re.sub("[⠀-⣿━╸╺]", " ", strip(f)).split()) for f in console.file.getvalue().split("\r")]
    shown = [frame.removesuffix(" 0:00:00") for frame in frames if frame]
    assert list(dict.fromkeys(shown)) == [
        "joining the workers",
        "waiting for another run",
        "load 0/2",
        "load 2/2",
        "starting the run",
        "bounding the error",
    ]


def strip(frame: str) -> str:
    """Without what moves the cursor and hides it."""
    return re.sub(r"\x1b\[[?0-9;]*[a-zA-Z]", "", frame).strip()


@pytest.mark.parametrize(
    ("tol", "max_iter", "shown", "count"),
    [
        (1e-3, 100, "change 1.25e-01, about 7 to go", "3/10"),
        (1e-9, 20, "about 27 to go", "3/20"),
        (None, 30, "change 1.25e-01", "3/30"),
    ],
)
def test_iterations_with_prediction(tol, max_iter, shown, count):
    console = make_console()
    with ProgressLine(console, tol=tol, max_iter=max_iter) as progress:
        for k in (1, 2, 3):
            progress.hear(make_event(k, 0.5**k))
        progress._bars.refresh()
        assert shown in console.file.getvalue()
        assert count in console.file.getvalue()


def test_iteration_that_does_not_shrink_has_no_prediction():
    console = make_console()
    with ProgressLine(console, tol=1e-6) as progress:
        for k, change in enumerate((1.0, 1.0, float("nan")), 1):
            progress.hear(make_event(k, change))
            progress._bars.refresh()
    assert "to go" not in console.file.getvalue()
    assert "change nan" in console.file.getvalue()


def test_nothing_is_shown_where_stderr_is_no_terminal(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with ProgressLine(tol=1e-6, max_iter=9) as progress:
        assert progress._bars.disable
        progress.phase("read", 3)
        progress.hear(Phase("read", 1, 3))
        progress.hear(make_event(1, 0.5))
    assert sys.stderr.getvalue() == ""
    assert capsys.readouterr().out == ""


def test_it_is_shown_on_stderr_and_never_on_stdout(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with ProgressLine() as progress:
        assert not progress._bars.disable
        progress.phase("read", 3)
        assert progress._bars.console.stderr
    assert capsys.readouterr().out == ""
