"""What the choice of a CUDA kernel looks at, beside SciPy, and what it chooses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

from benchmarks.matrices import RECIPES, add_values
from mgspmv.kernels import features
from mgspmv.kernels.features import Features, find_features, rank_kernels
from mgspmv.kernels.select import list_kernels
from tests.support.blocks import make_block, to_scipy
from tests.support.matrices import HARD, naming

EVEN = Features(
    n_rows=1 << 20,
    n_cols=1 << 20,
    nnz=20 << 20,
    longest=30,
    n_filled=1 << 20,
    n_diagonals=None,
    scatter=0.1,
    nearby=0.0,
    index_bytes=4,
    value_bytes=4,
    x_bytes=4,
)
"""Rows of about 20 random columns."""
UNEVEN = replace(EVEN, longest=100_000, scatter=0.5)


def count_diagonals(matrix) -> int:
    coo = matrix.tocoo()
    return len(np.unique(coo.coords[1].astype(np.int64) - coo.coords[0]))


@pytest.mark.parametrize("data", [np.float64, np.float32, None])
def test_features_of_hard_matrices(data):
    for name, hard in HARD.items():
        with naming(name):
            check_features(make_block(hard, data=data), data)


def check_features(block, data):
    found, lengths = find_features(block, data or np.float32), np.diff(block.indptr)
    assert (found.n_rows, found.n_cols, found.nnz) == (block.n_rows, block.n_cols, block.nnz)
    assert (found.longest, found.n_filled) == (max(lengths, default=0), np.count_nonzero(lengths))
    assert (found.index_bytes, found.value_bytes) == (4, 0 if data is None else np.dtype(data).itemsize)
    diagonals = count_diagonals(to_scipy(block))
    assert found.n_diagonals == (diagonals if diagonals <= found.most_diagonals else None)
    assert set(rank_kernels(found)) <= set(list_kernels("cuda"))


def test_entries_off_the_diagonals_that_the_sample_missed():
    band = sp.diags_array([1.0] * 3, offsets=[-1, 0, 1], shape=(200_000, 200_000)).tocsr()
    far = sp.coo_array((np.ones(50), (np.full(50, 199_000), np.arange(50) * 2000)), shape=band.shape)
    matrix = sp.csr_array(band + far)
    data = matrix.data.astype(np.float32)
    block = features.CsrBlock(0, 200_000, matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32), data)
    sample, rows = features._sample_rows(block)
    assert np.unique(sample.indices - rows).tolist() == [-1, 0, 1]
    assert find_features(block, np.float32).n_diagonals is None


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["fem", "rmat22", "road", "hypersparse", "dense-column", "grid3d7"])
def test_features_on_a_device_are_those_on_the_host(name):
    cupy = pytest.importorskip("cupy")
    block = add_values(np, RECIPES[name].make(np, 200_000), "float32")
    for indptr in (np.int32, np.int64):
        arrays = (cupy.asarray(a) for a in (block.indptr.astype(indptr), block.indices, block.data))
        there = features.CsrBlock(0, block.n_cols, *arrays)
        assert find_features(there, np.float32) == find_features(block, np.float32)


CHOSEN = {
    "diagonal": "dia",
    "band40": "dia",
    "grid3d27": "dia",
    "road": "dia",
    "fem-shuffled": "ell",
    "dense-blocks": "ell",
    "rmat22-scrambled": "column-sorted-tiles",
    "zipf": "column-sorted-tiles",
    "fem-scattered": "column-sorted-tiles",
    "uniform24": "column-sorted-tiles",
    "uniform-l2": "column-sorted-tiles",
    "uniform-beyond": "column-sorted-tiles",
    "road-shuffled": "column-sorted-tiles",
    "dense-row": "csr-compact",
    "arrow": "hyb",
    "mostly-empty": "column-sorted-tiles",
    "hypersparse": "coo",
    "short-wide": "csr-warp",
    "tall-skinny": "csr-compact",
    "alternating": "column-sorted-tiles",
    "dense": "csr-warp",
    "upper-triangle": "csr-warp",
}
"""The one to use on a device for matrices of the benchmark."""
LARGER = ("fem-shuffled", "uniform24", "uniform-l2", "zipf", "alternating")
"""As small ones they would not be like themselves."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name == "fem-scattered" else ()) for name in CHOSEN]
)
def test_what_is_chosen_for_the_matrices_of_the_benchmark(name, monkeypatch):
    """As small ones, with the device as much smaller."""
    bounds = {"FULL_THREADS": 5000, "MANY_ITEMS": 10_000, "COMPACT_ITEMS": 10_000, "L1_BYTES": 4096, "NEAR": 256}
    for bound, value in bounds.items():
        monkeypatch.setattr(features, bound, value)
    size = (
        2_000_000
        if name in LARGER
        else 15_000_000
        if name == "fem-scattered"
        else 150_000
        if name in ("dense", "upper-triangle")
        else 250_000
    )
    pattern = RECIPES[name].make(np, size)
    found = [find_features(add_values(np, pattern, dtype), dtype) for dtype in ("float32", "float64")]
    assert [rank_kernels(each)[0] for each in found] == [CHOSEN[name]] * 2


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({}, "csr-vector"),
        ({"longest": 80}, "csr-vector"),
        ({"longest": 81}, "hyb"),
        ({"nnz": 4 << 20, "longest": 32}, "csr-vector"),
        ({"nnz": 4 << 20, "longest": 33}, "csr-split"),
        ({"longest": 22}, "ell"),
        ({"longest": 23}, "csr-vector"),
        ({"longest": 22, "n_rows": 1000, "nnz": 20_000}, "csr-vector"),
        ({"n_diagonals": 30}, "dia"),
        ({"n_diagonals": 30, "n_rows": 1000, "nnz": 20_000}, "csr-vector"),
        ({"scatter": 0.15}, "column-sorted-tiles"),
        ({"scatter": 0.15, "longest": 22}, "column-sorted-tiles"),
        ({"scatter": 0.15, "n_cols": 32 << 10}, "sell"),
        ({"scatter": 0.15, "value_bytes": 0}, "column-sorted-tiles"),
        ({"scatter": 0.15, "n_rows": 1 << 18, "nnz": 20 << 18}, "csr-vector"),
        ({"scatter": 0.15, "n_diagonals": 30}, "dia"),
        ({"n_cols": 32 << 10}, "sell"),
        ({"n_cols": 33 << 10}, "csr-vector"),
        ({"n_cols": 100, "nnz": 7 << 20}, "csr-vector"),
        ({"n_rows": 1 << 18, "nnz": 255 << 18, "longest": 300}, "csr-vector"),
        ({"n_rows": 1 << 18, "nnz": 256 << 18, "longest": 300}, "csr-warp"),
        ({"nearby": 0.75}, "csr-compact"),
        ({"nearby": 0.74}, "csr-vector"),
        ({"nearby": 0.9, "scatter": 0.15}, "csr-compact"),
        ({"nearby": 0.89, "scatter": 0.15}, "column-sorted-tiles"),
        ({"nearby": 1.0, "value_bytes": 0}, "csr-compact"),
        ({"nearby": 1.0, "value_bytes": 0, "x_bytes": 8}, "csr-vector"),
        ({"nearby": 1.0, "value_bytes": 8, "x_bytes": 8}, "csr-compact"),
        ({"nearby": 1.0, "n_diagonals": 30}, "dia"),
        ({"nearby": 1.0, "scatter": 0.15}, "csr-compact"),
        ({"nearby": 1.0, "longest": 22}, "ell"),
        ({"nearby": 1.0, "n_cols": 32 << 10}, "sell"),
        ({"nearby": 1.0, "n_rows": 1 << 18, "nnz": 256 << 18, "longest": 300}, "csr-warp"),
        ({"nearby": 1.0, "n_rows": 1 << 17, "nnz": 15 << 17}, "csr-compact"),
        ({"nearby": 1.0, "n_rows": 1 << 17, "nnz": (15 << 17) - 1}, "csr-vector"),
        ({"nnz": 1 << 18}, "coo"),
        ({"nnz": 0, "longest": 0, "n_filled": 0}, "coo"),
    ],
    ids=str,
)
def test_bounds_of_the_rules(change, wanted):
    assert rank_kernels(replace(EVEN, **change))[0] == wanted


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({}, "column-sorted-tiles"),
        ({"scatter": 0.15}, "column-sorted-tiles"),
        ({"nearby": 0.9}, "csr-compact"),
        ({"nearby": 0.75, "scatter": 0.14, "nnz": 4 << 20}, "csr-compact"),
        ({"nearby": 0.9, "value_bytes": 0}, "column-sorted-tiles"),
        ({"scatter": 0.14}, "hyb"),
        ({"longest": 20 << 16}, "column-sorted-tiles"),
        ({"longest": (20 << 16) + 1}, "hyb"),
        ({"value_bytes": 0}, "column-sorted-tiles"),
        ({"value_bytes": 0, "scatter": 0.14}, "csr-split"),
        ({"value_bytes": 0, "scatter": 0.14, "nearby": 0.75}, "csr-compact"),
        ({"value_bytes": 0, "scatter": 0.14, "nearby": 0.75, "x_bytes": 8}, "csr-compact"),
        ({"n_filled": 300_000}, "column-sorted-tiles"),
        ({"n_filled": 300_000, "scatter": 0.14}, "csr-split"),
        ({"n_rows": 1 << 16, "n_filled": 1 << 16, "nnz": 1 << 20}, "csr-split"),
    ],
    ids=str,
)
def test_rows_that_differ(change, wanted):
    ranked = rank_kernels(replace(UNEVEN, **change))
    assert ranked[0] == wanted
    assert "csr-split" in ranked


def test_the_last_one_never_fails_and_none_comes_twice():
    bounds = {"nnz": (0, 1 << 18, 20 << 20), "longest": (30, 1000), "n_rows": (100, 1 << 20), "n_diagonals": (None, 5)}
    for nnz, longest, n_rows, n_diagonals in np.array(np.meshgrid(*bounds.values())).reshape(4, -1).T:
        made = replace(EVEN, nnz=nnz, longest=longest, n_rows=n_rows, n_diagonals=n_diagonals)
        ranked = rank_kernels(made)
        assert len(ranked) == len(set(ranked))
        assert ranked[-1] in ("csr-split", "csr-vector")
