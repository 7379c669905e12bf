"""CSR blocks for the tests of kernels."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from mgspmv.kernels.device import PieceReader
from mgspmv.kernels.formats import cut_pieces
from mgspmv.model import CsrBlock
from tests.support.matrices import Hard

measures_pool = pytest.mark.skipif("MGSPMV_PLAIN_MEMORY" in os.environ, reason="arrays are not taken from CuPy's pool")
"""Mark of tests of the memory that CuPy's pool has."""


def make_block(hard: Hard, *, indices: Any = np.int32, data: Any = np.float64) -> CsrBlock:
    """CSR with sorted rows; entries at the same place are kept. `data` None leaves the values out."""
    rows, cols, values = (np.array(column) for column in (hard.rows, hard.cols, hard.values))
    order = np.lexsort((cols, rows))
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows.astype(int), minlength=hard.shape[0]))]).astype(np.int64)
    values = None if data is None else values[order].astype(data)
    return CsrBlock(0, hard.shape[1], indptr, cols[order].astype(indices), values)


def make_random(
    lengths: Any, n_cols: int, *, indices: Any = np.int32, data: Any = np.float64, seed: int = 0
) -> CsrBlock:
    """Rows of these lengths with columns at random, which may come again; values are whole numbers from -8 to 8."""
    rng = np.random.default_rng(seed)
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    rows = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    cols = rng.integers(0, max(1, n_cols), indptr[-1])
    values = None if data is None else rng.integers(-8, 9, indptr[-1]).astype(data)
    return CsrBlock(0, n_cols, indptr, cols[np.lexsort((cols, rows))].astype(indices), values)


def classify_length(length: int) -> int:
    """The class of a row's length that rows are ordered by: each length below 64, then eighths of powers of 2."""
    bits = int(length).bit_length() - 1
    return min(127, 64 + 8 * (bits - 6) + (int(length) >> (bits - 3)) % 8) if length >= 64 else int(length)


def cut_rows(block: CsrBlock, start: int, stop: int) -> CsrBlock:
    """The block of these rows."""
    first, last = block.indptr[start], block.indptr[stop]
    indptr, data = block.indptr[start : stop + 1] - first, block.data
    return CsrBlock(start, block.n_cols, indptr, block.indices[first:last], None if data is None else data[first:last])


def to_scipy(block: CsrBlock) -> sp.csr_array:
    """The same matrix in float64; entries at the same place are kept. A copy: SciPy adds them up in place at times."""
    data = np.ones(block.nnz) if block.data is None else block.data.astype(np.float64)
    return sp.csr_array((data, block.indices.copy(), block.indptr.copy()), shape=(block.n_rows, block.n_cols))


def read_to_device(block: CsrBlock, offset: Any = np.int64) -> Callable[[int, int], CsrBlock]:
    """What gives rows of the block as a block on the device, with row pointers of a dtype."""
    import cupy

    def read(start: int, stop: int) -> CsrBlock:
        part = cut_rows(block, start, stop)
        data = None if part.data is None else cupy.asarray(part.data)
        return CsrBlock(start, part.n_cols, cupy.asarray(part.indptr, offset), cupy.asarray(part.indices), data)

    return read


def read_pieces(
    block: CsrBlock,
    read: Callable[[int, int], CsrBlock] | None = None,
    piece_entries: int | None = None,
    multiple: int = 1,
) -> PieceReader:
    """The rows for builders of layouts, by default from the block itself and in one piece."""
    cuts = cut_pieces(block.indptr, piece_entries, multiple)
    return PieceReader(read or (lambda start, stop: cut_rows(block, start, stop)), cuts)
