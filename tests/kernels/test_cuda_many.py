"""PageRank of many vectors on a device: to the bits of the host in exact fixed point, near them elsewhere."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.sparse

import mgspmv as mg
from mgspmv.kernels.operands import WIDTHS, Terms
from mgspmv.kernels.select import bind_many
from mgspmv.model import CsrBlock
from tests.support.pairwise import cover_pairs

pytestmark = pytest.mark.gpu

N = 5000
PRECISIONS = ("exact", "float64", "float32")


@pytest.fixture(scope="module")
def cupy():
    return pytest.importorskip("cupy")


def make_graph(*, pattern: bool, dtype=np.float64) -> CsrBlock:
    """Rows of 0 to thousands of entries, columns that nothing reads, with weights that sum to about 1 a column."""
    rng = np.random.default_rng(5)
    lengths = np.minimum(rng.pareto(0.7, N) * 2, N / 2).astype(np.int64)
    rows = np.repeat(np.arange(N), lengths)
    columns = (rng.random(len(rows)) ** 3 * (N - 100)).astype(np.int64)
    matrix = scipy.sparse.csr_array((rng.random(len(rows)), (rows, columns)), shape=(N, N))
    matrix.sum_duplicates()
    data = None if pattern else matrix.data.astype(dtype)
    return CsrBlock(0, N, matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32), data)


def find_weight(block: CsrBlock) -> np.ndarray:
    values = np.ones(block.nnz) if block.data is None else block.data.astype(np.float64)
    return np.bincount(block.indices, values, N)


def make_terms(width: int, dangling: str, put) -> Terms:
    """Columns with patches, some in the same row, uniform ones, and the last one without a vector."""
    rng = np.random.default_rng(width)
    alpha, base = rng.uniform(0.3, 0.95, width), np.zeros(width)
    alpha[-1] = 0.0
    base[::3] = 1 / N
    columns = np.repeat(np.arange(width), 3)
    columns = columns[base[columns] == 0]
    rows = rng.choice([0, 7, 8, N - 1, 300], len(columns))
    order = np.lexsort((columns, rows))
    rows, columns = rows[order], columns[order]
    is_first = np.append(True, (np.diff(rows) != 0) | (np.diff(columns) != 0))
    rows, columns = rows[is_first].astype(np.int64), columns[is_first].astype(np.int64)
    d = {"p": np.empty(0), "uniform": np.full(1, 1 / N), "vector": rng.random(N) / N}[dangling]
    return Terms(alpha, put(d), base, *(put(part) for part in (rows, columns, np.full(len(rows), 1 / 3))))


def run_steps(block, precision, width, dangling, backend, is_relative):
    """Ranks after some steps, all sums on the way, and the residuals in float64."""
    kernel = bind_many(block, precision, backend=backend)
    rank = np.float32 if precision == "float32" else np.float64
    weight, terms = kernel.put(find_weight(block)), make_terms(width, dangling, kernel.put)
    x, z, z_next = (kernel.zeros_many(N, width, d) for d in (rank, kernel.z_dtype, kernel.z_dtype))
    kernel.compile_many((width,), width, is_relative=is_relative)
    start = np.random.default_rng(1).random((width, N)).astype(rank)
    start /= start.sum(axis=1, keepdims=True)
    x[...] = kernel.put(start.T)
    sums = [kernel.scale_many(x, weight, z)]
    for _ in range(4):
        mass = np.array([s.dangling for s in sums[-1]]) / 2.0**62
        sums.append(kernel.step_many(z, x, z_next, weight, mass, terms, is_relative=is_relative))
        z, z_next = z_next, z
    wide = kernel.with_precision("float64")
    z = wide.zeros_many(N, width, np.float64)
    wide.scale_many(x, weight, z)
    mass = np.array([s.dangling for s in sums[-1]]) / 2.0**62
    residual = wide.residual_many(z, x, mass, terms)
    out, wide_x = kernel.zeros_many(2, N, rank), kernel.zeros_many(N, 2, rank)
    kernel.take(x, np.array([width - 1, 0]), out)
    assert (kernel.get(out) == kernel.get(x).T[[width - 1, 0]]).all()
    kernel.take(x, np.array([0]), wide_x[:, 1:2].T)
    assert (kernel.get(wide_x) == np.stack([0 * start[0], kernel.get(x)[:, 0]], axis=1)).all()
    return kernel.get(x), sums, residual


@cover_pairs(precision=PRECISIONS, values=[None, np.float32, np.float64], dangling=["p", "uniform", "vector"])
def test_steps_are_those_of_the_host(cupy, precision, values, dangling):
    block = make_graph(pattern=values is None, dtype=values)
    for width, is_relative in itertools.product(WIDTHS, (False, True)):
        x, sums, residual = run_steps(block, precision, width, dangling, "cuda", is_relative)
        wanted, wanted_sums, wanted_residual = run_steps(block, precision, width, dangling, "cpu", is_relative)
        if precision == "exact":
            assert x.tobytes() == wanted.tobytes()
            assert sums == wanted_sums
        np.testing.assert_allclose(x, wanted, rtol=1e-5 if precision == "float32" else 1e-12)
        np.testing.assert_allclose(residual, wanted_residual, rtol=1e-3, atol=1e-7 if precision == "float32" else 1e-13)
        again = run_steps(block, precision, width, dangling, "cuda", is_relative)
        assert again[0].tobytes() == x.tobytes()
        assert again[1] == sums


@pytest.mark.parametrize("precision", PRECISIONS)
def test_batches_are_those_of_the_host(cupy, tmp_path, precision):
    mg.generate("rmat", tmp_path / "a.zarr", scale=11)
    rng = np.random.default_rng(2)
    seeds = [dict.fromkeys(rng.integers(0, 2048, 3).tolist(), 1.0) for _ in range(20)] + [None]
    alphas = rng.uniform(0.5, 0.9, 21).tolist()
    A = mg.open_matrix(tmp_path / "a.zarr")
    for more in (
        {},
        {"width": 4},
        {"dangling": "drop"},
        {"dangling": "uniform", "keep_top": 5},
        {"norm": "relative", "tol": 1e-3},
    ):
        found, wanted = (
            mg.pagerank_batch(A.on(backend), seeds, alpha=alphas, precision=precision, **more)
            for backend in ("cuda", "cpu")
        )
        assert found.statuses == wanted.statuses
        kept = [(b.values, b.top_ranks)[more.get("keep_top") is not None] for b in (found, wanted)]
        if precision == "exact":
            assert kept[0].tobytes() == kept[1].tobytes()
            assert found.changes == wanted.changes
        np.testing.assert_allclose(*kept, rtol=1e-4 if precision == "float32" else 1e-9)
        if precision != "float32":
            np.testing.assert_allclose(found.error_bounds_l1, wanted.error_bounds_l1, rtol=0.2)
    alone = mg.pagerank(A.on("cuda"), personalization=seeds[3], alpha=alphas[3], precision=precision)
    batch = mg.pagerank_batch(A.on("cuda"), seeds, alpha=alphas, precision=precision)
    if precision == "exact":
        assert batch[3].digest() == alone.digest()
    right = mg.pagerank_batch(A.on("cpu"), seeds, alpha=alphas, tol=1e-13)
    assert (abs(batch.values - right.values).sum(axis=1) <= batch.error_bounds_l1 + right.error_bounds_l1).all()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_highest_are_those_that_the_host_selects(cupy, tmp_path, precision):
    """Most ranks are the same, and rows are in another order than the vertices of the source."""
    rng, n = np.random.default_rng(3), 20_000
    A = mg.ingest(
        tuple(rng.integers(0, 300, (2, 4000))), tmp_path / "a.zarr", kind="graph", n_vertices=n, order="degree"
    )
    seeds = [[0], [7, 19_999], None, rng.permutation(n)[:50].tolist()]
    for top in (1, 20, 2000, n):
        found, wanted = (
            mg.pagerank_batch(A.on(backend), seeds, keep_top=top, precision=precision) for backend in ("cuda", "cpu")
        )
        if precision == "exact":
            assert found.digest() == wanted.digest()
        np.testing.assert_allclose(found.top_ranks, wanted.top_ranks, rtol=1e-4 if precision == "float32" else 1e-9)
        whole = mg.pagerank_batch(A.on("cuda"), seeds, precision=precision)
        assert found.top() == whole.top(top)
