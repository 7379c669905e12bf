"""CUDA kernels of products, each launched on the format of a block; `mgspmv.kernels.catalogue` lists them.

Formula, thread mapping and source are in the header of a kernel's file in `kernels/`. Classes are made from (block,
format, types); types are the macros VALUE and PATTERN, and X, SUM and EXACT where they differ. Kernels run on CuPy's
current stream.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from mgspmv.kernels import formats, row_tiles
from mgspmv.kernels.device import address, count_blocks, load_kernel, pack, zeros
from mgspmv.kernels.formats import CACHED_ROWS, ITEMS, Stream
from mgspmv.kernels.many import WIDTHS
from mgspmv.kernels.specialise import find_many_words
from mgspmv.model import CsrBlock

THREADS = 256
"""Threads per thread block, unless a source defines another number."""
ROW_TILES_THREADS = 512
"""Threads per thread block of row-tiles."""
ROW_TILES_EMPTY = 4096
"""Rows without entries per thread block of row-tiles."""
FINISH_THREADS, FINISH_BYTES = 256, 1024
"""Threads, and bytes of sums, per thread block that adds slices."""
MANY_WORDS = 4
"""Maximum columns per thread of csr-many."""
MANY_EMPTY = 1 << 18
"""Maximum rows without entries that csr-many processes at a time."""
LOOK_BACK_CHUNKS = 2048
"""Maximum chunks of csr-split for which waiting for carries takes less time than a second launch, as measured on an
H200, which runs the thread blocks of about half as many at a time."""


class Product(Protocol):
    """Kernel bound to a format: y = alpha A x + beta y."""

    def run(self, x: Any, y: Any, alpha: float, beta: float) -> None:
        """Enqueue the product of x (n_cols,) into y (n_rows,), both of the kernel's types and on the device."""
        ...


class _OneLaunch:
    """Product in one launch of a kernel, whose arguments end with x, y, alpha and beta.

    Parameters
    ----------
    arguments : the preceding ones
    """

    def __init__(
        self, kernel: Any, n_blocks: int, arguments: tuple[Any, ...], types: dict[str, Any], threads: int = THREADS
    ) -> None:
        self._kernel, self._n_blocks, self._threads = kernel, n_blocks, threads
        self._arguments, self._sum = arguments, np.dtype(types.get("SUM", types["VALUE"]))

    def run(self, x: Any, y: Any, alpha: float, beta: float) -> None:
        if self._n_blocks:
            arguments = (*self._arguments, x, y, self._sum.type(alpha), self._sum.type(beta))
            self._kernel((self._n_blocks,), (self._threads,), arguments)


class _CsrRows(_OneLaunch):
    """Product over the rows of CSR itself."""

    def __init__(
        self,
        block: CsrBlock,
        types: dict[str, Any],
        name: str,
        rows: int,
        *place: Any,
        threads: int = THREADS,
        **more: Any,
    ) -> None:
        index = {"INDEX": block.indices.dtype, "OFFSET": block.indptr.dtype}
        kernel = load_kernel(f"{name}.cu", name, **types, **index, **more)
        arguments = (np.int64(block.n_rows), *place, block.indptr, block.indices, address(block.data))
        super().__init__(kernel, count_blocks(block.n_rows, rows), arguments, types, threads)


class CsrScalar(_CsrRows):
    def __init__(self, block: CsrBlock, _: None, types: dict[str, Any]) -> None:
        super().__init__(block, types, "csr_scalar", THREADS)


class CsrWarp(_CsrRows):
    def __init__(self, block: CsrBlock, _: None, types: dict[str, Any]) -> None:
        super().__init__(block, types, "csr_warp", THREADS // 32)


class CsrVector(_CsrRows):
    def __init__(self, block: CsrBlock, plan: formats.VectorPlan, types: dict[str, Any]) -> None:
        place = (np.int64(block.nnz), np.int32(plan.rows))
        lanes = {"LANES": plan.lanes, "STAGED_LANES": plan.staged_lanes}
        super().__init__(block, types, "csr_vector", plan.rows, *place, **lanes)


class CsrCached(_CsrRows):
    def __init__(self, block: CsrBlock, _: None, types: dict[str, Any]) -> None:
        place = (np.int64(block.n_cols), np.int64(block.row_offset))
        super().__init__(block, types, "csr_cached", CACHED_ROWS, *place, threads=CACHED_ROWS)


class _Carries:
    """Sums carried from one thread block into the next, and the kernel that adds them."""

    def __init__(self, n: int, n_rows: int, dtype: np.dtype[Any], kernel: Any) -> None:
        self.rows, self.sums = zeros(n, np.int64), zeros(n, dtype)
        self._n_rows, self._kernel = np.int64(n_rows), kernel

    @property
    def arguments(self) -> tuple[Any, Any]:
        return self.rows, self.sums

    def add(self, y: Any, alpha: Any) -> None:
        n = len(self.rows)
        self._kernel(
            (count_blocks(n, THREADS),), (THREADS,), (np.int64(n), self.rows, self.sums, self._n_rows, alpha, y)
        )


class CsrSplit:
    def __init__(self, block: CsrBlock, split: formats.Split, types: dict[str, Any]) -> None:
        self._starts = (split.row_starts, split.nonzero_starts)
        self._csr = (block.indptr, block.indices, address(block.data))
        self._sum, self._n_chunks = np.dtype(types.get("SUM", types["VALUE"])), len(split.row_starts) - 1
        types = {**types, "INDEX": block.indices.dtype, "OFFSET": block.indptr.dtype}
        looks_back = self._n_chunks <= LOOK_BACK_CHUNKS
        self._kernel = load_kernel("csr_split.cu", "csr_split", **types, LOOK_BACK=int(looks_back))
        self._carries: _Carries | None = None
        if looks_back:
            # One word per 4 bytes of a carry; the kernel resets them to zero.
            self._carried: tuple[Any, ...] = (zeros(self._n_chunks * self._sum.itemsize // 4, np.uint64),)
        else:
            add = load_kernel("csr_split.cu", "add_carries", **types, LOOK_BACK=0)
            self._carries = _Carries(self._n_chunks, block.n_rows, self._sum, add)
            self._carried = self._carries.arguments

    def run(self, x: Any, y: Any, alpha: float, beta: float) -> None:
        if self._n_chunks:
            scalars = (self._sum.type(alpha), self._sum.type(beta))
            arguments = (*self._starts, *self._csr, x, y, *scalars, *self._carried)
            self._kernel((self._n_chunks,), (THREADS,), arguments)
            if self._carries is not None:
                self._carries.add(y, scalars[0])


class CsrMany:
    """Product with any number of vectors, in panels of 64 down to 4."""

    def __init__(self, block: CsrBlock, stream: Stream, types: dict[str, Any]) -> None:
        self._product = ManyProduct(block, stream, types)
        self._sum = np.dtype(types["VALUE"])

    def run(self, x: Any, y: Any, alpha: float, beta: float) -> None:
        if x.ndim == 1:
            self.run(x[:, None], y[:, None], alpha, beta)
            return
        k = x.shape[1]
        if k % MANY_WORDS:  # rows of X must be aligned for loads of several columns
            import cupy

            padding = ((0, 0), (0, -k % MANY_WORDS))
            padded = cupy.pad(y, padding)
            self.run(cupy.pad(x, padding), padded, alpha, beta)
            y[...] = padded[:, :k]
            return
        start = 0
        while start < k:
            width = min(max(WIDTHS), 1 << (k - start).bit_length() - 1)
            self._product.run(width, x.reshape(-1)[start:], y.reshape(-1)[start:], k, alpha, beta)
            start += width


class ManyProduct:
    """Product Y = alpha A X + beta Y, one panel of columns at a time.

    Parameters
    ----------
    types : the macros VALUE and PATTERN, and X, SUM, EXACT and Y where they differ
    """

    def __init__(self, block: CsrBlock, stream: Stream, types: dict[str, Any]) -> None:
        self.stream, self._types = stream, {**types, "INDEX": block.indices.dtype}
        self._x, self._sum = np.dtype(types.get("X", types["VALUE"])), np.dtype(types.get("SUM", types["VALUE"]))
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


class Ell(_OneLaunch):
    def __init__(self, block: CsrBlock, ell: formats.Ell, types: dict[str, Any]) -> None:
        kernel = load_kernel("ell.cu", "ell", **types, INDEX=ell.indices.dtype)
        arguments = (np.int64(block.n_rows), np.int64(ell.width), ell.indices, address(ell.data))
        super().__init__(kernel, count_blocks(block.n_rows, THREADS), arguments, types)


class Coo:
    def __init__(self, block: CsrBlock, coo: formats.Coo, types: dict[str, Any]) -> None:
        self._n_rows, self._sum, self._nnz = block.n_rows, np.dtype(types["VALUE"]), len(coo.rows)
        self._arrays = (coo.rows, coo.indices, address(coo.data))
        types = {**types, "INDEX": coo.indices.dtype, "ROW": coo.rows.dtype}
        self._scale, self._kernel, add = (
            load_kernel("coo.cu", name, **types) for name in ("scale", "coo", "add_carries")
        )
        self._carries = _Carries(count_blocks(self._nnz, ITEMS), block.n_rows, self._sum, add)

    def run(self, x: Any, y: Any, alpha: float, beta: float) -> None:
        if self._n_rows and beta != 1:
            grid = (count_blocks(self._n_rows, THREADS),)
            self._scale(grid, (THREADS,), (np.int64(self._n_rows), self._sum.type(beta), y))
        self.add(x, y, alpha)

    def add(self, x: Any, y: Any, alpha: float) -> None:
        """Add alpha A x to y."""
        if self._nnz:
            arguments = (np.int64(self._nnz), *self._arrays, x, y, self._sum.type(alpha), *self._carries.arguments)
            self._kernel((count_blocks(self._nnz, ITEMS),), (THREADS,), arguments)
            self._carries.add(y, self._sum.type(alpha))


class Hyb:
    def __init__(self, block: CsrBlock, hyb: formats.Hyb, types: dict[str, Any]) -> None:
        self._ell, self._coo = Ell(block, hyb.ell, types), Coo(block, hyb, types)

    def run(self, x: Any, y: Any, alpha: float, beta: float) -> None:
        self._ell.run(x, y, alpha, beta)
        self._coo.add(x, y, alpha)


class Dia(_OneLaunch):
    def __init__(self, block: CsrBlock, dia: formats.Dia, types: dict[str, Any]) -> None:
        kernel = load_kernel("dia.cu", "dia", VALUE=types["VALUE"], PATTERN=0, INDEX=np.dtype(np.int64))
        sizes = (np.int64(block.n_rows), np.int64(block.n_cols), np.int64(block.row_offset))
        arguments = (*sizes, np.int32(len(dia.offsets)), dia.offsets, dia.data)
        super().__init__(kernel, count_blocks(block.n_rows, THREADS), arguments, types)


class Bsr(_OneLaunch):
    def __init__(self, block: CsrBlock, bsr: formats.Bsr, types: dict[str, Any]) -> None:
        index = {"INDEX": bsr.indices.dtype, "OFFSET": bsr.indptr.dtype}
        kernel = load_kernel("bsr.cu", "bsr", VALUE=types["VALUE"], PATTERN=0, **index, BLOCK_DIM=bsr.block_dim)
        arguments = (np.int64(block.n_rows), np.int64(block.n_cols), bsr.indptr, bsr.indices, bsr.data)
        super().__init__(kernel, count_blocks(len(bsr.indptr) - 1, THREADS // 32), arguments, types)


class Sell(_OneLaunch):
    def __init__(self, block: CsrBlock, sell: formats.Sell, types: dict[str, Any]) -> None:
        kernel = load_kernel("sell.cu", "sell", **types, INDEX=sell.indices.dtype, ROW=sell.order.dtype)
        n_slices = len(sell.slice_ptr) - 1
        arguments = (np.int64(n_slices), sell.slice_ptr, sell.order, sell.indices, address(sell.data))
        super().__init__(kernel, count_blocks(n_slices * 32, THREADS), arguments, types)


class RowTiles:
    def __init__(self, block: CsrBlock, t: row_tiles.RowTiles, types: dict[str, Any]) -> None:
        self._sum, self._room = np.dtype(types["VALUE"]), t.height * types["VALUE"].itemsize
        names = ("permute", "row_tiles", "finish", "add_copies")
        self._permute, self._kernel, self._finish, self._add = (
            load_kernel("row_tiles.cu", name, **types) for name in names
        )
        self._kernel.max_dynamic_shared_size_bytes = self._room
        slices, copies = zeros(t.n_slices * t.height, self._sum), zeros(t.n_shared, self._sum)
        self._x = None if t.order is None else zeros(len(t.order), self._sum)
        self._order, self._slices, self._threads, self._lanes = t.order, slices, ROW_TILES_THREADS, t.lanes
        n_items, n_empty, height = len(t.items), len(t.rows) - t.n_places, np.int32(t.height)
        self._grids = (n_items + count_blocks(n_empty, ROW_TILES_EMPTY), len(t.slice_starts) - 1, len(t.split_rows))
        sizes = (np.int64(t.n_places), np.int64(n_empty), height)
        arrays = (t.entries, t.columns, address(t.values), t.rows)
        self._matrix = (np.int64(n_items), t.items, t.tile_starts, *sizes, *arrays)
        self._shared, self._height = (np.int64(t.n_places), height, t.slice_starts, slices, t.rows, copies), t.height
        self._split = (t.split_rows, t.split_places, copies)

    def run(self, x: Any, y: Any, alpha: float, beta: float) -> None:
        scalars, threads = (self._sum.type(alpha), self._sum.type(beta)), (self._threads,)
        if self._x is not None:
            n = len(self._x)
            self._permute((count_blocks(n, self._threads),), threads, (np.int64(n), self._order, x, self._x))
            x = self._x
        n_blocks, n_shared, n_split = self._grids
        if n_blocks:
            arguments = (*self._matrix, x, y, *scalars, self._slices)
            self._kernel((n_blocks,), threads, arguments, shared_mem=self._room)
        if n_shared:
            grid = (count_blocks(self._height, FINISH_BYTES // self._sum.itemsize), n_shared)
            self._finish(grid, (FINISH_THREADS,), (*self._shared, y, *scalars))
        if n_split:
            self._add((n_split,), (self._lanes,), (*self._split, y, *scalars))
