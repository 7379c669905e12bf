"""Charts: where things are drawn, what axes say, and that their colours can be told apart."""

from __future__ import annotations

import itertools
import math
import re
import xml.etree.ElementTree as ET
from importlib.resources import files

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgspmv.display.charts import (
    MOST_BARS,
    MOST_LINES,
    MOST_POINTS,
    N_COLOURS,
    WIDTH,
    Bar,
    Level,
    Line,
    Quantity,
    draw_groups,
    draw_lines,
    draw_stacks,
    make_axis,
)
from mgspmv.display.numbers import format_bytes, format_seconds

X, LOG = Quantity("iteration"), Quantity("change", is_log=True)
FALLING = [(k, 10.0**-k) for k in range(1, 8)]


def texts_of(svg: str) -> list[str]:
    return [element.text or "" for element in ET.fromstring(svg).iter("text")]


def points_of(svg: str) -> list[list[tuple[float, float]]]:
    lines = [element.get("points", "").split() for element in ET.fromstring(svg).iter("polyline")]
    return [[tuple(map(float, point.split(","))) for point in line] for line in lines]


# Axes


@pytest.mark.parametrize(
    ("values", "is_log", "names"),
    [
        ([1, 57], False, ["0", "10", "20", "30", "40", "50"]),
        ([0.2, 0.9], False, ["0", "0.2", "0.4", "0.6", "0.8"]),
        ([0, 0], False, ["0", "0.2", "0.4", "0.6", "0.8", "1"]),
        ([3e6, 1e7], False, ["0", "2e6", "4e6", "6e6", "8e6", "1e7"]),
        ([1, 4000], True, ["1", "10", "100", "1,000", "10,000"]),
        ([3e-8, 0.5], True, ["10⁻⁸", "10⁻⁶", "10⁻⁴", "10⁻²", "10⁰"]),
        ([1e-7, 1], True, ["10⁻⁷", "10⁻⁵", "10⁻³", "10⁻¹"]),
        ([3, 40], True, ["2", "5", "10", "20", "50"]),
        ([0.7, 0.7], True, ["0.5", "1"]),
    ],
)
def test_ticks(values, is_log, names):
    assert [name for _, name in make_axis(values, is_log, 6).ticks] == names


@given(st.lists(st.floats(1e-200, 1e200), min_size=1), st.booleans())
def test_an_axis_has_all_values_and_few_ticks(values, is_log):
    axis = make_axis(values, is_log, 6)
    assert axis.low <= min(values) * (1 + 1e-6)
    assert axis.high >= max(values) * (1 - 1e-6)
    assert 1 <= len(axis.ticks) <= 9
    ticks = [tick for tick, _ in axis.ticks]
    assert ticks == sorted(set(ticks))
    assert all(axis.low * (1 - 1e-9) <= tick <= axis.high * (1 + 1e-9) for tick in ticks)
    assert len({name for _, name in axis.ticks}) == len(ticks)
    assert all(0 <= axis.place(value) <= 1 for value in values)


# Lines


def test_a_straight_line_on_a_logarithmic_axis():
    chart = draw_lines("falls", [Line("a", FALLING, True)], X, LOG, [Level(1e-6, "tol 1e-6")])
    [line] = points_of(chart.svg)
    steps = np.diff(np.array(line), axis=0)
    assert steps == pytest.approx(np.tile(steps[0], (len(steps), 1)), abs=0.11)
    assert steps[0][0] > 0 < steps[0][1]
    root = ET.fromstring(chart.svg)
    [level] = [float(rule.get("y1")) for rule in root.iter("line") if rule.get("class") == "level"]
    assert level == pytest.approx(line[5][1], abs=0.11)
    [end] = root.iter("circle")
    assert (float(end.get("cx")), float(end.get("cy"))) == line[-1]
    assert {"tol 1e-6", "iteration", "change", "10⁻⁷", "10⁻¹"} <= set(texts_of(chart.svg))
    assert chart.note == ""


def test_the_end_says_how_it_ended():
    chart = draw_lines("ends", [Line(str(end), FALLING, end) for end in (True, False, None)], X, LOG)
    groups = list(ET.fromstring(chart.svg).iter("g"))
    marks = {
        group.find("title").text: [element.tag for element in group if element.tag in ("circle", "path")]
        for group in groups
    }
    assert marks == {"True": ["circle"], "False": ["path"], "None": []}


def test_no_two_lines_look_the_same():
    chart = draw_lines("many", [Line(f"{k}", FALLING) for k in range(MOST_LINES + 5)], X, LOG)
    assert len({key.style for key in chart.keys}) == len(chart.keys) == MOST_LINES
    assert all(a.style.split()[1] != b.style.split()[1] for a, b in itertools.pairwise(chart.keys[:N_COLOURS]))
    assert chart.note == "5 more lines are not drawn"


def test_what_has_no_place_is_said():
    points = [(1, 0.5), (2, 0.0), (3, math.nan), (4, math.inf), (5, 0.1)]
    chart = draw_lines("zero", [Line("a", points)], X, LOG)
    assert [len(line) for line in points_of(chart.svg)] == [2]
    assert chart.note == "3 points are left out, being not positive, so that a logarithmic axis has no place for them"
    assert draw_lines("one", [Line("a", [(1, 1.0), (2, math.nan)])], X, Quantity("y")).note == (
        "1 point is left out, being not finite"
    )


def test_nothing_to_draw():
    for lines in ([], [Line("a", [])], [Line("a", [(1, 0.0)])]):
        chart = draw_lines("nothing", lines, X, LOG, [Level(0.0, "tol 0")])
        assert texts_of(chart.svg) == ["nothing to draw"], lines
        assert [key.label for key in chart.keys] == [line.label for line in lines]


def test_one_point():
    chart = draw_lines("one", [Line("a", [(1, 0.1)], True)], X, LOG)
    [[place]] = points_of(chart.svg)
    assert all(0 < at < WIDTH for at in place)


def test_a_long_line_is_thinned_and_keeps_its_ends():
    points = [(k, 1 / k) for k in range(1, 10_001)]
    [line] = points_of(draw_lines("long", [Line("a", points)], X, LOG).svg)
    assert len(line) <= MOST_POINTS + 1
    [ends] = points_of(draw_lines("ends", [Line("a", [points[0], points[-1]])], X, LOG).svg)
    assert [line[0], line[-1]] == ends


def test_names_of_levels_are_not_on_each_other():
    levels = [Level(change, f"tol {change}") for change in (1e-6, 1.1e-6, 1.2e-6)]
    svg = ET.fromstring(draw_lines("levels", [Line("a", FALLING)], X, LOG, levels).svg)
    heights = sorted(float(text.get("y")) for text in svg.iter("text") if text.text.startswith("tol"))
    assert min(np.diff(heights)) >= 16


def test_text_is_text():
    label = "<script>alert(1)</script>&\"'"
    for chart in (
        draw_lines(label, [Line(label, FALLING)], Quantity(label), Quantity(label), [Level(1.0, label)]),
        draw_stacks(label, [Bar(label, [1.0])], [label], format_seconds),
        draw_groups(label, [Bar(label, [1.0], [label])], [label], format_bytes),
    ):
        root = ET.fromstring(chart.svg)
        assert "<script" not in chart.svg
        assert root.get("aria-label") == root.find("title").text == label
        assert label in root.find("desc").text


# Bars


def bars_of(svg: str) -> list[dict[str, float]]:
    names = ("x", "y", "width", "height")
    return [{name: float(bar.get(name)) for name in names} for bar in ET.fromstring(svg).iter("rect")]


def test_stacks_are_as_long_as_their_parts():
    chart = draw_stacks(
        "times", [Bar("a", [1.0, 2.0, None]), Bar("b", [0.0, 1.5, 1.5])], ["p", "q", "r"], format_seconds
    )
    bars = bars_of(chart.svg)
    assert len(bars) == 4
    unit = bars[0]["width"]
    assert [bar["width"] / unit for bar in bars] == pytest.approx([1, 2, 1.5, 1.5], abs=0.01)
    assert bars[1]["x"] == pytest.approx(bars[0]["x"] + unit, abs=0.2)
    assert bars[0]["y"] == bars[1]["y"] < bars[2]["y"] == bars[3]["y"]
    assert texts_of(chart.svg).count("3 s") == 3  # both sums, and a tick
    assert [key.label for key in chart.keys] == ["p", "q", "r"]


def test_groups_leave_no_room_for_what_is_not_there():
    bars = [Bar("a", [4e6, None, 2e6]), Bar("b", [4e6, 5e6, 1e6], ["", "+25%", ""])]
    chart = draw_groups("memory", bars, ["predicted", "held", "process"], format_bytes)
    drawn = bars_of(chart.svg)
    assert [bar["width"] / drawn[0]["width"] for bar in drawn] == pytest.approx([1, 0.5, 1, 1.25, 0.25], abs=0.01)
    assert drawn[1]["y"] - drawn[0]["y"] == drawn[3]["y"] - drawn[2]["y"]
    [warning] = [text.text for text in ET.fromstring(chart.svg).iter("text") if text.get("class") == "warning"]
    assert warning == "5 MB ▲ +25%"


def test_colours_are_those_of_series_whatever_else_is_there():
    chart = draw_groups("memory", [Bar("a", [None, 5e6, None])], ["predicted", "held", "process"], format_bytes)
    assert [(key.label, key.style) for key in chart.keys] == [("held", "c1")]
    assert [bar.get("class") for bar in ET.fromstring(chart.svg).iter("rect")] == ["bar c1"]


def test_more_bars_than_there_is_room_for():
    bars = [Bar(f"{k}", [1.0]) for k in range(MOST_BARS + 1)]
    for draw in (draw_stacks, draw_groups):
        chart = draw("many", bars, ["p"], format_seconds)
        assert len(bars_of(chart.svg)) == MOST_BARS
        assert chart.note == "1 more bar is not drawn"


def test_bars_of_nothing_stay_within_the_drawing():
    chart = draw_stacks("zero", [Bar("x" * 200, [0.0])], ["p"], format_seconds)
    assert bars_of(chart.svg) == []
    assert len(texts_of(chart.svg)[-2]) < 60


# Colours


def read_colours() -> dict[str, dict[str, str]]:
    """The variables of the style sheet by mode."""
    page = (files("mgspmv.report") / "page.html.jinja").read_text(encoding="utf-8")
    blocks = [dict(re.findall(r"--([\w-]+): (#\w{6});", block)) for block in re.findall(r":root \{(.*?)\}", page, re.S)]
    light, dark, printed = blocks
    return {"light": light, "dark": dark, "print": light | printed}


def linearise(colour: str) -> np.ndarray:
    c = np.array([int(colour[k : k + 2], 16) for k in (1, 3, 5)]) / 255
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def contrast(a: str, b: str) -> float:
    """As the Web Content Accessibility Guidelines define it."""
    bright, dim = sorted((float(linearise(c) @ [0.2126, 0.7152, 0.0722]) for c in (a, b)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


SEEN = {
    "anyone": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}
"""Linear RGB as it is seen by whom. Source: Machado, Oliveira, Fernandes, A Physiologically-based Model for Simulation
of Color Vision Deficiency, 2009, severity 1."""


def to_oklab(rgb: np.ndarray) -> np.ndarray:
    """Source: Ottosson, A perceptual color space for image processing, 2020."""
    to_lms = [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
    to_lab = [
        [0.2104542553, 0.793617785, -0.0040720468],
        [1.9779984951, -2.428592205, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.808675766],
    ]
    return np.cbrt(np.clip(rgb, 0, 1) @ np.transpose(to_lms)) @ np.transpose(to_lab)


def test_colours_of_series_can_be_told_apart():
    for (mode, colours), (name, seen) in itertools.product(read_colours().items(), SEEN.items()):
        series = [linearise(colours[f"c{k}"]) @ np.transpose(seen) for k in range(N_COLOURS)]
        distances = [np.linalg.norm(to_oklab(a) - to_oklab(b)) for a, b in itertools.combinations(series, 2)]
        assert min(distances) > 0.13, (mode, name)


def test_colours_can_be_seen():
    for mode, named in read_colours().items():
        colours = named | ({"card": "#ffffff"} if mode == "print" else {})
        assert min(contrast(colours[f"c{k}"], colours["card"]) for k in range(N_COLOURS)) >= 3, mode
        for text, ground in itertools.product(("text", "muted", "accent", "good", "bad"), ("card", "page")):
            assert contrast(colours[text], colours[ground]) >= 4.5, (mode, text, ground)
        assert contrast(colours["good"], colours["good-soft"]) >= 4.5, mode
        assert contrast(colours["bad"], colours["bad-soft"]) >= 4.5, mode
