"""Cards: what is on them is text, and long things are cut and counted."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from mgspmv.display.cards import (
    LONGEST,
    MOST_ROWS,
    Card,
    format_range,
    format_shape,
    make_table,
    quote,
    render_card,
)
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
    found = read_card(Shown(Card("Solution", [("matrix", MARKUP)], MARKUP, True, [table])))
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


def test_words() -> None:
    assert format_shape((1000, 7)) == "1,000 × 7"
    assert (format_range([3, 1, 2000]), format_range([5, 5])) == ("1 to 2,000", "5")
    assert (quote(17), quote("a\nb"), len(quote("x" * 99))) == ("17", r"'a\nb'", 40)


def test_text_has_the_colour_of_the_page() -> None:
    style = re.findall(r"[^-](?:color|fill): ([^;]+);", Shown()._repr_html_())
    assert set(style) == {"inherit"}
