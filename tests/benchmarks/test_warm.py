"""`mgspmv bench warm`: how soon ranks of changed graphs are there, checked and timed."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from zarr.storage import MemoryStore

import mgspmv as mg
from benchmarks import warm
from benchmarks.warm import CHANGES, WARM, Record, change_arcs, read_arcs, run_warm
from mgspmv.errors import OptionError
from tests.support.commands import invoke

RUNS = ["cold", *WARM]
RECORD = Record("web", "few", "cold", iterations=90, equivalents=0.0, elapsed_s=0.0125, is_right=False)


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


def test_as_many_arcs_are_new_as_gone(graph):
    for changes in CHANGES:
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


def test_what_is_refused(graph):
    store = MemoryStore()
    mg.ingest(sp.coo_array(np.eye(3)), store, kind="matrix")
    with pytest.raises(OptionError, match="kind 'matrix'; pass stores of kind 'graph'"):
        read_arcs(mg.open_matrix(store))
    with pytest.raises(OptionError, match="of 1 edges 2 cannot change; pass a smaller share, or a larger graph"):
        change_arcs(sp.coo_array(([1.0], ([0], [1])), shape=(2, 2)), 1e-5, "random")


def test_the_command_fails_where_ranks_are_wrong(graph, monkeypatch):
    monkeypatch.setattr(warm, "run_warm", lambda *args: [RECORD])
    _, stderr = invoke("bench", "warm", graph, code=1)
    assert "wrong ranks: cold on web, few" in stderr
