"""`show_progress`: which calls are shown, with what, and that nobody else hears less for it."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mgspmv as mg
import mgspmv.monitor.progress
from mgspmv.errors import ConvergenceError, OptionError
from mgspmv.kernels.modules import report_compiling
from mgspmv.model import Event, Phase
from mgspmv.monitor.progress import show_progress, watched
from tests.support.hearing import on_events, on_phases
from tests.support.waiting import wait_for


class Display:
    """Notes what it is told."""

    opened: list[Display]

    def __init__(self, **known: Any) -> None:
        self.known, self.phases, self.events, self.is_open = known, [], [], False
        self.has_compiled = False
        Display.opened.append(self)

    def __enter__(self) -> Display:
        self.is_open = True
        return self

    def __exit__(self, *exception: object) -> None:
        self.is_open = False

    def hear(self, news: Event | Phase) -> None:
        assert self.is_open
        if isinstance(news, Event):
            self.events.append(news)
        elif news.name == "compile":  # only if the test is the first to need the kernels
            self.has_compiled = True
        else:
            self.phases.append(news.name)


@pytest.fixture
def displays(monkeypatch: pytest.MonkeyPatch) -> list[Display]:
    """Those that were opened."""
    Display.opened = []
    monkeypatch.setattr(mgspmv.monitor.progress, "ProgressLine", Display)
    return Display.opened


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("showing") / "g.zarr"
    mg.generate("rmat", path, scale=6, edge_factor=4, transpose=True)
    return path


def test_nothing_is_shown_unless_it_is_wanted(store: Path, displays: list[Display]) -> None:
    mg.pagerank(mg.open_matrix(store))
    with show_progress():
        pass
    mg.pagerank(mg.open_matrix(store))
    assert displays == []


def test_a_call_may_show_or_hide_its_own_progress(store: Path, displays: list[Display]) -> None:
    A = mg.open_matrix(store)
    shown = mg.pagerank(A, progress=True)
    with show_progress():
        mg.pagerank(A, progress=False)
        mg.pagerank_batch(A, [[1], [2]], progress=False)
    (display,) = displays
    assert tuple(display.events) == shown.events
    assert not display.is_open


def test_compiling_is_shown(displays: list[Display]) -> None:
    @watched
    def rank(progress: Any = None) -> None:
        report_compiling()

    with mg.show_progress():
        rank()
    rank()
    assert [display.has_compiled for display in displays] == [True]


def test_ranking_is_shown_with_what_it_converges_to(store: Path, displays: list[Display]) -> None:
    heard: list[Event] = []
    with mg.show_progress():
        ranks = mg.pagerank(
            mg.open_matrix(store), tol=1e-4, norm="l1_per_node", max_iter=50, progress=on_events(heard.append)
        )
    (display,) = displays
    assert display.known == {"tol": 1e-4 * len(ranks.values), "max_iter": 50}
    assert tuple(display.events) == tuple(heard) == ranks.events
    assert not display.is_open


def test_the_end_is_not_told_of_what_is_still_to_be_read(displays: list[Display]) -> None:
    with mg.show_progress():
        mg.pagerank(np.array([[0, 1, 2], [1, 2, 0]]), tol=1e-4, norm="l1_per_node")
    assert displays[0].known == {"tol": None, "max_iter": 100}


def test_calls_that_make_others_are_shown_once(store: Path, displays: list[Display]) -> None:
    with mg.show_progress():
        found = mg.hits(mg.open_matrix(store), tol=1e-5, max_iter=500)
        mg.katz(mg.open_matrix(store), alpha=1e-3)
    assert len(displays[0].events) == found.authorities.iterations
    assert [display.known for display in displays] == [{"tol": 1e-5, "max_iter": 500}, {"tol": 1e-6, "max_iter": 100}]


def test_stores_products_and_batches_are_shown_by_phases(
    store: Path, displays: list[Display], tmp_path: Path, in_process: Callable[[int], Any]
) -> None:
    heard: list[str] = []
    with mg.show_progress():
        mg.ingest(
            (np.array([0, 1]), np.array([1, 0])),
            tmp_path / "h.zarr",
            progress=on_phases(lambda *told: heard.append(told[0])),
        )
        A = mg.open_matrix(store)
        mg.pagerank_batch(A, [[1], [2]])
        mg.spmv(A.on(in_process(2)), np.ones(A.shape[1]))
        assert mg.verify(store) == []
    ingest, batch, product, checked = displays
    assert ingest.phases == heard != []
    assert set(batch.phases) == {"vectors"}
    assert batch.events
    assert {"join", "load"} <= set(product.phases)
    assert checked.phases
    assert [display.known for display in displays] == [{}] * 4


def test_a_call_that_fails_takes_its_line_away(store: Path, displays: list[Display]) -> None:
    with mg.show_progress():
        with pytest.raises(ConvergenceError):
            mg.pagerank(mg.open_matrix(store), max_iter=2)
        mg.pagerank(mg.open_matrix(store))
    assert [display.is_open for display in displays] == [False, False]
    assert len(displays[0].events) == 2


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def open_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Make stderr a terminal; no fixture, as pytest has its own stderr between fixtures and tests."""
    for name, value in {"TERM": "xterm", "COLUMNS": "120"}.items():
        monkeypatch.setenv(name, value)
    shown_in = Terminal()
    monkeypatch.setattr(sys, "stderr", shown_in)
    return shown_in


def test_in_a_terminal(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal(monkeypatch)

    def wait_until_drawn(event: Event) -> None:
        assert event.iteration < 6 or wait_for(lambda: "to go" in terminal.getvalue())

    with mg.show_progress():
        mg.pagerank(mg.open_matrix(store), progress=on_events(wait_until_drawn))
    assert "iterate  change" in terminal.getvalue()
    assert "to go" in terminal.getvalue()
    before = terminal.getvalue()
    mg.pagerank(mg.open_matrix(store))
    assert terminal.getvalue() == before


def test_steps_of_a_pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal(monkeypatch)
    monkeypatch.chdir(tmp_path)
    Path("edges.txt").write_text("0 1\n1 2\n2 0\n")
    Path("p.toml").write_text('[matrix.web]\nsource = "edges.txt"\n[matrix.gone]\nsource = "none.txt"\n[run]\n')
    with mg.show_progress():
        mg.run_pipeline("p.toml", throw=False)
    assert "web (1 of 4): " in terminal.getvalue()
    assert "web/pagerank (2 of 4): iterate" in terminal.getvalue()


@pytest.mark.parametrize("progress", [1, "yes", ()])
def test_progress_is_a_function_a_truth_value_or_none(progress, store):
    with pytest.raises(OptionError, match="progress must be a function, True, False or None, not "):
        mg.pagerank(store, progress=progress)
