"""What this machine does per second, measured with the kernels themselves."""

from __future__ import annotations

import functools
import time

import numpy as np

from mgspmv.kernels.cpu import CpuBlock
from mgspmv.model import CsrBlock
from mgspmv.partition import Rates

_ROWS, _PER_ROW = 1 << 18, 16


@functools.cache
def measure_rates(threads: int | None = None) -> Rates:
    """Time a product that reads x in order and one that reads it at random: a tenth of a second, once a process."""
    n = _ROWS * _PER_ROW
    indptr = np.arange(0, n + 1, _PER_ROW, dtype=np.int64)
    rng = np.random.default_rng(0)
    in_order = CsrBlock(0, n, indptr, np.arange(n, dtype=np.int32), None)
    at_random = CsrBlock(0, n, indptr, rng.integers(0, n, n, dtype=np.int32), None)
    streamed_bytes = in_order.nbytes + 8 * n + 8 * _ROWS
    return Rates(
        copy_bytes_per_s=streamed_bytes / _time_product(in_order, threads),
        gathers_per_s=n / _time_product(at_random, threads),
    )


def _time_product(block: CsrBlock, threads: int | None) -> float:
    kernel = CpuBlock(block, "float64", threads)
    x, y = np.ones(block.n_cols), np.empty(block.n_rows)
    kernel.multiply(x, y)
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        kernel.multiply(x, y)
        seconds.append(time.perf_counter() - began)
    return min(seconds)
