"""Cards: what is on them is text, their colours are seen on any page, and long things are cut and counted."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from mgspmv.display.cards import (
    COLOURS,
    LONGEST,
    MOST_ROWS,
    Card,
    Share,
    draw_convergence,
    draw_shares,
    format_range,
    format_shape,
    make_table,
    quote,
    render_card,
)
from mgspmv.display.charts import N_COLOURS
from tests.support.cards import read_card

MARKUP = "<script>alert('web')</script>&amp;\"'"


@dataclass(frozen=True)
class Shown:
    """An object with a card."""

    card: Card = field(default_factory=lambda: Card("Thing", []))

    def _repr_html_(self) -> str:
        return render_card(self.card)


def test_what_users_gave_is_text() -> None:
    table = make_table(MARKUP, ("vertex",), [(MARKUP,)], 1)
    chart = draw_convergence([(MARKUP, (1.0, 0.1), True), ("other", (1.0, 0.2), False)])
    found = read_card(Shown(Card("Solution", [("matrix", MARKUP)], MARKUP, True, [chart], [table])))
    assert found.title == f"Solution ✓ {MARKUP}"
    assert found.facts == {"matrix": MARKUP}
    assert found.tables == [[["vertex"], [MARKUP]]]
    assert "<script" not in Shown(Card(MARKUP, [(MARKUP, MARKUP)]))._repr_html_()


def test_a_bad_state_is_told_from_a_good_one_without_its_colour() -> None:
    assert read_card(Shown(Card("Solution", [], "max_iter", False))).title == "Solution ✕ max_iter"
    assert read_card(Shown(Card("Matrix", []))).title == "Matrix"


def test_long_texts_are_cut_and_whole_in_their_tips() -> None:
    long = "s3://bucket/" + "x" * 100 + ".zarr"
    html = Shown(Card("Matrix", [("store", long)]))._repr_html_()
    assert f'title="{long}"' in html
    assert len(read_card(Shown(Card("Matrix", [("store", long)]))).facts["store"]) == LONGEST


def test_rows_that_are_not_shown_are_counted_and_not_asked_for() -> None:
    asked: list[int] = []

    def describe(k: int) -> tuple[str]:
        asked.append(k)
        return (str(k),)

    table = make_table("Vectors", ("vector",), map(describe, range(5000)), 5000)
    assert len(table.rows) == len(asked) == MOST_ROWS
    assert f"and {5000 - MOST_ROWS:,} more" in render_card(Card("BatchSolution", [], tables=[table]))
    assert "more" not in render_card(Card("BatchSolution", [], tables=[make_table("Vectors", ("v",), [("1",)], 1)]))


def test_convergence_is_on_a_logarithmic_axis_from_the_first_iteration() -> None:
    chart = draw_convergence([("ranks", (1.0, 0.01, 0.0), True)])
    assert "change, logarithmic" in chart.svg
    assert "1 at 1 to 0.01 at 2" in chart.svg
    assert "1 point is left out" in chart.note


def test_shares_of_workers() -> None:
    sizes, memory = draw_shares([Share("worker 0", 10, 200, 3_000, 5_000), Share("worker 1", 20, 100, 4_000, None)])
    assert "worker 0: rows 10, entries 200." in sizes.svg
    assert "worker 0: host 3 kB, device 5 kB. worker 1: host 4 kB." in memory.svg
    assert [key.label for key in draw_shares([Share("worker 0", 1, 1, 1, None)])[1].keys] == ["host"]


def test_words() -> None:
    assert format_shape((1000, 7)) == "1,000 × 7"
    assert (format_range([3, 1, 2000]), format_range([5, 5])) == ("1 to 2,000", "5")
    assert (quote(17), quote("a\nb"), len(quote("x" * 99))) == ("17", r"'a\nb'", 40)


def test_colours_are_seen_on_light_and_on_dark_pages() -> None:
    """A contrast of 3, which the Web Content Accessibility Guidelines ask of drawings; 2.7 on greys of editors."""
    assert len(COLOURS) == N_COLOURS
    for ground, least in {"#ffffff": 3.0, "#000000": 3.0, "#1e1e1e": 2.7, "#f3f3f3": 2.7}.items():
        assert [colour for colour in COLOURS if find_contrast(colour, ground) < least] == [], ground


def test_text_has_the_colour_of_the_page() -> None:
    style = re.findall(r"[^-](?:color|fill): ([^;]+);", Shown()._repr_html_())
    assert set(style) == {"inherit", "currentColor", "none", "var(--c)"}


def find_contrast(one: str, other: str) -> float:
    bright, dark = sorted((find_luminance(one), find_luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def find_luminance(colour: str) -> float:
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
