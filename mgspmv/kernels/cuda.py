"""The CUDA kernels bound to one CSR block on a device: products, and the parts of a PageRank step.

Each kernel is a class that makes its format once and then runs on CuPy's current stream; formula, thread mapping and
source are in the header of its file in `kernels/`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from mgspmv.errors import OptionError
from mgspmv.kernels import formats
from mgspmv.kernels.cpu import FLOAT32_LEAST_ROUNDING, FLOAT32_ROUNDING
from mgspmv.kernels.cusparse import CusparseProduct
from mgspmv.kernels.dense import sum_vector
from mgspmv.kernels.device import (
    address,
    count_lanes,
    describe_device,
    get,
    load_kernel,
    pack,
    put,
    put_block,
    report_full_device,
    zeros,
)
from mgspmv.kernels.row_tiles import RowTiles, build_row_tiles
from mgspmv.kernels.specialise import MANY_WIDTHS, find_many_words, product_types, step_types
from mgspmv.model import FIXED_POINT, CsrBlock, Precision, RowCheck, StepSums

THREADS = 256
"""Threads of a thread block where a source names no other number."""
CACHED_ROWS = 512
"""Rows, and threads, of a thread block of csr-cached."""
ROW_TILES_THREADS = 512
"""Threads of a thread block of row-tiles."""
ROW_TILES_EMPTY = 4096
"""Rows without entries that a thread block of row-tiles stores."""
FINISH_THREADS, FINISH_BYTES = 256, 1024
"""Threads of a thread block that adds slices, and bytes of sums that it makes."""
MANY_WORDS = 4
"""Most columns of a thread of csr-many."""
MANY_EMPTY = 1 << 18
"""Rows without entries that csr-many finishes at a time."""
ITEMS = 1792
"""Items of a thread block of csr-split and coo."""
LOOK_BACK_CHUNKS = 2048
"""Chunks of csr-split up to which waiting for carries takes less time than a second launch: by a lab on an H200, where
thread blocks of about half as many run at a time."""


class Product(Protocol):
    """A kernel with its format: y = alpha A x + beta y."""

    nbytes: int
    """Bytes that it reads of the matrix."""

    def run(self, x: Any, y: Any, alpha: float, beta: float) -> None:
        """Enqueue the product of x (n_cols,) into y (n_rows,), both of the kernel's types and on the device."""
        ...


class CudaBlock:
    """The kernels bound to one block on the current device, as `CpuBlock` is on the host.

    Parameters
    ----------
    block : on the device, or on the host, from where it is copied
    precision : as for `CpuBlock`
    kernel : of products; steps of PageRank use csr-split

    Raises
    ------
    BackendError : there is no CUDA device
    FormatError : the kernel cannot do this matrix
    CapacityError : its format does not fit into the device's memory
    OptionError : no kernel has that name
    """

    def __init__(self, block: CsrBlock, precision: Precision = "float64", kernel: str = "csr-split") -> None:
        if kernel not in PRODUCTS:
            raise OptionError(f"kernel must be 'auto' or one of {', '.join(PRODUCTS)}, not {kernel!r}")
        self.block = put_block(block)
        self.precision = precision
        self.kernel = kernel
        self._products: dict[tuple[Any, ...], Product] = {}
        if kernel in ("ell", "dia", "bsr", "row-tiles", "cusparse"):
            self._bind(kernel, self._plain_types(self._dtype))  # refused now or never

    @property
    def z_dtype(self) -> np.dtype[Any]:
        """Dtype of the vector that a step multiplies."""
        dtype: np.dtype[Any] = product_types(self.precision, self._value)["X"]
        return dtype

    @property
    def nbytes(self) -> int:
        """Bytes that the product's kernel reads of the matrix."""
        return self._bind(self.kernel, self._plain_types(self._dtype)).nbytes

    def multiply(self, x: Any, y: Any, alpha: float = 1.0, beta: float = 0.0) -> None:
        """y = alpha A x + beta y, in place; y is not read when beta is 0. Enqueued, not waited for.

        Parameters
        ----------
        x : (n_cols,) or (n_cols, k), float32 or float64, contiguous, on the device
        y : (n_rows,) or (n_rows, k) of the same dtype, contiguous, on the device

        Sums are made in the dtype of x, and alpha and beta are rounded to it.

        Raises
        ------
        OptionError : the block's values are of another dtype than x
        """
        if self._value is not None and self._value != x.dtype:
            raise OptionError(f"x is {x.dtype} and the values are {self._value}; read the block with values as x is")
        product = self._bind(self.kernel, self._plain_types(x.dtype))
        if x.ndim == 1 or isinstance(product, CsrMany):
            product.run(x, y, alpha, beta)
            return
        for c in range(x.shape[1]):
            column = y[:, c].copy()
            product.run(x[:, c].copy(), column, alpha, beta)
            y[:, c] = column

    def scale(self, x: Any, weight: Any, z: Any) -> StepSums:
        """As `CpuBlock.scale`, with vectors on the device."""
        sums = zeros(4, np.int64)
        self._run_rows("scale", x.dtype, x, weight, np.float64(self._unit), z, sums)
        return StepSums(*(int(s) for s in get(sums)))

    def check_rows(self, x: Any, weight: Any, z: Any) -> RowCheck:
        """As `CpuBlock.check_rows`, with vectors on the device."""
        found = zeros(3, np.uint64)
        self._run_rows("check_rows", x.dtype, x, weight, np.float64(self._unit), z, found)
        return RowCheck(*(int(n) for n in get(found)))

    def step(
        self,
        z: Any,
        x: Any,
        z_next: Any,
        weight: Any,
        alpha: float,
        mass: float,
        dangling: Any,
        personalization: Any,
        *,
        is_relative: bool = False,
    ) -> StepSums:
        """As `CpuBlock.step`, with vectors on the device; in exact fixed point with its bits."""
        types = product_types(self.precision, self._value)
        product, sums = zeros(self.block.n_rows, types["SUM"]), zeros(4, np.int64)
        self._bind("csr-split", types).run(z, product, 1.0, 0.0)
        scalars = (np.float64(alpha), np.float64(alpha * mass), np.float64(1.0 - alpha))
        vectors = (product, x, weight, np.float64(self._unit), z_next)
        arguments = (*vectors, *scalars, *_stride(dangling), *_stride(personalization), sums)
        self._run_rows("update", x.dtype, *arguments, is_relative=is_relative)
        return StepSums(*(int(s) for s in get(sums)))

    def residual(self, z: Any, x: Any, alpha: float, mass: float, dangling: Any, personalization: Any) -> float:
        """As `CpuBlock.residual`, with vectors on the device."""
        n_rows, is_rounded = self.block.n_rows, self._value == np.float32
        product, touched, out = zeros(n_rows, np.float64), np.uint64(0), zeros(n_rows, np.float64)
        self._bind("csr-split", product_types("float64", self._value)).run(z, product, 1.0, 0.0)
        if is_rounded:
            touched = zeros(n_rows, np.float64)
            self._bind("csr-split", product_types("float64", None)).run(z, touched, 1.0, 0.0)
        scalars = (alpha, alpha * mass, 1.0 - alpha, FLOAT32_ROUNDING if is_rounded else 0.0, FLOAT32_LEAST_ROUNDING)
        vectors = (self.block.indptr, product, touched, x, *map(np.float64, scalars))
        self._run_rows("residual", x.dtype, *vectors, *_stride(dangling), *_stride(personalization), out)
        return float(sum_vector(out))

    def compile(self, *, is_relative: bool = False) -> None:
        """Make the kernels of a PageRank run ready, so that no step is timed with it."""
        self._bind("csr-split", product_types(self.precision, self._value))
        self._bind("csr-split", product_types("float64", self._value))
        rank = np.dtype(np.float32 if self.precision == "float32" else np.float64)
        self._load_step("scale", rank)
        self._load_step("check_rows", rank)
        self._load_step("update", rank, is_relative=is_relative)
        in_float64 = self.with_precision("float64")
        for name in ("scale", "residual"):
            in_float64._load_step(name, rank)
        load_kernel("reduce.cu", "sum_chunks", VALUE=np.dtype(np.float64), PATTERN=0)

    def with_precision(self, precision: Precision) -> CudaBlock:
        """The same block with steps in another precision."""
        made = CudaBlock(self.block, precision, self.kernel)
        made._products = self._products
        return made

    def zeros(self, n: int, dtype: Any) -> Any:
        """(n,) zeros where this block's vectors are."""
        return zeros(n, dtype)

    def put(self, vector: np.ndarray) -> Any:
        """The vector where this block's vectors are."""
        return put(vector)

    def get(self, vector: Any) -> np.ndarray:
        """The vector on the host."""
        return get(vector)

    def describe(self) -> str:
        """What computes."""
        return describe_device()

    @property
    def _value(self) -> np.dtype[Any] | None:
        return None if self.block.data is None else self.block.data.dtype

    @property
    def _dtype(self) -> np.dtype[Any]:
        """Of products."""
        return self._value or np.dtype(np.float32 if self.precision == "float32" else np.float64)

    @property
    def _unit(self) -> float:
        return 1.0 / FIXED_POINT if self.precision == "exact" else 1.0

    def _plain_types(self, dtype: np.dtype[Any]) -> dict[str, Any]:
        return {"VALUE": dtype, "PATTERN": int(self._value is None)}

    def _bind(self, kernel: str, types: dict[str, Any]) -> Product:
        key = (kernel, *sorted((name, str(value)) for name, value in types.items()))
        if key not in self._products:
            with report_full_device(f"the format of {kernel}"):
                self._products[key] = PRODUCTS[kernel](self.block, types)
        return self._products[key]

    def _load_step(self, name: str, rank: np.dtype[Any], *, is_relative: bool = False) -> Any:
        types = step_types(self.precision, self._value, rank, is_relative=is_relative)
        return load_kernel("pagerank.cu", name, OFFSET=self.block.indptr.dtype, **types)

    def _run_rows(self, name: str, rank: np.dtype[Any], *arguments: Any, is_relative: bool = False) -> None:
        n_rows = self.block.n_rows
        if n_rows:
            kernel = self._load_step(name, rank, is_relative=is_relative)
            kernel((_count(n_rows, THREADS),), (THREADS,), (np.int64(n_rows), *arguments))


# --- products --------------------------------------------------------------------------------------------------------
# Each is made of (block, types); types are the macros VALUE and PATTERN, and X, SUM and EXACT where they differ.


class _CsrRows:
    """Kernels over the rows of CSR itself."""

    def __init__(
        self, block: CsrBlock, types: dict[str, Any], source: str, rows: int, threads: int, **more: Any
    ) -> None:
        self._csr = (block.indptr, block.indices, address(block.data))
        self._sum = np.dtype(types.get("SUM", types["VALUE"]))
        self._grid, self._threads, self._n_rows = _count(block.n_rows, rows), threads, np.int64(block.n_rows)
        index = {"INDEX": block.indices.dtype, "OFFSET": block.indptr.dtype}
        self._kernel = load_kernel(f"{source}.cu", source, **types, **index, **more)
        self._place: tuple[Any, ...] = ()
        self.nbytes = block.nbytes

    def run(self, x: Any, y: Any, alpha: float, beta: float) -> None:
        if self._grid:
            arguments = (self._n_rows, *self._place, *self._csr, x, y, self._sum.type(alpha), self._sum.type(beta))
            self._kernel((self._grid,), (self._threads,), arguments)


class _CsrScalar(_CsrRows):
    def __init__(self, block: CsrBlock, types: dict[str, Any]) -> None:
        super().__init__(block, types, "csr_scalar", THREADS, THREADS)


class _CsrWarp(_CsrRows):
    def __init__(self, block: CsrBlock, types: dict[str, Any]) -> None:
        super().__init__(block, types, "csr_warp", THREADS // 32, THREADS)


class _CsrVector(_CsrRows):
    def __init__(self, block: CsrBlock, types: dict[str, Any]) -> None:
        plan = formats.plan_vector(block, count_lanes())
        lanes = {"LANES": plan.lanes, "STAGED_LANES": plan.staged_lanes}
        super().__init__(block, types, "csr_vector", plan.rows, THREADS, **lanes)
        self._place = (np.int64(block.nnz), np.int32(plan.rows))


class _CsrCached(_CsrRows):
    def __init__(self, block: CsrBlock, types: dict[str, Any]) -> None:
        super().__init__(block, types, "csr_cached", CACHED_ROWS, CACHED_ROWS)
        self._place = (np.int64(block.n_cols), np.int64(block.row_offset))


class _Carries:
    """The sums that cross from one thread block into the next, and how they are added."""

    def __init__(self, n: int, n_rows: int, dtype: np.dtype[Any], kernel: Any) -> None:
        self.rows, self.sums = zeros(n, np.int64), zeros(n, dtype)
        self._n_rows, self._kernel = np.int64(n_rows), kernel

    @property
    def arguments(self) -> tuple[Any, Any]:
        return self.rows, self.sums

    def add(self, y: Any, alpha: Any) -> None:
        n = len(self.rows)
        self._kernel((_count(n, THREADS),), (THREADS,), (np.int64(n), self.rows, self.sums, self._n_rows, alpha, y))


class _CsrSplit:
    def __init__(self, block: CsrBlock, types: dict[str, Any]) -> None:
        split = formats.build_split(block)
        self._starts = (split.row_starts, split.nonzero_starts)
        self._csr = (block.indptr, block.indices, address(block.data))
        self._sum, self._n_chunks = np.dtype(types.get("SUM", types["VALUE"])), len(split.row_starts) - 1
        types = {**types, "INDEX": block.indices.dtype, "OFFSET": block.indptr.dtype}
        looks_back = self._n_chunks <= LOOK_BACK_CHUNKS
        self._kernel = load_kernel("csr_split.cu", "csr_split", **types, LOOK_BACK=int(looks_back))
        self._carries: _Carries | None = None
        if looks_back:
            # A word for each 4 bytes of a carry; the kernel leaves zeros again.
            self._carried: tuple[Any, ...] = (zeros(self._n_chunks * self._sum.itemsize // 4, np.uint64),)
        else:
            add = load_kernel("csr_split.cu", "add_carries", **types, LOOK_BACK=0)
            self._carries = _Carries(self._n_chunks, block.n_rows, self._sum, add)
            self._carried = self._carries.arguments
        self.nbytes = block.nbytes + split.nbytes

    def run(self, x: Any, y: Any, alpha: float, beta: float) -> None:
        if self._n_chunks:
            scalars = (self._sum.type(alpha), self._sum.type(beta))
            arguments = (*self._starts, *self._csr, x, y, *scalars, *self._carried)
            self._kernel((self._n_chunks,), (THREADS,), arguments)
            if self._carries is not None:
                self._carries.add(y, scalars[0])


class CsrMany:
    """For any number of vectors: as many at once as there are, in panels of 64 down to 4."""

    def __init__(self, block: CsrBlock, types: dict[str, Any]) -> None:
        self._product = ManyProduct(block, formats.build_stream(block), types)
        self._sum = np.dtype(types["VALUE"])
        self.nbytes = block.nbytes + self._product.stream.nbytes

    def run(self, x: Any, y: Any, alpha: float, beta: float) -> None:
        if x.ndim == 1:
            self.run(x[:, None], y[:, None], alpha, beta)
            return
        k = x.shape[1]
        if k % MANY_WORDS:  # a row of X must begin where a load of several columns may
            import cupy

            padding = ((0, 0), (0, -k % MANY_WORDS))
            padded = cupy.pad(y, padding)
            self.run(cupy.pad(x, padding), padded, alpha, beta)
            y[...] = padded[:, :k]
            return
        start = 0
        while start < k:
            width = min(max(MANY_WIDTHS), 1 << (k - start).bit_length() - 1)
            self._product.run(width, x.reshape(-1)[start:], y.reshape(-1)[start:], k, alpha, beta)
            start += width


class ManyProduct:
    """Y = alpha A X + beta Y, a panel of columns at a time.

    Parameters
    ----------
    types : the macros VALUE and PATTERN, and X, SUM, EXACT and Y where they differ
    """

    def __init__(self, block: CsrBlock, stream: formats.Stream, types: dict[str, Any]) -> None:
        self.stream, self._types = stream, {**types, "INDEX": block.indices.dtype}
        self._x, self._sum = np.dtype(types.get("X", types["VALUE"])), np.dtype(types.get("SUM", types["VALUE"]))
        self._block = block

    def load(self, width: int) -> tuple[Any, Any]:
        """The kernels for a panel of this width, one of `MANY_WIDTHS`."""
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
        n_blocks, n_more = _count(n_pieces, groups), _count(min(n_empty, MANY_EMPTY), groups)
        place = (y, np.int64(stride), self._sum.type(alpha), self._sum.type(beta))
        if n_blocks + n_more:
            kernel((n_blocks + n_more,), (THREADS,), (matrix, np.int64(n_blocks), x, *place))
        if n_splits:
            add((_count(n_splits, groups),), (THREADS,), (matrix, *place))


class _Ell:
    def __init__(self, block: CsrBlock, types: dict[str, Any], ell: formats.Ell | None = None) -> None:
        ell = ell or formats.build_ell(_widen(block))
        self._n_rows, self._sum = block.n_rows, np.dtype(types["VALUE"])
        self._arrays = (np.int64(ell.width), ell.indices, address(ell.data))
        self._kernel = load_kernel("ell.cu", "ell", **types, INDEX=ell.indices.dtype)
        self.nbytes = ell.nbytes

    def run(self, x: Any, y: Any, alpha: float, beta: float) -> None:
        if self._n_rows:
            scalars = (self._sum.type(alpha), self._sum.type(beta))
            arguments = (np.int64(self._n_rows), *self._arrays, x, y, *scalars)
            self._kernel((_count(self._n_rows, THREADS),), (THREADS,), arguments)


class _Coo:
    def __init__(self, block: CsrBlock, types: dict[str, Any], coo: formats.Coo | None = None) -> None:
        coo = coo or formats.build_coo(_widen(block))
        self._n_rows, self._sum, self._nnz = block.n_rows, np.dtype(types["VALUE"]), len(coo.rows)
        self._arrays = (coo.rows, coo.indices, address(coo.data))
        types = {**types, "INDEX": coo.indices.dtype, "ROW": coo.rows.dtype}
        self._scale, self._kernel, add = (
            load_kernel("coo.cu", name, **types) for name in ("scale", "coo", "add_carries")
        )
        self._carries = _Carries(_count(self._nnz, ITEMS), block.n_rows, self._sum, add)
        self.nbytes = coo.nbytes

    def run(self, x: Any, y: Any, alpha: float, beta: float) -> None:
        if self._n_rows and beta != 1:
            grid = (_count(self._n_rows, THREADS),)
            self._scale(grid, (THREADS,), (np.int64(self._n_rows), self._sum.type(beta), y))
        self.add(x, y, alpha)

    def add(self, x: Any, y: Any, alpha: float) -> None:
        """y += alpha A x."""
        if self._nnz:
            arguments = (np.int64(self._nnz), *self._arrays, x, y, self._sum.type(alpha), *self._carries.arguments)
            self._kernel((_count(self._nnz, ITEMS),), (THREADS,), arguments)
            self._carries.add(y, self._sum.type(alpha))


class _Hyb:
    def __init__(self, block: CsrBlock, types: dict[str, Any]) -> None:
        hyb = formats.build_hyb(_widen(block))
        self._ell, self._coo = _Ell(block, types, hyb.ell), _Coo(block, types, hyb.coo)
        self.nbytes = hyb.nbytes

    def run(self, x: Any, y: Any, alpha: float, beta: float) -> None:
        self._ell.run(x, y, alpha, beta)
        self._coo.add(x, y, alpha)


class _Dia:
    def __init__(self, block: CsrBlock, types: dict[str, Any]) -> None:
        dia = formats.build_dia(_widen(block), dtype=types["VALUE"])
        self._sizes = (np.int64(block.n_rows), np.int64(block.n_cols), np.int64(block.row_offset))
        self._arrays, self._sum = (np.int32(len(dia.offsets)), dia.offsets, dia.data), np.dtype(types["VALUE"])
        self._kernel = load_kernel("dia.cu", "dia", VALUE=types["VALUE"], PATTERN=0, INDEX=np.dtype(np.int64))
        self.nbytes = dia.nbytes

    def run(self, x: Any, y: Any, alpha: float, beta: float) -> None:
        if n_rows := int(self._sizes[0]):
            arguments = (*self._sizes, *self._arrays, x, y, self._sum.type(alpha), self._sum.type(beta))
            self._kernel((_count(n_rows, THREADS),), (THREADS,), arguments)


class _Bsr:
    def __init__(self, block: CsrBlock, types: dict[str, Any]) -> None:
        bsr = formats.build_bsr(_widen(block), dtype=types["VALUE"])
        self._sizes, self._sum = (np.int64(block.n_rows), np.int64(block.n_cols)), np.dtype(types["VALUE"])
        self._arrays, self._n_block_rows = (bsr.indptr, bsr.indices, bsr.data), len(bsr.indptr) - 1
        index = {"INDEX": bsr.indices.dtype, "OFFSET": bsr.indptr.dtype}
        self._kernel = load_kernel("bsr.cu", "bsr", VALUE=types["VALUE"], PATTERN=0, **index, BLOCK_DIM=bsr.block_dim)
        self.nbytes = bsr.nbytes

    def run(self, x: Any, y: Any, alpha: float, beta: float) -> None:
        if self._n_block_rows:
            arguments = (*self._sizes, *self._arrays, x, y, self._sum.type(alpha), self._sum.type(beta))
            self._kernel((_count(self._n_block_rows, THREADS // 32),), (THREADS,), arguments)


class _Sell:
    def __init__(self, block: CsrBlock, types: dict[str, Any]) -> None:
        sell = formats.build_sell(_widen(block))
        self._n_slices, self._sum = len(sell.slice_ptr) - 1, np.dtype(types["VALUE"])
        self._arrays = (sell.slice_ptr, sell.order, sell.indices, address(sell.data))
        self._kernel = load_kernel("sell.cu", "sell", **types, INDEX=sell.indices.dtype, ROW=sell.order.dtype)
        self.nbytes = sell.nbytes

    def run(self, x: Any, y: Any, alpha: float, beta: float) -> None:
        if self._n_slices:
            arguments = (np.int64(self._n_slices), *self._arrays, x, y, self._sum.type(alpha), self._sum.type(beta))
            self._kernel((_count(self._n_slices * 32, THREADS),), (THREADS,), arguments)


class _RowTiles:
    def __init__(self, block: CsrBlock, types: dict[str, Any], tiles: RowTiles | None = None) -> None:
        t = tiles or build_row_tiles(_widen(block), types["VALUE"])
        self._sum, self.nbytes, self._room = np.dtype(types["VALUE"]), t.nbytes, t.height * types["VALUE"].itemsize
        names = ("permute", "row_tiles", "finish", "add_copies")
        self._permute, self._kernel, self._finish, self._add = (
            load_kernel("row_tiles.cu", name, **types) for name in names
        )
        self._kernel.max_dynamic_shared_size_bytes = self._room
        slices, copies = zeros(t.n_slices * t.height, self._sum), zeros(t.n_shared, self._sum)
        self._x = None if t.order is None else zeros(len(t.order), self._sum)
        self._order, self._slices, self._threads, self._lanes = t.order, slices, ROW_TILES_THREADS, t.lanes
        n_items, n_empty, height = len(t.items), len(t.rows) - t.n_places, np.int32(t.height)
        self._grids = (n_items + _count(n_empty, ROW_TILES_EMPTY), len(t.slice_starts) - 1, len(t.split_rows))
        sizes = (np.int64(t.n_places), np.int64(n_empty), height)
        self._matrix = (
            np.int64(n_items),
            t.items,
            t.tile_starts,
            *sizes,
            t.entries,
            t.columns,
            address(t.values),
            t.rows,
        )
        self._shared, self._height = (np.int64(t.n_places), height, t.slice_starts, slices, t.rows, copies), t.height
        self._split = (t.split_rows, t.split_places, copies)

    def run(self, x: Any, y: Any, alpha: float, beta: float) -> None:
        scalars, threads = (self._sum.type(alpha), self._sum.type(beta)), (self._threads,)
        if self._x is not None:
            n = len(self._x)
            self._permute((_count(n, self._threads),), threads, (np.int64(n), self._order, x, self._x))
            x = self._x
        n_blocks, n_shared, n_split = self._grids
        if n_blocks:
            arguments = (*self._matrix, x, y, *scalars, self._slices)
            self._kernel((n_blocks,), threads, arguments, shared_mem=self._room)
        if n_shared:
            grid = (_count(self._height, FINISH_BYTES // self._sum.itemsize), n_shared)
            self._finish(grid, (FINISH_THREADS,), (*self._shared, y, *scalars))
        if n_split:
            self._add((n_split,), (self._lanes,), (*self._split, y, *scalars))


PRODUCTS: dict[str, Callable[[CsrBlock, dict[str, Any]], Product]] = {
    "csr-scalar": _CsrScalar,
    "csr-warp": _CsrWarp,
    "csr-vector": _CsrVector,
    "csr-cached": _CsrCached,
    "csr-split": _CsrSplit,
    "csr-many": CsrMany,
    "ell": _Ell,
    "coo": _Coo,
    "dia": _Dia,
    "hyb": _Hyb,
    "bsr": _Bsr,
    "sell": _Sell,
    "row-tiles": _RowTiles,
    "cusparse": lambda block, types: CusparseProduct(block, types["VALUE"]),
}


def _widen(block: CsrBlock) -> CsrBlock:
    """The block with int64 row pointers, in which places of formats are counted."""
    return replace(block, indptr=block.indptr.astype(np.int64, copy=False))


def _stride(vector: Any) -> tuple[Any, np.int32]:
    """A vector of a value a row, or of one value for all rows, as a kernel takes it."""
    return vector, np.int32(len(vector) > 1)


def _count(n: int, size: int) -> int:
    """Pieces of a size that n needs."""
    return -(-n // size)
