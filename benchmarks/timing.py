"""How long a run takes on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from mgspmv.kernels.device import load_kernel

SPIN_CYCLES = 300_000
"""Clock cycles that a device is kept busy before a timed run, some 0.2 ms: the host enqueues the run meanwhile."""

Run = Callable[[], object]


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
