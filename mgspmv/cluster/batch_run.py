"""PageRank of many vectors on a cluster: passes that all workers make in lockstep, each with its own rows; see
`mgspmv.solvers.batch`.

As in the executor `supersteps`, each task makes about a second of passes; its report includes the kept values of the
vectors that have ended.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from mgspmv.cluster.device_row_block import DeviceRowBlock
from mgspmv.cluster.executors import AttemptWorkers, Supersteps, join_memory
from mgspmv.cluster.integrity import Report
from mgspmv.cluster.matrix import DistributedMatrix
from mgspmv.cluster.row_block import RowBlock
from mgspmv.cluster.worker_run import TaskSpec, WorkerRun
from mgspmv.errors import CapacityError
from mgspmv.exchange.halo import Halo
from mgspmv.exchange.ipc import name_host
from mgspmv.exchange.peer import AllToAll
from mgspmv.exchange.transport import Exchange, make_host_staged, make_local, make_nccl, make_peer
from mgspmv.kernels.cpu_many import CpuMany
from mgspmv.kernels.device import describe_device, device_id, free_device_memory
from mgspmv.kernels.operands import WIDTHS
from mgspmv.model import Event, Progress, free_memory
from mgspmv.solvers.batch import (
    Batch,
    BatchTask,
    Ending,
    FinishedVector,
    ManyRows,
    PassMemory,
    choose_width,
    count_bytes,
)
from mgspmv.solvers.inputs import RunInputs
from mgspmv.solvers.queries import Query
from mgspmv.solvers.run import Outcome, run

KEPT_BYTES = 1 << 28
"""Bytes of kept vectors on all workers at which a superstep ends, so that they are sent to the client."""


@dataclass(frozen=True)
class BatchRunSpec(TaskSpec[BatchTask]):
    """Description of a batch."""

    transport: Literal["peer", "nccl"]
    """Transport of slices between workers."""


@dataclass(frozen=True, eq=False)
class BatchPiece:
    """Inputs of a batch on one worker, cut to its rows."""

    start: RunInputs
    """Input vectors; only d, empty for the p of each vector, and the out-weights are used."""
    queries: list[Query]
    """All vectors, restricted to the entries in these rows."""
    order: np.ndarray | None
    """(n_rows,) source's number of each row; None if they ascend or are not needed."""


class BatchWorkerRun(WorkerRun):
    """State of a batch on one worker."""

    _loop: Batch
    _panels: Exchange
    """Exchange of panels with the other workers, made by `open_links`."""

    def __init__(self, worker: Any, part: RowBlock, spec: BatchRunSpec, piece: BatchPiece) -> None:
        if spec.transport == "nccl":
            assert isinstance(part, DeviceRowBlock)
            kernel, halos = part.bind_many_whole(spec.task.dtype, spec.task.options.precision), list[Halo]()
        else:
            assert part.halo is not None
            kernel, halos = part.bind_many(spec.task.dtype, spec.task.options.precision, spec.task.threads), [part.halo]
        writable = partial(np.require, requirements="W")  # received arrays are read-only, and kernels take both
        weight = writable(piece.start.take_weight(lambda: part.out_weights.read(spec.task.dtype is not None)))
        self._rows = ManyRows(kernel, kernel.put(weight), kernel.put(writable(piece.start.dangling)))
        self._n_dangling = int(np.count_nonzero(weight == 0))
        self._worker, self._spec, self._piece = worker, spec, piece
        super().__init__(worker, [part], spec, halos)
        self._kept: list[FinishedVector] = []
        self.computes = kernel.threads if isinstance(kernel, CpuMany) else describe_device()

    def open_links(self) -> tuple[int, list[PassMemory]]:
        """Connect to the other workers, and return the fastest width here and the free memory."""
        with self._working("connect"):
            self._panels = self._make_panels(*self._greet())
            return self._rows.kernel.best_width, self._measure_free(self._panels)

    def _connect(self, width: int) -> Batch:
        """Start the batch with its first vectors."""
        spec, piece, most, kept = self._spec, self._piece, self._count_kept(), self._kept
        given = (width, self._panels, self._n_dangling, piece.order, partial(_keep, kept), lambda: len(kept) >= most)
        batch = Batch(self._rows, piece.queries, spec.task, *given)
        batch.start()
        self.n_terms *= width
        return batch

    def superstep(self, n: int) -> Report:
        """Make n passes or fewer, up to the end or until enough is kept; report also what was kept since the last."""
        report = super().superstep(n)
        report = replace(report, kept=[*self._kept], n_ended=self._loop.n_ended)
        self._kept.clear()
        return report

    def collect(self) -> tuple[list[Ending], dict[str, float], dict[str, int]]:
        """Return how the vectors ended, the seconds of this worker by phase, and the bytes that it took."""
        batch = self._loop
        return batch.endings, batch.seconds, self.measure_memory() | {"held_bytes": batch.first_bytes}

    def _make_panels(self, turns: AllToAll, hellos: dict[int, dict[str, Any]]) -> Exchange:
        part, kernel = self._part, self._rows.kernel
        if self._spec.transport == "nccl":
            assert isinstance(part, DeviceRowBlock)
            part.join_devices(turns, hellos)
            if part.group is None:
                return make_local(part.bounds[-1])
            return make_nccl(part.group, part.bounds)
        halo = self._halos[0]
        peer = make_peer(turns, halo, self._find_wanted(hellos))
        return make_host_staged(peer, halo, kernel.put, kernel.get) if part.backend == "cuda" else peer

    def _measure_free(self, panels: Exchange) -> list[PassMemory]:
        """Return the free and needed bytes of each memory: device, host, and the limit of the worker's process."""
        kernel, part, precision = self._rows.kernel, self._part, self._spec.task.options.precision
        itemsize, n_rows = kernel.z_dtype.itemsize, part.stop - part.start
        needed = {w: count_bytes(panels, n_rows, precision, itemsize, w) for w in WIDTHS}
        memories = []
        if part.backend == "cuda":
            memories.append(PassMemory(device_id(), free_device_memory(), needed))
            needed = {w: panels.n_staged * w * itemsize for w in WIDTHS}
        memories.append(PassMemory(name_host(), free_memory(), needed))
        if (limit := self._worker.memory_manager.memory_limit) is not None:
            used = self._worker.monitor.get_process_memory()
            memories.append(PassMemory(self._worker.address, max(0, limit - used), needed))
        return memories

    def _count_kept(self) -> int:
        """Return the number of kept vectors at which a superstep ends, the same on all workers."""
        n, top = self._part.bounds[-1], self._spec.task.top
        return max(1, KEPT_BYTES // (8 * n if top is None else 16 * min(top, n) * len(self._spec.members)))


def _keep(all_kept: list[FinishedVector], kept: FinishedVector) -> None:
    """Keep a copy, as the arrays may be overwritten. Not a method, as a batch must not reference its run."""
    all_kept.append(replace(kept, ranks=kept.ranks.copy()))


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
        with AttemptWorkers(matrix, spec, BatchWorkerRun, pieces) as workers:
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
