"""`mgspmv bench warm`: how soon ranks of changed graphs are there, checked and timed."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from zarr.storage import MemoryStore

import mgspmv as mg
from mgspmv.bench import warm
from mgspmv.bench.warm import CHANGES, LEGEND, WARM, Record, change_arcs, format_report, read_arcs, run_warm, store_arcs
from mgspmv.errors import OptionError
from tests.support.commands import invoke

RUNS = ["cold", *WARM]
RECORD = Record("web", "few", "cold", iterations=90, equivalents=0.0, elapsed_s=0.0125, is_right=True)


@pytest.fixture(scope="module")
def graph(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("graph") / "rmat.zarr"
    mg.generate("rmat", path, scale=10)
    return str(path)


def test_all_runs_are_right_and_timed(graph):
    said = []
    records = run_warm([graph], 2, share=1e-3, tol=1e-8, say=said.append)
    assert [(r.changes, r.run) for r in records] == [(c, run) for c in CHANGES for run in RUNS]
    assert len(said) == len(records)
    assert all(r.is_right and r.elapsed_s > 0 and r.graph == "rmat" for r in records)
    for r in records:
        assert (r.equivalents > 0) == r.run.startswith("followed")
        cold = next(c for c in records if (c.changes, c.run) == (r.changes, "cold"))
        assert r.iterations < cold.iterations or r is cold


@pytest.mark.parametrize("changes", CHANGES)
def test_as_many_arcs_are_new_as_gone(graph, changes):
    arcs = read_arcs(mg.open_matrix(graph))
    changed = change_arcs(arcs, 0.01, changes)
    before, after = (set(zip(a.row.tolist(), a.col.tolist(), strict=True)) for a in (arcs, changed))
    m = round(0.01 * arcs.nnz / 2)
    assert changed.nnz == arcs.nnz
    assert len(before - after) <= m
    assert len(after - before) <= m
    assert len(before - after) > 0.9 * m
    sources = {i for i, _ in before ^ after}
    if changes == "few":
        assert len(sources) <= max(2 * m // 16, 30)
    if changes == "end":
        assert min(sources) > arcs.shape[0] / 2
    assert change_arcs(arcs, 0.01, changes).row.tolist() == changed.row.tolist()


def test_weights_are_kept():
    arcs = sp.coo_array(([2.0, 3.0, 5.0], ([0, 1, 2], [1, 2, 0])), shape=(3, 3))
    changed = change_arcs(arcs, 0.1, "random")
    assert sorted(changed.data.tolist()) == [2.0, 3.0, 5.0]
    assert store_arcs(changed, is_pattern=False).dtype == "float64"
    assert store_arcs(changed, is_pattern=True).is_pattern


def test_what_is_refused(graph):
    store = MemoryStore()
    mg.ingest(sp.coo_array(np.eye(3)), store, kind="matrix")
    with pytest.raises(OptionError, match="kind 'matrix'; pass stores of kind 'graph'"):
        read_arcs(mg.open_matrix(store))
    with pytest.raises(OptionError, match="of 1 edges 2 cannot change; pass a smaller share, or a larger graph"):
        change_arcs(sp.coo_array(([1.0], ([0], [1])), shape=(2, 2)), 1e-5, "random")


def test_the_table():
    others = [
        replace(RECORD, run="warm", iterations=45),
        replace(RECORD, run="followed", iterations=2, equivalents=7.0, elapsed_s=0.001),
        replace(RECORD, changes="end"),
        replace(RECORD, changes="end", run="warm", is_right=False),
        replace(RECORD, changes="end", run="followed"),
    ]
    report = format_report({"command": "mgspmv bench warm"}, [RECORD, *others], 1e-5, 1e-10)
    assert report.splitlines()[4:] == [
        "| graph | changes | cold | warm | followed |", "|---|---|---|---|---|",
        "| web | few | 90 (12.5) | 45: 50% (12.5) | 2 + 7.0: 10% (1) |",
        "| web | end | 90 (12.5) | wrong | 90: 100% (12.5) |", "", LEGEND.format(tol=1e-10, share=1e-5),
    ]  # fmt: skip


def test_the_command(graph, tmp_path, monkeypatch):
    kept = tmp_path / "found.json"
    report, _ = invoke("bench", "warm", graph, "--rounds", "1", "--tol", "1e-6", "--output", str(kept))
    assert "| rmat | end |" in report
    assert len(json.loads(kept.read_text())["records"]) == len(CHANGES) * len(RUNS)
    monkeypatch.setattr(warm, "run_warm", lambda *args: [replace(RECORD, is_right=False)])
    _, said = invoke("bench", "warm", graph, code=1)
    assert "wrong ranks: cold on web, few" in said
