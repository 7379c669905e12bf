"""Findings say what to do, and checks end and raise nothing."""

from __future__ import annotations

import threading

import pytest

from mgspmv.doctor.findings import (
    Check,
    Finding,
    hang,
    list_findings,
    make_check,
    ok,
    run_check,
    shorten,
    skip,
    warn,
    wrong,
)
from tests.support.waiting import HANG_S


@pytest.mark.parametrize("judge", [warn, wrong])
def test_what_is_wrong_says_what_it_means_and_what_to_do(judge):
    assert judge("found", "meaning", "remedy", n=3).values == {"n": 3}
    for given in (("", "meaning", "remedy"), ("found", "", "remedy"), ("found", "meaning", "")):
        with pytest.raises(ValueError, match="says what it means and what to do"):
            judge(*given)


def test_findings_have_the_name_and_the_kind_of_their_check():
    def check_open_files():
        yield ok("one")
        yield skip("two")
        yield Finding("ok", "three", name="another", kind="host")

    found = run_check(make_check("storage", check_open_files), HANG_S)
    assert [(f.name, f.kind, f.found) for f in found] == [
        ("open-files", "storage", "one"),
        ("open-files", "storage", "two"),
        ("another", "host", "three"),
    ]


def test_a_check_that_hangs_is_left_behind():
    go_on = threading.Event()
    [found] = run_check(Check("stuck", "host", lambda: go_on.wait(HANG_S) and ok("never")), 0.1)
    assert (found.status, found.name) == ("wrong", "stuck")
    assert found.found == "the check did not end within 0.1 s"
    assert "--timeout" in found.remedy
    [thread] = [t for t in threading.enumerate() if t.name == "mgspmv-doctor-stuck"]
    assert thread.daemon  # nothing waits for it when the program ends
    go_on.set()
    thread.join(HANG_S)


def test_a_check_that_fails_is_skipped_with_what_it_found_before():
    def find():
        yield ok("one")
        raise RuntimeError("the library\n gave   up")

    found = run_check(Check("odd", "device", find), HANG_S)
    assert [(f.status, f.found) for f in found] == [
        ("ok", "one"),
        ("skipped", "it could not be checked: RuntimeError: the library gave up"),
    ]
    assert list_findings(lambda: exit(3))[0].status == "skipped"


def test_long_errors_are_one_line():
    assert shorten("a\n b") == "a b"
    assert shorten("x" * 400) == "x" * 297 + "..."
    assert hang(2.5).values == {"limit_s": 2.5}
