"""PageRank of many personalisations and dampings of one stored graph."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any, Literal

import numpy as np

from mgspmv.api.arguments import Progress, check_threads, ignore
from mgspmv.api.matrix import Matrix
from mgspmv.api.placing import find_distributed
from mgspmv.api.ranking import _check_graph, _describe_dangling
from mgspmv.batch_results import BatchSolution
from mgspmv.errors import CapacityError, ConvergenceError, OptionError, ShapeError
from mgspmv.iterate.batch import Batch, BatchOutcome, ManyRows, count_bytes
from mgspmv.iterate.options import DEFAULT_TOL, PageRankOptions
from mgspmv.iterate.pagerank import widen_bound
from mgspmv.iterate.queries import Query, make_queries
from mgspmv.iterate.start import make_start
from mgspmv.iterate.vectors import Weights
from mgspmv.kernels.device import free_device_memory, measure_memory
from mgspmv.kernels.many import WIDTHS, BoundMany, fit_width
from mgspmv.kernels.select import bind_many, choose_backend
from mgspmv.model import Event, Precision, TolMode, check_choice, free_memory
from mgspmv.order import restore
from mgspmv.results import describe_matrix, select_highest

MEMORY_SHARE = 0.5
"""Of the memory that is free, what the vectors of a pass may take unless the user names a width."""


def pagerank_batch(
    A: Matrix,
    personalization: Any = None,
    *,
    alpha: float | Sequence[float] = 0.85,
    tol: float | None = None,
    tol_mode: TolMode = "l1",
    max_iter: int = 100,
    dangling: Weights | Literal["uniform", "drop", "error"] | None = None,
    out_weight: Weights | None = None,
    weights: bool = True,
    precision: Precision = "exact",
    width: int | None = None,
    top: int | None = None,
    backend: Literal["auto", "cpu", "cuda"] = "auto",
    threads: int | None = None,
    client: Any = None,
    throw: bool = True,
    on_event: Callable[[Event], None] | None = None,
    on_progress: Progress | None = None,
) -> BatchSolution:
    """PageRank for many personalisations, dampings or both, several in each pass over the matrix.

    Each vector has the bits, the iterations, the status and the error bound that `pagerank` gives it alone, in every
    precision; one that has ended leaves the pass, and the next one takes its place.

    Parameters
    ----------
    A : as for `pagerank`, opened by `open_matrix`
    personalization : p of each vector: a sequence, or a mapping of names (strings or integers), of mappings of ids to
        weights, of sequences or sets of ids, of single ids, or of None for a uniform one; a table (pandas, polars,
        pyarrow) with the columns `vector`, `vertex` and, maybe, `weight`; a SciPy matrix or an array of shape
        (n_vectors, n), in the order of the store's vertices. A mapping of ids to numbers, or None, is one vector. An id
        that comes again counts again. Only the entries are kept
    alpha : damping, of all vectors or of each; several for one personalisation give as many vectors
    tol, tol_mode, max_iter, out_weight, weights, precision : as for `pagerank`, of each vector
    dangling : as for `pagerank`; None for p of each vector, anything else holds for all of them
    width : most vectors in a pass: 2, 4, 8, 16, 32 or 64; default what computes fastest, or less where the vectors of
        a pass would take more than half of the memory that is free. `options["width"]` of the result says which
    top : keep of each vector only so many of the highest ranks, selected when it ends; default all ranks of all vectors
    backend : as for `pagerank`; a device has to have room for the matrix as CSR
    threads : default: the processors this process may use
    client : refused: many vectors are computed in this process
    throw : raise when a vector does not meet the tolerance; False returns all with their statuses
    on_event : called with what each pass did; its iteration counts passes, its change is the greatest of the vectors
    on_progress : called with ("vectors", vectors that have ended, vectors in all)

    Returns
    -------
    BatchSolution with `values` of shape (n_vectors, n), or `top_ids` and `top_ranks` of shape (n_vectors, top).

    Raises
    ------
    KindError, DanglingError, ConvergenceError : as for `pagerank`; the first vector that did not converge is named
    OptionError, ShapeError : as for `pagerank`; of a vector that is none, by its name
    BackendError : `cuda` and no device, or CuPy is not installed
    CapacityError : the matrix, the vectors of a pass or what is kept does not fit into the memory that is free
    """
    check_threads(threads)
    computes = choose_backend(backend)
    _check_place(A, client)
    top = _check_top(top)
    n = A.shape[0]
    use_weights = _check_graph(A, weights)
    queries = make_queries(personalization, _list_alphas(alpha), n, A.vertex_ids, A.order)
    asked: dict[str, Any] = {"tol": tol, "tol_mode": tol_mode, "max_iter": max_iter, "precision": precision}
    options, threshold = _check_options(queries, asked, n, A.nnz)
    began = time.perf_counter()
    shared: dict[str, Any] = {"dangling": dangling, "out_weight": out_weight, "order": A.order}
    start = make_start(A.stored, A.vertex_ids, options, **shared, use_weights=use_weights)
    dtype = None if not use_weights else "float32" if precision == "float32" else "float64"
    binding: dict[str, Any] = {"backend": computes, "threads": threads}
    kernels = [bind_many(block, precision, **binding) for block in A.blocks(dtype, **binding)]
    free = free_memory() if computes == "cpu" else free_device_memory()
    width = _choose_width(width, len(queries), n, kernels[0], precision, free)
    keeper = _Keeper(A, len(queries), top, "float32" if precision == "float32" else "float64")
    weight = start.take_weight(lambda: A.read_out_weight(use_weights, threads))
    rows = [_cut(kernel, weight, np.empty(0) if dangling is None else start.dangling) for kernel in kernels]
    loaded = time.perf_counter()
    report = on_progress or ignore

    def emit(event: Event, n_ended: int) -> None:
        if on_event is not None:
            on_event(event)
        report("vectors", n_ended, len(queries))

    batch = Batch(
        rows,
        queries,
        options,
        threshold,
        width,
        n_dangling=int(np.count_nonzero(weight == 0)),
        starts_at_jump=isinstance(dangling, str) and dangling == "drop",
        keep=keeper.keep,
    )
    outcome = batch.run(emit, uuid.uuid4().hex[:12])
    outcome.seconds["load"] = loaded - began
    described: dict[str, Any] = {"tol": None if tol_mode == "fixed" else options.tol or DEFAULT_TOL}
    described |= {"dangling": _describe_dangling(dangling), "weights": use_weights, "drive": "embedded"}
    described |= {"out_weight": "store" if out_weight is None else "vector"}
    described |= {"width": width, "steps": outcome.steps, "top": top}
    taken = measure_memory(has_device=computes == "cuda") | {"held_bytes": outcome.held_bytes}
    solution = _solve(A, queries, outcome, keeper, start.growth, vars(options) | described, taken)
    if throw:
        _check_success(solution)
    return solution


# --- what was asked for ----------------------------------------------------------------------------------------------


def _check_place(A: Any, client: Any) -> None:
    if client is not None or find_distributed(A, None) is not None:
        raise OptionError(
            "pagerank_batch computes in this process only; pass an opened matrix and no client, or rank one vector "
            "after the other by pagerank on the cluster"
        )


def _check_top(top: Any) -> int | None:
    if top is None:
        return None
    if not hasattr(top, "__index__") or top < 1:
        raise OptionError(f"top must be an integer of at least 1, not {top!r}")
    return int(top)


def _list_alphas(alpha: Any) -> list[Any]:
    if isinstance(alpha, Real):
        return [alpha]
    alphas = list(alpha) if hasattr(alpha, "__iter__") and not isinstance(alpha, str) else [alpha]
    if not alphas:
        raise ShapeError("alpha is an empty sequence; pass a number, or one for each vector")
    return alphas


def _check_options(queries: Sequence[Query], asked: dict[str, Any], n: int, nnz: int) -> tuple[PageRankOptions, float]:
    """Options that but for alpha are those of all vectors, and the threshold of their changes."""
    checked: dict[Any, tuple[PageRankOptions, float]] = {}
    for query in queries:
        if query.alpha not in checked:
            try:
                options = PageRankOptions(query.alpha, **asked)
                checked[query.alpha] = options, options.threshold(n, nnz)
            except OptionError as error:
                raise OptionError(f"vector {query.label!r}: {error}") from error
    return checked[queries[0].alpha]


def _choose_width(width: Any, n_vectors: int, n: int, kernel: BoundMany, precision: str, free: int) -> int:
    """The width that is asked for; else the fastest, or the widest that memory has room for."""
    if width is not None:
        check_choice("width", width, WIDTHS)
        return int(min(width, fit_width(n_vectors)))
    fastest = min(kernel.best_width, fit_width(n_vectors))
    room = int(MEMORY_SHARE * free)
    fitting = [w for w in WIDTHS if w <= fastest and n * count_bytes(precision, kernel.z_dtype.itemsize, w) <= room]
    if not fitting:
        least = n * count_bytes(precision, kernel.z_dtype.itemsize, WIDTHS[0])
        raise CapacityError(
            f"a pass of {WIDTHS[0]} vectors takes {least:,} bytes, and {room:,} are for it, half of what is free; free "
            f"some, or pass width={WIDTHS[0]} to take more"
        )
    return fitting[-1]


def _cut(kernel: BoundMany, weight: np.ndarray, dangling: np.ndarray) -> ManyRows:
    """What the batch has of a block."""
    start, stop = kernel.block.row_offset, kernel.block.row_offset + kernel.block.n_rows
    own = dangling if len(dangling) <= 1 else dangling[start:stop]
    return ManyRows(kernel, kernel.put(weight[start:stop]), kernel.put(own))


# --- what comes out --------------------------------------------------------------------------------------------------


class _Keeper:
    """Keeps the ranks of vectors as they end, or the highest of each.

    Raises
    ------
    CapacityError : there is no room for the ranks of all
    """

    def __init__(self, A: Matrix, n_vectors: int, top: int | None, dtype: Any) -> None:
        n = A.shape[0]
        self._ids, self._order, self._top = A.vertex_ids, A.order, top
        self.values = self.top_ids = self.top_ranks = None
        if top is None:
            needed, free = n_vectors * n * np.dtype(dtype).itemsize, free_memory()
            if needed > free:
                raise CapacityError(
                    f"the ranks of {n_vectors} vectors take {needed:,} bytes, and {free:,} are free; pass top=k "
                    "(--top) to keep the k highest of each, or rank fewer vectors at a time"
                )
            self.values = np.empty((n_vectors, n), dtype)
        else:
            ids = np.int64 if self._ids is None else self._ids.dtype
            self.top_ids = np.empty((n_vectors, min(top, n)), ids)
            self.top_ranks = np.empty((n_vectors, min(top, n)), dtype)

    def keep(self, number: int, ranks: np.ndarray) -> None:
        """Of a vector; ranks are in the order of the stored rows."""
        ranks = restore(ranks, self._order)
        if self.values is not None:
            self.values[number] = ranks
            return
        assert self._top is not None
        assert self.top_ids is not None
        assert self.top_ranks is not None
        highest = select_highest(ranks, self._top)
        self.top_ids[number] = highest if self._ids is None else self._ids[highest]
        self.top_ranks[number] = ranks[highest]


def _solve(
    A: Matrix,
    queries: Sequence[Query],
    outcome: BatchOutcome,
    keeper: _Keeper,
    growth: float,
    options: dict[str, Any],
    taken: dict[str, int],
) -> BatchSolution:
    pairs = zip(outcome.endings, queries, strict=True)
    bounds = [widen_bound(ending.error_bound_l1, query.alpha, growth) for ending, query in pairs]
    return BatchSolution(
        labels=tuple(query.label for query in queries),
        alphas=np.array([query.alpha for query in queries], np.float64),
        statuses=tuple(ending.status for ending in outcome.endings),
        changes=tuple(ending.changes for ending in outcome.endings),
        error_bounds_l1=np.array(bounds),
        values=keeper.values,
        top_ids=keeper.top_ids,
        top_ranks=keeper.top_ranks,
        seconds=outcome.seconds,
        vertex_ids=A.vertex_ids if keeper.values is not None else None,
        options=options,
        matrix=describe_matrix(A.info, outcome.hardware, is_reversed=A.is_transpose),
        memory={name: [n_bytes] for name, n_bytes in taken.items()},
    )


def _check_success(solution: BatchSolution) -> None:
    failed = [k for k, status in enumerate(solution.statuses) if not status.is_success]
    if failed:
        k = failed[0]
        status, changes = solution.statuses[k], solution.changes[k]
        made = f"{len(changes)} iterations, the last change was {changes[-1]:.3g}"
        raise ConvergenceError(
            f"PageRank of {len(failed)} of {len(solution)} vectors did not converge: {solution.labels[k]!r} ended as "
            f"{status} after {made}: {status.advice}",
            solution,
        )
