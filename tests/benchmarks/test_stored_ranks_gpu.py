"""Ways from a stored graph to ranks, in this process and in processes of their own."""

from __future__ import annotations

import json

import pytest

from benchmarks import ranked_edges, stored_ranks_gpu
from benchmarks.ranked_edges import Run
from benchmarks.stored_ranks_gpu import Reading, Row, tabulate

SMALL = ("--edges", "20000", "--scale", "12", "--repeats", "1")


@pytest.mark.slow
def test_ranks_are_checked_and_timed(tmp_path, capsys):
    assert stored_ranks_gpu.main([*SMALL, "--json", "found.json", "--markdown", "table.md"]) == 0
    rows = json.loads((tmp_path / "found.json").read_text())["rows"]
    assert [row["program"] for row in rows] == ["float32", "exact", "STORE", "EDGES"]
    for row in rows:
        assert row["error_l1"] < ranked_edges.PERMITTED_L1
        assert len(row["runs"]) == 1
    assert "### Whole processes of mgspmv pagerank, with -o RANKS" in (tmp_path / "table.md").read_text()
    assert "met" not in capsys.readouterr().out.partition("\n\n")[2].partition("beyond s:")[0]  # another graph


@pytest.mark.slow
def test_wrong_ranks_are_found(monkeypatch, capsys):
    monkeypatch.setattr("benchmarks.rank_checks.ALPHA", 0.84)
    assert stored_ranks_gpu.main([*SMALL]) == 1
    assert capsys.readouterr().out.count("WRONG RANKS") == 4


def test_what_is_wanted_is_judged():
    warm = [Row("exact", "", (Run(0.09, {"product": 0.02}), Run(0.11, {"product": 0.02})), 1e-7)]
    whole = [Row("STORE", "", (Run(1.7, {}),)), Row("EDGES", "ended with code 3")]
    reading = Reading((0.1, 0.1), 500_000_000, 10.0)
    said = [" ".join(line) for _, lines in tabulate(warm, whole, reading, is_judged=True) for line in lines[1:]]
    assert "0.0800 0.08 met" in said[0]
    assert "5.0 6.0 NOT MET" in said[1]
    assert "1.6 NOT MET" in said[3]
    assert "ended with code 3" in said[4]
