"""Keys of a definition, and what is said of them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

Key = tuple[str, ...]
"""Names of tables and of the key in them."""
Problem = tuple[Key, str]
"""What is wrong with a key."""


def suggest(name: str, known: Iterable[str]) -> str:
    """The near miss, in words; nothing where there is none."""
    near = find_near(name, known)
    return f"; did you mean {near!r}?" if near else ""


def find_near(name: str, known: Iterable[str]) -> str | None:
    """The name that is probably meant; None where none is like it."""
    known = list(known)
    near = [k for k in known if name and (name.startswith(k) or k.startswith(name))]
    near = near or difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return near[0] if near else None
