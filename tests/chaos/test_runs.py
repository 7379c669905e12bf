"""Runs that faults strike end with the exact ranks, or with an error in words from whose checkpoint they go on.

Some of the runs of `campaign.py`, which has all of them; together they have every fault.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.chaos import campaign, runs
from tests.support.chaos.faults import Moment, Stop
from tests.support.chaos.plans import KINDS, Plan, draw
from tests.support.chaos.runs import Undisturbed, run_plan
from tests.support.chaos.verdicts import Wanted

pytestmark = pytest.mark.slow

SEEDS = (5, 6, 15, 18, 21, 30, 56, 67, 72, 101, 121, 136)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return Undisturbed.compute(tmp_path_factory.mktemp("chaos") / "graph.zarr")


@pytest.mark.parametrize("seed", SEEDS)
def test_seed(seed, undisturbed, tmp_path):
    plan = draw(seed)
    if why := plan.why_not():
        pytest.skip(why)
    record = run_plan(plan, undisturbed, tmp_path)
    assert record.is_right, record
    assert any(record.struck)


def test_the_seeds_have_every_fault():
    faults = [str(fault) for seed in SEEDS for fault in draw(seed).faults]
    assert [kind for kind in KINDS if not any(fault.startswith(kind) for fault in faults)] == []


# --- that what is not right is seen ----------------------------------------------------------------------------------


def test_a_run_that_ended_before_it_was_struck_is_made_again_with_earlier_faults(undisturbed, tmp_path, monkeypatch):
    played = []

    def play(plan, found, folder):
        played.append(str(plan.faults[0].moment))
        return replace(record(plan, is_right=True), struck=["1.0 s, iterate 7" if len(played) > n_missed else ""])

    monkeypatch.setattr(runs, "_play", play)
    plan, n_missed = Plan(0, "superstep", False, (Stop(Moment("iterate", 0.8), "w1"),), "here"), 2
    assert run_plan(plan, undisturbed, tmp_path).struck == ["1.0 s, iterate 7"]
    assert played == ["iterate 80%", "iterate 40%", "iterate 20%"]
    n_missed = 99
    with pytest.raises(runs.StrikeError, match="before any fault had struck"):
        run_plan(plan, undisturbed, tmp_path)
    assert len(played) == 3 + runs.TRIES


def test_a_run_that_hangs_is_seen(undisturbed, tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "HANG_S", 4.0)
    record = run_plan(
        Plan(0, "superstep", False, (Stop(Moment("start", 0.0), "driver"),), "here"), undisturbed, tmp_path
    )
    assert (record.verdict, record.is_right) == ("HANG", False)
    assert list(tmp_path.glob("seed-0-*/first/driver.err"))


def test_other_ranks_are_seen(undisturbed, tmp_path):
    right = undisturbed.wanted["superstep"]
    others = replace(undisturbed, wanted={"superstep": Wanted("other", right.changes)})
    record = run_plan(Plan(0, "superstep", False, (), "here"), others, tmp_path)
    assert (record.verdict, record.is_right) == ("WRONG RANKS", False)


def test_ranks_of_one_iteration_less_are_others(undisturbed, tmp_path, monkeypatch):
    monkeypatch.setitem(runs.ITERATIONS, "superstep", runs.ITERATIONS["superstep"] - 1)
    before = Undisturbed.compute(tmp_path / "graph.zarr")
    assert before.wanted["superstep"].digest != undisturbed.wanted["superstep"].digest
    assert min(undisturbed.wanted["superstep"].changes) > 0


def test_a_campaign_goes_on_and_writes_a_page(undisturbed, tmp_path, monkeypatch):
    monkeypatch.setattr(campaign, "measure", lambda found, parallel, folder: found)
    ran = []

    def play(plan, found, folder):
        ran.append(plan.seed)
        return record(plan, is_right=plan.seed != 2)

    monkeypatch.setattr(campaign, "run_plan", play)
    monkeypatch.setattr(Plan, "why_not", lambda plan: "no root" if plan.seed == 3 else "")
    found, page = tmp_path / "found.json", tmp_path / "page.md"
    given = ["--json", str(found), "-o", str(page), "--folder", str(tmp_path)]
    assert campaign.main(["--seeds", "0:2", *given]) == 0
    assert campaign.main(["--seeds", "0:4", *given]) == 1
    assert ran == [0, 1, 2]
    text = page.read_text()
    assert "# 3 runs with faults" in text
    assert "Ended: 3 exact. Ended as they may not: 1." in text
    assert [
        line.split(" | ")[0] for line in text.splitlines() if line.startswith(tuple("|" + f" {k} " for k in range(9)))
    ]


def record(plan, *, is_right):
    faults = [str(fault) for fault in plan.faults]
    known = [plan.seed, plan.drive, "plain", faults, ["1.0 s, iterate 7"] * len(faults), "exact", is_right]
    return runs.Record(*known, 7.0, 4.0, 1.0, 0, "a | b", 50, "", 0.0)
