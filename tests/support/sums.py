"""The orders in which threads of the kernels add, step by step in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np


def add_in_order(values: np.ndarray) -> Any:
    """One after the other: `cumsum` does so."""
    return np.cumsum(np.concatenate([np.zeros(1, values.dtype), values]), dtype=values.dtype)[-1]


def add_by_lanes(values: np.ndarray, lanes: int) -> Any:
    """Lane l adds values l, l + lanes, ...; then half of the lanes take the others' sums, until one is left."""
    sums = np.array([add_in_order(values[lane::lanes]) for lane in range(lanes)], values.dtype)
    while len(sums) > 1:
        sums = sums[: len(sums) // 2] + sums[len(sums) // 2 :]
    return sums[0]
