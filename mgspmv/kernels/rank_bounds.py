"""Passes over the rows for bounds on how far ranks can still change; see `mgspmv.solvers.topk_certificate`.

One thread calls each for a range of rows. Sums are integers, rounded so that bounds hold: sizes up, widths down.
"""

from __future__ import annotations

import numpy as np

from mgspmv.kernels.compiled import compile_later

LEAST, BINS = -64, 4
"""Exponent of the least ratio with a separate bin, and bins per power of two."""
N_BINS = BINS * (4 - LEAST)
"""Number of bins of ratios; one more bin holds greater ratios, and rows that have no width."""
FIRST_BIN = (1023 + LEAST) * BINS
"""Upper 14 bits of a float64 in the first bin."""
UNIT = 2.0**-58
"""Unit of the integer sums."""


def bin_bounds() -> np.ndarray:
    """Return the (bins,) upper bounds of the bins."""
    number = np.arange(FIRST_BIN + 1, FIRST_BIN + 1 + N_BINS, dtype=np.int64)
    return (number << 50).view(np.float64)


@compile_later()
def add_mean(x, x1, x2, v, w, lag, share, factor):
    """Set v = share v + factor ((1 - lag) x1 + lag x2), and w likewise from x and x1."""
    for i in range(len(x)):
        new, old, oldest = np.float64(x[i]), np.float64(x1[i]), np.float64(x2[i])
        v[i] = share * v[i] + factor * ((1.0 - lag) * old + lag * oldest)
        w[i] = share * w[i] + factor * ((1.0 - lag) * new + lag * old)


@compile_later()
def count_bins(x, x1, x2, v, w, is_left_out, leans, relative, sums):
    """Add the parts of q that are positive and negative, and h = v - w, to the bins of their ratio.

    q = r - lean (r' - r) of the changes r = x - x1 and r' = x1 - x2, widened on both sides by the rounding error,
    `relative` times the rank.

    Parameters
    ----------
    is_left_out : (rows,) or (1,) bool
    leans, relative : (n_leans,)
    sums : (n_leans, 2, N_BINS + 1, 2) int64, added to: sums of |q|, and of h times the upper bound of the bin

    Returns
    -------
    The sum of -h over rows in which it is not positive, in `UNIT`.
    """
    negative = 0
    for i in range(len(x)):
        if is_left_out[i if len(is_left_out) > 1 else 0]:
            continue
        new, old = np.float64(x[i]), np.float64(x1[i])
        r, before = new - old, old - np.float64(x2[i])
        h = v[i] - w[i]
        if h <= 0.0:
            negative += np.int64(np.ceil(-h / UNIT))
        for k in range(len(leans)):
            q = r - leans[k] * (before - r)
            rounding = relative[k] * max(new, old)
            for side in range(2):
                size = max(0.0, q if side == 0 else -q) + rounding
                number, width = N_BINS, 0.0
                if h > 0.0:
                    number = max(0, (np.float64(size / h).view(np.int64) >> 50) - FIRST_BIN)
                    if number < N_BINS:
                        width = h * np.int64((number + FIRST_BIN + 1) << 50).view(np.float64)
                    else:
                        number = N_BINS
                sums[k, side, number, 0] += np.int64(np.ceil(size / UNIT))
                sums[k, side, number, 1] += np.int64(np.floor(width / UNIT))
    return negative


@compile_later()
def find_highest(x, x1, w, least, lean, above, own):
    """Find the highest x + lean r + above w, plus rounding, over the rows with ranks below `least`; r = x - x1."""
    highest = -np.inf
    for i in range(len(x)):
        new = np.float64(x[i])
        if new < least:
            r = new - np.float64(x1[i])
            rounding = own * (new + abs(r)) + 2.0**-50 * above * abs(w[i])
            highest = max(highest, new + lean * r + above * w[i] + rounding)
    return highest
