"""CUDA kernels bound to one CSR block on a device: products, and the parts of a PageRank step."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from mgspmv.errors import FormatError, OptionError
from mgspmv.kernels.catalogue import KERNELS
from mgspmv.kernels.cuda_products import THREADS, Product
from mgspmv.kernels.dense import sum_vector
from mgspmv.kernels.device import (
    count_blocks,
    describe_device,
    get,
    load_kernel,
    put,
    put_block,
    read_block,
    report_full_device,
    zeros,
)
from mgspmv.kernels.formats import cut_pieces
from mgspmv.kernels.operands import multiply_columns
from mgspmv.kernels.specialize import product_types, step_types
from mgspmv.kernels.streaming import hold_pieces
from mgspmv.model import FIXED_POINT, FLOAT32_LEAST_ROUNDING, FLOAT32_ROUNDING, CsrBlock, Precision, RowCheck, StepSums
from mgspmv.plan import Streaming
from mgspmv.store.read import StoredMatrix


class OnDevice:
    """Kernels whose vectors are on the current device."""

    def zeros(self, n: int, dtype: Any) -> Any:
        """Return (n,) zeros on the device."""
        return zeros(n, dtype)

    def put(self, vector: np.ndarray) -> Any:
        """Return the vector on the device."""
        return put(vector)

    def get(self, vector: Any) -> np.ndarray:
        """Return the vector on the host."""
        return get(vector)

    def describe(self) -> str:
        """Describe the device."""
        return describe_device()


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
