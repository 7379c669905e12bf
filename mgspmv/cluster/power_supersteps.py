"""Power iteration on a cluster in supersteps: as in PageRank, each task makes many iterations on its worker's rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from operator import itemgetter
from typing import Any

import numpy as np

from mgspmv.cluster.executors import AttemptWorkers, Supersteps, list_planned
from mgspmv.cluster.matrix import DistributedMatrix
from mgspmv.cluster.power_run import PowerRunSpec, PowerWorkerRun
from mgspmv.errors import ClusterError
from mgspmv.model import Event, Progress
from mgspmv.order import permute, restore
from mgspmv.solvers.power import PowerTask, Step
from mgspmv.solvers.run import Outcome, run


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
    row_block_keys = list(zip(*_check_workers(matrices), strict=True))
    queued = time.perf_counter()
    with matrix.cluster.lease(lambda: report("queue", 0, None)):
        report("start", 0, None)
        began = time.perf_counter()
        spec = PowerRunSpec(task.run, matrix.members, matrix.cluster.patience, task)

        def place(vector: np.ndarray) -> Any:
            return permute(np.ascontiguousarray(vector, task.precision), matrix.order)

        step, x = step.place(place), place(x)
        pieces = [
            (keys[1:], step.place(itemgetter(slice(*own))), x[slice(*own)])
            for keys, own in zip(row_block_keys, pairwise(matrix.bounds), strict=True)
        ]
        with AttemptWorkers(matrix, spec, PowerWorkerRun, pieces, "power_iteration") as workers:
            entered = time.perf_counter()
            outcome = run(Supersteps(workers, task.options.max_iter), emit)
    outcome.seconds["queue"] = began - queued
    outcome.seconds["start"] += entered - began
    outcome.memory["planned_bytes"] = [sum(of_worker) for of_worker in zip(*map(list_planned, matrices), strict=True)]
    return replace(outcome, values=restore(outcome.values, matrix.order))


def _check_workers(matrices: Sequence[DistributedMatrix]) -> list[list[str]]:
    """Return the keys of the row blocks of each matrix; raise unless all matrices are on the same workers."""
    keys = [matrix.row_block_keys for matrix in matrices]
    if any(matrix.members != matrices[0].members for matrix in matrices):
        raise ClusterError(
            "the matrix and its transpose are not on the same workers, which iterate in lockstep; distribute both "
            "again, or pass executor='tasks'"
        )
    return keys
