"""Counts of iterations on a worker: Prometheus metrics of its process, and messages on a Dask topic.

Metrics are on `/metrics` of the worker's own server; several workers that share a process are counted together.

Messages are records of iterations, which the scheduler passes to subscribers. Event loops send them with the other
messages of workers: tasks do not wait, and records are also sent while no client is connected. They are plain dicts of
columns, not of rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from operator import attrgetter
from threading import Lock
from typing import Any
from weakref import WeakSet

import numpy as np
from distributed import get_worker
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Metric
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.utils import floatToGoString

from mgspmv.kernels.device import measure_device_memory
from mgspmv.model import Event

PHASES = ("product", "exchange", "wait")
"""Phases of an iteration."""
SECONDS = tuple(m * 10.0**e for e in range(-5, 2) for m in (1.0, 2.5, 5.0))
"""Upper bounds of the histogram of seconds per iteration: 10 microseconds to 50 seconds."""


BOUNDS = (*map(floatToGoString, SECONDS), "+Inf")
"""Upper bounds in the text form of Prometheus."""
DEVICE = (
    ("", "total", "Memory of the device that this worker computes on."),
    ("free_", "free", "Free memory of the device."),
    ("used_", "used", "Memory of the device that this process uses for arrays."),
)
"""Part of the name, field of `DeviceMemory` and help of each metric of a device."""


def collect_counts(registry: CollectorRegistry) -> Iterator[Metric]:
    """Yield the metrics of a registry without the times at which each series was created."""
    for metric in registry.collect():
        metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
        yield metric


class WorkerMetrics:
    """Counts of all workers of this process; thread-safe.

    Parameters
    ----------
    registry : registry that shows them, by default the one that Dask's servers show on `/metrics`
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._own = CollectorRegistry()
        self._iterations = Counter(
            "mgspmv_worker_iterations_total",
            "Iterations, or passes of a batch, that this worker took part in.",
            registry=self._own,
        )
        self._edges = Counter(
            "mgspmv_worker_edges_total", "Stored entries that this worker multiplied in iterations.", registry=self._own
        )
        self._exchanged_bytes = Counter(
            "mgspmv_worker_exchanged_bytes_total",
            "Bytes of slices that this worker received in iterations.",
            registry=self._own,
        )
        self._lock = Lock()
        self._counts = np.zeros((len(PHASES), len(SECONDS) + 1), np.int64)
        self._sums = np.zeros(len(PHASES))
        self._failures = Counter(
            "mgspmv_worker_task_failures_total",
            "Tasks that failed here, by class of the error.",
            ["error"],
            registry=self._own,
        )
        self.holders: WeakSet[Any] = WeakSet()
        """Agents whose bytes are exported, by `Agent.measure_held`."""
        self.has_device = False
        """True if this process has computed on a device, so that a query of its memory needs no initialization."""
        Gauge(
            "mgspmv_worker_rows_bytes", "Bytes of the rows of matrices that are loaded here.", registry=self._own
        ).set_function(lambda: sum(holder.measure_held()[0] for holder in self.holders))
        Gauge(
            "mgspmv_worker_runs_bytes", "Bytes held here for vectors and rows of runs in progress.", registry=self._own
        ).set_function(lambda: sum(holder.measure_held()[1] for holder in self.holders))
        registry.register(self)

    def count_iterations(self, seconds: np.ndarray, edges: int, exchanged_bytes: int) -> None:
        """Count the iterations of a task.

        Parameters
        ----------
        seconds : (3, n) seconds of each iteration, by phase
        edges, exchanged_bytes : totals of all iterations
        """
        self._iterations.inc(seconds.shape[1])
        self._edges.inc(edges)
        self._exchanged_bytes.inc(exchanged_bytes)
        # At ten thousands of iterations a second, `Histogram.observe` would take several percent of the time.
        with self._lock:
            for counts, of_phase in zip(self._counts, seconds, strict=True):
                counts += np.bincount(np.searchsorted(SECONDS, of_phase), minlength=len(counts))
            self._sums += seconds.sum(axis=1)

    def count_failure(self, error: str) -> None:
        """Count a failed task by the class of its error."""
        self._failures.labels(error).inc()

    def collect(self) -> Iterator[Metric]:
        """Yield the counts, the seconds, and the memory of the device if the process computes on one."""
        yield from collect_counts(self._own)
        histogram = HistogramMetricFamily(
            "mgspmv_worker_iteration_seconds",
            "Seconds of an iteration by phase: product, exchange, and wait for other workers; on devices, exchange "
            "includes the wait.",
            labels=["phase"],
        )
        with self._lock:
            for phase, counts, total in zip(PHASES, self._counts.cumsum(axis=1).tolist(), self._sums, strict=True):
                histogram.add_metric([phase], list(zip(BOUNDS, counts, strict=True)), float(total))
        yield histogram
        device = measure_device_memory() if self.has_device else None
        for name, field, text in DEVICE:
            family = GaugeMetricFamily(f"mgspmv_worker_device_memory_{name}bytes", text)
            if device is not None:
                family.add_metric([], getattr(device, field))
            yield family


METRICS = WorkerMetrics()
"""Metrics of this process."""


TOPIC = "mgspmv"
"""Topic of the messages, for `Client.get_events` and `Client.subscribe_topic` of Dask."""
MOST_GROUPS = 128
"""Maximum groups of iterations in a message: small graphs take tens of thousands of iterations a second."""
SUMMED = {"product_s": np.float64, "exchange_s": np.float64, "wait_s": np.float64, "exchanged_bytes": np.int64}
"""Quantities summed over each group, with their data types."""


def pack_events(events: Sequence[Event], ranks: Sequence[int]) -> dict[str, Any]:
    """Pack consecutive iterations into a message, in groups of equal length except the last.

    Parameters
    ----------
    ranks : ranks of the workers in the events

    Returns
    -------
    `run`, `epoch`, `ranks`, and `first`, the first iteration; for each group the number of its last `iteration` and its
    `change`; by rank lists of the sums over each group of `product_s`, `exchange_s`, `wait_s` and `exchanged_bytes`;
    and by rank the `held_bytes` after the last one.
    """
    size = -(-len(events) // MOST_GROUPS)
    starts = np.arange(0, len(events), size)
    lasts = [events[min(start + size, len(events)) - 1] for start in starts.tolist()]
    last = events[-1]
    return {
        "kind": "iterations",
        "run": last.run,
        "epoch": last.epoch,
        "ranks": [*ranks],
        "first": events[0].iteration,
        "iteration": [event.iteration for event in lasts],
        "change": [float(event.change) for event in lasts],
        **{name: np.add.reduceat(rows, starts, axis=0).T.tolist() for name, rows in _tabulate(events).items()},
        "held_bytes": [int(n_bytes) for n_bytes in last.memory_bytes],
    }


def publish_iterations(events: Sequence[Event], rank: int, nnz: int, taken: dict[str, int]) -> None:
    """Count the iterations of a task on this worker, and publish them without waiting.

    Parameters
    ----------
    events : at least one
    rank, nnz : of this worker
    taken : bytes of the run on this worker, by name
    """
    columns = _tabulate(events)
    seconds = np.array([columns[f"{phase}_s"][:, 0] for phase in PHASES])
    METRICS.count_iterations(seconds, len(events) * nnz, int(columns["exchanged_bytes"].sum()))
    get_worker().log_event(TOPIC, pack_events(events, [rank]) | {"taken": [taken]})


def _tabulate(events: Sequence[Event]) -> dict[str, np.ndarray]:
    """Return the summed quantities of the events by name, each an array of shape (len(events), n_workers).

    Each is made from a flat stream of numbers, which takes NumPy a fifth of the instructions of a list of tuples.
    """
    return {
        name: np.fromiter(chain.from_iterable(map(attrgetter(name), events)), dtype).reshape(len(events), -1)
        for name, dtype in SUMMED.items()
    }
