"""State of a batch of vectors on one worker, and the tasks that run there; see `mgspmv.solvers.batch`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np

from mgspmv.cluster.device_row_block import DeviceRowBlock
from mgspmv.cluster.integrity import Report
from mgspmv.cluster.row_block import RowBlock
from mgspmv.cluster.worker_run import WorkerRun, find_wanted, greet_asking
from mgspmv.exchange.ipc import name_host
from mgspmv.exchange.nccl import greet
from mgspmv.exchange.peer import AllToAll
from mgspmv.exchange.peer_comm import RunSpec
from mgspmv.exchange.transport import Exchange, make_host_staged, make_local, make_nccl, make_peer
from mgspmv.kernels.cpu_many import CpuMany
from mgspmv.kernels.device import describe_device, device_id, free_device_memory
from mgspmv.kernels.many import WIDTHS
from mgspmv.kernels.select import BoundMany
from mgspmv.model import free_memory
from mgspmv.solvers.batch import Batch, BatchTask, Ending, FinishedVector, ManyRows, PassMemory, count_bytes
from mgspmv.solvers.inputs import RunInputs
from mgspmv.solvers.queries import Query

KEPT_BYTES = 1 << 28
"""Bytes of kept vectors on all workers at which a superstep ends, so that they are sent to the client."""


@dataclass(frozen=True)
class BatchRunSpec(RunSpec):
    """Description of a batch, the same for all of its workers."""

    task: BatchTask
    """Options of the batch."""
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
        kernel, hello = _bind(part, spec)
        writable = partial(np.require, requirements="W")  # received arrays are read-only, and kernels take both
        weight = writable(piece.start.take_weight(lambda: part.out_weights.read(spec.task.dtype is not None)))
        self._rows = ManyRows(kernel, kernel.put(weight), kernel.put(writable(piece.start.dangling)))
        self._n_dangling = int(np.count_nonzero(weight == 0))
        self._worker, self._spec, self._piece = worker, spec, piece
        super().__init__(worker, [part], spec, hello)
        self._kept: list[FinishedVector] = []
        self.computes = kernel.threads if isinstance(kernel, CpuMany) else describe_device()

    def open_links(self) -> tuple[int, list[PassMemory]]:
        """Connect to the other workers, and return the fastest width here and the free memory."""
        with self._working("connect"):
            self._panels = self._make_panels(self.links.connect())
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

    def _make_panels(self, hellos: dict[int, dict[str, Any]]) -> Exchange:
        part, peer_comm, kernel = self._part, self.links, self._rows.kernel
        if self._spec.transport == "nccl":
            assert isinstance(part, DeviceRowBlock)
            part.join_devices(peer_comm, hellos)
            if part.group is None:
                return make_local(part.bounds[-1])
            return make_nccl(part.group, part.bounds)
        assert part.halo is not None
        requested, all_to_all = find_wanted(hellos, part.halo), AllToAll(peer_comm, part.rank, len(self._spec.members))
        peer = make_peer(all_to_all, part.halo, requested)
        return make_host_staged(peer, part.halo, kernel.put, kernel.get) if part.backend == "cuda" else peer

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


def _bind(part: RowBlock, spec: BatchRunSpec) -> tuple[BoundMany, Callable[[int], dict[str, Any]]]:
    """Return the kernel of a row block, and the function that makes the first message to each worker."""
    task, precision = spec.task, spec.task.options.precision
    if spec.transport == "nccl":
        assert isinstance(part, DeviceRowBlock)
        hello = greet(part.group)
        return part.bind_many_whole(task.dtype, precision), lambda rank: hello
    assert part.halo is not None
    return part.bind_many(task.dtype, precision, task.threads), partial(greet_asking, [part.halo])
