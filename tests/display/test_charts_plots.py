"""Plots of results."""

from __future__ import annotations

import sys

import matplotlib as mpl
import numpy as np
import pytest

from mgspmv.display.charts import POINTS, make_axes, plot_changes, plot_distribution
from mgspmv.errors import MissingDependencyError

mpl.use("agg")


@pytest.fixture
def axes():
    import matplotlib.pyplot as plt

    yield make_axes(None)
    plt.close("all")


def test_a_point_is_a_rank_and_the_vertices_that_have_it(axes):
    plot_distribution(axes, np.array([0.2, 0.5, 0.2, np.nan, np.inf, 0.0, 0.1], np.float32))
    assert axes.lines[0].get_xydata().tolist() == pytest.approx(np.float32([[0.5, 1], [0.2, 2], [0.2, 3], [0.1, 4]]))
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert axes.get_ylabel() == "vertices with at least this rank"


def test_many_ranks_are_thinned_to_both_ends(axes):
    values = np.random.default_rng(0).random(100_000)
    plot_distribution(axes, values)
    ranks, places = axes.lines[0].get_xydata().T
    assert len(ranks) <= POINTS
    assert (ranks[0], ranks[-1], places[0], places[-1]) == (values.max(), values.min(), 1, len(values))
    assert [np.count_nonzero(values >= rank) for rank in ranks[::100]] == places[::100].tolist()


def test_negative_scores_are_drawn_on_a_linear_axis_and_nothing_is_drawn_of_nothing(axes):
    plot_distribution(axes, np.array([-2.0, 1.0, 0.0]))
    assert (axes.get_xscale(), axes.lines[0].get_xdata().tolist()) == ("linear", [1.0, 0.0, -2.0])
    for values in (np.empty(0), np.array([np.nan]), np.zeros(3)):
        plot_distribution(axes, values)
        assert len(axes.lines[-1].get_xdata()) == 0


def test_changes_and_tolerance(axes):
    plot_changes(axes, (0.5, 0.25, 1e-7), {"alpha": 0.85, "tol": 1e-6})
    assert axes.lines[0].get_xydata().tolist() == [[1, 0.5], [2, 0.25], [3, 1e-7]]
    assert axes.lines[1].get_ydata() == [1e-6, 1e-6]
    assert axes.get_legend_handles_labels()[1] == ["alpha 0.85"]
    plot_changes(axes, (), {"tol": None})
    assert len(axes.lines) == 3


def test_missing_matplotlib_is_named_with_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(MissingDependencyError) as caught:
        make_axes(None)
    assert str(caught.value) == "plot() needs matplotlib, which is not installed; pip install 'mgspmv[report]'"
