"""The record of ranks that are killed and stopped, tried out with workers of this machine in place of GPUs."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.support.chaos import devices
from tests.support.chaos.devices import Ended
from tests.support.chaos.verdicts import Ending, Wanted

GIVEN = ["--cluster", "local", "--workers", "2", "--transports", "auto", "--vertices", "3000"]


@pytest.mark.weekly
def test_a_rank_that_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "CHECKPOINT_EVERY_S", 0.5)
    monkeypatch.setattr(devices, "_count_iterations", lambda *_: 10_000)
    found, page = tmp_path / "found.json", tmp_path / "page.md"
    files = ["--json", str(found), "-o", str(page), "--folder", str(tmp_path)]
    assert devices.main([*GIVEN, "--faults", "kill", *files]) == 0, found.read_text()
    [row] = json.loads(found.read_text())["rows"]
    assert row["struck"].split(", ")[1].startswith("checkpoint of iteration ")
    assert row["resumed"] == ("" if row["verdict"] == "exact" else "exact")
    assert "Not so: 0 of 1." in page.read_text()


ANSWER = json.dumps({"digest": "right", "changes": [0.5], "matrix": {"transport": "nccl"}, "recoveries": [{}]})
LOST = json.dumps({"error": {"type": "WorkerLostError", "message": "worker 1 is gone"}})
EXACT, FAILED = Ending(0, ANSWER, "", saved_digest="right"), Ending(7, LOST, "")
OTHER = replace(EXACT, out=ANSWER.replace("right", "other"))
UNHURT = replace(EXACT, out=ANSWER.replace("[{}]", "[]"))


@pytest.mark.parametrize(
    ("struck", "resumed", "is_right"),
    [
        (Ended(EXACT, 40.0, 10.0), None, True),
        (Ended(EXACT, 90.0, 10.0), None, False),
        (Ended(OTHER, 40.0, 10.0), None, False),
        (Ended(UNHURT, 25.0, 10.0), None, False),
        (Ended(FAILED, 40.0, 10.0), EXACT, True),
        (Ended(FAILED, 71.0, 10.0), EXACT, False),
        (Ended(FAILED, 40.0, 10.0), OTHER, False),
        (Ended(FAILED, 40.0, 10.0), FAILED, False),
        (Ended(replace(FAILED, exit_code=None), 40.0, 10.0), None, False),
    ],
)
def test_what_is_right(struck, resumed, is_right, tmp_path, monkeypatch):
    endings = iter([struck] if resumed is None else [struck, Ended(resumed, 9.0)])
    monkeypatch.setattr(devices, "_run", lambda command, folder, sign: next(endings))
    row = devices._strike([], (2, "nccl: nccl"), "kill", tmp_path, Wanted("right", (0.5,)), 20.0)
    assert row.is_right is is_right
    assert (row.said == devices.TOO_LATE) == (struck.ending is UNHURT)
    assert list(endings) == []
