"""How blocks and bins are cut into work for thread blocks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgspmv.kernels import rank_products
from mgspmv.kernels.bins import LEAST_COLUMNS
from mgspmv.kernels.layout import SMALL_ENTRIES, SMALL_ROWS
from mgspmv.kernels.modules import MANY_WEIGHTS
from mgspmv.kernels.rank_products import (
    EVEN,
    OCTETS_PER_CHUNK,
    PRODUCTS,
    BinProducts,
    begin_compiling,
    cut_fills,
    cut_items,
    find_bits,
)
from tests.support.specialisations import list_specialisations


@given(st.lists(st.integers(0, 3) | st.integers(0, 20_000), max_size=30), st.integers(1, 20))
def test_parts_that_fill_bins(n_octets, n_multiprocessors):
    starts = np.concatenate([[0], np.cumsum(n_octets)]).astype(np.int64)
    windows, bounds = cut_fills(starts, n_multiprocessors)
    assert (windows.dtype, bounds.dtype, bounds.shape) == (np.int32, np.int64, (len(windows), 2))
    sizes = bounds[:, 1] - bounds[:, 0]
    assert (np.diff(sizes) <= 0).all()
    assert (sizes > 0).all()
    for window, n in enumerate(n_octets):
        own = bounds[windows == window]
        own = own[np.argsort(own[:, 0])]
        assert (len(own) == 0) == (n == 0)
        if n:
            assert (own[0, 0], own[-1, 1]) == (starts[window], starts[window + 1])
            assert (own[1:, 0] == own[:-1, 1]).all()


def test_products_of_no_bins():
    products = BinProducts(None, 132)
    products.allocate(np.dtype(np.int64))
    assert (products.grid, products.held, products.list_fields()) == (0, (), (None,) * 10)


@given(
    st.lists(st.integers(0, 3) | st.integers(0, 2000), max_size=30),
    st.integers(0, 5),
    st.integers(1, 20),
    st.integers(1, 64),
)
def test_items(n_chunks, n_empty, n_multiprocessors, least):
    block_chunks, n_blocks = np.concatenate([[0], np.cumsum(n_chunks)]).astype(np.int64), len(n_chunks) + n_empty
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rank_products, "LEAST_ITEM", least)
        made = cut_items(block_chunks, n_blocks, n_multiprocessors)
    assert (made.blocks.dtype, made.bounds.dtype, made.parts.dtype) == (np.int32, np.int64, np.int32)
    assert made.bounds.shape == (len(made.blocks), 4)
    assert not made.bounds[:, 2:].any()
    sizes = made.bounds[:, 1] - made.bounds[:, 0]
    assert (np.diff(sizes) <= 0).all()
    assert made.parts.tolist() == np.bincount(made.blocks, minlength=n_blocks).tolist()
    size, n_filled = max(least, sum(n_chunks) // (4 * n_multiprocessors)), np.count_nonzero(n_chunks)
    whole = EVEN * sum(n_chunks) / n_filled if n_filled >= n_multiprocessors else 0
    for block, n in enumerate([*n_chunks, *[0] * n_empty]):
        own = made.bounds[made.blocks == block]
        if n == 0:
            assert len(own) == 1
            assert own[0, 0] == own[0, 1]
            continue
        own = own[np.argsort(own[:, 0])]
        assert (own[0, 0], own[-1, 1]) == (block_chunks[block], block_chunks[block + 1])
        assert (own[1:, 0] == own[:-1, 1]).all()
        lengths = own[:, 1] - own[:, 0]
        assert lengths.min() > 0
        assert lengths.max() - lengths.min() <= 1
        assert len(own) == 1 or size / 2 < lengths.max() <= 1.5 * size + 1
        assert len(own) > 1 or n <= max(whole, 1.5 * size)
        assert len(own) == 1 or n > whole


def test_items_have_their_share_of_chunks_and_octets() -> None:
    chunks, octets = np.array([0, 1000, 1000, 1200]), np.array([0, 8000, 40_000])
    made = cut_items(chunks, 4, 4, octets)
    for block, (n_chunks, n_octets) in enumerate([(1000, 8000), (0, 32_000), (200, 0), (0, 0)]):
        own = made.bounds[made.blocks == block]
        own = own[np.argsort(own[:, 0] + own[:, 2])]
        assert (own[:, 1] - own[:, 0]).sum() == n_chunks
        assert (own[:, 3] - own[:, 2]).sum() == n_octets
        assert (own[1:, 0] == own[:-1, 1]).all()
        assert (own[1:, 2] == own[:-1, 3]).all()
    lengths = (made.bounds[:, 1] - made.bounds[:, 0]) + (made.bounds[:, 3] - made.bounds[:, 2]) / OCTETS_PER_CHUNK
    assert lengths.max() <= 1.5 * lengths.sum() / 16 + 2
    assert (np.diff(lengths) <= 0).all()


def test_bits_of_products_in_float32():
    for name in PRODUCTS:
        bits = [find_bits(name, n_terms) for n_terms in (0, 1, 1000, 1 << 60)]
        assert bits == ([0] * 4 if name == "sell-slices" else [27, 27, 37, 62])


@pytest.mark.parametrize(
    ("precision", "value"), [("exact", None), ("exact", np.float64), ("float32", None), ("float32", np.float32)]
)
def test_what_is_compiled_ahead(precision, value, monkeypatch):
    """Modules that runs can ask for, of the layout that is named or would be chosen."""
    begun, n = [], LEAST_COLUMNS
    monkeypatch.setattr(rank_products, "compile_ahead", lambda own: begun.append(list(own)))
    dtype = None if value is None else np.dtype(value)
    coo, blocks = {"coo_rows.cu", "rank_coo.cu"}, {"column_sorted_blocks.cu", "rank_blocks.cu"}
    for layout, n_rows, nnz, wanted in (
        ("auto", n, SMALL_ENTRIES, coo),
        ("auto", MANY_WEIGHTS - 1, 5, coo),
        ("auto", n, SMALL_ENTRIES + 1, blocks),
        ("auto", SMALL_ROWS + 1, 5, blocks),
        ("coo", n, 1 << 40, coo),
        ("column-sorted-blocks", n, 5, blocks),
    ):
        begin_compiling(layout, dtype, precision, (n_rows, n), nnz)
        made = begun.pop()
        assert {own.source for own in made} == wanted
        assert set(made) <= set(list_specialisations())
        has_bytes = any(("WEIGHT", "unsigned char") in own.defines for own in made)
        assert has_bytes == (value is None and n_rows >= MANY_WEIGHTS)
        assert any(("BINNED", "1") in own.defines for own in made) == (wanted is blocks)
    begin_compiling("sell-slices", dtype, precision, (n, n), 5)
    assert not begun
