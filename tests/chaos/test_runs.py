"""Runs that faults strike end with the exact ranks, or with a clear error and resume from their checkpoints.

Three of them run in each complete run of the tests; the others every week.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.chaos import runs
from tests.support.chaos.campaign import draw_plan
from tests.support.chaos.faults import PHASES, Cut, Fault, Moment, Stop
from tests.support.chaos.plans import PLANS, Plan
from tests.support.chaos.runs import Undisturbed, run_plan
from tests.support.hosts import why_not_split

external = pytest.mark.external("ip")

SMOKE = ("a worker is killed", "a worker is cut off", "a worker is killed below its nanny, and another in a checkpoint")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return Undisturbed.compute(tmp_path_factory.mktemp("chaos") / "graph.zarr")


@external
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in SMOKE else pytest.mark.weekly) for name in PLANS]
)
def test_faults(name, undisturbed, tmp_path):
    plan = PLANS[name]
    if why := plan.why_not():
        pytest.skip(why)
    record = run_plan(plan, undisturbed, tmp_path)
    assert record.is_right, record
    assert any(record.struck)


def test_every_fault_strikes_and_every_phase_is_struck():
    faults = [fault for plan in PLANS.values() for fault in plan.faults]
    assert {type(fault) for fault in faults} == set(Fault.__subclasses__())
    assert {fault.moment.phase for fault in faults} == set(PHASES)


@pytest.mark.slow
def test_a_run_that_hangs_is_seen(undisturbed, tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "HANG_S", 4.0)
    plan = Plan((Stop(Moment("start", 0.0), "driver"),))
    record = run_plan(plan, undisturbed, tmp_path)
    assert (record.verdict, record.is_right) == ("HANG", False)
    assert list(tmp_path.glob("run-*/first/driver.err"))


@pytest.mark.slow
def test_ranks_of_one_iteration_less_are_seen(undisturbed, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setitem(runs.ITERATIONS, "supersteps", runs.ITERATIONS["supersteps"] - 1)
        other = Undisturbed.compute(tmp_path / "graph.zarr")
    record = run_plan(Plan(()), replace(undisturbed, wanted=other.wanted), tmp_path)
    assert (record.verdict, record.is_right) == ("WRONG RANKS", False)


def test_seeds_draw_every_fault_and_phase():
    plans = [draw_plan(seed) for seed in range(200)]
    assert plans == [draw_plan(seed) for seed in range(200)]
    faults = [fault for plan in plans for fault in plan.faults]
    kinds = {*Fault.__subclasses__()} - (set() if not why_not_split() else {Cut})
    assert {type(fault) for fault in faults} == kinds
    assert {fault.moment.phase for fault in faults} == set(PHASES)
    assert not [fault for fault in faults if isinstance(fault, Stop) and fault.target == "driver" and not fault.heal_s]
