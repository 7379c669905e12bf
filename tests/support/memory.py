"""How much memory work takes, for tests that hold it to what was promised.

Arrays are counted by tracemalloc, which NumPy and Zarr tell of all that they allocate. It counts the whole process:
threads that other tests left, or Python's table of interned strings as it doubles (2 MB in a long run), add to a
measurement now and then, and chunks in flight may by chance not meet. So work is measured a few times: the middle is
what it takes, and the most is what it may take.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from typing import Any

RUNS = 3


def measure_peak(work: Callable[[], Any]) -> int:
    """Most bytes held at a time while working, beyond those held before: the middle of three runs."""
    return measure_peaks(work)[RUNS // 2]


def measure_peaks(work: Callable[[], Any]) -> list[int]:
    """The same of each of three runs, ascending."""
    return sorted(_measure_once(work) for _ in range(RUNS))


def _measure_once(work: Callable[[], Any]) -> int:
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        made = work()
        peak = tracemalloc.get_traced_memory()[1] - before
        del made
        return peak
    finally:
        tracemalloc.stop()
