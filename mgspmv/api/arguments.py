"""Arguments that several calls share: checks of numbers and graphs, and vectors from files or earlier ranks."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from functools import partial
from numbers import Real
from pathlib import Path

import numpy as np

from mgspmv.errors import KindError, OptionError
from mgspmv.ingest.vector_files import read_weights
from mgspmv.lookup import UNKNOWN, VertexLookup
from mgspmv.model import Status
from mgspmv.order import restore
from mgspmv.results import Solution, load_solution
from mgspmv.saving import is_rank_table
from mgspmv.solvers.inputs import RunInputs, read_out_weight
from mgspmv.solvers.options import PageRankOptions, describe_end
from mgspmv.solvers.out_weight import describe_overflow
from mgspmv.solvers.vectors import Weights
from mgspmv.store.metadata import MatrixProperties


def read_number(name: str, number: object) -> float:
    """Return a number as float; raise `OptionError` unless it is real and finite."""
    if not isinstance(number, Real) or not math.isfinite(float(number)):
        raise OptionError(f"{name} must be a finite number, not {number!r}")
    return float(number)


def check_in_edges(A: MatrixProperties, operation: str, other: str = "") -> None:
    """Raise `KindError` for a store of kind `matrix`, whose rows need not be in-edges.

    Parameters
    ----------
    operation : name of the computation, which needs in-edges
    other : what else helps, after `kind='graph'`
    """
    if (A.stored.original or A.stored).info.kind == "matrix":
        raise KindError(
            f"{A.info.url} is a store of kind 'matrix', whose rows need not be in-edges; for {operation} ingest its "
            f"source again with kind='graph' (entry (i, j) is the arc i -> j){other}"
        )


def check_graph(A: MatrixProperties, weights: bool) -> bool:
    """Check that PageRank can rank a graph, and return whether its values are used."""
    if A.stored.original is not None and A.stored.original.info.kind == "stochastic":
        raise KindError(
            f"the transpose of {A.info.url}, which is stochastic, need not be: its columns need not sum to 1; to "
            "rank the reversed walk, ingest its source with kind='graph' (entry (i, j) is the arc i -> j)"
        )
    if A.kind == "matrix" and A.shape[0] != A.shape[1]:
        raise KindError(
            f"{A.info.url} is a matrix of {A.shape[0]:,} x {A.shape[1]:,}, and PageRank needs a square one, with a row "
            f"and a column for each vertex"
        )
    check_in_edges(A, "PageRank", ", or 'stochastic' if its columns sum to 1")
    if A.shape[0] == 0:
        raise OptionError(f"{A.info.url} has no vertices, so there are no ranks")
    if A.kind == "stochastic" and not weights:
        raise OptionError("a stochastic matrix needs its values; pass weight=True, or ingest it with kind='graph'")
    if weights and A.info.min_weight is not None and A.info.min_weight < 0:
        raise OptionError(
            f"PageRank needs non-negative weights, but the least is {A.info.min_weight}; pass weight=False to "
            "count every edge as 1"
        )
    return weights and not A.is_pattern


def describe_dangling(dangling: Weights | str | None) -> str:
    return "personalization" if dangling is None else dangling if isinstance(dangling, str) else "vector"


def describe_failure(
    A: MatrixProperties,
    options: PageRankOptions,
    start: RunInputs,
    status: Status,
    changes: Sequence[float],
    *,
    use_weights: bool,
) -> str:
    """Describe the end of a run that did not converge, with advice."""
    n, nnz = A.shape[0], A.nnz
    end = describe_end(status, len(changes), changes[-1], options.choose_tol(n, nnz), options.norm)
    advice = options.advise(status, changes, n, nnz)
    if status == Status.NON_FINITE:  # where out-weights do not explain it, the advice of the status stays
        weight = restore(start.take_weight(partial(read_out_weight, A.stored, use_weights)), A.order)
        advice = describe_overflow(weight, A.vertex_ids, options.precision) or advice
    return f"{end}. {advice}"


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
    return read_weights(path, string_ids=are_strings, vertex_ids=vertex_ids if are_strings else None)


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
