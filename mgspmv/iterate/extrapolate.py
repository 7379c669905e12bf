"""Steps that now and then go on in the direction of the last changes, as far as they seem to lead.

    x = sum of g_k x_k,   g with sum 1 that makes |sum of g_k r_k|_2 least,   r_k = x_k - x_(k-1),   k = t - 2 .. t

Every tenth iteration begins at such an x, which takes out the two slowest ways in which ranks still change. Kamvar,
Haveliwala, Manning, Golub: Extrapolation Methods for Accelerating PageRank Computations (2003); differs from their
quadratic extrapolation in that g is of least squares of the changes, as in reduced rank extrapolation (Sidi, Ford,
Smith 1986), and in that ranks are taken back to before where the next change is no smaller.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from mgspmv.iterate.pagerank import LocalSteps, Times
from mgspmv.kernels.rank_history import mix, sum_products
from mgspmv.model import FIXED_POINT, StepSums

PERIOD = 10
"""Iterations from one extrapolation to the next; twice as many after each that did not help."""
LEAST_ANGLE = 1e-10
"""Changes that are more alike say nothing of where they lead: squared sine of the angle between their differences."""


class ExtrapolatedSteps:
    """As `LocalSteps` of all rows, whose changes are those of plain steps from wherever they begin.

    Sums are made in the order of the stored vertices, so ranks have the same bits on any number of threads and blocks.
    """

    def __init__(self, steps: LocalSteps) -> None:
        self._steps, self._period, self._since = steps, PERIOD, 0
        self._history: list[np.ndarray] = []
        self._before: tuple[np.ndarray, int] | None = None
        self._change = 0
        self._is_worse = False

    def scale(self) -> StepSums:
        return self._steps.scale()

    def step(self, mass: float) -> tuple[StepSums, Times]:
        began = time.perf_counter()
        if self._is_worse:
            assert self._before is not None
            mass, self._is_worse, self._period = self._begin_at(self._before[0]), False, 2 * self._period
        elif self._since >= self._period:
            mass = self._extrapolate(mass)
        prepared_s = time.perf_counter() - began
        sums, times = self._steps.step(mass)
        began = time.perf_counter()
        self._is_worse = self._before is not None and self._since == 0 and sums.change_l1 >= self._before[1]
        self._since, self._change = self._since + 1, sums.change_l1
        if self._since >= self._period - 3:
            self._history = [*self._history[-3:], self._steps.ranks()]
        kept_s = time.perf_counter() - began
        return sums, replace(times, product_s=(times.product_s[0] + prepared_s + kept_s,))

    def ranks(self) -> np.ndarray:
        return self._steps.ranks()

    def _extrapolate(self, mass: float) -> float:
        """Begin at another x, unless the changes say nothing; the sum of what is there over dangling vertices."""
        weights = find_weights(*self._history)
        history, self._since = self._history, 0
        self._history = []
        if weights is None:
            self._before = None
            return mass
        self._before = history[-1], self._change
        return self._begin_at(mix(*history[1:], *weights))

    def _begin_at(self, x: np.ndarray) -> float:
        self._since = 0
        self._steps.overwrite(x)
        return self._steps.scale().dangling / FIXED_POINT


def find_weights(x3: np.ndarray, x2: np.ndarray, x1: np.ndarray, x: np.ndarray) -> tuple[float, float, float] | None:
    """Weights of x2, x1 and x with sum 1 for which the mean of their changes is least; None where none is.

    Parameters
    ----------
    x3, x2, x1, x : (n,) ranks after iterations that follow each other
    """
    aa, ab, bb, ar, br = sum_products(x3, x2, x1, x)
    determinant = aa * bb - ab * ab
    if not determinant > LEAST_ANGLE * aa * bb:
        return None
    first, second = (ab * br - bb * ar) / determinant, (ab * ar - aa * br) / determinant
    return first, second, 1.0 - first - second
