"""The benchmark of loading tells its ratios, and fails where the check takes more than it may."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import loading

GIVEN = ["--entries", "3000", "--per-row", "10", "--repeats", "2"]


@pytest.mark.parametrize(("ceiling", "code"), [(1e9, 0), (0.0, 1)])
def test_both_ways_are_timed(tmp_path: Path, monkeypatch, capsys, ceiling, code):
    monkeypatch.setattr(loading, "CEILING", ceiling)
    assert loading.main([*GIVEN, "--cache", str(tmp_path), "--json", str(tmp_path / "found.json")]) == code
    rows = json.loads((tmp_path / "found.json").read_text())["rows"]
    assert [(row["values"], row["is_checked"], len(row["seconds"])) for row in rows] == [
        (values, is_checked, 2) for values in ("none", "float64") for is_checked in (False, True)
    ]
    assert [row["ratio"] for row in rows[::2]] == [1.0, 1.0]
    assert "3,000 entries" in capsys.readouterr().out
