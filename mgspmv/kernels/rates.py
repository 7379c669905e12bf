"""What this machine does per second, measured with the kernels themselves."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from mgspmv.kernels.cpu import CpuBlock
from mgspmv.kernels.device import device_bandwidth, read_block, report_full_device
from mgspmv.kernels.laid_rows import LaidRows
from mgspmv.kernels.pieces import PinnedPiece
from mgspmv.kernels.rank_steps import time_steps
from mgspmv.kernels.row_blocks import cut_pieces
from mgspmv.model import CsrBlock, Precision
from mgspmv.partition import Rates
from mgspmv.store import StoredMatrix

_ROWS, _PER_ROW = 1 << 18, 16


SAMPLE_ENTRIES = 1 << 26
"""Entries of the rows that a device is measured with."""
UPLOAD_BYTES = 1 << 28
TIMES = 3
"""How often each is timed, of which the best counts."""


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


def measure_device(
    stored: StoredMatrix, start: int, stop: int, dtype: str | None, precision: Precision, threads: int | None = None
) -> Rates:
    """Time what the current device does with rows from the middle of `start` .. `stop`: reading them from the store,
    and steps of PageRank on them; and copies to it.

    Parameters
    ----------
    dtype : of the values; None for none
    """
    import cupy

    n = stored.info.shape[0]
    indptr = stored.read_array("indptr", threads=threads)
    own = indptr[start : stop + 1] - indptr[start]
    cuts = cut_pieces(own, SAMPLE_ENTRIES)
    middle = (len(cuts) - 1) // 2
    first, last = start + cuts[middle], start + cuts[middle + 1]

    def read(a: int, b: int) -> CsrBlock:
        return read_block(stored, a, b, dtype, threads)

    nnz, value_bytes = int(indptr[last] - indptr[first]), 0 if dtype is None else np.dtype(dtype).itemsize
    n_bytes = nnz * (np.dtype(stored.info.index_dtype).itemsize + value_bytes)
    store_s = _time_best(lambda: read(first, last))
    with report_full_device("the rows that the device is measured with"):
        rows = LaidRows(indptr, read, piece_entries=SAMPLE_ENTRIES)
        is_read = cupy.asarray(stored.read_array("out_degree", threads=threads) > 0)
        places = rows.place(is_read, [0, first, last, n])
        layout = rows.build_share(places, places.columns, places.n_sent, 1)
        step_s = time_steps(layout, places.sent[2] - places.sent[1], precision)
    return Rates(device_bandwidth(), nnz / step_s, _measure_upload(), n_bytes / store_s)


@dataclass(frozen=True, eq=False)
class _Bytes:
    array: Any


def _measure_upload() -> float:
    """Bytes per second from pinned memory to the current device."""
    import cupy

    piece = PinnedPiece(_Bytes(cupy.zeros(UPLOAD_BYTES, np.uint8)))
    target, stream = cupy.cuda.alloc(UPLOAD_BYTES), cupy.cuda.get_current_stream()
    return UPLOAD_BYTES / _time_best(lambda: piece.copy(target, stream))


def _time_best(run: Callable[[], object]) -> float:
    """Seconds of the fastest of a few runs on the current stream, until the device is at rest."""
    import cupy

    stream, seconds = cupy.cuda.get_current_stream(), []
    for _ in range(TIMES):
        stream.synchronize()
        began = time.perf_counter()
        run()
        stream.synchronize()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


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
