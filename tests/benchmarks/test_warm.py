"""The benchmark of warm starts changes graphs, and checks the ranks of the changed ones."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from zarr.storage import MemoryStore

import mgspmv as mg
from benchmarks import warm
from benchmarks.warm import CHANGES, RUNS, change_arcs, read_arcs
from mgspmv.errors import OptionError


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


def test_as_many_arcs_are_new_as_deleted(rmat: str) -> None:
    arcs = read_arcs(mg.open_matrix(rmat))
    m = round(0.01 * arcs.nnz / 2)
    for changes in CHANGES:
        changed = change_arcs(arcs, 0.01, changes)
        before, after = (set(zip(a.row.tolist(), a.col.tolist(), strict=True)) for a in (arcs, changed))
        assert changed.nnz == arcs.nnz
        assert 0.9 * m < len(before - after) <= m
        assert len(after - before) <= m
        sources = {i for i, _ in before ^ after}
        if changes == "few":
            assert len(sources) <= max(2 * m // 16, 30)
        if changes == "end":
            assert min(sources) > arcs.shape[0] / 2


def test_what_cannot_be_measured() -> None:
    store = MemoryStore()
    mg.ingest(sp.coo_array(np.eye(3)), store, kind="matrix")
    with pytest.raises(OptionError, match="kind 'matrix'; pass stores of kind 'graph'"):
        read_arcs(mg.open_matrix(store))
    with pytest.raises(OptionError, match="of 1 edges 2 cannot change; pass a smaller share, or a larger graph"):
        change_arcs(sp.coo_array(([1.0], ([0], [1])), shape=(2, 2)), 1e-5, "random")
