"""Runs that faults strike end with the exact ranks, or with a clear error and resume from their checkpoints.

Three of them run in each complete run of the tests; the others, and a campaign over more seeds, every week.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.chaos import campaign, runs
from tests.support.chaos.faults import Moment, Stop
from tests.support.chaos.plans import KINDS, Plan, draw
from tests.support.chaos.runs import Undisturbed, run_plan

external = pytest.mark.external("cc", "ip", "tc", "mount")

SMOKE = (5, 67, 101)
SEEDS = (*SMOKE, 6, 15, 18, 21, 30, 56, 72, 121, 136)
"""Seeds that together draw every fault."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return Undisturbed.compute(tmp_path_factory.mktemp("chaos") / "graph.zarr")


@external
@pytest.mark.parametrize("seed", [pytest.param(k, marks=() if k in SMOKE else pytest.mark.weekly) for k in SEEDS])
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


@external
@pytest.mark.weekly
@pytest.mark.timeout(7200)
def test_campaign(tmp_path):
    found, page = tmp_path / "found.json", tmp_path / "page.md"
    files = ["--json", str(found), "-o", str(page), "--folder", str(tmp_path)]
    assert campaign.main(["--seeds", "200:260", *files]) == 0, page.read_text()


@pytest.mark.slow
def test_a_run_that_hangs_is_seen(undisturbed, tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "HANG_S", 4.0)
    plan = Plan(0, "superstep", False, (Stop(Moment("start", 0.0), "driver"),), "here")
    record = run_plan(plan, undisturbed, tmp_path)
    assert (record.verdict, record.is_right) == ("HANG", False)
    assert list(tmp_path.glob("seed-0-*/first/driver.err"))


@pytest.mark.slow
def test_ranks_of_one_iteration_less_are_seen(undisturbed, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setitem(runs.ITERATIONS, "superstep", runs.ITERATIONS["superstep"] - 1)
        other = Undisturbed.compute(tmp_path / "graph.zarr")
    record = run_plan(Plan(0, "superstep", False, (), "here"), replace(undisturbed, wanted=other.wanted), tmp_path)
    assert (record.verdict, record.is_right) == ("WRONG RANKS", False)
