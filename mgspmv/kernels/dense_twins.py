"""The CUDA kernels of dense vectors and matrices on the CPU, compiled by Numba: the executable specification of each.

    sum_pairwise   s = sum of x
    dense_*        y = A x + b, A of shape (n_rows, n_cols) in rows

Sums are made in the dtype of x, without contraction, in the order of the CUDA kernel, so the bits of both are the same.
"""

from __future__ import annotations

import numpy as np

from mgspmv.kernels.compiled import compile_kernel
from mgspmv.kernels.twins import WARP, _add_tree

THREADS = 256
"""Of a thread block that adds one sum."""
SUM_CHUNK = 4096
"""Elements that a thread block of a sum adds."""
TILE_ROWS, TILE_COLS = 64, 1024
"""Of a tile of dense_tiles: T and Z."""


@compile_kernel
def sum_pairwise(x):
    """The sum of a vector, float32 or float64; 0 of none.

    Threads: a thread block of 256 a chunk of 4096 elements: thread t adds elements t, t + 256, ...; then the threads'
    sums are added as a tree in shared memory: s[t] += s[t + d] for t < d, d = 128, ... 1. The sums of the chunks are
    added in the same way, until one is left.
    Deterministic: yes. Source: Harris, Optimizing Parallel Reduction in CUDA, NVIDIA, 2007.
    """
    if len(x) == 0:
        return x.dtype.type(0)
    while len(x) > 1:
        x = _sum_chunks(x)
    return x[0]


@compile_kernel
def dense_rows(A, x, b, y):
    """y = A x + b; b may be None.

    Threads: one a row, which adds in the order of the columns.
    Deterministic: yes. Source: Nickolls, Buck, Garland, Skadron, ACM Queue 6(2), 2008, for a thread a row.
    """
    for i in range(A.shape[0]):
        total = x.dtype.type(0)
        for j in range(A.shape[1]):
            total += A[i, j] * x[j]
        y[i] = total if b is None else total + b[i]


@compile_kernel
def dense_block(A, x, b, y):
    """y = A x + b; b may be None.

    Threads: a thread block of 256 a row: thread t adds columns t, t + 256, ...; then a tree as in `sum_pairwise`.
    Deterministic: yes. Source: Harris 2007, as above.
    """
    sums = np.empty(THREADS, x.dtype)
    for i in range(A.shape[0]):
        total = _dot_by_lanes(A[i], x, sums)
        y[i] = total if b is None else total + b[i]


@compile_kernel
def dense_tiles(A, x, b, y):
    """y = A x + b; b may be None.

    Threads: a thread block of 256 a tile of 64 rows and 1024 columns, a warp a row of it: lane l adds columns l,
    l + 32, ... of the tile; then a tree of 16, ... 1 lanes. Afterwards a thread a row adds its sums, tile by tile.
    Deterministic: yes. Source: tiles as for GEMV in Abdelfattah, Keyes, Ltaief, KBLAS, ACM TOMS 42(3), 2016.
    """
    n_rows, n_cols = A.shape
    sums, totals = np.empty(WARP, x.dtype), np.empty(TILE_ROWS, x.dtype)
    for first in range(0, n_rows, TILE_ROWS):
        rows = min(TILE_ROWS, n_rows - first)
        totals[:] = 0
        for begin in range(0, n_cols, TILE_COLS):
            end = min(begin + TILE_COLS, n_cols)
            for r in range(rows):
                totals[r] += _dot_by_lanes(A[first + r, begin:end], x[begin:end], sums)
        for r in range(rows):
            y[first + r] = totals[r] if b is None else totals[r] + b[first + r]


@compile_kernel
def _sum_chunks(x):
    out = np.empty((len(x) + SUM_CHUNK - 1) // SUM_CHUNK, x.dtype)
    sums = np.empty(THREADS, x.dtype)
    for c in range(len(out)):
        sums.fill(0)
        first = c * SUM_CHUNK
        for k in range(first, min(first + SUM_CHUNK, len(x))):
            sums[(k - first) % THREADS] += x[k]
        out[c] = _add_tree(sums)
    return out


@compile_kernel
def _dot_by_lanes(row, x, sums):
    sums.fill(0)
    for j in range(len(x)):
        sums[j % len(sums)] += row[j] * x[j]
    return _add_tree(sums)
