"""The vectors that a run starts with."""

from __future__ import annotations

import numpy as np
import pytest
import zarr

import mgspmv as mg
from mgspmv.errors import DanglingError, OptionError, ShapeError
from mgspmv.iterate.options import PageRankOptions
from mgspmv.iterate.start import make_start
from mgspmv.kernels.select import bind_kernel

ARCS = np.array([[0, 2.5, 0.5], [0, 0, 4.0], [0, 0, 0]])


@pytest.fixture(scope="module")
def graph():
    """0 -> 1 and 2, 1 -> 2; 2 is dangling."""
    store = zarr.storage.MemoryStore()
    mg.ingest(ARCS, store, kind="graph")
    return mg.open_matrix(store)


def start_of(A, *, use_weights=True, alpha=0.75, precision="exact", **given):
    options = PageRankOptions(alpha=alpha, precision=precision)
    return make_start(A.stored, A.vertex_ids, options, **given, use_weights=use_weights)


def test_all_is_uniform_by_default(graph):
    start = start_of(graph)
    assert start.x.tolist() == [1 / 3] * 3
    assert start.personalization.tolist() == start.dangling.tolist() == [1 / 3]
    assert start.weight.tolist() == [3.0, 4.0, 0.0]


def test_weights_are_degrees_when_they_are_left_out(graph):
    assert start_of(graph, use_weights=False).weight.tolist() == [2.0, 1.0, 0.0]


def test_columns_of_a_stochastic_matrix_weigh_1_or_nothing():
    store = zarr.storage.MemoryStore()
    mg.ingest(np.array([[0, 0, 0], [0.75, 0, 0], [0.25, 1, 0]]), store, kind="stochastic")
    assert start_of(mg.open_matrix(store)).weight.tolist() == [1.0, 1.0, 0.0]


@pytest.mark.parametrize(("precision", "dtype"), [("exact", "f8"), ("float64", "f8"), ("float32", "f4")])
def test_only_ranks_are_float32(graph, precision, dtype):
    start = start_of(graph, precision=precision, nstart=np.ones(3), personalization={1: 1}, dangling={2: 1})
    assert start.x.dtype == np.dtype(dtype)
    assert start.weight.dtype == start.dangling.dtype == start.personalization.dtype == np.float64


def test_vectors_are_normalised(graph):
    start = start_of(graph, personalization=[1, 3, 0], dangling={0: 5}, nstart={1: 1, 2: 1})
    assert start.personalization.tolist() == [0.25, 0.75, 0.0]
    assert start.dangling.tolist() == [1.0, 0.0, 0.0]
    assert start.x.tolist() == [0.0, 0.5, 0.5]


@pytest.mark.parametrize(
    ("rule", "wanted", "x"),
    [
        (None, [0.25, 0.75, 0.0], [1 / 3] * 3),
        ("uniform", [1 / 3], [1 / 3] * 3),
        ("drop", [0.0], [0.0625, 0.1875, 0.0]),
    ],
)
def test_dangling_rules(graph, rule, wanted, x):
    start = start_of(graph, personalization=[1, 3, 0], dangling=rule)
    assert start.dangling.tolist() == wanted
    assert start.x.tolist() == x


def test_start_given_with_dropped_mass_is_used(graph):
    assert start_of(graph, dangling="drop", nstart=[0, 1, 1]).x.tolist() == [0.0, 0.5, 0.5]


def test_dangling_error(graph):
    with pytest.raises(DanglingError, match=r"^1 of 3 vertices have no out-edges, or only ones of weight 0, first 2,"):
        start_of(graph, dangling="error")


def test_vectors_that_do_not_fit(graph):
    with pytest.raises(OptionError, match="dangling must be one of 'uniform', 'drop', 'error', not 'self'"):
        start_of(graph, dangling="self")
    with pytest.raises(ShapeError, match=r"nstart has shape \(2,\) but the matrix has 3 vertices"):
        start_of(graph, nstart=[1, 2])


def test_rows_of_a_block_are_views(graph):
    start = start_of(graph, personalization=[1, 3, 0], dangling="uniform")
    first, second = (start.cut(bind_kernel(b, "exact")) for b in graph.load(2).blocks("float64"))
    graph.load(1)
    assert (first.start, first.stop, second.stop) == (0, second.start, 3)
    assert first.personalization.tolist() + second.personalization.tolist() == [0.25, 0.75, 0.0]
    assert first.dangling is start.dangling
    second.x[:] = 7
    assert start.x[second.start :].tolist() == [7.0] * (3 - second.start)
    assert second.nbytes == second.kernel.block.nbytes + 8 * (3 * (3 - second.start) + 1)
