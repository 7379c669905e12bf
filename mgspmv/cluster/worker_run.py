"""Runs on one worker: what the client sends, what workers report, and the state that a worker keeps between tasks.

TaskSpec          description of a run, the same for all of its workers; in addition each gets its piece of the inputs
WorkerRun         a run of PageRank, of a batch, or of power iteration, made by its first task and held by the agent of
                  the worker between tasks; its public methods are the bodies of tasks
  BlockIteration  iteration of the rows of this worker; see `mgspmv.cluster.iterations`
Report            result of a superstep on one worker; `check_reports` checks that all workers agree
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

import numpy as np

from mgspmv.cluster.row_block import DeviceRowBlock, RowBlock
from mgspmv.cluster.worker_metrics import publish_iterations
from mgspmv.errors import ClusterError, CorruptionError, RunAbortedError, WorkerCorruptionError
from mgspmv.exchange.exchange import DeviceCopies
from mgspmv.exchange.ipc import VectorAddress
from mgspmv.exchange.nccl import greet
from mgspmv.exchange.peer import AllToAll, Halo, PeerExchange
from mgspmv.exchange.peer_comm import Member, Message, PeerComm, RunSpec
from mgspmv.heartbeat import Heartbeat
from mgspmv.kernels.device import measure_memory
from mgspmv.kernels.select import StepLayout
from mgspmv.logs import WORKERS
from mgspmv.model import BEGINNING, Event, RowCheck, RunProgress, Status, StepSums, ignore
from mgspmv.solvers.batch import Batch, BatchTask, FinishedVectors
from mgspmv.solvers.options import RankTask
from mgspmv.solvers.pagerank import RunInputs
from mgspmv.solvers.power import PowerLoop, PowerTask, Step
from mgspmv.solvers.run import CORRUPTION_ADVICE, Collected, MassCheck, check_rows, describe_off
from mgspmv.solvers.vectors import Query

if TYPE_CHECKING:
    from mgspmv.solvers.pagerank import Loop

AnyTask = TypeVar("AnyTask", RankTask, BatchTask, PowerTask)

# --- inputs ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TaskSpec(RunSpec, Generic[AnyTask]):
    """Description of a run, the same for all of its workers."""

    task: AnyTask
    """Options of the run."""
    transport: Literal["peer", "nccl"] = "peer"
    """Transport of slices between workers."""
    layout: StepLayout | None = None
    """Layout of the rows for steps of PageRank that devices enqueue several at a time; None for kernels over CSR."""
    steps_at_once: int = 1
    """Number of such steps between two checks for the end."""
    before: RunProgress = BEGINNING
    """Progress from which the run resumes."""
    balance: MassCheck | None = None
    """Predicted bounds of the sum of the first ranks; None if not predicted."""


@dataclass(frozen=True, eq=False)
class BatchPiece:
    """Inputs of a batch on one worker, cut to its rows."""

    start: RunInputs
    """Input vectors; only d, empty for the p of each vector, and the out-weights are used."""
    queries: list[Query]
    """All vectors, restricted to the entries in these rows."""
    order: np.ndarray | None
    """(n_rows,) source's number of each row; None if they ascend or are not needed."""


@dataclass(frozen=True, eq=False)
class VectorShare(BatchPiece):
    """Inputs of a batch on one worker that ranks some of the vectors, with all rows."""

    rank: int
    """Rank of the worker."""
    widest: int
    """Most vectors in a pass that fit in its memory."""


@dataclass(frozen=True, eq=False)
class PowerPiece:
    """Inputs of power iteration on one worker, cut to its rows and in the precision of the run."""

    step: Step
    """Applied to each product."""
    x: np.ndarray
    """Elements of the start vector."""


# --- reports and results ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RankCheck:
    """Check of a worker's ranks between two steps."""

    rows: RowCheck
    """Sums over its rows."""
    slack: float
    """Maximum rounding error of their sum in a step."""
    mass: float = 0.0
    """Sum of the ranks of all dangling vertices, as used in the step; 0 if the client has it."""
    balance: MassCheck | None = None
    """Predicted bounds of the sum of the ranks of all workers; None if the client predicts them."""


@dataclass(frozen=True, eq=False)
class Report:
    """Result of a superstep on one worker."""

    events: list[Event]
    """Event of each iteration on this worker."""
    status: Status | None
    """Status of the run; None if it has not ended."""
    ranks: RankCheck | None = None
    """Check of the ranks; None if there are no ranks or they are not finite."""
    kept: Sequence[FinishedVectors] = ()
    """Kept values of this worker's rows of finished vectors of a batch."""
    n_ended: int = 0
    """Number of vectors that have ended."""
    collected: Collected | None = None
    """Result of a worker that iterates alone, after its end; None before that, and for others."""


@dataclass(frozen=True, eq=False)
class RoundReport:
    """Result of a round of tasks on one worker, in the executor `tasks`."""

    z: np.ndarray
    """(n_rows,): this worker's slice of the next z."""
    sums: StepSums
    product_s: float
    held_bytes: int
    """Bytes held for rows and vectors."""
    ranks: RankCheck


def check_reports(reports: Sequence[Report], members: Sequence[Member], phase: str) -> None:
    """Check that all workers made the same iterations of a superstep, and that their ranks are valid.

    Raises
    ------
    ClusterError : they did not make the same iterations with the same changes
    WorkerCorruptionError : ranks fail a check
    """
    # All add up the same sums.
    made = {
        (
            report.status,
            tuple((event.iteration, event.change) for event in report.events),
            tuple(kept.numbers for kept in report.kept),
            report.n_ended,
        )
        for report in reports
    }
    if len(made) > 1:
        raise ClusterError("the workers do not agree on the changes of this superstep; one of them computes wrongly")
    found = [report.ranks for report in reports if report.ranks is not None]
    if found:
        iteration = reports[0].events[-1].iteration
        check_ranks(found, found[0].mass, found[0].balance, members, iteration, phase)


def check_ranks(
    found: Sequence[RankCheck],
    mass: float,
    balance: MassCheck | None,
    members: Sequence[Member],
    iteration: int,
    phase: str,
) -> None:
    """Check the ranks of all workers.

    Parameters
    ----------
    mass, balance : as in `mgspmv.solvers.run.check_rows`
    """
    for member, own in zip(members, found, strict=True):
        if own.rows.n_off:
            raise WorkerCorruptionError(
                f"after iteration {iteration} {describe_off(own.rows.n_off)} on worker {member}: {CORRUPTION_ADVICE}",
                worker=str(member.name),
                phase=phase,
            )
    try:
        rows, slack = sum((own.rows for own in found), RowCheck()), sum(own.slack for own in found)
        check_rows(rows, mass, balance, slack, iteration)
    except CorruptionError as error:
        raise WorkerCorruptionError(str(error), phase=phase) from error


# --- state on a worker ------------------------------------------------------------------------------------------------


class BlockIteration(ABC):
    """Iteration on the rows of one worker.

    Parameters
    ----------
    parts : row blocks that an iteration multiplies with; vectors have the rows of the first one
    halos : columns that it reads of other workers in each product; empty for devices that exchange slices by NCCL

    Attributes
    ----------
    loop : result of `make_loop`
    computes : number of threads of the host, or name of the device
    first_row : first row of the vectors on this worker
    threads : threads that read and write on this worker
    width : most vectors in a pass
    is_alone : whether it needs nothing of the other workers
    """

    loop: Loop | Batch | PowerLoop
    computes: int | str
    width = 1
    is_alone = False

    def __init__(self, parts: Sequence[RowBlock], halos: Sequence[Halo]) -> None:
        self.parts, self._part, self._halos = parts, parts[0], halos
        self.rank, self.nnz = parts[0].rank, sum(part.nnz for part in parts)
        self.first_row, self.threads = parts[0].start, parts[0].threads
        self.has_device = parts[0].backend == "cuda"

    def greet(self, others: Sequence[int]) -> dict[int, Message]:
        """Return the first messages to the others, by rank."""
        if not self._halos:
            assert isinstance(self._part, DeviceRowBlock)
            return dict.fromkeys(others, greet(self._part.group))
        return {other: Message(asked=tuple(halo.needed[other] for halo in self._halos)) for other in others}

    @abstractmethod
    def make_loop(self, turns: AllToAll, hellos: Mapping[int, Message]) -> Loop | Batch | PowerLoop:
        """Make the loop, and prepare the exchange with the others from their first messages."""

    @abstractmethod
    def collect(self) -> Collected:
        """Return the result."""

    def check_ranks(self) -> RankCheck | None:
        """Check the ranks; None if the run does not compute ranks of one vector."""
        return None

    def take_kept(self) -> tuple[Sequence[FinishedVectors], int]:
        """Return the results of vectors that have ended since the last call, and the number of all that have."""
        return (), 0

    def _open_peer(
        self, turns: AllToAll, hellos: Mapping[int, Message], k: int = 0, device: DeviceCopies | None = None
    ) -> PeerExchange:
        """Return the exchange of halo `k`, by the rows of this worker that the others asked for."""
        asked = [hellos[other]["asked"][k] if other in hellos else None for other in range(len(turns.others) + 1)]
        # Received arrays are read-only.
        return PeerExchange(turns, self._halos[k], [None if rows is None else np.array(rows) for rows in asked], device)


class WorkerRun:
    """A run on one worker.

    Parameters
    ----------
    worker : the `distributed.Worker` of this process
    iteration : of the rows of this worker

    Attributes
    ----------
    links : connections to the other workers
    is_busy : whether a task of the run is running
    n_terms : approximate number of multiplications per iteration
    on_end : called when a worker that iterates alone has ended and its result is collected
    held_bytes : held for rows and vectors after the last reported iteration, exported as a metric
    """

    def __init__(self, worker: Any, spec: TaskSpec[Any], iteration: BlockIteration) -> None:
        self.run, self.name, self.rank = spec.run, worker.name, iteration.rank
        self.links = PeerComm(worker, self.rank, spec)
        self.iteration, self._n_workers = iteration, len(spec.members)
        self.held_bytes, self.n_terms = 0, iteration.nnz
        self.is_busy, self.on_end = False, ignore
        self._end: str | None = None
        self._slowest_s: float | None = None

    def start(self) -> Status | None:
        """Connect to the other workers, and begin to iterate; return the status if the run has ended."""
        iteration = self.iteration
        with self._working("connect"):
            if iteration.is_alone:
                iteration.loop = iteration.make_loop(AllToAll(self.links, 0, 1), {})
            else:
                turns = AllToAll(self.links, self.rank, self._n_workers)
                iteration.loop = iteration.make_loop(turns, turns.greet(iteration.greet(turns.others)))
            self.links.heartbeat.phase = "iteration 1"
            iteration.loop.start()
            self.n_terms *= iteration.width
            return iteration.loop.status

    def superstep(self, n: int | None, most_s: float = math.inf) -> Report:
        """Make n iterations or fewer, up to the end, together with all other workers; publish their events, check the
        ranks, and return a report. A worker that iterates alone ends after the first iteration past `most_s` seconds,
        and its last report has its result."""
        deadline = time.monotonic() + most_s
        iteration, loop, events = self.iteration, self.iteration.loop, list[Event]()
        with self._working(f"iteration {loop.iteration + 1}") as heartbeat:
            heartbeat.begin_steps(self._slowest_s)
            for event in loop.advance(n):
                events.append(event)
                heartbeat.end_step()
                heartbeat.phase = f"iteration {loop.iteration + 1}"
                self._check_open(heartbeat.phase)
                if time.monotonic() > deadline:
                    break
            # Kept for the watchdog's limit in the next superstep; None ends that limit for the rest of this task.
            self._slowest_s, heartbeat.slowest_s = heartbeat.slowest_s, None
            if events:
                self.held_bytes = events[-1].memory_bytes[0]
                taken = measure_memory(has_device=iteration.has_device)
                publish_iterations(events, self.rank, iteration.nnz, taken)
            heartbeat.phase = f"iteration {loop.iteration}"
            is_checked = events and loop.status != Status.NON_FINITE
            ranks = iteration.check_ranks() if is_checked else None
            collected = self.collect() if iteration.is_alone and loop.status is not None else None
            report = Report(events, loop.status, ranks, *iteration.take_kept(), collected)
        if collected is not None:
            self.on_end()
        return report

    def call(self, phase: str, method: str, *arguments: Any) -> Any:
        """Call a method of the iteration."""
        with self._working(phase):
            return getattr(self.iteration, method)(*arguments)

    def collect(self, address: VectorAddress | None = None) -> Collected:
        """Return the result on this worker; elements of a vector at an address are written there, if possible."""
        found = self.iteration.collect()
        if address is not None:
            written = address.write(self.iteration.first_row, found.values, self.iteration.threads)
            found = found if written is None else replace(found, values=written)
        taken = measure_memory(has_device=self.iteration.has_device)
        return replace(found, memory={name: [n_bytes] for name, n_bytes in taken.items()} | found.memory)

    def close(self, reason: str) -> None:
        """End the run here: a waiting task raises `RunAbortedError` with the reason, and no further task can begin."""
        self._end = reason
        WORKERS.info("worker %s: %s", self.name, reason, extra={"run": self.run, "worker": self.name})
        self.links.close(reason)

    @contextmanager
    def _working(self, phase: str) -> Iterator[Heartbeat]:
        """Mark a task of the run as running, and name worker and phase in its errors."""
        self._check_open(phase)
        if self.is_busy:
            raise ClusterError(f"two tasks of run {self.run} are running on one worker", phase=phase)
        self.is_busy = True
        try:
            with self.links.active(phase) as heartbeat:
                yield heartbeat
        finally:
            self.is_busy = False

    def _check_open(self, phase: str) -> None:
        if self._end is not None:
            raise RunAbortedError(self._end, phase=phase)
