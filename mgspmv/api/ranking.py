"""PageRank of a stored or distributed graph."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from mgspmv.api.checkpointing import add_resume_hint, begin_checkpointing, check_checkpoint, check_recover
from mgspmv.api.graphs import check_graph, describe_dangling, describe_weight_overflow
from mgspmv.api.inputs import reads_input
from mgspmv.api.matrix import Matrix
from mgspmv.api.placing import Executor, Placement
from mgspmv.api.warm import align_ranks
from mgspmv.errors import ConvergenceError
from mgspmv.kernels.catalogue import BACKENDS
from mgspmv.kernels.device import measure_memory
from mgspmv.kernels.select import check_kernel, find_step_layout, list_kernels
from mgspmv.logs import log_recovery, name_run
from mgspmv.model import (
    ChangeNorm,
    Event,
    Precision,
    Progress,
    Stability,
    Status,
    check_choice,
    ignore,
)
from mgspmv.monitor.progress import notify_all, watched_to_converge
from mgspmv.order import restore
from mgspmv.results import Solution
from mgspmv.solvers.checkpointing import Checkpointer
from mgspmv.solvers.inputs import RunInputs, make_inputs
from mgspmv.solvers.options import PageRankOptions, RankTask, describe_end
from mgspmv.solvers.pagerank import Outcome, find_before, run_here, widen_bound
from mgspmv.solvers.steps import DeviceSteps, LocalSteps
from mgspmv.solvers.topk_certificate import check_order
from mgspmv.solvers.underflow import OneStep, find_underflow
from mgspmv.solvers.vectors import Weights
from mgspmv.store.locations import StoreLike
from mgspmv.store.metadata import MatrixProperties

if TYPE_CHECKING:
    from mgspmv.cluster.matrix import DistributedMatrix


@watched_to_converge
@reads_input()
def pagerank(
    A: Matrix | DistributedMatrix,
    *,
    alpha: float = 0.85,
    tol: float | None = None,
    norm: ChangeNorm = "l1",
    max_iter: int = 100,
    stop: str = "change",
    personalization: Weights | None = None,
    dangling: Weights | Literal["uniform", "drop", "error"] | None = None,
    nstart: Weights | Solution | None = None,
    out_weight: Weights | None = None,
    weights: bool = True,
    precision: Precision = "exact",
    executor: Executor = "auto",
    kernel: str = "auto",
    backend: Literal["auto", "cpu", "cuda"] = "auto",
    threads: int | None = None,
    client: Any = None,
    transport: Literal["auto", "nccl", "peer"] = "auto",
    device_memory: str | int | None = None,
    host_memory: str | int | None = None,
    timeout: float = 30.0,
    checkpoint: StoreLike | None = None,
    checkpoint_every: float | None = None,
    resume: bool = False,
    recover: int = 5,
    throw: bool = True,
    on_event: Callable[[Event], None] | None = None,
    on_progress: Progress | None = None,
) -> Solution:
    """Compute PageRank of the vertices of a stored graph.

        z = x / w (0 where w = 0);   m = sum of x over dangling vertices
        x' = alpha (A z + m d) + (1 - alpha) p

    Parameters
    ----------
    A : graph in any form that is on the page "Inputs"; or of kind `graph` or `stochastic`, opened or distributed; for
        the ranks of the reversed graph the transpose `A.T` of a graph
    alpha : damping, 0 <= alpha < 1
    tol : stop when the change is below; default 1e-6, with `stop="topk:100"` 1e-10
    norm : `l1` sum of |x' - x| < tol; `l1_per_node` sum < n * tol, as in NetworkX; `linf` largest |x' - x| < tol;
        `relative` largest |x' - x| / x' < tol, 0 where x' is 0; `fixed` makes exactly max_iter iterations and takes
        no tol
    max_iter : most iterations; a run that converges on the last one has converged
    stop : `change`; or `topk:k`, such as `topk:100`, which also stops as soon as error bounds prove which vertices are
        the k highest. `Solution.stability` describes their order. Places k and k + 1 with equal ranks cannot be
        separated: then the run continues to the tolerance, or to max_iter
    personalization : p, by the source's ids: a mapping of ids to numbers, a pandas Series whose index has ids, a frame
        or Arrow table of ids and numbers, or a list of ids; or by place: (n,) array in the order of the store's
        vertices. Normalized; default uniform
    dangling : d, the distribution of the rank of vertices without out-edges: a vector like p; None for p, as in
        NetworkX and cuGraph; `uniform`; `drop` loses it, as in GAP and Neo4j (the start is then (1 - alpha) p);
        `error` raises `DanglingError`
    nstart : the first x, like p; normalized; default p, so that vertices that no path reaches from there have rank 0
        where dangling mass goes to p or is dropped. Or a Solution of an earlier version of the graph: ranks of
        remaining vertices, by id, and 1/n for new ones
    out_weight : w, a vector like p, not normalized; default the sum of the stored out-edges. Larger where
        edges leave the stored part: their share of the rank is lost. Smaller is an error, with a tolerance of 1e-6
    weights : False counts every stored edge as 1
    precision : `exact` fixed point, bit-identical everywhere; `float64`; `float32`
    executor : `embedded`, in this process; `supersteps`, in which the workers of a cluster iterate in lockstep;
        or `tasks`, in which each iteration is a round of tasks. `auto` is `supersteps` on a cluster, else `embedded`.
        All make the same iterations, and in `exact` bit-identical ranks
    kernel : `auto`; or `csr-rows` or `csr-serial` on the host, `column-sorted-blocks`, `sell-slices` or `csr-split`
        on CUDA
    backend : as for `spmv`; `exact` is bit-identical on every backend
    threads : default: the processors this process may use; on a cluster, those of each worker
    client : of a Dask cluster, as for `Matrix.distribute`: distributes A for this one run. A cluster runs one
        at a time, others wait
    transport : with `client`, as for `Matrix.distribute`
    device_memory, host_memory : limits, with `client` of each worker, as for `Matrix.distribute`; only for CUDA,
        where rows that do not fit in device memory are streamed in each iteration, from the host or the store
    timeout : with `client`, seconds without a heartbeat after which a worker is considered lost
    checkpoint : local path, URL or Zarr store, which all workers of a cluster reach, to which the ranks are written
        periodically during the run, and once more at its end; the last two are kept. Other checkpoints in
        the place are removed once the first one is complete. Not with `stop="topk:..."`
    checkpoint_every : seconds between checkpoints, default 30; 0 begins one as soon as the previous one is written
    resume : resume from the last checkpoint, or begin where there is none. Graph, vectors, alpha, precision and
        norm must be the same, and tol and max_iter must not end the run earlier; workers, backend, executor, memory
        and threads may differ. In `exact` ranks, changes and iterations are those of an uninterrupted run
    recover : on a cluster, how many times at most the run resumes when workers are lost or silent, on the workers that
        remain or rejoined, from its last checkpoint; without one it starts again. 0 raises the error at once. A matrix
        that was distributed before is then distributed again, in place
    throw : raise when the tolerance was not met; False returns the solution with its status
    on_event : called with the event of each iteration; on a cluster about once a second with all new ones. Iterations
        that are repeated after a loss are reported again, with a higher `epoch`
    on_progress : with `client` or on a cluster, called with (phase, done, total or None) before the first iteration;
        with `checkpoint`, with `checkpoint` and the iteration that was written; with `resume`, once with `resume` and
        the iterations that were made before; with `recover` when the run resumes with other workers

    Returns
    -------
    Solution with `values` of shape (n,), float64 (float32 for precision `float32`), summing to 1 unless dangling mass
    is dropped or out-weights exceed the sum of edges; `error_bound_l1` bounds their L1 distance to the exact ranks.

    Raises
    ------
    KindError : the store is of kind `matrix`; the transpose of one of kind `stochastic`
    OptionError : an invalid option; a tolerance that any ranks meet, or that rounding makes unreachable; an out-weight
        that is less than the sum of the stored out-edges
    BackendError, MissingDependencyError : `cuda` and no device; or no CuPy
    DanglingError : dangling="error" and a vertex without out-edges
    CapacityError : the matrix does not fit in free memory
    ClusterError : a worker is lost, or silent for too long, and `recover` is used up or no worker is left; the cluster
        can be used again
    CheckpointError : with `resume`, the checkpoint is of another run, or damaged; the place cannot be written.
        A later checkpoint that cannot be written only warns, once, and the run continues
    ConvergenceError : not converged, with the `solution` attached
    """
    options = PageRankOptions(alpha, tol, norm, max_iter, precision, stop)
    check_checkpoint(checkpoint, checkpoint_every, resume, options)
    check_recover(recover)
    limits = (device_memory, host_memory, timeout)
    place = Placement(A, client, backend, threads, *limits, transport, on_progress, on_event)
    executor = place.choose_executor(executor)
    if not place.is_on_cluster:
        check_kernel(kernel, place.computes, for_steps=True)
    elif client is not None:  # the backends of the workers are checked when they join
        known = [name for each in BACKENDS for name in list_kernels(each, for_steps=True)]
        check_choice("kernel", kernel, ("auto", *dict.fromkeys(known)))
    use_weights = check_graph(A, weights)
    threshold = options.threshold(A.shape[0], A.nnz)
    if isinstance(nstart, Solution):
        nstart = align_ranks(nstart, A)
    vectors = (personalization, dangling, nstart, out_weight)
    start = make_inputs(A.stored, A.vertex_ids, options, *vectors, use_weights=use_weights, order=A.order)
    dtype = None if not use_weights else "float32" if precision == "float32" else "float64"
    task, keeper = RankTask(name_run(), options, threshold, dtype, threads, kernel), None
    if checkpoint is not None:
        keeping: dict[str, Any] = {"resume": resume, "is_shared": executor != "embedded"}
        keeper, start = begin_checkpointing(place, task, start, checkpoint, checkpoint_every, **keeping)
    before = find_before(keeper)
    if place.is_on_cluster:
        reads: dict[str, Any] = {"precision": precision, "weights": use_weights, "checkpoint": keeper is not None}
        reads["top"] = options.top if executor == "supersteps" else None  # in rounds, this process holds the ranks
        assert executor in ("supersteps", "tasks")
        with add_resume_hint(keeper), place.distribute(recover=recover, **reads) as matrix:
            loaded = time.perf_counter()
            outcome = _rank_distributed(place, matrix, task, start, keeper, executor=executor, recover=recover)
        place.count_loading(outcome.seconds, loaded)
    else:
        outcome = _rank_embedded(place, task, start, place.emit, keeper)

        def step(once: PageRankOptions, probe: RunInputs) -> np.ndarray:
            return _rank_embedded(place, replace(task, options=once, threshold=0.0), probe, ignore, None).values

        outcome = _find_underflow(A, outcome, start, task, step, on_device=place.computes == "cuda")
    bound = widen_bound(outcome.error_bound_l1, options.alpha, start.growth)
    reached = time.perf_counter()
    outcome = replace(outcome, values=restore(outcome.values, A.order), error_bound_l1=bound)
    outcome.seconds["collect"] += time.perf_counter() - reached
    given = {"dangling": describe_dangling(dangling), "out_weight": "store" if out_weight is None else "vector"}
    asked = vars(options) | {"tol": options.choose_tol(A.shape[0], A.nnz)} | given
    outcome = replace(outcome, stability=_check_stability(options, outcome))
    solution = place.make_solution(
        outcome, asked | {"weights": use_weights, "executor": executor}, before, is_rank=True
    )
    if throw and not outcome.status.is_success:
        end = describe_end(outcome.status, solution.iterations, solution.changes[-1], asked["tol"], options.norm)
        more = _describe_wrong(solution) + _describe_tie(solution)
        advice = options.advise(outcome.status, solution.changes, A.shape[0], A.nnz)
        if outcome.status == Status.NON_FINITE:
            advice = describe_weight_overflow(A, start, options.precision, use_weights=use_weights) or advice
        raise ConvergenceError(f"PageRank did not converge: {end}. {advice}{more}", solution)
    return solution


def _rank_embedded(
    place: Placement, task: RankTask, start: RunInputs, emit: Callable[[Event], None], keeper: Checkpointer | None
) -> Outcome:
    """Rank in this process: on a device by its fused steps, where a layout for them can hold the matrix."""
    A, backend, limits = place.A, place.computes, place.limits
    layout, options, dtype, threads = None, task.options, task.dtype, task.threads
    weight = start.take_weight(lambda: A.read_out_weight(dtype is not None, threads))
    if backend == "cuda":
        layout = find_step_layout(task.kernel, options.precision, A.info.index_dtype, dtype, A.info.min_weight)
    if layout is None and any(own is not None for own in limits.values()):
        A.check_room(dtype, threads, options.top, **limits)
    steps: LocalSteps | DeviceSteps
    if layout is None:
        binding: dict[str, Any] = {"kernel": task.kernel, "threads": threads, "backend": backend, "top": options.top}
        steps = LocalSteps(start.bind(A.bind(dtype, options.precision, **binding), weight), options)
    else:
        device = A.bind_steps(dtype, options.precision, layout, threads, options.top, **limits)
        vectors, is_counted = start.on_device(weight), start.is_counted
        steps = DeviceSteps(device, vectors, task, is_counted=is_counted)
    loaded = time.perf_counter()
    balance = start.find_balance(options.alpha, A.shape[0])
    with nullcontext() if keeper is None else keeper:
        outcome = run_here(steps, task, emit, growth=start.growth, keeper=keeper, balance=balance)
    place.count_loading(outcome.seconds, loaded)
    taken = measure_memory(has_device=backend == "cuda")
    outcome.memory.update({name: [n_bytes] for name, n_bytes in taken.items()})
    return outcome


def _rank_distributed(
    place: Placement,
    matrix: DistributedMatrix,
    task: RankTask,
    start: RunInputs,
    keeper: Checkpointer | None,
    *,
    executor: Literal["tasks", "supersteps"],
    recover: int,
) -> Outcome:
    """Rank on a cluster."""
    from mgspmv.cluster.recovery import Recovering
    from mgspmv.monitor.events import publish_run

    earlier = () if place.is_distributed else matrix.recoveries  # made while the matrix was loaded for this run
    with publish_run([matrix], task, "pagerank", executor) as news, nullcontext() if keeper is None else keeper:
        if keeper is not None:
            keeper.notify = notify_all(keeper.notify, news.publish_checkpoint)
        notify = notify_all(log_recovery, news.publish_recovery)
        for recovery in earlier:
            notify(recovery, 0)
        hearing = news.follow(place.emit), news.report(place.on_progress), notify
        outcome = Recovering(matrix, task, start, executor, recover - len(earlier), *hearing, keeper).run()
        news.end(outcome.status, outcome)

    def step(once: PageRankOptions, probe: RunInputs) -> np.ndarray:
        again = replace(task, run=name_run(), options=once, threshold=0.0)
        return Recovering(matrix, again, probe, executor, recover - len(earlier), ignore).run().values

    outcome = _find_underflow(matrix, outcome, start, task, step, on_device=matrix.backend != "cpu")
    return replace(outcome, recoveries=(*earlier, *outcome.recoveries))


def _find_underflow(
    A: MatrixProperties, outcome: Outcome, start: RunInputs, task: RankTask, step: OneStep, *, on_device: bool
) -> Outcome:
    """Add the vertices that have rank 0 by underflow to an outcome; parameters as in `find_underflow`."""
    if outcome.status == Status.NON_FINITE:
        return outcome
    began = time.perf_counter()
    found = find_underflow(A, outcome.values, start, task, step, on_device=on_device)
    outcome.seconds["residual"] += time.perf_counter() - began
    return replace(outcome, underflow=found)


def _check_stability(options: PageRankOptions, outcome: Outcome) -> Stability | None:
    """Return the stability of the highest vertices at the end; None if `stop` does not require it."""
    if options.top is None or outcome.stability is not None:
        return outcome.stability
    return check_order(outcome.values, options.top, outcome.error_bound_l1)


def _describe_wrong(solution: Solution) -> str:
    """Describe the first non-finite rank; empty unless the run ended as non-finite."""
    if solution.status != Status.NON_FINITE:
        return ""
    return f"; {solution.non_finite or 'a rank divided by its out-weight overflowed'}"


def _describe_tie(solution: Solution) -> str:
    """Describe places k and k + 1 where they could not be separated; else empty."""
    found = solution.stability
    if found is None or found.is_proven:
        return ""
    return (
        f"; places {found.k} and {found.k + 1} are {found.gap:.3g} apart, and tied within the bound of "
        f"{found.bound:.3g}: choose another number of vertices if they are equal"
    )
