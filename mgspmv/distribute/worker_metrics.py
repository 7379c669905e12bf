"""What the worker of this process did, for Prometheus: on `/metrics` of the worker's own server.

Several workers that share a process are counted together.
"""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from threading import Lock
from typing import Protocol
from weakref import WeakSet

import numpy as np

from mgspmv.kernels.device import measure_device_memory
from mgspmv.metrics import Collector, Family, Histogram, Sample

PHASES = ("product", "exchange", "wait")
"""Of an iteration."""
SECONDS = tuple(m * 10.0**e for e in range(-5, 2) for m in (1.0, 2.5, 5.0))
"""Up to which seconds of iterations are counted: 10 microseconds to 50 seconds."""

ITERATIONS = Family(
    "mgspmv_worker_iterations_total", "counter", "Iterations, or passes of a batch, that this worker took part in."
)
EDGES = Family("mgspmv_worker_edges_total", "counter", "Stored entries that this worker multiplied in iterations.")
EXCHANGED = Family(
    "mgspmv_worker_exchanged_bytes_total", "counter", "Bytes of slices that this worker received in iterations."
)
ITERATION = Family(
    "mgspmv_worker_iteration_seconds",
    "histogram",
    "Seconds of an iteration by phase: product, exchange, and wait for other workers, of devices a part of exchange.",
    ("phase",),
)
FAILURES = Family(
    "mgspmv_worker_task_failures_total",
    "counter",
    "Tasks that failed here, by class of the error.",
    ("error",),
)
ROWS = Family("mgspmv_worker_rows_bytes", "gauge", "Bytes of the rows of matrices that are loaded here.")
RUNS = Family(
    "mgspmv_worker_runs_bytes", "gauge", "Bytes that runs hold here while they go on, for vectors and these rows."
)
DEVICE = Family("mgspmv_worker_device_memory_bytes", "gauge", "Memory of the device that this worker computes on.")
DEVICE_FREE = Family("mgspmv_worker_device_memory_free_bytes", "gauge", "What nobody has of the device's memory.")
DEVICE_USED = Family(
    "mgspmv_worker_device_memory_used_bytes", "gauge", "What this process has of the device's memory for arrays."
)


class Holder(Protocol):
    """Who holds rows and vectors, as the agent of a worker does."""

    def measure_held(self) -> tuple[int, int]:
        """Bytes of rows, and of what runs hold, rows and vectors."""
        ...


class WorkerMetrics(Collector):
    """Counts of all workers of this process; threads may share it."""

    families = (ITERATIONS, EDGES, EXCHANGED, ITERATION, FAILURES, ROWS, RUNS, DEVICE, DEVICE_FREE, DEVICE_USED)

    def __init__(self) -> None:
        super().__init__()
        self._lock = Lock()
        self._iterations = self._edges = self._exchanged_bytes = 0
        self._seconds = {phase: Histogram(SECONDS) for phase in PHASES}
        self._failures: Counter[str] = Counter()
        self.holders: WeakSet[Holder] = WeakSet()
        """Whose bytes are told of."""
        self.has_device = False
        """Whether this process has computed on a device, and so may be asked for its memory at no cost."""

    def count_iterations(self, seconds: np.ndarray, edges: int, exchanged_bytes: int) -> None:
        """Take the iterations of a task.

        Parameters
        ----------
        seconds : (3, n) of each iteration, by phase
        edges, exchanged_bytes : of all of them
        """
        with self._lock:
            self._iterations += seconds.shape[1]
            self._edges += edges
            self._exchanged_bytes += exchanged_bytes
            for phase, of_phase in zip(PHASES, seconds, strict=True):
                self._seconds[phase].add(of_phase)

    def count_failure(self, error: str) -> None:
        """Take that a task failed, by the class of the error."""
        with self._lock:
            self._failures[error] += 1

    def list_samples(self) -> dict[str, list[Sample]]:
        """As of `Collector`."""
        rows, runs = np.array([(0, 0), *(holder.measure_held() for holder in self.holders)]).sum(axis=0).tolist()
        with self._lock:
            counted: dict[str, list[Sample]] = {
                ITERATIONS.name: [((), self._iterations)],
                EDGES.name: [((), self._edges)],
                EXCHANGED.name: [((), self._exchanged_bytes)],
                ITERATION.name: [((phase,), deepcopy(histogram)) for phase, histogram in self._seconds.items()],
                FAILURES.name: [((error,), n) for error, n in self._failures.items()],
            }
        device = measure_device_memory() if self.has_device else None
        return counted | {
            ROWS.name: [((), rows)],
            RUNS.name: [((), runs)],
            DEVICE.name: [((), device.total)] if device else [],
            DEVICE_FREE.name: [((), device.free)] if device else [],
            DEVICE_USED.name: [((), device.used)] if device else [],
        }


METRICS = WorkerMetrics()
"""Those of this process."""
