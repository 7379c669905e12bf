"""Row blocks: a matrix as PageRank on a device reads it fastest.

The rows, the longest first where that pays, are cut into blocks whose sums fit a multiprocessor's shared memory. The
entries of a block are in order of columns, so neighbours read the same cache lines of z, and blocks that are worked on
at once read the same ones. An entry is 4 bytes: its row in the block and its column in a window; CHUNK entries follow a
number that says where their window begins. kernels/row_blocks.cu makes them, kernels/rank_blocks.cu multiplies.

    block b        rows of the places b height .. (b + 1) height
    cell (b, w)    its entries in the columns w 2^s .. (w + 1) 2^s, where s depends on how many entries the block has
    chunk          CHUNK entries of one cell; its last is filled up with entries of row `height`, which is none

Source: this project's; after cache-aware binning (Lakhotia, Kannan, Prasanna, USENIX ATC 2018).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from mgspmv.errors import FormatError
from mgspmv.kernels.device import load_kernel, shared_memory
from mgspmv.kernels.specialise import value_types
from mgspmv.model import CsrBlock

Order = Literal["none", "degree", "auto"]

ROW_BITS = 15
"""Bits of an entry that say its row; the others say its column."""
CHUNK = 128
TILE = 8192
"""Entries of a cell that are sorted together, and about how many a cell has."""
WINDOWS = 8192
"""Most cells of a block, unless its windows would be wider than an entry can say."""
JOB = 7168
"""Entries that a thread block counts or places."""
LEAST_HEIGHT = 256
EVEN_ROWS = 4
SHARE_OF_SHARED_MEMORY = 0.7
"""What the sums of a block may take; the rest is cache, whose lines are all the reads that can be under way."""
PIECE_ENTRIES = 1 << 27
"""Most entries of CSR that are on the device for the format's sake; a larger matrix is read twice, piece by piece."""


@dataclass(frozen=True, eq=False)
class RowBlocks:
    """A matrix in row blocks, on the device or, made by `lay_out`, on the host."""

    shape: tuple[int, int]
    nnz: int
    height: int
    """Rows of a block."""
    order: Any | None
    """(n_rows,) int32: the row at each place; None where places are rows."""
    block_chunks: np.ndarray
    """(n_blocks + 1,) int64, on the host: the first chunk of each block that has entries. Those after it have none."""
    entries: Any
    """(n_chunks * CHUNK,) uint32: column << ROW_BITS | row, from the chunk's column and the block's first place on;
    entry k of a chunk is at place 4 (k % 32) + k // 32 of it."""
    columns: Any
    """(n_chunks,) uint32: the place of the column that a chunk counts from."""
    values: Any | None
    """(n_chunks * CHUNK,) float32 or float64, as `entries`; None for a pattern."""

    @property
    def nbytes(self) -> int:
        """Bytes of the format."""
        return int(sum(a.nbytes for a in (self.entries, self.columns, self.values, self.order) if a is not None))


@dataclass(frozen=True, eq=False)
class Windows:
    """How the columns of each block are cut into windows."""

    shifts: np.ndarray
    """(n_blocks,) int32: a window has 2^shift columns."""
    cell_starts: np.ndarray
    """(n_blocks + 1,) int64: the first cell of each block."""


def check_shape(block: CsrBlock) -> None:
    """
    Raises
    ------
    FormatError : row blocks cannot hold such a matrix
    """
    if block.indices.dtype != np.int32:
        raise FormatError(
            f"row-blocks count columns in 32 bits, and the matrix has {block.n_cols:,}; use kernel='csr-split'"
        )


def choose_height(n_filled: int, n_multiprocessors: int, shared_bytes: int) -> int:
    """Rows of a block: two blocks for each multiprocessor, as far as their sums fit its shared memory.

    Parameters
    ----------
    n_filled : rows that have entries
    shared_bytes : of a multiprocessor
    """
    most = min(int(SHARE_OF_SHARED_MEMORY * shared_bytes / 8), (1 << ROW_BITS) - 1)
    wanted = -(-n_filled // (2 * n_multiprocessors))
    return max(LEAST_HEIGHT, min(most, wanted) // LEAST_HEIGHT * LEAST_HEIGHT)


def cut_windows(block_nnz: np.ndarray, n_cols: int) -> Windows:
    """Windows of which each has about TILE entries, were the columns alike; no wider than an entry can say.

    Parameters
    ----------
    block_nnz : (n_blocks,) int64 entries of each block
    """
    widths = n_cols * TILE / np.maximum(1, block_nnz)
    least = max(5, int(np.ceil(np.log2(max(1, n_cols) / WINDOWS))))
    shifts = np.clip(np.floor(np.log2(np.maximum(1, widths))), least, 32 - ROW_BITS).astype(np.int32)
    n_cells = (n_cols + (np.int64(1) << shifts) - 1) >> shifts
    return Windows(shifts, _count_up(n_cells))


def lay_out(block: CsrBlock, height: int, order: Order) -> RowBlocks:
    """Row blocks of a block on the host, sorted whole: what the ones made on a device are tested against."""
    check_shape(block)
    places, by_place, n_filled = _place_rows(np, block.indptr, order)
    n_blocks = -(-n_filled // height)
    rows = places[np.repeat(np.arange(block.n_rows), np.diff(block.indptr))]
    columns = block.indices if by_place is None else places[block.indices]
    blocks = rows // height
    windows = cut_windows(np.bincount(blocks, minlength=n_blocks), block.n_cols)
    cells = windows.cell_starts[blocks] + (columns >> windows.shifts[blocks])
    by_column = np.lexsort((columns, cells))
    n_cells = int(windows.cell_starts[-1])
    counts = np.bincount(cells, minlength=n_cells)
    chunk_starts = _count_up(-(-counts // CHUNK))
    entries = np.full(int(chunk_starts[-1]) * CHUNK, height, np.uint32)
    values = None if block.data is None else np.zeros(len(entries), block.data.dtype)
    starts = _count_up(counts)
    k = np.arange(block.nnz) - starts[cells[by_column]]
    lane = k % CHUNK
    slots = chunk_starts[cells[by_column]] * CHUNK + k - lane + 4 * (lane % 32) + lane // 32
    inside = columns[by_column] & ((np.int64(1) << windows.shifts[blocks[by_column]]) - 1)
    entries[slots] = inside << ROW_BITS | rows[by_column] - blocks[by_column] * height
    if values is not None and block.data is not None:
        values[slots] = block.data[by_column]
    owner = np.repeat(np.arange(n_blocks), np.diff(windows.cell_starts))
    first = (np.arange(n_cells) - windows.cell_starts[owner]) << windows.shifts[owner]
    chunk_columns = np.repeat(first, np.diff(chunk_starts)).astype(np.uint32)
    block_chunks = chunk_starts[windows.cell_starts]
    shape = (block.n_rows, block.n_cols)
    return RowBlocks(shape, block.nnz, height, by_place, block_chunks, entries, chunk_columns, values)


def build_row_blocks(
    indptr: Any,
    n_cols: int,
    read: Callable[[int, int], CsrBlock],
    *,
    order: Order = "auto",
    height: int | None = None,
    piece_entries: int | None = PIECE_ENTRIES,
) -> RowBlocks:
    """Row blocks on the current device, made there.

    Beside the format and tables of the rows, the device holds one piece of CSR at a time; of more than one, each is
    read twice.

    Parameters
    ----------
    indptr : (n_rows + 1,) row pointers of the whole matrix, on the host or on the device
    read : called with two rows, gives the rows from the one to the other as a block on the device
    order : `degree` places long rows first, and columns likewise, for which the matrix must be square; `auto` does so
        unless the longest row has at most EVEN_ROWS times the mean: rows that are alike keep the neighbours they have
    height : rows of a block; default as `choose_height` says
    piece_entries : most entries of a piece, unless one row has more; None takes all at once, of a matrix that is on the
        device anyway

    Raises
    ------
    FormatError : row blocks cannot hold such a matrix
    CapacityError : they do not fit
    """
    import cupy

    n_multiprocessors, shared_bytes = shared_memory()
    lengths_ptr = cupy.asarray(indptr)
    n_rows, nnz = len(indptr) - 1, int(indptr[-1])
    places, by_place, n_filled = _place_rows(cupy, lengths_ptr, order)
    height = height or choose_height(n_filled, n_multiprocessors, shared_bytes)
    n_blocks = -(-n_filled // height)
    starts = _count_up_on_device(cupy, cupy.diff(lengths_ptr), by_place)
    bounds = np.minimum(np.arange(n_blocks + 1) * height, n_rows)
    windows = cut_windows(np.diff(cupy.asnumpy(starts[cupy.asarray(bounds)])), n_cols)
    n_cells = int(windows.cell_starts[-1])
    shifts, cell_starts = cupy.asarray(windows.shifts), cupy.asarray(windows.cell_starts)
    layout = (places if by_place is not None else np.uint64(0), np.int32(height), shifts, cell_starts)
    room = 4 * (JOB + int(np.diff(windows.cell_starts).max(initial=0)))
    cuts = _cut_pieces(indptr, piece_entries or nnz)
    pieces = [_Piece(cupy, read(0, n_rows), places, by_place, starts, bounds)] if len(cuts) == 2 else None

    def each_piece() -> Any:
        if pieces:
            yield from pieces
            return
        for first, last in pairwise(cuts):
            yield _Piece.of_part(cupy, read(first, last), places[first:last], height, n_blocks)

    counts = cupy.zeros(n_cells, np.uint32)
    has_values = False
    for piece in each_piece():
        has_values = piece.block.data is not None
        piece.run("count_cells", room, layout, (counts,))
    chunk_starts = _count_up_on_device(cupy, (counts + np.uint32(CHUNK - 1)) // np.uint32(CHUNK), None)
    tile_starts = _count_up_on_device(cupy, (counts + np.uint32(TILE - 1)) // np.uint32(TILE), None)
    block_chunks, n_tiles = cupy.asnumpy(chunk_starts[cell_starts]), int(tile_starts[-1])
    n_chunks = int(block_chunks[-1])
    slots = cupy.empty(n_cells, np.uint32)
    owners = cupy.searchsorted(cell_starts, cupy.arange(n_cells), side="right") - 1
    slots[:] = (chunk_starts[:-1] - chunk_starts[cell_starts[owners]]) * CHUNK
    entries, columns = cupy.empty(n_chunks * CHUNK, np.uint32), cupy.empty(n_chunks, np.uint32)
    values: Any = None
    for piece in each_piece():
        if has_values and values is None:
            values = cupy.empty(len(entries), piece.block.data.dtype)
        piece.run("place_entries", room, layout, (slots, chunk_starts, entries, _address(values)))
    if n_tiles:
        cells = (np.int64(n_cells), tile_starts, chunk_starts, counts, np.int32(n_blocks), cell_starts, shifts)
        arguments = (*cells, np.int32(height), entries, _address(values), columns)
        room = TILE * max(4, 0 if values is None else values.itemsize)
        sort = _load("sort_tiles", None if values is None else values.dtype, room)
        sort((n_tiles,), (512,), arguments, shared_mem=room)
    return RowBlocks((n_rows, n_cols), nnz, height, by_place, block_chunks, entries, columns, values)


class _Piece:
    """Rows of CSR on the device, in the order of their places.

    Parameters
    ----------
    places : (n_rows,) of the rows in CSR's order
    by_place : (n_rows,) the piece's rows in the order of their places; None where that is CSR's
    starts : (n_rows + 1,) the first entry of each row in that order
    bounds : (n_blocks + 1,) where the rows of each block begin in that order, on the host
    """

    def __init__(self, cupy: Any, block: CsrBlock, places: Any, by_place: Any, starts: Any, bounds: np.ndarray) -> None:
        check_shape(block)
        self.block = block
        begins = block.indptr[:-1].astype(np.int64)
        jumps = (begins if by_place is None else begins[by_place]) - starts[:-1]
        own = places if by_place is None else places[by_place]
        first_rows = cupy.asarray(bounds)
        block_nnz = np.diff(cupy.asnumpy(starts[first_rows]))
        job_starts = _count_up(-(-block_nnz // JOB))
        self._n_jobs = int(job_starts[-1])
        jobs = (np.int32(len(bounds) - 1), cupy.asarray(job_starts), first_rows)
        self._rows = (*jobs, starts, jumps, own, block.indices)

    @classmethod
    def of_part(cls, cupy: Any, block: CsrBlock, places: Any, height: int, n_blocks: int) -> _Piece:
        """Of some rows of the matrix, with their places."""
        by_place = cupy.argsort(places)
        starts = _count_up_on_device(cupy, cupy.diff(block.indptr), by_place)
        bounds = cupy.searchsorted(places[by_place], cupy.arange(n_blocks + 1) * height)
        return cls(cupy, block, places, by_place, starts, cupy.asnumpy(bounds))

    def run(self, name: str, room: int, layout: tuple[Any, ...], target: tuple[Any, ...]) -> None:
        """Count or place the piece's entries, with so many bytes of shared memory."""
        if not self._n_jobs:
            return
        data = self.block.data
        kernel = _load(name, None if data is None else data.dtype, room)
        source = (*self._rows, _address(data)) if name == "place_entries" else self._rows
        kernel((self._n_jobs,), (1024,), (*source, *layout, *target), shared_mem=room)


def _load(name: str, value: np.dtype[Any] | None, room: int) -> Any:
    kernel = load_kernel("row_blocks.cu", name, INDEX=np.dtype(np.int32), **value_types(value))
    kernel.max_dynamic_shared_size_bytes = room
    return kernel


def _place_rows(xp: Any, indptr: Any, order: Order) -> tuple[Any, Any, int]:
    """The place of each row, the row at each place (None where they are the same), and the places that have entries."""
    lengths = xp.diff(indptr)
    n_rows = len(lengths)
    longest = int(lengths.max()) if n_rows else 0
    if order == "none" or (order == "auto" and longest * n_rows <= EVEN_ROWS * int(indptr[-1])):
        filled = xp.flatnonzero(lengths[::-1])
        n_filled = n_rows - int(filled[0]) if len(filled) else 0
        return xp.arange(n_rows, dtype=np.int32), None, n_filled
    by_place = xp.argsort(-lengths, kind="stable").astype(np.int32)
    places = xp.empty(n_rows, np.int32)
    places[by_place] = xp.arange(n_rows, dtype=np.int32)
    return places, by_place, int(xp.count_nonzero(lengths))


def _cut_pieces(indptr: Any, n_entries: int) -> list[int]:
    """Rows where pieces of so many entries, or of a row, begin, and the end of the last."""
    n_rows = len(indptr) - 1
    if int(indptr[-1]) <= n_entries:
        return [0, n_rows]
    host = indptr if isinstance(indptr, np.ndarray) else indptr.get()
    cuts = [0]
    while cuts[-1] < n_rows:
        last = int(np.searchsorted(host, host[cuts[-1]] + n_entries, side="right")) - 1
        cuts.append(min(n_rows, max(last, cuts[-1] + 1)))
    return cuts


def _count_up(lengths: np.ndarray) -> np.ndarray:
    starts = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=starts[1:])
    return starts


def _count_up_on_device(cupy: Any, lengths: Any, by_place: Any) -> Any:
    starts = cupy.zeros(len(lengths) + 1, np.int64)
    cupy.cumsum(lengths if by_place is None else lengths[by_place], out=starts[1:])
    return starts


def _address(array: Any) -> Any:
    return np.uint64(0) if array is None else array
