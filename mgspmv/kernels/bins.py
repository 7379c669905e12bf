"""Bins of column-sorted blocks: products of entries that have few others near them.

Each read of z moves a sector of 32 bytes, from memory if z is larger than the cache. Entries of a sparse cell are
therefore binned: before each step, z of a window of columns, held in shared memory, is written to the places where the
blocks then read it in order. For float32, that moves 12 bytes per entry.

An octet is OCTET entries of one cell, the last one padded with entries of row `height`. Octets are in two orders:

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

from mgspmv.kernels.device import pack, put, reclaim_memory, shared_block_bytes
from mgspmv.kernels.formats import accumulate

OCTET = 8
WINDOW_BITS = 14
"""log2 of the columns of a window, whose z fits in shared memory."""
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
PADDING_BYTES = (OCTET - 1) * (ENTRY_BYTES + 4 + 8)
"""Most bytes of the padding of a cell."""
MOST_LARGE = 1 << 15
"""Most products of more than 48 bits; a sum of ranks of 1 permits half as many."""
FILL_THREADS = {4: 512, 8: 1024}
"""Threads of a thread block that fills bins, by bytes of an element of z."""
FILL_ITEMS = 16
"""Approximate thread blocks per multiprocessor that fill bins."""
LEAST_FILL = 512
"""Minimum octets for which a separate thread block is worthwhile."""


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
    """(n_octets * OCTET,) uint16: row relative to the block's first place."""
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


def can_bin(nnz: int, n_cols: int, n_blocks: int, bin_bytes: int) -> bool:
    """Return whether cells may be binned: z is not small, a window of it fits, and bins take at most `bin_bytes`."""
    if not LEAST_COLUMNS <= n_cols <= MOST_COLUMNS or shared_block_bytes() < 8 << WINDOW_BITS:
        return False
    n_cells = n_blocks * count_windows(n_cols)
    return nnz * ENTRY_BYTES + min(nnz, n_cells) * PADDING_BYTES <= bin_bytes


class BinBuilder:
    """Builder of the bins of a matrix, from the number of entries in each cell.

    Parameters
    ----------
    counts : (n_blocks * n_windows,) uint32, on the device: entries of each cell, block by block
    n_blocks, height : blocks, and rows of each
    value : dtype of the values; None for a pattern
    """

    def __init__(self, counts: Any, n_blocks: int, height: int, value: np.dtype[Any] | None) -> None:
        import cupy

        octets = cupy.where(counts < LEAST_DENSE, (counts + np.uint32(OCTET - 1)) // np.uint32(OCTET), np.uint32(0))
        octets = octets.reshape(n_blocks, -1)
        n_windows = octets.shape[1]
        by_block, by_window = accumulate(octets.ravel()), accumulate(octets.T.ravel())
        starts, window_starts = cupy.asnumpy(by_block[::n_windows]), cupy.asnumpy(by_window[::n_blocks])
        n = int(starts[-1])
        rows = cupy.full(n * OCTET, height, np.uint16)
        columns, places = cupy.zeros(n * OCTET, np.uint16), cupy.empty(n, np.uint32)
        values = None if value is None else cupy.zeros(n * OCTET, value)
        self.bins = Bins(starts, window_starts, rows, columns, places, values)
        of_window = by_window[:-1].reshape(n_windows, n_blocks).T.ravel()
        self._tables = (counts, by_block[:-1].astype(np.uint32), of_window.astype(np.uint32))

    @property
    def there(self) -> np.ndarray:
        """The structure Bins of kernels/column_sorted_blocks.cu."""
        bins = self.bins
        return pack(*self._tables, bins.rows, bins.columns, bins.places, bins.values)


NO_BINS = (None,) * 7
"""Fields of that structure where no cell is binned."""


class BinProducts:
    """Products of bins on the device, and the thread blocks that fill them; none for `bins` None."""

    def __init__(self, bins: Bins | None, n_multiprocessors: int) -> None:
        self._bins = bins
        cuts = () if bins is None else cut_fills(bins.window_starts, n_multiprocessors)
        self._cuts = tuple(put(own) for own in cuts)
        self._products: tuple[Any, ...] = ()

    @property
    def grid(self) -> int:
        """Thread blocks of `fill_bins`; 0 if no cell is binned."""
        return len(self._cuts[0]) if self._cuts else 0

    @property
    def held(self) -> tuple[Any, ...]:
        """Arrays on the device."""
        return (*self._cuts, *self._products)

    def allocate(self, z: np.dtype[Any]) -> None:
        """Allocate products for z of this dtype."""
        import cupy

        if self._bins is None:
            return
        self.release()  # frees those of another dtype first
        n = self._bins.n_octets * OCTET
        if z == np.int64:
            large = cupy.zeros((MOST_LARGE, 2), np.uint64), cupy.zeros(2, np.uint32)
            self._products = cupy.empty(n, np.uint32), cupy.empty(n, np.uint16), *large
        else:
            self._products = (cupy.empty(n, z),)

    def fill(self, kernel: Any, z: np.dtype[Any], arguments: tuple[Any, ...]) -> None:
        """Enqueue the kernel `fill_bins` for z of this dtype."""
        room = z.itemsize << WINDOW_BITS
        reclaim_memory(kernel, room)
        kernel((self.grid,), (FILL_THREADS[z.itemsize],), arguments, shared_mem=room)

    def release(self) -> None:
        """Free the products."""
        self._products = ()

    def list_fields(self) -> tuple[Any, ...]:
        """Return the fields of the structure Bins of kernels/rank_blocks.cu except for the last."""
        bins = self._bins
        if bins is None:
            return (None,) * 10
        products, high, *large = (*self._products, *[None] * 4)[:4]
        return bins.rows, bins.values, products, high, bins.columns, bins.places, *self._cuts, *large


def cut_fills(window_starts: np.ndarray, n_multiprocessors: int) -> tuple[np.ndarray, np.ndarray]:
    """Cut the octets of windows into parts of about equal size, the longest first.

    Returns
    -------
    (n,) int32 window, and (n, 2) int64 first octet and end, of each part.
    """
    n_octets = np.diff(window_starts)
    size = max(LEAST_FILL, int(window_starts[-1]) // (n_multiprocessors * FILL_ITEMS))
    parts = np.where(n_octets, np.maximum(1, np.rint(n_octets / size)), 0).astype(np.int64)
    windows = np.repeat(np.arange(len(parts)), parts)
    number = np.arange(len(windows)) - np.repeat(np.cumsum(parts) - parts, parts)
    both = np.stack([number, number + 1], 1)
    bounds = window_starts[windows, None] + n_octets[windows, None] * both // parts[windows, None]
    by_length = np.argsort(bounds[:, 0] - bounds[:, 1], kind="stable")
    return windows[by_length].astype(np.int32), bounds[by_length]
