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
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from mgspmv.model import BEGINNING, FIXED_POINT, Event, Precision, RunProgress, Stability, Status, StepSums, Underflow
from mgspmv.solvers.inputs import RunInputs, read_out_weight
from mgspmv.solvers.options import PageRankOptions, RankTask
from mgspmv.solvers.run import Collected, Execution, MassCheck, Outcome
from mgspmv.solvers.steps import Steps
from mgspmv.store.digests import cut_pieces, run_parts
from mgspmv.store.stored_matrix import MatrixProperties

if TYPE_CHECKING:
    from mgspmv.checkpoints import Checkpointer, StateAddress, WrittenSlice
    from mgspmv.solvers.topk_certificate import TopkCertificate


CHECK_S = 5.0
"""Seconds between checks of the ranks for corruption, in runs of this process."""


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


OneStep = Callable[[RankTask, RunInputs], Outcome]
"""Function that makes a run of one step with these vectors."""


def find_resolution(precision: Precision, n: int, nnz: int, *, on_device: bool) -> float:
    """Return the unit that the contribution of an edge is rounded to near 0.

    Parameters
    ----------
    on_device : where `float32` is summed in fixed point
    """
    if precision == "float32" and on_device:
        return 2.0**-27 / max(n, nnz)
    return {"exact": 1.0 / FIXED_POINT, "float64": 2.0**-1074, "float32": 2.0**-149}[precision]


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
    on_device : as in `find_resolution`
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
    resolution = find_resolution(options.precision, A.shape[0], A.nnz, on_device=on_device)
    least = 1.0 if not use_weights else A.stored.info.min_weight or 0.0
    probe = None
    if options.alpha:
        probe = _make_probe(x, start.take_weight(partial(read_out_weight, A.stored, use_weights)), least, resolution)
    if probe is not None:
        fixed = PageRankOptions(alpha=options.alpha, norm="fixed", max_iter=1, precision=options.precision)
        once = replace(task, options=fixed, threshold=0.0)
        is_lost |= is_zero & (step(once, replace(start, x=probe.astype(start.x.dtype))).values > 0)
    lost = np.flatnonzero(is_lost)
    if not len(lost):
        return None
    first = int(lost[0] if A.order is None else A.order[lost].min())
    vertex = first if A.vertex_ids is None else A.vertex_ids[first]
    return Underflow(len(lost), vertex if isinstance(vertex, str) else int(vertex), resolution, options.precision)


def _make_probe(x: np.ndarray, weight: np.ndarray, least: float, resolution: float) -> np.ndarray | None:
    """Make a start, (n,), with equal contributions of all vertices whose contributions underflow; None for none."""
    is_faint = (x > 0) & (weight > 0)
    is_faint[is_faint] = x[is_faint] / weight[is_faint] * least < resolution / 2
    if not is_faint.any():
        return None
    probe = np.where(is_faint, weight / weight[is_faint].max(), 0.0)
    normalized: np.ndarray = probe / probe.sum()
    return normalized
