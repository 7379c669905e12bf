"""PageRank of a stored or distributed graph, and its checkpoints."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from mgspmv.api.arguments import (
    Call,
    MatrixLike,
    align_ranks,
    check_graph,
    describe_dangling,
    describe_failure,
    read_number,
    reads_input,
)
from mgspmv.errors import (
    CapacityError,
    CheckpointError,
    ClosedError,
    ClusterError,
    ConvergenceError,
    OptionError,
    add_to_message,
)
from mgspmv.kernels.catalogue import BACKENDS
from mgspmv.kernels.highest import check_order
from mgspmv.kernels.select import bind_kernel, check_kernel, find_step_layout, list_kernels
from mgspmv.logs import log_checkpoint, log_recovery, name_run
from mgspmv.model import BEGINNING, EVERY_S, ChangeNorm, Event, Precision, RunProgress, Status, check_choice, ignore
from mgspmv.monitor.progress import ProgressOption, notify_all
from mgspmv.order import restore
from mgspmv.results import Solution
from mgspmv.solvers.options import PageRankOptions, RankTask, Reads
from mgspmv.solvers.pagerank import CheckedLoop, RunInputs, add_underflow, find_before, make_inputs
from mgspmv.solvers.run import Outcome, run, widen_bound
from mgspmv.solvers.steps import LocalSteps
from mgspmv.solvers.vectors import Weights
from mgspmv.store.digests import digest_array
from mgspmv.store.locations import StoreLike, is_zarr_store
from mgspmv.validation import rename_former

if TYPE_CHECKING:
    from mgspmv.checkpoints import Checkpointer, CheckpointReport
    from mgspmv.cluster.matrix import DistributedMatrix
    from mgspmv.solvers.steps import DeviceSteps


_VECTORS = ("personalization", "dangling", "out_weight", "nstart")
"""Inputs that are compared by digest."""


@dataclass(frozen=True)
class Checkpoint:
    """Place and interval at which a run writes its ranks, from which another one resumes.

    Raises
    ------
    OptionError : a place that is none; seconds that are not 0 or more

    Examples
    --------
    >>> import mgspmv as mg
    >>> edges = ([0, 1, 2, 2], [1, 2, 0, 1])
    >>> _ = mg.pagerank(edges, max_iter=5, throw=False, checkpoint="run.zarr")
    >>> mg.pagerank(edges, checkpoint=mg.Checkpoint("run.zarr", resume=True)).resumed_after
    5
    """

    place: StoreLike
    """Local path, URL or Zarr store, which all workers of a cluster reach, to which the ranks are written periodically
    during the run, and once more at its end; the last two are kept. Other checkpoints there are removed once the first
    one is complete."""
    every_s: float = EVERY_S
    """Seconds between checkpoints; 0 begins one as soon as the previous one is written."""
    resume: bool = False
    """Resume from the last checkpoint, or begin where there is none. Graph, vectors, alpha, precision and norm must be
    the same, and tol and max_iter must not end the run earlier; workers, backend, executor, memory and threads may
    differ. In `exact` ranks, changes and iterations are those of an uninterrupted run."""

    def __post_init__(self) -> None:
        if not (isinstance(self.place, str | os.PathLike) or is_zarr_store(self.place)):
            raise OptionError(
                f"the place of a checkpoint must be a path, URL or Zarr store, not {self.place!r}; for none "
                "leave out checkpoint="
            )
        if read_number("every_s", self.every_s) < 0:
            raise OptionError(f"every_s must be 0 or more seconds, not {self.every_s!r}")


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
    A : matrix or graph
        A graph: an opened or distributed matrix of kind `graph` or `stochastic`, the path of a store or of a file of
        edges, a NetworkX graph, a SciPy sparse matrix, a table, or arrays or pairs of edges; see the page "Tables and
        arrays". `A.T` ranks the reversed graph. `A.on(...)` and `A.distribute(...)` set where and how it is computed.
    alpha : float, default 0.85
        Damping factor, 0 <= alpha < 1.
    personalization : mapping, Series, sequence or array, optional
        Targets of random jumps, p. By id: a mapping of ids to numbers, a pandas Series with ids as its index, a frame
        or Arrow table of ids and numbers, or a list of ids. By position: an (n,) array in the order of the vertices. It
        is normalized; default uniform.
    dangling : {"uniform", "drop", "error"}, mapping, Series, sequence or array, optional
        Distribution of the rank of vertices without out-edges, d: a vector like p; default p, as in NetworkX and
        cuGraph. `uniform` distributes it equally; `drop` loses it, as in GAP and Neo4j (the start is then (1 - alpha)
        p); `error` raises `DanglingError`.
    nstart : mapping, Series, sequence, array or Solution, optional
        Start vector, like p, normalized. Default p: vertices that no path reaches from there have rank 0 where dangling
        mass goes to p or is dropped. A Solution of an earlier version of the graph is aligned by id; new vertices start
        with 1/n.
    weight : bool or str, default True
        True uses the stored weights; None or False counts each edge as 1. Of a graph, table or file that is read here,
        also the name of the attribute or column with the weights.
    out_weight : mapping, Series, sequence or array, optional
        Total weight of the out-edges of each vertex, w: a vector like p, not normalized; default the sum of the stored
        edges. Larger where edges leave the stored part: their share of the rank is lost. Smaller is an error, with a
        tolerance of 1e-6.
    tol : float, optional
        Tolerance: stop when the change is below it; default 1e-6, with `stop="topk:100"` 1e-10.
    norm : {"l1", "l1_per_node", "linf", "relative", "fixed"}, default "l1"
        Norm of the change: `l1` sum of |x' - x| < tol; `l1_per_node` sum < n * tol, as in NetworkX; `linf` largest |x'
        - x| < tol; `relative` largest |x' - x| / x' < tol, 0 where x' is 0. `fixed` makes exactly max_iter iterations
        and takes no tol.
    max_iter : int, default 100
        Maximum number of iterations; a run that meets the tolerance in the last one has converged.
    stop : str, default "change"
        `change` stops at the tolerance. `topk:k`, such as `topk:100`, also stops as soon as error bounds prove which
        vertices are the k highest; `Solution.stability` describes their order. Places k and k + 1 with equal ranks
        cannot be separated: the run then continues to the tolerance, or to max_iter.
    precision : {"exact", "float64", "float32"}, default "exact"
        Arithmetic of sums: `exact` is fixed point, bit-identical everywhere.
    checkpoint : Checkpoint, path or Zarr store, optional
        Where to write checkpoints: a `Checkpoint`, or its place alone. Not with `stop="topk:..."`.
    progress : callable or bool, optional
        Called with each `Event` of an iteration and with each `Phase`; on a cluster about once a second with all new
        events. Iterations that are repeated after a loss are reported again, with a higher `epoch`. The phase
        `checkpoint` has the iteration that was written, `resume` the iterations that were made before, `recover` says
        that the run resumes with other workers. True and False show and hide the progress, as does `show_progress`.
    throw : bool, default True
        Raise an error if the tolerance was not met; False returns the solution with its status.

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

    Examples
    --------
    >>> import mgspmv as mg
    >>> ranks = mg.pagerank([("alice", "bob"), ("carol", "bob"), ("bob", "alice")])
    >>> print(ranks.top(2))
    place  id          rank
        1  bob    0.4864867
        2  alice  0.4635133
    >>> round(ranks["carol"], 4)
    0.05
    """
    options = PageRankOptions(alpha=alpha, precision=precision, tol=tol, norm=norm, max_iter=max_iter, stop=stop)
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
        top = options.top if executor == "supersteps" else None  # in rounds, this process holds the ranks
        reads = Reads(precision, use_weights, top, keeper is not None)
        with add_resume_hint(keeper), call.distribute(reads) as matrix:
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
    if options.top is not None and outcome.stability is None:
        outcome = replace(outcome, stability=check_order(outcome.values, options.top, bound))
    given = {"dangling": describe_dangling(dangling), "out_weight": "store" if out_weight is None else "vector"}
    asked = vars(options) | {"tol": options.choose_tol(A.shape[0], A.nnz)} | given
    solution = call.make_solution(outcome, asked | {"weight": use_weights, "executor": executor}, before, is_rank=True)
    if throw and not outcome.status.is_success:
        said = describe_failure(A, options, start, outcome.status, solution.changes, use_weights=use_weights)
        if outcome.status == Status.NON_FINITE:
            said += f"; {solution.non_finite or 'a rank divided by its out-weight overflowed'}"
        if (found := solution.stability) is not None and not found.is_proven:
            said += (
                f"; places {found.k} and {found.k + 1} are {found.gap:.3g} apart, and tied within the bound of "
                f"{found.bound:.3g}: choose another number of vertices if they are equal"
            )
        raise ConvergenceError(f"PageRank did not converge: {said}", solution)
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
    if backend == "cuda":
        info = A.stored.info
        layout = find_step_layout(task.kernel, options.precision, info.index_dtype, dtype, info.min_weight)
    steps: LocalSteps | DeviceSteps
    if layout is None:
        weight = start.take_weight(lambda: A.out_weights.read(dtype is not None))
        bound = A.bind(bind_kernel, dtype, options.precision, task.kernel, options.top)
        steps = LocalSteps(start.bind(bound, weight), options)
    else:
        from mgspmv.solvers.steps import DeviceSteps

        device = A.bind_steps(dtype, options.precision, layout, options.top)
        weight = start.take_weight(lambda: A.take_out_weight(dtype is not None))
        steps = DeviceSteps(device, start.on_device(weight), task, is_counted=start.is_counted)
    loaded = time.perf_counter()
    watch, balance = steps.watch(options, growth=start.growth), start.find_balance(options.alpha, A.shape[0])
    outcome = run(CheckedLoop(steps, task, watch, find_before(keeper), balance), emit, options.alpha, keeper)
    call.count_loading(outcome, loaded)
    return outcome


def _rank_distributed(
    call: Call, matrix: DistributedMatrix, task: RankTask, start: RunInputs, keeper: Checkpointer | None
) -> Outcome:
    """Rank on a cluster."""
    from mgspmv.cluster.attempts import Recovering
    from mgspmv.monitor.events import publish_run

    executor = call.place.chosen_executor
    assert executor in ("supersteps", "tasks")
    # Recoveries while the matrix was loaded for this run.
    earlier = () if call.place.is_distributed else matrix.recoveries
    recover = call.place.recover - len(earlier)
    with publish_run([matrix], task, "pagerank", executor) as news:
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


# --- checkpoints -----------------------------------------------------------------------------------------------------


def read_checkpoint(checkpoint: StoreLike | Checkpoint | None, options: PageRankOptions) -> Checkpoint | None:
    """Return the checkpoint of a run, which may be given by its place alone.

    Raises
    ------
    OptionError : a `stop` whose state is more than the ranks
    """
    if checkpoint is None:
        return None
    if options.top is not None:
        raise OptionError(
            f"checkpoints have only ranks, but stop={options.stop!r} needs more state to resume; leave out checkpoint= "
            "or stop="
        )
    return checkpoint if isinstance(checkpoint, Checkpoint) else Checkpoint(checkpoint)


@contextmanager
def add_resume_hint(keeper: Checkpointer | None) -> Iterator[None]:
    """Add to errors that end a run on a cluster which checkpoint exists, and how to resume from it."""
    before = find_before(keeper)
    try:
        yield
    except (CapacityError, ClosedError, ClusterError) as error:
        if keeper is None or not (kept := keeper.kept or before).iteration:
            raise
        said = f"the checkpoint of iteration {kept.iteration} in {keeper.checkpoints.url} is kept"
        raise add_to_message(error, f"{said}: resume from it with resume=True") from error


def begin_checkpointing(
    call: Call, task: RankTask, start: RunInputs, checkpoint: Checkpoint
) -> tuple[Checkpointer, RunInputs]:
    """Return the keeper of a run's checkpoints, and the vectors that the run begins with or resumes from.

    `progress` hears of `resume` with the number of iterations made before, and of each checkpoint.

    Raises
    ------
    CheckpointError : with `resume`, the checkpoint belongs to another run or is damaged; the place cannot be written
    StoreExistsError : the place holds data other than checkpoints
    OptionError : the place is in the memory of this process, and other processes are to write to it
    """
    from mgspmv.checkpoints import Checkpointer, Checkpoints

    A, options = call.A, task.options
    # Where the run computes and when it ends are left out: in `exact` these do not change a bit.
    identity: dict[str, Any] = {"matrix": A.stored.name_entries(weights=task.dtype is not None)}
    identity |= {name: getattr(options, name) for name in ("alpha", "precision", "norm", "stop")}
    vectors = (start.personalization, start.dangling, start.out_weight, start.x)
    identity |= {n: None if v is None else digest_array(v) for n, v in zip(_VECTORS, vectors, strict=True)}
    checkpoints = Checkpoints(checkpoint.place, identity["matrix"], A.shape[0])
    checkpoints.prepare(is_shared=call.place.is_on_cluster)
    restored = checkpoints.restore() if checkpoint.resume else None
    before = BEGINNING if restored is None else restored.reached
    difference = None if restored is None else _compare(before, identity, options, task.threshold)
    if difference is not None:
        raise CheckpointError(
            f"the checkpoint in {checkpoints.url} is of another run: {difference}; pass the same arguments, or leave "
            "out resume=True to start from the beginning"
        )
    if checkpoint.resume:
        call.report("resume", before.iteration, None)

    def notify(kept: CheckpointReport) -> None:
        log_checkpoint(kept)
        if kept.error is None:
            call.report("checkpoint", kept.iteration, None)

    keeper = Checkpointer(checkpoints, identity, task.run, checkpoint.every_s, before, notify)
    return keeper, start if restored is None else replace(start, x=restored.x)


def _compare(reached: RunProgress, identity: dict[str, Any], options: PageRankOptions, threshold: float) -> str | None:
    """Describe the difference between a run and that of a checkpoint; None if they are the same."""
    written = rename_former(reached.identity)
    for name, asked in identity.items():
        found = written.get(name)
        if found == asked:
            continue
        if name in _VECTORS:
            return f"it has another {name}"
        if name == "matrix":
            return f"its matrix is {found}, not {asked}"
        return f"it has {name}={found!r}, not {name}={asked!r}"
    for iteration, change in enumerate(reached.changes[:-1], 1):
        if options.check_status(threshold, iteration, change) is not None:
            tol = "" if options.tol is None else f" with tol={options.tol:g}"
            return f"it has iteration {reached.iteration}, but this run{tol} ends after {iteration}"
    return None
