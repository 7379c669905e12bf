"""Near misses of names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def suggest(name: str, known: Iterable[str]) -> str:
    """The near miss, in words; nothing where there is none."""
    known = list(known)
    near = [k for k in known if name and (name.startswith(k) or k.startswith(name))]
    near = near or difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""
