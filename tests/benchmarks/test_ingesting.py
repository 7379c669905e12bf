"""The benchmark of ingesting compares stores before it times them."""

from __future__ import annotations

import json

from benchmarks import ingesting
from benchmarks.ingesting import OURS, OURS_ARRAYS, OURS_PARQUET, PROGRAMS

COMMAND = ["--scale", "8", "--entries", "2000", "--repeats", "2"]


def test_programs_make_the_same_store(tmp_path):
    assert ingesting.main([*COMMAND, "--json", str(tmp_path / "found.json"), "--cache", str(tmp_path)]) == 0
    rows = {row["program"]: row for row in json.loads((tmp_path / "found.json").read_text())["rows"]}
    assert rows.keys() == PROGRAMS.keys()
    for name in (OURS, "scipy"):
        assert len(rows[name]["runs"]) == 2
        assert rows[name]["runs"][0]["seconds"].keys() >= {"parse", "sort"}
    assert [path.name for path in tmp_path.iterdir()] == ["found.json"]
    assert len(rows[OURS_PARQUET]["runs"]) == 2


def test_a_graph_from_text_table_and_arrays_is_the_same_store(tmp_path):
    command = [*COMMAND, "--graph", "--json", str(tmp_path / "found.json"), "--cache", str(tmp_path)]
    assert ingesting.main(command) == 0
    rows = {row["program"]: row for row in json.loads((tmp_path / "found.json").read_text())["rows"]}
    assert rows.keys() == {OURS, OURS_PARQUET, OURS_ARRAYS}
    assert all(len(row["runs"]) == 2 for row in rows.values())
