"""Parts of stores: ids of vertices, what makes a small matrix one of many pieces, and what a part must be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mgspmv as mg

N = 13
IDS = {"numbers": int, "int64": lambda k: 1000 * int(k) - 3000, "string": lambda k: f"v{int(k):02}"}
SMALL = {
    "store__chunks": {"CHUNK_ELEMENTS": 7},
    "ingest__stored": {"CHUNK_ELEMENTS": 7, "PIECE_ENTRIES": 7, "PIECE_ROWS": 5},
    "ingest__subgraph": {"PIECE_IDS": 3},
}
"""Pieces and chunks of which a small matrix has many; for `shrink`."""


def list_vertices(path: Path, kept: Any, ids: str) -> Path:
    path.write_text("".join(f"{IDS[ids](k)}\n" for k in sorted(kept)))
    return path


def cut(store: Any, **options: Any) -> mg.Matrix:
    """A part in the memory of this process, in which nothing is wrong."""
    part = mg.subgraph(store, **options)
    assert mg.verify(part) == []
    return part
