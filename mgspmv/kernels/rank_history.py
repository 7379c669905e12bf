"""Passes over the last ranks of a run; `mgspmv.iterate.extrapolate` says what for. One thread, in the order of rows."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(nogil=True, cache=True)
def sum_products(x3, x2, x1, x):
    """Products (a, a), (a, b), (b, b), (a, r) and (b, r) of a = r2 - r and b = r1 - r, for the changes r2, r1 and r."""
    aa, ab, bb, ar, br = 0.0, 0.0, 0.0, 0.0, 0.0
    for i in range(len(x)):
        new, old, older, oldest = np.float64(x[i]), np.float64(x1[i]), np.float64(x2[i]), np.float64(x3[i])
        r = new - old
        a, b = (older - oldest) - r, (old - older) - r
        aa += a * a
        ab += a * b
        bb += b * b
        ar += a * r
        br += b * r
    return aa, ab, bb, ar, br


@njit(nogil=True, cache=True)
def mix(x2, x1, x, g2, g1, g):
    """(n,) like x: g2 x2 + g1 x1 + g x, but 0 where that is less, and then as much less elsewhere; sum at most 1."""
    mixed = np.empty(len(x))
    wanted, total = 0.0, 0.0
    for i in range(len(x)):
        mean = g2 * np.float64(x2[i]) + g1 * np.float64(x1[i]) + g * np.float64(x[i])
        mixed[i] = max(0.0, mean)
        wanted += mean
        total += mixed[i]
    share = min(1.0, wanted if wanted > 0.0 else total) / total
    out = np.empty_like(x)
    for i in range(len(x)):
        out[i] = mixed[i] * share
    return out
