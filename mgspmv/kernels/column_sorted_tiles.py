"""Column-sorted tiles: the format of a matrix with scattered columns and rows of any length, added in a fixed order.

The rows, the longest first, are cut into blocks whose sums fit in a thread block's shared memory. The entries of a
block are traversed in order of columns, so that neighbors read the same cache lines of x; if some columns have most of
the entries, those come first, and x is put into that order for each product. Since no two entries of a tile are in the
same row, a tile is added without atomics, in one fixed order. kernels/column_sorted_tiles.cu multiplies.

    place          a row, or one of the copies that a long row is dealt to, entry by entry; places go by length, copies
                   before rows
    block b        places b height .. (b + 1) height
    tile           entries of a block in distinct places. For entry k of a place, in order of columns, t[k] is the tile
                   of its column if the entries of the block, sorted by column, are cut into equal parts; it gets the
                   first tile from there on after that of the place's previous entry: s[k] = max(t[k], s[k - 1] + 1)
    chunk          entries of one tile, in order of columns and in one window of them, that a warp takes at a time; its
                   last ones may be padding
    item           consecutive tiles of one block: the unit of work of a thread block

Source: this project's; blocks of rows walked in order of columns after Lakhotia, Kannan, Prasanna, Accelerating
PageRank using Partition-Centric Processing, USENIX ATC 2018; copies of long rows after virtual warps and row
splitting, as Bell and Garland's and Merrill and Garland's carries, NVR-2008-004, 2008, and SC 2016.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from mgspmv.errors import FormatError
from mgspmv.kernels.formats import (
    Array,
    MatrixFormat,
    accumulate,
    array_module,
    count_true,
    cut_pieces,
    mark_firsts,
    row_lengths,
    to_host,
)
from mgspmv.model import INT32_LIMIT, CsrBlock

ROW_BITS = 14
"""Bits of an entry that encode its place in the block; the others encode its column."""
NO_ROW = (1 << ROW_BITS) - 1
"""Place of a padding entry."""
WINDOW_BITS = 32 - ROW_BITS
WARP, LOAD_BYTES = 32, 16
"""Threads that process a chunk, and bytes of its values that each loads."""
HUB_COLUMNS, HUB_SHARE = 8, 0.5
"""Condition for reordering columns: the fullest 1 / HUB_COLUMNS of them hold more than HUB_SHARE of the entries."""
SUMS_BYTES = 63 << 10
"""Maximum bytes of a block's sums: three thread blocks fit on an H200's multiprocessor, one on the smallest devices."""
LEAST_HEIGHT = 1024
LARGE_DEVICE = 128
"""Number of blocks before their height grows; the same on all devices, so that products are bit-identical."""
TILE_SHARE = 4
"""Approximate places of a block per entry of a tile. In larger tiles, entries come later than in order of columns; in
smaller ones, threads wait for each other more often."""
FULLEST = 0.75
"""Maximum share of a block's tiles in which its longest place has entries."""
SPLIT_SHARE, LEAST_COPY = 4, 32
"""Approximate maximum of additional blocks for copies of long rows, and minimum entries per copy."""
ITEMS = 528
"""Approximate number of items if all entries are in one block: two per thread block that an H200 runs at a time."""
LEAST_ITEM = 1 << 13
"""Minimum entries for which a separate item is worthwhile."""
PIECE = 1 << 26
"""Maximum entries that are sorted at a time, unless one block has more."""
PARTS = (np.int64, np.int64, np.uint32, np.uint32, np.float32)
"""Dtypes of the arrays of a sorted piece, for a matrix without entries."""


@dataclass(frozen=True, eq=False)
class ColumnSortedTiles(MatrixFormat):
    """Matrix block in column-sorted tiles."""

    height: int
    """Places per block."""
    n_places: int
    rows: Array
    """(n_places + empty rows,) int32: row of each place, -1 for a copy; then the rows without entries."""
    tile_starts: Array
    """(n_tiles + 1,) int64: first chunk of each tile."""
    wide: int
    """Entries of a chunk per lane: 4 in float32, 2 in float64."""
    order: Array | None
    """(n_columns,) int32: column of the matrix for each column of the tiles; None if they are the same."""
    entries: Array
    """(n_chunks * 32 * wide,) uint32: column - that of its chunk << ROW_BITS | place in the block; entry k of a chunk
    is at position wide (k % 32) + k // 32 of it."""
    columns: Array
    """(n_chunks,) uint32: column that the chunk's columns are relative to."""
    values: Array | None
    """(n_chunks * 32 * wide,) in the order of `entries`; None for a pattern."""
    items: Array
    """(n_items, 4) int64, the longest first: block, first tile, tile after the last, slice that receives the sums (-1
    if the block has no copies and no other item)."""
    slice_starts: Array
    """(n_shared_blocks + 1,) int64: first slice of each block, up to the last block with slices."""
    split_rows: Array
    """(n_split,) int32: rows that are split into copies."""
    split_places: Array
    """(n_split, 2) int64: first place of each of these rows, and the one after its last."""
    lanes: int
    """Threads that add the copies of a row."""

    @property
    def n_shared(self) -> int:
        """Places of the blocks that have slices."""
        return min(self.n_places, (len(self.slice_starts) - 1) * self.height)

    @property
    def n_slices(self) -> int:
        """Slices of `height` sums."""
        return int(self.slice_starts[-1])


def choose_height(n_filled: int, itemsize: int) -> int:
    """Choose the places of a block: as many as fit, but at least LARGE_DEVICE blocks unless they get small.

    Parameters
    ----------
    n_filled : rows that have entries
    itemsize : of a sum
    """
    balanced = -(-n_filled // LARGE_DEVICE // 256) * 256
    return min(max(LEAST_HEIGHT, balanced), SUMS_BYTES // itemsize // 128 * 128)


def build_column_sorted_tiles(block: CsrBlock, dtype: Any) -> ColumnSortedTiles:
    """Build column-sorted tiles of a block on its device.

    Parameters
    ----------
    dtype : float32 or float64, of the sums

    Raises
    ------
    FormatError : rows or columns cannot be counted in 32 bits
    """
    if max(block.n_rows, block.n_cols) >= INT32_LIMIT:
        raise FormatError(
            f"column-sorted-tiles counts rows and columns in 32 bits, and the block has {block.n_rows:,} rows and "
            f"{block.n_cols:,} columns; use kernel='csr-split'"
        )
    xp = array_module(block.indptr)
    lengths = row_lengths(block)
    height = choose_height(count_true(lengths > 0), np.dtype(dtype).itemsize)
    places = _Places(lengths, block.nnz, height)
    wide = LOAD_BYTES // np.dtype(dtype).itemsize
    order, ranks = _order_columns(block)
    # Entries per tile of each block; fewer if its places would be in too many of its tiles.
    fullest = (FULLEST * places.block_nnz / places.longest).astype(np.int64)
    tile_sizes = np.clip(fullest, 1, max(1, height // TILE_SHARE))
    cuts = pairwise(cut_pieces(accumulate(places.block_nnz), PIECE))
    pieces = [_sort_piece(block, places, tile_sizes, ranks, wide, *blocks) for blocks in cuts if block.nnz]
    del ranks
    block_tiles, tile_chunks, entries, columns, values = (_join(xp, [p.pop(0) for p in pieces], t) for t in PARTS)
    tile_starts = accumulate(tile_chunks)
    size = max(1, LEAST_ITEM // (WARP * wide), int(tile_starts[-1]) // ITEMS)
    items, slice_starts = _cut_items(places, block_tiles, tile_starts, size)
    return ColumnSortedTiles(
        height=height,
        n_places=places.n,
        rows=places.rows,
        tile_starts=tile_starts,
        wide=wide,
        order=order,
        entries=entries,
        columns=columns,
        values=None if block.data is None else values,
        items=items,
        slice_starts=slice_starts,
        split_rows=places.split_rows,
        split_places=places.split_places,
        lanes=places.lanes,
    )


class _Places:
    """Assignment of rows to places.

    Attributes
    ----------
    n : number of places
    order : (n_filled,) rows that have entries, in the order of their places
    copies, starts : (n_filled,) and (n_filled + 1,) of these, how many places each has, and the first of them
    rows, split_rows, split_places, lanes : as in `ColumnSortedTiles`
    block_nnz, longest : (n_blocks,) on the host: entries of each block, and most entries of a place of it
    """

    def __init__(self, lengths: Array, nnz: int, height: int) -> None:
        xp, n_rows = array_module(lengths), len(lengths)
        most = max(LEAST_COPY, -(-nnz // (SPLIT_SHARE * height)))
        if n_rows > height:
            most = max(most, int(xp.sort(lengths)[n_rows - height]))
        copies = -(-lengths // most)
        shares = -(-lengths // xp.maximum(copies, 1))
        order = xp.argsort(xp.where(copies > 1, -1, 1) * (nnz + 1) - shares, kind="stable")
        n_filled = count_true(lengths > 0)
        self.order, self.copies = order[:n_filled], copies[order[:n_filled]]
        self.starts = accumulate(self.copies)
        self.height, self.n = height, int(self.starts[-1])
        numbers = xp.arange(self.n)
        owners = xp.searchsorted(self.starts, numbers, side="right") - 1
        rows = xp.where(self.copies[owners] > 1, -1, self.order[owners])
        self.rows = xp.concatenate([rows, order[n_filled:]]).astype(np.int32)
        n_dealt = self.copies[owners] - 1 - (numbers - self.starts[owners])  # to later copies, in the last round
        entries = accumulate((lengths[self.order[owners]] + n_dealt) // self.copies[owners])
        bounds = xp.minimum(xp.arange(-(-self.n // height) + 1) * height, self.n)
        self.block_nnz = to_host(xp.diff(entries[bounds]))
        n_copies = int(self.copies[self.copies > 1].sum())
        after_copies = xp.maximum(xp.minimum(bounds[1:] - 1, n_copies), bounds[:-1])
        self.longest = to_host(xp.maximum(*(shares[self.order[owners[p]]] for p in (bounds[:-1], after_copies))))
        split = xp.flatnonzero(self.copies > 1)
        self.split_rows = self.order[split].astype(np.int32)
        self.split_places = xp.stack([self.starts[split], self.starts[split + 1]], axis=1)
        mean = int(self.copies[split].sum()) // max(1, len(split))
        self.lanes = min(1024, max(32, 1 << mean.bit_length()))


def _order_columns(block: CsrBlock) -> tuple[Array | None, Array | None]:
    """Return the columns with entries, those with the most first, and each column's place among them; or neither."""
    xp = array_module(block.indptr)
    counts = xp.zeros(block.n_cols, np.int64)
    for start in range(0, block.nnz, PIECE):
        counts += xp.bincount(block.indices[start : start + PIECE], minlength=block.n_cols)
    hubs = int(xp.sort(counts)[block.n_cols - block.n_cols // HUB_COLUMNS :].sum())
    if hubs <= HUB_SHARE * block.nnz:
        return None, None
    order = xp.argsort(-counts, kind="stable").astype(np.int32)
    ranks = xp.empty_like(order)
    xp.put(ranks, order, xp.arange(block.n_cols, dtype=np.int32), mode="wrap")
    return order[: count_true(counts > 0)].copy(), ranks


def _sort_piece(
    block: CsrBlock, places: _Places, tile: np.ndarray, ranks: Array | None, wide: int, first: int, last: int
) -> list[Any]:
    """Sort blocks first .. last: tiles of each, chunks of each tile, and `ColumnSortedTiles`' entries, columns and
    values."""
    xp = array_module(block.indptr)
    sources, own = _take_entries(block, places, first, last)
    blocks, columns = own // places.height, block.indices[sources]
    if ranks is not None:
        columns = ranks[columns]
    by_column = xp.argsort(blocks * block.n_cols + columns, kind="stable")
    sources, own, blocks, columns = sources[by_column], own[by_column], blocks[by_column], columns[by_column]
    del by_column
    starts = xp.searchsorted(blocks, xp.arange(last - first))
    preferred = (xp.arange(len(own)) - starts[blocks]) // xp.asarray(tile[first:last])[blocks]
    taken = _take_tiles(own, preferred)
    del preferred
    keys = blocks * (int(taken.max()) + 1) + taken
    by_tile = xp.argsort(keys, kind="stable")
    keys, sources, own, blocks, columns = (a[by_tile] for a in (keys, sources, own, blocks, columns))
    del by_tile, taken
    is_first = mark_firsts(keys)
    block_tiles = xp.bincount(blocks[is_first], minlength=last - first)
    own -= blocks * places.height
    del keys, blocks
    values = None if block.data is None else block.data[sources]
    return [block_tiles, *_fill_chunks(own, columns, values, is_first, wide)]


def _take_entries(block: CsrBlock, places: _Places, first: int, last: int) -> tuple[Array, Array]:
    """Return the entries of blocks first .. last by rows: positions in CSR, and places from the first block's on."""
    xp = array_module(block.indptr)
    begin, end = first * places.height, min(last * places.height, places.n)
    low = int(xp.searchsorted(places.starts, xp.full(1, begin), side="right")[0]) - 1
    high = int(xp.searchsorted(places.starts, xp.full(1, end), side="left")[0])
    rows = places.order[low:high]
    starts = accumulate(block.indptr[rows + 1] - block.indptr[rows])
    numbers = xp.arange(int(starts[-1]))
    owners = xp.searchsorted(starts, numbers, side="right") - 1
    numbers -= starts[owners]
    sources = block.indptr[rows][owners] + numbers
    numbers %= places.copies[low:high][owners]
    own = places.starts[low:high][owners] + numbers - begin
    if int(places.starts[low]) < begin or int(places.starts[high]) > end:
        is_inside = (own >= 0) & (own < end - begin)
        sources, own = sources[is_inside], own[is_inside]
    return sources, own


def _take_tiles(own: Array, preferred: Array) -> Array:
    """Assign each entry to its preferred tile or a later one, after that of the place's previous entry.

    Parameters
    ----------
    own : places of entries in order of columns
    preferred : tiles; those of a place ascend
    """
    xp = array_module(own)
    by_place = xp.argsort(own, kind="stable")
    own = own[by_place]
    numbers = xp.arange(len(own))
    heads = xp.flatnonzero(mark_firsts(own))
    numbers -= heads[xp.searchsorted(heads, numbers, side="right") - 1]
    # s[k] = max(t[k], s[k - 1] + 1) is k + the maximum of t[j] - j for j <= k, taken over 2, 4, 8 .. entries in turn.
    slack, longest, distance = preferred[by_place] - numbers, int(numbers.max()) + 1, 1
    while distance < longest:
        before = xp.where(numbers[distance:] >= distance, slack[:-distance], slack[distance:])
        slack[distance:] = xp.maximum(slack[distance:], before)
        distance *= 2
    taken = xp.empty_like(slack)
    xp.put(taken, by_place, slack + numbers, mode="wrap")
    return taken


def _fill_chunks(own: Array, columns: Array, values: Array | None, is_first: Array, wide: int) -> list[Any]:
    """Cut tiles into chunks: return the chunks of each tile, and the entries, columns and values in them.

    Parameters
    ----------
    own, columns, values : of the entries, tile by tile in order of columns: places in the block, columns, values
    is_first : whether an entry is the first of its tile
    """
    xp, chunk = array_module(own), WARP * wide
    heads = xp.flatnonzero(is_first | mark_firsts(columns >> WINDOW_BITS))  # one per window of each tile
    starts = accumulate((xp.diff(xp.append(heads, len(own))) + chunk - 1) // chunk)
    tile_heads = xp.searchsorted(heads, xp.flatnonzero(is_first))
    tile_chunks = xp.diff(starts[xp.append(tile_heads, len(heads))])
    numbers = xp.arange(len(own))
    windows = xp.searchsorted(heads, numbers, side="right") - 1
    numbers -= heads[windows]
    chunks = starts[windows] + numbers // chunk
    numbers %= chunk
    slots = chunks * chunk + wide * (numbers % WARP) + numbers // WARP
    del windows, numbers
    n_chunks = int(starts[-1])
    first_columns = xp.zeros(n_chunks, np.uint32)
    xp.put(first_columns, chunks, (columns >> WINDOW_BITS << WINDOW_BITS).astype(np.uint32), mode="wrap")
    del chunks
    entries = xp.full(chunk * n_chunks, NO_ROW, np.uint32)
    packed = (columns.astype(np.int64) & ((1 << WINDOW_BITS) - 1)) << ROW_BITS | own
    xp.put(entries, slots, packed.astype(np.uint32), mode="wrap")
    del packed
    if values is None:
        return [tile_chunks, entries, first_columns, None]
    held = xp.zeros(len(entries), values.dtype)
    xp.put(held, slots, values, mode="wrap")
    return [tile_chunks, entries, first_columns, held]


def _cut_items(places: _Places, block_tiles: Array, tile_starts: Array, size: int) -> tuple[Array, Array]:
    """Return `items` and `slice_starts` of `ColumnSortedTiles`: tiles of each block in parts of about `size` chunks."""
    xp = array_module(tile_starts)
    n_tiles, chunks = to_host(block_tiles), to_host(tile_starts)
    first = np.cumsum(n_tiles) - n_tiles
    parts = np.clip(np.rint((chunks[first + n_tiles] - chunks[first]) / size).astype(np.int64), 1, n_tiles)
    n_split = -(-int(places.split_places.max()) // places.height) if len(places.split_rows) else 0
    n_shared = max(n_split, int(np.flatnonzero(parts > 1).max(initial=-1)) + 1)
    slice_starts = accumulate(parts[:n_shared])
    blocks = np.repeat(np.arange(len(parts)), parts)
    numbers = np.arange(len(blocks)) - (np.cumsum(parts) - parts)[blocks]
    begins, ends = (first[blocks] + n_tiles[blocks] * k // parts[blocks] for k in (numbers, numbers + 1))
    slices = np.where(blocks < n_shared, np.arange(len(blocks)), -1)
    items = np.stack([blocks, begins, ends, slices], axis=1)
    by_length = np.argsort(chunks[begins] - chunks[ends], kind="stable")
    return xp.asarray(items[by_length]), xp.asarray(slice_starts)


def _join(xp: Any, parts: list[Any], dtype: Any) -> Any:
    """Concatenate any number of arrays; return None if there are no values."""
    if len(parts) == 1 or (parts and parts[0] is None):
        return parts[0]
    return xp.concatenate(parts) if parts else xp.zeros(0, dtype)
