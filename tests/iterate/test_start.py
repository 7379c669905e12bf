"""The vectors that a run starts with."""

from __future__ import annotations

import numpy as np
import pytest
import zarr

import mgspmv as mg
from mgspmv.iterate.options import PageRankOptions
from mgspmv.iterate.start import make_start, read_out_weight
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


@pytest.mark.parametrize("use_weights", [True, False])
@pytest.mark.parametrize("kind", ["graph", "stochastic"])
def test_weights_of_some_vertices_are_those_of_all(kind, use_weights):
    store = zarr.storage.MemoryStore()
    mg.ingest(np.array([[0, 0.5, 0.5, 0], [0, 0, 0.25, 0], [0, 0, 0, 0], [1, 0.5, 0.25, 0]]), store, kind=kind)
    stored = mg.open_matrix(store).stored
    weight = read_out_weight(stored, use_weights)
    assert weight.dtype == np.float64
    assert weight.any()
    for start in range(5):
        for stop in range(start, 5):
            assert read_out_weight(stored, use_weights, start, stop).tolist() == weight[start:stop].tolist()


@pytest.mark.parametrize(("precision", "dtype"), [("exact", "f8"), ("float64", "f8"), ("float32", "f4")])
def test_only_ranks_are_float32(graph, precision, dtype):
    start = start_of(graph, precision=precision, nstart=np.ones(3), personalization={1: 1}, dangling={2: 1})
    assert start.x.dtype == start_of(graph, precision=precision).x.dtype == np.dtype(dtype)
    assert read_out_weight(graph.stored, True).dtype == np.float64
    assert start.dangling.dtype == start.personalization.dtype == np.float64


def cut_for(start, block):
    """What the owner of a block starts with."""
    first, last = block.row_offset, block.row_offset + block.n_rows
    return start.cut(first, last).bind(bind_kernel(block, "exact"), np.arange(3.0)[first:last])


def test_rows_of_a_block_are_views(graph):
    start = start_of(graph, personalization=np.array([1, 3, 0]), dangling="uniform", nstart=np.array([1, 1, 2]))
    first, second = (cut_for(start, block) for block in graph.load(2).blocks("float64"))
    graph.load(1)
    assert (first.start, first.stop, second.stop) == (0, second.start, 3)
    assert first.personalization.tolist() + second.personalization.tolist() == [0.25, 0.75, 0.0]
    assert first.weight.tolist() + second.weight.tolist() == [0.0, 1.0, 2.0]
    assert first.dangling is second.dangling is start.dangling
    first.x[:] = 7
    assert start.x.tolist() == [7.0, 7.0, 0.5]
    assert second.x.tolist() == [0.5]
    assert first.nbytes == first.kernel.block.nbytes + 8 * (2 + 2 + 2 + 1)
