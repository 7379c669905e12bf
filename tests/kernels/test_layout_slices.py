"""Row slices made on a device: what they hold and where it is."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from mgspmv.kernels.band_slices import SLICE
from mgspmv.kernels.layout import build_sell_slices, count_places
from mgspmv.model import CsrBlock
from tests.support.blocks import make_block, make_random, read_pieces, read_to_device
from tests.support.matrices import HARD, naming

DATA = pytest.mark.parametrize("data", [np.float32, np.float64, None], ids=["float32", "float64", "pattern"])
LENGTHS = {
    "skewed": np.random.default_rng(4).zipf(1.6, 3001).clip(1, 900) - 1,
    "even": np.random.default_rng(5).integers(2, 6, 4000),
    "one long row": [*[1] * 40, 5000, *[0] * 60],
    "no entries": [0] * 70,
}


def check_holds(block, made) -> None:
    """Entry k of row 32 s + l is at 32 (starts[s] + k) + l; a slice is as wide as its longest row, and no wider."""
    lengths = np.diff(block.indptr)
    n_slices = -(-block.n_rows // SLICE)
    padded = np.append(lengths, np.zeros(n_slices * SLICE - len(lengths), int)).reshape(n_slices, SLICE)
    assert made.starts.dtype == np.uint32
    assert made.starts.tolist() == [0, *np.cumsum(padded.max(axis=1, initial=0)).tolist()]
    assert (made.shape, made.nnz) == ((block.n_rows, block.n_cols), block.nnz)
    n_places = SLICE * int(made.starts[-1])
    assert (made.columns.shape, made.columns.dtype) == ((n_places,), np.int32)
    columns, values = np.full(n_places, block.n_cols), np.zeros(n_places)
    for row in range(block.n_rows):
        own = slice(block.indptr[row], block.indptr[row + 1])
        begin = SLICE * int(made.starts[row // SLICE]) + row % SLICE
        places = begin + SLICE * np.arange(lengths[row])
        columns[places] = block.indices[own]
        if block.data is not None:
            values[places] = block.data[own]
    np.testing.assert_array_equal(made.columns, columns)
    assert (made.values is None) == (block.data is None)
    if block.data is not None:
        assert made.values.dtype == block.data.dtype
        np.testing.assert_array_equal(made.values, values)
    assert made.nbytes == 4 * (n_slices + 1) + n_places * (4 + (0 if block.data is None else block.data.itemsize))


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_places_are_counted_in_32_bits_without_sign(dtype):
    """More than 2^31, in slices of up to 2^27 entries a row."""
    lengths = np.zeros(40 * SLICE + 1, dtype)
    lengths[::SLICE] = 2**26
    starts = count_places(lengths)
    assert starts.dtype == np.uint32
    assert starts.tolist() == [2**26 * k for k in range(42)]
    assert starts[-1] > 2**31
    assert count_places(np.zeros(0, dtype)).tolist() == [0]


def check_built(block, made) -> None:
    arrays = {name: getattr(made, name) for name in ("starts", "columns", "values")}
    check_holds(block, replace(made, **{name: None if a is None else a.get() for name, a in arrays.items()}))


@pytest.mark.gpu
@DATA
def test_built_sell_slices_of_hard_matrices(data):
    for (name, hard), piece_entries in product(HARD.items(), (None, 1, 5)):
        if hard.shape[0]:
            with naming(name, piece_entries):
                block = make_block(hard, data=data)
                read = read_to_device(block)
                check_built(
                    block, build_sell_slices(block.indptr, block.n_cols, read_pieces(block, read, piece_entries, SLICE))
                )


@pytest.mark.gpu
@DATA
def test_built_sell_slices_of_rows_of_many_lengths(data):
    cupy = pytest.importorskip("cupy")
    for (name, lengths), offset in product(LENGTHS.items(), (np.int32, np.int64)):
        block = make_random(lengths, 5000, data=data)
        read = read_to_device(block, offset)
        for piece_entries in (None, max(1, block.nnz // 3), 500):
            for indptr in (block.indptr, cupy.asarray(block.indptr, offset)):
                with naming(name, offset, piece_entries, type(indptr)):
                    check_built(block, build_sell_slices(indptr, 5000, read_pieces(block, read, piece_entries, SLICE)))


@pytest.mark.gpu
def test_pieces_without_values_at_first():
    """The dtype of values is that of every piece, also of those without entries."""
    indptr = np.concatenate([np.zeros(65, np.int64), 3 * np.arange(1, 65)])
    block = CsrBlock(0, 200, indptr, np.arange(192, dtype=np.int32), np.arange(192.0))
    check_built(block, build_sell_slices(indptr, 200, read_pieces(block, read_to_device(block), 90, SLICE)))
