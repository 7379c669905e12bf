"""Charts, drawn by matplotlib: on the axes of a user, or as SVG embedded in the page of a report.

Colors of a page are variables of the page's style sheet, so that a chart is light, dark or printed as the page is. Up
to `MOST_LINES` lines differ in color or dash.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from io import StringIO
from typing import TYPE_CHECKING, Any

import numpy as np

from mgspmv.display.numbers import shorten
from mgspmv.errors import MissingDependencyError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POINTS = 1000
"""Most points of a plotted distribution, in geometric progression of their places."""
N_COLORS = 6
MOST_LINES = 12
LONGEST_LABEL = 40
"""Most characters of a label in the legend."""
LEAST, MOST = 1e-300, 1e300
"""Bounds of numbers on logarithmic axes; matplotlib's ticks beyond them are 0 or infinite."""

_WIDTH, _HEIGHT, _ROW = 8.0, 3.0, 0.19
"""Inches: width of a chart, height without its legend, and height of a row of the legend."""
_LEGEND_COLUMNS = 2
_DASHES = ("-", (0, (5, 3)), (0, (1, 2.2)))
_VARIABLES = [*(f"c{number}" for number in range(N_COLORS)), "text", "muted", "rule", "card"]
"""Color variables of the style sheet; matplotlib draws with placeholders for them."""
_STAND_INS = {name: f"#a9b8{number:02x}" for number, name in enumerate(_VARIABLES)}
_NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))
_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",  # keep text as text
    "svg.hashsalt": "mgspmv",  # makes names in a chart reproducible
    "text.parse_math": False,
    "font.size": 9,
    "text.color": _STAND_INS["muted"],
    "axes.labelcolor": _STAND_INS["text"],
    "axes.edgecolor": _STAND_INS["rule"],
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": _STAND_INS["rule"],
    "xtick.color": _STAND_INS["rule"],
    "ytick.color": _STAND_INS["rule"],
    "xtick.labelcolor": _STAND_INS["muted"],
    "ytick.labelcolor": _STAND_INS["muted"],
    "legend.frameon": False,
    "legend.labelcolor": _STAND_INS["muted"],
}


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


# --- charts of a page -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Series:
    """Series of points."""

    label: str
    points: Sequence[tuple[float, float]]
    is_success: bool | None = None
    """Whether the line ends with a dot (True) or a cross (False); None for no mark."""


@dataclass(frozen=True)
class Chart:
    """Drawing with its title and a note."""

    title: str
    svg: str
    note: str
    """Lines that are not drawn; empty if all are."""


def draw_lines(
    title: str,
    lines: Sequence[Series],
    x: str,
    y: str,
    levels: Sequence[tuple[float, str]] = (),
) -> Chart:
    """Draw lines on a logarithmic y axis, with levels to compare them with.

    Points that are not finite, or not in `LEAST` .. `MOST`, are left out, and so are lines after the first
    `MOST_LINES`, which the note counts.

    Raises
    ------
    MissingDependencyError : matplotlib is not installed
    """
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError(
            "charts of a report need matplotlib, which is not installed; pip install 'mgspmv[report]'"
        ) from error

    shown = [
        replace(line, points=[(a, b) for a, b in line.points if LEAST <= b <= MOST]) for line in lines[:MOST_LINES]
    ]
    levels = [level for level in levels if LEAST <= level[0] <= MOST]
    n_rows = math.ceil((len(shown) + len(levels)) / _LEGEND_COLUMNS)
    out = StringIO()
    with rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # fonts are chosen by the browser
        figure = Figure((_WIDTH, _HEIGHT + _ROW * n_rows), layout="constrained")
        axes = figure.subplots()
        axes.set(xlabel=x, ylabel=y)
        if any(line.points for line in shown):
            axes.set(yscale="log")
            axes.yaxis.set_major_formatter("{x:.0e}")
        else:
            axes.text(0.5, 0.5, "nothing to draw", transform=axes.transAxes, ha="center")
        for number, line in enumerate(shown):
            _draw_line(axes, line, number)
        for value, label in levels:
            axes.axhline(value, label=label, color=_STAND_INS["muted"], linewidth=1, linestyle=(0, (1, 3)))
        if n_rows:
            figure.legend(loc="outside lower left", ncols=_LEGEND_COLUMNS)
        figure.savefig(out, format="svg", transparent=True, metadata=_NO_METADATA)
    n_hidden = len(lines) - len(shown)
    return Chart(title, _embed(out.getvalue(), title), f"lines not drawn: {n_hidden:,}" if n_hidden else "")


def _draw_line(axes: Axes, line: Series, number: int) -> None:
    places, values = zip(*line.points, strict=True) if line.points else ((), ())
    # Neighboring colors differ in their dash too, so that two coinciding lines are both visible.
    dash = (number + number // N_COLORS) % len(_DASHES)
    drawn: dict[str, Any] = {"color": _STAND_INS[f"c{number % N_COLORS}"], "zorder": 2 + dash / 10}
    label = shorten(line.label, LONGEST_LABEL)
    axes.plot(places, values, label=label, linewidth=1.6, linestyle=_DASHES[dash], **drawn)
    if line.is_success is not None:
        axes.plot(places[-1:], values[-1:], marker="o" if line.is_success else "x", markersize=4, **drawn)


def _embed(drawn: str, title: str) -> str:
    """Return the SVG of a figure for a page, whose style sheet has the rules and the colors."""
    drawn = drawn.partition("<svg ")[2]
    drawn = re.sub(r"<style.*?</style>", "", drawn)
    drawn = re.sub(r'<g id="[^"]*"', "<g", drawn)  # ids are not unique across the charts of a page
    for name, stand_in in _STAND_INS.items():
        drawn = drawn.replace(stand_in, f"var(--{name})")
    start, _, rest = drawn.partition(">")
    return f'<svg role="img" aria-label="{escape(title)}" {start}><title>{escape(title)}</title>{rest}'.strip()
