"""Whole ways on the workers of one machine."""

from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest

from benchmarks import several_gpus, stages
from benchmarks.ranked_edges import Run
from benchmarks.several_gpus import Row, write_edges
from mgspmv.ingest.generate import make_generator

SMALL = ("--scale", "10", "--workers", "2", "--backend", "cpu", "--repeats", "1")


@pytest.mark.slow
def test_all_parts_give_one_digest(tmp_path):
    options = ("--cache", str(tmp_path / "graphs"), "--json", str(tmp_path / "found.json"))
    assert several_gpus.main([*SMALL, *options]) == 0
    rows = json.loads((tmp_path / "found.json").read_text())["rows"]
    assert [row["part"] for row in rows] == ["generate", "one device", "process", "warm", "parquet"]
    assert all(len(row["runs"]) == 1 and not row["remark"] for row in rows)
    assert {"import", "start workers", "iterate", "write"} <= rows[2]["runs"][0]["stages"].keys()


@pytest.mark.slow
def test_other_ranks_are_found(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(several_gpus.Bench, "rank_alone", lambda self: (Row("one device", (Run(1.0, {}),)), "another"))
    assert several_gpus.main([*SMALL, "--cache", str(tmp_path), "--part", "warm"]) == 1
    assert "OTHER DIGEST" in capsys.readouterr().out


def test_edges_are_those_of_the_generator(tmp_path):
    write_edges(tmp_path / "edges.parquet", 6)
    found, [batch] = pq.read_table(tmp_path / "edges.parquet"), make_generator("rmat", scale=6).batches()
    assert found["source"].to_pylist() == batch.rows.tolist()
    assert found["target"].to_pylist() == batch.cols.tolist()


def test_the_outermost_known_function_names_the_stage():
    assert stages.find_stage(None) == "other"
