"""What a run of a pipeline says of itself at a prompt and in a notebook."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mgspmv.report.record import RunRecord
from tests.support.cards import read_card
from tests.support.records import MARKUP, make_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    return make_run(tmp_path_factory.mktemp("run"))


def test_repr_counts_steps_by_what_became_of_them(run: RunRecord) -> None:
    states = [step.state for step in run.steps]
    counted = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    assert repr(run) == f"<RunRecord: nightly, {len(states)} steps: {counted}, in 83.4 s>"
    assert repr(replace(run, steps=[])) == "<RunRecord: nightly, 0 steps: none, in 83.4 s>"


def test_a_notebook_shows_every_step(run: RunRecord) -> None:
    found = read_card(run)
    assert found.title.startswith("RunRecord ✕ ")
    assert found.facts["definition"] == "pipelines/nightly.toml"
    rows = {row[0]: row for row in found.tables[0][1:]}
    assert list(rows) == [step.name for step in run.steps]
    ranked = next(step for step in run.steps if step.kind == "pagerank" and step.state == "made")
    assert ranked.record is not None
    result = ranked.record.result
    assert rows[ranked.name][4:6] == [result["status"], str(result["iterations"])]
    assert "there is no file of this name" in rows["broken"][6]


def test_names_are_text(run: RunRecord) -> None:
    named = replace(run, name=MARKUP, steps=[replace(run.steps[0], error=MARKUP)])
    assert read_card(named).facts["pipeline"] == MARKUP
    assert read_card(replace(run, steps=run.steps[:1])).title.startswith("RunRecord ✓ ")
