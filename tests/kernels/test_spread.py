"""Out-edges and passing on along them, beside SciPy's transpose and dense products."""

from __future__ import annotations

import numpy as np
import pytest

from mgspmv.kernels import spread
from mgspmv.kernels.spread import OutEdges, Spread, count_out_edges
from mgspmv.model import CHANGE_POINT
from tests.support.blocks import cut_rows, make_block, make_random, to_scipy
from tests.support.matrices import GRAPHS, naming
from tests.support.pairwise import cover_pairs


@pytest.fixture(autouse=True)
def _no_serial_part(monkeypatch) -> None:
    """Small blocks are enough for several threads."""
    monkeypatch.setattr(spread, "SERIAL_NNZ", 1)


@pytest.fixture(params=[1, 3])
def threads(request) -> int:
    return request.param


def sort_edges(indptr, indices, data):
    """Edges of each vertex in the order of their targets."""
    sources = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    values = np.ones(len(indices)) if data is None else data
    order = np.lexsort((values, indices, sources))
    return indices[order], values[order]


@cover_pairs(
    data={"float64": np.float64, "float32": np.float32, "pattern": None}, indices=[np.int32, np.int64], n_threads=[1, 3]
)
def test_out_edges_are_columns(data, indices, n_threads):
    for name, hard in GRAPHS.items():
        with naming(name):
            check_out_edges(make_block(hard, indices=indices, data=data), n_threads)


def check_out_edges(block, threads):
    n = block.n_rows
    blocks = [cut_rows(block, 0, n // 2), cut_rows(block, n // 2, n)]
    degree = count_out_edges(blocks, threads)
    edges = OutEdges(blocks, degree, threads)
    columns = to_scipy(block).tocsc()
    np.testing.assert_array_equal(degree, np.diff(columns.indptr))
    found = sort_edges(edges.indptr, edges.targets, edges.values)
    wanted = sort_edges(columns.indptr, columns.indices, columns.data)
    np.testing.assert_array_equal(found[0], wanted[0])
    np.testing.assert_array_equal(found[1], wanted[1])
    assert edges.targets.dtype == block.indices.dtype


@pytest.mark.parametrize("pattern", [False, True])
def test_rounds_are_products_with_what_is_passed_on(pattern, threads):
    n, limit = 700, 1e-5
    block, rng = make_random(np.full(n, 7), n, data=None if pattern else np.float64), np.random.default_rng(3)
    matrix, degree = to_scipy(block).toarray(), count_out_edges([block], threads)
    share = rng.random(n) * (rng.random(n) < 0.8) / 50
    r = np.where(rng.random(n) < 0.05, rng.normal(size=n) / n, 0.0)
    x = rng.random(n)
    run = Spread(
        OutEdges([block], degree, threads), x.copy(), np.rint(r * CHANGE_POINT).astype(np.int64), share, threads
    )
    assert run.look().total == pytest.approx(np.abs(r).sum())
    for _ in range(5):
        passes = np.abs(r) > limit * (degree + 1)
        moved = np.where(passes, r, 0.0)
        made = run.pass_on(limit)
        assert (made.n_passed, made.n_edges) == (passes.sum(), degree[passes].sum())
        r, x = r - moved + matrix @ (share * moved), x + moved
        np.testing.assert_allclose(run.residual / CHANGE_POINT, r, atol=1e-15)
        np.testing.assert_allclose(run.x, x, rtol=1e-14)
        assert made.n_seen <= n
    assert run.look().largest == pytest.approx(np.abs(r).max())


def test_only_what_was_written_to_is_seen_again(threads):
    n = 10_000
    block = make_random(np.full(n, 2), n, data=None)
    degree = count_out_edges([block], threads)
    residual = np.zeros(n, np.int64)
    residual[17] = 1 << 50
    run = Spread(OutEdges([block], degree, threads), np.zeros(n), residual, np.full(n, 0.1), threads)
    assert run.pass_on(0.0).n_seen == 0
    run.look()
    assert run.pass_on(0.0).n_seen == n
    assert run.pass_on(0.0).n_seen <= spread.LINE * degree[17]


def test_bits_do_not_depend_on_threads():
    n = 3000
    block = make_random(np.full(n, 12), n)
    start, found = np.random.default_rng(0).integers(-(1 << 40), 1 << 40, n), []
    for threads in (1, 2, 3, 8):
        degree = count_out_edges([block], threads)
        run = Spread(OutEdges([block], degree, threads), np.zeros(n), start.copy(), np.full(n, 0.05), threads)
        run.look()
        rounds = [run.pass_on(1e-8) for _ in range(6)]
        found.append((rounds, run.x.tobytes(), run.residual.tobytes()))
    assert all(other == found[0] for other in found)


def test_bytes_are_those_that_are_taken():
    block = make_random(np.full(500, 25), 500)
    degree = count_out_edges([block], 1)
    edges = OutEdges([block], degree, 1)
    run = Spread(edges, np.zeros(500), np.zeros(500, np.int64), np.zeros(500), 1)
    arrays = [edges.indptr, edges.targets, edges.values, degree, run.x, run.residual, run._changed, run._passed]
    assert sum(a.nbytes for a in arrays) <= OutEdges.count_bytes([block])
