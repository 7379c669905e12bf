"""Charts as inline SVG: lines on linear or logarithmic axes, and bars.

A chart is `WIDTH` units wide and as high as it needs to be. Colours are those of the style sheet of the page: classes
`c0` to `c5` are of series, and `d0` to `d2` their dashes, so that no two lines differ in colour alone. Keys stand in
HTML below, where the browser breaks lines as it must; no text of an SVG is on another one.
"""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from mgspmv.display.numbers import format_count, format_number, format_power, shorten

WIDTH = 420
HEIGHT = 280
"""Of a chart of lines."""
N_COLOURS = 6
N_DASHES = 3
MOST_LINES = 12
MOST_BARS = 16
MOST_POINTS = 400
"""Of a line; of longer ones some points are left out, the last never."""

_CHAR = 7.7
"""Of a line of text, in units: at least the mean of any usual font at the 12 units that text is high."""
_LINE = 16
_TOP, _RIGHT, _BOTTOM = 30, 12, 46
"""Around the area of a chart of lines: for the name of y, for names of levels, for ticks and the name of x."""
_BAR = 12


@dataclass(frozen=True)
class Quantity:
    """What an axis is of."""

    label: str
    is_log: bool = False


@dataclass(frozen=True)
class Line:
    """A series of points."""

    label: str
    points: Sequence[tuple[float, float]]
    is_success: bool | None = None
    """Marks its end with a dot, or else with a cross; None with nothing."""


@dataclass(frozen=True)
class Level:
    """A value of y that lines are to be seen beside."""

    value: float
    label: str


@dataclass(frozen=True)
class Bar:
    """What is shown of one thing: a part of each series, stacked or side by side."""

    label: str
    values: Sequence[float | None]
    """None where it has no part of that series."""
    warnings: Sequence[str] = ()
    """Of each part, what is wrong with it; empty where nothing is."""


@dataclass(frozen=True)
class Key:
    """What a colour stands for."""

    label: str
    style: str
    """Classes of colour and dash."""
    shape: str
    """`line` or `box`."""


@dataclass(frozen=True)
class Chart:
    """A drawing and what is to be said beside it."""

    title: str
    svg: str
    keys: tuple[Key, ...]
    note: str
    """What is not drawn, and why; empty where everything is."""


@dataclass(frozen=True)
class Axis:
    """Where values are, from `start` to `stop` in units."""

    low: float
    high: float
    is_log: bool
    ticks: tuple[tuple[float, str], ...]
    """Values within low .. high, ascending, and what they are called."""
    start: float = 0.0
    stop: float = 1.0

    def place(self, value: float) -> float:
        """In units; of what is outside, the nearer end."""
        low, high, at = (math.log10(v) if self.is_log else v for v in (self.low, self.high, max(value, self.low)))
        return self.start + min((at - low) / (high - low), 1.0) * (self.stop - self.start)


# --- lines -----------------------------------------------------------------------------------------------------------


def draw_lines(title: str, lines: Sequence[Line], x: Quantity, y: Quantity, levels: Sequence[Level] = ()) -> Chart:
    """Lines, and levels beside which they are to be seen.

    Points that are not finite, or not positive on a logarithmic axis, are left out, and so are lines after the first
    `MOST_LINES`; the note of the chart says so. A line of which nothing is left has its key all the same.
    """
    shown, n_lost = _keep_drawable(lines[:MOST_LINES], x, y)
    points = [point for line in shown for point in line.points]
    svg = _begin(title, HEIGHT, _describe_lines(shown, x, y, levels))
    if points:
        levels = [level for level in levels if not y.is_log or level.value > 0]
        x_axis = make_axis([place for place, _ in points], x.is_log, 6)
        y_axis = make_axis([*(value for _, value in points), *(level.value for level in levels)], y.is_log, 6)
        x_axis, y_axis = _lay_out(x_axis, y_axis, levels)
        _draw_grid(svg, x_axis, y_axis, x, y)
        _draw_levels(svg, x_axis, y_axis, levels)
        # Those with gaps come last, so that what is below them shows.
        for number, line in sorted(enumerate(shown), key=lambda own: _find_dash(own[0])):
            _draw_line(svg, line, _style(number), x_axis, y_axis)
    else:
        _add_text(svg, WIDTH / 2, HEIGHT / 2, "nothing to draw", "middle")
    keys = tuple(Key(line.label, _style(number), "line") for number, line in enumerate(shown))
    notes = _say_left_out(len(lines) - len(shown), "line") + _say_lost(n_lost, y)
    return Chart(title, _end(svg), keys, "; ".join(notes))


def _keep_drawable(lines: Sequence[Line], x: Quantity, y: Quantity) -> tuple[list[Line], int]:
    """The lines with the points that have a place, and how many have none."""
    kept, n_lost = [], 0
    for line in lines:
        points = [p for p in line.points if _has_place(p[0], x) and _has_place(p[1], y)]
        n_lost += len(line.points) - len(points)
        kept.append(replace(line, points=_thin(points)))
    return kept, n_lost


def _has_place(value: float, quantity: Quantity) -> bool:
    return math.isfinite(value) and (value > 0 or not quantity.is_log)


def _thin(points: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    stride = math.ceil(len(points) / MOST_POINTS)
    return points if stride <= 1 else [*points[:-1:stride], points[-1]]


def _lay_out(x: Axis, y: Axis, levels: Sequence[Level]) -> tuple[Axis, Axis]:
    left = 10 + _CHAR * max(len(name) for _, name in y.ticks)
    right = _CHAR * len(x.ticks[-1][1]) / 2 + 2
    right = max([right, *(_RIGHT + _CHAR * len(level.label) for level in levels)])
    return replace(x, start=left, stop=WIDTH - right), replace(y, start=HEIGHT - _BOTTOM, stop=_TOP)


def _draw_grid(svg: ET.Element, x: Axis, y: Axis, along: Quantity, up: Quantity) -> None:
    for value, name in y.ticks:
        _add_rule(svg, x.start, y.place(value), x.stop, y.place(value))
        _add_text(svg, x.start - 6, y.place(value) + 4, name, "end")
    for value, name in x.ticks:
        _add_rule(svg, x.place(value), y.start, x.place(value), y.stop)
        _add_text(svg, x.place(value), y.start + 17, name, "middle")
    _add_text(svg, 0, 12, up.label, "start", "name")
    _add_text(svg, x.stop, y.start + 38, along.label, "end", "name")


def _draw_levels(svg: ET.Element, x: Axis, y: Axis, levels: Sequence[Level]) -> None:
    """Rules with names right of them, moved up where they would be on each other."""
    taken = math.inf
    for level in sorted(levels, key=lambda level: level.value):
        at = y.place(level.value)
        taken = min(at, taken - _LINE)
        _add_rule(svg, x.start, at, x.stop, at, "level")
        _add_text(svg, x.stop + 5, taken + 4, level.label, "start")


def _draw_line(svg: ET.Element, line: Line, style: str, x: Axis, y: Axis) -> None:
    if not line.points:
        return
    group = ET.SubElement(svg, "g", {"class": f"series {style}"})
    ET.SubElement(group, "title").text = line.label
    places = [(x.place(across), y.place(value)) for across, value in line.points]
    ET.SubElement(group, "polyline", points=" ".join(f"{across:.1f},{up:.1f}" for across, up in places))
    across, up = places[-1]
    if line.is_success:
        ET.SubElement(group, "circle", cx=f"{across:.1f}", cy=f"{up:.1f}", r="3")
    elif line.is_success is not None:
        ET.SubElement(group, "path", d=f"M{across - 4:.1f},{up - 4:.1f}l8,8m0,-8l-8,8")


def _describe_lines(lines: Sequence[Line], x: Quantity, y: Quantity, levels: Sequence[Level]) -> str:
    """For those who do not see it."""
    scales = [f"{quantity.label}{', logarithmic' if quantity.is_log else ''}" for quantity in (x, y)]
    said = [f"Lines; across: {scales[0]}; up: {scales[1]}."]
    said += [f"{level.label} is at {format_number(level.value)}." for level in levels]
    for line in lines:
        ends = [
            f"{format_number(value)} at {format_number(place)}"
            for place, value in line.points[:: max(1, len(line.points) - 1)]
        ]
        said.append(f"{line.label}: {' to '.join(ends[:2]) or 'nothing'}.")
    return " ".join(said)


def _say_lost(n_lost: int, y: Quantity) -> list[str]:
    if not n_lost:
        return []
    why = "not positive, so that a logarithmic axis has no place for them" if y.is_log else "not finite"
    return [f"{n_lost:,} point{'s are' if n_lost > 1 else ' is'} left out, being {why}"]


# --- bars ------------------------------------------------------------------------------------------------------------


def draw_stacks(title: str, bars: Sequence[Bar], series: Sequence[str], name: Callable[[float], str]) -> Chart:
    """A bar for each thing, of its parts in a row, with their sum at the end.

    Parameters
    ----------
    name : what a value is called, at bars and at ticks; the latter are decimal multiples of 1, 2 or 5
    """
    shown = bars[:MOST_BARS]
    totals = [sum(value or 0.0 for value in bar.values) for bar in shown]
    said = [[name(total)] for total in totals]
    svg, axis = _begin_bars(title, shown, said, totals, series, name, len(shown) * _find_height(1))
    top = 0.0
    for bar, total in zip(shown, totals, strict=True):
        _add_text(svg, 0, top + 12, _fit(bar.label), "start")
        begin = 0.0
        for number, value in enumerate(bar.values):
            if value:
                tip = f"{bar.label}, {series[number]}: {name(value)}"
                _add_bar(svg, axis.place(begin), top + 17, axis.place(begin + value), f"c{number % N_COLOURS}", tip)
                begin += value
        _add_text(svg, axis.place(total) + 5, top + 17 + _BAR - 2, name(total), "start")
        top += _find_height(1)
    return _end_bars(title, svg, bars, series)


def draw_groups(title: str, bars: Sequence[Bar], series: Sequence[str], name: Callable[[float], str]) -> Chart:
    """For each thing a bar of each of its parts, one below the other, with its value and its warning at the end.

    A series that no bar has is not among the keys, and the others keep their colours.

    Parameters
    ----------
    name : as of `draw_stacks`
    """
    shown = bars[:MOST_BARS]
    said = [[_say_part(bar, number, name) for number in range(len(series))] for bar in shown]
    values = [value for bar in shown for value in bar.values if value is not None]
    bottom = sum(_find_height(_count_parts(bar)) for bar in shown)
    svg, axis = _begin_bars(title, shown, said, values, series, name, bottom)
    top = 0.0
    for bar, texts in zip(shown, said, strict=True):
        _add_text(svg, 0, top + 12, _fit(bar.label), "start")
        at = top + 17
        for number, (value, text) in enumerate(zip(bar.values, texts, strict=True)):
            if value is not None:
                tip = f"{bar.label}, {series[number]}: {text}"
                _add_bar(svg, axis.place(0), at, axis.place(value), f"c{number % N_COLOURS}", tip)
                is_warned = bool(bar.warnings and bar.warnings[number])
                _add_text(svg, axis.place(value) + 5, at + _BAR - 2, text, "start", "warning" if is_warned else "")
                at += _LINE
        top += _find_height(_count_parts(bar))
    return _end_bars(title, svg, bars, series)


def _say_part(bar: Bar, number: int, name: Callable[[float], str]) -> str:
    value = bar.values[number]
    if value is None:
        return ""
    warning = bar.warnings[number] if bar.warnings else ""
    return f"{name(value)} ▲ {warning}" if warning else name(value)


def _begin_bars(
    title: str,
    bars: Sequence[Bar],
    said: Sequence[Sequence[str]],
    values: Sequence[float],
    series: Sequence[str],
    name: Callable[[float], str],
    bottom: float,
) -> tuple[ET.Element, Axis]:
    """The drawing with the rules of its axis, and the axis."""
    described = [
        f"{bar.label}: " + ", ".join(f"{series[k]} {name(v)}" for k, v in enumerate(bar.values) if v is not None) + "."
        for bar in bars
    ]
    svg = _begin(title, bottom + 20, "Bars. " + " ".join(described))
    widest = max((len(text) for texts in said for text in texts), default=0)
    high = max(values, default=0.0) or 1.0
    stop = WIDTH - 10 - _CHAR * widest
    ticks = tuple((value, name(value)) for value in _find_linear_ticks(0.0, high, 4))
    axis = Axis(0.0, high, False, ticks, 0.0, stop)
    for number, (value, text) in enumerate(ticks):
        _add_rule(svg, axis.place(value), 0, axis.place(value), bottom)
        _add_text(svg, axis.place(value), bottom + 15, text, "middle" if number else "start")
    return svg, axis


def _count_parts(bar: Bar) -> int:
    return sum(value is not None for value in bar.values)


def _find_height(rows: int) -> int:
    """Of a bar's label and of so many rows below it."""
    return 17 + rows * _LINE + 8


def _end_bars(title: str, svg: ET.Element, bars: Sequence[Bar], series: Sequence[str]) -> Chart:
    keys = tuple(
        Key(label, f"c{number % N_COLOURS}", "box")
        for number, label in enumerate(series)
        if any(bar.values[number] is not None for bar in bars)
    )
    return Chart(title, _end(svg), keys, "; ".join(_say_left_out(len(bars) - MOST_BARS, "bar")))


def _add_bar(svg: ET.Element, left: float, top: float, right: float, style: str, said: str) -> None:
    sizes = {"x": f"{left:.1f}", "y": f"{top:.1f}", "width": f"{max(right - left, 1.0):.1f}", "height": f"{_BAR}"}
    bar = ET.SubElement(svg, "rect", {"class": f"bar {style}", **sizes})
    ET.SubElement(bar, "title").text = said


def _fit(label: str) -> str:
    return shorten(label, int(WIDTH / _CHAR))


# --- axes ------------------------------------------------------------------------------------------------------------


def make_axis(values: Iterable[float], is_log: bool, n_ticks: int) -> Axis:
    """An axis whose ends are ticks, or nearly so, and that has all values.

    Logarithmic ones have decades, or where there are less than two of these also 2 and 5 times them.
    """
    values = list(values)
    low, high = min(values), max(values)
    if is_log:
        return _make_log_axis(low, high, n_ticks)
    low = min(low, 0.0)
    high = high if high > low else low + 1.0
    ticks = _find_linear_ticks(low, high, n_ticks)
    return Axis(low, high, False, tuple((tick, _name_linear(tick)) for tick in ticks))


def _make_log_axis(low: float, high: float, n_ticks: int) -> Axis:
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    if math.log10(high / low) >= 2:
        stride = math.ceil((last - first) / n_ticks)
        exponents = list(range(first, last + 1, stride))
        is_plain = first >= -3 and last <= 4
        named = [(10.0**e, _name_linear(10.0**e) if is_plain else format_power(e)) for e in exponents]
        return Axis(10.0**first, 10.0**last, True, tuple(named))
    steps = [digit * 10.0**e for e in range(first - 1, last + 1) for digit in (1, 2, 5)]
    begin = max((k for k, step in enumerate(steps) if step <= low * (1 + 1e-9)), default=0)
    end = min((k for k, step in enumerate(steps) if step >= high * (1 - 1e-9) and k > begin), default=len(steps) - 1)
    ticks = steps[begin : end + 1]
    return Axis(ticks[0], ticks[-1], True, tuple((tick, _name_linear(tick)) for tick in ticks))


def _find_linear_ticks(low: float, high: float, n: int) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten, at most about n of them."""
    raw = (high - low) / n
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(digit * power for digit in (1, 2, 5, 10) if digit * power >= raw * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def _name_linear(value: float) -> str:
    return format_count(value) if value == round(value) and 1 <= abs(value) < 1e6 else format_number(value)


# --- elements --------------------------------------------------------------------------------------------------------


def _begin(title: str, height: float, description: str) -> ET.Element:
    svg = ET.Element("svg", {"viewBox": f"0 0 {WIDTH} {height:g}", "role": "img", "aria-label": title})
    ET.SubElement(svg, "title").text = title
    ET.SubElement(svg, "desc").text = description
    return svg


def _end(svg: ET.Element) -> str:
    return ET.tostring(svg, encoding="unicode")


def _add_rule(svg: ET.Element, x1: float, y1: float, x2: float, y2: float, style: str = "grid") -> None:
    ends = {name: f"{at:.1f}" for name, at in {"x1": x1, "y1": y1, "x2": x2, "y2": y2}.items()}
    ET.SubElement(svg, "line", {"class": style, **ends})


def _add_text(svg: ET.Element, x: float, y: float, text: str, anchor: str, style: str = "") -> None:
    places = {"x": f"{x:.1f}", "y": f"{y:.1f}", "text-anchor": anchor}
    ET.SubElement(svg, "text", {"class": style, **places} if style else places).text = text


def _style(number: int) -> str:
    """Neighbours differ in their dash too, so that of two lines on each other both are seen."""
    return f"c{number % N_COLOURS} d{_find_dash(number)}"


def _find_dash(number: int) -> int:
    return (number + number // N_COLOURS) % N_DASHES


def _say_left_out(n: int, what: str) -> list[str]:
    return [f"{n:,} more {what}{'s are' if n > 1 else ' is'} not drawn"] if n > 0 else []
