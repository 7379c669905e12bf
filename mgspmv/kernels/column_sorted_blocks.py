"""Column-sorted blocks: the matrix layout for fast PageRank steps on a device.

The rows, the longest first where that pays, are cut into blocks whose sums fit in a multiprocessor's shared memory. The
entries of a block are sorted by column, so that neighbors read the same cache lines of z, as do blocks that are
processed at the same time. An entry has 4 bytes: its row in the block and its column in a window; CHUNK entries share a
number that gives the start of their window. kernels/column_sorted_blocks.cu builds them, kernels/rank_blocks.cu
multiplies.

    block b        rows of the places b height .. (b + 1) height
    cell (b, w)    its entries in the columns w 2^s .. (w + 1) 2^s, where s depends on how many entries the block has
    chunk          CHUNK entries of one cell; its last is padded with entries of PADDING_ROWS rows that follow the block

Cells with few entries may be binned instead (mgspmv/kernels/bins.py), and entries next to the diagonal be in slices
(mgspmv/kernels/band_slices.py).

Source: this project's; after cache-aware binning (Lakhotia, Kannan, Prasanna, USENIX ATC 2018).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar, Literal

import numpy as np

from mgspmv.kernels.band_slices import BandSlices
from mgspmv.kernels.bins import (
    JOB_SIZES,
    JOB_THREADS,
    LEAST_DENSE,
    NO_BINS,
    PADDING_ROWS,
    RATES,
    ROW_BITS,
    TILE,
    WINDOW_BITS,
    BinBuilder,
    Bins,
    CellRates,
    Windows,
    can_bin,
    cut_bin_windows,
    cut_windows,
    may_bin,
)
from mgspmv.kernels.device import (
    PieceReader,
    address,
    cache_bytes,
    count_blocks,
    load_kernel,
    pack,
    put_all,
    reclaim_memory,
    release_device_memory,
    shared_memory,
)
from mgspmv.kernels.formats import accumulate
from mgspmv.kernels.modules import value_types

CHUNK = 128
SORT_THREADS = 512
CUT_THREADS = 256
"""Threads that cut blocks into jobs, one for each job."""
ROW_THREADS, ROW_BLOCKS = 256, 8
"""Threads, and most thread blocks for each multiprocessor, of kernels that process rows."""
KEYS, PLACE_THREADS, PART_ROWS = 256, 96, 96 * 32
"""Keys that rows are placed by, the threads that place them, and the rows that a thread block keys or places."""
MEASURED_ROWS = 4096
"""Rows that a thread block measures."""
LEAST_HEIGHT, HEIGHT_UNIT = 256, 32
SHARE_OF_SHARED_MEMORY = 0.5
"""Maximum share for the sums of a block; the rest is cache, whose lines limit the number of reads in flight."""
TALL_SHARES, FEW_ENTRIES = (0.8, 0.98), 64
"""The same where rows are even and most cells binned, so that few reads are kept in the cache; the larger one where
cells have few entries, many of which are padding."""
KEPT_COLUMNS, PLANNED_COLUMNS = 1 << 28, 1 << 27
"""Maximum entries for which the places of their columns are kept on the device, if the matrix is read in one piece; and
for which plans count them: those of more take memory that bins may have."""


@dataclass(frozen=True, eq=False)
class ColumnSortedBlocks:
    """Matrix in column-sorted blocks, on the device."""

    shape: tuple[int, int]
    nnz: int
    height: int
    """Rows per block."""
    block_chunks: np.ndarray
    """(n_blocks + 1,) int64, on the host: first chunk of each block, up to the last block with entries."""
    entries: Any
    """(n_chunks * CHUNK,) uint32: column << ROW_BITS | row, relative to the chunk's column and the block's first place;
    entry k of a chunk is at position 4 (k % 32) + k // 32 of it, or at k if rows are near."""
    columns: Any
    """(n_chunks,) uint32: place of the column that the chunk's columns are relative to."""
    values: Any | None
    """(n_chunks * CHUNK,) float32 or float64, in the order of `entries`; None for a pattern."""
    bins: Bins | None = None
    """Cells that are binned; None if there are none."""
    n_resident: int = 1
    """Thread blocks that a multiprocessor runs at a time, which share its memory."""
    band: BandSlices | None = None
    """Entries next to the diagonal, which are not in blocks; None if all are."""

    name: ClassVar[Literal["column-sorted-blocks"]] = "column-sorted-blocks"

    @property
    def nbytes(self) -> int:
        """Bytes of the format."""
        parts = (self.entries, self.columns, self.values, self.bins, self.band)
        return int(sum(part.nbytes for part in parts if part is not None))


def choose_share(nnz: int, n_filled: int, n_cols: int) -> float:
    """Choose the share of shared memory for the sums of blocks whose rows are even and whose cells may be binned."""
    height = TALL_SHARES[0] * shared_memory()[1] / 8
    is_sparse = nnz * height * (1 << WINDOW_BITS) < FEW_ENTRIES * n_filled * n_cols
    return TALL_SHARES[is_sparse]


def choose_height(n_filled: int, n_running: int, shared_bytes: int, share: float = SHARE_OF_SHARED_MEMORY) -> int:
    """Choose the rows of a block: as many as fit, and as many blocks for each thread block that runs, at least two.

    Parameters
    ----------
    n_filled : rows, without those at the end that have no entries
    n_running : thread blocks that the device runs at a time
    shared_bytes : of a multiprocessor, for each of its thread blocks
    share : most of that for the sums of a block
    """
    most = min(int(share * shared_bytes / 8), (1 << ROW_BITS) - PADDING_ROWS) // HEIGHT_UNIT * HEIGHT_UNIT
    n_blocks = n_running * max(2, -(-n_filled // (n_running * most)))
    return max(LEAST_HEIGHT, -(-n_filled // (n_blocks * HEIGHT_UNIT)) * HEIGHT_UNIT)


def build_column_sorted_blocks(
    indptr: Any,
    n_cols: int,
    pieces: PieceReader,
    *,
    order: Any | None = None,
    columns: Any | None = None,
    value: np.dtype[Any] | None = None,
    height: int | None = None,
    n_filled: int | None = None,
    bin_bytes: int = 0,
    is_exact: bool = True,
    is_near: bool = False,
    is_even: bool = False,
    n_resident: int = 1,
    band: BandSlices | None = None,
) -> ColumnSortedBlocks:
    """Build column-sorted blocks on the current device.

    Besides the format and tables of the rows, the device holds pieces of CSR; if there are several, there are two
    passes over them.

    Parameters
    ----------
    indptr : (n_rows + 1,) row pointers of the whole matrix, on the host or on the device
    n_cols : columns of the format
    pieces : the rows in CSR, on the device
    order : on the device, (n_rows,) int32: row at each place; None if places are rows
    columns : on the device, int32: place of each column of CSR; None if that is its number
    value : dtype of the values; None for a pattern
    height : rows of a block; default: see `choose_height`
    n_filled : places up to the last row that has entries; None to count them
    bin_bytes : memory of the device for the products of binned cells, and what else these take beyond chunks
    is_exact : whether steps will be in fixed point, which layouts of either kind allow
    is_near : whether neighboring columns have the same rows, to which a warp should not add at the same time
    is_even : whether no row is much longer than the mean
    n_resident : thread blocks that a multiprocessor is to run at a time
    band : entries of the rows that are not in `pieces`

    Raises
    ------
    CapacityError : the layout does not fit on the device
    """
    import cupy

    is_whole = pieces.is_whole
    if is_whole and order is None and n_filled is not None:
        starts, jumps = cupy.asarray(indptr, np.int64), None
    else:
        starts, jumps, counted = _measure_rows(indptr, order, jumps=order is not None and is_whole)
        n_filled = int(counted[0]) if n_filled is None else n_filled
    n_rows, nnz = len(indptr) - 1, sum(block.nnz for _, block in pieces.each()) if is_whole else int(indptr[-1])
    if height is None:
        is_tall = is_even and may_bin(n_cols, bin_bytes)
        share = choose_share(nnz, n_filled, n_cols) if is_tall else SHARE_OF_SHARED_MEMORY
        n_multiprocessors, n_bytes = shared_memory()
        n_working = n_filled if band is None else len(indptr) - 1
        height = choose_height(n_working, n_multiprocessors * n_resident, n_bytes // n_resident, share)
    block_starts = np.append(cupy.asnumpy(starts[:n_filled:height]), nnz)
    windows, wide_windows, first_bin, n_binned = cut_windows(np.diff(block_starts), n_cols), None, None, 0
    found_bytes = 4 * nnz if nnz > PLANNED_COLUMNS else 0
    keeps_columns = is_whole and columns is not None and nnz <= KEPT_COLUMNS and found_bytes <= bin_bytes
    keeps_columns &= band is None  # whose rows take that memory
    if can_bin(nnz, n_cols, len(block_starts) - 1, bin_bytes - keeps_columns * found_bytes):
        n_narrow, windows, wide_windows = cut_bin_windows(windows, n_cols)
        first_bin, n_binned = int(windows.cell_starts[n_narrow]), len(windows.shifts) - n_narrow
    own_places, n_blocks = None, len(block_starts) - 1
    if not is_whole:
        del starts
        starts, jumps, own_places, firsts = _group_rows(indptr, order, pieces.cuts, np.arange(n_blocks) * height)
        block_starts = np.append(cupy.asnumpy(starts[firsts]), nnz)
        release_device_memory()  # the layout needs it
    job_starts = accumulate(-(-np.diff(block_starts) // windows.job_entries))
    kinds = (windows,) if wide_windows is None else (windows, wide_windows)
    tables = put_all(block_starts, job_starts, *(table for own in kinds for table in (own.shifts, own.cell_starts)))
    jobs = _Jobs(starts, jumps, own_places, tables[0], tables[1], job_starts[:: max(1, n_blocks)], windows, value)
    found = cupy.empty(nnz, np.int32) if keeps_columns else None
    cells = _Cells(windows, tables[2:4], columns, height, first_bin)

    counts, taken = cupy.zeros((2, cells.n), np.uint32)
    for k, piece in pieces.each():
        jobs.run("count_cells", k, (cells.there, piece.indices, address(found), counts))
        del piece
    wide = None if wide_windows is None else _Cells(wide_windows, tables[4:], columns, height)
    load, n_before = partial(_load, value=value), cells.n_blocks - n_binned
    make = partial(BinBuilder, n_before=n_before, n_blocks=n_binned, value=value, load=load, is_exact=is_exact)
    cells, counts, tiles, cut, builder = _choose_cells(cells, counts, wide, make, n_binned, nnz, n_cols)
    block_chunks, n_tiles = cut[:-1], int(cut[-1])
    if not is_whole:
        release_device_memory()
    n_chunks = int(block_chunks[-1])
    entries, columns = cupy.empty(n_chunks * CHUNK, np.uint32), cupy.empty(n_chunks, np.uint32)
    values = None if value is None else cupy.empty(n_chunks * CHUNK, value)
    bins, binned = (None, pack(*NO_BINS)) if builder is None else builder.finish(height)
    target = (taken, tiles.chunk_starts, entries, address(values), binned)
    for k, piece in pieces.each():
        arrays = (piece.indices, address(found), address(piece.data))
        jobs.run("place_entries", k, (cells.there, *arrays, *target))
        del piece, arrays
    _sort_tiles(n_tiles, tiles, (counts, cells.there, np.int64(is_near), entries, address(values), columns), value)
    nnz += 0 if band is None else band.nnz
    return ColumnSortedBlocks(
        (n_rows, n_cols), nnz, height, block_chunks, entries, columns, values, bins, n_resident, band
    )


def _load(name: str, value: np.dtype[Any] | None) -> Any:
    """Load a kernel that has no jobs."""
    return load_kernel("column_sorted_blocks.cu", name, ENTRIES_PER_THREAD=JOB_SIZES[0], **value_types(value))


def _measure_rows(indptr: Any, order: Any | None, *, jumps: bool) -> tuple[Any, Any, Any]:
    """Return the first entry of each row in an order, and the number of all; the jumps of `_Jobs`, or None; and
    (1,) int64, the number of rows up to the last one that has entries."""
    import cupy

    n_rows = len(indptr) - 1
    grid, n = (max(1, count_blocks(n_rows, MEASURED_ROWS)),), np.int64(n_rows)
    starts, jumped = cupy.empty(n_rows + 1, np.int64), cupy.empty(n_rows, np.int64) if jumps else None
    sums, n_filled = cupy.empty(grid[0], np.int64), cupy.zeros(1, np.int64)
    arrays = (cupy.asarray(indptr, np.int64), address(order), starts, address(jumped), sums, n_filled)
    _load("measure_rows", None)(grid, (JOB_THREADS,), (n, *arrays))
    _load("start_rows", None)(grid, (JOB_THREADS,), (n, sums, starts, address(jumped)))
    return starts, jumped, n_filled


def _group_rows(indptr: Any, order: Any | None, cuts: Sequence[int], bounds: np.ndarray) -> tuple[Any, Any, Any, Any]:
    """Put rows into the order of their pieces, and in a piece of their places.

    Parameters
    ----------
    indptr, order : as for `build_column_sorted_blocks`
    cuts : first row of each piece, and the number of rows
    bounds : first place of each block

    Returns
    -------
    `starts`, `jumps` and `places` of `_Jobs`; and, piece by piece, which row in that order is the first of each block
    """
    import cupy

    n_rows, there = cuts[-1], cupy.asarray(bounds)
    if order is None:
        rows, grouped = None, cupy.arange(n_rows, dtype=np.int32)
    else:
        ends = cupy.asarray(np.array(cuts[1:], np.int32))
        piece = cupy.searchsorted(ends, order, side="right").astype(np.uint16)
        grouped = cupy.argsort(piece, kind="stable").astype(np.int32)
        rows = order[grouped]
    starts, jumps, _ = _measure_rows(indptr, rows, jumps=True)
    firsts = []
    for first, last in pairwise(cuts):
        jumps[first:last] -= indptr[first]  # pieces have their entries from 0 on
        firsts.append(first + cupy.searchsorted(grouped[first:last], there))
    return starts, jumps, grouped, cupy.concatenate(firsts)


def place_rows(indptr: Any, degree: Any, first: int, found: Any, by_place: Any, places: Any) -> None:
    """Place a piece of rows, the longest first, those that are columns before the others.

    Parameters
    ----------
    indptr, degree : (n_rows + 1,) int64, and (n_rows,) of eight bytes each, 0 for rows that are not columns
    first : first row of the piece
    found : (2 (KEYS + 1),) uint64, on the device: gets the rows of each key; the place of the first column, which is
        given; and, in the last element, that of the next piece
    by_place, places : as in `RowOrder`, of all pieces
    """
    import cupy

    n_rows, n_parts = len(degree), count_blocks(len(degree), PART_ROWS)
    keys, counts = cupy.empty(n_rows, np.uint8), cupy.empty(KEYS * n_parts, np.uint32)
    first_places = found[KEYS:]
    if n_rows:
        _load("key_rows", None)((n_parts,), (KEYS,), (np.int64(n_rows), indptr, degree, keys, counts, found))
    _load("scan_keys", None)((KEYS,), (JOB_THREADS,), (np.int64(n_parts), found, counts, first_places))
    if n_rows:
        kernel, room = _load("place_rows", None), 2 * KEYS * (PLACE_THREADS + 2)
        reclaim_memory(kernel, room)
        arrays = (keys, counts, first_places, by_place, places)
        kernel((n_parts,), (PLACE_THREADS,), (np.int64(n_rows), np.int64(first), *arrays), shared_mem=room)


def run_rows(name: str, n_rows: int, arguments: tuple[Any, ...]) -> None:
    """Run a kernel that processes rows, whose first argument is their number."""
    kernel = _load(name, None)
    grid = max(1, min(count_blocks(n_rows, ROW_THREADS), shared_memory()[0] * ROW_BLOCKS))
    kernel((grid,), (ROW_THREADS,), (np.int64(n_rows), *arguments))


class _Cells:
    """Windows of each block, on the device.

    Parameters
    ----------
    tables : `shifts` and `cell_starts` of the windows, on the device
    places : (n_cols,) of the columns; None where they are the columns
    first_bin : first cell of those that may be binned; None if none may
    """

    def __init__(
        self, windows: Windows, tables: Sequence[Any], places: Any | None, height: int, first_bin: int | None = None
    ) -> None:
        self.n, self.n_blocks = int(windows.cell_starts[-1]), len(windows.shifts)
        self.n_windows = int(np.diff(windows.cell_starts)[-1]) if self.n_blocks else 0  # of the last block
        self.shifts, self.starts = tables
        self._places = places  # keeps the memory alive until the enqueued kernels have run
        self.first_bin = self.n if first_bin is None else first_bin
        self.there = pack(places, height, self.shifts, self.starts, self.first_bin, LEAST_DENSE)


@dataclass(frozen=True, eq=False)
class _Tiles:
    """Tables for sorting cells, on the device."""

    chunk_starts: Any
    """(n_cells + 1,) int64: first chunk of each cell."""
    starts: Any
    """(n_cells + 1,) int64: first tile of each cell."""
    cells: Any
    """(n_tiles,) int32, or longer: cell of each tile."""
    blocks: Any
    """(n_tiles,) int32, or longer: block of each tile."""


def _choose_cells(
    cells: _Cells,
    counts: Any,
    wide: _Cells | None,
    make: Callable[[Any], BinBuilder],
    n_binned: int,
    nnz: int,
    n_cols: int,
) -> tuple[_Cells, Any, _Tiles, np.ndarray, BinBuilder | None]:
    """Choose between cells that may be binned and wide ones, and cut them into chunks and tiles. Both are cut before it
    is known which are taken, while the device is busy, so that it is waited for once.

    Parameters
    ----------
    wide : None if no cells may be binned
    make : makes the builder of bins from the counts of the last `n_binned` blocks

    Returns
    -------
    The cells, their entry counts, their tiles; `block_chunks` of `ColumnSortedBlocks`, followed by the number of tiles;
    and the builder, None if no cells are binned.
    """
    import cupy

    n_found, builder, kinds = cells.n_blocks + 2, None, [(cells, counts)]
    found = cupy.zeros((1 if wide is None else 3, max(RATES, n_found)), np.int64)
    if wide is not None:
        kinds.append((wide, _rate_cells(cells, counts, wide, n_binned, found[2])))
    tiles = [_cut_cells(*kind, nnz, row) for kind, row in zip(kinds, found, strict=False)]
    if n_binned:
        builder = make(counts[cells.first_bin :])
    rows, taken = found.get(), 0
    if wide is not None:
        n_passes = cells.n_blocks / shared_memory()[0]
        if not CellRates.of(*rows[2, :RATES].tolist()).pays(nnz, n_cols, n_passes, cache_bytes()):
            taken, builder = 1, None
    return *kinds[taken], tiles[taken], rows[taken, :n_found], builder


def _cut_cells(cells: _Cells, counts: Any, nnz: int, found: Any) -> _Tiles:
    """Cut cells of these entry counts into chunks and tiles; `found` gets `block_chunks` and the number of tiles."""
    import cupy

    chunk_starts, starts = cupy.empty((2, cells.n + 1), np.int64)
    tile_cells, tile_blocks = cupy.empty((2, nnz // TILE + cells.n), np.int32)
    sizes, bounds = map(np.int64, (cells.n, cells.n_blocks + 1)), map(np.int64, (cells.first_bin, LEAST_DENSE))
    made = (chunk_starts, starts, tile_cells, tile_blocks, found)
    grid = max(1, min(shared_memory()[0], cells.n // JOB_THREADS))
    _load("cut_cells", None)((grid,), (JOB_THREADS,), (*sizes, counts, cells.starts, *bounds, *made))
    return _Tiles(chunk_starts, starts, tile_cells, tile_blocks)


def _rate_cells(cells: _Cells, counts: Any, wide: _Cells, n_binned: int, found: Any) -> Any:
    """Rate cells of the last `n_binned` blocks by their entry counts, in `found`; return the counts of wide ones."""
    import cupy

    wide_counts, first, n_before = cupy.empty(wide.n, np.uint32), cells.first_bin, cells.n_blocks - n_binned
    wide_counts[:first] = counts[:first]
    of_blocks = (wide.shifts[n_before:], wide.starts[n_before:])
    if n_binned:
        sizes = (np.int64(cells.n_windows), *of_blocks, counts[first:], np.int64(LEAST_DENSE))
        _load("rate_cells", None)((n_binned,), (256,), (*sizes, wide_counts, found))
    return wide_counts


def _sort_tiles(n_tiles: int, tiles: _Tiles, arrays: tuple[Any, ...], value: np.dtype[Any] | None) -> None:
    """Sort the tiles, pad chunks and store the first column of each; `arrays` as the kernel takes them."""
    if not n_tiles:
        return
    kernel = _load("sort_tiles", value)
    room = TILE * (4 if value is None else max(4, value.itemsize))
    reclaim_memory(kernel, room)
    tables = (tiles.cells, tiles.blocks, tiles.starts, tiles.chunk_starts)
    kernel((n_tiles,), (SORT_THREADS,), (*tables, *arrays), shared_mem=room)


class _Jobs:
    """Runs of entries, each of one piece and one block, which a thread block counts or places; and tables of the rows,
    in the order of their pieces, and in a piece of their places.

    Parameters
    ----------
    starts : (n_rows + 1,) the first entry of each row in that order
    jumps : (n_rows,) int64 from the first entry of each row in that order to that in its piece; None where they are the
        same
    places : (n_rows,) of the rows; None where these are in their order
    block_starts, job_starts : (n_pieces n_blocks + 1,) int64: first entry, and first job, of each block in each piece
    bounds : (n_pieces + 1,) on the host: first job of each piece
    """

    def __init__(
        self,
        starts: Any,
        jumps: Any | None,
        places: Any | None,
        block_starts: Any,
        job_starts: Any,
        bounds: np.ndarray,
        windows: Windows,
        value: np.dtype[Any] | None,
    ) -> None:
        import cupy

        self._room = windows.job_room
        self._types = {"ENTRIES_PER_THREAD": windows.per_thread, **value_types(value)}
        n_rows, n_jobs, n_starts = len(starts) - 1, int(bounds[-1]), len(block_starts) - 1
        blocks, ranges = cupy.empty(n_jobs, np.int32), cupy.empty((3, n_jobs), np.int64)
        sizes = map(np.int64, (n_jobs, windows.job_entries, n_starts))
        tables, jobs, rows = (block_starts, job_starts, np.int64(n_rows), starts), (blocks, *ranges), (jumps, places)
        self._held = tables, jobs, rows  # keeps the memory alive until the enqueued kernels have run
        if n_jobs:
            kernel = load_kernel("column_sorted_blocks.cu", "cut_jobs", **self._types)
            kernel((count_blocks(n_jobs, CUT_THREADS),), (CUT_THREADS,), (*sizes, *tables, *jobs))
        if len(bounds) > 2:
            blocks %= n_starts // (len(bounds) - 1)
        self._packed = [
            (last - first, pack(*(table[first:last] for table in jobs), n_rows, starts, *rows))
            for first, last in pairwise(bounds.tolist())
        ]

    def run(self, name: str, piece: int, arguments: tuple[Any, ...]) -> None:
        """Count or place the entries of a piece."""
        kernel = load_kernel("column_sorted_blocks.cu", name, **self._types)
        reclaim_memory(kernel, self._room)
        n_jobs, packed = self._packed[piece] if self._packed else (0, None)
        if n_jobs:
            kernel((n_jobs,), (JOB_THREADS,), (packed, *arguments), shared_mem=self._room)
