"""HTML that notebooks show for an object: tables of its fields, without a script, in the colors of the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from html import escape
from typing import Any

from mgspmv.display.numbers import shorten
from mgspmv.errors import hide_secrets

LONGEST = 90
"""Most characters of a text in a table; longer ones are shortened in the middle."""
LONGEST_ID = 40
"""Most characters of an id or a label."""
MOST_ROWS = 20
"""Most rows of a table."""


def render_card(shown: Any, described: Any = None) -> str:
    """Return the HTML of an object: its `repr` and its fields that can be written in a line; and a table of each field
    that lists data classes.

    Parameters
    ----------
    described : object of a data class whose fields are shown; default `shown` itself
    """
    own = _list_fields(shown if described is None else described)
    facts = [(name, text) for name, value in own.items() if (text := _describe(value))]
    tables = [make_table(repr(shown), facts)]
    for name, value in own.items():
        if isinstance(value, Sequence) and value and is_dataclass(value[0]):
            rows = [_list_fields(each) for each in value[:MOST_ROWS]]
            titles = [title for title in rows[0] if any(_describe(row[title]) for row in rows)]
            caption = name if len(rows) == len(value) else f"{name}, the first {len(rows):,} of {len(value):,}"
            tables.append(make_table(caption, [titles, *([_describe(row[t]) for t in titles] for row in rows)]))
    return f"<div>{''.join(tables)}</div>"


def quote(label: Any) -> str:
    """Format a vertex id or a label: strings in quotes, shortened."""
    return shorten(repr(label) if isinstance(label, str) else str(label), LONGEST_ID)


def _list_fields(shown: Any) -> dict[str, Any]:
    return {each.name: getattr(shown, each.name) for each in fields(shown)}


def _describe(value: Any) -> str:
    """Format a value, a pair, or a dictionary of values in a line; empty for other types."""
    if isinstance(value, Mapping):
        said = {name: _describe(each) for name, each in value.items()}
        return ", ".join(f"{name} {text}" for name, text in said.items() if text)
    if isinstance(value, list | tuple) and len(value) == 2 and all(isinstance(each, int) for each in value):
        return " × ".join(f"{each:,}" for each in value)
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value) if isinstance(value, bool | str) else ""


def make_table(caption: str, rows: Sequence[Sequence[str]]) -> str:
    """Return the HTML of a table of texts, which are escaped."""
    lines = ["".join(f"<td>{_write(text)}</td>" for text in row) for row in rows]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><caption>{escape(hide_secrets(caption))}</caption>{body}</table>"


def _write(text: str) -> str:
    return escape(shorten(hide_secrets(text), LONGEST))
