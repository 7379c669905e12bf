"""Each way in which a run must not end has a verdict."""

from __future__ import annotations

import json
from dataclasses import replace

from mgspmv.errors import WorkerLostError
from tests.support.chaos.verdicts import Ending, Verdict, Wanted, judge

WANTED = Wanted("right", (0.5, 0.25))


def answer(**told):
    return json.dumps({"digest": "right", "changes": [0.5, 0.25]} | told)


def fail(kind="WorkerLostError", message="worker 1 is gone"):
    return json.dumps({"error": {"type": kind, "message": message}})


EXACT = Ending(0, answer(), "", saved_digest="right", kept=5, restored=9)
FAILED = Ending(WorkerLostError.exit_code, fail(), "error: worker 1 is gone\n", kept=5, restored=5)


ENDINGS = [
    (EXACT, Verdict.EXACT),
    (replace(EXACT, out=answer(digest="other")), Verdict.WRONG),
    (replace(EXACT, out=answer(changes=[0.5, 0.2])), Verdict.WRONG),
    (replace(EXACT, out=""), Verdict.WRONG),
    (replace(EXACT, saved_digest=None), Verdict.HALF),
    (replace(EXACT, saved_digest="other"), Verdict.HALF),
    (replace(EXACT, err="Traceback (most recent call last):\n"), Verdict.UNEXPECTED),
    (replace(EXACT, left=(17,)), Verdict.LEFT),
    (replace(EXACT, exit_code=None), Verdict.HANG),
    (replace(EXACT, restored=4), Verdict.LOST),
    (FAILED, Verdict.ERROR),
    (replace(FAILED, exit_code=1), Verdict.UNEXPECTED),
    (replace(FAILED, out=fail("ValueError")), Verdict.UNEXPECTED),
    (replace(FAILED, out=fail(message="")), Verdict.UNEXPECTED),
    (replace(FAILED, err=f"Traceback (most recent call last):\n{FAILED.err}"), Verdict.UNEXPECTED),
    (replace(FAILED, saved_digest=""), Verdict.HALF),
    (replace(FAILED, restored=3), Verdict.LOST),
    (Ending(130, "", "interrupted; nothing is written\n"), Verdict.INTERRUPTED),
    (Ending(-9, "", ""), Verdict.UNEXPECTED),
]


def test_verdicts_of_endings():
    for ending, verdict in ENDINGS:
        assert judge(ending, WANTED) is verdict, ending
    assert [verdict for verdict in Verdict if verdict.is_right] == ["exact", "clear error", "interrupted", "killed"]


def test_verdicts_depend_on_the_faults():
    assert judge(Ending(-9, "", ""), WANTED, was_killed=True) is Verdict.KILLED
    assert judge(FAILED, WANTED, must_be_exact=True) is Verdict.NEEDLESS
