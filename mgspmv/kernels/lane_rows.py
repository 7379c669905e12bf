"""Row sums over several vectors at once, one lane per vector, shared by products and steps."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from mgspmv.kernels.compiled import compile_kernel
from mgspmv.kernels.lanes import CACHE_LINE, load, prefetch, to_float64, to_integer

AHEAD = 32
"""Distance, in entries, from the one being added to the one whose row of z is prefetched."""


def zeros_in_lines(n: int, width: int, dtype: Any) -> np.ndarray:
    """Return (n, width) zeros aligned to a cache line, so that no row of 64 bytes spans two."""
    n_bytes = n * width * np.dtype(dtype).itemsize
    memory = np.zeros(n_bytes + CACHE_LINE, np.uint8)
    first = -memory.ctypes.data % CACHE_LINE
    zeros: np.ndarray = memory[first : first + n_bytes].view(dtype).reshape(n, width)
    return zeros


def _contribute_many(data, k, zj, zero):
    """Return the terms that entry k adds to the sums of its row, in the type of `zero`."""


@overload(_contribute_many, inline="always")
def _contribute_many_overload(data, k, zj, zero):
    is_integer = zero.dtype == types.int64
    if isinstance(data, types.NoneType):
        return (lambda data, k, zj, zero: zj) if is_integer else (lambda data, k, zj, zero: to_float64(zj))
    if is_integer:
        return lambda data, k, zj, zero: to_integer(data[k] * zj)
    return lambda data, k, zj, zero: to_float64(zj * data[k])


@compile_kernel
def sum_row_many(indices, data, z, start, stop, zero, width):
    """Sum the entries of a row in order, from `zero` on, with one lane per column of z (n_cols, width)."""
    total = zero
    last = np.uint64(len(indices) - 1)
    for k in range(np.uint64(start), np.uint64(stop)):
        prefetch(z, np.uint64(indices[min(k + np.uint64(AHEAD), last)]), width)
        total = total + _contribute_many(data, k, load(z, np.uint64(indices[k]), width), zero)
    return total
