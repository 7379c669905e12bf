"""Scaled scores and distributions, by formulas of NumPy and SciPy, and by sums of fractions."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from mgspmv.errors import OptionError
from mgspmv.scores import PERCENTILES, Histogram, scale_scores, summarize_scores

FORMULAS = {
    "none": lambda p: p,
    "minmax": lambda p: (p - np.min(p)) / (np.max(p) - np.min(p)),
    "max": lambda p: p / np.max(np.abs(p)),
    "mean": lambda p: (p - np.average(p)) / np.ptp(p),
    "log": lambda p: np.log(p),
    "stdscore": scipy.stats.zscore,
    "l1norm": lambda p: p / np.linalg.norm(p, 1),
    "l2norm": lambda p: p / np.linalg.norm(p, 2),
}
SCALERS = list(FORMULAS)


def draw_ranks(n=1000, dtype=np.float64):
    ranks = np.random.default_rng(3).pareto(1.5, n) + 0.1
    return (ranks / ranks.sum()).astype(dtype)


# --- scaled scores ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("scaler", SCALERS)
def test_scores_are_those_of_the_formula(scaler, dtype):
    ranks = draw_ranks(dtype=dtype)
    scores = scale_scores(ranks, scaler)
    assert scores.dtype == (dtype if scaler == "none" else np.float64)
    np.testing.assert_allclose(scores, FORMULAS[scaler](ranks.astype(np.float64)), rtol=1e-11, atol=1e-15)


@pytest.mark.parametrize("value", [0.1, 0.0, -0.1, 1e300, 5e-324])
@pytest.mark.parametrize("scaler", ["minmax", "mean", "stdscore"])
def test_values_that_are_all_the_same_score_0(scaler, value):
    """0.1 ten times has a mean that is not 0.1."""
    assert scale_scores(np.full(10, value), scaler).tolist() == [0.0] * 10


@pytest.mark.parametrize("scaler", SCALERS)
def test_no_value_and_one_value(scaler):
    assert scale_scores(np.empty(0), scaler).tolist() == []
    wanted = {"none": 0.25, "log": math.log(0.25), "max": 1.0, "l1norm": 1.0, "l2norm": 1.0}
    assert scale_scores(np.array([0.25]), scaler).tolist() == [wanted.get(scaler, 0.0)]


def test_values_that_are_near_are_not_the_same():
    near = np.array([1e-12, 1e-12 + 1e-20, 1e-12 + 2e-20])
    np.testing.assert_allclose(scale_scores(near, "minmax"), [0, 0.5, 1], rtol=1e-4)
    np.testing.assert_allclose(scale_scores(near, "stdscore"), np.sqrt(1.5) * np.array([-1, 0, 1]), atol=1e-4)
    tiny = np.array([1e-200, 2e-200, 3e-200])
    np.testing.assert_allclose(scale_scores(tiny, "stdscore"), np.sqrt(1.5) * np.array([-1, 0, 1]), rtol=1e-12)
    np.testing.assert_allclose(scale_scores(tiny, "l2norm"), np.array([1, 2, 3]) / np.sqrt(14), rtol=1e-12)


@given(arrays(np.float64, st.integers(1, 30), elements=st.floats(0, 1)), st.sampled_from(SCALERS))
def test_the_order_of_values_is_that_of_their_scores(values, scaler):
    scores = scale_scores(values, scaler)
    in_order = scores[np.argsort(values)]
    assert (in_order[:-1] <= in_order[1:]).all()
    assert not np.isnan(scores).any()


def test_scalers_that_there_are_not():
    with pytest.raises(OptionError, match=r"scaler must be one of 'none', 'minmax', .* not 'zscore'"):
        scale_scores(np.ones(2), "zscore")


# --- their distribution ----------------------------------------------------------------------------------------------


def find_gini(values):
    """By the definition, over all pairs."""
    numbers = [Fraction(float(v)) for v in values]
    pairs = sum(abs(v - w) for v in numbers for w in numbers)
    return float(pairs / (2 * len(numbers) * sum(numbers)))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_moments_and_percentiles(dtype):
    ranks = draw_ranks(dtype=dtype)
    summary = summarize_scores(ranks)
    exact = [Fraction(float(rank)) for rank in ranks]
    mean = sum(exact) / 1000
    assert (summary.n, summary.n_non_finite, summary.min, summary.max) == (1000, 0, ranks.min(), ranks.max())
    assert summary.sum == pytest.approx(float(sum(exact)), rel=1e-15)
    assert summary.mean == pytest.approx(float(mean), rel=1e-15)
    assert summary.std == pytest.approx(math.sqrt(sum((rank - mean) ** 2 for rank in exact) / 1000), rel=1e-14)
    assert tuple(summary.percentiles) == PERCENTILES
    for percent, value in summary.percentiles.items():
        wanted = scipy.stats.scoreatpercentile(ranks.astype(np.float64), percent)
        assert value == pytest.approx(wanted, rel=1e-14), percent


@given(arrays(np.float64, st.integers(1, 12), elements=st.floats(0, 1, allow_subnormal=False)))
def test_gini_of_any_values(values):
    if values.any():
        assert summarize_scores(values).gini == pytest.approx(find_gini(values), rel=1e-12, abs=1e-15)


@pytest.mark.parametrize("values", [[0.0, 0.0], [1.0, -1.0], [-1e-9, 5.0], []])
def test_there_is_no_gini_of_what_nobody_can_have(values):
    assert math.isnan(summarize_scores(np.array(values)).gini)


@given(
    arrays(np.float64, st.integers(0, 40), elements=st.floats(-1, 1e300) | st.sampled_from([0.0, 5e-324, 1e-9])),
    st.integers(1, 8),
)
def test_bins_hold_what_is_between_their_edges(values, bins):
    histogram = summarize_scores(values, bins).histogram
    positive = values[values > 0]
    assert histogram.n_outside == len(values) - len(positive)
    if not len(positive):
        assert histogram == Histogram((), (), len(values))
        return
    assert (histogram.edges[0], histogram.edges[-1]) == (positive.min(), positive.max())
    assert (len(histogram.edges), len(histogram.counts)) == (bins + 1, bins)
    assert sum(histogram.counts) == len(positive)
    for k, (low, high) in enumerate(pairwise(histogram.edges)):
        assert low <= high
        is_last = k == bins - 1
        assert histogram.counts[k] == sum(low <= v and (v < high or is_last) for v in positive)


def test_what_is_not_finite_is_counted_and_left_out():
    values = np.array([1.0, math.nan, 3.0, math.inf, -math.inf])
    summary, finite = summarize_scores(values), summarize_scores(values[[0, 2]])
    assert (summary.n, summary.n_non_finite) == (5, 3)
    assert (summary.mean, summary.std, summary.gini) == (finite.mean, finite.std, finite.gini) == (2.0, 1.0, 0.25)
    assert (summary.percentiles, summary.histogram) == (finite.percentiles, finite.histogram)


def test_a_histogram_has_bins():
    with pytest.raises(OptionError, match="bins must be at least 1, not 0"):
        summarize_scores(np.ones(2), 0)
