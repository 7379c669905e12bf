"""Checks of arguments and graphs that several calls share, and descriptions of a run on a graph."""

from __future__ import annotations

import math
from functools import partial
from numbers import Real

from mgspmv.errors import KindError, OptionError
from mgspmv.model import Precision
from mgspmv.order import restore
from mgspmv.solvers.inputs import RunInputs, read_out_weight
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


def describe_weight_overflow(
    A: MatrixProperties, start: RunInputs, precision: Precision, *, use_weights: bool
) -> str | None:
    """Describe the out-weight that made ranks overflow; None where out-weights do not explain it."""
    weight = start.take_weight(partial(read_out_weight, A.stored, use_weights))
    return describe_overflow(restore(weight, A.order), A.vertex_ids, precision)
