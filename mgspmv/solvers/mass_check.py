"""Expected sum of the ranks of a run, by which failures of memory or a processor are detected.

    sum of x' = alpha (sum over j of s_j x_j + m D) + 1 - alpha,   s_j = (sum of column j of A) / w_j

where j runs over non-dangling vertices, m is the rank of dangling ones, and D the sum of d. All s_j are 1, unless the
user gave out-weights, and so the sum before a step and m, which every step takes, determine the sum after it. Between
two checks of the ranks only the numbers of this formula are computed; a check is a pass over the vectors of the rows.

An error in one step shrinks by alpha in each later step, in the ranks as in their sum: an error that is too small to be
found by a check is too small to be seen in the ranks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mgspmv.errors import CorruptionError
from mgspmv.kernels.formats import array_module
from mgspmv.model import CHANGE_POINT, FIXED_POINT, RowCheck

ADVICE = (
    "memory, a processor or a link failed; check the machines' logs for hardware errors, check the store with "
    "`mgspmv verify`, and run again, with resume=True if there is a checkpoint"
)
LEAST_FLOAT = {"float32": 2.0**-150, "float64": 2.0**-1075, "exact": 2.0**-1075}
"""Largest rounding error of a number near 0, by the precision of z."""
_PIECE = 1 << 16
"""Out-weights per chunk of a survey."""


@dataclass(frozen=True)
class Rounding:
    """Rounding error of a step: `relative` of each new rank, and in addition `mass` of all together in L1.

    Summed over workers by `+`.
    """

    longest: int
    """Number of entries of the longest row."""
    nnz: int
    n_dangling: int
    entry: float = 0.0
    """Absolute error of each product that is rounded to fixed point."""

    def __add__(self, other: Rounding) -> Rounding:
        return Rounding(
            max(self.longest, other.longest),
            self.nnz + other.nnz,
            self.n_dangling + other.n_dangling,
            max(self.entry, other.entry),
        )

    def find_relative(self, precision: str) -> float:
        """Bound the relative error: `exact` rounds products as float64 first; `float32` rounds z, values and ranks."""
        terms = 16 + (self.longest if precision != "exact" else 0)
        return terms * 2.0**-53 + (4 * 2.0**-24 if precision == "float32" else 0.0)

    def find_mass(self, precision: str) -> float:
        """Bound the absolute error of all ranks together, in L1."""
        entry = {"exact": 1 / FIXED_POINT, "float64": 0.0, "float32": max(self.entry, 2.0**-148)}[precision]
        return self.nnz * entry + self.n_dangling / FIXED_POINT


@dataclass(frozen=True)
class MassCheck:
    """Bounds of the sum of the ranks, up to rounding."""

    alpha: float
    given: float
    """D: 1, or 0 where the rank of dangling vertices is dropped."""
    least: float
    """Smallest s_j; see above."""
    most: float
    """Largest s_j."""
    low: float
    """Lower bound of the sum."""
    high: float
    """Upper bound of the sum."""

    def step(self, mass: float) -> MassCheck:
        """Return the balance after a step from ranks of which dangling vertices have `mass`."""
        rest = self.alpha * mass * self.given + 1.0 - self.alpha
        low = self.alpha * self.least * max(0.0, self.low - mass) + rest
        return replace(self, low=low, high=self.alpha * self.most * (self.high - mass) + rest)

    def check(self, total: float, slack: float, iteration: int) -> None:
        """Check the sum of the ranks.

        Parameters
        ----------
        total : of all ranks
        slack : bound on the rounding error of the sum in a step
        """
        shrink = self.alpha * max(self.most, 1.0)
        slack = slack / (1.0 - shrink) if shrink < 1.0 else math.inf  # includes errors of earlier steps
        if not self.low - slack <= total <= self.high + slack:
            expected = f"{self.low!r}" if self.low == self.high else f"{self.low!r} to {self.high!r}"
            raise CorruptionError(
                f"after iteration {iteration} the ranks sum to {total!r}, expected {expected} up to {slack:.2g} of "
                f"rounding: {ADVICE}"
            )


def find_tolerance(rounding: Rounding, weight: Any, precision: str, *, has_values: bool) -> tuple[float, float]:
    """Bound the rounding error of the sum of the ranks of some rows, in a step and in summation: relative to the sum,
    and in addition.

    `rounding` bounds that of a step, in L1: in `exact` z and products are off by half a unit of 2^-62 each, and
    intermediates by a few 2^-53; sums of k floats by k 2^-53; in `float32` z, values, products and ranks by 2^-24. In
    addition, z and values near the smallest float have a larger relative error, and each rank is rounded by half a
    unit of 2^-61 in summation.

    Parameters
    ----------
    weight : out-weights of the rows, an array of NumPy or CuPy
    has_values : whether entries are more than a pattern
    """
    relative, least = rounding.find_relative(precision), LEAST_FLOAT[precision]
    lightest, heavy = _survey(weight)
    if has_values and lightest < math.inf:
        relative += rounding.nnz * least / lightest
    absolute = rounding.find_mass(precision) + least * heavy + len(weight) * 0.5 / CHANGE_POINT
    return relative, absolute


def _survey(weight: Any) -> tuple[float, float]:
    """Return the smallest nonzero weight and the sum; on the host without a mask of all of them."""
    lightest = math.inf
    if not isinstance(weight, np.ndarray) and len(weight):
        xp = array_module(weight)
        is_heavy = xp.greater(weight, 0)  # for the operator CuPy would import SciPy
        return float(xp.where(is_heavy, weight, math.inf).min()), float(weight.sum())
    for first in range(0, len(weight), _PIECE):
        piece = weight[first : first + _PIECE]
        lightest = min(lightest, float(np.where(piece > 0, piece, math.inf).min()))
    with np.errstate(over="ignore"):  # a run with such weights ends as non_finite, with advice
        return lightest, float(weight.sum())


def check_rows(found: RowCheck, mass: float, balance: MassCheck | None, slack: float, iteration: int) -> None:
    """Check all ranks for corruption.

    Parameters
    ----------
    mass : sum of the ranks of dangling vertices when they were computed
    balance : of all ranks; None where their sum is unknown
    slack : as in `MassCheck.check`

    Raises
    ------
    CorruptionError : ranks, their mass or their sum are wrong
    """
    if found.n_off:
        raise CorruptionError(f"after iteration {iteration} {describe_off(found.n_off)}: {ADVICE}")
    if found.mass != mass:
        raise CorruptionError(
            f"after iteration {iteration} the ranks of dangling vertices sum to {found.mass!r}, but summed to "
            f"{mass!r} when they were computed: {ADVICE}"
        )
    if balance is not None:
        balance.check(found.sum, slack, iteration)


def describe_off(n_off: int) -> str:
    """Describe a number of corrupted rows."""
    return f"the ranks of {n_off} vertices changed after they were computed"
