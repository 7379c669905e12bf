"""Runs on a cluster, each a sequence of attempts on the workers present.

When an attempt of PageRank raises the error of a lost worker, it has already ended on the others. Lost workers then
have a few seconds to return, the matrix is redistributed over the workers present, and the next attempt resumes from
the last checkpoint of this run, or from its start. Batches and power iteration have one attempt.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from operator import itemgetter
from typing import Any

import numpy as np

from mgspmv.checkpoints import Checkpointer, describe_failure
from mgspmv.cluster.executors import AttemptWorkers, Executor, Supersteps, TaskSteps, find_layout
from mgspmv.cluster.matrix import DistributedMatrix
from mgspmv.cluster.scheduler_client import End, record_failure
from mgspmv.cluster.vector_shares import run_shares
from mgspmv.cluster.worker_rows import LOST
from mgspmv.cluster.worker_run import BatchPiece, PowerPiece, Report, TaskSpec
from mgspmv.errors import (
    CapacityError,
    ClosedError,
    ClusterError,
    MgspmvError,
    RunAbortedError,
    WorkerLostError,
    WorkerMemoryError,
    WorkerTimeoutError,
    add_to_message,
)
from mgspmv.model import Event, Progress, Recovery, ignore
from mgspmv.order import permute, restore
from mgspmv.solvers.batch import BatchTask, FinishedVectors
from mgspmv.solvers.options import RankTask
from mgspmv.solvers.pagerank import CheckedLoop, RunInputs, find_before
from mgspmv.solvers.power import PowerTask, Step
from mgspmv.solvers.run import Execution, Outcome
from mgspmv.solvers.steps import STEPS_AT_ONCE
from mgspmv.solvers.vectors import Query


def run_with_lease(matrix: DistributedMatrix, report: Progress, make: Callable[[], Outcome]) -> Outcome:
    """Make a run with the lease of the cluster of a matrix; `report` hears of `queue` where it has to wait."""
    matrix.check_open()
    queued = time.perf_counter()
    with matrix.cluster.lease(lambda: report("queue", 0, None)):
        began = time.perf_counter()
        outcome = make()
    outcome.seconds["queue"] = began - queued
    return outcome


@dataclass(eq=False)
class Recovering:
    """A run on a cluster as a sequence of attempts. Results are bit-identical for any executor and number of
    workers."""

    matrix: DistributedMatrix
    task: RankTask
    start: RunInputs
    executor: Executor
    recover: int
    """Maximum number of times that the run resumes after workers are lost."""
    emit: Callable[[Event], None]
    """Function called with the event of each iteration; repeated iterations have a higher epoch."""
    report: Progress = ignore
    on_recovery: Callable[[Recovery, int], None] = lambda recovery, epoch: None
    """Function called when iterations resume, with the recovery and the epoch of the events that follow."""
    keeper: Checkpointer | None = None
    """Writer of checkpoints, from the last of which the next attempt resumes; None for no checkpoints."""

    def __post_init__(self) -> None:
        self._before = find_before(self.keeper)
        self._epoch, self._iteration = self._before.epoch + 1, self._before.iteration
        self._losses: list[End] = []
        self._raised: BaseException | None = None
        self._recoveries: list[Recovery] = []

    def run(self) -> Outcome:
        """Iterate to the end.

        Raises
        ------
        WorkerLostError, WorkerTimeoutError, WorkerMemoryError : workers were lost too often, or none is left
        CapacityError : the matrix does not fit into the memory of the remaining workers
        ClosedError : the matrix was closed
        """
        outcome = run_with_lease(self.matrix, self.report, self._make)
        return replace(outcome, recoveries=tuple(self._recoveries))

    def _make(self) -> Outcome:
        """Make attempts until one completes, and return its outcome."""
        began = time.perf_counter()
        while True:
            try:
                outcome = self._make_attempt()
            except MgspmvError as error:
                loss = self._check_loss(error)
            else:
                if self._recoveries:
                    elapsed_s = time.perf_counter() - began
                    outcome.seconds["recover"] = max(0.0, elapsed_s - sum(outcome.seconds.values()))
                return outcome
            self._go_back(loss)

    def _make_attempt(self) -> Outcome:
        """Iterate to the end on the present workers."""
        report = partial(self._call, self.report)
        if self._losses:
            self.matrix.redistribute(report, has_lease=True)
        matrix, task, start, before = self.matrix, self.task, self.start, self._before
        matrix.check_open()
        options, layout = task.options, find_layout(matrix, task, self.executor)
        at_once = 1 if any(w.streams for w in matrix.plan.workers) else STEPS_AT_ONCE
        balance = start.find_balance(options.alpha, matrix.shape[0])
        described = (task.run, matrix.members, matrix.cluster.patience, task, matrix.transport, layout)
        spec = TaskSpec(*described, at_once, before, balance)
        pieces = [start.cut(a, b) for a, b in pairwise(matrix.bounds)]
        with AttemptWorkers([matrix], spec, lambda: pieces, report) as workers:
            execution: Execution
            if self.executor == "tasks":
                steps = TaskSteps(workers, before.iteration)
                execution = CheckedLoop(steps, task, steps.watch(options, start), before, balance)
            else:
                first = 1 if layout is None else at_once  # steps of devices are short
                execution = Supersteps(workers, options.max_iter, before.iteration, first=first)
            return workers.iterate(execution, self._hear, options.alpha, self.keeper, self._end_losses)

    def _call(self, callback: Callable[..., None], *args: Any) -> None:
        """Call a callback, and note its error: it is not the loss of a worker, whatever its class."""
        try:
            callback(*args)
        except BaseException as error:
            self._raised = error
            raise

    def _hear(self, event: Event) -> None:
        self._iteration = event.iteration
        self._call(self.emit, event)

    # --- workers that are lost

    def _check_loss(self, error: MgspmvError) -> End:
        """Note the lost worker; raise the error unless it is a loss that the run may recover from."""
        if error is self._raised or not self.recover or not self._is_loss(error):
            raise error
        if not self.matrix.has_store:
            raise add_to_message(error, LOST) from error
        if (n_lost := len(self._losses) + len(self._recoveries)) == self.recover:
            raise add_to_message(error, f"the run had resumed {n_lost} times (recover={self.recover})") from error
        return record_failure(error, self._iteration, len(self.matrix.members))

    def _is_loss(self, error: MgspmvError) -> bool:
        if isinstance(error, WorkerLostError | WorkerTimeoutError | WorkerMemoryError):
            return error.worker is not None
        if isinstance(error, ClosedError):
            return not self.matrix.is_closed
        is_vague = type(error) in (ClusterError, RunAbortedError)
        return is_vague and bool(self.matrix.cluster.find_gone(self.matrix.members))

    def _go_back(self, loss: End) -> None:
        """Restore the last known state, and wait for lost workers to return."""
        self._call(self.report, "recover", 0, None)
        self._losses.append(loss)
        try:
            restored = None if self.keeper is None else self.keeper.go_back()
        except Exception as error:  # libraries of object stores raise their own classes
            begun, restored = self._before.iteration, None
            warnings.warn(f"{describe_failure(error)}; the run resumes from iteration {begun}", stacklevel=2)
        if restored is not None and restored.reached.iteration >= self._before.iteration:
            self.start, self._before = replace(self.start, x=restored.x), restored.reached
        self._before = replace(self._before, epoch=self._epoch)
        self._epoch += 1
        if self.keeper is not None:
            self.keeper.before = self._before
        self.matrix.cluster.await_workers(len(self.matrix.members))

    def _end_losses(self) -> None:
        """Complete the records of losses when the iterations resume, and report them."""
        losses, self._losses = self._losses, []
        for end in losses:
            self._recoveries.append(end(self._before.iteration, len(self.matrix.members)))
            self.on_recovery(self._recoveries[-1], self._epoch)


def run_batch(
    matrix: DistributedMatrix,
    queries: Sequence[Query],
    task: BatchTask,
    start: RunInputs,
    keep: Callable[[Sequence[FinishedVectors]], None],
    emit: Callable[[Event, int], None],
    report: Progress,
) -> Outcome:
    """Iterate all vectors to their ends on the workers of a matrix, bit-identical to a batch in one process: each
    worker its share of the vectors with all rows, if these fit in memory, else its rows of all vectors.

    Parameters
    ----------
    start : only d, empty for the p of each vector, and the out-weights are used
    keep : called with the values that each worker, by rank, keeps of vectors that have ended
    emit : called with the event of each pass, and the number of vectors that have ended, as last reported

    Raises
    ------
    CapacityError : a pass does not fit in a worker's memory, or a worker's device streams its rows
    WorkerLostError, WorkerTimeoutError : a worker is lost, or silent for too long; the batch has ended on the others
    ClosedError : the matrix was closed
    """
    for member, planned in zip(matrix.members, matrix.plan.workers, strict=True):
        if planned.streams:
            raise CapacityError(
                f"the {planned.stop - planned.start:,} rows of worker {member} do not fit in the memory of its GPU, "
                "and a batch cannot stream rows; use more GPUs, or pass backend='cpu'"
            )
    order, n_ended = None if task.top is None else matrix.order, 0

    def cut() -> list[BatchPiece]:
        return [
            BatchPiece(start.cut(a, b), [query.cut(a, b) for query in queries], None if order is None else order[a:b])
            for a, b in pairwise(matrix.bounds)
        ]

    def hear(reports: Sequence[Report]) -> None:
        nonlocal n_ended
        n_ended = reports[0].n_ended
        for parts in zip(*(report.kept for report in reports), strict=True):
            keep(parts)

    def make() -> Outcome:
        spec = TaskSpec(task.run, matrix.members, matrix.cluster.patience, task, matrix.transport)
        if (shared := run_shares(matrix, spec, queries, start, keep, emit, report)) is not None:
            return shared
        with AttemptWorkers([matrix], spec, cut, report) as workers:
            passes = Supersteps(workers, sys.maxsize, on_reports=hear)
            return workers.iterate(passes, lambda event: emit(event, n_ended))

    return run_with_lease(matrix, report, make)


def run_power(
    matrices: Sequence[DistributedMatrix],
    step: Step,
    x: np.ndarray,
    task: PowerTask,
    emit: Callable[[Event], None],
    report: Progress,
) -> Outcome:
    """Iterate on the workers that hold the matrices.

    Parameters
    ----------
    matrices : factors of the product, the last of which multiplies x; of one store, and so in one order
    step : applied to each product
    x : (n,) start vector; it and the vectors of `step` are in the order of the source
    emit : called with an event for each iteration

    Raises
    ------
    ClusterError : the matrices are on different workers
    WorkerLostError, WorkerTimeoutError : a worker is lost, or silent for too long; the run has ended on the others
    ClosedError : a matrix was closed
    """
    matrix = matrices[0]
    if any(other.members != matrix.members for other in matrices):
        raise ClusterError(
            "the matrix and its transpose are not on the same workers, which iterate in lockstep; distribute both "
            "again, or pass executor='tasks'"
        )

    def place(vector: np.ndarray) -> Any:
        return permute(np.ascontiguousarray(vector, task.precision), matrix.order)

    def cut() -> list[PowerPiece]:
        placed, start = step.place(place), place(x)
        rows = [slice(a, b) for a, b in pairwise(matrix.bounds)]
        return [PowerPiece(placed.place(itemgetter(own)), start[own]) for own in rows]

    def make() -> Outcome:
        spec = TaskSpec(task.run, matrix.members, matrix.cluster.patience, task, matrix.transport)
        with AttemptWorkers(matrices, spec, cut, report) as workers:
            return workers.iterate(Supersteps(workers, task.options.max_iter), emit)

    outcome = run_with_lease(matrix, report, make)
    return replace(outcome, values=restore(outcome.values, matrix.order))
