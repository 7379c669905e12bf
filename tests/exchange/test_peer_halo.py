"""Which columns a worker holds, against sets; the product on renumbered columns has the bits of the one on all."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgspmv.exchange.peer import make_halo, pack
from mgspmv.kernels.cpu import CpuBlock
from mgspmv.model import CsrBlock
from mgspmv.store import digests
from tests.support.matrices import GRAPHS


def make_block(start, stop, n_cols, rows, cols, values=None, indices=np.int32):
    """The entries of rows `start` .. `stop` as CSR with sorted rows; those at the same place are kept."""
    rows, cols = np.asarray(rows, np.int64), np.asarray(cols, np.int64)
    own = np.flatnonzero((rows >= start) & (rows < stop))
    own = own[np.lexsort((cols[own], rows[own]))]
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows[own] - start, minlength=stop - start))])
    data = None if values is None else np.asarray(values, np.float64)[own]
    return CsrBlock(start, n_cols, indptr.astype(np.int64), cols[own].astype(indices), data)


def random_block(n, start, stop, nnz, *, seed=0, indices=np.int32):
    rng = np.random.default_rng(seed)
    rows = rng.integers(start, max(start + 1, stop), nnz if stop > start else 0)
    return make_block(start, stop, n, rows, rng.integers(0, n, len(rows)), rng.random(len(rows)), indices)


def find_held(columns, rank, bounds):
    """By worker, the columns that are held: all of one's own, all of a worker of which more than half is read."""
    held = []
    for owner, (start, stop) in enumerate(pairwise(bounds)):
        read = sorted({int(c) for c in columns if start <= c < stop})
        held.append(list(range(start, stop)) if owner == rank or 2 * len(read) > stop - start else read)
    return held


def assert_is_right(block, rank, bounds, threads=None):
    """Renumber a copy of a block and check all that can be said of it."""
    held = find_held(block.indices, rank, bounds)
    columns = np.concatenate([np.array(h, np.int64) for h in held])
    copy = CsrBlock(block.row_offset, block.n_cols, block.indptr, block.indices.copy(), block.data)
    renumbered, halo = make_halo(copy, rank, bounds, threads)

    assert (halo.rank, halo.bounds) == (rank, bounds)
    assert [halo.count(owner) for owner in range(len(held))] == [len(h) for h in held]
    assert halo.starts == tuple(np.cumsum([0, *map(len, held)]))
    for owner, (start, stop) in enumerate(pairwise(bounds)):
        rows = halo.needed[owner]
        assert (rows is None) == (len(held[owner]) == stop - start)
        if rows is not None:
            assert rows.dtype == np.int32
            assert (rows + start).tolist() == held[owner]
    assert halo.nbytes == sum(4 * len(rows) for rows in halo.needed if rows is not None)

    assert (renumbered.row_offset, renumbered.n_cols) == (block.row_offset, len(columns))
    assert renumbered.indptr is block.indptr
    assert renumbered.data is block.data
    assert renumbered.indices.dtype == block.indices.dtype
    assert columns[renumbered.indices].tolist() == block.indices.tolist()
    x = np.random.default_rng(7).standard_normal((block.n_cols, 2))
    assert halo.select(x).tolist() == x[columns].tolist()
    assert halo.select(x[:, 0]).tolist() == x[columns, 0].tolist()
    return renumbered, halo


@st.composite
def shares(draw):
    """A worker's block of a random graph: bounds with and without rows for each, entries that come again."""
    n = draw(st.integers(1, 70))
    cuts = draw(st.lists(st.integers(0, n), max_size=9))
    bounds = (0, *sorted(cuts), n)
    rank = draw(st.integers(0, len(bounds) - 2))
    nnz = draw(st.integers(0, 3 * n))
    options = {"seed": draw(st.integers(0, 9)), "indices": draw(st.sampled_from([np.int32, np.int64]))}
    return random_block(n, bounds[rank], bounds[rank + 1], nnz, **options), rank, bounds


@given(shares())
def test_any_share_of_any_graph(share):
    assert_is_right(*share)


@given(shares(), st.sampled_from(["float64", "float32"]))
def test_products_of_any_share_have_the_same_bits(share, dtype):
    block, rank, bounds = share
    renumbered, halo = assert_is_right(block, rank, bounds)
    x = np.random.default_rng(1).standard_normal((block.n_cols, 3)).astype(dtype)
    for vectors in (x, np.ascontiguousarray(x[:, 0])):
        of_all, of_held = (np.empty((block.n_rows, *vectors.shape[1:]), dtype) for _ in range(2))
        CpuBlock(block, dtype).multiply(vectors, of_all)
        CpuBlock(renumbered, dtype).multiply(halo.select(vectors), of_held)
        assert of_held.tobytes() == of_all.tobytes()


@pytest.mark.parametrize("has_values", [True, False], ids=["values", "pattern"])
def test_hard_graphs_on_any_number_of_workers(has_values):
    for name, hard in GRAPHS.items():
        n = hard.shape[0]
        x = np.random.default_rng(3).standard_normal(n)
        for n_workers in (1, 2, 3, 5, n, n + 3):
            bounds = tuple(n * rank // n_workers for rank in range(n_workers + 1))
            for rank, (start, stop) in enumerate(pairwise(bounds)):
                values = hard.values if has_values else None
                block = make_block(start, stop, n, hard.rows, hard.cols, values)
                renumbered, halo = assert_is_right(block, rank, bounds)
                of_all, of_held = np.empty(stop - start), np.empty(stop - start)
                CpuBlock(block).multiply(x, of_all)
                CpuBlock(renumbered).multiply(halo.select(x), of_held)
                assert of_held.tobytes() == of_all.tobytes(), (name, n_workers)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_pieces_of_the_indices_are_renumbered_each_once(monkeypatch, threads):
    monkeypatch.setattr(digests, "CHUNK_ELEMENTS", 7)
    for nnz, indices in product((0, 6, 7, 8, 14, 500), (np.int32, np.int64)):
        block = random_block(4000, 100, 160, nnz, indices=indices)
        _, halo = assert_is_right(block, 1, (0, 100, 160, 4000), threads)
        assert halo.needed[2] is not None


def test_workers_without_rows_need_nothing_and_nothing_is_needed_of_them():
    bounds = (0, 0, 3, 3, 40, 40)
    for rank in range(5):
        start, stop = bounds[rank], bounds[rank + 1]
        cols = [2, 39] * (stop - start)
        block = make_block(start, stop, 40, np.repeat(np.arange(start, stop), 2), cols)
        _, halo = assert_is_right(block, rank, bounds)
        assert halo.count(0) == halo.count(2) == halo.count(4) == 0
        if start == stop:
            assert halo.starts[-1] == 0
            assert halo.select(np.ones(40)).shape == (0,)


@given(shares())
def test_workers_are_asked_for_what_is_held_of_them(share):
    """What each sends of what it was asked for, put side by side, is what is selected."""
    block, rank, bounds = share
    _, halo = assert_is_right(block, rank, bounds)
    x = np.arange(100.0, 100.0 + block.n_cols)
    sent = []
    for owner, (start, stop) in enumerate(pairwise(bounds)):
        rows = halo.needed[owner]
        sent.append(x[start:stop] if rows is None else x[start:stop][rows])
    assert np.concatenate(sent).tolist() == halo.select(x).tolist()


def test_rows_are_packed_in_their_order():
    for dtype, rows in product((np.int64, np.float32, np.float64), (np.int32, np.int64)):
        x = np.arange(10).astype(dtype)
        out = np.empty(4, dtype)
        pack(x, np.array([1, 2, 5, 9], rows), out)
        assert out.tolist() == [1, 2, 5, 9], (dtype, rows)
