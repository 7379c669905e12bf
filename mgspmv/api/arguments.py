"""Arguments of calls: graphs in any form, numbers, and vectors from files or ranks; and calls with a matrix."""

from __future__ import annotations

import math
import os
import re
import sys
import time
import warnings
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial, wraps
from inspect import signature
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeAlias, TypedDict, TypeVar

import numpy as np

from mgspmv.api.matrix import Matrix
from mgspmv.errors import KindError, MgspmvError, OptionError, SourceError, StoreFormatError, StoreNotFoundError
from mgspmv.kernels.context import begin_context
from mgspmv.kernels.device import measure_memory
from mgspmv.logs import log_iteration
from mgspmv.lookup import UNKNOWN, VertexLookup
from mgspmv.model import BEGINNING, ChangeNorm, Event, Kind, RunProgress, Status
from mgspmv.monitor.progress import ProgressOption, make_report, watched
from mgspmv.order import restore
from mgspmv.results import Solution, describe_matrix, find_non_finite, load_solution
from mgspmv.saving import is_rank_table
from mgspmv.solvers.options import PageRankOptions, Placement, Reads, describe_end
from mgspmv.solvers.pagerank import RunInputs, describe_overflow, read_out_weight
from mgspmv.solvers.run import Outcome, add_event
from mgspmv.solvers.vectors import Weights
from mgspmv.store.held import name_matrix
from mgspmv.store.locations import is_zarr_group, is_zarr_store
from mgspmv.store.stored_matrix import MatrixProperties, StoredMatrix

if TYPE_CHECKING:
    from mgspmv.cluster.matrix import DistributedMatrix


P = ParamSpec("P")
R = TypeVar("R")

MatrixLike: TypeAlias = "Matrix | DistributedMatrix | Any"
"""What calls take as a matrix or graph: opened, distributed, or in another form of the page "Tables and arrays"; see
`as_matrix`."""

_ELSEWHERE = {
    **dict.fromkeys(("damping", "damping_factor"), "alpha="),
    **dict.fromkeys(("max_iterations", "iterations"), "max_iter="),
    **dict.fromkeys(("tolerance", "eps"), "tol="),
    **dict.fromkeys(("weights", "edge_weight"), "weight="),
    "where": "A.on(where)",
    "client": "A.on(client) or A.distribute(client)",
    **dict.fromkeys(
        ("backend", "kernel", "threads", "executor", "transport", "device_memory", "host_memory", "timeout", "recover"),
        "it to A.on() or A.distribute()",
    ),
}
"""What takes the place of arguments that other libraries have here, or that belong to the placement of a matrix."""


class Running(TypedDict, total=False):
    """Keywords of `power_iteration` and of the methods built on it; `PowerCall` has their defaults."""

    weight: bool | str | None
    tol: float | None
    norm: ChangeNorm
    max_iter: int
    precision: Literal["float64", "float32"]
    progress: ProgressOption
    throw: bool


@dataclass(frozen=True)
class Call:
    """One call with a matrix, in the place of the matrix, and the events of its iterations."""

    A: Any
    """Opened or distributed matrix."""
    progress: ProgressOption = None
    """Function that hears of phases and iterations."""
    began: float = field(default_factory=time.perf_counter)
    """Time of the call, in seconds of `time.perf_counter`."""
    events: list[Event] = field(default_factory=list)
    """Events of the iterations."""

    @property
    def place(self) -> Placement:
        """Placement of the matrix."""
        place: Placement = self.A.place
        return place

    def check_kernel(self, operation: str) -> None:
        """Raise `OptionError` if a kernel is asked for, which this operation chooses by itself."""
        if self.place.kernel != "auto":
            raise OptionError(
                f"{operation} chooses its kernel, but kernel={self.place.kernel!r} was passed to on() or distribute(); "
                "leave it out"
            )

    def distribute(self, reads: Reads, A: Any = None) -> AbstractContextManager[DistributedMatrix]:
        """Distribute the matrix, or another one, for a context; a distributed one stays as it is."""
        matrix = self.A if A is None else A
        distributes = isinstance(matrix, Matrix)
        return matrix.distribute_as_placed(reads, self.progress) if distributes else nullcontext(matrix)

    def report(self, phase: str, done: int, total: int | None) -> None:
        """Pass a phase to `progress`."""
        make_report(self.progress)(phase, done, total)

    def emit(self, event: Event) -> None:
        """Record the event of an iteration, log it and pass it to `progress`."""
        add_event(self.events, event)
        log_iteration(event)
        if callable(self.progress):
            self.progress(event)

    def count_loading(self, outcome: Outcome, loaded: float, **held: int) -> None:
        """Add the time from the call to `loaded` to the phase `load`, or `start` where the matrix is on a cluster; the
        time in which its source was read for this call to `read`; and the memory of this process where it computes,
        with what it holds.
        """
        phase = "start" if self.place.is_distributed else "load"
        outcome.seconds[phase] = outcome.seconds.get(phase, 0.0) + loaded - self.began
        if self.A.reading_s:
            outcome.seconds["read"], self.A.reading_s = self.A.reading_s, 0.0
        if not self.place.is_on_cluster:
            taken = measure_memory(has_device=self.place.computes == "cuda") | held
            outcome.memory.update({name: [n_bytes] for name, n_bytes in taken.items()})

    def make_solution(
        self, outcome: Outcome, options: dict[str, Any], before: RunProgress = BEGINNING, *, is_rank: bool = False
    ) -> Solution:
        """Make the solution of a run.

        Parameters
        ----------
        before : progress that the run resumed from
        is_rank : whether the values are ranks, which sum to 1
        """
        A, events = self.A, tuple(self.events)
        changes = before.changes + tuple(event.change for event in events)
        reached = (outcome.values, outcome.status, len(changes), changes, outcome.seconds, outcome.error_bound_l1)
        told = (A.stored.known_info, outcome.hardware, outcome.transport)
        matrix = describe_matrix(*told, is_reversed=is_rank and A.is_transpose)
        memory = outcome.memory | ({"held_bytes": list(events[-1].memory_bytes)} if events else {})
        wrong = find_non_finite(outcome.values, A.vertex_ids, outcome.status, len(changes), is_rank=is_rank)
        found = (outcome.stability, before.iteration, wrong, outcome.underflow, outcome.recoveries)
        return Solution(*reached, A.vertex_ids, options, matrix, events, memory, *found)


# --- graphs and matrices ---------------------------------------------------------------------------------------------


def as_matrix(A: Any, kind: Kind = "graph", *, weight: bool | str | None = True, **options: Any) -> Any:
    """Return an object as a `Matrix`: opened, or read into the memory of this process by `load`.

    Parameters
    ----------
    A : `Matrix` or `DistributedMatrix`, returned unchanged; path, URL or Zarr store of a matrix, which is opened; or
        another source that `load` reads. In a sparse matrix or a dense one, entry (i, j) is the arc i -> j
    kind : kind of matrix that is made from a source. `matrix` applies only to sparse and dense matrices; other sources
        are graphs then
    weight : name of the column or attribute with the weights; True for the usual names; None or False for none
    options : others of `load`

    Raises
    ------
    OptionError : an object that is none of these; a name of weights where there are no names
    SourceError : a source that cannot be read; a graph that is not square
    StoreError : the store cannot be read
    """
    names_weight, is_opened = isinstance(weight, str), isinstance(A, Matrix) or is_distributed(A)
    if not is_opened and options.get("backend") != "cpu":
        begin_context()
    if is_opened:
        opened = A
    elif (stored := find_store(A)) is not None:
        opened = Matrix(stored)
    else:
        return _read(A, kind, weight, options)
    if names_weight:
        raise OptionError(
            f"weight={weight!r} names a column or an attribute, but the matrix is stored already, with its values; "
            "pass weight=True, or weight=False to count each entry as 1"
        )
    return opened


def reads_input(
    kind: Kind = "graph", *, predicts: bool = True, transpose: bool = False
) -> Callable[[Callable[Concatenate[Any, P], R]], Callable[Concatenate[Any, P], R]]:
    """Decorate a call like `watched`, and so that its first argument may be whatever `as_matrix` takes.

    Names of weights, passed as `weight=`, are for the reading; the call itself uses the values of the matrix.

    Parameters
    ----------
    predicts : as in `watched`
    transpose : whether what is read needs its transpose
    """

    def decorate(call: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
        known = set(signature(call).parameters)
        if "running" in known:
            known = known - {"running"} | set(Running.__annotations__)

        @wraps(call)
        def run(A: Any, *args: P.args, **kwargs: P.kwargs) -> R:
            given = {**kwargs}
            for name in given.keys() - known:
                if name in _ELSEWHERE:
                    raise TypeError(f"{call.__name__}() has no argument {name}=; pass {_ELSEWHERE[name]}")
                raise TypeError(f"{call.__name__}() got an unexpected keyword argument {name!r}")
            weight: Any = given.get("weight", True)
            try:
                matrix = as_matrix(A, kind, weight=weight, progress=given.get("progress"), transpose=transpose)
            except MgspmvError as error:
                error.args = tuple(_reword(own, known) if isinstance(own, str) else own for own in error.args)
                raise
            if isinstance(weight, str):
                given["weight"] = True
            told: Any = given
            try:
                return call(matrix, *args, **told)
            finally:
                if matrix is not A:  # read or opened for this call
                    matrix.close()

        return watched(run, predicts=predicts)  # type: ignore[return-value]  # A may also be passed by name

    return decorate


def is_distributed(A: Any) -> bool:
    """Return whether an object is a matrix on a cluster."""
    if "mgspmv.cluster.matrix" not in sys.modules:  # otherwise nothing was distributed; avoids importing Dask
        return False
    from mgspmv.cluster.matrix import DistributedMatrix

    return isinstance(A, DistributedMatrix)


def _read(source: Any, kind: Kind, weight: bool | str | None, options: dict[str, Any]) -> Matrix:
    from mgspmv.api.reading import load
    from mgspmv.ingest.objects import is_sparse, open_device_arrays, to_host

    began = time.perf_counter()
    stays = kind == "graph" and not isinstance(weight, str) and options.get("backend") != "cpu"
    opened = open_device_arrays(source) if stays else None
    source = to_host(source) if opened is None else opened
    is_matrix = is_sparse(source) or isinstance(source, np.ndarray)
    if isinstance(weight, str):
        options = {"weights": weight, **options}
    elif not weight:
        options = {"weights": False, **options}
    if is_matrix and kind != "matrix":
        _check_square(source)
    matrix: Matrix = load(source, kind=None if kind == "matrix" and not is_matrix else kind, **options)
    report = matrix.ingest_report
    if report is not None:
        for warning in report.warnings:
            warnings.warn(f"{report.name}: {_name_weight(warning)}", stacklevel=6)
    matrix.reading_s = time.perf_counter() - began
    return matrix


def _name_weight(message: str) -> str:
    """Return a message of `ingest` with the `weight=` of calls in place of `weights=` and the third of `columns=`."""
    message = re.sub(r"name the weights as the third of columns=\(.*, (\".+\")\)", r"name it as weights=\1", message)
    return message.replace("weights=", "weight=")


def _reword(message: str, known: Collection[str]) -> str:
    """Return an error of `ingest` for a call with the arguments `known`; others are those of `ingest`."""
    from mgspmv.api.stores import ingest
    from mgspmv.ingest.open import EDGE_LIST_OPTIONS

    said = _name_weight(message)
    others = {*signature(ingest).parameters, *EDGE_LIST_OPTIONS} - {*known}
    if not any(name in others for name in re.findall(r"\b([a-z_]+)=", said)):
        return said
    return f"{said}; call mgspmv.ingest with such arguments, and pass the matrix that it returns"


def _check_square(matrix: Any) -> None:
    """Check that a matrix has a row and a column for each vertex; an edge index is none."""
    is_index = isinstance(matrix, np.ndarray) and matrix.dtype.kind in "iu" and 2 in matrix.shape
    if matrix.ndim != 2 or matrix.shape[0] == matrix.shape[1] or is_index:
        return
    hint = "; if its rows are the sources and targets of arcs, pass the tuple (edges[0], edges[1])"
    raise SourceError(
        "a graph needs a square matrix, with a row and a column for each vertex, but this one is of shape "
        f"{matrix.shape}; if it is the biadjacency matrix B of a bipartite graph, pass scipy.sparse.block_array("
        f"[[None, B], [B.T, None]]){hint if matrix.shape[0] == 2 else ''}"
    )


def find_store(source: Any) -> StoredMatrix | None:
    """Open the matrix store at a place; None if it is a source in another format, or not a place."""
    from mgspmv.ingest.detect import find_format_by_name, is_group_path

    is_path = isinstance(source, str | os.PathLike)
    is_group = is_zarr_store(source) or is_zarr_group(source) or (is_path and is_group_path(source))
    if not is_group and not (is_path and "://" in os.fspath(source)):
        return None
    if not is_group and isinstance(find_format_by_name(os.fspath(source)), str):
        return None
    from mgspmv.store.read import open_store

    if not is_group:
        with suppress(StoreNotFoundError):
            return open_store(source)
        return None
    if is_path and os.path.isdir(source):
        with suppress(StoreNotFoundError, StoreFormatError):  # otherwise it is another kind of group
            return open_store(source)
    from mgspmv.ingest.zarr_groups import find_matrix_store

    try:
        place = find_matrix_store(source)
    except SourceError:
        if is_zarr_group(source) or str(source).endswith(".zip"):
            raise
        return open_store(source)  # raises the error of a store
    return None if place is None else open_store(place)


# --- numbers and vectors ---------------------------------------------------------------------------------------------


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
            f"{name_matrix(A.stored)} is of kind 'matrix', whose rows need not be in-edges; for {operation} ingest its "
            f"source again with kind='graph' (entry (i, j) is the arc i -> j){other}"
        )


def check_graph(A: MatrixProperties, weights: bool) -> bool:
    """Check that PageRank can rank a graph, and return whether its values are used."""
    if A.stored.original is not None and A.stored.original.info.kind == "stochastic":
        raise KindError(
            f"the transpose of {name_matrix(A.stored)}, which is stochastic, need not be: its columns need not sum to "
            "1; to rank the reversed walk, ingest its source with kind='graph' (entry (i, j) is the arc i -> j)"
        )
    if A.kind == "matrix" and A.shape[0] != A.shape[1]:
        raise KindError(
            f"{name_matrix(A.stored)} is a matrix of {A.shape[0]:,} x {A.shape[1]:,}, and PageRank needs a square one, "
            "with a row and a column for each vertex"
        )
    check_in_edges(A, "PageRank", ", or 'stochastic' if its columns sum to 1")
    if A.shape[0] == 0:
        raise OptionError(f"{name_matrix(A.stored)} has no vertices, so there are no ranks")
    if A.kind == "stochastic" and not weights:
        raise OptionError("a stochastic matrix needs its values; pass weight=True, or ingest it with kind='graph'")
    least = A.stored.info.min_weight
    if weights and least is not None and least < 0:
        raise OptionError(
            f"PageRank needs non-negative weights, but the least is {least}; pass weight=False to count every edge as 1"
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
    """
    if Path(path).suffix == ".zarr" or (aligns and is_rank_table(path)):
        return load_solution(path)
    are_strings = vertex_ids is not None and vertex_ids.dtype == object
    from mgspmv.ingest.vertex_vectors import read_weights

    return read_weights(path, string_ids=are_strings, vertex_ids=vertex_ids if are_strings else None)


def align_ranks(before: Solution, A: MatrixProperties) -> np.ndarray:
    """Return earlier ranks by vertex id as (n,) float64; 1/n for new vertices, with a warning if most are new.

    Raises
    ------
    OptionError : scores in place of ranks; ids that are integers on one side and strings on the other; no vertex in
        common
    """
    if before.scaler != "none":
        raise OptionError(f"nstart holds ranks scaled by {before.scaler!r}; pass ranks as they were computed")
    old = before.ids
    are_strings = (old.dtype == object, A.stored.info.vertex_ids == "string")
    kinds = ["strings" if is_string else "integers" for is_string in are_strings]
    if kinds[0] != kinds[1]:
        raise OptionError(
            f"nstart has vertices named by {kinds[0]} and the store by {kinds[1]}; pass ranks of this graph"
        )
    places = VertexLookup(A.stored.original or A.stored).find(old)
    is_there = places != UNKNOWN
    if not is_there.any():
        raise OptionError("nstart has no vertex of the store; pass ranks of this graph, or of a version of it")
    n, n_known = A.shape[0], np.count_nonzero(is_there)
    if 2 * n_known < n:
        warnings.warn(
            f"nstart has ranks of {n_known:,} of {n:,} vertices, and the others start at 1/n; pass ranks of this graph "
            "unless it has grown so much",
            stacklevel=5,
        )
    ranks = np.full(n, 1.0 / n)
    ranks[places[is_there]] = before.values[is_there]
    return ranks
