"""`mgspmv bench methods`: how soon PageRank ends, checked and timed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import mgspmv as mg
from benchmarks import methods
from benchmarks.methods import RUNS, is_right, rank_plainly, run_methods
from tests.support.commands import invoke


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


def test_the_command_fails_where_ranks_are_wrong(graph, monkeypatch):
    monkeypatch.setattr(methods, "rank_plainly", lambda A: rank_plainly(A)[::-1])
    _, stderr = invoke("bench", "methods", graph, "--rounds", "1", code=1)
    assert "wrong ranks: power on rmat" in stderr
