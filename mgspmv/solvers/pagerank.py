"""PageRank by power iteration, in fused steps.

    z = x / w (0 where w = 0);   m = sum of x over dangling vertices
    x' = alpha (A z + m d) + (1 - alpha) p;   stop on |x' - x|

A holds the in-edges of each vertex in its row, w the out-weights, p the personalization, d the distribution of the rank
of dangling vertices. Page, Brin, Motwani, Winograd: The PageRank Citation Ranking (1999); differs from it in that
dangling vertices stay in the graph, as in NetworkX and cuGraph.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from mgspmv.errors import DanglingError, OptionError
from mgspmv.model import (
    BEGINNING,
    FIXED_POINT,
    STOCHASTIC_TOLERANCE,
    Event,
    Precision,
    RunProgress,
    Stability,
    Status,
    StepSums,
    Underflow,
    check_choice,
)
from mgspmv.order import permute, restore
from mgspmv.solvers.options import PageRankOptions, RankTask
from mgspmv.solvers.run import Collected, Execution, MassCheck, Outcome
from mgspmv.solvers.steps import Rows, Steps
from mgspmv.solvers.vectors import Weights, make_distribution, make_vector
from mgspmv.store.digests import cut_pieces, run_parts
from mgspmv.store.stored_matrix import MatrixProperties, StoredMatrix

if TYPE_CHECKING:
    from mgspmv.checkpoints import Checkpointer, StateAddress, WrittenSlice
    from mgspmv.kernels.rank_steps import RankVectors
    from mgspmv.kernels.select import BoundKernel, BoundMany
    from mgspmv.solvers.batch import ManyRows
    from mgspmv.solvers.topk_certificate import TopkCertificate

CHECK_S = 5.0
"""Seconds between checks of the ranks for corruption, in runs of this process."""
ROUNDING = 1e-6
"""Relative amount by which an out-weight may be less than the sum of the stored edges, as sums in float32 are."""


@dataclass(frozen=True, eq=False)
class RunInputs:
    """Start vectors over vertices; a vector of one element holds for all vertices."""

    x: np.ndarray
    """(n,) or (1,) float32 or float64: the first ranks."""
    dangling: np.ndarray
    """(n,) or (1,) float64: d, the distribution of the rank of dangling vertices."""
    personalization: np.ndarray
    """(n,) or (1,) float64: p."""
    out_weight: np.ndarray | None = None
    """(n,) float64: w given by the user; None for the stored out-weights."""
    growth: float = 1.0
    """Largest column sum of A / w, at least 1."""
    shares: tuple[float, float] = (1.0, 1.0)
    """Least (at most 1) and largest (at least 1) column sum of A / w."""

    def cut(self, start: int, stop: int) -> RunInputs:
        """Return the vectors of vertices `start` .. `stop`, as views."""
        x, d, p = (v if len(v) == 1 else v[start:stop] for v in (self.x, self.dangling, self.personalization))
        weight = None if self.out_weight is None else self.out_weight[start:stop]
        return RunInputs(x, d, p, weight, self.growth, self.shares)

    def find_balance(self, alpha: float, n: int) -> MassCheck:
        """Return the expected sum of the ranks, where these vectors are of all n vertices."""
        total = float(self.x[0]) * n if len(self.x) == 1 else float(self.x.sum(dtype=np.longdouble))
        return MassCheck(alpha, 1.0 if self.dangling.any() else 0.0, *self.shares, total, total)

    @property
    def is_counted(self) -> bool:
        """True if the out-weights of a pattern are counts."""
        return self.out_weight is None

    def take_weight(self, read: Callable[[], np.ndarray]) -> np.ndarray:
        """Return the out-weights of the vertices of these vectors: the given ones, or those that `read` returns."""
        return read() if self.out_weight is None else self.out_weight

    def bind_many(self, kernel: BoundMany, stored: OutWeights, *, use_weights: bool, has_device: bool) -> ManyRows:
        """Make the rows of a batch, whose out-weights are the given ones, or the stored ones, which a device keeps."""
        from mgspmv.solvers.batch import ManyRows

        # Received arrays are read-only, and kernels take both.
        if self.out_weight is None and has_device:
            weight = stored.put(use_weights, kernel.put)
        else:
            weight = kernel.put(np.require(self.take_weight(lambda: stored.read(use_weights)), requirements="W"))
        dangling = kernel.put(np.require(self.dangling, requirements="W"))
        return ManyRows(kernel, weight, dangling, n_dangling=int((weight == 0).sum()))

    def bind(self, kernel: BoundKernel, weight: np.ndarray) -> Rows:
        """Make the rows that the owner of a block starts with.

        Parameters
        ----------
        weight : (n_rows,) float64 out-weights of the block's vertices
        """
        # Arrays received over a network may be read-only, and steps write x.
        x = np.full(kernel.block.n_rows, self.x[0]) if len(self.x) == 1 else np.require(self.x, requirements="W")
        put = kernel.put
        vectors = (put(x), put(weight), put(self.dangling), put(self.personalization))
        return Rows(kernel, *vectors, n_dangling=int(np.count_nonzero(weight == 0)))

    def on_device(self, weight: np.ndarray) -> RankVectors:
        """Make the start of a device that has the whole matrix; weight as for `bind`, of all vertices."""
        from mgspmv.kernels.rank_steps import RankVectors

        return RankVectors(self.x, weight, self.dangling, self.personalization)


def make_inputs(
    A: MatrixProperties,
    options: PageRankOptions,
    personalization: Weights | None = None,
    dangling: Weights | str | None = None,
    nstart: Weights | None = None,
    out_weight: Weights | None = None,
    *,
    use_weights: bool,
) -> RunInputs:
    """Make the start vectors of a run, in the order of the stored rows, from the user's arguments; see
    `mgspmv.pagerank`.

    Raises
    ------
    OptionError, ShapeError : a vector that is not a distribution over the vertices; invalid out-weights
    DanglingError : dangling="error" and a vertex without out-edges
    """
    stored, order, n = A.stored, A.order, A.shape[0]  # ids are read where they are needed

    def distribute(name: str, weights: Weights | None) -> np.ndarray:
        if weights is None:
            return np.array([1.0 / n])
        permuted: np.ndarray = permute(make_distribution(name, weights, n, A.vertex_ids), order)
        return permuted

    p = distribute("personalization", personalization)
    off = STOCHASTIC_TOLERANCE if stored.info.kind == "stochastic" else 0.0
    weight, growth, shares = None, 1.0, (1.0 - off, 1.0 + off)
    if out_weight is not None:
        of_edges = restore(read_out_weight(stored, use_weights), order)
        weight = make_out_weight(out_weight, of_edges, A.vertex_ids)
        has_out = weight > 0
        column_sums = of_edges[has_out] / weight[has_out]  # of A / w: a step grows L1 distances at most by the largest
        growth = float(column_sums.max(initial=1.0))
        shares = (float(column_sums.min(initial=1.0)) - off, growth + off)
    if dangling is None:
        d = p
    elif not isinstance(dangling, str):
        d = distribute("dangling", dangling)
    else:
        check_choice("dangling", dangling, ("uniform", "drop", "error"))
        if dangling == "error":
            own = restore(read_out_weight(stored, use_weights), order) if weight is None else weight
            if len(empty := np.flatnonzero(own == 0)):
                raise DanglingError(
                    f"{len(empty)} of {n} vertices have no out-edges, or only ones of weight 0, first "
                    f"{_name(empty[0], A.vertex_ids)}, and dangling='error'; give them edges, or pass "
                    "dangling='uniform' or 'drop'"
                )
        d = np.zeros(1) if dangling == "drop" else distribute("dangling", None)
    is_dropped = isinstance(dangling, str) and dangling == "drop"
    x = (1.0 - options.alpha if is_dropped else 1.0) * p if nstart is None else distribute("nstart", nstart)
    x = x.astype(np.float32 if options.precision == "float32" else np.float64)
    return RunInputs(x, d, p, None if weight is None else permute(weight, order), growth, shares)


def read_out_weight(
    stored: StoredMatrix, use_weights: bool, start: int = 0, stop: int | None = None, threads: int | None = None
) -> np.ndarray:
    """Read out-weights of vertices `start` .. `stop`, float64, 0 for dangling ones; out-degrees without weights.

    Those of a reversed graph are summed from the values of the rows of the original.
    """
    if stored.info.kind == "stochastic":
        return (stored.read_out_degree(start, stop, threads) > 0).astype(np.float64)
    if not use_weights:
        return stored.read_out_degree(start, stop, threads).astype(np.float64)
    if stored.original is None:
        return stored.read_array("out_weight", start, stop, threads)
    from mgspmv.ingest.build import sum_rows  # imported here, as it loads all of ingest

    return sum_rows(stored.original, start, stored.info.shape[0] if stop is None else stop, threads)


class OutWeights:
    """Out-weights of some vertices, for several runs; those of a reversed graph, and those on a device, are cached.

    Parameters
    ----------
    start, stop : range of the vertices
    threads : for reading
    """

    def __init__(self, stored: StoredMatrix, start: int, stop: int, threads: int | None = None) -> None:
        self._read = partial(read_out_weight, stored, start=start, stop=stop, threads=threads)
        self._is_reversed = stored.original is not None
        self._kept: dict[bool, np.ndarray] = {}
        self._on_device: dict[bool, Any] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of the cached out-weights."""
        return sum(weight.nbytes for weight in (*self._kept.values(), *self._on_device.values()))

    def put(self, use_weights: bool, put: Callable[[np.ndarray], Any]) -> Any:
        """Return the out-weights of `read` on the device to which `put` copies, cached there."""
        if use_weights not in self._on_device:
            self._on_device[use_weights] = put(self.read(use_weights))
        return self._on_device[use_weights]

    def read(self, use_weights: bool) -> np.ndarray:
        """Return the out-weights of `read_out_weight`, cached for a reversed graph."""
        if use_weights in self._kept:
            return self._kept[use_weights]
        weight = self._read(use_weights)
        if self._is_reversed:
            self._kept[use_weights] = weight
        return weight


def make_out_weight(given: Weights, stored: np.ndarray, vertex_ids: np.ndarray | None) -> np.ndarray:
    """Make the out-weights of a run.

    Parameters
    ----------
    given : (n,) array in the order of the source's vertices, or a mapping of their ids; missing ids weigh 0
    stored : (n,) float64: sum of the stored out-edges of each vertex
    vertex_ids : (n,) ascending ids of the store, None for 0..n-1

    Returns
    -------
    (n,) float64, each at least `stored`, up to rounding. Larger ones belong to vertices with edges that leave the
    stored part: their share of the rank is lost, like the rank of dropped dangling vertices.

    Raises
    ------
    ShapeError : an array of another length
    OptionError : an unknown id; a weight that is negative, not finite, or less than the sum of the stored out-edges
    """
    weight = make_vector("out_weight", given, len(stored), vertex_ids, is_signed=False)
    is_less = weight < stored * (1.0 - ROUNDING)
    if is_less.any():
        place = int(is_less.argmax())
        raise OptionError(
            f"out_weight of vertex {_name(place, vertex_ids)} is {weight[place]:.9g}, less than the sum of its stored "
            f"out-edges, {stored[place]:.9g}; pass at least that sum, or the vertex passes on more rank than it has"
        )
    return weight


def describe_overflow(weight: np.ndarray, vertex_ids: np.ndarray | None, precision: Precision) -> str | None:
    """Describe the out-weight that made ranks overflow, and the remedy; None where out-weights do not explain it.

    Parameters
    ----------
    weight : (n,) out-weights, in the order of the source
    """
    if not (is_finite := np.isfinite(weight)).all():
        vertex = _name(int(is_finite.argmin()), vertex_ids)
        return (
            f"The weights of the out-edges of vertex {vertex} sum to more than the largest float64 (1.8e308); scale "
            "the weights down, or pass weight=False"
        )
    least = weight.min(where=weight > 0, initial=np.inf)
    if least * float(np.finfo(np.float32 if precision == "float32" else np.float64).max) >= 1.0:
        return None
    vertex = _name(int((weight == least).argmax()), vertex_ids)
    return (
        f"The weights of the out-edges of vertex {vertex} sum to {least:.3g}, and a rank divided by that overflows "
        f"with precision={precision!r}; scale the weights up, or pass weight=False"
    )


def _name(place: int, vertex_ids: np.ndarray | None) -> Any:
    return place if vertex_ids is None else vertex_ids[place]


# --- iterations -------------------------------------------------------------------------------------------------------


class Loop(Execution):
    """Loop of iterations to the end. All processes that run it with the same sums make the same iterations.

    Parameters
    ----------
    watch : examines the ranks during the run
    before : progress of the run that this one resumes
    balance : expected sum of the first ranks; None where it is unknown

    Attributes
    ----------
    balance : expected sum of the ranks after the last iteration
    iteration : iterations made, including those before
    mass : sum of the ranks over dangling vertices
    seconds : of the phase `look`, where a watch examines the ranks
    """

    def __init__(
        self,
        steps: Steps,
        task: RankTask,
        watch: TopkCertificate | None = None,
        before: RunProgress = BEGINNING,
        balance: MassCheck | None = None,
    ) -> None:
        self._steps, self._task, self._options, self._watch = steps, task, task.options, watch
        self._is_wrong = False
        self.balance = balance
        self.iteration, self._epoch = before.iteration, before.epoch + 1
        self.mass = 0.0
        self.seconds: dict[str, float] = {} if watch is None else {"look": 0.0}
        if before.changes:
            self.status = task.options.check_status(task.threshold, before.iteration, before.changes[-1])

    def describe(self) -> str:
        return self._steps.describe()

    def start(self) -> None:
        first = self._steps.scale()
        if self._watch is not None:
            self._watch.start()
        self.mass, self._is_wrong = first.dangling / FIXED_POINT, first.n_wrong > 0
        if self._watch is not None:
            self._watch.see(0, self._steps.ranks(), self.mass)

    def advance(self, n: int | None = None) -> Iterator[Event]:
        last = self._options.max_iter if n is None else self.iteration + n
        while self.status is None and self.iteration < last:
            left, watch = last - self.iteration, self._watch
            n_steps = left if watch is None else min(left, watch.count_steps(self.iteration))
            made = self._steps.advance(self.mass, n_steps)
            # A device makes steps in batches: the ranks in its memory are those of the last step of a batch.
            for k, (sums, times) in enumerate(made, 1):
                self.is_ahead = k < len(made)
                change = self._take(sums)
                yield Event(self._task.run, self._epoch, self.iteration, change, **vars(times))

    def _take(self, sums: StepSums) -> float:
        """Count an iteration with these sums, set the status, and return its change."""
        self.balance = None if self.balance is None else self.balance.step(self.mass)
        self.iteration, self.mass = self.iteration + 1, sums.dangling / FIXED_POINT
        change = self._options.measure(sums)
        is_wrong = self._is_wrong or sums.n_wrong > 0
        if self._watch is not None and not is_wrong and self._watch.wants(self.iteration):
            self._watch.see(self.iteration, self._steps.ranks(), self.mass)
            self.seconds["look"] = self._watch.elapsed_s
        self.status = self._options.check_status(self._task.threshold, self.iteration, change, is_wrong=is_wrong)
        if self.stability is not None and not is_wrong:
            self.status = Status.STABLE
        return change

    def measure(self) -> float:
        return self._steps.measure(self.mass)

    def collect(self) -> Collected:
        return replace(self._steps.collect(), seconds=self.seconds, stability=self.stability)

    @property
    def stability(self) -> Stability | None:
        """Proven stability of the highest vertices; None before it is proven."""
        return None if self._watch is None else self._watch.found


class CheckedLoop(Loop):
    """Loop over all rows, driven by this process. The ranks are checked for corruption periodically, and before they
    are written to a checkpoint or returned."""

    def start(self) -> None:
        if not self._steps.is_remote:
            began = time.perf_counter()
            self._steps.compile()
            self.seconds["compile"] = time.perf_counter() - began
        super().start()
        self._checked_s = time.monotonic()
        if self.balance is not None:
            total = self._steps.check_rows()[0].sum
            self.balance = replace(self.balance, low=total, high=total)

    def advance(self, n: int | None = None) -> Iterator[Event]:
        for event in super().advance(n):
            # The ranks of a later step do not match the mass and the sum of this iteration.
            is_due = self._steps.is_remote or time.monotonic() >= self._checked_s + CHECK_S
            if not self.is_ahead and (self.status is not None or is_due):
                self._check()
            yield event

    def write_state(self, address: StateAddress) -> Sequence[WrittenSlice | str]:
        self._check()
        return self._steps.write_state(address)

    def _check(self) -> None:
        if self.status != Status.NON_FINITE:
            self._steps.check(self.mass, self.balance, self.iteration)
        self._checked_s = time.monotonic()


def find_before(keeper: Checkpointer | None) -> RunProgress:
    """Return the progress that a run resumes from."""
    return BEGINNING if keeper is None else keeper.before


# --- ranks that underflow ---------------------------------------------------------------------------------------------

OneStep = Callable[[RankTask, RunInputs], Outcome]
"""Function that makes a run of one step with these vectors."""


def add_underflow(
    A: MatrixProperties, outcome: Outcome, start: RunInputs, task: RankTask, step: OneStep, *, on_device: bool
) -> Outcome:
    """Add to the outcome of a run the vertices whose rank is 0 although jumps, or edges from vertices with a rank above
    0, lead to them.

    Nothing is read, and no step made, where no rank is 0; no step where no contribution is below the resolution.

    Parameters
    ----------
    outcome : with ranks in the order of the stored rows
    start : of the run, likewise
    on_device : where `float32` is summed in fixed point
    """
    if outcome.status == Status.NON_FINITE:
        return outcome
    began = time.perf_counter()
    found = _find_underflow(A, outcome.values, start, task, step, on_device=on_device)
    outcome.seconds["residual"] += time.perf_counter() - began
    return replace(outcome, underflow=found)


def _find_underflow(
    A: MatrixProperties, x: np.ndarray, start: RunInputs, task: RankTask, step: OneStep, *, on_device: bool
) -> Underflow | None:
    if all(run_parts(lambda piece: bool(x[piece].min() > 0), cut_pieces(0, len(x)), task.threads)):
        return None
    options, use_weights, is_zero = task.options, task.dtype is not None, x == 0
    is_lost = is_zero & (start.personalization > 0)
    # The unit that the contribution of an edge is rounded to near 0.
    resolution = {"exact": 1.0 / FIXED_POINT, "float64": 2.0**-1074, "float32": 2.0**-149}[options.precision]
    if options.precision == "float32" and on_device:
        resolution = 2.0**-27 / max(A.shape[0], A.nnz)
    least = 1.0 if not use_weights else A.stored.info.min_weight or 0.0
    if options.alpha:
        weight = start.take_weight(partial(read_out_weight, A.stored, use_weights))
        is_faint = (x > 0) & (weight > 0)
        is_faint[is_faint] = x[is_faint] / weight[is_faint] * least < resolution / 2
        if is_faint.any():  # one step from equal contributions of all vertices whose contributions underflow
            probe = np.where(is_faint, weight / weight[is_faint].max(), 0.0)
            fixed = PageRankOptions(alpha=options.alpha, norm="fixed", max_iter=1, precision=options.precision)
            once, first_x = replace(task, options=fixed, threshold=0.0), (probe / probe.sum()).astype(start.x.dtype)
            is_lost |= is_zero & (step(once, replace(start, x=first_x)).values > 0)
    lost = np.flatnonzero(is_lost)
    if not len(lost):
        return None
    first = int(lost[0] if A.order is None else A.order[lost].min())
    vertex = first if A.vertex_ids is None else A.vertex_ids[first]
    return Underflow(len(lost), vertex if isinstance(vertex, str) else int(vertex), resolution, options.precision)
