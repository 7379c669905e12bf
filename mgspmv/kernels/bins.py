"""Bins of column-sorted blocks: products of entries that have few others near them.

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

from dataclasses import dataclass
from typing import Any

import numpy as np

from mgspmv.kernels.device import pack, shared_block_bytes
from mgspmv.kernels.formats import accumulate

OCTET = 8
UNIT_OCTETS = {False: 1, True: 2}
"""Octets that those of a cell are padded to a multiple of, by whether products are in fixed point: else memory would
read sectors that are written only in part."""
WINDOW_BITS = 14
"""log2 of the columns of a window, whose z fits in shared memory."""
PADDING_ROWS, NEIGHBORS = 32, 4
"""Rows after those of a block for its padding, and neighboring entries that have the same one: of the entries that a
warp adds at the same time, no two have the same one, or two at most if products are float64."""
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
    n_before, n_blocks, height : blocks without bins, those after them, and rows of each
    value : dtype of the values; None for a pattern
    is_exact : whether products will be in fixed point
    """

    def __init__(
        self,
        counts: Any,
        n_before: int,
        n_blocks: int,
        height: int,
        value: np.dtype[Any] | None,
        *,
        is_exact: bool,
    ) -> None:
        import cupy

        n_unit = np.uint32(UNIT_OCTETS[is_exact])
        self._unit = unit = n_unit * np.uint32(OCTET)
        octets = cupy.where(counts < LEAST_DENSE, (counts + (unit - np.uint32(1))) // unit * n_unit, np.uint32(0))
        octets = octets.reshape(n_blocks, -1)
        n_windows = octets.shape[1]
        by_block, by_window = accumulate(octets.ravel()), accumulate(octets.T.ravel())
        starts, window_starts = cupy.asnumpy(by_block[::n_windows]), cupy.asnumpy(by_window[::n_blocks])
        n = int(starts[-1])
        rows = _make_padding(n * OCTET, height)
        columns, places = cupy.zeros(n * OCTET, np.uint16), cupy.empty(n, np.uint32)
        values = None if value is None else cupy.zeros(n * OCTET, value)
        self.bins = Bins(np.append(np.zeros(n_before, np.int64), starts), window_starts, rows, columns, places, values)
        of_window = by_window[:-1].reshape(n_windows, n_blocks).T.ravel()
        self._tables = (counts, by_block[:-1].astype(np.uint32), of_window.astype(np.uint32))

    @property
    def there(self) -> np.ndarray:
        """The structure Bins of kernels/column_sorted_blocks.cu."""
        bins = self.bins
        return pack(*self._tables, bins.rows, bins.columns, bins.places, bins.values, self._unit)


def _make_padding(n: int, height: int) -> Any:
    """Return (n,) uint16: the row of each entry before it is placed."""
    import cupy

    period = NEIGHBORS * PADDING_ROWS
    rows = cupy.empty((-(-n // period), period), np.uint16)
    rows[:] = cupy.arange(height, height + PADDING_ROWS, dtype=np.uint16).repeat(NEIGHBORS)
    return rows.ravel()[:n]


NO_BINS = (None,) * 8
"""Fields of that structure where no cell is binned."""
