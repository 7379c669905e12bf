"""Parts of stores: ids of vertices, what makes a small matrix one of many pieces, and what a part must be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import mgspmv as mg

N = 13
IDS = {"numbers": int, "int64": lambda k: 1000 * int(k) - 3000, "string": lambda k: f"v{int(k):02}"}
SMALL = {
    "store__digests": {"CHUNK_ELEMENTS": 7},
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


def make_table(arcs: list[tuple[int, int, float]], ids: str, dtype: Any) -> pa.Table:
    """Arcs with ids of a kind; with weights if there is a dtype."""
    type_of_ids = pa.string() if ids == "string" else pa.int64()
    columns = {
        name: pa.array([IDS[ids](arc[side]) for arc in arcs], type_of_ids) for side, name in enumerate(("a", "b"))
    }
    weights = {} if dtype is None else {"weight": pa.array(np.array([weight for *_, weight in arcs], dtype))}
    return pa.table(columns | weights)


def find_left(place: Any, ids: str, stays: Callable[[int, int, Any], bool]) -> list[tuple[int, int, Any]]:
    """The arcs that stay, read by SciPy, in the order of the store."""
    entries, numbers = place.to_scipy().tocoo(), sorted(range(N), key=IDS[ids])
    arcs = ((numbers[j], numbers[i], value) for i, j, value in zip(*entries.coords, entries.data, strict=True))
    return [arc for arc in arcs if stays(*arc)]
