"""What a notebook shows of an object: a card of HTML with its own style and no script, for light pages and dark ones.

A card takes its colors from the page that it is on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import islice
from typing import TYPE_CHECKING, Any

from mgspmv.display.numbers import shorten

if TYPE_CHECKING:
    from jinja2 import Template

LONGEST = 90
"""Characters of a text on a card; of longer ones the begin and the end are shown, and all of it as a tip."""
MOST_ROWS = 20
"""Of a table on a card."""


@dataclass(frozen=True)
class Table:
    """Rows of texts, each as long as the titles."""

    caption: str
    titles: Sequence[str]
    rows: Sequence[Sequence[str]]
    n_left_out: int = 0


@dataclass(frozen=True)
class Card:
    """What there is to say of an object. Whatever is in it is text, never markup."""

    title: str
    facts: Sequence[tuple[str, str]]
    """Names and what they are."""
    state: str = ""
    """In a word; empty where it has none."""
    is_success: bool = True
    """Whether the state is a good one."""
    tables: Sequence[Table] = ()


def render_card(card: Card) -> str:
    """The HTML of a card; it needs nothing else."""
    return _load_template().render(card=card, longest=LONGEST).strip()


def make_table(caption: str, titles: Sequence[str], rows: Iterable[Sequence[str]], n_rows: int) -> Table:
    """A table of the first of `n_rows` rows; the others are not asked for."""
    shown = list(islice(rows, MOST_ROWS))
    return Table(caption, titles, shown, n_rows - len(shown))


def format_shape(shape: Sequence[int]) -> str:
    """Rows by columns."""
    return " × ".join(f"{n:,}" for n in shape)


def format_range(counts: Sequence[int]) -> str:
    """The least and the most, or what all are."""
    least, most = min(counts), max(counts)
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def quote(label: Any) -> str:
    """A vertex id or a label in a line: strings in quotes, shortened."""
    return shorten(repr(label) if isinstance(label, str) else str(label), 40)


@cache
def _load_template() -> Template:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["shorten"] = shorten
    return environment.from_string((files("mgspmv.display") / "card.html.jinja").read_text(encoding="utf-8"))
