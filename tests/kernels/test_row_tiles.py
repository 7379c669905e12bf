"""Row tiles: what they hold, how they are cut, and in which order they are added."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgspmv.errors import FormatError
from mgspmv.kernels import row_tiles, twins
from mgspmv.kernels.row_tiles import NO_ROW, ROW_BITS, WINDOW_BITS, build_row_tiles, choose_height
from mgspmv.kernels.select import bind_kernel
from mgspmv.model import CsrBlock
from tests.support.blocks import make_random
from tests.support.sums import add_by_lanes, add_in_order

SKEWED = np.random.default_rng(4).zipf(1.7, 4000).clip(1, 1000) - 1
SMALL = {"height": 64, "tile": 16, "n_items": 20, "orders": True}
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
    """By the shapes that `RowTiles` names, one lane after the other."""
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
    return build_row_tiles(block, block.data.dtype if block.data is not None else np.float32, **options)


# --- what they hold --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, SMALL], ids=["default", "small"])
@pytest.mark.parametrize("n_cols", [300, 1 << 19], ids=["one window", "several"])
def test_row_tiles_hold_skewed_rows(n_cols, options, monkeypatch):
    monkeypatch.setattr(row_tiles, "LEAST_ITEM", 256)
    block = make_random(SKEWED, n_cols)
    made = build(block, **options)
    check_holds(block, made)
    assert len(made.split_rows) > 10
    assert made.n_shared > 0
    monkeypatch.setattr(row_tiles, "PIECE", 500)
    pieces = build(block, **options)
    assert {k: np.asarray(v).tobytes() for k, v in vars(pieces).items()} == {
        k: np.asarray(v).tobytes() for k, v in vars(made).items()
    }


@pytest.mark.fuzz
@given(
    lengths=st.lists(st.integers(0, 6) | st.integers(0, 300), max_size=50),
    n_cols=st.integers(1, 60) | st.just(1 << 20),
    height=st.integers(1, 40),
    tile=st.integers(1, 40),
    n_items=st.integers(1, 30),
    piece=st.integers(1, 400),
    orders=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_row_tiles_hold_any_matrix(lengths, n_cols, height, tile, n_items, piece, orders, seed):
    block = make_random(lengths, n_cols, data=np.float32, seed=seed)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("PIECE", piece), ("LEAST_ITEM", 1), ("LEAST_COPY", 3)):
            patch.setattr(row_tiles, name, value)
        check_holds(block, build(block, height=height, tile=tile, n_items=n_items, orders=orders))


def test_empty_rows_come_last():
    made = build(make_random([0, 3, 0, 0, 1, 0], 9))
    assert made.rows.tolist() == [1, 4, 0, 2, 3, 5]
    assert made.n_places == 2


# --- how they are cut ------------------------------------------------------------------------------------------------


def test_entries_take_the_first_tile_that_their_place_has_left():
    """s[k] = max(t[k], s[k - 1] + 1), one entry after the other."""
    rng = np.random.default_rng(2)
    own, wanted = rng.integers(0, 40, 3000), np.sort(rng.integers(0, 60, 3000))
    last, expected = np.full(40, -1), []
    for place, tile in zip(own, wanted, strict=True):
        last[place] = max(tile, last[place] + 1)
        expected.append(last[place])
    assert max(expected) > wanted.max()
    assert row_tiles._take_tiles(own, wanted).tolist() == expected


def test_tiles_are_of_about_the_size_asked_for():
    block = make_random(np.full(8192, 40), 1 << 20, data=None)
    sizes = np.bincount(read_back(build(block, height=4096, tile=1024)).tiles)
    tail = 8
    assert len(sizes) < 2 * (160 + tail)
    assert np.abs(sizes[20:140] - 1024).max() < 300
    assert len(build(block, height=4096).entries) < 1.1 * block.nnz


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
    assert last - first <= row_tiles.SPLIT_SHARE * made.height
    assert made.lanes == 1024
    assert len(made.entries) < 1.1 * block.nnz


def test_rows_that_are_not_long_are_not_dealt():
    made = build(make_random([row_tiles.LEAST_COPY] * 50 + [1] * 3000, 4000))
    assert not len(made.split_rows)
    assert made.n_shared == 0
    assert not made.n_slices


@pytest.mark.parametrize(
    ("n_filled", "itemsize", "height"),
    [
        (0, 4, 1024),
        (100_000, 4, 1024),
        (1 << 20, 4, 8192),
        (1 << 20, 8, 8064),
        (1 << 24, 4, 16_128),
        (1 << 24, 8, 8064),
    ],
)
def test_height(n_filled, itemsize, height):
    assert choose_height(n_filled, itemsize) == height
    assert height * itemsize <= row_tiles.SUMS_BYTES
    assert height <= NO_ROW


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
    assert build(skewed, orders=False).order is None


def test_rows_and_columns_beyond_32_bits_are_refused():
    block = make_random([2, 1], 5, indices=np.int64)
    with pytest.raises(
        FormatError,
        match=r"^row-tiles counts rows and columns in 32 bits, and the block has 2 rows and 2,147,483,648 columns; "
        r"use kernel='csr-split'$",
    ):
        build(replace(block, n_cols=2**31))
    check_holds(block, build(block))


# --- the order of summation ------------------------------------------------------------------------------------------


def make_floats(lengths, n_cols, dtype):
    """A block and an x of values whose sums round, and the products of each row."""
    made, rng = make_random(lengths, n_cols), np.random.default_rng(6)
    block = CsrBlock(0, n_cols, made.indptr, made.indices, rng.standard_normal(made.nnz).astype(dtype))
    x = rng.standard_normal(n_cols).astype(dtype)
    products = block.data * x[block.indices]
    return block, x, [products[start:stop] for start, stop in pairwise(block.indptr)]


def multiply(made, x, n_rows):
    y = np.full(n_rows, np.nan, x.dtype)
    tiles = (made.tile_starts, made.wide, made.order, made.entries, made.columns, made.values)
    tables = (made.items, made.slice_starts, made.split_rows, made.split_places, made.lanes)
    twins.row_tiles(made.height, made.n_places, made.rows, *tiles, *tables, x, y, x.dtype.type(1), x.dtype.type(0))
    return y


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_short_rows_of_blocks_of_one_item_are_added_in_order(dtype):
    block, x, products = make_floats([*range(33), *([7] * 900)], 700, dtype)
    y = np.empty(block.n_rows, dtype)
    bind_kernel(block, "float32" if dtype == np.float32 else "float64", kernel="row-tiles").multiply(x, y)
    assert y.tolist() == [add_in_order(row) for row in products]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_copies_are_added_by_lanes(dtype):
    block, x, (row, *others) = make_floats([5000, 3, 0, 20], 9000, dtype)
    made = build(block, n_items=1)
    ((first, last),) = made.split_places
    copies = np.array([add_in_order(row[k :: last - first]) for k in range(last - first)], dtype)
    assert made.lanes == 256
    for lanes in (32, 256):  # with fewer lanes than copies, and with more
        y = multiply(replace(made, lanes=lanes), x, 4)
        assert y.tolist() == [add_by_lanes(copies, lanes), *map(add_in_order, others)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_items_of_a_block_are_added_by_four_lanes(dtype, monkeypatch):
    monkeypatch.setattr(row_tiles, "LEAST_ITEM", 1)
    block, x, products = make_floats([30] * 500, 5000, dtype)
    made = build(block, height=512, tile=64, n_items=7)
    assert len(made.items) > 5
    read, y = read_back(made), multiply(made, x, 500)
    bounds = [0, *np.sort(made.items[:, 2])]
    for row in (0, 99, 499):
        tiles = read.tiles[np.flatnonzero(read.rows == row)]  # in order of columns, as the row's products
        sums = [add_in_order(products[row][(tiles >= a) & (tiles < b)]) for a, b in pairwise(bounds)]
        assert y[row] == add_by_lanes(np.array(sums, dtype), 4)
