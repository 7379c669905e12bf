"""Entries in coordinate format made on a device, and when they are what suits."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from mgspmv.kernels import layout
from mgspmv.kernels.layout import LayoutBuilder, Survey, build_coo_entries, is_small
from tests.support.blocks import make_block, make_random, read_pieces, read_to_device
from tests.support.emulated import ON_BOTH, emulate, use
from tests.support.matrices import HARD, naming

DATA = pytest.mark.parametrize("data", [np.float32, np.float64, None], ids=["float32", "float64", "pattern"])
LENGTHS = {
    "skewed": np.random.default_rng(4).zipf(1.6, 3001).clip(1, 900) - 1,
    "even": np.random.default_rng(5).integers(2, 6, 4000),
    "one row": [20_000],
    "one long row": [*[1] * 40, 5000, *[0] * 60],
    "few rows have entries": np.where(np.arange(70_000) % 9973 == 9972, 3, 0),
    "only the last row": [*[0] * 70_000, 1],
    "no entries": [0] * 70,
    "no rows": [],
}


def check_built(block, made, columns=None) -> None:
    rows, placed = made.rows.get(), made.columns.get()
    assert (made.shape, made.nnz) == ((block.n_rows, block.n_cols), block.nnz)
    assert (rows.dtype, placed.dtype) == (np.int32, np.int32)
    np.testing.assert_array_equal(rows, np.repeat(np.arange(block.n_rows), np.diff(block.indptr)))
    np.testing.assert_array_equal(placed, block.indices if columns is None else columns[block.indices])
    assert made.values is None or block.data is not None
    assert made.values is not None or block.data is None or block.nnz == 0
    if made.values is not None:
        assert made.values.dtype == block.data.dtype
        np.testing.assert_array_equal(made.values.get(), block.data)
    assert made.nbytes == block.nnz * (8 + (0 if block.data is None else block.data.itemsize))


@ON_BOTH
@DATA
def test_built_entries_of_hard_matrices(data, device, monkeypatch):
    use(device, monkeypatch)
    for (name, hard), piece_entries in product(HARD.items(), (None, 1, 5)):
        with naming(name, piece_entries):
            block = make_block(hard, data=data)
            pieces = read_pieces(block, read_to_device(block), piece_entries)
            check_built(block, build_coo_entries(block.indptr, block.n_cols, pieces))


@ON_BOTH
@DATA
def test_built_entries_of_rows_of_many_lengths(data, device, monkeypatch):
    use(device, monkeypatch)
    import cupy

    columns = np.random.default_rng(3).permutation(5000).astype(np.int32)
    for name, lengths in LENGTHS.items():
        block = make_random(lengths, 5000, data=data)
        read = read_to_device(block)
        for piece_entries in (None, max(1, block.nnz // 3), 500):
            for indptr, own in ((block.indptr, None), (cupy.asarray(block.indptr), columns)):
                with naming(name, piece_entries, type(indptr)):
                    pieces, there = read_pieces(block, read, piece_entries), None if own is None else cupy.asarray(own)
                    check_built(block, build_coo_entries(indptr, 5000, pieces, columns=there), own)


@ON_BOTH
def test_entries_that_are_read_at_once_are_not_copied(device, monkeypatch):
    use(device, monkeypatch)
    block = make_random([3, 0, 9], 5000)
    pieces = read_pieces(block, read_to_device(block))
    [(_, piece)] = pieces.each()
    made = build_coo_entries(block.indptr, 5000, pieces)
    assert made.columns is piece.indices
    assert made.values is piece.data


# --- choice ----------------------------------------------------------------------------------------------------------


def test_small_matrices_have_few_entries_and_few_rows(monkeypatch):
    monkeypatch.setattr(layout, "SMALL_ENTRIES", 100)
    monkeypatch.setattr(layout, "SMALL_ROWS", 200)
    assert is_small(100, 200)
    assert not is_small(101, 5)
    assert not is_small(5, 201)


@pytest.fixture
def surveyed(monkeypatch) -> list[int]:
    """First row of the entries of each survey; most of these are next to the diagonal."""
    emulate(monkeypatch)
    found = []

    def survey(indptr, piece, first_row, row_offset) -> Survey:
        found.append(first_row)
        return Survey(900, 10**6, 0.9, 0.9, 4)

    monkeypatch.setattr(layout, "survey_rows", survey)
    return found


def test_rows_of_a_small_matrix_are_not_surveyed(surveyed):
    block = make_random([3, 0, 900, 9], 4)
    for options in ({}, {"order": "degree"}, {"layout": "coo"}, {"piece_entries": block.nnz}):
        builder = LayoutBuilder(block.indptr, read_to_device(block), **options)
        assert (builder.layout, builder.order) == ("coo", "none")
        assert builder.place(np.ones(4, np.int64)).by_place is None
        assert not surveyed


def test_survey_of_a_small_matrix_that_is_asked_for(surveyed):
    block = make_random([3, 0, 900, 9], 4)
    builder = LayoutBuilder(block.indptr, read_to_device(block))
    assert builder.is_near
    assert builder.is_near
    assert surveyed == [0]


@pytest.mark.parametrize(
    ("most", "options", "wanted"),
    [
        (911, {}, "column-sorted-blocks"),
        (912, {}, "coo"),
        (912, {"may_stream": True}, "column-sorted-blocks"),
        (912, {"piece_entries": 900}, "column-sorted-blocks"),
        (912, {"layout": "sell-slices"}, "sell-slices"),
        (912, {"layout": "column-sorted-blocks"}, "column-sorted-blocks"),
        (0, {"layout": "coo"}, "coo"),
        (0, {"layout": "coo", "piece_entries": 5}, "coo"),
    ],
)
def test_layout_that_is_chosen(most, options, wanted, surveyed, monkeypatch):
    """A named one is taken, and others of matrices that are not small, in pieces, or may be streamed."""
    monkeypatch.setattr(layout, "SMALL_ENTRIES", most)
    block = make_random([3, 0, 900, 9] + [0] * 60, 64)
    builder = LayoutBuilder(block.indptr, read_to_device(block), **options)
    assert builder.layout == wanted
    assert len(surveyed) == (wanted != "coo" or options.get("piece_entries") == 5)
