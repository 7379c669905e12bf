"""That the benchmark of ingesting runs, checks before it times, and fails for another matrix."""

from __future__ import annotations

import json
import sys

import pytest

from benchmarks import ingesting
from benchmarks.ingesting import NAME_PROGRAMS, OURS, OURS_PARQUET, PROGRAMS, Row, Run, add_runs

COMMAND = ["--scale", "8", "--entries", "2000", "--repeats", "2"]


def test_programs_make_the_same_store(capsys, tmp_path):
    assert ingesting.main([*COMMAND, "--json", str(tmp_path / "found.json"), "--cache", str(tmp_path)]) == 0
    rows = {row["program"]: row for row in json.loads((tmp_path / "found.json").read_text())["rows"]}
    assert rows.keys() == PROGRAMS.keys()
    for name in (OURS, "scipy"):
        assert len(rows[name]["runs"]) == 2
        assert rows[name]["runs"][0]["seconds"].keys() >= {"parse", "sort"}
    assert "parse" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["found.json"]
    assert len(rows[OURS_PARQUET]["runs"]) == 2


def test_programs_make_the_same_store_of_names(tmp_path):
    command = [*COMMAND, "--names", "--json", str(tmp_path / "found.json"), "--cache", str(tmp_path)]
    assert ingesting.main(command) == 0
    rows = {row["program"]: row for row in json.loads((tmp_path / "found.json").read_text())["rows"]}
    assert rows.keys() == NAME_PROGRAMS.keys()
    assert all(len(row["runs"]) == 2 or "left out" in row["remark"] for row in rows.values())
    assert len(rows[OURS]["runs"]) == 2


def test_workers_make_the_same_store(capsys):
    assert ingesting.main([*COMMAND, "--workers", "2"]) == 0
    [row] = [line for line in capsys.readouterr().out.splitlines() if "mgspmv, 2 workers" in line]
    assert "WRONG" not in row


def test_another_matrix_gets_no_time(monkeypatch, capsys):
    def skip_one(path, store, begin):
        path.with_suffix(".txt").write_text("%%MatrixMarket matrix coordinate pattern general\n256 256 1\n1 1\n")
        ingesting.ingest_ours(path.with_suffix(".txt"), store, begin)

    monkeypatch.setitem(PROGRAMS, "scipy", skip_one)
    assert ingesting.main(COMMAND) == 1
    assert "WRONG: another matrix" in capsys.readouterr().out


def test_a_program_that_is_not_there_is_left_out(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "polars", None)
    monkeypatch.setitem(sys.modules, "duckdb", None)
    assert ingesting.main(COMMAND) == 0
    assert capsys.readouterr().out.count("left out: ") == 2


@pytest.mark.parametrize(("seconds", "judged"), [(2.5, "2.0 met"), (1.9, "2.0 NOT MET")])
def test_what_is_wanted(seconds, judged):
    took = {OURS: 1.0, "scipy": seconds, "polars": 1.5, "duckdb": 1.2}
    rows = add_runs([Row(10, name, 2) for name in took], {k: (Run({"parse": s}, ""),) for k, s in took.items()})
    cells = {row.program: ingesting._cells(row) for row in rows}
    assert [cells[name][-1] for name in took] == ["", judged, "", "1.3 NOT MET"]
    assert cells["polars"][-2] == "1.50"


@pytest.mark.parametrize(("seconds", "judged"), [(2.0, "15 M / s met"), (2.1, "15 M / s NOT MET")])
def test_what_is_wanted_from_parquet(seconds, judged):
    took = {OURS: 1.0, OURS_PARQUET: seconds}
    rows = add_runs([Row(30_000_000, name, 2) for name in took], {k: (Run({"parse": s}, ""),) for k, s in took.items()})
    assert ingesting._cells(rows[1])[-1] == judged
