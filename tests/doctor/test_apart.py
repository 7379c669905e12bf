"""Checks in a process apart: one that hangs or breaks down takes no other with it."""

from __future__ import annotations

import pytest

from mgspmv.doctor.apart import run_apart
from mgspmv.doctor.findings import make_check
from tests.support import apart_checks
from tests.support.waiting import HANG_S


def run(*names: str, limit_s: float = HANG_S):
    checks = [make_check("device", getattr(apart_checks, f"check_{name}")) for name in names]
    return [
        (check.name, [(f.name, f.kind, f.status, f.found) for f in found])
        for check, found in run_apart(checks, limit_s)
    ]


def test_each_has_its_findings():
    assert run("well", "warned", "raising") == [
        ("well", [("well", "device", "ok", "well")]),
        ("warned", [("warned", "device", "ok", "one"), ("warned", "device", "warning", "two")]),
        ("raising", [("raising", "device", "skipped", "it could not be checked: OSError: not this time")]),
    ]


@pytest.mark.slow
def test_one_that_hangs_is_ended_and_the_next_is_made():
    """The next one hangs too: another would have to begin and end within the same limit."""
    hung = ("hanging", [("hanging", "device", "wrong", "the check did not end within 1 s")])
    assert run("hanging", "hanging", limit_s=1) == [hung, hung]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "how"),
    [("killed", "by SIGSEGV; its last line was: the last words"), ("leaving", "with exit code 3")],
)
def test_one_that_breaks_down_is_told_and_the_next_is_made(name, how):
    broken, well = run(name, "well")
    assert broken[1] == [(name, "device", "wrong", f"the process that checked it ended {how}")]
    assert well[1][0][2] == "ok"


def test_nothing_to_check():
    assert run() == []
