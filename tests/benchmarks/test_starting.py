"""The benchmark of starting fails where ranks are wrong or iterations late.

Its commands have stand-ins; tests/cli/test_clusters.py starts clusters.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import mgspmv as mg
from benchmarks import starting


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """How long what is played takes, what it answers, and what was called in which environment."""
    told: dict[str, Any] = {"late_s": 5.0, "digest": None, "calls": []}

    def call(environment: dict[str, str], *words: str) -> dict[str, Any]:
        told["calls"].append((words, environment))
        if words[0] == "cluster":
            return {"scheduler": "tcp://127.0.0.1:1"}
        at = datetime.now(UTC) + timedelta(seconds=told["late_s"])
        lines = [{"time": (at + timedelta(seconds=k)).isoformat(), "iteration": 1, "worker": k} for k in (1, 0)]
        Path(words[words.index("--log") + 1]).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        with mg.open_matrix(words[1]) as A:
            wanted = mg.pagerank(A, tol_mode="fixed", max_iter=20, throw=False).digest()
        return {"digest": told["digest"] or wanted}

    monkeypatch.setattr(starting, "_call", call)
    return told


def test_starts_are_timed_and_judged(played: dict[str, Any], tmp_path: Path) -> None:
    found, page = tmp_path / "found.json", tmp_path / "found.md"
    files = ["--cache", str(tmp_path), "--json", str(found), "--markdown", str(page)]
    cases = (({}, 0, ""), ({"late_s": 16.0}, 1, "NOT MET"), ({"digest": "another"}, 1, "WRONG RANKS"))
    for told, code, remark in cases:
        played |= {"late_s": 5.0, "digest": None} | told
        assert starting.main(["--scale", "6", "--workers", "2", "--repeats", "1", *files]) == code, remark
        warm, cold = json.loads(found.read_text())["rows"]
        assert (warm["caches"], cold["caches"]) == ("warm", "cold")
        assert all(run["iterated_s"] >= played["late_s"] for row in (warm, cold) for run in row["runs"])
        assert f"| {remark} |" in page.read_text()
