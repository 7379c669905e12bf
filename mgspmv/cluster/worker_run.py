"""State of a run on one worker, made by the first task of the run and held by the worker's agent between tasks.

    ConnectedRun               connections to the other workers; `close` aborts the run here
      WorkerRun                row blocks, and the loop over them: `start`, `superstep`, `collect`
        RankWorkerRun          PageRank of one vector: checkpoints, residual, checks of the ranks
          CsrWorkerRun         kernels over CSR; slices over Dask's comms, or through the client
          LayoutWorkerRun      steps on a device; slices from device to device

Each public method is the body of a task, called by `mgspmv.cluster.executors` on all workers at once. `BatchWorkerRun`
(`batch_run`) and `PowerWorkerRun` (`power_run`) also derive from `WorkerRun`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from mgspmv.checkpoints import BEGINNING, RunProgress, SliceWriter, StateAddress, WrittenSlice
from mgspmv.cluster.device_row_block import DeviceRowBlock
from mgspmv.cluster.integrity import RankCheck, Report, RoundReport
from mgspmv.cluster.row_block import RowBlock
from mgspmv.cluster.worker_metrics import publish_iterations
from mgspmv.errors import ClusterError, RunAbortedError
from mgspmv.exchange.halo import Halo
from mgspmv.exchange.nccl import greet
from mgspmv.exchange.peer import AllToAll, PeerTransport
from mgspmv.exchange.peer_comm import PeerComm, RunSpec
from mgspmv.exchange.transport import ClientTransport, HostStagedTransport, Open, Zeros
from mgspmv.heartbeat import Heartbeat
from mgspmv.kernels.device import describe_device, measure_memory
from mgspmv.kernels.host import HostBlock
from mgspmv.kernels.select import StepLayout
from mgspmv.logs import WORKERS
from mgspmv.model import Event, Stability, Status, StepSums
from mgspmv.solvers.device_steps import DeviceSteps
from mgspmv.solvers.inputs import RunInputs
from mgspmv.solvers.mass_check import MassCheck, Rounding
from mgspmv.solvers.options import RankTask
from mgspmv.solvers.pagerank import Loop
from mgspmv.solvers.steps import LocalSteps, Rows

if TYPE_CHECKING:
    from mgspmv.solvers.batch import Batch
    from mgspmv.solvers.power import PowerLoop


T = TypeVar("T")


@dataclass(frozen=True)
class TaskSpec(RunSpec, Generic[T]):
    """Description of a run, the same for all of its workers."""

    task: T
    """Options of the run."""


@dataclass(frozen=True)
class RankRunSpec(TaskSpec[RankTask]):
    """Description of a PageRank run of one vector."""

    layout: StepLayout | None
    """Layout of the rows if devices exchange slices by NCCL; None for slices over Dask's comms or to the client."""
    steps_at_once: int
    """Number of steps that a device makes between two checks for the end."""
    before: RunProgress = BEGINNING
    """Progress from which the run resumes."""
    balance: MassCheck | None = None
    """Predicted bounds of the sum of the first ranks; None if not predicted."""


class ConnectedRun:
    """Connections of one worker of a run to the others.

    Parameters
    ----------
    worker : the `distributed.Worker` of this process
    """

    def __init__(self, worker: Any, rank: int, spec: RunSpec) -> None:
        self.run, self.name, self.rank = spec.run, worker.name, rank
        self.links = PeerComm(worker, rank, spec)
        """Connections to the other workers."""
        self._end: str | None = None
        self.is_busy = False
        """Whether a task of the run is running."""
        self.n_terms = 0
        """Approximate number of multiplications per iteration."""

    def close(self, reason: str) -> None:
        """End the run here: a waiting task raises `RunAbortedError` with the reason, and no further task can begin."""
        self._end = reason
        WORKERS.info("worker %s: %s", self.name, reason, extra={"run": self.run, "worker": self.name})
        self.links.close(reason)

    @contextmanager
    def _working(self, phase: str) -> Iterator[Heartbeat]:
        """Mark a task of the run as running: send heartbeats to the others, and name worker and phase in its errors."""
        if self._end is not None:
            raise RunAbortedError(self._end, phase=phase)
        if self.is_busy:
            raise ClusterError(f"two tasks of run {self.run} are running on one worker", phase=phase)
        self.is_busy = True
        try:
            with self.links.active(phase) as heartbeat:
                yield heartbeat
        finally:
            self.is_busy = False


class WorkerRun(ConnectedRun, ABC):
    """State of a run on one worker: its row blocks, the loop over them, and the connections to the other workers.

    Parameters
    ----------
    worker : as in `ConnectedRun`
    parts : row blocks that an iteration multiplies with; vectors have the rows of the first one
    halos : columns that it reads of others in each product; empty for devices that exchange slices by NCCL
    """

    computes: int | str
    """Number of threads of the host, or name of the device."""
    _loop: Loop | PowerLoop | Batch
    """Loop of the run, made by `start`."""

    def __init__(self, worker: Any, parts: Sequence[RowBlock], spec: TaskSpec[Any], halos: Sequence[Halo]) -> None:
        self.parts, self._part, self._halos = parts, parts[0], halos
        super().__init__(worker, self._part.rank, spec)
        self._n_workers = len(spec.members)
        self.held_bytes = 0
        """Bytes held for rows and vectors after the last reported iteration, exported as a metric."""
        self.n_terms = sum(part.nnz for part in parts)
        self._slowest_s: float | None = None

    def start(self, width: int = 1) -> Status | None:
        """Connect to the other workers and begin to iterate `width` vectors; return the status if the run has ended."""
        with self._working("connect"):
            self._loop = self._connect(width)
            return self._loop.status

    @abstractmethod
    def _connect(self, width: int) -> Loop | PowerLoop | Batch:
        """Connect to the other workers and return the loop."""

    def _greet(self) -> tuple[AllToAll, dict[int, dict[str, Any]]]:
        """Connect to the other workers; return turns of messages with them, and the first messages by rank."""
        turns = AllToAll(self.links, self.rank, self._n_workers)
        if self._halos:
            halos = [*enumerate(self._halos)]
            hellos = {other: {f"asked {k}": halo.needed[other] for k, halo in halos} for other in turns.others}
        else:
            assert isinstance(self._part, DeviceRowBlock)
            hellos = dict.fromkeys(turns.others, greet(self._part.group))
        return turns, turns.greet(hellos)

    def _find_wanted(self, hellos: dict[int, dict[str, Any]], k: int = 0) -> list[np.ndarray | None]:
        """Return by rank the rows of this worker that the others asked for in their first messages; None for all rows.

        Parameters
        ----------
        k : number of the halo
        """
        asked = (hellos.get(other, {}).get(f"asked {k}") for other in range(self._n_workers))
        return [None if rows is None else np.array(rows) for rows in asked]  # received arrays are read-only

    def superstep(self, n: int) -> Report:
        """Make n iterations or fewer, up to the end, together with all other workers; publish their events, check the
        ranks, and return a report."""
        loop, events = self._loop, list[Event]()
        with self._working(f"iteration {loop.iteration + 1}") as heartbeat:
            heartbeat.begin_steps(self._slowest_s)
            for event in loop.advance(n):
                events.append(event)
                heartbeat.end_step()
                heartbeat.phase = f"iteration {loop.iteration + 1}"
            # Kept for the watchdog's limit in the next superstep; None ends that limit for the rest of this task.
            self._slowest_s, heartbeat.slowest_s = heartbeat.slowest_s, None
            if events:
                self.held_bytes = events[-1].memory_bytes[0]
                publish_iterations(events, self.rank, sum(part.nnz for part in self.parts), self.measure_memory())
            if not events or loop.status == Status.NON_FINITE:
                return Report(events, loop.status)
            heartbeat.phase = f"iteration {loop.iteration}"
            return Report(events, loop.status, self._check_ranks())

    def _check_ranks(self) -> RankCheck | None:
        """Check the ranks; None if the run does not compute ranks."""
        return None

    @abstractmethod
    def collect(self) -> tuple[Any, Any, dict[str, int]]:
        """Return the result on this worker, details of it, and the bytes that this worker took."""

    def measure_memory(self) -> dict[str, int]:
        """Return the bytes that this worker took; see `mgspmv.kernels.device.measure_memory`."""
        return measure_memory(has_device=self._part.backend == "cuda")


class RankWorkerRun(WorkerRun):
    """State on one worker of a PageRank run of one vector."""

    _loop: Loop
    _steps: LocalSteps | DeviceSteps
    """Steps on the rows of this worker, which hold the ranks; made before the first z."""
    _growth: float
    transport: str
    """Transport of slices between workers."""

    def __init__(self, worker: Any, part: RowBlock, spec: RankRunSpec, halos: Sequence[Halo]) -> None:
        super().__init__(worker, [part], spec, halos)
        self._spec = spec
        self._writer: SliceWriter | None = None

    def keep_state(self, address: StateAddress) -> None:
        """Copy the ranks, and begin to write them as this worker's slice of a checkpoint."""
        with self._working("checkpoint"):
            if self._writer is None:  # it gets `_steps.ranks`, as a reference to this object would be a cycle
                self._writer = SliceWriter(self._steps.ranks, self._part.start)
            self._writer.begin(address)

    def find_written(self, wait: bool) -> list[WrittenSlice | str] | None:
        """Call `SliceWriter.find_written`."""
        with self._working("checkpoint"):
            assert self._writer is not None
            return self._writer.find_written(wait)

    def close(self, reason: str) -> None:
        super().close(reason)
        if self._writer is not None:
            self._writer.close()

    def copy_ranks(self) -> np.ndarray:
        """Return the ranks after the last step, (n_rows,), on the host."""
        return self._steps.ranks()

    def measure(self) -> float:
        """Compute this worker's part of the residual in lockstep with the other workers. No iteration can follow."""
        with self._working("residual"):
            return self._steps.measure(self._loop.mass)

    def find_stability(self) -> Stability | None:
        """Return the stability of the highest vertices, proved by all workers together; None if not proved."""
        return self._loop.stability

    @abstractmethod
    def _open(self, hellos: dict[int, dict[str, Any]], turns: AllToAll) -> LocalSteps | DeviceSteps:
        """Return the steps, made from the others' first messages."""

    def _connect(self, width: int) -> Loop:
        spec, task = self._spec, self._spec.task
        turns, hellos = self._greet()
        self._steps = self._open(hellos, turns)
        self.links.heartbeat.phase = "iteration 1"
        watch = self._steps.watch(task.options, turns.gather, self._growth)
        loop = Loop(self._steps, task, watch, spec.before, spec.balance)
        loop.start()
        return loop

    def _check_ranks(self) -> RankCheck:
        return RankCheck(*self._steps.check_rows(), self._loop.mass, self._loop.balance)

    def collect(self) -> tuple[np.ndarray, str, dict[str, int]]:
        """Return the ranks, (n_rows,), the `transport`, and the bytes that this worker took."""
        return self._steps.collect(), self.transport, self.measure_memory()


class CsrWorkerRun(RankWorkerRun):
    """PageRank by kernels over CSR, on the host or on a device.

    In supersteps slices are sent over Dask's comms (`PeerTransport`); in rounds of tasks they pass through the client
    (`ClientTransport`).

    Parameters
    ----------
    start : input vectors of the block's rows
    """

    _steps: LocalSteps

    def __init__(self, worker: Any, part: RowBlock, spec: RankRunSpec, start: RunInputs) -> None:
        task = spec.task
        kernel = part.bind(task.dtype, task.options.precision, task.kernel, task.threads)
        weight = start.take_weight(lambda: part.out_weights.read(task.dtype is not None))
        self._rows: Rows = start.bind(kernel, weight)
        self._growth = start.growth
        assert part.halo is not None
        super().__init__(worker, part, spec, [part.halo])
        self._relays: list[ClientTransport] = []
        """Transport of rounds of tasks, at most one; empty in supersteps."""
        self.transport = "peer"
        self.computes = kernel.threads if isinstance(kernel, HostBlock) else describe_device()
        kernel.compile(is_relative=task.options.is_relative)

    # --- in supersteps, in lockstep with the other workers

    def _open(self, hellos: dict[int, dict[str, Any]], turns: AllToAll) -> LocalSteps:
        return self._make_steps(partial(PeerTransport, turns, self._halos[0], self._find_wanted(hellos)))

    # --- in rounds of tasks

    def scale(self) -> RoundReport:
        """Compute this worker's slice of the first z."""
        with self._working("start"):
            self.transport = "client"
            self._steps = self._make_steps(partial(_open_relay, self._relays, self._halos[0]))
            return self._report_round(self._steps.scale())

    def step(self, z: np.ndarray, mass: float) -> RoundReport:
        """Make one iteration on the rows of this worker.

        Parameters
        ----------
        z : (n_cols,), joined from the slices of all workers
        mass : sum of all ranks over dangling vertices
        """
        with self._working("iteration"):
            self._relays[0].give(z)
            sums, times = self._steps.step(mass)
            return self._report_round(sums, times.product_s[0], times.memory_bytes[0])

    def describe_rows(self) -> tuple[Rounding, np.ndarray]:
        """Return the rounding bounds of steps on these rows, and a mask of dangling vertices."""
        return self._rows.rounding, self._rows.kernel.get(self._rows.weight) == 0

    def rescale(self) -> np.ndarray:
        """Compute this worker's slice of z in float64, for the residual."""
        with self._working("residual"):
            self._steps.begin_residual()
            return self._relays[0].take()

    def measure_given(self, z: np.ndarray, mass: float) -> float:
        """Compute this worker's part of the residual.

        Parameters
        ----------
        z : (n_cols,) float64, joined from the slices of all workers
        """
        with self._working("residual"):
            self._relays[0].give(z)
            return self._steps.residual(mass)

    def _report_round(self, sums: StepSums, product_s: float = 0.0, held_bytes: int = 0) -> RoundReport:
        ranks = RankCheck(*self._steps.check_rows())
        return RoundReport(self._relays[0].take(), sums, product_s, held_bytes, ranks)

    def _make_steps(self, open_transport: Open) -> LocalSteps:
        kernel = self._rows.kernel
        if self._part.backend == "cuda":
            open_transport = partial(HostStagedTransport, open_transport, kernel.put, kernel.get)
        return LocalSteps(self._rows, self._spec.task.options, open_transport)


class LayoutWorkerRun(RankWorkerRun):
    """PageRank by steps on a device, enqueued several at a time, with slices sent from device to device.

    Parameters
    ----------
    start : input vectors of the block's rows
    """

    def __init__(self, worker: Any, part: RowBlock, spec: RankRunSpec, start: RunInputs) -> None:
        assert isinstance(part, DeviceRowBlock)
        super().__init__(worker, part, spec, [])
        self._device_part = part
        weight = start.take_weight(lambda: part.out_weights.read(spec.task.dtype is not None))
        self._vectors, self._is_counted, self._growth = start.on_device(weight), start.is_counted, start.growth
        self.computes = describe_device()

    def _open(self, hellos: dict[int, dict[str, Any]], turns: AllToAll) -> DeviceSteps:
        spec, task, peer_comm = self._spec, self._spec.task, self.links
        self._device_part.join_devices(turns, hellos)
        assert spec.layout is not None
        device = self._device_part.bind_steps(task.dtype, spec.layout, task.options.precision, peer_comm.check)
        self._device = device
        steps = DeviceSteps(device, self._vectors, task, spec.steps_at_once, is_counted=self._is_counted)
        steps.compile()
        return steps

    def collect(self) -> tuple[np.ndarray, str, dict[str, int]]:
        """Collect as `RankWorkerRun` does, with the transport on which the devices agreed at the start."""
        self.transport = "ipc" if self._device.writes_there else "nccl"
        return super().collect()


def _open_relay(relays: list[ClientTransport], halo: Halo, zeros: Zeros) -> ClientTransport:
    """Replace the transport of rounds of tasks. Not a method, as steps must not reference their run."""
    relays[:] = [ClientTransport(halo, zeros)]
    return relays[0]
