"""Progress of a detached run: what it writes, and how that is shown."""

from __future__ import annotations

import math
import time
from pathlib import Path

import pytest

from mgspmv.detached import Progress, Stage
from mgspmv.model import Event
from mgspmv.monitor import recording
from mgspmv.monitor.recording import Recording, Replay
from tests.support.waiting import wait_for


def make_event(iteration: int, change: float) -> Event:
    return Event("r", 0, iteration, change, (0.0,), (0.0,), (0.0,), (0,), (0,))


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path


def read(folder: Path) -> Progress:
    from pydantic import TypeAdapter

    return TypeAdapter(Progress).validate_json((folder / "progress.json").read_bytes())


def test_a_run_tells_how_far_it_is(folder):
    began = time.time()
    with Recording(folder) as told:
        assert not read(folder).is_on
        with told.open_line(1e-6, 100) as line:
            line.phase("connecting")
            line.on_progress("load", 1, 2)
            assert wait_for(lambda: read(folder).is_on)
            line.on_event(make_event(7, 1e-3))
            line.on_progress("checkpoint", 7, None)
    found = read(folder)
    assert found.stages == {"": Stage("iterate", 1, 2, 7, 1e-3, 7, 1e-6, 100)}
    assert (found.is_on, found.n_steps) == (True, None)
    assert began <= found.at <= time.time()


def test_reaching_for_a_cluster_is_no_begin(folder):
    with Recording(folder) as told:
        told.open_line(None, None).phase("connecting")
        told.open_line(None, None).phase("starting workers")
    assert not read(folder).is_on


def test_it_is_told_again_and_again(folder, monkeypatch):
    monkeypatch.setattr(recording, "BEAT_S", 0.02)
    with Recording(folder):
        first = read(folder).at
        assert wait_for(lambda: read(folder).at > first)


def test_a_change_that_is_no_number(folder):
    with Recording(folder) as told:
        told.open_line(None, None).on_event(make_event(1, math.nan))
    assert read(folder).stages[""].change is None


def test_steps_of_a_pipeline(folder):
    with Recording(folder) as told, told.open_steps(3) as steps:
        steps.on_progress("a", "load", 1, 2)
        steps.on_event("b", make_event(2, 0.5), 1e-6, 50)
        steps.end("a")
    found = read(folder)
    assert (found.n_steps, found.n_ended, found.is_on) == (3, 1, True)
    assert found.stages == {"b": Stage("iterate", iteration=2, change=0.5, tol=1e-6, max_iter=50)}


def test_a_folder_that_went_away_does_not_end_the_run(folder):
    told = Recording(folder / "gone")
    with told:
        (folder / "gone" / "progress.json").unlink()
        (folder / "gone").rmdir()
        (folder / "gone").write_text("")


class Shown:
    """Notes what it is told."""

    def __init__(self, *args, **options) -> None:
        self.told = [("open", *args, *options.values())]

    def __enter__(self):
        return self

    def __exit__(self, *exception) -> None:
        self.told.append("closed")

    def __getattr__(self, name):
        return lambda *args: self.told.append((name, *(a.iteration if isinstance(a, Event) else a for a in args)))


def replay(*seen: Progress) -> list:
    shown = []

    def open_shown(*args, **options):
        shown.append(Shown(*args, **options))
        return shown[-1]

    with Replay(open_shown, open_shown) as replayed:
        for progress in seen:
            replayed.show(progress)
    return shown[0].told if shown else []


def test_a_run_is_shown_as_if_it_were_here():
    load, first, kept = (
        Stage("load", 1, 2, tol=1e-6),
        Stage("iterate", iteration=5),
        Stage("iterate", iteration=9, kept=5),
    )
    seen = [Progress(), *(Progress(stages={"": stage}) for stage in (load, first, first, kept))]
    assert replay(*seen) == [
        ("open", 1e-6, None),
        ("on_progress", "load", 1, 2),
        ("on_event", 5),
        ("on_progress", "checkpoint", 5, None),
        ("on_event", 9),
        "closed",
    ]


def test_steps_are_shown_as_if_they_were_here():
    first = Progress(stages={"a": Stage("load", 1, 2), "b": Stage("iterate", iteration=3)}, n_steps=5, n_ended=1)
    told = replay(first, Progress(stages={"b": Stage("save", 0)}, n_steps=5, n_ended=3))
    assert told == [
        ("open", 5),
        ("on_progress", "a", "load", 1, 2),
        ("on_event", "b", 3, None, None),
        ("end", ""),
        ("on_progress", "b", "save", 0, None),
        ("end", "a"),
        ("end", ""),
        "closed",
    ]


def test_nothing_is_shown_of_what_never_was():
    assert replay(Progress(), Progress(is_on=True)) == []
