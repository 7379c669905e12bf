"""PageRank of a stored or distributed graph."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from mgspmv.api.arguments import Call, align_ranks, check_graph, describe_dangling, describe_failure
from mgspmv.api.checkpointing import Checkpoint, add_resume_hint, begin_checkpointing, read_checkpoint
from mgspmv.api.inputs import MatrixLike, reads_input
from mgspmv.errors import ConvergenceError
from mgspmv.kernels.catalogue import BACKENDS
from mgspmv.kernels.highest import check_order
from mgspmv.kernels.select import check_kernel, find_step_layout, list_kernels
from mgspmv.logs import log_recovery, name_run
from mgspmv.model import (
    ChangeNorm,
    Event,
    Precision,
    Stability,
    Status,
    check_choice,
    ignore,
)
from mgspmv.monitor.progress import ProgressOption, notify_all
from mgspmv.order import restore
from mgspmv.results import Solution
from mgspmv.solvers.checkpointing import Checkpointer
from mgspmv.solvers.inputs import RunInputs, make_inputs
from mgspmv.solvers.options import PageRankOptions, RankTask
from mgspmv.solvers.pagerank import find_before, run_here
from mgspmv.solvers.run import Outcome, widen_bound
from mgspmv.solvers.steps import LocalSteps
from mgspmv.solvers.underflow import add_underflow
from mgspmv.solvers.vectors import Weights
from mgspmv.store.locations import StoreLike

if TYPE_CHECKING:
    from mgspmv.cluster.matrix import DistributedMatrix
    from mgspmv.solvers.device_steps import DeviceSteps


@reads_input()
def pagerank(
    A: MatrixLike,
    alpha: float = 0.85,
    *,
    personalization: Weights | None = None,
    dangling: Weights | Literal["uniform", "drop", "error"] | None = None,
    nstart: Weights | Solution | None = None,
    weight: bool | str | None = True,
    out_weight: Weights | None = None,
    tol: float | None = None,
    norm: ChangeNorm = "l1",
    max_iter: int = 100,
    stop: str = "change",
    precision: Precision = "exact",
    checkpoint: StoreLike | Checkpoint | None = None,
    progress: ProgressOption = None,
    throw: bool = True,
) -> Solution:
    """Compute PageRank of the vertices of a graph.

        z = x / w (0 where w = 0);   m = sum of x over dangling vertices
        x' = alpha (A z + m d) + (1 - alpha) p

    Parameters
    ----------
    A : graph in any form that is on the page "Inputs"; or of kind `graph` or `stochastic`, opened or distributed; for
        the ranks of the reversed graph the transpose `A.T` of a graph. `A.on(...)` and `A.distribute(...)` say where
        and how it computes
    alpha : damping, 0 <= alpha < 1
    personalization : p, by the source's ids: a mapping of ids to numbers, a pandas Series whose index has ids, a frame
        or Arrow table of ids and numbers, or a list of ids; or by place: (n,) array in the order of the store's
        vertices. Normalized; default uniform
    dangling : d, the distribution of the rank of vertices without out-edges: a vector like p; None for p, as in
        NetworkX and cuGraph; `uniform`; `drop` loses it, as in GAP and Neo4j (the start is then (1 - alpha) p);
        `error` raises `DanglingError`
    nstart : the first x, like p; normalized; default p, so that vertices that no path reaches from there have rank 0
        where dangling mass goes to p or is dropped. Or a Solution of an earlier version of the graph: ranks of
        remaining vertices, by id, and 1/n for new ones
    weight : None or False counts every stored edge as 1
    out_weight : w, a vector like p, not normalized; default the sum of the stored out-edges. Larger where
        edges leave the stored part: their share of the rank is lost. Smaller is an error, with a tolerance of 1e-6
    tol : stop when the change is below; default 1e-6, with `stop="topk:100"` 1e-10
    norm : `l1` sum of |x' - x| < tol; `l1_per_node` sum < n * tol, as in NetworkX; `linf` largest |x' - x| < tol;
        `relative` largest |x' - x| / x' < tol, 0 where x' is 0; `fixed` makes exactly max_iter iterations and takes
        no tol
    max_iter : most iterations; a run that converges on the last one has converged
    stop : `change`; or `topk:k`, such as `topk:100`, which also stops as soon as error bounds prove which vertices are
        the k highest. `Solution.stability` describes their order. Places k and k + 1 with equal ranks cannot be
        separated: then the run continues to the tolerance, or to max_iter
    precision : `exact` fixed point, bit-identical everywhere; `float64`; `float32`
    checkpoint : a `Checkpoint`, or its place alone. Not with `stop="topk:..."`
    progress : called with each `Event` of an iteration and with each `Phase`; on a cluster about once a second with all
        new events. Iterations that are repeated after a loss are reported again, with a higher `epoch`. The phase
        `checkpoint` has the iteration that was written, `resume` the iterations that were made before, `recover` says
        that the run resumes with other workers. True and False show and hide the progress, as does `show_progress`
    throw : raise when the tolerance was not met; False returns the solution with its status

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
    stopping: dict[str, Any] = {"tol": tol, "norm": norm, "max_iter": max_iter, "stop": stop}
    options = PageRankOptions(alpha=alpha, precision=precision, **stopping)
    keeping = read_checkpoint(checkpoint, options)
    call = Call(A, progress)
    place, executor = call.place, call.place.chosen_executor
    _check_kernel(call)
    use_weights = check_graph(A, bool(weight))
    threshold = options.threshold(A.shape[0], A.nnz)
    if isinstance(nstart, Solution):
        nstart = align_ranks(nstart, A)
    vectors = (personalization, dangling, nstart, out_weight)
    start = make_inputs(A, options, *vectors, use_weights=use_weights)
    dtype = None if not use_weights else "float32" if precision == "float32" else "float64"
    task, keeper = RankTask(name_run(), options, threshold, dtype, place.threads, place.kernel), None
    if keeping is not None:
        keeper, start = begin_checkpointing(call, task, start, keeping)
    before = find_before(keeper)
    if place.is_on_cluster:
        reads: dict[str, Any] = {"precision": precision, "weights": use_weights, "checkpoint": keeper is not None}
        reads["top"] = options.top if executor == "supersteps" else None  # in rounds, this process holds the ranks
        with add_resume_hint(keeper), call.distribute(**reads) as matrix:
            loaded = time.perf_counter()
            outcome = _rank_distributed(call, matrix, task, start, keeper)
        call.count_loading(outcome, loaded)
    else:
        rank, on_device = partial(_rank_embedded, call), place.computes == "cuda"
        outcome = add_underflow(A, rank(task, start, call.emit, keeper), start, task, rank, on_device=on_device)
    bound = widen_bound(outcome.error_bound_l1, options.alpha, start.growth)
    reached = time.perf_counter()
    outcome = replace(outcome, values=restore(outcome.values, A.order), error_bound_l1=bound)
    outcome.seconds["collect"] += time.perf_counter() - reached
    given = {"dangling": describe_dangling(dangling), "out_weight": "store" if out_weight is None else "vector"}
    asked = vars(options) | {"tol": options.choose_tol(A.shape[0], A.nnz)} | given
    outcome = replace(outcome, stability=_check_stability(options, outcome))
    solution = call.make_solution(outcome, asked | {"weight": use_weights, "executor": executor}, before, is_rank=True)
    if throw and not outcome.status.is_success:
        said = describe_failure(A, options, start, outcome.status, solution.changes, use_weights=use_weights)
        more = _describe_wrong(solution) + _describe_tie(solution)
        raise ConvergenceError(f"PageRank did not converge: {said}{more}", solution)
    return solution


def _check_kernel(call: Call) -> None:
    """Check the name of the kernel; the workers of a cluster are known later, when they join."""
    kernel = call.place.kernel
    if not call.place.is_on_cluster:
        check_kernel(kernel, call.place.computes, for_steps=True)
    elif call.place.client is not None:
        known = [name for each in BACKENDS for name in list_kernels(each, for_steps=True)]
        check_choice("kernel", kernel, ("auto", *dict.fromkeys(known)))


def _rank_embedded(
    call: Call,
    task: RankTask,
    start: RunInputs,
    emit: Callable[[Event], None] = ignore,
    keeper: Checkpointer | None = None,
) -> Outcome:
    """Rank in this process: on a device by its fused steps, where a layout for them can hold the matrix."""
    A, backend, layout, options, dtype = call.A, call.place.computes, None, task.options, task.dtype
    weight = start.take_weight(lambda: A.read_out_weight(dtype is not None))
    if backend == "cuda":
        layout = find_step_layout(task.kernel, options.precision, A.info.index_dtype, dtype, A.info.min_weight)
    steps: LocalSteps | DeviceSteps
    if layout is None:
        steps = LocalSteps(start.bind(A.bind(dtype, options.precision, options.top), weight), options)
    else:
        from mgspmv.solvers.device_steps import DeviceSteps

        device = A.bind_steps(dtype, options.precision, layout, options.top)
        steps = DeviceSteps(device, start.on_device(weight), task, is_counted=start.is_counted)
    loaded = time.perf_counter()
    balance = start.find_balance(options.alpha, A.shape[0])
    with nullcontext() if keeper is None else keeper:
        outcome = run_here(steps, task, emit, growth=start.growth, keeper=keeper, balance=balance)
    call.count_loading(outcome, loaded)
    return outcome


def _rank_distributed(
    call: Call, matrix: DistributedMatrix, task: RankTask, start: RunInputs, keeper: Checkpointer | None
) -> Outcome:
    """Rank on a cluster."""
    from mgspmv.cluster.recovery import Recovering
    from mgspmv.monitor.events import publish_run

    executor = call.place.chosen_executor
    assert executor in ("supersteps", "tasks")
    # Recoveries while the matrix was loaded for this run.
    earlier = () if call.place.is_distributed else matrix.recoveries
    recover = call.place.recover - len(earlier)
    with publish_run([matrix], task, "pagerank", executor) as news, nullcontext() if keeper is None else keeper:
        if keeper is not None:
            keeper.notify = notify_all(keeper.notify, news.publish_checkpoint)
        notify = notify_all(log_recovery, news.publish_recovery)
        for recovery in earlier:
            notify(recovery, 0)
        hearing = news.follow(call.emit), news.report(call.report), notify
        outcome = Recovering(matrix, task, start, executor, recover, *hearing, keeper).run()
        news.end(outcome.status, outcome)

    def step(once: RankTask, probe: RunInputs) -> Outcome:
        return Recovering(matrix, replace(once, run=name_run()), probe, executor, recover, ignore).run()

    outcome = add_underflow(matrix, outcome, start, task, step, on_device=matrix.backend != "cpu")
    return replace(outcome, recoveries=(*earlier, *outcome.recoveries))


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
