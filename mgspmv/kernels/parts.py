"""Parts of rows that threads take in turn.

A compiled kernel takes (counter, bounds) first: the shared counter of parts, and the rows where parts begin. Every
thread calls the kernel once, and the kernel takes the next part until none is left.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic


def run_parts(threads: int, kernel: Callable[..., None], bounds: np.ndarray, *args: Any) -> None:
    """Call kernel(counter, bounds, *args) in `threads` threads, including the calling one, and wait for all."""
    counter = np.zeros(1, np.int64)
    others = [_pool(threads).submit(kernel, counter, bounds, *args) for _ in range(threads - 1)]
    kernel(counter, bounds, *args)
    for other in others:
        other.result()


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="mgspmv-kernel")


# Threads do not survive a fork, so a child process needs a new pool.
os.register_at_fork(after_in_child=_pool.cache_clear)


@intrinsic
def take(typing_context, counter):
    """Add 1 to counter[0] atomically and return the old value."""

    def generate(context, builder, signature, args):
        array = context.make_array(signature.args[0])(context, builder, args[0])
        one = context.get_constant(types.int64, 1)
        return builder.atomic_rmw("add", array.data, one, "monotonic")

    return types.int64(counter), generate
