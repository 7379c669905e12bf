"""Cuts of CSR into equal shares for the threads of kernels that read CSR itself, for NumPy and CuPy arrays alike."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mgspmv.errors import FormatError
from mgspmv.kernels.formats import (
    CHUNK_THREADS,
    ITEMS,
    WARP,
    Array,
    MatrixFormat,
    array_module,
    find_longest,
    row_lengths,
)
from mgspmv.model import INT32_LIMIT, CsrBlock

TILE, TILE_ROWS = 2048, 1024
"""Maximum entries, and rows, that a thread block of csr-vector stages."""
EVEN_ROWS, FILL = 4, 0.75
"""Maximum ratio of the longest row to the mean for cutting rows by the longest; otherwise, share of a tile to fill."""
BATCH, MOST_BATCHES = 32, 32
"""Entries per batch of Stream, and maximum batches per piece."""
FEW_PIECES = 1 << 16
"""Number of pieces that keeps all multiprocessors busy; pieces get longer before there are more."""


@dataclass(frozen=True, eq=False)
class Stream(MatrixFormat):
    """CSR as a stream of entries in pieces of `n_batches` times 32, the last one shorter; the entries stay in CSR.

    Piece p begins in the row `rows[piece_rows[p]]`. Numbers are of the dtype of the columns.
    """

    n_batches: int
    ends: Array
    """(ceil(nnz / 32),) uint32: one bit per entry, the lowest first, set for the last entry of a row."""
    rows: Array
    """(n_filled + 1,): rows with entries, in order, and a 0."""
    empty: Array
    """(n_rows - n_filled,): rows without entries."""
    piece_rows: Array
    """(n_pieces,): position in `rows` of the row in which each piece begins."""
    splits: Array
    """(n_splits, 3): each row that spans several pieces, the first piece and the last."""

    @property
    def piece(self) -> int:
        """Entries of a piece."""
        return self.n_batches * BATCH


@dataclass(frozen=True, eq=False)
class Split(MatrixFormat):
    """Merge path through row ends and nonzeros of CSR, cut into chunks of 1792 items, the last one shorter.

    On the path the end of a row comes right after the row's last nonzero, and an empty row is its end alone. Chunk c
    has the ends of rows `row_starts[c]` up to `row_starts[c + 1]` and the nonzeros `nonzero_starts[c]` up to
    `nonzero_starts[c + 1]`.

    Source: Merrill and Garland, Merge-based Parallel Sparse Matrix-Vector Multiplication, SC 2016.
    """

    row_starts: Array
    """(n_chunks + 1,) int64."""
    nonzero_starts: Array
    """(n_chunks + 1,) int64."""


@dataclass(frozen=True)
class VectorPlan:
    """Division of a block's rows among the thread blocks and threads of csr-vector."""

    rows: int
    """Rows per thread block."""
    lanes: int
    """Threads per row if the rows of a thread block are too long to be staged."""
    staged_lanes: int
    """Threads per row if they are staged in shared memory: at least lanes / 8, at most lanes."""


def plan_vector(block: CsrBlock, wavefront: int | None = None) -> VectorPlan:
    """Plan csr-vector for a block: as many rows per thread block as it can stage, and as many lanes per row as it has
    threads. Rows of which fewer than 8 fit are summed without staging, by as many lanes as the largest power of two up
    to the mean length and `wavefront`.

    Parameters
    ----------
    wavefront : threads that run in lockstep; default: that of the block's device, 32 on the host
    """
    if wavefront is None:
        xp = array_module(block.indptr)
        wavefront = WARP if xp is np else int(xp.cuda.Device().attributes["WarpSize"])
    lanes = min(wavefront, 1 << (max(1, block.nnz // max(1, block.n_rows)).bit_length() - 1))
    places, longest = TILE - 3, max(1, find_longest(row_lengths(block)))  # 3: staging begins at a multiple of 16 bytes
    mean = max(1.0, block.nnz / max(1, block.n_rows))
    rows = places // longest if longest <= EVEN_ROWS * mean else int(FILL * places / mean)
    if rows < CHUNK_THREADS // WARP:
        return VectorPlan(CHUNK_THREADS // lanes, lanes, lanes)
    rows = min(rows // 8 * 8, TILE_ROWS)
    if 0 < rows % CHUNK_THREADS < CHUNK_THREADS // 4 < CHUNK_THREADS < rows:
        rows -= rows % CHUNK_THREADS  # a last round of few threads costs more than unused places of a tile
    staged = 1 << (max(1, CHUNK_THREADS // rows).bit_length() - 1)
    return VectorPlan(rows, lanes, min(max(staged, lanes // 8), lanes))


def build_split(block: CsrBlock) -> Split:
    """Cut the merge path of a block into chunks; the end of row i is item `indptr[i + 1] + i` of it."""
    xp = array_module(block.indptr)
    ends = block.indptr[1:] + xp.arange(block.n_rows)
    n_items = block.n_rows + block.nnz
    items = xp.minimum(xp.arange(-(-n_items // ITEMS) + 1) * ITEMS, n_items)
    row_starts = xp.searchsorted(ends, items)
    return Split(row_starts, items - row_starts)


def build_stream(block: CsrBlock) -> Stream:
    """Cut the entries of a block into pieces, and find the ends of rows in them.

    Raises
    ------
    FormatError : 2^31 or more rows, but fewer columns
    """
    xp = array_module(block.indptr)
    n_batches = min(MOST_BATCHES, max(1, block.nnz // (BATCH * FEW_PIECES)))
    piece = n_batches * BATCH
    number = block.indices.dtype
    if block.n_rows >= INT32_LIMIT and number == np.int32:
        raise FormatError(
            f"csr-many numbers rows in the dtype of columns, here int32, but the block has {block.n_rows:,} rows; "
            "use kernel='csr-split'"
        )
    rows = xp.flatnonzero(block.indptr[1:] > block.indptr[:-1])
    starts, last = block.indptr[rows], block.indptr[rows + 1] - 1
    ends = xp.zeros(-(-block.nnz // BATCH), np.uint32)
    xp.add.at(ends, last // BATCH, xp.left_shift(np.uint32(1), (last % BATCH).astype(np.uint32)))
    piece_rows = xp.searchsorted(starts, xp.arange(0, block.nnz, piece), side="right") - 1
    first, last = starts // piece, last // piece
    is_split = last > first
    splits = xp.stack([rows[is_split], first[is_split], last[is_split]], axis=1)
    rows = xp.concatenate([rows, xp.zeros(1, rows.dtype)])
    empty = xp.flatnonzero(block.indptr[1:] == block.indptr[:-1])
    return Stream(n_batches, ends, *(part.astype(number) for part in (rows, empty, piece_rows, splits)))
