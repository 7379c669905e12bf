"""Ranks are killed, on workers of this machine in place of GPUs."""

from __future__ import annotations

import json

import pytest

from tests.support.chaos import devices

GIVEN = ["--cluster", "local", "--workers", "2", "--transports", "auto", "--vertices", "3000"]


@pytest.mark.weekly
def test_a_rank_that_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "CHECKPOINT_EVERY_S", 0.5)
    monkeypatch.setattr(devices, "_count_iterations", lambda *_: 10_000)
    found = tmp_path / "found.json"
    files = ["--json", str(found), "--folder", str(tmp_path)]
    assert devices.main([*GIVEN, "--faults", "kill", *files]) == 0, found.read_text()
    [row] = json.loads(found.read_text())["rows"]
    assert row["struck"].split(", ")[1].startswith("checkpoint of iteration ")
    assert row["resumed"] == ("" if row["verdict"] == "exact" else "exact")
