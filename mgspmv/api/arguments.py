"""Calls with a matrix, and arguments that several share: checks of numbers and graphs, vectors from files or ranks."""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mgspmv.api.matrix import Matrix
from mgspmv.checkpoints import BEGINNING, RunProgress
from mgspmv.errors import KindError, OptionError
from mgspmv.kernels.device import measure_memory
from mgspmv.logs import log_iteration
from mgspmv.lookup import UNKNOWN, VertexLookup
from mgspmv.model import Event, Status
from mgspmv.monitor.progress import ProgressOption, make_report
from mgspmv.order import restore
from mgspmv.results import Solution, describe_matrix, find_non_finite, load_solution
from mgspmv.saving import is_rank_table
from mgspmv.solvers.inputs import RunInputs, describe_overflow, read_out_weight
from mgspmv.solvers.options import PageRankOptions, describe_end
from mgspmv.solvers.placing import Placement
from mgspmv.solvers.run import Outcome, add_event
from mgspmv.solvers.vectors import Weights
from mgspmv.store.metadata import MatrixProperties

if TYPE_CHECKING:
    from mgspmv.cluster.matrix import DistributedMatrix


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

    def distribute(self, A: Any = None, **reads: Any) -> AbstractContextManager[DistributedMatrix]:
        """Distribute the matrix, or another one, for a context; a distributed one stays as it is.

        Parameters
        ----------
        reads : as in `distribute_matrix`
        """
        matrix = self.A if A is None else A
        distributes = isinstance(matrix, Matrix)
        return matrix.distribute_as_placed(self.progress, **reads) if distributes else nullcontext(matrix)

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
        if isinstance(self.A, Matrix) and (reading_s := self.A.take_reading()):
            outcome.seconds["read"] = reading_s
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
        told = (A.info, outcome.hardware, outcome.transport)
        matrix = describe_matrix(*told, is_reversed=is_rank and A.is_transpose)
        memory = outcome.memory | ({"held_bytes": list(events[-1].memory_bytes)} if events else {})
        wrong = find_non_finite(outcome.values, A.vertex_ids, outcome.status, len(changes), is_rank=is_rank)
        found = (outcome.stability, before.iteration, wrong, outcome.underflow, outcome.recoveries)
        return Solution(*reached, A.vertex_ids, options, matrix, events, memory, *found)


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
    """
    if Path(path).suffix == ".zarr" or (aligns and is_rank_table(path)):
        return load_solution(path)
    are_strings = vertex_ids is not None and vertex_ids.dtype == object
    from mgspmv.ingest.vector_files import read_weights

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
