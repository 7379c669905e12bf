"""Tables for text output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def tabulate(titles: Sequence[str], rows: Sequence[Sequence[Any]], n_texts: int = 0) -> Any:
    """Make a table whose last `n_texts` columns are text, left-aligned; numbers are right-aligned."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD)
    for place, title in enumerate(titles):
        is_text = place >= len(titles) - n_texts
        table.add_column(title, justify="left" if is_text else "right", overflow="fold")
    for row in rows:
        table.add_row(*(str(cell).replace("\n", r"\n").replace("\t", r"\t") for cell in row))
    return table


def tabulate_fields(fields: dict[str, Any]) -> Any:
    """Make a table of names and values; values that are None or empty are left out."""
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in fields.items():
        if value not in (None, "", [], {}):
            table.add_row(name, str(value))
    return table
