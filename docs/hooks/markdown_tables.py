"""Tables, and what their cells must not hold."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

DEFAULT = re.compile(r"[;,:]? default ((?:(?!\. )[^;])+?)\.?$")


def make_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells that are Markdown already."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"


def escape(text: str) -> str:
    """Plain words as Markdown in a cell: what is between backticks stays code, on one line."""
    parts = " ".join(text.split()).split("`")
    parts[::2] = [re.sub(r"([\\|*_<\[])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


def show_code(text: str) -> str:
    """Code in a cell; nothing where there is none."""
    return f"`{text}`" if text else ""


def split_default(text: str) -> tuple[str, str]:
    """A description less what it ends with on the default, and that: of `Rows; default all.` `Rows.` and `all`."""
    found = DEFAULT.search(text)
    return (text, "") if found is None else (f"{text[: found.start()]}.", found[1])
