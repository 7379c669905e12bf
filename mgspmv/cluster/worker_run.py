"""State of a run on one worker, made by the first task of the run and held by the worker's agent between tasks.

WorkerRun         a run of PageRank, of a batch, or of power iteration; its public methods are the bodies of tasks
  BlockIteration  iteration of the rows of this worker; see `mgspmv.cluster.iterations`
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mgspmv.cluster.messages import Report, TaskSpec
from mgspmv.cluster.worker_metrics import publish_iterations
from mgspmv.errors import ClusterError, RunAbortedError
from mgspmv.exchange.peer import AllToAll
from mgspmv.exchange.peer_comm import PeerComm
from mgspmv.exchange.shared_vector import VectorAddress
from mgspmv.heartbeat import Heartbeat
from mgspmv.kernels.device import measure_memory
from mgspmv.logs import WORKERS
from mgspmv.model import Event, Status, ignore
from mgspmv.solvers.run import Collected

if TYPE_CHECKING:
    from mgspmv.cluster.iterations import BlockIteration


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
                publish_iterations(events, self.rank, iteration.nnz, self._measure_memory())
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
        taken = {name: [n_bytes] for name, n_bytes in self._measure_memory().items()}
        return replace(found, memory=taken | found.memory)

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

    def _measure_memory(self) -> dict[str, int]:
        return measure_memory(has_device=self.iteration.has_device)
