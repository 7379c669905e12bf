"""Power iteration on a cluster in supersteps, over the row blocks of one or several matrices.

A worker holds the elements of x of its rows; each product fetches the columns that it reads from the other workers. A
device computes the products only: the vectors are on its host.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from operator import itemgetter
from typing import Any

import numpy as np

from mgspmv.cluster.agent import get_agent
from mgspmv.cluster.executors import AttemptWorkers, Supersteps, list_planned
from mgspmv.cluster.matrix import DistributedMatrix
from mgspmv.cluster.row_block import ProductOptions, RowBlock
from mgspmv.cluster.worker_run import TaskSpec, WorkerRun
from mgspmv.errors import ClusterError
from mgspmv.exchange.halo import Halo
from mgspmv.exchange.peer import HaloColumns, cut_again
from mgspmv.kernels.device import describe_device
from mgspmv.kernels.host import HostBlock
from mgspmv.model import ChangeNorm, Event, Normalization, Progress
from mgspmv.order import permute, restore
from mgspmv.solvers.power import PowerLoop, PowerTask, Products, Step, combine, compile_product
from mgspmv.solvers.run import Outcome, run
from mgspmv.solvers.steps import Times


class PowerWorkerRun(WorkerRun):
    """State of a power iteration on one worker: products and steps on its rows, in lockstep with the other workers.

    Parameters
    ----------
    worker : the `distributed.Worker` of this process
    part : row block of the first factor of the product, whose rows x has; the last factor multiplies first
    piece : keys of the row blocks of the other factors; the step applied to each product, whose vector, if it has one,
        is of the rows of `part`; and these elements of the start vector, in the precision of the run
    """

    _loop: PowerLoop

    def __init__(
        self, worker: Any, part: RowBlock, spec: TaskSpec[PowerTask], piece: tuple[Sequence[str], Step, np.ndarray]
    ) -> None:
        other_keys, self._step, self._x = piece
        parts = [part, *map(get_agent().get, other_keys)]
        read = zip(parts, [*parts[1:], parts[0]], strict=True)
        halos = [cut_again(_find_columns(part), made_by.bounds) for part, made_by in read]
        self._columns: list[HaloColumns] = []
        self._multiply, computes = zip(*(_bind(part, spec.task) for part in parts), strict=True)
        self._reported = (0.0, 0.0, 0)  # seconds exchanged and waited, and bytes received, at the last iteration
        super().__init__(worker, parts, spec, halos)
        self._spec = spec
        self.computes = computes[0]

    def collect(self) -> tuple[np.ndarray, str, dict[str, int]]:
        """Return the vector, (n_rows,), the transport of slices, and the bytes that this worker took."""
        return self._loop.x, "peer", self.measure_memory()

    def _connect(self, width: int) -> PowerLoop:
        task = self._spec.task
        turns, hellos = self._greet()
        self._all_to_all = turns
        zeros = partial(np.zeros, dtype=task.precision)
        self._columns = [
            HaloColumns(turns, halo, self._find_wanted(hellos, k), zeros) for k, halo in enumerate(self._halos)
        ]
        self.links.heartbeat.phase = "iteration 1"
        products = Products(self._multiply_all, np.array, np.asarray, "", 0, self._combine, self._report_times)
        loop = PowerLoop(products, self._step, self._x, task)
        turns.begin()
        return loop

    def _multiply_all(self, x: np.ndarray) -> np.ndarray:
        """Return this worker's rows of the product, from its elements of x."""
        for columns, multiply in zip(reversed(self._columns), reversed(self._multiply), strict=True):
            x = multiply(columns.gather(x))
        return x

    def _combine(self, own: float, of: Normalization | ChangeNorm) -> float:
        return combine([answer["own"] for answer in self._all_to_all.gather({"own": own})], of)

    def _report_times(self, elapsed_s: float, n_bytes: int) -> Times:
        turns, (exchanged_s, waited_s, received_bytes) = self._all_to_all, self._reported
        self._reported = (turns.exchanged_s, turns.waited_s, turns.received_bytes)
        exchange_s, wait_s = turns.exchanged_s - exchanged_s, turns.waited_s - waited_s
        moved = (exchange_s,), (wait_s,), (turns.received_bytes - received_bytes,)
        return Times((elapsed_s - exchange_s - wait_s,), *moved, (n_bytes + self._measure_held(),))

    def _measure_held(self) -> int:
        """Return the bytes that this worker holds in addition to x, y and the next x."""
        added = self._step.added
        between = [(part.stop - part.start) * np.dtype(self._spec.task.precision).itemsize for part in self.parts[1:]]
        held = sum(part.nbytes for part in self.parts) + sum(columns.nbytes for columns in self._columns)
        return held + sum(between) + (added.nbytes if isinstance(added, np.ndarray) else 0)


def _find_columns(part: RowBlock) -> Halo:
    """Return the columns of x that products of a row block read: all of them on a device."""
    halo = part.halo if part.backend == "cpu" else None
    return Halo(part.rank, part.bounds, (None,) * (len(part.bounds) - 1)) if halo is None else halo


def _bind(part: RowBlock, task: PowerTask) -> tuple[Callable[[np.ndarray], np.ndarray], int | str]:
    """Return a function that multiplies with a block, and its hardware: number of threads, or name of the device."""
    dtype, threads = task.precision, task.threads
    if part.backend == "cuda":
        options = ProductOptions(dtype, threads=threads, weights=task.weights)
        return partial(part.multiply, y=None, options=options), describe_device()
    kernel = part.bind(dtype if task.weights else None, dtype, threads=threads)
    assert isinstance(kernel, HostBlock)
    compile_product(kernel, dtype)

    def multiply(x: np.ndarray) -> np.ndarray:
        y = np.empty(part.stop - part.start, dtype)
        kernel.multiply(x, y)
        return y

    return multiply, kernel.threads


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
        spec = TaskSpec(task.run, matrix.members, matrix.cluster.patience, task)

        def place(vector: np.ndarray) -> Any:
            return permute(np.ascontiguousarray(vector, task.precision), matrix.order)

        step, x = step.place(place), place(x)
        pieces = [
            (keys[1:], step.place(itemgetter(slice(*own))), x[slice(*own)])
            for keys, own in zip(row_block_keys, pairwise(matrix.bounds), strict=True)
        ]
        with AttemptWorkers(matrix, spec, PowerWorkerRun, pieces) as workers:
            entered = time.perf_counter()
            outcome = run(Supersteps(workers, task.options.max_iter), emit)
    outcome.seconds["queue"] = began - queued
    outcome.seconds["start"] += entered - began
    outcome.memory["planned_bytes"] = [sum(own) for own in zip(*map(list_planned, matrices), strict=True)]
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
