"""Row tiles: what they hold, how they are cut, and in which order they are added."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgspmv.errors import FormatError
from mgspmv.kernels import column_sorted_tiles
from mgspmv.kernels.column_sorted_tiles import NO_ROW, ROW_BITS, WINDOW_BITS, build_column_sorted_tiles
from tests.support.blocks import make_random

SKEWED = np.random.default_rng(4).zipf(1.7, 4000).clip(1, 1000) - 1
SMALL = {"choose_height": lambda *_: 64, "ITEMS": 20, "HUB_SHARE": -1}
"""For several blocks of several items each."""


@dataclass(frozen=True)
class Read:
    """The entries of row tiles, in the order in which they are added."""

    rows: np.ndarray
    places: np.ndarray
    columns: np.ndarray
    values: np.ndarray | None
    tiles: np.ndarray
    chunks: np.ndarray
    ranks: np.ndarray
    """Columns as the tiles number them."""


def read_back(made) -> Read:
    """By the shapes that `ColumnSortedTiles` names, one lane after the other."""
    k, size = np.arange(len(made.entries)), 32 * made.wide
    chunk, k = k // size, k % size
    slots = chunk * size + made.wide * (k % 32) + k // 32
    slots, chunk = (a[made.entries[slots] & NO_ROW != NO_ROW] for a in (slots, chunk))
    entries = made.entries[slots]
    tiles = np.searchsorted(made.tile_starts, chunk, side="right") - 1
    by_tile = made.items[np.argsort(made.items[:, 1])]
    block = by_tile[np.searchsorted(by_tile[:, 1], tiles, side="right") - 1, 0]
    places = block * made.height + (entries & NO_ROW)
    rows = made.rows[places].copy()
    for row, (first, last) in zip(made.split_rows, made.split_places, strict=True):
        assert (made.rows[first:last] == -1).all()
        rows[(places >= first) & (places < last)] = row
    ranks = made.columns[chunk] + (entries >> ROW_BITS)
    columns = ranks if made.order is None else made.order[ranks]
    return Read(rows, places, columns, None if made.values is None else made.values[slots], tiles, chunk, ranks)


def check_holds(block, made) -> None:
    """Every entry once, in the order of each row's columns if its copies are dealt in turn; and the rules of tiles."""
    read = read_back(made)
    order = np.lexsort((np.arange(len(read.rows)), read.columns, read.rows))
    np.testing.assert_array_equal(read.rows[order], np.repeat(np.arange(block.n_rows), np.diff(block.indptr)))
    np.testing.assert_array_equal(read.columns[order], block.indices)
    if block.data is not None:
        keys = read.rows * block.n_cols + read.columns.astype(np.int64)
        wanted = np.repeat(np.arange(block.n_rows), np.diff(block.indptr)) * block.n_cols + block.indices
        np.testing.assert_array_equal(
            read.values[np.lexsort((read.values, keys))], block.data[np.lexsort((block.data, wanted))]
        )
    assert len(np.unique(read.tiles * (made.n_places + 1) + read.places)) == block.nnz
    for at in (read.chunks, read.tiles):
        assert (np.diff(at) >= 0).all()
        same = at[1:] == at[:-1]
        assert (np.diff(read.ranks.astype(np.int64))[same] >= 0).all()
    windows = np.stack([read.chunks, read.ranks >> WINDOW_BITS], axis=1)
    assert len(np.unique(windows, axis=0)) == len(np.unique(read.chunks)) == len(made.columns)
    check_items(made)


def check_items(made) -> None:
    """Every tile is in one item, items are of one block, the longest first, and slices go on where they are needed."""
    by_tile = made.items[np.argsort(made.items[:, 1], kind="stable")]
    np.testing.assert_array_equal(by_tile[1:, 1], by_tile[:-1, 2])
    assert (by_tile[:, 1] < by_tile[:, 2]).all()
    assert by_tile[-1, 2] == len(made.tile_starts) - 1 if len(by_tile) else len(made.tile_starts) == 1
    lengths = made.tile_starts[made.items[:, 2]] - made.tile_starts[made.items[:, 1]]
    assert (np.diff(lengths) <= 0).all()
    blocks, counts = np.unique(by_tile[:, 0], return_counts=True)
    np.testing.assert_array_equal(blocks, np.arange(-(-made.n_places // made.height)))
    n_shared = len(made.slice_starts) - 1
    np.testing.assert_array_equal(np.diff(made.slice_starts), counts[:n_shared])
    np.testing.assert_array_equal(by_tile[:, 3], np.where(by_tile[:, 0] < n_shared, np.arange(len(by_tile)), -1))
    assert (counts[n_shared:] == 1).all()
    assert (made.rows[n_shared * made.height :] >= 0).all()


def build(block, **options):
    """With other constants."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in options.items():
            patch.setattr(column_sorted_tiles, name, value)
        return build_column_sorted_tiles(block, block.data.dtype if block.data is not None else np.float32)


@pytest.mark.parametrize("options", [{}, SMALL], ids=["default", "small"])
@pytest.mark.parametrize("n_cols", [300, 1 << 19], ids=["one window", "several"])
def test_column_sorted_tiles_hold_skewed_rows(n_cols, options, monkeypatch):
    monkeypatch.setattr(column_sorted_tiles, "LEAST_ITEM", 256)
    block = make_random(SKEWED, n_cols)
    made = build(block, **options)
    check_holds(block, made)
    assert len(made.split_rows) > 10
    assert made.n_shared > 0
    monkeypatch.setattr(column_sorted_tiles, "PIECE", 500)
    pieces = build(block, **options)
    assert {k: np.asarray(v).tobytes() for k, v in vars(pieces).items()} == {
        k: np.asarray(v).tobytes() for k, v in vars(made).items()
    }


@pytest.mark.fuzz
@given(
    lengths=st.lists(st.integers(0, 6) | st.integers(0, 300), max_size=50),
    n_cols=st.integers(1, 60) | st.just(1 << 20),
    height=st.integers(1, 40),
    tile_share=st.integers(1, 40),
    n_items=st.integers(1, 30),
    piece=st.integers(1, 400),
    orders=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_column_sorted_tiles_hold_any_matrix(lengths, n_cols, height, tile_share, n_items, piece, orders, seed):
    block = make_random(lengths, n_cols, data=np.float32, seed=seed)
    constants = {"PIECE": piece, "LEAST_ITEM": 1, "LEAST_COPY": 3, "TILE_SHARE": tile_share, "ITEMS": n_items}
    made = build(block, choose_height=lambda *_: height, HUB_SHARE=-1 if orders else 1, **constants)
    check_holds(block, made)


def test_long_rows_are_dealt_to_copies():
    """The hub has most of the entries; no place has many times what the others of its block have."""
    lengths = np.full(20_000, 4)
    lengths[77] = 1_000_000
    block = make_random(lengths, 1 << 20, data=None)
    made = build(block)
    assert made.split_rows.tolist() == [77]
    ((first, last),) = made.split_places
    per_place = np.bincount(read_back(made).places)
    assert per_place[first:last].max() - per_place[first:last].min() <= 1
    assert last - first <= column_sorted_tiles.SPLIT_SHARE * made.height
    assert made.lanes == 1024
    assert len(made.entries) < 1.1 * block.nnz


def test_columns_are_ordered_where_few_have_most_of_the_entries():
    even = make_random([16] * 3000, 4000)
    assert build(even).order is None
    columns = (np.random.default_rng(3).random(even.nnz) ** 3 * 4000).astype(np.int32)
    skewed = replace(even, indices=np.sort(3999 - columns.reshape(-1, 16), axis=1).reshape(-1))
    made = build(skewed)
    counts = np.bincount(skewed.indices, minlength=4000)
    assert (np.diff(counts[made.order]) <= 0).all()
    np.testing.assert_array_equal(np.sort(made.order), np.flatnonzero(counts))
    check_holds(skewed, made)


def test_rows_and_columns_beyond_32_bits_are_refused():
    block = make_random([2, 1], 5, indices=np.int64)
    with pytest.raises(
        FormatError,
        match=r"^column-sorted-tiles counts rows and columns in 32 bits, and the block has 2 rows and 2,147,483,648 "
        r"columns; use kernel='csr-split'$",
    ):
        build(replace(block, n_cols=2**31))
    check_holds(block, build(block))
