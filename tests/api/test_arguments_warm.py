"""Ranking again after edges changed, from the ranks that were: fewer iterations, to the same ranks."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import mgspmv as mg
from mgspmv.api.arguments import align_ranks
from mgspmv.errors import OptionError
from tests.support.commands import invoke_json
from tests.support.reference_data import shared_data

PRECISE = {"tol": 1e-12, "max_iter": 300}
CHANGED = 1e-5
"""Of the edges."""


def change_edges(store) -> None:
    """A new version with some edges gone and as many new ones, at random."""
    A = mg.open_matrix(store)
    arcs, rng = A.to_scipy().tocoo(), np.random.default_rng(0)
    m = max(1, round(CHANGED * A.nnz / 2))
    gone = rng.choice(A.nnz, m, replace=False)
    ids = np.arange(A.shape[0]) if A.vertex_ids is None else A.vertex_ids
    new = ids[rng.integers(0, A.shape[0], (2, m))]
    delete = (ids[arcs.col[gone]], ids[arcs.row[gone]])
    mg.update(store, delete=delete, insert=tuple(new))


@pytest.mark.parametrize("precision", ["exact", "float32"])
@pytest.mark.parametrize(
    "name",
    [
        "graphs/wiki-Vote.txt.gz",
        "graphs/pgp-strong-2009.txt.gz",
        pytest.param("matrices/NotreDame_www.mtx.gz", marks=pytest.mark.slow),
    ],
)
def test_real_graphs_take_half_of_the_iterations(tmp_path, name, precision):
    A = mg.ingest(shared_data(name), tmp_path / "a", kind="graph", duplicates="first")
    before = mg.pagerank(A, precision=precision)
    change_edges(tmp_path / "a")
    A = mg.open_matrix(tmp_path / "a")
    assert A.info.number == 2
    cold, warm = mg.pagerank(A, precision=precision), mg.pagerank(A, precision=precision, nstart=before)
    assert warm.iterations <= cold.iterations / 2
    assert abs(warm.values.astype(float) - cold.values).sum() <= warm.error_bound_l1 + cold.error_bound_l1
    assert warm.error_bound_l1 <= 1e-6 / 0.15 * 1.2


@pytest.mark.parametrize("named", [False, True])
def test_vertices_that_come_and_go(named):
    def name(ends):
        names = np.char.add("v", ends.astype("U3")) if named else ends * 10
        return pd.DataFrame({"src": names[0], "dst": names[1]})

    ends = np.array([[0, 1, 2, 3, 4, 0, 5], [1, 2, 0, 0, 5, 4, 1]])
    old = mg.pagerank(mg.ingest(name(ends)), **PRECISE)
    ends[ends == 3] = 7  # one vertex less, one more
    A = mg.ingest(name(ends))
    aligned, known = align_ranks(old, A), dict(zip(old.ids, old.values, strict=True))
    assert aligned.tolist() == [known.get(v, 1 / 6) for v in A.vertex_ids]
    warm = mg.pagerank(A, nstart=old, **PRECISE)
    np.testing.assert_allclose(warm.values, mg.pagerank(A, **PRECISE).values, atol=1e-11)


def test_what_is_refused():
    a, b, c = (mg.ingest(pd.DataFrame({"src": n, "dst": n[::-1]})) for n in ([1, 2], ["x", "y"], [70, 80]))
    with pytest.raises(OptionError, match="vertices named by integers and the store by strings"):
        mg.pagerank(b, nstart=mg.pagerank(c))
    with pytest.raises(OptionError, match="has no vertex of the store"):
        mg.pagerank(c, nstart=mg.pagerank(a))
    larger = mg.ingest(([1, 90, 91, 92, 93], [90, 91, 92, 93, 1]))
    with pytest.warns(UserWarning, match="nstart has ranks of 1 of 5 vertices, and the others start at 1/n"):
        mg.pagerank(larger, nstart=mg.pagerank(pd.DataFrame({"src": [1, 500], "dst": [500, 1]})))
    with pytest.raises(OptionError, match="holds ranks scaled by 'minmax'; pass ranks as they were computed"):
        mg.pagerank(a, nstart=mg.pagerank(a).scale("minmax"))


@pytest.mark.parametrize("suffix", ["zarr", "parquet"])
def test_saved_ranks_are_a_start(tmp_path, suffix):
    mg.generate("rmat", tmp_path / "a", scale=9)
    ranks = tmp_path / f"ranks.{suffix}"
    cold = invoke_json("pagerank", str(tmp_path / "a"), "-o", str(ranks))
    warm = invoke_json("pagerank", str(tmp_path / "a"), "--nstart", str(ranks))
    assert warm["iterations"] < cold["iterations"] / 2
