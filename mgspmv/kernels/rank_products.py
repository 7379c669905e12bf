"""Products of the layouts of a matrix in PageRank steps on a device: how their kernels are launched."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from mgspmv.kernels.column_sorted_blocks import ColumnSortedBlocks
from mgspmv.kernels.device import pack, put_all, shared_memory
from mgspmv.kernels.sell_slices import SLICE, SellSlices

FLOAT32_BITS = 27
"""Bits of float32 products of column-sorted blocks below a mean contribution or rank, 1 / max(nnz, n_rows)."""

LEAST_ITEM = 64
"""Minimum chunks for which a separate item is worthwhile."""
ITEMS = 4
"""Approximate items per multiprocessor if all entries are in one block."""
SLICE_GRIDS = {True: 4, False: 2}
"""Resident thread blocks of sell-slices per multiprocessor: for a pattern (True), and with values (False)."""


@dataclass(frozen=True, eq=False)
class Items:
    """Work items of the thread blocks: chunks of one block each, the longest first."""

    blocks: np.ndarray
    """(n_items,) int32: block of each item."""
    bounds: np.ndarray
    """(n_items, 2) int64: first chunk of each item, and the one after its last."""
    parts: np.ndarray
    """(n_blocks,) int32: number of items of each block, including blocks without entries."""


def cut_items(block_chunks: np.ndarray, n_blocks: int, n_multiprocessors: int) -> Items:
    """Cut the blocks into items of about equal size.

    Parameters
    ----------
    block_chunks : of `ColumnSortedBlocks`
    n_blocks : including those that have no entries
    """
    n_chunks, first = np.zeros(n_blocks, np.int64), np.zeros(n_blocks, np.int64)
    n_chunks[: len(block_chunks) - 1], first[: len(block_chunks) - 1] = np.diff(block_chunks), block_chunks[:-1]
    size = max(LEAST_ITEM, int(n_chunks.sum()) // (n_multiprocessors * ITEMS))
    parts = np.maximum(1, np.rint(n_chunks / size).astype(np.int64))
    blocks = np.repeat(np.arange(n_blocks), parts)
    number = np.arange(len(blocks)) - np.repeat(np.cumsum(parts) - parts, parts)
    bounds = first[blocks, None] + n_chunks[blocks, None] * np.stack([number, number + 1], 1) // parts[blocks, None]
    by_length = np.argsort(bounds[:, 0] - bounds[:, 1], kind="stable")
    return Items(blocks[by_length].astype(np.int32), bounds[by_length], parts.astype(np.int32))


class _BlockProduct:
    """Launch parameters of the kernels of column-sorted-blocks: grid, threads, bytes of shared memory, other arrays."""

    source, threads = "rank_blocks.cu", 1024

    def __init__(self, blocks: ColumnSortedBlocks) -> None:
        import cupy

        self.grid, _ = shared_memory()
        n_blocks = -(-blocks.shape[0] // blocks.height)
        items = cut_items(blocks.block_chunks, n_blocks, self.grid)
        n_shared = int(np.flatnonzero(items.parts > 1).max(initial=-1) + 1) * blocks.height
        tables = put_all(items.blocks, items.bounds, items.parts, np.zeros(n_blocks, np.int32))
        self.held, self._n_items = (*tables, cupy.zeros(n_shared, np.uint64)), len(items.blocks)
        self.room = 8 * (blocks.height + 1)  # one more row for padding

    def pack(self, layout: Any) -> np.ndarray:
        """Pack the structure that describes the matrix, whose address may differ between steps."""
        arrays = (layout.entries, layout.columns, layout.values, *self.held)
        return pack(self._n_items, *arrays, layout.height)


class _SliceProduct:
    """Launch parameters of the kernels of sell-slices, as in `_BlockProduct`."""

    source, threads, room = "rank_slices.cu", 256, 0
    held: tuple[Any, ...] = ()

    def __init__(self, slices: SellSlices) -> None:
        n_slices = len(slices.starts) - 1
        n_multiprocessors, _ = shared_memory()
        self.grid = max(
            1, min(n_multiprocessors * SLICE_GRIDS[slices.values is None], -(-n_slices * SLICE // self.threads))
        )

    def pack(self, layout: Any) -> np.ndarray:
        arrays = (layout.starts, layout.columns, layout.values)
        return pack(len(layout.starts) - 1, *arrays, layout.shape[1])


RankProduct: TypeAlias = _BlockProduct | _SliceProduct
PRODUCTS: dict[str, Any] = {"column-sorted-blocks": _BlockProduct, "sell-slices": _SliceProduct}
"""Launch parameters by layout name."""


def find_bits(layout: str, n_terms: int) -> int:
    """Return the bits after the point of products in float32; 0 if they are added in floating point.

    Parameters
    ----------
    n_terms : entries of the whole matrix, or rows, if those are more
    """
    return min(62, FLOAT32_BITS + math.ceil(math.log2(max(1, n_terms)))) if layout == "column-sorted-blocks" else 0
