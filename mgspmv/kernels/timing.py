"""How long a product takes on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

from mgspmv.kernels.bound import BoundKernel
from mgspmv.kernels.device import load_kernel

ROUNDS = 7
"""How often a product is timed."""
SPIN_CYCLES = 300_000
"""Clock cycles that a device is kept busy before a timed run, some 0.2 ms: the host enqueues the run meanwhile."""

Run = Callable[[], object]


def time_product(kernel: BoundKernel, dtype: Any, backend: str) -> float:
    """Seconds of y = A x with one vector: the median of some runs, after one that makes format and kernel ready.

    Parameters
    ----------
    dtype : of x
    """
    x, y = (kernel.zeros(n, dtype) for n in (kernel.block.n_cols, kernel.block.n_rows))
    kernel.multiply(x, y)
    take_time = time_on_device if backend == "cuda" else time_on_host
    return median(take_time(lambda: kernel.multiply(x, y)) for _ in range(ROUNDS))


def time_on_host(run: Run, before: Run | None = None) -> float:
    """Seconds of a run, of which what comes before is no part."""
    if before is not None:
        before()
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def time_on_device(run: Run, before: Run | None = None) -> float:
    """The same for what is enqueued on CuPy's current stream, by events; the host's part is not in it."""
    import cupy

    began, ended = cupy.cuda.Event(), cupy.cuda.Event()
    load_kernel("spin.cu", "spin")((1,), (1,), (np.int64(SPIN_CYCLES),))
    if before is not None:
        before()
    began.record()
    run()
    ended.record()
    ended.synchronize()
    milliseconds: float = cupy.cuda.get_elapsed_time(began, ended)
    return milliseconds / 1e3
