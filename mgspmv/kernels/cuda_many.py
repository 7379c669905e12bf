"""PageRank kernels for many vectors at once on a CUDA device; `cpu_many` is their specification."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from mgspmv.kernels.csr_cuts import Stream, build_stream
from mgspmv.kernels.cuda import CudaBlock
from mgspmv.kernels.cuda_products import ManyProduct
from mgspmv.kernels.device import get, pack, put, report_full_device, shared_memory, zeros
from mgspmv.kernels.highest import select_each
from mgspmv.kernels.many import Terms
from mgspmv.kernels.specialize import product_types
from mgspmv.model import FLOAT32_LEAST_ROUNDING, FLOAT32_ROUNDING, CsrBlock, Precision, StepSums

THREADS, GRIDS = 256, 8
"""Threads per thread block of a kernel over rows, and thread blocks per multiprocessor."""
MOST_COLUMNS = 64


class CudaMany(CudaBlock):
    """Kernels of `CudaBlock` and kernels for many vectors, bound to one block on the current device.

    `CpuMany` documents each method. In `exact`, results are bit-identical to the CPU's; in other precisions row sums
    are made in float64 too, in another order.
    """

    def __init__(self, block: CsrBlock, precision: Precision, stream: Stream | None = None) -> None:
        super().__init__(block, precision)
        with report_full_device("the index of row ends"):
            self._stream = build_stream(self.block) if stream is None else stream
        self._marked: tuple[Terms, Any] | None = None

    @property
    def best_width(self) -> int:
        """Width of `WIDTHS` with the least time per vector: rows of z of 256 bytes."""
        return 64 if self.z_dtype.itemsize == 4 else 32

    def scale_many(self, x: Any, weight: Any, z: Any) -> list[StepSums]:
        sums = zeros(4 * x.shape[1], np.int64)
        self._run_columns("scale_many", x, x, weight, np.float64(self._unit), z, sums)
        return _add_up(sums, x.shape[1])

    def step_many(
        self, z: Any, x: Any, z_next: Any, weight: Any, mass: np.ndarray, terms: Terms, *, is_relative: bool = False
    ) -> list[StepSums]:
        width, sums = x.shape[1], zeros(4 * x.shape[1], np.int64)
        self._bind_many(self.precision).run(width, z, z_next, width, 1.0, 0.0)
        places = (weight, np.float64(self._unit), z_next, _pack_columns(mass, terms), self._pack_terms(terms), sums)
        self._run_columns("update_many", x, z_next, x, *places, is_relative=is_relative)
        return _add_up(sums, width)

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
        out[...] = x.T[put(columns)]

    def fill(self, x: Any, columns: np.ndarray, vectors: Any) -> None:
        import cupy

        x[:, put(columns)] = cupy.asarray(vectors).T

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
        return CudaMany(self.block, precision, self._stream)

    def zeros_many(self, n: int, width: int, dtype: Any) -> Any:
        return zeros(n * width, dtype).reshape(n, width)

    def _bind_many(self, precision: Precision, *, with_values: bool = True) -> ManyProduct:
        block = self.block if with_values else replace(self.block, data=None)
        types = product_types(precision, self._value if with_values else None, many=True)
        return ManyProduct(block, self._stream, types)

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
        return max(1, min(GRIDS * shared_memory()[0], -(-n_rows * width // THREADS)))


def _pack_columns(mass: np.ndarray, terms: Terms) -> np.ndarray:
    """Pack the parameters of each column as the kernels take them."""
    packed = np.zeros((4, MOST_COLUMNS))
    for own, values in zip(packed, (terms.alpha, terms.alpha * mass, 1.0 - terms.alpha, terms.base), strict=True):
        own[: len(values)] = values
    return packed.reshape(-1).view(np.dtype((np.void, packed.nbytes)))


def _add_up(sums: Any, width: int) -> list[StepSums]:
    change, greatest, dangling, wrong = get(sums).reshape(4, width).tolist()
    return [StepSums(*own) for own in zip(change, greatest, dangling, wrong, strict=True)]
