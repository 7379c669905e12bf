"""Charts of a report: what is drawn and said, and that their colors can be told apart."""

from __future__ import annotations

import itertools
import math
import re
import sys
import xml.etree.ElementTree as ET
from importlib.resources import files

import numpy as np
import pytest

from mgspmv.display.charts import MOST_LINES, N_COLORS, Chart, Series, draw_lines
from mgspmv.errors import MissingDependencyError

SVG = "{http://www.w3.org/2000/svg}"
FALLING = [(k, 10.0**-k) for k in range(1, 8)]


def texts_of(chart: Chart) -> list[str]:
    return ["".join(element.itertext()) for element in ET.fromstring(chart.svg).iter(f"{SVG}text")]


def paths_of(chart: Chart, color: str) -> list[np.ndarray]:
    """Corners of what is drawn in a color, without markers and keys."""
    found = [e.get("d", "") for e in ET.fromstring(chart.svg).iter(f"{SVG}path") if color in e.get("style", "")]
    return [np.array(re.findall(r"[ML] (\S+) (\S+)", d), float) for d in found]


def test_lines_are_where_their_points_are() -> None:
    chart = draw_lines("falls", [Series("a", FALLING, True)], "iteration", "change", levels=[(1e-6, "tol 1e-6")])
    line = max(paths_of(chart, "var(--c0)"), key=len)
    steps = np.diff(line, axis=0)
    assert steps == pytest.approx(np.tile(steps[0], (len(steps), 1)), abs=0.01)
    assert steps[0][0] > 0 < steps[0][1]
    level = next(path for path in paths_of(chart, "var(--muted)") if len(path) == 2)
    assert level[:, 1] == pytest.approx(line[5][1], abs=0.01)
    assert {"tol 1e-6", "iteration", "change", "10⁻⁷", "10⁻¹"} <= set(texts_of(chart))
    assert "a" not in texts_of(chart), "one line needs no legend"
    assert chart.note == ""
    assert chart == draw_lines(
        "falls", [Series("a", FALLING, True)], "iteration", "change", levels=[(1e-6, "tol 1e-6")]
    )


def test_the_end_says_how_it_ended() -> None:
    drawn = [draw_lines("ends", [Series("a", FALLING, end)], "x", "y").svg for end in (True, False, None)]
    markers = [ET.fromstring(svg).iter(f"{SVG}use") for svg in drawn]
    ends = [sum("var(--c0)" in use.get("style", "") for use in uses) for uses in markers]
    assert ends == [1, 1, 0]
    assert len(set(drawn)) == 3


def test_lines_differ_in_dash_or_color() -> None:
    chart = draw_lines("many", [Series(f"{k}", FALLING) for k in range(MOST_LINES + 5)], "x", "y")
    styles = [e.get("style") for e in ET.fromstring(chart.svg).iter(f"{SVG}path") if "var(--c" in e.get("style", "")]
    assert len(set(styles)) == MOST_LINES
    assert chart.note == "lines not drawn: 5"


def test_charts_for_narrow_windows_have_the_same_lines() -> None:
    chart = draw_lines("two", [Series("a", FALLING), Series("b", FALLING[:2])], "x", "y", levels=[(1e-6, "tol 1e-6")])
    widths = [float(re.match(r'<svg [^>]*width="([\d.]+)pt"', svg)[1]) for svg in (chart.svg, chart.narrow_svg)]
    assert widths == [828, 316.8]
    wide, narrow = (next(iter(ET.fromstring(svg).iter(f"{SVG}desc"))).text for svg in (chart.svg, chart.narrow_svg))
    assert wide == narrow
    for svg in (chart.svg, chart.narrow_svg):
        assert {"a", "b", "tol 1e-6"} <= {"".join(e.itertext()) for e in ET.fromstring(svg).iter(f"{SVG}text")}


def test_points_without_a_place_are_counted() -> None:
    points = [(0, 0.3), (1, 0.5), (2, 0.0), (3, math.nan), (4, math.inf), (5, 0.1)]
    chart = draw_lines("zero", [Series("a", points)], "x", "y")
    assert "a: 0.3 at 0 to 0.1 at 5." in chart.svg
    assert chart.note == "points not drawn because they are not positive, not finite or out of range: 3"


def test_numbers_beyond_the_axes_are_not_drawn() -> None:
    """Damaged results have any finite number; ticks of a logarithmic axis would be 0 or infinite."""
    points = [(1, 1e308), (2, 0.1), (3, 5e-324)]
    levels = [(1e308, "far"), (5e-324, "near"), (0.3, "tol 0.3")]
    chart = draw_lines("odd", [Series("a", points)], "x", "y", levels=levels)
    assert chart.note == "points not drawn because they are not positive, not finite or out of range: 2"
    assert "tol 0.3" in chart.svg
    assert "far" not in chart.svg


def test_nothing_to_draw() -> None:
    for lines in ([], [Series("a", [])], [Series("a", [(1, 0.0)])]):
        assert "nothing to draw" in texts_of(draw_lines("nothing", lines, "x", "y", levels=[(0.0, "tol 0")])), lines


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'mgspmv\[report\]'"):
        draw_lines("a", [], "x", "y")


# Colors


def read_colors() -> dict[str, dict[str, str]]:
    """The variables of the style sheet by mode."""
    page = (files("mgspmv.report") / "page.html.jinja").read_text(encoding="utf-8")
    blocks = [dict(re.findall(r"--([\w-]+): (#\w{6});", block)) for block in re.findall(r":root \{(.*?)\}", page, re.S)]
    light, dark, printed = blocks
    assert not [name for name in [*dark, *printed] if re.fullmatch(r"c\d", name)], "lines have one color in all modes"
    return {"light": light, "dark": light | dark, "print": light | printed}


def linearise(color: str) -> np.ndarray:
    c = np.array([int(color[k : k + 2], 16) for k in (1, 3, 5)]) / 255
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def contrast(a: str, b: str) -> float:
    """As the Web Content Accessibility Guidelines define it."""
    bright, dim = sorted((float(linearise(c) @ [0.2126, 0.7152, 0.0722]) for c in (a, b)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


def test_colors_can_be_seen():
    for mode, named in read_colors().items():
        colors = named | ({"card": "#ffffff"} if mode == "print" else {})
        assert min(contrast(colors[f"c{k}"], colors["card"]) for k in range(N_COLORS)) >= 3, mode
        for text, ground in itertools.product(("text", "muted", "accent", "good", "bad"), ("card", "page")):
            assert contrast(colors[text], colors[ground]) >= 4.5, (mode, text, ground)
        assert contrast(colors["good"], colors["good-soft"]) >= 4.5, mode
        assert contrast(colors["bad"], colors["bad-soft"]) >= 4.5, mode
