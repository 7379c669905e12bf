"""Sums of rows over several vectors at once, a lane a vector: what products and steps have in common."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from mgspmv.kernels.compiled import compile_kernel
from mgspmv.kernels.lanes import CACHE_LINE, load, prefetch, to_float64, to_integer

AHEAD = 32
"""Entries between the one that is added and the one whose row of z is asked for."""


def zeros_in_lines(n: int, width: int, dtype: Any) -> np.ndarray:
    """(n, width) zeros that begin with a cache line, lest each row of 64 bytes lie in two."""
    n_bytes = n * width * np.dtype(dtype).itemsize
    memory = np.zeros(n_bytes + CACHE_LINE, np.uint8)
    first = -memory.ctypes.data % CACHE_LINE
    zeros: np.ndarray = memory[first : first + n_bytes].view(dtype).reshape(n, width)
    return zeros


def _contribute_many(data, k, zj, zero):
    """What entry k adds to the sums of its row, whose type is that of `zero`."""


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
    """Sums over the entries of a row, in their order: a lane for each column of z (n_cols, width), from `zero` on."""
    total = zero
    last = np.uint64(len(indices) - 1)
    for k in range(np.uint64(start), np.uint64(stop)):
        prefetch(z, np.uint64(indices[min(k + np.uint64(AHEAD), last)]), width)
        total = total + _contribute_many(data, k, load(z, np.uint64(indices[k]), width), zero)
    return total
