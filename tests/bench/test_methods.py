"""`mgspmv bench methods`: how soon PageRank ends, checked and timed."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import mgspmv as mg
from mgspmv.bench import methods
from mgspmv.bench.methods import LEGEND, RUNS, Record, format_report, is_right, rank_plainly, run_methods
from tests.support.commands import invoke

RECORD = Record(graph="web", run="power", iterations=90, elapsed_s=0.0125, is_tied=False, is_right=True)


@pytest.fixture(scope="module")
def graph(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("graph") / "rmat.zarr"
    mg.generate("rmat", path, scale=11)
    return str(path)


def test_all_runs_are_right_and_timed(graph):
    said = []
    records = run_methods([graph], 2, say=said.append)
    assert [r.run for r in records] == list(RUNS)
    assert len(said) == len(RUNS)
    assert all(r.is_right and r.elapsed_s > 0 and r.graph == "rmat" for r in records)
    by_run = {r.run: r for r in records}
    assert by_run["extrapolation"].iterations <= by_run["power"].iterations
    assert by_run["topk:100"].iterations < by_run["power"].iterations


def test_small_graphs_have_no_thousand_highest(tmp_path):
    mg.generate("rmat", tmp_path / "small.zarr", scale=6)
    assert [r.run for r in run_methods([str(tmp_path / "small.zarr")], 1)] == ["power", "extrapolation"]


def test_wrong_ranks_are_found(graph):
    with mg.open_matrix(graph) as A:
        wanted, solution = rank_plainly(A), mg.pagerank(A, stop="topk:10")
    assert is_right(solution, wanted)
    off = wanted.copy()
    off[0] += 1e-3
    assert not is_right(solution, off)
    lowest = int(np.argmin(solution.values))
    moved = wanted.copy()
    moved[lowest] = 1.0
    assert not is_right(replace(solution, error_bound_l1=10.0), moved)


def test_the_table():
    others = [replace(RECORD, run="topk:10", is_tied=True), replace(RECORD, graph="road", is_right=False)]
    report = format_report({"command": "mgspmv bench methods"}, [RECORD, *others])
    assert report.splitlines()[4:] == [
        "| graph | power | topk:10 |", "|---|---|---|", "| web | 90 (12.5) | – |", "| road | wrong |  |", "", LEGEND,
    ]  # fmt: skip


def test_the_command(graph, tmp_path, monkeypatch):
    kept = tmp_path / "found.json"
    report, _ = invoke("bench", "methods", graph, "--rounds", "1", "--output", str(kept))
    assert "| rmat |" in report
    assert [r["run"] for r in json.loads(kept.read_text())["records"]] == list(RUNS)
    monkeypatch.setattr(methods, "run_methods", lambda *args: [replace(RECORD, is_right=False)])
    _, said = invoke("bench", "methods", graph, code=1)
    assert "wrong ranks: power on web" in said
