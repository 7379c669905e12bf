"""What a run of a pipeline says of itself at a prompt and in a notebook."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mgspmv.report.record import RunRecord
from tests.support.records import make_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    return make_run(tmp_path_factory.mktemp("run"))


def test_repr_counts_steps_by_what_became_of_them(run: RunRecord) -> None:
    states = [step.state for step in run.steps]
    counted = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    assert repr(run) == f"<RunRecord: nightly, {len(states)} steps: {counted}, in 83.4 s>"
    assert repr(replace(run, steps=[])) == "<RunRecord: nightly, 0 steps: none, in 83.4 s>"


def test_a_notebook_shows_every_step(run: RunRecord) -> None:
    shown = run._repr_html_()
    assert all(f">{step.name}</td>" in shown for step in run.steps)
    assert "there is no file of this name" in shown
    assert "<details>" not in shown
