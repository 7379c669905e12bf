"""PageRank of many vectors on a cluster: passes that all workers make in lockstep, each with its own rows.

As in the executor `supersteps`, each task makes about a second of passes; its report includes the kept values of the
vectors that have ended.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise

from mgspmv.cluster.batch_run import BatchPiece, BatchRunSpec, BatchWorkerRun
from mgspmv.cluster.executors import AttemptWorkers, Supersteps, join_memory
from mgspmv.cluster.integrity import Report
from mgspmv.cluster.matrix import DistributedMatrix
from mgspmv.errors import CapacityError
from mgspmv.model import Event, Progress
from mgspmv.solvers.batch import BatchTask, Ending, FinishedVector, choose_width
from mgspmv.solvers.inputs import RunInputs
from mgspmv.solvers.queries import Query
from mgspmv.solvers.run import Outcome, run


def run_batch(
    matrix: DistributedMatrix,
    queries: Sequence[Query],
    task: BatchTask,
    start: RunInputs,
    keep: Callable[[Sequence[FinishedVector]], None],
    emit: Callable[[Event, int], None],
    on_progress: Progress,
) -> tuple[Outcome, int]:
    """Iterate all vectors to their ends on the workers of a matrix, bit-identical to a batch in one process; return the
    outcome, and the most vectors in a pass.

    Parameters
    ----------
    start : only d, empty for the p of each vector, and the out-weights are used
    keep : called with the values that each worker, by rank, keeps of a vector that has ended
    emit : called with the event of each pass, and the number of vectors that have ended, as last reported

    Raises
    ------
    CapacityError : a pass does not fit in a worker's memory, or a worker's device streams its rows
    WorkerLostError, WorkerTimeoutError : a worker is lost, or silent for too long; the batch has ended on the others
    ClosedError : the matrix was closed
    """
    matrix.check_open()
    _check_not_streamed(matrix)
    spec = BatchRunSpec(task.run, matrix.members, matrix.cluster.patience, task, matrix.transport)
    queued = time.perf_counter()
    with matrix.cluster.lease(lambda: on_progress("queue", 0, None)):
        on_progress("start", 0, None)
        began = time.perf_counter()
        pieces = _cut(matrix, queries, start, task.top)
        with AttemptWorkers(matrix, spec, BatchWorkerRun, pieces, "pagerank_batch") as workers:
            names, found = map(str, matrix.members), workers.do("connect", "open_links")
            rooms = [(name, *own) for name, own in zip(names, found, strict=True)]
            width = choose_width(task.width, len(queries), rooms)
            passes = _BatchSupersteps(workers, width, keep)
            opened = time.perf_counter()
            outcome = run(passes, lambda event: emit(event, passes.n_ended))
    outcome.seconds["queue"] = began - queued
    outcome.seconds["start"] += opened - began
    return outcome, width


class _BatchSupersteps(Supersteps):
    """Supersteps of a batch, whose workers keep the values of vectors that have ended.

    Parameters
    ----------
    width : most vectors in a pass
    keep : as in `run_batch`

    Attributes
    ----------
    n_ended : number of vectors that have ended, as last reported
    """

    def __init__(self, workers: AttemptWorkers, width: int, keep: Callable[[Sequence[FinishedVector]], None]) -> None:
        super().__init__(workers, sys.maxsize, width=width)
        self._keep, self.n_ended = keep, 0

    def _hear(self, reports: Sequence[Report]) -> None:
        self.n_ended = reports[0].n_ended
        for parts in zip(*(report.kept for report in reports), strict=True):
            self._keep(parts)

    def collect(self) -> list[Ending]:
        endings, of_workers, taken = zip(*self._workers.do("collect", "collect"), strict=True)
        self.seconds = {phase: max(own[phase] for own in of_workers) for phase in of_workers[0]}
        self.transport, self.memory = self._workers.matrix.transport, join_memory(self._workers.matrix, taken)
        own: list[Ending] = endings[0]
        return own


def _check_not_streamed(matrix: DistributedMatrix) -> None:
    for member, planned in zip(matrix.members, matrix.plan.workers, strict=True):
        if planned.streams:
            raise CapacityError(
                f"the {planned.stop - planned.start:,} rows of worker {member} do not fit in the memory of its GPU, "
                "and a batch cannot stream rows; use more GPUs, or pass backend='cpu'"
            )


def _cut(matrix: DistributedMatrix, queries: Sequence[Query], start: RunInputs, top: int | None) -> list[BatchPiece]:
    """Cut the inputs and the queries by the rows of the workers."""
    order = None if top is None else matrix.order
    return [
        BatchPiece(start.cut(a, b), [query.cut(a, b) for query in queries], None if order is None else order[a:b])
        for a, b in pairwise(matrix.bounds)
    ]
