"""Scores derived from ranks: scaled scores, and their distribution."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from mgspmv.errors import OptionError
from mgspmv.model import check_choice

Scaler = Literal["none", "minmax", "max", "mean", "log", "stdscore", "l1norm", "l2norm"]
PERCENTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99, 99.9)
BINS = 20
"""Default number of bins of a histogram."""


# --- scaled scores ---------------------------------------------------------------------------------------------------


def scale_scores(values: np.ndarray, scaler: Scaler) -> np.ndarray:
    """Scale the values p.

        none      p                              max       p / max |p|
        minmax    (p - min p) / (max p - min p)  log       ln p, which is -infinity where p is 0
        mean      (p - avg p) / (max p - min p)  l1norm    p / sum of |p|
        stdscore  (p - avg p) / std p            l2norm    p / root of the sum of p^2

    avg is the mean and std the standard deviation of all values (over n, not n - 1). Where the divisor is 0 because all
    values are equal, or all 0, the scores are 0. A value that is not finite makes all scores NaN, except for `log`.

    Source: the scalers of Neo4j Graph Data Science, as its manual describes them under Scale Properties. Differs in
    that values that are merely close are not taken as equal: ranks of large graphs are all small.

    Parameters
    ----------
    values : (n,) float32 or float64

    Returns
    -------
    (n,) float64; `values` itself for `none`.

    Raises
    ------
    OptionError : unknown scaler
    """
    check_choice("scaler", scaler, get_args(Scaler))
    if scaler == "none":
        return values
    p = values.astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        return _SCALERS[scaler](p) if len(p) else p


def _divide(p: np.ndarray, by: float) -> np.ndarray:
    return np.zeros(len(p)) if by == 0 else p / by


def _measure_deviation(p: np.ndarray) -> float:
    """Return the standard deviation; 0 only if all values are equal, however close they are."""
    spread = float(np.ptp(p))
    return spread if spread == 0 else spread * math.sqrt(np.mean(((p - p.mean()) / spread) ** 2))


def _measure_length(p: np.ndarray) -> float:
    most = float(np.abs(p).max())
    return most if most == 0 else most * math.sqrt(np.sum((p / most) ** 2))


_SCALERS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "minmax": lambda p: _divide(p - p.min(), float(np.ptp(p))),
    "max": lambda p: _divide(p, float(np.abs(p).max())),
    "mean": lambda p: _divide(p - p.mean(), float(np.ptp(p))),
    "log": np.log,
    "stdscore": lambda p: _divide(p - p.mean(), _measure_deviation(p)),
    "l1norm": lambda p: _divide(p, float(np.abs(p).sum())),
    "l2norm": lambda p: _divide(p, _measure_length(p)),
}


# --- distribution of scores ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Histogram:
    """Counts of values between edges in geometric progression.

    Examples
    --------
    >>> import mgspmv as mg
    >>> mg.pagerank(([0, 1, 2, 2], [1, 2, 0, 1])).summary(bins=2).histogram.counts
    (1, 2)
    """

    edges: tuple[float, ...]
    """Ascending edges, from the least positive value to the greatest; empty if no value is positive."""
    counts: tuple[int, ...]
    """Number of values from each edge up to, but excluding, the next; the last bin includes the last edge."""
    n_outside: int
    """Number of finite values that are 0 or negative, and so in no bin."""


@dataclass(frozen=True)
class Summary:
    """Distribution of values. Those that are not finite are counted and left out; NaN stands for undefined statistics.

    Sums are pairwise in float64, so their error is at most a few units in the last place.

    Examples
    --------
    >>> import mgspmv as mg
    >>> found = mg.pagerank(([0, 1, 2, 2], [1, 2, 0, 1])).summary()
    >>> found.n, round(found.max, 4), round(found.percentiles[50], 4)
    (3, 0.3974, 0.3878)
    """

    n: int
    """Number of values."""
    n_non_finite: int
    """Number of values that are NaN or infinite."""
    min: float
    max: float
    mean: float
    sum: float
    std: float
    """Population standard deviation (division by n)."""
    percentiles: dict[float, float]
    """Values by percent in `PERCENTILES`; linear interpolation, as in NumPy's `percentile`."""
    gini: float
    """Gini coefficient, sum of |v - w| over all pairs / (2 n sum of v): 0 if all are equal, up to 1 if one has all. NaN
    if a value is negative or all are 0."""
    histogram: Histogram

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values, except that numbers may be non-finite."""
        percentiles = {f"{percent:g}": value for percent, value in self.percentiles.items()}
        return vars(self) | {"percentiles": percentiles, "histogram": dict(vars(self.histogram))}


def summarize_scores(values: np.ndarray, bins: int = BINS) -> Summary:
    """Summarize the distribution of values; O(n log n), with a sorted float64 copy.

    Parameters
    ----------
    values : (n,) float32 or float64
    bins : number of bins of the histogram

    Raises
    ------
    OptionError : bins is less than 1
    """
    if bins < 1:
        raise OptionError(f"bins must be at least 1, not {bins}")
    v = np.sort(values[np.isfinite(values)].astype(np.float64))
    n_left_out = len(values) - len(v)
    histogram = _count(v, bins)
    if not len(v):
        nothing = (math.nan, math.nan, math.nan, math.nan, math.nan)
        percentiles = dict.fromkeys(PERCENTILES, math.nan)
        return Summary(len(values), n_left_out, *nothing, percentiles, math.nan, histogram)
    percentiles = dict(zip(PERCENTILES, np.percentile(v, PERCENTILES).tolist(), strict=True))
    moments = (float(v[0]), float(v[-1]), float(v.mean()), float(v.sum()), _measure_deviation(v))
    return Summary(len(values), n_left_out, *moments, percentiles, _measure_gini(v), histogram)


def _measure_gini(v: np.ndarray) -> float:
    """Return the Gini coefficient of ascending values: sum of (2 i - n - 1) v_i / (n sum of v), i from 1. Subtracting
    the mean of the values changes no sum, as the factors sum to 0, and reduces cancellation."""
    n, total = len(v), float(v.sum())
    if v[0] < 0 or total == 0:
        return math.nan
    factors = 2.0 * np.arange(n) - (n - 1)
    return float(np.sum(factors * (v - total / n)) / (n * total))


def _count(v: np.ndarray, bins: int) -> Histogram:
    """Return the histogram of ascending values."""
    n_outside = int(np.searchsorted(v, 0.0, side="right"))
    positive = v[n_outside:]
    if not len(positive):
        return Histogram((), (), n_outside)
    least, most = positive[0], positive[-1]
    inner = np.exp(np.linspace(math.log(least), math.log(most), bins + 1)[1:-1])
    edges = np.array([least, *np.clip(np.maximum.accumulate(inner), least, most), most])
    starts = np.searchsorted(positive, edges[:-1], side="left")
    counts = np.diff([*starts, len(positive)])
    return Histogram(tuple(edges.tolist()), tuple(counts.tolist()), n_outside)
