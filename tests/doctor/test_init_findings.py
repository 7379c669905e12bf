"""Findings, and running checks that fail or hang."""

from __future__ import annotations

import time

import pytest

from mgspmv.doctor import Skipped, ok, run_check, warn
from mgspmv.errors import MgspmvError


def test_all_findings_have_the_name_of_their_check():
    def check():
        yield ok("one", n=1)
        yield warn("two", "remedy")

    assert [(f.name, f.status, f.found) for f in run_check("x", check, 60)] == [
        ("x", "ok", "one"),
        ("x", "warning", "two"),
    ]


@pytest.mark.parametrize("error", [OSError("not\nthis time"), SystemExit(3)])
def test_an_error_is_a_finding_after_those_before(error):
    def check():
        yield ok("one")
        raise error

    first, second = run_check("x", check, 60)
    assert first.status == "ok"
    assert second.status == "skipped"
    assert second.found.startswith(f"the check failed: {type(error).__name__}: ")
    assert "\n" not in second.found


@pytest.mark.parametrize(("error", "status"), [(Skipped("no GPU"), "skipped"), (MgspmvError("no GPU"), "wrong")])
def test_errors_of_checks_are_findings(error, status):
    def check():
        raise error

    [found] = run_check("x", check, 60)
    assert (found.status, found.found) == (status, "no GPU")


def test_a_check_that_hangs_is_left_behind():
    [found] = run_check("x", lambda: time.sleep(600), 0.1)
    assert (found.name, found.status, found.found) == ("x", "wrong", "the check did not finish within 0.1 s")
