"""Rates of this machine, measured with the kernels themselves."""

from __future__ import annotations

import functools
import time
import timeit

import numpy as np

from mgspmv.kernels.column_sorted_blocks import ColumnSortedBlocks
from mgspmv.kernels.cpu import CpuBlock
from mgspmv.kernels.device import device_bandwidth, free_device_memory, read_block, read_out_degree, report_full_device
from mgspmv.kernels.formats import cut_pieces
from mgspmv.kernels.layout import LayoutBuilder, RowOrder, hold_whole
from mgspmv.kernels.rank_steps import CAPTURED_STEPS, PLAIN_RULES, RankSteps, RankVectors
from mgspmv.kernels.sell_slices import SellSlices
from mgspmv.kernels.streaming import ChunkStream, FromStore
from mgspmv.model import CsrBlock, Precision
from mgspmv.plan import Rates, Streaming
from mgspmv.store.read import StoredMatrix

_ROWS, _PER_ROW = 1 << 18, 16
SAMPLE_ENTRIES, SAMPLE_BYTES = 1 << 28, 24
"""Maximum entries of the sample, as smaller samples have sparser column-sorted blocks, and device bytes per entry."""
UPLOAD_BYTES = 1 << 28
PASSED = 6
"""Number of pieces for timing reads from the store."""
TYPICAL_DEGREE = 16.0
"""Out-weight of all vertices in timed steps."""
TIMES = 3
"""Number of timed runs of each measurement; the fastest counts."""


@functools.cache
def measure_rates(threads: int | None = None) -> Rates:
    """Time products that read x in order and at random; takes a tenth of a second, once per process."""
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
    stored: StoredMatrix,
    start: int,
    stop: int,
    dtype: str | None,
    precision: Precision,
    *,
    threads: int | None = None,
    streaming: Streaming | None = None,
) -> Rates:
    """Time the current device with rows from the middle of `start` .. `stop`: steps of PageRank, copies to the device
    and, if rows are streamed from the store, reading them.

    Parameters
    ----------
    dtype : of the values; None for a pattern
    """
    n = stored.info.shape[0]
    indptr = stored.read_array("indptr", threads=threads)
    own = indptr[start : stop + 1] - indptr[start]
    n_entries = max(1, min(SAMPLE_ENTRIES, free_device_memory() // SAMPLE_BYTES))
    first, last = (start + cut for cut in choose_sample(own, n_entries))

    def read(a: int, b: int) -> CsrBlock:
        return read_block(stored, a, b, dtype, threads)

    upload, store = _measure_upload(), None
    with report_full_device("the sample of rows for timing the device"):
        rows = LayoutBuilder(indptr, read, piece_entries=n_entries)
        is_read = read_out_degree(stored, 0, n, threads) > 0
        places = rows.place(is_read, [0, first, last, n])
        layout = rows.build_share(places, places.columns, places.n_sent, 1)
        gathers = max(1, layout.nnz) / _time_steps(layout, places.sent[2] - places.sent[1], precision)
        del layout
        if streaming is not None and streaming.held == "store":
            cuts = cut_pieces(own, streaming.piece_entries)
            middle = max(0, (len(cuts) - 1 - PASSED) // 2)
            bounds = [start + cut for cut in cuts[middle : middle + PASSED + 1]]
            n_bytes = max(1, int(indptr[bounds[-1]] - indptr[bounds[0]])) * (
                4 + (0 if dtype is None else np.dtype(dtype).itemsize)
            )
            store = n_bytes / _time_passing(rows, rows.place(is_read, [0, *bounds, n]))
    return Rates(device_bandwidth(), gathers, upload, store)


def choose_sample(indptr: np.ndarray, n_entries: int) -> tuple[int, int]:
    """Return the first row of the piece with the middle entry, and its end. Pieces are of equal size, at most
    `n_entries`: of those cut to full size, the last could be nearly empty."""
    nnz = int(indptr[-1])
    n_pieces = max(1, -(-nnz // n_entries))
    cuts = cut_pieces(indptr, -(-nnz // n_pieces))
    middle = int(np.searchsorted(indptr[cuts[1:-1]], nnz // 2, side="right"))
    return cuts[middle], cuts[middle + 1]


def _time_passing(rows: LayoutBuilder, places: RowOrder) -> float:
    """Return the seconds to read and make all pieces but the first and the last, after a first pass."""
    n = places.n_pieces - 2
    fetcher = FromStore(lambda k: rows.build_share(places, places.columns, places.n_sent, k + 1))
    feed = ChunkStream[ColumnSortedBlocks | SellSlices]({}, fetcher, n)
    for _ in range(2):
        began = time.perf_counter()
        for _ in feed.stream(goes_on=False):
            pass
    return time.perf_counter() - began


def _measure_upload() -> float:
    """Measure the bytes per second from pinned memory to the current device."""
    import cupy
    import cupyx

    pinned, target = cupyx.empty_pinned(UPLOAD_BYTES, np.uint8), cupy.empty(UPLOAD_BYTES, np.uint8)
    stream = cupy.cuda.get_current_stream()

    def upload() -> None:
        target.set(pinned, stream)
        stream.synchronize()

    stream.synchronize()
    return UPLOAD_BYTES / min(timeit.repeat(upload, number=1, repeat=TIMES))


def _time_steps(layout: ColumnSortedBlocks | SellSlices, n_sent: int, precision: Precision) -> float:
    """Return the seconds of a step on the current device, with equal ranks and equal z.

    Parameters
    ----------
    n_sent : number of rows that are columns; these come first
    """
    (n_rows, n_columns), steps = layout.shape, RankSteps(hold_whole(layout, n_sent), precision)
    same = np.full(1, 1.0 / max(1, n_columns), np.float32 if precision == "float32" else np.float64)
    steps.compile()
    vectors = RankVectors(same, np.full(n_rows, TYPICAL_DEGREE), np.zeros(1), same.astype(np.float64))
    steps.start(vectors, PLAIN_RULES)
    steps.fill(float(same[0]) / TYPICAL_DEGREE)
    steps.advance(CAPTURED_STEPS)
    seconds = []
    for _ in range(TIMES):
        steps.advance(CAPTURED_STEPS)
        seconds.append(sum(product for product, _ in steps.seconds) / CAPTURED_STEPS)
    steps.release()
    return min(seconds)


def _time_product(block: CsrBlock, threads: int | None) -> float:
    kernel = CpuBlock(block, "float64", threads)
    x, y = np.ones(block.n_cols), np.empty(block.n_rows)
    kernel.multiply(x, y)
    return min(timeit.repeat(lambda: kernel.multiply(x, y), number=1, repeat=TIMES))
