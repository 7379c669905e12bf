"""Parts of rows that threads take in turn.

A compiled kernel takes (counter, bounds) first: the shared counter of parts, and the rows where parts begin. Every
thread calls the kernel once, and the kernel takes the next part by `mgspmv.kernels.compiled.take` until none is left.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")


def run_parts(threads: int, kernel: Callable[..., None], bounds: np.ndarray, *args: Any) -> None:
    """Call kernel(counter, bounds, *args) in `threads` threads, including the calling one, and wait for all."""
    counter = np.zeros(1, np.int64)
    others = [_pool(threads).submit(kernel, counter, bounds, *args) for _ in range(threads - 1)]
    kernel(counter, bounds, *args)
    for other in others:
        other.result()


def map_ranges(threads: int, function: Callable[[int, int], T], bounds: Sequence[int]) -> list[T]:
    """Return function(start, stop) of each range of rows between bounds, computed in `threads` threads."""
    if threads == 1 or len(bounds) < 3:
        return list(map(function, bounds[:-1], bounds[1:]))
    return list(_pool(threads).map(function, bounds[:-1], bounds[1:]))


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="mgspmv-kernel")


# Threads do not survive a fork, so a child process needs a new pool.
os.register_at_fork(after_in_child=_pool.cache_clear)
