"""PageRank of many personalizations and dampings of one stored graph."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from mgspmv.api.arguments import Call, MatrixLike, check_graph, describe_dangling, describe_failure, reads_input
from mgspmv.batch_results import BatchSolution, fill_id
from mgspmv.errors import CapacityError, ConvergenceError, OptionError, ShapeError
from mgspmv.exchange.exchange import LocalExchange
from mgspmv.kernels.device import free_device_memory
from mgspmv.kernels.highest import order_highest
from mgspmv.kernels.operands import WIDTHS
from mgspmv.logs import name_run
from mgspmv.model import ChangeNorm, Event, Precision, check_choice, free_memory
from mgspmv.monitor.progress import ProgressOption
from mgspmv.order import restore
from mgspmv.results import describe_matrix
from mgspmv.solvers.batch import Batch, BatchTask, Ending, FinishedVectors, choose_width, count_bytes
from mgspmv.solvers.options import PageRankOptions, Reads
from mgspmv.solvers.pagerank import RunInputs, make_inputs
from mgspmv.solvers.run import Outcome, run, widen_bound
from mgspmv.solvers.vectors import Query, Weights, make_queries
from mgspmv.store.stored_matrix import MatrixProperties


@reads_input(predicts=False)
def pagerank_batch(
    A: MatrixLike,
    personalization: Any = None,
    *,
    alpha: float | Sequence[float] = 0.85,
    dangling: Weights | Literal["uniform", "drop", "error"] | None = None,
    weight: bool | str | None = True,
    out_weight: Weights | None = None,
    tol: float | None = None,
    norm: ChangeNorm = "l1",
    max_iter: int = 100,
    precision: Precision = "exact",
    width: int | None = None,
    keep_top: int | None = None,
    progress: ProgressOption = None,
    throw: bool = True,
) -> BatchSolution:
    """Compute PageRank for many personalizations, dampings or both, several in each pass over the matrix.

    Ranks are bit-identical, and iterations, status and error bound equal, to those of `pagerank` for each vector alone:
    in every precision on hosts, and in `exact` on devices, where bounds differ in rounding. A finished vector leaves
    the pass, and the next one takes its place. GPUs of a cluster that can hold all rows each share out the vectors:
    `options["vectors"]` is then `shared`, else on a cluster `rows`.

    Parameters
    ----------
    A : matrix or graph
        As for `pagerank`.
    personalization : sequence, mapping, table or matrix, optional
        Targets of random jumps of each vector: a sequence, or a mapping of names (strings or integers), with one
        element per vector: a mapping of ids to weights, a sequence or set of ids, a single id, another vector that
        `pagerank` takes, or None for uniform jumps. Also a table (pandas, polars, pyarrow) with columns `vector`,
        `vertex` and optionally `weight`, in which weights of repeated ids are added; or a SciPy matrix or array of
        shape (n_vectors, n), in the order of the vertices. A mapping of ids to numbers, a pandas Series, or None, is a
        single vector.
    alpha : float or sequence of float, default 0.85
        Damping factor: one number, or one per vector; several with one personalization make one vector each.
    weight, out_weight, tol, norm, max_iter, precision
        As for `pagerank`, of each vector.
    dangling : {"uniform", "drop", "error"}, mapping, Series, sequence or array, optional
        As for `pagerank`; None for p of each vector, anything else applies to all vectors.
    width : int, optional
        Maximum number of vectors per pass: 2, 4, 8, 16, 32 or 64; default the fastest, or less where the vectors of a
        pass would take more than half of the free memory of a worker; see `options["width"]` of the result.
    keep_top : int, optional
        Number of highest ranks to keep of each vector, selected when it ends, where it was computed; default all ranks
        of all vectors.
    progress : callable or bool, optional
        Called with the `Event` of each pass, whose iteration counts passes, and whose change is the largest of the
        vectors, and with the phase `vectors`, the number of vectors that have ended; on a cluster also with the phases
        of `pagerank`.
    throw : bool, default True
        Raise an error if a vector does not meet the tolerance; False returns all with their statuses.

    Returns
    -------
    BatchSolution with `values` of shape (n_vectors, n), or `top_ids` and `top_ranks` of shape (n_vectors, keep_top).

    Raises
    ------
    KindError, DanglingError, ConvergenceError : as for `pagerank`; the first vector that did not converge is named
    OptionError, ShapeError : as for `pagerank`; the message names an invalid vector
    BackendError, MissingDependencyError : `cuda` and no device; or no CuPy
    CapacityError : the matrix, the vectors of a pass or the results do not fit in free memory
    ClusterError : as for `pagerank`

    Examples
    --------
    >>> import mgspmv as mg
    >>> edges = [("cat", "pet"), ("dog", "pet"), ("pet", "dog"), ("pet", "cat")]
    >>> batch = mg.pagerank_batch(edges, {"cats": ["cat"], "dogs": {"dog": 3.0, "pet": 1.0}})
    >>> batch.top(1)["dogs"]
    place  id         rank
        1  pet  0.47972953
    >>> round(batch["cats"]["pet"], 4)
    0.4595
    """
    if width is not None:
        check_choice("width", width, WIDTHS)
    call = Call(A, progress)
    _check_place(call)
    if keep_top is not None and (not hasattr(keep_top, "__index__") or keep_top < 1):
        raise OptionError(f"keep_top must be an integer of at least 1, not {keep_top!r}")
    top, n = None if keep_top is None else int(keep_top), A.shape[0]
    use_weights = check_graph(A, bool(weight))
    damping: Any = alpha
    alphas = list(damping) if hasattr(damping, "__iter__") and not isinstance(damping, str) else [damping]
    if not alphas:
        raise ShapeError("alpha is an empty sequence; pass a number, or one for each vector")
    queries = make_queries(personalization, alphas, n, A.vertex_ids, A.order)
    asked = PageRankOptions(tol=tol, norm=norm, max_iter=max_iter, precision=precision)
    options, threshold = _check_options(queries, asked, n, A.nnz)
    start = make_inputs(A, options, dangling=dangling, out_weight=out_weight, use_weights=use_weights)
    if dangling is None:
        start = replace(start, dangling=np.empty(0))
    dtype = None if not use_weights else "float32" if precision == "float32" else "float64"
    keeper = _ResultCollector(A, len(queries), top, "float32" if precision == "float32" else "float64")

    drops = isinstance(dangling, str) and dangling == "drop"
    task = BatchTask(name_run(), options, threshold, dtype, call.place.threads, width, top, drops)
    rank = _rank_on_cluster if call.place.is_on_cluster else _rank_here
    outcome = rank(call, queries, task, start, keeper)
    described: dict[str, Any] = {"tol": options.choose_tol(n, A.nnz)}
    described |= {"dangling": describe_dangling(dangling), "weight": use_weights}
    described |= {"executor": "embedded" if outcome.transport is None else "supersteps"}
    if outcome.transport is not None:
        described["vectors"] = "shared" if outcome.transport == "local" else "rows"
    described |= {"out_weight": "store" if out_weight is None else "vector"}
    described |= {"width": outcome.width, "steps": len(call.events), "top": top}
    ended: list[tuple[Ending, Query]] = list(zip(outcome.values, queries, strict=True))
    solution = BatchSolution(
        labels=tuple(query.label for query in queries),
        alphas=np.array([query.alpha for query in queries], np.float64),
        statuses=tuple(ending.status for ending, _ in ended),
        changes=tuple(ending.changes for ending, _ in ended),
        error_bounds_l1=np.array([widen_bound(e.error_bound_l1, query.alpha, start.growth) for e, query in ended]),
        values=keeper.ranks if keeper.ids is None else None,
        top_ids=keeper.ids,
        top_ranks=None if keeper.ids is None else keeper.ranks,
        seconds=outcome.seconds,
        _ids=A.vertex_ids if keeper.ids is None else None,
        options=vars(options) | described,
        matrix=describe_matrix(A.stored.known_info, outcome.hardware, outcome.transport, is_reversed=A.is_transpose),
        memory=outcome.memory,
        events=tuple(call.events),
    )
    failed = [k for k, status in enumerate(solution.statuses) if not status.is_success]
    if throw and failed:
        first = failed[0]
        own, changes = replace(options, alpha=float(solution.alphas[first])), solution.changes[first]
        said = describe_failure(A, own, start, solution.statuses[first], changes, use_weights=use_weights)
        what = f"{len(failed)} of {len(solution)} vectors did not converge, first {solution.labels[first]!r}"
        raise ConvergenceError(f"{what}: {said}", solution)
    return solution


# --- placement -------------------------------------------------------------------------------------------------------


def _rank_here(
    call: Call, queries: Sequence[Query], task: BatchTask, start: RunInputs, keeper: _ResultCollector
) -> Outcome:
    """Rank the vectors in this process."""
    A, backend, dtype, precision = call.A, call.place.computes, task.dtype, task.options.precision
    kernel, n = A.bind_many(dtype, precision), A.shape[0]
    panels = LocalExchange(n)
    free = free_memory() if backend == "cpu" else free_device_memory()
    needed = {w: count_bytes(panels, n, precision, kernel.z_dtype.itemsize, w) for w in WIDTHS}
    width = choose_width(task.width, len(queries), kernel.best_width, [(free, needed)])
    keeper.allocate()
    has_device = backend == "cuda"
    rows = start.bind_many(kernel, A.out_weights, use_weights=dtype is not None, has_device=has_device)
    loaded = time.perf_counter()
    batch = Batch(rows, queries, task, width, panels, A.order, lambda kept: keeper.keep([kept]))
    outcome = run(batch, lambda event: _emit(call, event, batch.n_ended, len(queries)))
    call.count_loading(outcome, loaded, held_bytes=batch.first_bytes)
    return outcome


def _rank_on_cluster(
    call: Call, queries: Sequence[Query], task: BatchTask, start: RunInputs, keeper: _ResultCollector
) -> Outcome:
    """Rank the vectors on the workers that hold the matrix, or are to hold it."""
    from mgspmv.cluster.attempts import run_batch
    from mgspmv.monitor.events import publish_run

    def emit(event: Event, n_ended: int) -> None:
        _emit(call, event, n_ended, len(queries))

    with call.distribute(Reads(task.options.precision, task.dtype is not None, build_layout=False)) as matrix:
        loaded = time.perf_counter()
        keeper.allocate()
        with publish_run([matrix], task, "pagerank_batch", "supersteps") as news:
            outcome = run_batch(matrix, queries, task, start, keeper.keep, emit, news.report(call.report))
            endings: list[Ending] = outcome.values
            status = next((e.status for e in endings if not e.status.is_success), endings[0].status)
            news.end(status, outcome)
    call.count_loading(outcome, loaded)
    return outcome


def _emit(call: Call, event: Event, n_ended: int, n_vectors: int) -> None:
    call.emit(event)
    call.report("vectors", n_ended, n_vectors)


# --- options ---------------------------------------------------------------------------------------------------------


def _check_place(call: Call) -> None:
    """Check that the vectors of a batch can be computed where the matrix is placed."""
    place = call.place
    call.check_kernel("pagerank_batch")
    if place.executor == "tasks":
        raise OptionError(
            "executor='tasks' does not compute batches, whose passes workers make in lockstep; leave it out"
        )
    if place.is_limited and not place.is_on_cluster and place.computes == "cuda":
        raise OptionError(
            "device_memory= and host_memory= are for the rows of workers; leave them out where this process computes"
        )


def _check_options(queries: Sequence[Query], asked: PageRankOptions, n: int, nnz: int) -> tuple[PageRankOptions, float]:
    """Return the options that all vectors share, except for alpha, and the threshold of their changes."""
    checked: dict[Any, tuple[PageRankOptions, float]] = {}
    for query in queries:
        if query.alpha not in checked:
            try:
                options = replace(asked, alpha=query.alpha)
                checked[query.alpha] = options, options.threshold(n, nnz)
            except OptionError as error:
                raise OptionError(f"vector {query.label!r}: {error}") from error
    return checked[queries[0].alpha]


# --- results ---------------------------------------------------------------------------------------------------------


class _ResultCollector:
    """Ranks of finished vectors, or the highest ranks of each.

    Attributes
    ----------
    ranks : (n_vectors, n), or (n_vectors, top) in descending order; after `allocate`
    ids : (n_vectors, top) of the vertices with the highest ranks; None where all ranks are kept
    """

    def __init__(self, A: MatrixProperties, n_vectors: int, top: int | None, dtype: Any) -> None:
        self._ids, self._order, self._top = A.vertex_ids, A.order, top
        self._shape, self._dtype = (n_vectors, A.shape[0] if top is None else min(top, A.shape[0])), np.dtype(dtype)
        self.ids: np.ndarray | None = None

    def allocate(self) -> None:
        """Allocate the results; raise `CapacityError` if the ranks of all vectors do not fit in free memory."""
        if self._top is not None:
            self.ids = np.empty(self._shape, np.int64 if self._ids is None else self._ids.dtype)
        elif (needed := math.prod(self._shape) * self._dtype.itemsize) > (free := free_memory()):
            raise CapacityError(
                f"the ranks of {self._shape[0]} vectors take {needed:,} bytes, and {free:,} are free; pass "
                "keep_top=k to keep the k highest of each, or rank fewer vectors at a time"
            )
        self.ranks = np.empty(self._shape, self._dtype)

    def keep(self, parts: Sequence[FinishedVectors]) -> None:
        """Store the ranks of finished vectors, given as one part per block of stored rows, in row order."""
        numbers, ranks = list(parts[0].numbers), _join([part.ranks for part in parts])
        if self.ids is None or self._top is None:
            for number, own in zip(numbers, ranks, strict=True):
                self.ranks[number] = restore(own, self._order)
            return
        sources = _join([part.sources for part in parts if part.sources is not None])
        order = order_highest(ranks, sources, self._top)
        # Ranks of 0 are left out: they come last, even after NaN.
        order = np.take_along_axis(order, (np.take_along_axis(ranks, order, 1) == 0).argsort(1, kind="stable"), 1)
        ranks, sources = np.take_along_axis(ranks, order, 1), np.take_along_axis(sources, order, 1)
        ids = sources if self._ids is None else self._ids[sources]
        self.ranks[numbers], self.ids[numbers] = ranks, np.where(ranks == 0, fill_id(self.ids), ids)


def _join(parts: Sequence[np.ndarray]) -> np.ndarray:
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
