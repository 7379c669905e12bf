"""PageRank on a cluster that continues when workers are lost.

A run is a sequence of attempts, each on the workers present. When an attempt raises the error of a lost worker, it has
already ended on the others. Lost workers then have a few seconds to return, the matrix is redistributed over the
workers present, and the next attempt resumes from the last checkpoint of this run, or from its start.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

from mgspmv.checkpoints import RestoredState, describe_failure
from mgspmv.cluster.executors import AttemptWorkers, Executor, Supersteps, TaskRounds, find_layout
from mgspmv.cluster.matrix import DistributedMatrix
from mgspmv.cluster.scheduler_client import End, record_failure
from mgspmv.cluster.worker_run import CsrWorkerRun, LayoutWorkerRun, RankRunSpec
from mgspmv.errors import (
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
from mgspmv.solvers.checkpointing import Checkpointer
from mgspmv.solvers.device_steps import STEPS_AT_ONCE
from mgspmv.solvers.inputs import RunInputs
from mgspmv.solvers.options import RankTask
from mgspmv.solvers.pagerank import find_before
from mgspmv.solvers.run import Outcome, add_event, run, sum_seconds


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
        self._epoch, self._n_first = self._before.epoch + 1, self._before.iteration
        self._events: list[Event] = []
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
        self.matrix.check_open()
        queued = time.perf_counter()
        with self.matrix.cluster.lease(lambda: self.report("queue", 0, None)):
            began = time.perf_counter()
            outcome = self._make()
            self._add_seconds(outcome.seconds, time.perf_counter() - began)
        outcome.seconds["queue"] = began - queued
        return replace(outcome, recoveries=tuple(self._recoveries))

    def _make(self) -> Outcome:
        """Make attempts until one completes, and return its outcome."""
        while True:
            try:
                return self._make_attempt()
            except MgspmvError as error:
                loss = self._check_loss(error)
            self._go_back(loss)

    def _add_seconds(self, seconds: dict[str, float], elapsed_s: float) -> None:
        """Add the seconds of earlier attempts: their iterations by phase, and the rest as `recover`.

        Parameters
        ----------
        elapsed_s : seconds of all attempts
        """
        if self._recoveries:
            earlier = [event for event in self._events if event.epoch < self._epoch]
            for phase, own_s in sum_seconds(earlier).items():
                seconds[phase] += own_s
            seconds["recover"] = max(0.0, elapsed_s - sum(seconds.values()))

    @property
    def _iteration(self) -> int:
        """Number of iterations made, including those of a run that this one resumes."""
        return self._n_first + len(self._events)

    def _make_attempt(self) -> Outcome:
        """Iterate to the end on the present workers.

        Raises
        ------
        WorkerLostError, WorkerTimeoutError : a worker is lost, or silent for too long; it has ended on the others
        WorkerCorruptionError : ranks fail a check
        """
        report = partial(self._call, self.report)
        if self._losses:
            self.matrix.redistribute(report, has_lease=True)
        matrix, task, start, before = self.matrix, self.task, self.start, self._before
        matrix.check_open()
        options, layout = task.options, find_layout(matrix, task, self.executor)
        at_once = 1 if any(w.streams for w in matrix.plan.workers) else STEPS_AT_ONCE
        balance = start.find_balance(options.alpha, matrix.shape[0])
        spec = RankRunSpec(task.run, matrix.members, matrix.cluster.patience, task, layout, at_once, before, balance)
        report("start", 0, None)
        began = time.perf_counter()
        pieces = [start.cut(a, b) for a, b in pairwise(matrix.bounds)]
        make = CsrWorkerRun if layout is None else LayoutWorkerRun
        with AttemptWorkers(matrix, spec, make, pieces) as workers:
            entered = time.perf_counter()
            driven = (
                TaskRounds(workers, spec, start)
                if self.executor == "tasks"
                else Supersteps(workers, options.max_iter, before.iteration)
            )
            outcome = run(driven, self._hear, options.alpha, self.keeper, report, self._end_losses)
        outcome.seconds["start"] += entered - began
        return outcome

    def _call(self, callback: Callable[..., None], *args: Any) -> None:
        """Call a callback, and note its error: it is not the loss of a worker, whatever its class."""
        try:
            callback(*args)
        except BaseException as error:
            self._raised = error
            raise

    def _hear(self, event: Event) -> None:
        add_event(self._events, event)
        self._call(self.emit, event)

    # --- workers that are lost

    def _check_loss(self, error: MgspmvError) -> End:
        """Note the lost worker; raise the error unless it is a loss that the run may recover from."""
        if error is self._raised or not self.recover or not self._is_loss(error):
            raise error
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
        restored = self._restore()
        if restored is not None and restored.reached.iteration >= self._before.iteration:
            self.start, self._before = replace(self.start, x=restored.x), restored.reached
        self._before = replace(self._before, epoch=self._epoch)
        self._epoch += 1
        if self.keeper is not None:
            self.keeper.before = self._before
        self.matrix.cluster.await_workers(len(self.matrix.members))

    def _restore(self) -> RestoredState | None:
        """Read the last checkpoint of this run; None if it does not exist or cannot be read."""
        try:
            return None if self.keeper is None else self.keeper.go_back()
        except Exception as error:  # libraries of object stores raise their own classes
            begun = self._before.iteration
            warnings.warn(f"{describe_failure(error)}; the run resumes from iteration {begun}", stacklevel=2)
            return None

    def _end_losses(self) -> None:
        """Complete the records of losses when the iterations resume, and report them."""
        losses, self._losses = self._losses, []
        for end in losses:
            self._recoveries.append(end(self._before.iteration, len(self.matrix.members)))
            self.on_recovery(self._recoveries[-1], self._epoch)
