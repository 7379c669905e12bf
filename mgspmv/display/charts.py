"""Charts, drawn by matplotlib: on the axes of a user, or as SVG embedded in the page of a report.

Colors of a page are variables of the page's style sheet, so that a chart is light, dark or printed as the page is. Up
to `MOST_LINES` lines differ in color or dash, and each chart has a description in words.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from io import StringIO
from typing import TYPE_CHECKING, Any

import numpy as np

from mgspmv.display import format_number, format_power, shorten
from mgspmv.errors import MissingDependencyError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

POINTS = 1000
"""Most points of a plotted distribution, in geometric progression of their places."""
N_COLORS = 6
MOST_LINES = 12
LONGEST_LABEL = 56
"""Most characters of a label in the legend."""
LEAST, MOST = 1e-300, 1e300
"""Bounds of numbers on logarithmic axes; matplotlib's ticks beyond them are 0 or infinite."""

_WIDE, _NARROW, _ROW = (11.5, 3.1), (4.4, 2.5), 0.19
"""Inches: width of a chart and height of its axes, for wide and for narrow windows; height of a row of the legend."""
_LEGEND = 4, 150
"""Most columns of the legend of a wide chart, and characters in a row of it."""
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
    """Drawing for wide windows and paper."""
    narrow_svg: str
    """The same for narrow windows."""
    note: str
    """Data that is not drawn, with the reason; empty if all is drawn."""


def draw_lines(title: str, lines: Sequence[Series], x: str, y: str, levels: Sequence[tuple[float, str]] = ()) -> Chart:
    """Draw lines on a logarithmic y axis, with levels to compare them with.

    A single line has no legend; its levels are labeled where they are drawn.

    Points that are not finite, or not in `LEAST` .. `MOST` on a logarithmic axis, are left out, and so are lines after
    the first `MOST_LINES`; the note of the chart counts them.

    Raises
    ------
    MissingDependencyError : matplotlib is not installed
    """
    shown = [
        Series(line.label, [(a, b) for a, b in line.points if math.isfinite(a) and LEAST <= b <= MOST], line.is_success)
        for line in lines[:MOST_LINES]
    ]
    points = [point for line in shown for point in line.points]
    levels = [level for level in levels if LEAST <= level[0] <= MOST]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for number, line in enumerate(shown):
            _draw_line(axes, line, number)
        for value, label in levels:
            axes.axhline(value, label=label, color=_STAND_INS["muted"], linewidth=1, linestyle=(0, (1, 3)))
            if len(shown) == 1:
                edge = axes.get_yaxis_transform()
                axes.annotate(label, (0, value), xycoords=edge, xytext=(4, 3), textcoords="offset points")
        if points:
            _set_log_axis(axes, [*(b for _, b in points), *(value for value, _ in levels)])
        else:
            axes.text(0.5, 0.5, "nothing to draw", transform=axes.transAxes, ha="center")
        axes.set_xlabel(x)
        axes.set_ylabel(y)

    n_lost = sum(len(line.points) for line in lines[:MOST_LINES]) - len(points)
    notes = [f"lines not drawn: {len(lines) - len(shown):,}"] * (len(lines) > len(shown))
    if n_lost:
        notes.append(f"points not drawn because they are not positive, not finite or out of range: {n_lost:,}")
    said = [f"Lines; across: {x}, linear; up: {y}, logarithmic.", *(f"{label}." for _, label in levels)]
    said += map(_describe_line, shown)
    keys = [shorten(line.label, LONGEST_LABEL) for line in shown] + [label for _, label in levels]
    n_columns = max(1, min(_LEGEND[0], _LEGEND[1] // max(map(len, keys)))) if len(shown) > 1 else 0

    def render(width: float, height: float, n_columns: int) -> str:
        n_rows = math.ceil(len(keys) / n_columns) if n_columns else 0
        return _render(title, " ".join(said), (width, height + _ROW * n_rows), draw, n_columns)

    wide, narrow = render(*_WIDE, n_columns), render(*_NARROW, min(1, n_columns))
    return Chart(title, wide, narrow, "; ".join(notes))


def _draw_line(axes: Axes, line: Series, number: int) -> None:
    places, values = zip(*line.points, strict=True) if line.points else ((), ())
    # Neighboring colors differ in their dash too, so that two coinciding lines are both visible.
    dash = (number + number // N_COLORS) % len(_DASHES)
    drawn: dict[str, Any] = {"color": _STAND_INS[f"c{number % N_COLORS}"], "zorder": 2 + dash / 10}
    label = shorten(line.label, LONGEST_LABEL)
    axes.plot(places, values, label=label, linewidth=1.6, linestyle=_DASHES[dash], **drawn)
    if line.is_success is not None:
        axes.plot(places[-1:], values[-1:], marker="o" if line.is_success else "x", markersize=4, **drawn)


def _set_log_axis(axes: Axes, values: Sequence[float]) -> None:
    """Make the y axis logarithmic, from one power of ten to another, with ticks at some of those between."""
    from matplotlib.ticker import LogLocator, NullLocator

    first, last = math.floor(math.log10(min(values)) + 1e-9), math.ceil(math.log10(max(values)) - 1e-9)
    axes.set(yscale="log", ylim=(10.0**first, 10.0 ** max(last, first + 1)))
    axes.yaxis.set_major_locator(LogLocator(numticks=7))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(lambda value, _: format_power(round(math.log10(value))))


def _describe_line(line: Series) -> str:
    """Return the first and last point of a line, for screen readers."""
    ends = line.points[:: max(1, len(line.points) - 1)]
    said = [f"{format_number(value)} at {format_number(place)}" for place, value in ends]
    return f"{line.label}: {' to '.join(said[:2]) or 'nothing'}."


def _render(title: str, description: str, size: tuple[float, float], draw: Callable[[Figure], None], n: int) -> str:
    """Return the SVG of a figure that `draw` fills, with a legend of n columns below; without one if n is 0."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError(
            "charts of a report need matplotlib, which is not installed; pip install 'mgspmv[report]'"
        ) from error

    out = StringIO()
    with rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # fonts are chosen by the browser
        figure = Figure(size, layout="constrained")
        draw(figure)
        handles, labels = figure.axes[0].get_legend_handles_labels()
        if n:
            figure.legend(handles, labels, loc="outside lower left", ncols=n)
        figure.savefig(out, format="svg", transparent=True, metadata=_NO_METADATA)
    drawn = out.getvalue().partition("<svg ")[2]
    drawn = re.sub(r"<style.*?</style>", "", drawn)  # the rule is in the style sheet of the page
    drawn = re.sub(r'<g id="[^"]*"', "<g", drawn)  # ids are not unique across the charts of a page
    for name, stand_in in _STAND_INS.items():
        drawn = drawn.replace(stand_in, f"var(--{name})")
    start, _, rest = drawn.partition(">")
    said = f"<title>{escape(title)}</title><desc>{escape(description)}</desc>"
    return f'<svg role="img" aria-label="{escape(title)}" {start}>{said}{rest}'.strip()
