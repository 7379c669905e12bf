"""Conversion of CSR to the formats of the other kernels, on the block's device, for NumPy and CuPy arrays alike.

Entries are numbered as in CSR. Arrays with an int64 per entry (row numbers, places) are made for PIECE entries at a
time, so that a block of billions of entries fits on a device with its new format and little more. Columns are sorted
within each row, as in `CsrBlock`, so that entries at the same place are adjacent.

Only the API that NumPy and CuPy have in common is used. Places are written by `put`: CuPy's `a[places] = values` counts
the elements of `a` in 32 bits.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from mgspmv.errors import FormatError
from mgspmv.model import CsrBlock, index_dtype

Array = Any
"""NumPy or CuPy array."""

PIECE = 1 << 27
"""Maximum entries processed at a time."""
LIMIT_RATIO = 4
"""Maximum bytes of a padded format per byte of CSR, in addition to LIMIT_BYTES."""
LIMIT_BYTES = 1 << 20
"""Bytes that a padded format may take however small CSR is."""
ELL_ROWS = 4096
"""Minimum number of rows that fill the ELL width of HYB; a third of the rows if that is more."""
BLOCK_DIMS = (2, 3, 4, 5)
"""Candidates for the rows and columns of a block of BSR."""
CACHED_ROWS = 512
"""Rows, and threads, per thread block of csr-cached."""
SLICE = 32
"""Rows of a slice of SELL: C."""
SIGMA = 1024
"""Rows of a window that SELL sorts by length: sigma; a multiple of SLICE."""
THREADS = 256
"""Threads of a thread block that adds one sum."""
SUM_CHUNK = 4096
"""Elements of x per thread block of a sum."""
TILE_ROWS, TILE_COLS = 64, 1024
"""Rows and columns of a tile of dense_tiles: T and Z."""
WARP = 32
"""Threads that run in lockstep."""
CHUNK_THREADS, ITEMS_PER_THREAD = 256, 7
ITEMS = CHUNK_THREADS * ITEMS_PER_THREAD
"""Entries per thread block of COO, and entries and row ends per thread block of Split."""


class MatrixFormat:
    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(part.nbytes for part in vars(self).values() if hasattr(part, "nbytes"))


@dataclass(frozen=True, eq=False)
class Ell(MatrixFormat):
    """ELLPACK: rows padded to one length, stored by columns, so that neighboring rows are adjacent in memory."""

    indices: Array
    """(width, n_rows): column of entry k of row i at [k, i], -1 for padding."""
    data: Array | None
    """(width, n_rows): values at the same places; None for a pattern."""


@dataclass(frozen=True, eq=False)
class Coo(MatrixFormat):
    """Entries with the numbers of their rows, in the order of CSR."""

    rows: Array
    """(nnz,) local rows, ascending; int32 if they fit."""
    indices: Array
    """(nnz,) columns."""
    data: Array | None
    """(nnz,) values; None for a pattern."""


@dataclass(frozen=True, eq=False)
class Hyb(Coo):
    """First entries of each row in ELLPACK, the others in COO."""

    ell_indices: Array
    """As in `Ell`."""
    ell_data: Array | None


@dataclass(frozen=True, eq=False)
class Dia(MatrixFormat):
    """Whole diagonals. A place that holds 0 has no entry, and entries at the same place are added up."""

    offsets: Array
    """(n_diags,) int64: column minus row, both global; ascending."""
    data: Array
    """(n_diags, n_rows): value of row i on diagonal d at [d, i]; for a pattern, the number of entries there."""


@dataclass(frozen=True, eq=False)
class Bsr(MatrixFormat):
    """CSR of dense blocks, aligned with the first row of the matrix block and with column 0.

    As in `Dia`, a value of 0 is not an entry.
    """

    indptr: Array
    """(n_block_rows + 1,) int64."""
    indices: Array
    """(n_blocks,) columns of blocks, ascending in each row of blocks."""
    data: Array
    """(n_blocks, b, b): b is the number of rows and columns of a block."""


@dataclass(frozen=True, eq=False)
class Sell(MatrixFormat):
    """SELL-C-sigma: ELLPACK slices of C = 32 rows, sorted by length within windows of sigma = 1024 rows.

    Entry k of slot l of slice s is at `slice_ptr[s] + 32 k + l`.
    """

    slice_ptr: Array
    """(n_slices + 1,) int64."""
    order: Array
    """(32 n_slices,) row of each slot, -1 for padding; int32 if rows fit."""
    indices: Array
    """(slice_ptr[-1],) columns, -1 for padding."""
    data: Array | None
    """(slice_ptr[-1],) values; None for a pattern."""


# --- choices ---------------------------------------------------------------------------------------------------------


def choose_ell_width(block: CsrBlock) -> int:
    """Choose the entries per row that HYB holds in ELL: the most that max(4096, n_rows / 3) rows have."""
    needed = max(ELL_ROWS, -(-block.n_rows // 3))
    if needed > block.n_rows:
        return 0
    return int(array_module(block.indptr).sort(row_lengths(block))[block.n_rows - needed])


# --- formats ---------------------------------------------------------------------------------------------------------


def build_ell(block: CsrBlock) -> Ell:
    """Convert a block to ELLPACK.

    Raises
    ------
    FormatError : it would take more than 4 times the bytes of the block plus 1 MiB
    """
    width = find_longest(row_lengths(block))
    places = width * block.n_rows
    mean = block.nnz / max(1, block.n_rows)
    why = f"the longest row has {width:,} entries, the mean is {mean:.1f}; use hyb, sell or csr-split"
    entry_bytes = int(block.indices.itemsize + (0 if block.data is None else block.data.itemsize))
    _check_bytes("ell", block, places, places * entry_bytes, why)
    return _fill_ell(block, width)


def build_coo(block: CsrBlock) -> Coo:
    """Convert a block to COO, which shares the block's columns and values."""
    xp = array_module(block.indptr)
    rows = xp.empty(block.nnz, index_dtype(block.n_rows))
    for piece, found in _each_piece(block):
        rows[piece] = found
    return Coo(rows, block.indices, block.data)


def build_hyb(block: CsrBlock) -> Hyb:
    """Convert a block to HYB. If ELL is empty, COO shares the columns and values of the block."""
    width = choose_ell_width(block)
    others = _take_beyond(block, width) if width else build_coo(block)
    ell = _fill_ell(block, width)
    return Hyb(others.rows, others.indices, others.data, ell.indices, ell.data)


def build_dia(block: CsrBlock, *, dtype: Any = np.float64) -> Dia:
    """Convert a block to DIA.

    Parameters
    ----------
    dtype : float32 or float64, of the counts that a pattern gets

    Raises
    ------
    FormatError : it would take more bytes than ELLPACK may
    """
    xp, offsets = array_module(block.indptr), find_offsets(block)
    dtype = _value_dtype(block, dtype)
    places = len(offsets) * block.n_rows
    why = f"they lie on {len(offsets):,} diagonals; use csr-vector, hyb or sell"
    _check_bytes("dia", block, places, places * dtype.itemsize + offsets.nbytes, why)
    data = xp.zeros((len(offsets), block.n_rows), dtype)
    for piece, rows in _each_piece(block):
        diagonals = xp.searchsorted(offsets, _subtract_rows(block, rows, piece))
        _add(data.reshape(-1), diagonals * block.n_rows + rows, _take_values(block, piece, dtype))
    return Dia(offsets, data)


def build_bsr(block: CsrBlock, block_dim: int | None = None, *, dtype: Any = np.float64) -> Bsr:
    """Convert a block to BSR.

    Parameters
    ----------
    block_dim : default: the one of 2, 3, 4 and 5 that takes the fewest bytes
    dtype : float32 or float64, of the counts that a pattern gets

    Raises
    ------
    FormatError : it would take more bytes than ELLPACK may, or blocks cannot be numbered in 64 bits
    """
    dtype = _value_dtype(block, dtype)
    counts = {b: _count_blocks(block, b) for b in ((block_dim,) if block_dim else BLOCK_DIMS)}
    sizes = {}
    for b, n_blocks in counts.items():
        block_bytes = block.indices.itemsize + b * b * dtype.itemsize
        sizes[b] = 8 * (-(-block.n_rows // b) + 1) + n_blocks * block_bytes
    b = min(sizes, key=lambda b: sizes[b])
    why = f"they are in {counts[b]:,} blocks of {b} x {b}; use csr-vector or sell"
    _check_bytes("bsr", block, counts[b] * b * b, sizes[b], why)
    return _fill_bsr(block, b, counts[b], dtype)


def build_sell(block: CsrBlock) -> Sell:
    """Convert a block to SELL-C-sigma. Rows of equal length keep their order."""
    xp = array_module(block.indptr)
    lengths = row_lengths(block)
    order = _sort_windows(lengths)
    slice_ptr = accumulate(SLICE * lengths[order[::SLICE]])  # sorted: the first row of a slice is the longest
    slots = xp.empty(block.n_rows, np.int64)
    xp.put(slots, order[: block.n_rows], xp.arange(block.n_rows), mode="wrap")
    firsts = slice_ptr[slots // SLICE] + slots % SLICE
    return Sell(slice_ptr, order, *_pad_rows(block, (int(slice_ptr[-1]),), firsts, SLICE))


# --- parts of formats ------------------------------------------------------------------------------------------------


def _fill_ell(block: CsrBlock, width: int) -> Ell:
    """Fill ELLPACK with the first `width` entries of each row."""
    rows = array_module(block.indptr).arange(block.n_rows)
    return Ell(*_pad_rows(block, (width, block.n_rows), rows, block.n_rows))


def _pad_rows(block: CsrBlock, shape: tuple[int, ...], firsts: Array, stride: int) -> tuple[Array, Array | None]:
    """Put entry k of row i at the place firsts[i] + k stride, unless that is beyond the last one.

    Returns
    -------
    Columns, -1 in other places, and values, 0 in other places, or None for a pattern.
    """
    xp = array_module(block.indptr)
    indices = xp.full(shape, -1, block.indices.dtype)
    data = None if block.data is None else xp.zeros(shape, block.data.dtype)
    for piece, rows in _each_piece(block) if indices.size else ():
        places = firsts[rows] + stride * (xp.arange(piece.start, piece.stop) - block.indptr[rows])
        is_held = places < indices.size
        xp.put(indices, places[is_held], block.indices[piece][is_held], mode="wrap")
        if data is not None and block.data is not None:
            xp.put(data, places[is_held], block.data[piece][is_held], mode="wrap")
    return indices, data


def _take_beyond(block: CsrBlock, width: int) -> Coo:
    """Return the entries after the first `width` of each row."""
    xp = array_module(block.indptr)
    nnz = int(xp.maximum(row_lengths(block) - width, 0).sum())
    taken = xp.empty(nnz, index_dtype(block.n_rows)), xp.empty(nnz, block.indices.dtype)
    data = None if block.data is None else xp.empty(nnz, block.data.dtype)
    begin = 0
    for piece, rows in _each_piece(block):
        is_beyond = xp.arange(piece.start, piece.stop) - block.indptr[rows] >= width
        end = begin + count_true(is_beyond)
        taken[0][begin:end] = rows[is_beyond]
        taken[1][begin:end] = block.indices[piece][is_beyond]
        if data is not None and block.data is not None:
            data[begin:end] = block.data[piece][is_beyond]
        begin = end
    return Coo(*taken, data)


def find_offsets(block: CsrBlock) -> Array:
    """Find column minus row of every diagonal with an entry, ascending. Takes less temporary memory than x and y."""
    xp = array_module(block.indptr)
    least = 1 - block.row_offset - block.n_rows
    has_entry = xp.zeros(max(0, block.n_rows + block.n_cols - 1), bool)
    for piece, rows in _each_piece(block):
        offsets = _subtract_rows(block, rows, piece)
        xp.put(has_entry, offsets - least, xp.ones(1, bool), mode="wrap")
    return xp.flatnonzero(has_entry) + least


def _subtract_rows(block: CsrBlock, rows: Array, piece: slice) -> Array:
    """Return column minus row, both global, of a piece of the entries."""
    return block.indices[piece].astype(np.int64) - (rows + block.row_offset)


def _sort_windows(lengths: Array) -> Array:
    """Sort rows by length, longest first, within each window of SIGMA; pad with -1 to whole slices."""
    xp, n_rows, longest = array_module(lengths), len(lengths), find_longest(lengths)
    windows = xp.arange(n_rows) // SIGMA
    order = xp.full(-(-n_rows // SLICE) * SLICE, -1, index_dtype(n_rows))
    order[:n_rows] = xp.argsort(windows * (longest + 1) + (longest - lengths), kind="stable")
    return order


def _number_blocks(block: CsrBlock, b: int, start: int, stop: int) -> tuple[Array, Array, Array]:
    """Return the block numbers (along rows of blocks), rows and columns of the entries of rows start .. stop."""
    first, last = int(block.indptr[start]), int(block.indptr[stop])
    rows, columns = _find_rows(block, first, last), block.indices[first:last].astype(np.int64)
    return (rows // b) * _count_block_columns(block, b) + columns // b, rows, columns


def _count_block_columns(block: CsrBlock, b: int) -> int:
    return max(1, -(-block.n_cols // b))


def _count_blocks(block: CsrBlock, b: int) -> int:
    """Count the blocks of b rows and columns that have an entry."""
    if -(-block.n_rows // b) * _count_block_columns(block, b) >= 2**63:
        raise FormatError(
            f"bsr cannot number the blocks of {block.n_rows:,} x {block.n_cols:,} in 64 bits; use csr-vector or sell"
        )
    pieces = pairwise(cut_pieces(block.indptr, PIECE, b))
    return sum(len(find_distinct(_number_blocks(block, b, start, stop)[0])) for start, stop in pieces)


def _fill_bsr(block: CsrBlock, b: int, n_blocks: int, dtype: Any) -> Bsr:
    xp, n_columns = array_module(block.indptr), _count_block_columns(block, b)
    counts = xp.zeros(-(-block.n_rows // b), np.int64)
    indices, data = xp.empty(n_blocks, block.indices.dtype), xp.zeros((n_blocks, b, b), dtype)
    begin = 0
    for start, stop in pairwise(cut_pieces(block.indptr, PIECE, b) if block.nnz else []):
        numbers, rows, columns = _number_blocks(block, b, start, stop)
        blocks = find_distinct(numbers)
        first, last = start // b, -(-stop // b)
        counts[first:last] = xp.bincount(blocks // n_columns - first, minlength=last - first)
        indices[begin : begin + len(blocks)] = blocks % n_columns
        places = (begin + xp.searchsorted(blocks, numbers)) * (b * b) + rows % b * b + columns % b
        piece = slice(int(block.indptr[start]), int(block.indptr[stop]))
        _add(data.reshape(-1), places, _take_values(block, piece, dtype))
        begin += len(blocks)
    return Bsr(accumulate(counts), indices, data)


# --- common helpers --------------------------------------------------------------------------------------------------


def count_true(mask: Any) -> int:
    """Count the true elements of an array of NumPy or CuPy.

    CuPy's sum of int64 is precompiled, but its sum of bool and `count_nonzero` take five seconds to compile.
    """
    return int(mask.astype(np.int64).sum())


def array_module(array: Array) -> Any:
    """Return CuPy, which is imported already, for its arrays; else NumPy."""
    return sys.modules["cupy"] if type(array).__module__.partition(".")[0] == "cupy" else np


def _each_piece(block: CsrBlock) -> Iterator[tuple[slice, Array]]:
    """Yield the entries in pieces of at most PIECE, with the local rows of each piece, int64."""
    for start in range(0, block.nnz, PIECE):
        stop = min(start + PIECE, block.nnz)
        yield slice(start, stop), _find_rows(block, start, stop)


def cut_pieces(indptr: Any, n_entries: int | None, multiple: int = 1) -> list[int]:
    """Cut rows into pieces of at most `n_entries` entries but at least `multiple` rows, and return the first row of
    each and the end of the last; None makes one piece."""
    n_rows = len(indptr) - 1
    if n_entries is None or int(indptr[-1]) <= n_entries:
        return [0, n_rows]
    xp, cuts = array_module(indptr), [0]
    while cuts[-1] < n_rows:
        end = indptr[cuts[-1] : cuts[-1] + 1].astype(np.int64) + n_entries
        last = int(xp.searchsorted(indptr, end, side="right")[0]) - 1
        cuts.append(min(n_rows, max(last // multiple, cuts[-1] // multiple + 1) * multiple))
    return cuts


def _find_rows(block: CsrBlock, start: int, stop: int) -> Array:
    """Find the local rows of entries start .. stop, int64."""
    xp = array_module(block.indptr)
    return xp.searchsorted(block.indptr, xp.arange(start, stop), side="right") - 1


def row_lengths(block: CsrBlock) -> Array:
    return block.indptr[1:] - block.indptr[:-1]


def find_longest(lengths: Array) -> int:
    return int(lengths.max()) if len(lengths) else 0


def accumulate(counts: Array) -> Array:
    """Return 0 and the cumulative sums of the counts, int64."""
    xp = array_module(counts)
    sums = xp.empty(len(counts) + 1, np.int64)
    sums[:1] = 0
    if len(counts):
        xp.cumsum(counts, out=sums[1:])
    return sums


def _value_dtype(block: CsrBlock, dtype: Any) -> np.dtype[Any]:
    return np.dtype(dtype if block.data is None else block.data.dtype)


def _take_values(block: CsrBlock, piece: slice, dtype: Any) -> Array:
    return array_module(block.indptr).ones(piece.stop - piece.start, dtype) if block.data is None else block.data[piece]


def to_host(array: Array) -> np.ndarray:
    """Return the array on the host, without a copy if it is already there."""
    host: np.ndarray = array if isinstance(array, np.ndarray) else array.get()
    return host


def find_distinct(numbers: Array) -> Array:
    """Return the distinct numbers, ascending. NumPy's `unique` hashes, which takes a hundred times as long."""
    numbers = array_module(numbers).sort(numbers)
    return numbers[mark_firsts(numbers)]


def mark_firsts(numbers: Array) -> Array:
    """Return whether each number differs from the one before it."""
    marks = array_module(numbers).ones(len(numbers), bool)
    marks[1:] = numbers[1:] != numbers[:-1]
    return marks


def _add(target: Array, places: Array, values: Array) -> None:
    """Add values to target[places] in order, bit-identical in NumPy and CuPy; equal places must be adjacent."""
    xp = array_module(target)
    while len(places):
        is_first = mark_firsts(places)
        first = places[is_first]
        before, added = target[first], values[is_first]
        # CuPy flushes float32 numbers below 2^-126 to zero when it adds, but not when it copies.
        xp.put(target, first, xp.where(before == 0, added, before + added), mode="wrap")
        places, values = places[~is_first], values[~is_first]


def _check_bytes(name: str, block: CsrBlock, places: int, nbytes: int, why: str) -> None:
    limit = LIMIT_RATIO * block.nbytes + LIMIT_BYTES
    if nbytes > limit:
        raise FormatError(
            f"{name} would hold {places:,} places for {block.nnz:,} nonzeros, {nbytes:,} bytes, but the limit is "
            f"{limit:,}: {why}"
        )
