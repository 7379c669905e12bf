"""Windows of columns of column-sorted blocks, and bins: products of entries that have few others near them.

Each read of z moves a sector of 32 bytes, from memory if z is larger than the cache. Entries of a sparse cell are
therefore binned: before each step, z of a window of columns, held in shared memory, is written to the places where the
blocks then read it in order. For float32, that moves 12 bytes per entry.

An octet is OCTET entries of one cell, padded with entries of PADDING_ROWS rows that follow those of the block. Octets
are in two orders:

    of blocks     rows, values and products; read by the step
    of windows    columns, and the place of each octet in the order of blocks; read by the kernel `fill_bins`

Products in fixed point without values have 48 bits; the few that have more are in a list besides.

Source: propagation blocking (Beamer, Asanovic, Patterson, IPDPS 2017); this project's are the choice by cell and the
list.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from mgspmv.kernels.device import count_blocks, pack, shared_block_bytes
from mgspmv.kernels.formats import accumulate

ROW_BITS = 15
"""Bits of an entry that encode its row; the others encode its column."""
TILE = 8192
"""Entries of a cell that are sorted together, and approximate entries per cell."""
WINDOWS = 8192
"""Maximum cells per block, unless its windows would be wider than an entry can encode."""
JOB_THREADS, JOB_SIZES = 1024, (15, 7)
"""Threads that count or place entries, and candidates for the entries per thread: the first one that fits is used."""
OCTET = 8
UNIT_OCTETS = {False: 1, True: 2}
"""Octets that those of a cell are padded to a multiple of, by whether products are in fixed point: else memory would
read sectors that are written only in part."""
WINDOW_BITS = 14
"""log2 of the columns of a window, whose z fits in shared memory."""
PADDING_ROWS, NEIGHBORS = 32, 4
"""Rows after those of a block for its padding, and neighboring entries that have the same one: of the entries that a
warp adds at the same time, no two have the same one, or two at most if products are float64."""
OCTET_THREADS = 256
LEAST_DENSE = 1024
"""Entries of a cell from which it is not binned."""
LEAST_COLUMNS = 1 << 20
"""Columns from which binning is considered; a smaller z stays in the cache."""
MOST_COLUMNS = 1 << (WINDOW_BITS + 13)
"""Columns up to which binning is considered; of more, a block has too many windows to count them in shared memory."""

SECTOR = 32
"""Bytes that a read of z moves from the cache. Its time, 6 ps, is the unit of the costs below, measured on an H100."""
EDGE_COST = 0.27
"""Cost of an entry, besides that of its sector."""
BIN_COSTS = 0.6, 0.84
"""Additional cost of a binned entry with products in float32, and in fixed point."""
MISS_COST = 1.7
"""Additional cost of a sector that is read from memory."""
FILL_COST = 8e6
"""Cost of filling bins, besides that of their entries."""
LEAST_GAIN = 0.075
"""Expected share of time that bins are to save, in the mean of both precisions."""

ENTRY_BYTES = 9
"""Most bytes of a binned entry beyond those of an entry of a chunk: a product, and a share of a place."""
PADDING_BYTES = (max(UNIT_OCTETS.values()) * OCTET - 1) * (ENTRY_BYTES + 4 + 8)
"""Most bytes of the padding of a cell."""
RATES = 7
"""Numbers of `CellRates`."""


@dataclass(frozen=True, eq=False)
class Windows:
    """Division of the columns of each block into windows."""

    shifts: np.ndarray
    """(n_blocks,) int32: log2 of the columns of a window."""
    cell_starts: np.ndarray
    """(n_blocks + 1,) int64: first cell of each block."""

    @cached_property
    def per_thread(self) -> int:
        """Entries that a thread counts or places."""
        return next((n for n in JOB_SIZES if self._room(n) <= shared_block_bytes()), JOB_SIZES[-1])

    @property
    def job_entries(self) -> int:
        """Most entries of a job."""
        return JOB_THREADS * self.per_thread

    @cached_property
    def job_room(self) -> int:
        """Bytes of shared memory of a job: a word for each of its entries, and for each window of a block."""
        return self._room(self.per_thread)

    def _room(self, per_thread: int) -> int:
        return 4 * (JOB_THREADS * per_thread + int(np.diff(self.cell_starts).max(initial=0)))


def cut_windows(block_nnz: np.ndarray, n_cols: int) -> Windows:
    """Cut columns into windows of about TILE entries each, if these are spread evenly; no wider than an entry can hold.

    Parameters
    ----------
    block_nnz : (n_blocks,) int64 entries of each block
    """
    _, bits = np.frexp(n_cols * TILE / np.maximum(1, block_nnz))
    least = max(5, int(np.ceil(np.log2(max(1, n_cols) / WINDOWS))))
    shifts = np.minimum(np.maximum(bits - 1, least), 32 - ROW_BITS)
    return Windows(shifts, _count_cells(shifts, n_cols))


def cut_bin_windows(own: Windows, n_cols: int) -> tuple[int, Windows, Windows]:
    """Cut columns into windows of bins, but those of the first blocks as they are while these are narrower.

    Returns
    -------
    Number of these blocks, windows for bins, and those of the same blocks without bins, no narrower than for bins.
    """
    n_narrow = int(np.argmax(np.append(own.shifts >= WINDOW_BITS, True)))
    binned, wide = own.shifts.copy(), own.shifts.copy()
    binned[n_narrow:] = WINDOW_BITS
    np.maximum(wide[n_narrow:], WINDOW_BITS, out=wide[n_narrow:])
    return n_narrow, Windows(binned, _count_cells(binned, n_cols)), Windows(wide, _count_cells(wide, n_cols))


def _count_cells(shifts: np.ndarray, n_cols: int) -> np.ndarray:
    """Return `cell_starts` of windows."""
    starts: np.ndarray = accumulate((np.int64(n_cols - 1) >> shifts) + 1)
    return starts


@dataclass(frozen=True)
class CellRates:
    """Reads of a step with bins and without, as the kernel `rate_cells` expects them."""

    n_binned: int
    """Entries of cells that would be binned."""
    n_cells: int
    """Cells that have entries."""
    n_dense: int
    """Cells that would not be binned."""
    dense_sectors: tuple[int, int]
    """Expected sectors of z that the latter read, for z in float32 and in fixed point."""
    wide_sectors: tuple[int, int]
    """Expected sectors of z that wider cells would read without bins."""

    @classmethod
    def of(cls, n_binned: int, n_cells: int, n_dense: int, *sectors: int) -> CellRates:
        """Return the rates of the `RATES` numbers that the kernel found."""
        return cls(n_binned, n_cells, n_dense, (sectors[0], sectors[1]), (sectors[2], sectors[3]))

    def pays(self, nnz: int, n_cols: int, n_passes: float, cache_bytes: int) -> bool:
        """Return whether steps are faster with bins.

        Parameters
        ----------
        n_passes : how often the columns are read by thread blocks that run at different times
        cache_bytes : of the device
        """
        gain, share = 0.0, self.n_dense / max(1, self.n_cells)
        for z_bytes, bin_cost, dense, wide in zip(
            (4, 8), BIN_COSTS, self.dense_sectors, self.wide_sectors, strict=True
        ):
            beyond = MISS_COST * n_passes * max(0, z_bytes * n_cols - cache_bytes) / SECTOR
            misses = min(beyond, MISS_COST * wide), min(beyond * share, MISS_COST * dense)
            saved = wide + misses[0] - dense - misses[1] - bin_cost * self.n_binned - FILL_COST
            gain += saved / (wide + misses[0] + EDGE_COST * nnz + 1)
        return gain / 2 >= LEAST_GAIN


@dataclass(frozen=True, eq=False)
class Bins:
    """Binned cells of column-sorted blocks, on the device."""

    starts: np.ndarray
    """(n_blocks + 1,) int64, on the host: first octet of each block, in the order of blocks."""
    window_starts: np.ndarray
    """(n_windows + 1,) int64, on the host: first octet of each window, in the order of windows."""
    rows: Any
    """(n_octets * OCTET,) uint16: row relative to the block's first place; from `height` on for padding."""
    columns: Any
    """(n_octets * OCTET,) uint16: column relative to the window's first; 0 for padding."""
    places: Any
    """(n_octets,) uint32: place in the order of blocks of each octet in the order of windows."""
    values: Any | None
    """(n_octets * OCTET,) float32 or float64, 0 for padding; None for a pattern."""

    @property
    def n_octets(self) -> int:
        return int(self.starts[-1])

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays, without products."""
        return int(sum(a.nbytes for a in (self.rows, self.columns, self.places, self.values) if a is not None))


def count_windows(n_cols: int) -> int:
    """Return the number of windows of `n_cols` columns."""
    return -(-n_cols >> WINDOW_BITS)


def may_bin(n_cols: int, bin_bytes: int) -> bool:
    """Return whether cells may be binned: z is not small, and a window of it fits."""
    return bin_bytes > 0 and LEAST_COLUMNS <= n_cols <= MOST_COLUMNS and shared_block_bytes() >= 8 << WINDOW_BITS


def can_bin(nnz: int, n_cols: int, n_blocks: int, bin_bytes: int) -> bool:
    """Return whether cells may be binned, and bins take at most `bin_bytes`."""
    if not may_bin(n_cols, bin_bytes):
        return False
    n_cells = n_blocks * count_windows(n_cols)
    return nnz * ENTRY_BYTES + min(nnz, n_cells) * PADDING_BYTES <= bin_bytes


class BinBuilder:
    """Builder of the bins of a matrix, from the number of entries in each cell.

    Parameters
    ----------
    counts : (n_blocks * n_windows,) uint32, on the device: entries of each cell, block by block
    n_before, n_blocks : blocks without bins, and those after them
    value : dtype of the values; None for a pattern
    load : returns a kernel of column_sorted_blocks.cu by name
    is_exact : whether products will be in fixed point
    """

    def __init__(
        self,
        counts: Any,
        n_before: int,
        n_blocks: int,
        value: np.dtype[Any] | None,
        load: Callable[[str], Any],
        *,
        is_exact: bool,
    ) -> None:
        import cupy

        n_windows = len(counts) // n_blocks
        self._n_before, self._n_blocks, self._value, self._load = n_before, n_blocks, value, load
        self._unit = UNIT_OCTETS[is_exact] * OCTET
        by_block, by_window = cupy.empty((2, len(counts) + 1), np.uint32)
        sizes = map(np.int64, (n_blocks, n_windows, LEAST_DENSE, self._unit))
        grid = (count_blocks(len(counts), OCTET_THREADS),)
        load("count_octets")(grid, (OCTET_THREADS,), (*sizes, counts, by_block, by_window))
        for octets in (by_block[1:], by_window[1:]):
            cupy.cumsum(octets, dtype=np.uint32, out=octets)
        self._starts = cupy.concatenate((by_block[::n_windows], by_window[::n_blocks]))
        of_window = by_window[:-1].reshape(n_windows, n_blocks).T.ravel()
        self._tables = (counts, by_block, of_window)

    def finish(self, height: int) -> tuple[Bins | None, np.ndarray]:
        """Return the bins of blocks of `height` rows, with padding only, None if there are none; and the structure Bins
        of kernels/column_sorted_blocks.cu. Waits for the device."""
        import cupy

        starts, window_starts = np.split(cupy.asnumpy(self._starts).astype(np.int64), [self._n_blocks + 1])
        n = int(starts[-1])
        rows, columns = cupy.empty(n * OCTET, np.uint16), cupy.zeros(n * OCTET, np.uint16)
        if n:
            grid = (count_blocks(n, OCTET_THREADS),)
            self._load("pad_octets")(grid, (OCTET_THREADS,), (*map(np.int64, (n, height, PADDING_ROWS)), rows))
        places, values = cupy.empty(n, np.uint32), None if self._value is None else cupy.zeros(n * OCTET, self._value)
        starts = np.append(np.zeros(self._n_before, np.int64), starts)
        there = pack(*self._tables, rows, columns, places, values, self._unit)
        return Bins(starts, window_starts, rows, columns, places, values) if n else None, there


NO_BINS = (None,) * 8
"""Fields of that structure where no cell is binned."""
