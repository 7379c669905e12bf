"""Remaining iterations, predicted from the rate at which the change shrinks."""

from __future__ import annotations

import math

RATE_WINDOW = 5
"""Iterations over which the rate of convergence is measured, so that one outlier does not distort the prediction."""


def predict_iterations_left(changes: list[float], tol: float) -> int | None:
    """Predict how many more iterations bring the change below `tol`, at the rate of `changes`.

    With the rate r = (last / first)^(1 / steps) of `changes` it is the least k with last r^k < tol.

    Returns
    -------
    0 when the last change is below `tol`; None when the rate is unknown or the change does not shrink.
    """
    last = changes[-1]
    if last < tol:
        return 0
    first, steps = changes[0], len(changes) - 1
    if steps == 0 or tol <= 0 or not (math.isfinite(first) and last < first):
        return None
    rate = math.log(last / first) / steps
    return math.floor(math.log(tol / last) / rate) + 1
