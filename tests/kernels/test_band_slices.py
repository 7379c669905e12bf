"""Band slices: how rows are split into them and the others, and which matrices have them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mgspmv.kernels.band_slices import BAND, LEAST_IN_ROW, SLICE, split_rows
from mgspmv.kernels.layout import NEAR, LayoutBuilder, Survey
from mgspmv.model import CsrBlock
from tests.kernels.test_rank_steps import MANY, build_banded, make_weights
from tests.support.blocks import read_to_device
from tests.support.emulated import ON_BOTH, use
from tests.support.matrices import naming


def bring(array):
    """An array on the host, wherever it is."""
    return array.get() if hasattr(array, "get") else np.array(array)


def read_band(band, n_rows):
    """Rows, steps and values of the entries in slices, row by row."""
    starts, words = bring(band.starts).astype(np.int64), bring(band.words)
    own = np.searchsorted(starts, np.arange(len(words)) // SLICE, side="right") - 1
    rows = (SLICE * own + np.arange(len(words)) % SLICE).repeat(2)
    steps = np.stack([words & 0xFFFF, words >> 16], 1).astype(np.uint16).ravel().view(np.int16)
    is_there = steps != -(1 << 15)
    assert band.values is None or not bring(band.values)[~is_there].any()
    assert 2 * is_there.sum() >= len(steps)
    assert rows[is_there].max(initial=-1) < n_rows
    values = None if band.values is None else bring(band.values)[is_there]
    return rows[is_there], steps[is_there].astype(np.int64), values


def sort_entries(rows, columns, values):
    """As they are compared: of those at the same place, the least value first."""
    values = np.ones(len(rows)) if values is None else values
    return np.stack([rows, columns, values])[:, np.lexsort((values, columns, rows))]


@ON_BOTH
@pytest.mark.parametrize("shift", [0, 3])
@pytest.mark.parametrize("dtype", [None, np.float32, np.float64], ids=["pattern", "float32", "float64"])
def test_every_entry_is_in_a_slice_or_in_csr(dtype, shift, device, monkeypatch):
    """Places are columns, or these and others before them."""
    use(device, monkeypatch)
    import cupy

    for name, pattern in MANY.items():
        if device == "emulated" and pattern.nnz > 100_000:
            continue
        block = pattern if dtype is None else make_weights(pattern)
        block = block if dtype is None else replace(block, data=block.data.astype(dtype))
        there = read_to_device(block)(0, block.n_rows)
        places = cupy.asarray(np.arange(block.n_cols, dtype=np.int32) + shift) if shift else None
        with naming(name):
            band, far = split_rows(cupy.asarray(block.indptr), there, places, shift)
            own, steps, values = read_band(band, block.n_rows)
            assert len(own) == band.nnz
            assert np.abs(steps).max(initial=0) < BAND
            indptr, indices = bring(far.indptr), bring(far.indices)
            rows = np.arange(block.n_rows).repeat(np.diff(indptr))
            both = [np.append(own, rows), np.append(own + steps, indices)]
            data = None if dtype is None else np.append(values, bring(far.data))
            wanted = np.arange(block.n_rows).repeat(np.diff(block.indptr)), block.indices, block.data
            np.testing.assert_array_equal(sort_entries(*both, data), sort_entries(*wanted))
            parts = (band.starts, band.words, band.values)
            assert band.nbytes == sum(part.nbytes for part in parts if part is not None)


@ON_BOTH
def test_words_of_which_less_than_half_would_be_entries_are_left_out(device, monkeypatch):
    """Some rows of a slice have as many entries next to the diagonal, and all have one farther away."""
    use(device, monkeypatch)
    import cupy

    n = 64 * SLICE
    for n_long, length, width in ((32, 1, 1), (31, 1, 0), (16, 2, 1), (15, 2, 0), (32, 3, 2), (16, 6, 3), (15, 6, 0)):
        lengths = np.where(np.arange(n) % SLICE < n_long, length, 0)
        columns = [[*((r + np.arange(k)) % n), (r + n // 2) % n] for r, k in enumerate(lengths)]
        indptr = np.append(0, np.cumsum(lengths + 1))
        block = CsrBlock(0, n, indptr, np.concatenate([np.sort(own) for own in columns]).astype(np.int32), None)
        band, far = split_rows(cupy.asarray(indptr), read_to_device(block)(0, n))
        assert (np.diff(bring(band.starts).astype(int))[:-1] == width).all()
        n_far = np.diff(bring(far.indptr))[:-SLICE]
        assert (n_far == 1 + (lengths - 2 * width).clip(0)[:-SLICE]).all()


@pytest.mark.parametrize(
    ("in_band", "nnz", "wanted"),
    [(1.0, 6000, True), (1.0, 5999, False), (0.75, 8000, True), (NEAR, 20_000, False), (0.51, 20_000, True)],
)
def test_what_has_a_band(in_band, nnz, wanted):
    assert LEAST_IN_ROW == 6
    assert Survey(9, 0, 1.0, in_band, 1000).has_band(nnz, 1000) == wanted


@ON_BOTH
@pytest.mark.parametrize(
    ("reach", "longest", "order", "piece_entries", "has_band"),
    [
        (9, 8, None, None, True),
        (9, 80, None, None, False),
        (BAND + 9, 8, None, None, False),
        (9, 8, "degree", None, False),
        (9, 8, None, 9000, False),
    ],
)
def test_bands_of_even_rows_in_their_order(reach, longest, order, piece_entries, has_band, device, monkeypatch):
    """Not if a row is long, if entries are farther away, if rows are sorted, or if they come in pieces."""
    use(device, monkeypatch)
    import cupy

    n, per_row = 3000, 8
    steps = np.where(np.arange(per_row) == 0, n // 2, reach * (np.arange(per_row) % 2 * 2 - 1))
    columns = [np.sort((r + np.resize(steps, longest if r == 77 else per_row)) % n) for r in range(n)]
    indptr = np.append(0, np.cumsum([len(own) for own in columns]))
    block = CsrBlock(0, n, indptr, np.concatenate(columns).astype(np.int32), None)
    options = {"layout": "column-sorted-blocks", "order": order, "piece_entries": piece_entries}
    builder = LayoutBuilder(indptr, read_to_device(block), **options)
    places = builder.place(cupy.ones(n, np.int64))
    made = builder.build_layout(places, places.columns, n, None).feed.kept[0]
    assert (made.band is not None) == has_band
    assert made.nnz == block.nnz
    if made.band is not None:
        assert made.band.nnz >= 6 * n
        assert made.nbytes == made.band.nbytes + made.entries.nbytes + made.columns.nbytes


@ON_BOTH
def test_blocks_of_which_all_entries_are_in_slices(device, monkeypatch):
    use(device, monkeypatch)
    n = 4992
    columns = (np.arange(n)[:, None] + np.arange(8)).clip(0, n - 1)
    block = CsrBlock(0, n, 8 * np.arange(n + 1), columns.ravel().astype(np.int32), None)
    made = build_banded(block, read_to_device(block)).feed.kept[0]
    assert made.band is not None
    assert (made.band.nnz, len(made.entries), made.bins) == (8 * n, 0, None)
