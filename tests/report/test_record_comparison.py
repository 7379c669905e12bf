"""Ranks beside those that they replace, against SciPy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import kendalltau, spearmanr

from mgspmv.model import Status
from mgspmv.report.record import compare_ranks
from mgspmv.results import Solution


def make(values, ids=None, scaler="none"):
    ids = None if ids is None else np.array(ids, object if isinstance(ids[0], str) else np.int64)
    options = {"scaler": scaler}
    return Solution(np.array(values, float), Status.CONVERGED, 1, (0.0,), {}, 0.0, ids, options, {})


def test_the_same_ranks():
    ranks = make([0.5, 0.2, 0.3])
    found = compare_ranks(ranks, ranks, 2)
    assert (found["n_common"], found["n_new"], found["n_gone"]) == (3, 0, 0)
    assert (found["spearman"], found["overlap"], found["kendall_top"]) == (pytest.approx(1.0), 1.0, 1.0)
    assert (found["l1"], found["moved"]) == (0.0, [])


def test_beside_scipy():
    rng = np.random.default_rng(1)
    before = np.round(rng.random(200), 2)  # with ties
    now = before + rng.normal(0, 0.1, 200).round(2)
    found = compare_ranks(make(before), make(now), 50)
    assert found["spearman"] == pytest.approx(spearmanr(before, now).statistic, abs=1e-14)
    assert found["l1"] == pytest.approx(np.abs(now - before).sum())
    high = np.union1d(np.argsort(-before, kind="stable")[:50], np.argsort(-now, kind="stable")[:50])
    assert found["kendall_top"] == pytest.approx(kendalltau(before[high], now[high]).statistic)
    assert found["overlap"] == pytest.approx((100 - len(high)) / 50)
    places = [1 + (np.asarray(values)[:, None] < values[None, :]).sum(1) for values in (before, now)]
    shift = np.abs(places[0] - places[1])[high]
    assert [abs(row[2] - row[1]) for row in found["moved"]] == sorted(shift.tolist(), reverse=True)[:20]
    for vertex, was, is_now, rank_before, rank_now in found["moved"]:
        assert (was, is_now) == (places[0][vertex], places[1][vertex])
        assert (rank_before, rank_now) == (before[vertex], now[vertex])


def test_vertices_that_come_and_go():
    found = compare_ranks(make([0.5, 0.3, 0.2], [1, 2, 9]), make([0.4, 0.5, 0.1], [2, 5, 9]), 2)
    assert (found["n_common"], found["n_new"], found["n_gone"]) == (2, 1, 1)
    assert found["l1"] == pytest.approx(0.1 + 0.1 + 0.5 + 0.5)
    assert found["overlap"] == 0.5
    assert found["moved"] == []  # 2 is the second in both
    assert found["kendall_top"] is None  # of 2 alone


def test_names_and_numbers():
    found = compare_ranks(make([0.6, 0.4], ["a", "b"]), make([0.3, 0.7], ["b", "c"]), 2)
    assert found["n_common"] == 1
    found = compare_ranks(make([0.6, 0.4], ["a", "b"]), make([0.3, 0.7], [1, 2]), 2)
    assert (found["n_common"], found["l1"], found["spearman"]) == (0, pytest.approx(2.0), None)


def test_scores_on_other_scales():
    found = compare_ranks(make([0.6, 0.4]), make([6.0, 4.0], scaler="max"), 1)
    assert (found["l1"], found["spearman"]) == (None, pytest.approx(1.0))


def test_what_has_no_correlation():
    assert compare_ranks(make([1.0]), make([1.0]), 1)["spearman"] is None
    found = compare_ranks(make([1.0, 1.0, 1.0]), make([0.0, 1.0, 2.0]), 3)
    assert (found["spearman"], found["kendall_top"]) == (None, None)
    assert compare_ranks(make([]), make([]), 3)["overlap"] == 0.0
