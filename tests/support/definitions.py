"""Definitions of pipelines for tests, on graphs of a few vertices."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from mgspmv.batch_results import load_batch
from mgspmv.errors import StoreFormatError
from mgspmv.pipeline.records import digest_ranks
from mgspmv.pipeline.steps import compute_checksum
from mgspmv.results import load_solution

EDGES = "# a cycle with a chord\n1 2\n2 3\n3 1\n1 3\n"

WEB = """
folder = "out"
[matrix.web]
source = "edges.txt"
"""

THREE = """
folder = "out"
[matrix.web]
source = "edges.txt"
[matrix.rmat]
generate = "rmat"
parameters = {scale = 6, edge_factor = 4, seed = 1}
[matrix.ring]
source = "ring.mtx"
kind = "graph"
[run]
top = 3
[run.damping]
alpha = [0.5, 0.85]
[run.plain]
[run.warm]
nstart = "previous"
"""
"""Three graphs, four runs of each."""


def write_definition(text: str = WEB, name: str = "p.toml") -> str:
    Path(name).write_text(text)
    return name


def write_sources(folder: Path) -> None:
    (folder / "edges.txt").write_text(EDGES)
    arcs = [(k, k % 7 + 1) for k in range(1, 8)] + [(1, 4)]
    lines = ["%%MatrixMarket matrix coordinate pattern general", "7 7 8", *(f"{i} {j}" for i, j in arcs)]
    (folder / "ring.mtx").write_text("\n".join([*lines, ""]))


def list_files(folder: str | os.PathLike[str]) -> dict[str, tuple[int, int]]:
    """All in a folder, folders too, with sizes and times of change."""
    found = sorted(Path(folder).rglob("*"))
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in found}


def find_states(record: Any) -> dict[str, str]:
    return {step.name: step.state for step in record.steps}


def find_digests(record: Any) -> dict[str, str]:
    """Of all results, by where they are."""
    return {output.path: output.digest for step in record.steps for output in step.record.outputs}


def digest_output(path: Path) -> str:
    """SHA-256 of what a result holds, read again."""
    if path.name in ("ranks.zarr", "ranks.parquet"):
        try:
            return digest_ranks(load_solution(path))
        except StoreFormatError:
            return digest_ranks(load_batch(path))
    return compute_checksum(path)
