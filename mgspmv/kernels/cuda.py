"""CUDA kernels bound to one CSR block on a device: products, and the parts of a PageRank step of one vector or many."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np

from mgspmv.errors import FormatError, OptionError
from mgspmv.kernels.catalogue import KERNELS
from mgspmv.kernels.csr_cuts import Stream, build_stream
from mgspmv.kernels.cuda_products import THREADS, ManyProduct, Product, sum_vector
from mgspmv.kernels.device import (
    count_blocks,
    describe_device,
    get,
    load_kernel,
    pack,
    put,
    put_block,
    read_block,
    report_full_device,
    shared_memory,
    zeros,
)
from mgspmv.kernels.formats import cut_pieces
from mgspmv.kernels.highest import select_each
from mgspmv.kernels.modules import product_types, step_types
from mgspmv.kernels.operands import Terms, multiply_columns
from mgspmv.kernels.streaming import hold_pieces
from mgspmv.model import FIXED_POINT, FLOAT32_LEAST_ROUNDING, FLOAT32_ROUNDING, CsrBlock, Precision, RowCheck, StepSums
from mgspmv.plan import Streaming
from mgspmv.store.stored_matrix import StoredMatrix

COLUMN_GRIDS = 8
"""Thread blocks per multiprocessor of a kernel over the rows of many vectors."""
MOST_COLUMNS = 64


class OnDevice:
    """Kernels whose vectors are on the current device."""

    zeros = staticmethod(zeros)
    put = staticmethod(put)
    get = staticmethod(get)
    describe = staticmethod(describe_device)


class CudaBlock(OnDevice):
    """CUDA kernels bound to one block on the current device: the counterpart of `CpuBlock`.

    Parameters
    ----------
    block : on the device, or on the host, to be copied
    precision : as for `CpuBlock`
    kernel : for products, one of the catalogue's CUDA kernels; PageRank steps use csr-split

    Raises
    ------
    BackendError : there is no CUDA device
    FormatError : the kernel does not support this matrix
    CapacityError : its format does not fit in device memory
    """

    def __init__(self, block: CsrBlock, precision: Precision = "float64", kernel: str = "csr-split") -> None:
        self.block = put_block(block)
        self.precision = precision
        self.kernel = kernel
        self._products: dict[tuple[Any, ...], tuple[Product, int]] = {}
        if kernel != "csr-split":  # csr-split supports every matrix; for others, raise errors now
            self._bind(kernel, self._plain_types(self._dtype))

    @property
    def z_dtype(self) -> np.dtype[Any]:
        """Dtype of the vector that a step multiplies."""
        dtype: np.dtype[Any] = product_types(self.precision, self._value)["X"]
        return dtype

    @property
    def nbytes(self) -> int:
        """Bytes that the product's kernel reads of the matrix."""
        return self._bind(self.kernel, self._plain_types(self._dtype))[1]

    def multiply(self, x: Any, y: Any, alpha: float = 1.0, beta: float = 0.0) -> None:
        """Enqueue y = alpha A x + beta y in place; y is not read when beta is 0.

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
            raise OptionError(
                f"x is {x.dtype} but the values are {self._value}; read the block with values in {x.dtype}"
            )
        product, _ = self._bind(self.kernel, self._plain_types(x.dtype))
        if self.kernel == "csr-many":
            product(x, y, alpha, beta)
        else:
            multiply_columns(product, x, y, alpha, beta)

    def scale(self, x: Any, weight: Any, z: Any) -> StepSums:
        """Compute `CpuBlock.scale` with vectors on the device."""
        sums = zeros(4, np.int64)
        self._run_rows("scale", x.dtype, x, weight, np.float64(self._unit), z, sums)
        return StepSums(*(int(s) for s in get(sums)))

    def check_rows(self, x: Any, weight: Any, z: Any) -> RowCheck:
        """Compute `CpuBlock.check_rows` with vectors on the device."""
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
        """Make the step of `CpuBlock.step` with vectors on the device; bit-identical to it in `exact`."""
        types = product_types(self.precision, self._value)
        product, sums = zeros(self.block.n_rows, types["SUM"]), zeros(4, np.int64)
        self._bind("csr-split", types)[0](z, product, 1.0, 0.0)
        scalars = (np.float64(alpha), np.float64(alpha * mass), np.float64(1.0 - alpha))
        vectors = (product, x, weight, np.float64(self._unit), z_next)
        arguments = (*vectors, *scalars, *_stride(dangling), *_stride(personalization), sums)
        self._run_rows("update", x.dtype, *arguments, is_relative=is_relative)
        return StepSums(*(int(s) for s in get(sums)))

    def residual(self, z: Any, x: Any, alpha: float, mass: float, dangling: Any, personalization: Any) -> float:
        """Compute `CpuBlock.residual` with vectors on the device."""
        n_rows, is_rounded = self.block.n_rows, self._value == np.float32
        product, touched, out = zeros(n_rows, np.float64), np.uint64(0), zeros(n_rows, np.float64)
        self._bind("csr-split", product_types("float64", self._value))[0](z, product, 1.0, 0.0)
        if is_rounded:  # the bound on underflow needs the sum of z over the entries of each row
            touched = zeros(n_rows, np.float64)
            self._bind("csr-split", product_types("float64", None))[0](z, touched, 1.0, 0.0)
        scalars = (alpha, alpha * mass, 1.0 - alpha, FLOAT32_ROUNDING if is_rounded else 0.0, FLOAT32_LEAST_ROUNDING)
        vectors = (self.block.indptr, product, touched, x, *map(np.float64, scalars))
        self._run_rows("residual", x.dtype, *vectors, *_stride(dangling), *_stride(personalization), out)
        return float(sum_vector(out))

    def compile(self, *, is_relative: bool = False) -> None:
        """Compile or load the kernels of a PageRank run, so that no step's time includes it."""
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
        """Return the same block with steps in another precision."""
        made = CudaBlock(self.block, precision, self.kernel)
        made._products = self._products
        return made

    @property
    def _value(self) -> np.dtype[Any] | None:
        return None if self.block.data is None else self.block.data.dtype

    @property
    def _dtype(self) -> np.dtype[Any]:
        """Dtype of products."""
        return self._value or np.dtype(np.float32 if self.precision == "float32" else np.float64)

    @property
    def _unit(self) -> float:
        return 1.0 / FIXED_POINT if self.precision == "exact" else 1.0

    def _plain_types(self, dtype: np.dtype[Any]) -> dict[str, Any]:
        return {"VALUE": dtype, "PATTERN": int(self._value is None)}

    def _bind(self, kernel: str, types: dict[str, Any]) -> tuple[Product, int]:
        """Return a kernel bound to its format, and the bytes of the matrix that it reads."""
        key = (kernel, *sorted((name, str(value)) for name, value in types.items()))
        if key not in self._products:
            with report_full_device(f"the format of {kernel}"):
                own = KERNELS[kernel]
                made = own.build(self.block, types["VALUE"])
                product = own.launcher(self.block, made, types)
                self._products[key] = product, own.count_bytes(self.block, made)
        return self._products[key]

    def _load_step(self, name: str, rank: np.dtype[Any], *, is_relative: bool = False, many: bool = False) -> Any:
        types = step_types(self.precision, self._value, rank, is_relative=is_relative, many=many)
        source = "pagerank_many.cu" if many else "pagerank.cu"
        return load_kernel(source, name, OFFSET=self.block.indptr.dtype, **types)

    def _run_rows(self, name: str, rank: np.dtype[Any], *arguments: Any, is_relative: bool = False) -> None:
        n_rows = self.block.n_rows
        if n_rows:
            kernel = self._load_step(name, rank, is_relative=is_relative)
            kernel((count_blocks(n_rows, THREADS),), (THREADS,), (np.int64(n_rows), *arguments))


class CudaMany(CudaBlock):
    """Kernels of `CudaBlock` and kernels for many vectors, bound to one block on the current device.

    `CpuMany` documents each method. In `exact`, results are bit-identical to the CPU's; in other precisions row sums
    are made in float64 too, in another order.
    """

    def __init__(self, block: CsrBlock, precision: Precision, stream: Stream | None = None) -> None:
        super().__init__(block, precision)
        with report_full_device("the index of row ends"):
            self.stream = build_stream(self.block) if stream is None else stream
        self._marked: tuple[Terms, Any] | None = None

    @property
    def best_width(self) -> int:
        """Width of `WIDTHS` with the least time per vector: rows of z of 256 bytes."""
        return 64 if self.z_dtype.itemsize == 4 else 32

    def scale_many(self, x: Any, weight: Any, z: Any) -> list[StepSums]:
        sums = zeros(4 * x.shape[1], np.int64)
        self._run_columns("scale_many", x, x, weight, np.float64(self._unit), z, sums)
        return _add_up_many(sums, x.shape[1])

    def step_many(
        self, z: Any, x: Any, z_next: Any, weight: Any, mass: np.ndarray, terms: Terms, *, is_relative: bool = False
    ) -> list[StepSums]:
        width, sums = x.shape[1], zeros(4 * x.shape[1], np.int64)
        self._bind_many(self.precision).run(width, z, z_next, width, 1.0, 0.0)
        places = (weight, np.float64(self._unit), z_next, _pack_columns(mass, terms), self._pack_terms(terms), sums)
        self._run_columns("update_many", x, z_next, x, *places, is_relative=is_relative)
        return _add_up_many(sums, width)

    def residual_many(self, z: Any, x: Any, mass: np.ndarray, terms: Terms) -> np.ndarray:
        import cupy

        (n_rows, width), is_rounded = x.shape, self._value == np.float32
        product, touched = zeros(n_rows * width, np.float64), np.uint64(0)
        self._bind_many("float64").run(width, z, product, width, 1.0, 0.0)
        if is_rounded:
            touched = zeros(n_rows * width, np.float64)
            self._bind_many("float64", with_values=False).run(width, z, touched, width, 1.0, 0.0)
        out = zeros(self._count_blocks(n_rows, width) * width, np.float64)
        rounding = (np.float64(FLOAT32_ROUNDING if is_rounded else 0.0), np.float64(FLOAT32_LEAST_ROUNDING))
        places = (_pack_columns(mass, terms), self._pack_terms(terms), out)
        self._run_columns("residual_many", x, self.block.indptr, product, touched, x, *rounding, *places)
        total: np.ndarray = cupy.asnumpy(out).reshape(-1, width).sum(axis=0)
        return total

    def take(self, x: Any, columns: np.ndarray, out: Any) -> None:
        out.T[...] = x[:, put(columns)]

    def select_highest(self, vectors: Any, k: int, numbers: Any | None) -> tuple[np.ndarray, np.ndarray]:
        import cupy

        with report_full_device("the selection of the highest ranks"):
            return select_each(vectors, k, numbers, cupy, get)

    def compile_many(self, widths: tuple[int, ...], residual_width: int, *, is_relative: bool = False) -> None:
        rank = np.dtype(np.float32 if self.precision == "float32" else np.float64)
        for width in widths:
            self._bind_many(self.precision).load(width)
        self._bind_many("float64").load(residual_width)
        if self._value == np.float32:
            self._bind_many("float64", with_values=False).load(residual_width)
        self._load_step("scale_many", rank, many=True)
        self._load_step("update_many", rank, is_relative=is_relative, many=True)
        for name in ("scale_many", "residual_many"):
            self.with_precision("float64")._load_step(name, rank, many=True)

    def with_precision(self, precision: Precision) -> CudaMany:
        return CudaMany(self.block, precision, self.stream)

    def zeros_many(self, n: int, width: int, dtype: Any) -> Any:
        return zeros(n * width, dtype).reshape(n, width)

    def _bind_many(self, precision: Precision, *, with_values: bool = True) -> ManyProduct:
        block = self.block if with_values else replace(self.block, data=None)
        types = product_types(precision, self._value if with_values else None, many=True)
        return ManyProduct(block, self.stream, types)

    def _pack_terms(self, terms: Terms) -> np.ndarray:
        n = len(terms.rows)
        if self._marked is None or self._marked[0] is not terms:
            marks = None
            if n:
                marks = zeros(self.block.n_rows, np.uint8)
                marks[terms.rows] = 1
            self._marked = terms, marks
        entries = terms.entries if n else (None, None, None)
        return pack(terms.dangling if len(terms.dangling) else None, len(terms.dangling), self._marked[1], *entries, n)

    def _run_columns(self, name: str, x: Any, *arguments: Any, is_relative: bool = False) -> None:
        n_rows, width = x.shape
        if n_rows:
            grid = (self._count_blocks(n_rows, width),)
            kernel = self._load_step(name, x.dtype, is_relative=is_relative, many=True)
            kernel(grid, (THREADS,), (np.int64(n_rows), np.int64(width), *arguments))

    def _count_blocks(self, n_rows: int, width: int) -> int:
        return max(1, min(COLUMN_GRIDS * shared_memory()[0], -(-n_rows * width // THREADS)))


class StreamedCsr(OnDevice):
    """Rows of a stored matrix for products on the current device, streamed as far as they do not fit.

    Parameters
    ----------
    start, stop : first row, and row after the last
    dtype : of the values and of x; `is_pattern` leaves the values out
    kernel : `auto` or `csr-split`

    Raises
    ------
    FormatError : another kernel, which needs all rows on the device at once
    CapacityError : the pieces do not fit on host or device
    """

    def __init__(
        self,
        stored: StoredMatrix,
        start: int,
        stop: int,
        dtype: Literal["float32", "float64"],
        streaming: Streaming,
        *,
        is_pattern: bool,
        threads: int | None = None,
        kernel: str = "auto",
    ) -> None:
        if kernel not in ("auto", "csr-split"):
            raise FormatError(
                f"kernel {kernel!r} needs all rows on the device, where they do not fit; pass kernel='auto' or "
                "'csr-split'"
            )
        self._dtype: Literal["float32", "float64"] = dtype
        indptr = stored.read_array("indptr", start, stop + 1, threads)
        self._cuts = cut_pieces(indptr - indptr[0], streaming.piece_entries)
        values = None if is_pattern else dtype

        def make(k: int) -> CsrBlock:
            return read_block(stored, start + self._cuts[k], start + self._cuts[k + 1], values, threads)

        with report_full_device("the part of the matrix that stays on the device"):
            self.feed = hold_pieces(make, len(self._cuts) - 1, streaming)

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return self.feed.nbytes

    def multiply(self, x: Any, y: Any, alpha: float = 1.0, beta: float = 0.0) -> None:
        """Compute y = alpha A x + beta y in place, as `CudaBlock.multiply` does."""
        for k, piece in self.feed.stream(goes_on=False):
            rows = y[self._cuts[k] : self._cuts[k + 1]]
            CudaBlock(piece, self._dtype).multiply(x, rows, alpha, beta)


def _stride(vector: Any) -> tuple[Any, np.int32]:
    """Return a vector and its stride as a kernel takes them: 1 for a value per row, 0 for one value for all rows."""
    return vector, np.int32(len(vector) > 1)


def _pack_columns(mass: np.ndarray, terms: Terms) -> np.ndarray:
    """Pack the parameters of each column as the kernels take them."""
    packed = np.zeros((4, MOST_COLUMNS))
    for own, values in zip(packed, (terms.alpha, terms.alpha * mass, 1.0 - terms.alpha, terms.base), strict=True):
        own[: len(values)] = values
    return packed.reshape(-1).view(np.dtype((np.void, packed.nbytes)))


def _add_up_many(sums: Any, width: int) -> list[StepSums]:
    change, greatest, dangling, wrong = get(sums).reshape(4, width).tolist()
    return [StepSums(*own) for own in zip(change, greatest, dangling, wrong, strict=True)]
