"""Cuts of CSR into equal shares for the threads of kernels that read CSR itself, for NumPy and CuPy arrays alike."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mgspmv.errors import FormatError
from mgspmv.kernels import formats
from mgspmv.kernels.formats import (
    CHUNK_THREADS,
    ITEMS,
    WARP,
    Array,
    MatrixFormat,
    array_module,
    count_true,
    find_longest,
    row_lengths,
)
from mgspmv.model import INT32_LIMIT, CsrBlock, index_dtype

TILE, TILE_ROWS = 2048, 1024
"""Maximum entries, and rows, that a thread block of csr-vector stages."""
EVEN_ROWS, FILL = 4, 0.75
"""Maximum ratio of the longest row to the mean for cutting rows by the longest; otherwise, share of a tile to fill."""
BATCH, MOST_BATCHES = 32, 32
"""Entries per batch of Stream, and maximum batches per piece."""
STEP, RUN = 512, 16
"""Entries of a step of Compact, and of a lane in it."""
STEP_UNIT, MOST_UNITS = 8, 40
"""A thread block of csr-compact has one step less than a multiple of STEP_UNIT, and at most MOST_UNITS times that."""
FEW_STEPS, WIDE_SHARE = 1 << 14, 16
"""Steps up to which thread blocks are as short as can be if one in WIDE_SHARE has columns that 16 bits do not number:
such steps take longer, and many short thread blocks balance them."""
RUNNING = 264
"""Thread blocks of csr-compact that run at a time: two per multiprocessor of an H100. The same for all devices, so that
products are bit-identical."""
SLACK = 2048
"""Maximum entries by which a block is extended to the end of a row."""
NEAR = 1 << 16
"""Columns that 16 bits number."""
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


@dataclass(frozen=True, eq=False)
class Compact(MatrixFormat):
    """CSR with columns of 16 bits, cut into steps of 512 nonzeros, the last one shorter, and these into blocks.

    Values stay in CSR, as do the columns of steps that span too many. A lane has 16 adjacent entries of a step. Blocks
    have `block_steps` steps each, and the rows that begin there: a cut is at the start of a row, unless the row
    continues for thousands of entries. Rows are counted among those with entries.
    """

    block_steps: int
    cuts: Array
    """(n_blocks + 1, 2) int64: first nonzero of a block, and rows that ended before it."""
    steps: Array
    """(n_steps + 2, 2), int32 below 2^31 nonzeros: rows that ended before a step, and the column that `near` is
    relative to in it, -1 for none."""
    marks: Array
    """(n_steps, 32) uint32: bit j of lane l is set if its entry j is the last of a row; the upper 16 bits are the
    number of rows that end in the lanes before."""
    near: Array
    """(nnz,) uint16: column minus that of the step, any number in steps without one."""
    rows: Array | None
    """(n_filled,): rows with entries; None if all have some."""
    empty: Array | None
    """(n_rows - n_filled,): rows without entries; None if there are none."""
    carry_rows: Array | None
    """(n_blocks,) int64: row that continues after each block, n_rows for none; None if no row does."""


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


def build_compact(block: CsrBlock) -> Compact:
    """Cut a block into steps, mark the ends of rows in them, and number columns in 16 bits.

    Raises
    ------
    FormatError : in more than half of the steps, columns span more than 2^16
    """
    xp = array_module(block.indptr)
    is_filled = block.indptr[1:] > block.indptr[:-1]
    filled, empty = xp.flatnonzero(is_filled), xp.flatnonzero(~is_filled)
    starts, last = block.indptr[filled], block.indptr[filled + 1] - 1
    base, near = _number_columns(block, starts, last)
    n_steps = len(base)
    steps = xp.full((n_steps + 2, 2), -1, index_dtype(block.nnz))
    steps[:, 0], steps[:n_steps, 1] = xp.searchsorted(last, xp.arange(n_steps + 2) * STEP), base
    block_steps = choose_block_steps(n_steps, count_true(base < 0))
    begins = _cut_rows(starts, block.nnz, block_steps * STEP)
    n_ended = xp.searchsorted(last, begins)
    cuts = xp.full((len(begins) + 1, 2), block.nnz, np.int64)
    cuts[:-1, 0], cuts[:-1, 1], cuts[-1, 1] = begins, n_ended, len(filled)
    carry_rows = xp.full(len(begins), block.n_rows, np.int64)
    continues = starts[n_ended[1:]] < begins[1:]
    carry_rows[:-1] = xp.where(continues, filled[n_ended[1:]], block.n_rows)
    return Compact(
        block_steps,
        cuts,
        steps,
        _mark_ends(last, n_steps),
        near,
        rows=filled.astype(index_dtype(block.n_rows)) if len(empty) else None,
        empty=empty.astype(index_dtype(block.n_rows)) if len(empty) else None,
        carry_rows=carry_rows if count_true(continues) else None,
    )


def choose_block_steps(n_steps: int, n_wide: int) -> int:
    """Choose the steps of a thread block so that few turns of RUNNING blocks, which are full, make all steps.

    A turn takes as long as the steps of a warp and about one more, while its first entries are read.

    Parameters
    ----------
    n_wide : steps whose columns 16 bits do not number
    """
    if n_steps <= FEW_STEPS and n_wide * WIDE_SHARE > n_steps:
        return STEP_UNIT - 1
    units = np.arange(1, MOST_UNITS + 1)
    turns = -(-n_steps // ((STEP_UNIT * units - 1) * RUNNING))
    return int(STEP_UNIT * units[np.argmin(turns * (units + 1))] - 1)


def _number_columns(block: CsrBlock, starts: Array, last: Array) -> tuple[Array, Array]:
    """Return the least column of each step, -1 where they span too many, and columns relative to it in 16 bits."""
    xp, n_steps = array_module(block.indptr), -(-block.nnz // STEP)
    firsts = xp.arange(n_steps) * STEP
    # Columns are sorted within rows: the least of a step is its first one, or that of a row that begins in it.
    least, most = block.indices[firsts], block.indices[xp.minimum(firsts + STEP, block.nnz) - 1]
    xp.minimum.at(least, starts // STEP, block.indices[starts])
    xp.maximum.at(most, last // STEP, block.indices[last])
    is_near = (most - least < NEAR) & (least < INT32_LIMIT)
    n_wide = n_steps - count_true(is_near)
    if 2 * n_wide > n_steps:
        raise FormatError(
            f"csr-compact numbers columns in 16 bits, but they span more than 65,536 in {n_wide:,} of {n_steps:,} "
            "steps of 512 entries; use csr-split or csr-vector"
        )
    near = xp.empty(block.nnz, np.uint16)
    for first in range(0, block.nnz, formats.PIECE):
        piece = slice(first, min(first + formats.PIECE, block.nnz))
        near[piece] = (block.indices[piece] - least[xp.arange(first, piece.stop) // STEP]).astype(np.uint16)
    return xp.where(is_near, least, -1), near


def _cut_rows(starts: Array, nnz: int, size: int) -> Array:
    """Return every `size`-th nonzero, or the next start of a row if that is near."""
    xp = array_module(starts)
    cuts = xp.arange(0, nnz, size)
    after = xp.concatenate([starts, xp.full(1, nnz, starts.dtype)])[xp.searchsorted(starts, cuts)]
    cuts = xp.where(after - cuts <= SLACK, after, cuts)
    return cuts[cuts < nnz]


def _mark_ends(last: Array, n_steps: int) -> Array:
    """Return `marks` of the last entries of rows."""
    xp = array_module(last)
    marks = xp.zeros(n_steps * WARP, np.uint32)
    xp.add.at(marks, last // RUN, xp.left_shift(np.uint32(1), (last % RUN).astype(np.uint32)))
    marks = marks.reshape(n_steps, WARP)
    for first in range(0, n_steps, max(1, formats.PIECE // STEP)):
        own = marks[first : first + max(1, formats.PIECE // STEP)]
        before = xp.searchsorted(last, xp.arange(first * WARP, first * WARP + own.size) * RUN).reshape(own.shape)
        own |= ((before - before[:, :1]) << 16).astype(np.uint32)
    return marks


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
