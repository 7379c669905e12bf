"""The benchmark of warm starts changes graphs, and checks the ranks of the changed ones."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks import warm
from benchmarks.warm import CHANGES, RUNS


def test_all_runs_are_right_and_timed(rmat: str) -> None:
    command = [rmat, "--rounds", "2", "--share", "1e-3", "--tol", "1e-8", "--json", "found.json"]
    assert warm.main(command) == 0
    records = json.loads(Path("found.json").read_text())["records"]
    assert [(r["changes"], r["run"]) for r in records] == [(c, run) for c in CHANGES for run in RUNS]
    assert all(r["elapsed_s"] > 0 for r in records)
    for cold, warmed in zip(records[::2], records[1::2], strict=True):
        assert warmed["iterations"] < cold["iterations"]


def test_wrong_ranks_are_an_error(rmat: str, monkeypatch, capsys) -> None:
    right = warm.rank_plainly
    monkeypatch.setattr(warm, "rank_plainly", lambda A: right(A)[::-1])
    assert warm.main([rmat, "--rounds", "1"]) == 1
    printed = capsys.readouterr()
    assert "error: wrong ranks: cold on rmat, random; " in printed.err
    assert "| rmat | few | wrong | wrong |" in printed.out
