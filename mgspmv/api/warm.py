"""Vectors read from files, and earlier ranks of a graph as the start of a run on its new version."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from mgspmv.errors import OptionError
from mgspmv.ingest.vector_files import Weights, read_weights
from mgspmv.lookup import UNKNOWN, VertexLookup
from mgspmv.results import Solution, load_solution
from mgspmv.saving import is_rank_table
from mgspmv.store.metadata import MatrixProperties


def read_vector(
    path: str | os.PathLike[str], vertex_ids: np.ndarray | None, *, aligns: bool = False
) -> Solution | Weights:
    """Read a vector over vertices: results that `Solution.save` wrote, or a file for `read_weights`; ids alone have 1.

    Parameters
    ----------
    vertex_ids : of the store, None for 0..n-1
    aligns : ranks in Parquet are read as a Solution, which `align_ranks` takes; else as ids and numbers

    Raises
    ------
    StoreError, SourceError : as in `load_solution` and `read_weights`
    """
    if Path(path).suffix == ".zarr" or (aligns and is_rank_table(path)):
        return load_solution(path)
    are_strings = vertex_ids is not None and vertex_ids.dtype == object
    found = read_weights(path, string_ids=are_strings, vertex_ids=vertex_ids if are_strings else None)
    return dict.fromkeys(found, 1.0) if isinstance(found, list) else found


def align_ranks(before: Solution, A: MatrixProperties) -> np.ndarray:
    """Return earlier ranks by vertex id as (n,) float64; 1/n for new vertices.

    Raises
    ------
    OptionError : scores in place of ranks; ids that are integers on one side and strings on the other; no vertex in
        common
    """
    if before.scaler != "none":
        raise OptionError(f"nstart holds ranks scaled by {before.scaler!r}; pass ranks as they were computed")
    old = before.ids
    kinds = [
        "strings" if is_string else "integers" for is_string in (old.dtype == object, A.info.vertex_ids == "string")
    ]
    if kinds[0] != kinds[1]:
        raise OptionError(
            f"nstart has vertices named by {kinds[0]} and the store by {kinds[1]}; pass ranks of this graph"
        )
    places = VertexLookup(A.stored.original or A.stored).find(old)
    is_there = places != UNKNOWN
    if not is_there.any():
        raise OptionError("nstart has no vertex of the store; pass ranks of this graph, or of a version of it")
    ranks = np.full(A.shape[0], 1.0 / A.shape[0])
    ranks[places[is_there]] = before.values[is_there]
    return ranks
