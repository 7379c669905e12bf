"""Cards of notebooks, read back."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ReadCard:
    """What there is on a card."""

    title: str
    facts: dict[str, str]
    tables: list[list[list[str]]]
    """Of each its rows, the titles first."""


def read_card(shown: Any) -> ReadCard:
    """What an object shows in a notebook; fails where that is not well-formed, fetches something, or runs something."""
    root = ET.fromstring(shown._repr_html_())
    tags = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert not tags & {"script", "link", "img", "iframe", "object", "a"}, tags
    attributes = {name.lower() for element in root.iter() for name in element.attrib}
    assert not [name for name in attributes if name.startswith("on") or name.endswith(("href", "src"))]
    names, values = ([_join(e) for e in root.iter(tag)] for tag in ("dt", "dd"))
    tables = [[[_join(cell) for cell in row] for row in table.iter("tr")] for table in root.iter("table")]
    return ReadCard(_join(next(root.iter("header"))), dict(zip(names, values, strict=True)), tables)


def _join(element: ET.Element) -> str:
    return "".join(element.itertext()).strip()
