"""What a notebook shows: fields as text, and long things cut and counted."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import dataclass
from typing import Any

import numpy as np

import mgspmv as mg
from mgspmv.display.frames import LONGEST, MOST_ROWS, quote, render_card

MARKUP = "<script>alert('web')</script>&amp;\"'"


@dataclass(frozen=True)
class Step:
    name: str
    seconds: float | None = None


@dataclass(frozen=True)
class Shown:
    store: str
    shape: tuple[int, int] = (1000, 7)
    is_whole: bool = True
    nnz: int = 12345
    missing: str | None = None
    options: Any = None
    steps: tuple[Step, ...] = ()

    def __repr__(self) -> str:
        return f"<Shown: {self.store}>"


def read_card(shown: Any, described: Any = None) -> list[tuple[str, list[list[str]]]]:
    """Caption and rows of each table."""
    tables = ET.fromstring(render_card(shown, described)).iter("table")
    read = [[["".join(cell.itertext()) for cell in row] for row in table.iter("tr")] for table in tables]
    card = ET.fromstring(render_card(shown, described))
    captions = ["".join(each.itertext()) for each in card.iter() if each.tag in ("caption", "summary")]
    return list(zip(captions, read, strict=True))


def test_fields_that_say_something_are_shown() -> None:
    [(caption, rows)] = read_card(Shown("web.zarr", options={"alpha": 0.85, "x": None, "in": {"k": 2}}))
    assert caption == "<Shown: web.zarr>"
    assert dict(rows) == {
        "store": "web.zarr",
        "shape": "1,000 × 7",
        "is_whole": "True",
        "nnz": "12,345",
        "options": "alpha 0.85, in k 2",
    }
    assert read_card("an opened one", Shown("web.zarr"))[0][0] == "'an opened one'"


def test_what_users_gave_is_text_and_tells_no_secrets() -> None:
    (caption, rows), (_, steps) = read_card(Shown(MARKUP, steps=(Step(MARKUP),)))
    assert (caption, rows[0], steps) == (f"<Shown: {MARKUP}>", ["store", MARKUP], [["name"], [MARKUP]])
    assert "<script" not in render_card(Shown(MARKUP))
    assert "secret" not in render_card(Shown("memory://me:secret@bucket/web.zarr"))


def test_long_texts_are_cut_and_rows_that_are_not_shown_are_counted() -> None:
    (_, rows), (caption, steps) = read_card(Shown("x" * 200, steps=tuple(Step(str(k), k / 2) for k in range(5000))))
    assert len(rows[0][1]) == LONGEST
    assert caption == f"steps, the first {MOST_ROWS} of 5,000"
    assert (steps[0], steps[-1], len(steps)) == (["name", "seconds"], ["19", "9.5"], MOST_ROWS + 1)
    assert (quote(17), quote("a\nb"), len(quote("x" * 99))) == ("17", r"'a\nb'", 40)


def test_names_of_rows_and_of_columns_are_titles() -> None:
    card = ET.fromstring(render_card(Shown("web.zarr", steps=(Step("a", 2.0), Step("b", 3.0)))))
    facts, steps = card.findall("table")
    assert [[cell.tag for cell in row] for row in facts.iter("tr")] == [["th", "td"]] * 4
    assert [[cell.tag for cell in row] for row in steps.iter("tr")] == [["th", "th"], ["td", "td"], ["td", "td"]]


def test_iterations_are_folded() -> None:
    solution = mg.pagerank(np.array([[0.0, 1.0], [1.0, 0.0]]))
    [(_, rows)] = [table for table in read_card(solution) if table[0] == "events"]
    assert len(rows) == solution.iterations + 1
    assert len(ET.fromstring(solution._repr_html_()).findall("details/table")) == 1
