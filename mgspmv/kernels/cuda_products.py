"""CUDA kernels of products, each launched on the format of a block; `mgspmv.kernels.catalogue` lists them.

Formula, thread mapping and source are in the header of a kernel's file in `kernels/`. Functions take (block, format,
types) and return the product; types are the macros VALUE and PATTERN, and X, SUM and EXACT where they differ. Kernels
run on CuPy's current stream.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from mgspmv.kernels import csr_cuts, formats
from mgspmv.kernels.column_sorted_tiles import ColumnSortedTiles
from mgspmv.kernels.device import address, count_blocks, load_kernel, pack, zeros
from mgspmv.kernels.formats import CACHED_ROWS, ITEMS, SUM_CHUNK, TILE_COLS, TILE_ROWS, WARP
from mgspmv.kernels.modules import find_many_words
from mgspmv.kernels.operands import WIDTHS
from mgspmv.model import CsrBlock

THREADS = 256
"""Threads per thread block, unless a source defines another number."""
ROW_TILES_THREADS = 512
"""Threads per thread block of column-sorted-tiles."""
ROW_TILES_EMPTY = 4096
"""Rows without entries per thread block of column-sorted-tiles."""
FINISH_THREADS, FINISH_BYTES = 256, 1024
"""Threads, and bytes of sums, per thread block that adds slices."""
MANY_WORDS = 4
"""Maximum columns per thread of csr-many."""
MANY_EMPTY = 1 << 18
"""Maximum rows without entries that csr-many processes at a time."""
LOOK_BACK_CHUNKS = 2048
"""Maximum chunks of csr-split for which waiting for carries takes less time than a second launch, as measured on an
H200, which runs the thread blocks of about half as many at a time."""
COMPACT_ROOM = 62 << 10
"""Maximum bytes of steps in shared memory per thread block of csr-compact: what compute capability 7.5 has, nearly."""
COMPACT_WARPS, COMPACT_EMPTY = (8, 4, 2), 1024
"""Choices for the warps of a thread block of csr-compact, and rows without entries that one stores."""
COMPACT_CARVEOUT = 50
"""Percent of on-chip memory that csr-compact uses as shared memory; x is read through the others, as L1 cache."""
SHORT_ROW = 32
"""Maximum columns for which one thread per row reads whole sectors."""
FEW_ROWS = 1024
"""Rows below which one thread block per row leaves multiprocessors idle."""


Product: TypeAlias = Callable[[Any, Any, float, float], None]
"""Kernel bound to a format: a function of (x, y, alpha, beta) that enqueues y = alpha A x + beta y.

x (n_cols,) and y (n_rows,) are of the kernel's types and on the device.
"""


def _launch(
    kernel: Any, n_blocks: int, arguments: tuple[Any, ...], types: dict[str, Any], threads: int = THREADS
) -> Product:
    """Return the product by one launch of a kernel, whose arguments end with x, y, alpha and beta.

    Parameters
    ----------
    arguments : the preceding ones
    """
    number = _sum_dtype(types).type

    def run(x: Any, y: Any, alpha: float, beta: float) -> None:
        if n_blocks:
            kernel((n_blocks,), (threads,), (*arguments, x, y, number(alpha), number(beta)))

    return run


def _launch_rows(
    block: CsrBlock, types: dict[str, Any], name: str, rows: int, *place: Any, threads: int = THREADS, **more: Any
) -> Product:
    """Return the product over the rows of CSR itself, `rows` per thread block."""
    kernel = load_kernel(f"{name}.cu", name, **types, INDEX=block.indices.dtype, OFFSET=block.indptr.dtype, **more)
    arguments = (np.int64(block.n_rows), *place, block.indptr, block.indices, address(block.data))
    return _launch(kernel, count_blocks(block.n_rows, rows), arguments, types, threads)


def _sum_dtype(types: dict[str, Any]) -> np.dtype[Any]:
    dtype: np.dtype[Any] = types.get("SUM", types["VALUE"])
    return dtype


def csr_scalar(block: CsrBlock, _: None, types: dict[str, Any]) -> Product:
    return _launch_rows(block, types, "csr_scalar", THREADS)


def csr_warp(block: CsrBlock, _: None, types: dict[str, Any]) -> Product:
    return _launch_rows(block, types, "csr_warp", THREADS // 32)


def csr_vector(block: CsrBlock, plan: csr_cuts.VectorPlan, types: dict[str, Any]) -> Product:
    place, lanes = (np.int64(block.nnz), np.int32(plan.rows)), {"LANES": plan.lanes, "STAGED_LANES": plan.staged_lanes}
    return _launch_rows(block, types, "csr_vector", plan.rows, *place, **lanes)


def csr_cached(block: CsrBlock, _: None, types: dict[str, Any]) -> Product:
    place = (np.int64(block.n_cols), np.int64(block.row_offset))
    return _launch_rows(block, types, "csr_cached", CACHED_ROWS, *place, threads=CACHED_ROWS)


def _carry(rows: Any, n_rows: int, dtype: np.dtype[Any], kernel: Any) -> tuple[Any, Callable[[Any, Any], None]]:
    """Return the sums carried from each thread block into the next, and a function of (y, alpha) that adds them by the
    kernel.

    Parameters
    ----------
    rows : of the carries, n_rows for none
    """
    n, sums = len(rows), zeros(len(rows), dtype)

    def add(y: Any, alpha: Any) -> None:
        kernel((count_blocks(n, THREADS),), (THREADS,), (np.int64(n), rows, sums, np.int64(n_rows), alpha, y))

    return sums, add


def csr_split(block: CsrBlock, split: csr_cuts.Split, types: dict[str, Any]) -> Product:
    n_chunks, dtype = len(split.row_starts) - 1, _sum_dtype(types)
    arrays = (split.row_starts, split.nonzero_starts, block.indptr, block.indices, address(block.data))
    looks_back = n_chunks <= LOOK_BACK_CHUNKS
    types = {**types, "INDEX": block.indices.dtype, "OFFSET": block.indptr.dtype, "LOOK_BACK": int(looks_back)}
    kernel, add = load_kernel("csr_split.cu", "csr_split", **types), None
    if looks_back:
        # One word per 4 bytes of a carry; the kernel resets them to zero.
        carries = [zeros(n_chunks * dtype.itemsize // 4, np.uint64)]
    else:
        rows = zeros(n_chunks, np.int64)
        sums, add = _carry(rows, block.n_rows, dtype, load_kernel("csr_split.cu", "add_carries", **types))
        carries = [rows, sums]

    def run(x: Any, y: Any, alpha: float, beta: float) -> None:
        if n_chunks:
            kernel((n_chunks,), (THREADS,), (*arrays, x, y, dtype.type(alpha), dtype.type(beta), *carries))
            if add is not None:
                add(y, dtype.type(alpha))

    return run


def csr_compact(block: CsrBlock, made: csr_cuts.Compact, types: dict[str, Any]) -> Product:
    dtype = _sum_dtype(types)
    value_bytes = 0 if types["PATTERN"] else np.dtype(types["VALUE"]).itemsize
    step_bytes = csr_cuts.STEP * (max(dtype.itemsize, value_bytes) + made.near.itemsize) + 4 * WARP
    fits = (warps for warps in COMPACT_WARPS if 2 * warps * step_bytes <= COMPACT_ROOM)
    warps = next(warps for warps in fits if 2 * warps <= made.block_steps + 1)  # a warp reads one step during another
    row = np.dtype(np.int32) if made.rows is None else made.rows.dtype
    types = {**types, "INDEX": block.indices.dtype, "OFFSET": made.steps.dtype, "ROW": row, "WARPS": warps}
    kernel = load_kernel("csr_compact.cu", "csr_compact", **types)
    room = kernel.max_dynamic_shared_size_bytes = 2 * warps * step_bytes
    kernel.preferred_shared_memory_carveout = COMPACT_CARVEOUT
    n_blocks, n_empty = len(made.cuts) - 1, 0 if made.empty is None else len(made.empty)
    carries, add = None, None
    if made.carry_rows is not None:
        add_carries = load_kernel("csr_compact.cu", "add_carries", **types)
        carries, add = _carry(made.carry_rows, block.n_rows, dtype, add_carries)
    sizes = (np.int64(n_blocks), np.int32((made.block_steps + 1) // warps), np.int64(block.nnz))
    entries = (made.cuts, made.steps, made.marks, made.near, block.indices, address(block.data))
    arrays = (*sizes, *entries, address(made.rows), np.int64(n_empty), address(made.empty))
    grid, threads = (n_blocks + count_blocks(n_empty, COMPACT_EMPTY),), (warps * WARP,)

    def run(x: Any, y: Any, alpha: float, beta: float) -> None:
        scalars = dtype.type(alpha), dtype.type(beta)
        if grid[0]:
            kernel(grid, threads, (*arrays, x, y, *scalars, address(carries)), shared_mem=room)
        if add is not None:
            add(y, scalars[0])

    return run


def csr_many(block: CsrBlock, stream: csr_cuts.Stream, types: dict[str, Any]) -> Product:
    """Return the product with any number of vectors, in panels of 64 down to 4."""
    product = ManyProduct(block, stream, types)

    def run(x: Any, y: Any, alpha: float, beta: float) -> None:
        if x.ndim == 1:
            run(x[:, None], y[:, None], alpha, beta)
            return
        k = x.shape[1]
        if k % MANY_WORDS:  # rows of X must be aligned for loads of several columns
            import cupy

            padding = ((0, 0), (0, -k % MANY_WORDS))
            padded = cupy.pad(y, padding)
            run(cupy.pad(x, padding), padded, alpha, beta)
            y[...] = padded[:, :k]
            return
        start = 0
        while start < k:
            width = min(max(WIDTHS), 1 << (k - start).bit_length() - 1)
            product.run(width, x.reshape(-1)[start:], y.reshape(-1)[start:], k, alpha, beta)
            start += width

    return run


class ManyProduct:
    """Product Y = alpha A X + beta Y, one panel of columns at a time.

    Parameters
    ----------
    types : the macros VALUE and PATTERN, and X, SUM, EXACT and Y where they differ
    """

    def __init__(self, block: CsrBlock, stream: csr_cuts.Stream, types: dict[str, Any]) -> None:
        self.stream, self._types = stream, {**types, "INDEX": block.indices.dtype}
        self._x, self._sum = np.dtype(types.get("X", types["VALUE"])), _sum_dtype(types)
        self._block = block

    def load(self, width: int) -> tuple[Any, Any]:
        """Load the kernels for a panel of this width, one of `WIDTHS`."""
        types = {**self._types, "WIDTH": width, "WORDS": find_many_words(width, self._x)}
        return load_kernel("csr_many.cu", "csr_many", **types), load_kernel("csr_many.cu", "add_carries", **types)

    def run(self, width: int, x: Any, y: Any, stride: int, alpha: float, beta: float) -> None:
        """Enqueue the product of a panel.

        Parameters
        ----------
        x, y : from the first element of the panel on
        stride : columns of X and of Y
        """
        kernel, add = self.load(width)
        block, stream, groups = self._block, self.stream, THREADS * find_many_words(width, self._x) // width
        n_pieces, n_splits, n_empty = len(stream.piece_rows), len(stream.splits), len(stream.empty)
        carries = zeros(2 * n_pieces * width, self._sum)
        arrays = (block.indices, block.data, stream.ends, stream.rows, stream.piece_rows, stream.splits, stream.empty)
        matrix = pack(block.nnz, n_pieces, n_splits, n_empty, stream.n_batches, *arrays, carries)
        n_blocks, n_more = count_blocks(n_pieces, groups), count_blocks(min(n_empty, MANY_EMPTY), groups)
        place = (y, np.int64(stride), self._sum.type(alpha), self._sum.type(beta))
        if n_blocks + n_more:
            kernel((n_blocks + n_more,), (THREADS,), (matrix, np.int64(n_blocks), x, *place))
        if n_splits:
            add((count_blocks(n_splits, groups),), (THREADS,), (matrix, *place))


def ell(block: CsrBlock, made: formats.Ell, types: dict[str, Any]) -> Product:
    kernel = load_kernel("ell.cu", "ell", **types, INDEX=made.indices.dtype)
    arguments = (np.int64(block.n_rows), np.int64(len(made.indices)), made.indices, address(made.data))
    return _launch(kernel, count_blocks(block.n_rows, THREADS), arguments, types)


def coo(block: CsrBlock, made: formats.Coo, types: dict[str, Any]) -> Product:
    dtype, grid = np.dtype(types["VALUE"]), (count_blocks(block.n_rows, THREADS),)
    scale = load_kernel("coo.cu", "scale", **types, INDEX=made.indices.dtype, ROW=made.rows.dtype)
    add = _add_coo(block, made, types)

    def run(x: Any, y: Any, alpha: float, beta: float) -> None:
        if block.n_rows and beta != 1:
            scale(grid, (THREADS,), (np.int64(block.n_rows), dtype.type(beta), y))
        add(x, y, alpha)

    return run


def _add_coo(block: CsrBlock, made: formats.Coo, types: dict[str, Any]) -> Callable[[Any, Any, float], None]:
    """Return a function of (x, y, alpha) that adds alpha A x to y."""
    nnz, dtype = len(made.rows), np.dtype(types["VALUE"])
    types = {**types, "INDEX": made.indices.dtype, "ROW": made.rows.dtype}
    kernel, add_carries = (load_kernel("coo.cu", name, **types) for name in ("coo", "add_carries"))
    rows = zeros(count_blocks(nnz, ITEMS), np.int64)
    sums, add = _carry(rows, block.n_rows, dtype, add_carries)

    def run(x: Any, y: Any, alpha: float) -> None:
        if nnz:
            arrays = (made.rows, made.indices, address(made.data))
            arguments = (np.int64(nnz), *arrays, x, y, dtype.type(alpha), rows, sums)
            kernel((count_blocks(nnz, ITEMS),), (THREADS,), arguments)
            add(y, dtype.type(alpha))

    return run


def hyb(block: CsrBlock, made: formats.Hyb, types: dict[str, Any]) -> Product:
    first = formats.Ell(made.ell_indices, made.ell_data)
    multiply, add = ell(block, first, types), _add_coo(block, made, types)

    def run(x: Any, y: Any, alpha: float, beta: float) -> None:
        multiply(x, y, alpha, beta)
        add(x, y, alpha)

    return run


def dia(block: CsrBlock, made: formats.Dia, types: dict[str, Any]) -> Product:
    kernel = load_kernel("dia.cu", "dia", VALUE=types["VALUE"], PATTERN=0, INDEX=np.dtype(np.int64))
    sizes = (np.int64(block.n_rows), np.int64(block.n_cols), np.int64(block.row_offset))
    arguments = (*sizes, np.int32(len(made.offsets)), made.offsets, made.data)
    return _launch(kernel, count_blocks(block.n_rows, THREADS), arguments, types)


def bsr(block: CsrBlock, made: formats.Bsr, types: dict[str, Any]) -> Product:
    index = {"INDEX": made.indices.dtype, "OFFSET": made.indptr.dtype}
    kernel = load_kernel("bsr.cu", "bsr", VALUE=types["VALUE"], PATTERN=0, **index, BLOCK_DIM=made.data.shape[1])
    arguments = (np.int64(block.n_rows), np.int64(block.n_cols), made.indptr, made.indices, made.data)
    return _launch(kernel, count_blocks(len(made.indptr) - 1, THREADS // 32), arguments, types)


def sell(block: CsrBlock, made: formats.Sell, types: dict[str, Any]) -> Product:
    kernel = load_kernel("sell.cu", "sell", **types, INDEX=made.indices.dtype, ROW=made.order.dtype)
    n_slices = len(made.slice_ptr) - 1
    arguments = (np.int64(n_slices), made.slice_ptr, made.order, made.indices, address(made.data))
    return _launch(kernel, count_blocks(n_slices * 32, THREADS), arguments, types)


def column_sorted_tiles(block: CsrBlock, t: ColumnSortedTiles, types: dict[str, Any]) -> Product:
    dtype, room = np.dtype(types["VALUE"]), t.height * types["VALUE"].itemsize
    names = ("permute", "column_sorted_tiles", "finish", "add_copies")
    permute, kernel, finish, add = (load_kernel("column_sorted_tiles.cu", name, **types) for name in names)
    kernel.max_dynamic_shared_size_bytes = room
    slices, copies = zeros(t.n_slices * t.height, dtype), zeros(t.n_shared, dtype)
    permuted = None if t.order is None else zeros(len(t.order), dtype)
    n_items, n_empty, height = len(t.items), len(t.rows) - t.n_places, np.int32(t.height)
    n_blocks, n_shared = n_items + count_blocks(n_empty, ROW_TILES_EMPTY), len(t.slice_starts) - 1
    sizes = (np.int64(t.n_places), np.int64(n_empty), height)
    matrix = (np.int64(n_items), t.items, t.tile_starts, *sizes, t.entries, t.columns, address(t.values), t.rows)
    shared = (np.int64(t.n_places), height, t.slice_starts, slices, t.rows, copies)

    def run(x: Any, y: Any, alpha: float, beta: float) -> None:
        scalars, threads = (dtype.type(alpha), dtype.type(beta)), (ROW_TILES_THREADS,)
        if permuted is not None:
            n = len(permuted)
            permute((count_blocks(n, ROW_TILES_THREADS),), threads, (np.int64(n), t.order, x, permuted))
            x = permuted
        if n_blocks:
            kernel((n_blocks,), threads, (*matrix, x, y, *scalars, slices), shared_mem=room)
        if n_shared:
            grid = (count_blocks(t.height, FINISH_BYTES // dtype.itemsize), n_shared)
            finish(grid, (FINISH_THREADS,), (*shared, y, *scalars))
        if len(t.split_rows):
            add((len(t.split_rows),), (t.lanes,), (t.split_rows, t.split_places, copies, y, *scalars))

    return run


def multiply_on_device(A: Any, x: Any, b: Any, kernel: str) -> Any:
    """Compute y = A x + b for a dense A on the device.

    Parameters
    ----------
    A : (n_rows, n_cols) C-ordered, float32 or float64, on the device
    x, b : (n_cols,) and (n_rows,) or None, of the same dtype
    kernel : `dense-rows`, `dense-block` or `dense-tiles`, see kernels/dense.cu; `auto` for the best one
    """
    n_rows, n_cols = A.shape
    y = zeros(n_rows, A.dtype)
    if not n_rows:
        return y
    b = np.uint64(0) if b is None else b
    sizes = (np.int64(n_rows), np.int64(n_cols))

    def run(name: str, grid: tuple[int, ...], *arguments: Any) -> None:
        load_kernel("dense.cu", name, VALUE=A.dtype, PATTERN=0)(grid, (THREADS,), arguments)

    if kernel == "auto":
        kernel = "dense-tiles" if n_rows < FEW_ROWS and n_cols > TILE_COLS else "dense-block"
        kernel = "dense-rows" if n_cols <= SHORT_ROW else kernel
    if kernel == "dense-rows":
        run("dense_rows", (count_blocks(n_rows, THREADS),), *sizes, A, x, b, y)
    elif kernel == "dense-block":
        run("dense_block", (n_rows,), sizes[1], A, x, b, y)
    else:
        n_tiles = count_blocks(n_cols, TILE_COLS)
        partial = zeros(n_tiles * n_rows, A.dtype)
        if n_tiles:
            run("dense_tiles", (count_blocks(n_rows, TILE_ROWS) * n_tiles,), *sizes, A, x, partial)
        run("add_tiles", (count_blocks(n_rows, THREADS),), sizes[0], np.int64(n_tiles), partial, b, y)
    return y


def sum_vector(x: Any) -> Any:
    """Sum a device vector in a fixed order, by parallel reduction.

    Parameters
    ----------
    x : (n,) float32 or float64, on the device

    Returns
    -------
    0-dimensional array of its dtype, on the device. The order of additions depends on n alone.
    """
    kernel = load_kernel("reduce.cu", "sum_chunks", VALUE=x.dtype, PATTERN=0)
    while len(x) != 1:
        out = zeros(max(1, count_blocks(len(x), SUM_CHUNK)), x.dtype)
        if len(x):
            kernel((len(out),), (THREADS,), (np.int64(len(x)), x, out))
        x = out
    return x[0]
