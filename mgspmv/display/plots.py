"""Plots of results, by matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mgspmv.errors import MissingDependencyError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POINTS = 1000
"""Most points of a distribution, in geometric progression of their places."""


def make_axes(ax: Axes | None) -> Axes:
    """Return the axes, or those of a new figure.

    Raises
    ------
    MissingDependencyError : matplotlib is not installed
    """
    if ax is not None:
        return ax
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise MissingDependencyError(
            "plot() needs matplotlib, which is not installed; pip install 'mgspmv[report]'"
        ) from error
    axes: Axes = plt.subplots()[1]
    return axes


def plot_distribution(axes: Axes, values: np.ndarray) -> None:
    """Plot the number of finite values at or above each of them; the x axis is logarithmic unless some are negative."""
    ordered = np.sort(values[np.isfinite(values)])[::-1]
    is_log = not len(ordered) or ordered[-1] >= 0
    n = int(np.count_nonzero(ordered > 0)) if is_log else len(ordered)
    places = np.unique(np.geomspace(1, n, min(n, POINTS)).round().astype(np.int64)) if n else np.empty(0, np.int64)
    axes.plot(ordered[places - 1], places, ".", markersize=3)
    axes.set(xscale="log" if is_log else "linear", xlabel="rank")
    axes.set(yscale="log", ylabel="vertices with at least this rank")


def plot_changes(axes: Axes, changes: Sequence[float], options: Mapping[str, Any]) -> None:
    """Plot the change of each iteration, and the tolerance of the run if it had one."""
    label = f"alpha {options['alpha']:g}" if "alpha" in options else None
    (line,) = axes.plot(range(1, len(changes) + 1), changes, label=label)
    if options.get("tol"):
        axes.axhline(options["tol"], color=line.get_color(), linestyle=":", linewidth=1)
    axes.set(yscale="log", xlabel="iteration", ylabel="change")
