"""Launch parameters and types of the kernels that multiply a layout in a PageRank step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np

from mgspmv.kernels.band_slices import SLICE
from mgspmv.kernels.bins import JOB_SIZES, LEAST_COLUMNS, OCTET, PADDING_ROWS, WINDOW_BITS, Bins
from mgspmv.kernels.column_sorted_blocks import CHUNK, ColumnSortedBlocks
from mgspmv.kernels.device import count_blocks, pack, put_all, reclaim_memory, shared_memory
from mgspmv.kernels.layout import CooEntries, SellSlices, is_small
from mgspmv.kernels.modules import (
    COUNTS,
    MANY_WEIGHTS,
    SMALL_COUNTS,
    compile_ahead,
    rank_types,
    specialize,
    value_types,
)
from mgspmv.model import Precision

LEAST_ITEM = 64
"""Minimum chunks for which a separate work item is worthwhile."""
OCTETS_PER_CHUNK = CHUNK // OCTET
ITEMS = 4
"""Approximate work items per multiprocessor if all entries are in one block."""
EVEN = 1.25
"""Length of a block, in mean lengths, up to which it is one item if there are as many blocks as multiprocessors: to add
parts takes time."""
MOST_LARGE = 1 << 15
"""Most products of more than 48 bits; a sum of ranks of 1 permits half as many."""
FILL_THREADS = {4: 512, 8: 1024}
"""Threads of a thread block that fills bins, by bytes of an element of z."""
FILL_ITEMS = 16
"""Approximate thread blocks per multiprocessor that fill bins."""
LEAST_FILL = 4096
"""Minimum octets for which a separate thread block is worthwhile: it reads a window, of as many bytes as 1,300 to 1,900
octets move."""
GRIDS = {True: 4, False: 2}
"""Resident thread blocks per multiprocessor that multiply slices: for a pattern (True), and with values (False)."""
COO_ITEMS = 8
"""Entries of a thread of kernels/rank_coo.cu."""
COO_GRID = 8
"""Most thread blocks per multiprocessor that finish rows of COO entries."""
FLOAT32_BITS = 27
"""Bits of float32 products in fixed point below a mean contribution or rank, 1 / max(nnz, n_rows)."""


class BinProducts:
    """Products of bins on the device, and the thread blocks that fill them; none for `bins` None."""

    def __init__(self, bins: Bins | None, n_multiprocessors: int) -> None:
        self._bins = bins
        self._cuts = [] if bins is None else put_all(*cut_fills(bins.window_starts, n_multiprocessors))
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
        if self._bins is None:
            return
        import cupy

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


@dataclass(frozen=True, eq=False)
class Items:
    """Work items of the thread blocks: chunks of one block each, the longest first."""

    blocks: np.ndarray
    """(n_items,) int32: block of each item."""
    bounds: np.ndarray
    """(n_items, 4) int64: first chunk of each item, and the one after its last; and its octets."""
    parts: np.ndarray
    """(n_blocks,) int32: number of items of each block, including blocks without entries."""


def cut_items(
    block_chunks: np.ndarray, n_blocks: int, n_multiprocessors: int, block_octets: np.ndarray | None = None
) -> Items:
    """Cut the blocks into items of about equal size.

    Parameters
    ----------
    block_chunks : of `ColumnSortedBlocks`
    n_blocks : including those that have no entries
    block_octets : `starts` of `Bins`; None if no cell is binned
    """
    lengths, kinds = np.zeros(n_blocks), []
    for starts, weight in ((block_chunks, 1.0), (block_octets, 1.0 / OCTETS_PER_CHUNK)):
        if starts is not None:
            first, n = np.zeros((2, n_blocks), np.int64)  # 0 for blocks beyond `starts`
            first[: len(starts) - 1], n[: len(starts) - 1] = starts[:-1], starts[1:] - starts[:-1]
            lengths += n * weight
            kinds.append((first, n, weight))
    total, n_filled = lengths.sum(), np.count_nonzero(lengths)
    size = max(LEAST_ITEM, int(total) // (n_multiprocessors * ITEMS))
    whole = EVEN * total / n_filled if n_filled >= n_multiprocessors else 0
    parts = np.where(lengths <= whole, 1, np.maximum(1, np.rint(lengths / size))).astype(np.int64)
    blocks = np.repeat(np.arange(n_blocks), parts)
    number, n_parts = np.arange(len(blocks)) - np.repeat(np.cumsum(parts) - parts, parts), parts[blocks]
    bounds, rest = np.zeros((4, len(blocks)), np.int64), np.zeros(len(blocks))
    for k, (first, n, weight) in enumerate(kinds):
        begin, own = first[blocks], n[blocks]
        bounds[2 * k], bounds[2 * k + 1] = begin + own * number // n_parts, begin + own * (number + 1) // n_parts
        rest -= (bounds[2 * k + 1] - bounds[2 * k]) * weight
    by_length = np.argsort(rest, kind="stable")
    return Items(blocks[by_length].astype(np.int32), bounds.T[by_length], parts.astype(np.int32))


class BlockProduct:
    """Launch parameters of the kernels of column-sorted-blocks: grid, threads, bytes of shared memory, other arrays.

    Attributes
    ----------
    types : macros that the kernels are compiled with, besides their types
    first_kernel : kernel that is launched before `step` and `residual`; None for none
    """

    source, threads = "rank_blocks.cu", 1024
    first_kernel: str | None = None

    def __init__(self, blocks: ColumnSortedBlocks) -> None:
        import cupy

        self.grid = shared_memory()[0] * blocks.n_resident
        self.threads = self.threads // blocks.n_resident
        self.types: dict[str, int] = {}
        n_blocks, bins = -(-blocks.shape[0] // blocks.height), blocks.bins
        items = cut_items(blocks.block_chunks, n_blocks, self.grid, None if bins is None else bins.starts)
        n_shared = int(np.flatnonzero(items.parts > 1).max(initial=-1) + 1) * blocks.height
        tables = put_all(items.blocks, items.bounds, items.parts)
        self._tables = (*tables, cupy.zeros(n_blocks, np.int32), cupy.zeros(n_shared, np.uint64))
        self._n_items = len(items.blocks)
        self.room = 8 * (blocks.height + PADDING_ROWS)
        self.bins = BinProducts(bins, shared_memory()[0])
        if self.bins.grid:
            self.types["BINNED"] = 1
            self.first_kernel = "fill_bins"
        if blocks.band is not None:
            self.types["BANDED"] = 1
        if blocks.n_resident > 1:
            self.types |= {"THREADS": self.threads, "RESIDENT": blocks.n_resident}

    @property
    def held(self) -> tuple[Any, ...]:
        """Arrays on the device."""
        return (*self._tables, *self.bins.held)

    def launch_first(self, kernel: Any, z: np.dtype[Any], arguments: tuple[Any, ...]) -> None:
        """Enqueue the first kernel for z of this dtype."""
        self.bins.fill(kernel, z, arguments)

    def pack(self, layout: Any) -> np.ndarray:
        """Pack the structure that describes the matrix, whose address may differ between steps."""
        arrays = (layout.entries, layout.columns, layout.values, *self._tables)
        band = () if layout.band is None else layout.band.list_fields()
        return pack(self._n_items, *arrays, layout.height, *self.bins.list_fields(), layout.shape[1], *band)


class SliceProduct:
    """Launch parameters of the kernels of sell-slices, as in `BlockProduct`."""

    source, threads, room = "rank_slices.cu", 256, 0
    held: tuple[Any, ...] = ()
    types: ClassVar[dict[str, int]] = {}
    first_kernel: str | None = None
    bins = BinProducts(None, 0)

    def __init__(self, slices: SellSlices) -> None:
        n_slices = len(slices.starts) - 1
        n_multiprocessors, _ = shared_memory()
        self.grid = max(1, min(n_multiprocessors * GRIDS[slices.values is None], -(-n_slices * SLICE // self.threads)))

    def pack(self, layout: Any) -> np.ndarray:
        arrays = (layout.starts, layout.columns, layout.values)
        return pack(len(layout.starts) - 1, *arrays, layout.shape[1])

    def launch_first(self, kernel: Any, z: np.dtype[Any], arguments: tuple[Any, ...]) -> None:
        """Do nothing, as there is no first kernel."""


class CooProduct:
    """Launch parameters of the kernels of COO entries, as in `BlockProduct`: `grid` is that of rows."""

    source, threads, room = "rank_coo.cu", 256, 0
    types: ClassVar[dict[str, int]] = {}
    first_kernel: str | None = "add_entries"
    bins = BinProducts(None, 0)

    def __init__(self, entries: CooEntries) -> None:
        import cupy

        most = shared_memory()[0] * COO_GRID
        self.grid = max(1, min(most, count_blocks(entries.shape[0], self.threads)))
        self._entry_grid = max(1, count_blocks(entries.nnz, self.threads * COO_ITEMS))
        self._sums = cupy.zeros(entries.shape[0] + 1, np.uint64)

    @property
    def held(self) -> tuple[Any, ...]:
        """Arrays on the device."""
        return (self._sums,)

    def pack(self, layout: Any) -> np.ndarray:
        return pack(layout.nnz, layout.rows, layout.columns, layout.values, self._sums)

    def launch_first(self, kernel: Any, z: np.dtype[Any], arguments: tuple[Any, ...]) -> None:
        """Enqueue the kernel that adds products to the sums of rows."""
        kernel((self._entry_grid,), (self.threads,), arguments)


RankProduct: TypeAlias = BlockProduct | SliceProduct | CooProduct
PRODUCTS: dict[str, Any] = {
    ColumnSortedBlocks.name: BlockProduct,
    SellSlices.name: SliceProduct,
    CooEntries.name: CooProduct,
}
"""Launch parameters by layout name."""


def find_bits(layout: str, n_terms: int) -> int:
    """Return the bits after the point of products in float32; 0 if they are added in floating point.

    Parameters
    ----------
    n_terms : entries of the whole matrix, or rows, if those are more
    """
    return 0 if layout == SellSlices.name else min(62, FLOAT32_BITS + math.ceil(math.log2(max(1, n_terms))))


def choose_z(value: np.dtype[Any] | None, is_exact: bool) -> np.dtype[Any]:
    """Choose the type of z."""
    if not is_exact:
        return np.dtype(np.float32)
    return np.dtype(np.int64 if value is None else np.float64)


def choose_rank(precision: Precision) -> np.dtype[Any]:
    """Choose the type of ranks."""
    return np.dtype(np.float32 if precision == "float32" else np.float64)


def begin_compiling(
    layout: str, value: np.dtype[Any] | None, precision: Precision, shape: tuple[int, int], nnz: int
) -> None:
    """Begin to compile what a usual run needs, while the rows are read.

    Parameters
    ----------
    layout : name of the layout, or `auto`; nothing is compiled for SELL slices
    shape : number of rows of this device, and of columns
    nnz : entries of these rows
    """
    if layout == "auto":
        layout = CooEntries.name if is_small(nnz, shape[0]) else ColumnSortedBlocks.name
    weights = (COUNTS, SMALL_COUNTS) if value is None and shape[0] >= MANY_WEIGHTS else (COUNTS,)
    each_z = [choose_z(value, is_exact) for is_exact in {precision == "exact", True}]
    runs = [rank_types(value, z, choose_rank(precision), weight=weight) for z in each_z for weight in weights]
    layouts = [value_types(own) | {"ENTRIES_PER_THREAD": JOB_SIZES[0]} for own in {None, value}]
    if layout == CooEntries.name:
        compile_ahead([specialize("coo_rows.cu"), *(specialize(CooProduct.source, **types) for types in runs)])
    elif layout == ColumnSortedBlocks.name:
        compile_ahead(
            [
                *(specialize("column_sorted_blocks.cu", **types) for types in layouts),
                *(specialize(BlockProduct.source, **types) for types in runs),
                *(specialize(BlockProduct.source, **types, BINNED=1) for types in runs if shape[1] >= LEAST_COLUMNS),
            ]
        )
