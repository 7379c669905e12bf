"""Where in a TOML file keys are, for messages."""

from __future__ import annotations

import tomllib
from typing import Any

from mgspmv.pipeline.near import Key


def find_line(text: str, key: Key) -> int | None:
    """The line, from 1, where a key or table is first set, or else the nearest table around it; None for none.

    A statement ends where the lines up to it are TOML, and what is then there and was not before is its.
    """
    lines, begin = text.split("\n"), 0
    found: dict[int, int] = {}
    for end in range(1, len(lines) + 1):
        tables = _parse("\n".join(lines[:end]))
        if tables is not None:
            depth = _measure_depth(tables, key)
            found |= {known: begin + 1 for known in range(1, depth + 1) if known not in found}
            begin = end
        if len(key) in found:
            break
    return found[max(found)] if found else None


def _parse(text: str) -> dict[str, Any] | None:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None


def _measure_depth(tables: dict[str, Any], key: Key) -> int:
    """How many parts of a key are there."""
    value: Any = tables
    for depth, name in enumerate(key):
        if isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        elif isinstance(value, dict) and name in value:
            value = value[name]
        else:
            return depth
    return len(key)
