"""State of all runs of a cluster, derived from their messages; see `mgspmv.monitor.events`.

Its size is bounded: the last runs, curves of at most `MOST_POINTS` points, and sums over all iterations by worker.
Counts for metrics are separate, and never reset.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import prometheus_client as metrics
from prometheus_client import CollectorRegistry

from mgspmv.cluster.worker_metrics import PHASES
from mgspmv.model import RECOVERIES, Status
from mgspmv.monitor.progress import RATE_WINDOW, predict_iterations_left

PAGE = "pagerank"
"""Address of the page on the dashboard, and its name in the navigation bar."""
RUNS_KEPT = 20
"""Number of runs kept: those in progress, and the most recent ones."""
MOST_POINTS = 2000
"""Most points of a curve."""
MOST_ERRORS = 20
"""Most errors kept per run."""
CHECKPOINT_SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
PHASE_SECONDS = (*CHECKPOINT_SECONDS, 3000.0, 10_000.0, 30_000.0)
"""Upper bounds in seconds of the histogram buckets for checkpoints and for phases of runs."""
RUN_PHASES = ("queue", "start", "product", "exchange", "schedule", "residual", "collect")
"""Phases exported as 0 when the first run begins; otherwise rates would miss that run."""
COUNTERS = {
    "runs_started": ("Runs that began.", "operation"),
    "runs_ended": ("Runs that ended, by status, including failed and abandoned.", "operation", "status"),
    "run_restarts": ("Restarts of runs, from checkpoints and with other workers.", "operation"),
    "recoveries": ("Runs resumed after a worker was lost or silent.", "operation", "kind"),
    "workers_lost": ("Workers that left the cluster during a run that used them.",),
    "iterations": ("Iterations, or passes of batches.", "operation"),
    "edges": ("Stored entries multiplied in iterations.", "operation"),
    "exchanged_bytes": ("Bytes of vector slices received by workers.", "operation"),
    "checkpoints": ("Checkpoints that were written.", "operation"),
    "checkpoint_bytes": ("Bytes of checkpoints written.", "operation"),
    "checkpoint_failures": ("Checkpoints that could not be written.", "operation"),
}
"""Help and labels of counters, by name without `mgspmv_` and `_total`."""
HISTOGRAMS = {
    "run_phase_seconds": ("Seconds of phases of runs that ended with a result.", "operation", "phase"),
    "checkpoint_seconds": ("Seconds to write a checkpoint.", "operation"),
}
"""Help and labels of histograms, by name without `mgspmv_`."""
BUCKETS = {"run_phase_seconds": PHASE_SECONDS, "checkpoint_seconds": CHECKPOINT_SECONDS}
USED = {"host": "host_peak_bytes", "device": "device_bytes"}
"""Names of the bytes that a worker's process uses, see `mgspmv.kernels.device.measure_memory`."""
ENDS = (*map(str, Status), "failed", "abandoned")
"""Final statuses of runs."""


@dataclass
class RunState:
    """State of one run."""

    run: str
    """Id of the run."""
    operation: str
    executor: str
    client: str
    """Id of the Dask client that started the run."""
    matrix: dict[str, Any]
    """`url`, `shape` and `nnz` of the matrix."""
    options: dict[str, Any]
    workers: list[dict[str, Any]]
    """Workers by rank; see `mgspmv.monitor.events.describe_workers`."""
    transport: str | None
    backend: str | None
    threshold: float | None
    """Change below which the run has converged; None if the number of iterations is fixed."""
    began: float
    """Start in seconds since 1970, by the clock of the scheduler, as all times here."""
    changed: float
    """Time of the last message."""
    phase: str = "start"
    """Current phase, while the run is in progress."""
    status: str | None = None
    """Final status, one of `ENDS`; `abandoned` if its client disconnected. None while the run is in progress."""
    errors: list[str] = field(default_factory=list)
    restarts: int = 0
    """Number of restarts from checkpoints or with other workers; the epoch of its events."""
    checkpoints: int = 0
    """Number of checkpoints written so far."""
    checkpoint_iteration: int = 0
    """Iteration of the last checkpoint written."""
    checkpointed: float | None = None
    """Time at which the last checkpoint was written; None if there is none."""
    iterations: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds by phase, after the end of the run."""
    changes: dict[int, float] = field(default_factory=dict)
    """Change by iteration; the last `MOST_POINTS`."""
    rates: dict[int, float] = field(default_factory=dict)
    """Iterations per second by the last iteration of each message, without the time between the tasks of two
    supersteps; the last `MOST_POINTS`."""

    def __post_init__(self) -> None:
        self.clear_workers()

    def clear_workers(self) -> None:
        """Reset the sums of workers."""
        n = self.n_workers
        self.step_s, self.last_step_s = np.zeros((2, len(PHASES), n))
        """Seconds by phase and worker: over all iterations, and per iteration in the last message."""
        self.n_told, self.exchanged_bytes, self.held_bytes = np.zeros((3, n), np.int64)
        """Iterations reported by each worker, bytes it received so far, and bytes of its block and vectors."""
        self.used_bytes = {where: np.zeros(n, np.int64) for where in USED}
        """Host peak of each worker's process, with the interpreter, and its use of a device."""

    @property
    def n_workers(self) -> int:
        return len(self.workers)

    @property
    def is_running(self) -> bool:
        return self.status is None

    @property
    def state(self) -> str:
        """Status of a run that has ended, else its phase."""
        return self.status or self.phase

    @property
    def elapsed_s(self) -> float:
        """Seconds from its start to the last message."""
        return self.changed - self.began

    @property
    def edges(self) -> int:
        """Number of edges that an iteration multiplies."""
        return sum(worker["nnz"] for worker in self.workers)

    @property
    def change(self) -> float:
        """Change of the last iteration; NaN before the first."""
        return self.changes.get(self.iterations, math.nan)

    @property
    def iterations_per_s(self) -> float:
        """Rate in the last message; NaN before the first."""
        return self.rates.get(self.iterations, math.nan)

    @property
    def edges_per_s(self) -> float:
        return self.edges * self.iterations_per_s

    @property
    def most_iterations(self) -> int | None:
        """Number of iterations after which the run stops; None if it has no such option."""
        most = self.options.get("max_iter")
        return most if isinstance(most, int) else None

    @property
    def iterations_left(self) -> int | None:
        """Iterations until the end, predicted from the last changes, at most to `max_iter`; None if unknown."""
        last = list(self.changes.items())[-RATE_WINDOW:]
        bounds = [] if self.most_iterations is None else [max(0, self.most_iterations - self.iterations)]
        if self.threshold is not None and last:
            n_steps = last[-1][0] - last[0][0]
            predicted = predict_iterations_left([change for _, change in last], self.threshold, n_steps)
            bounds += [] if predicted is None else [predicted]
        return min(bounds, default=None)

    @property
    def seconds_left(self) -> float | None:
        """Seconds for these iterations at the rate of the last message; None if unknown."""
        left, rate = self.iterations_left, self.iterations_per_s
        return None if left is None or not rate > 0 else left / rate

    @property
    def mean_seconds(self) -> np.ndarray:
        """Mean seconds of an iteration by phase, (3, n_workers), over all that each worker reported.

        Devices do not measure their waits, which are estimated as the part of a worker's exchange between the end of
        its product and the end of the slowest product.
        """
        product, exchange, wait = self.step_s / np.maximum(self.n_told, 1)
        if not wait.any():
            wait = np.minimum(exchange, product.max(initial=0.0) - product)
            exchange = exchange - wait
        return np.array([product, exchange, wait])

    @property
    def imbalance(self) -> float | None:
        """Product of the slowest worker over the mean of all, in the last message of each; 1 if all are equal."""
        product = self.last_step_s[0]
        return float(product.max() / product.mean()) if self.n_told.all() and product.any() else None

    def describe(self) -> dict[str, Any]:
        """Return the state as JSON values; see `mgspmv.monitor.events.list_known_runs`."""
        names = ("run", "operation", "state", "is_running", "iterations", "began", "checkpoint_iteration", "errors")
        change = self.change if math.isfinite(self.change) else None
        others = {"matrix": self.matrix["url"], "workers": self.n_workers, "change": change, "seconds": self.elapsed_s}
        return {name: getattr(self, name) for name in names} | others

    def planned_bytes(self, where: str) -> np.ndarray:
        """Return the planned peak of each worker on its `host` or `device`, (n_workers,) int64."""
        return np.array([worker[f"{where}_bytes"] for worker in self.workers], np.int64)


class Runs:
    """The last runs of a cluster, and counts of all runs."""

    def __init__(self) -> None:
        self.version = 0
        """Counter that increases with each message that changed the state."""
        self.by_id: dict[str, RunState] = {}
        """Runs by id, in the order of their start."""
        self.registry = CollectorRegistry()
        """Counts of all runs, as metrics."""
        text = "Runs in progress, including queued ones."
        self._active = metrics.Gauge("mgspmv_runs_active", text, ["operation"], registry=self.registry)
        self._counters = {
            name: metrics.Counter(f"mgspmv_{name}_total", text, labels, registry=self.registry)
            for name, (text, *labels) in COUNTERS.items()
        }
        self._histograms = {
            name: metrics.Histogram(f"mgspmv_{name}", text, labels, buckets=BUCKETS[name], registry=self.registry)
            for name, (text, *labels) in HISTOGRAMS.items()
        }

    def hear(self, message: dict[str, Any], at: float | None = None) -> None:
        """Process a message; ignore one of an unknown kind, or of a run that is unknown or has ended.

        Parameters
        ----------
        at : time of its arrival; None for now
        """
        now = time.time() if at is None else at
        kind, run = message["kind"], self.by_id.get(message["run"])
        takes = {"iterations": self._iterate, "checkpoint": self._keep, "recovery": self._recover, "end": self._end}
        if kind == "begin":
            self._begin(message, now)
        elif run is None or not run.is_running or kind not in ("phase", *takes):
            return
        elif kind == "phase":
            run.changed, run.phase = now, message["phase"]
        else:
            run.changed = now
            takes[kind](run, message)
        self.version += 1

    def lose_client(self, client: str) -> None:
        """End the runs of a client that left, regardless of their progress."""
        for run in self.by_id.values():
            if run.client == client and run.is_running:
                self.hear({"kind": "end", "run": run.run, "status": "abandoned", "error": "its client disconnected"})

    def lose_worker(self, address: str) -> None:
        """Note the loss of a worker in its runs."""
        lost = [(run, worker) for run in self.by_id.values() if run.is_running for worker in run.workers]
        noted = [(run, worker["name"]) for run, worker in lost if worker["address"] == address]
        for run, name in noted:
            _note(run, f"worker {name} ({address}) left the cluster")
        self._counters["workers_lost"].inc(bool(noted))  # once, even if several runs used it
        self.version += len(noted)

    def _begin(self, message: dict[str, Any], now: float) -> None:
        names = ("run", "operation", "matrix", "options", "client", "executor", "transport", "backend", "workers")
        what = {name: message[name] for name in names} | {"threshold": message["threshold"] or None}
        run = RunState(**what, began=now, changed=now)
        self.by_id[run.run], operation = run, run.operation
        # All series of the operation are created, if only as zeros: rates would miss its first run otherwise.
        values = {"runs_ended": ENDS, "recoveries": RECOVERIES, "run_phase_seconds": RUN_PHASES}
        for name, metric in (self._counters | self._histograms).items():
            for value in values.get(name, [None]):
                if name != "workers_lost":
                    metric.labels(*filter(None, (operation, value)))
        self._active.labels(operation).set_function(
            lambda: sum(own.is_running and own.operation == operation for own in self.by_id.values())
        )
        self._count("runs_started", 1, operation)
        # Ended runs are dropped first, then the oldest, as the sort is stable.
        for old in sorted(self.by_id.values(), key=lambda old: old.is_running)[: max(0, len(self.by_id) - RUNS_KEPT)]:
            del self.by_id[old.run]

    def _count(self, name: str, n: float, *labels: str) -> None:
        self._counters[name].labels(*labels).inc(n)

    def _restart(self, run: RunState, epoch: int, first: int) -> None:
        """Begin a new epoch at an iteration, dropping later points of the curves."""
        self._count("run_restarts", 1, run.operation)  # earlier restarts were counted with earlier runs
        run.restarts = epoch
        run.changes, run.rates = ({i: y for i, y in own.items() if i < first} for own in (run.changes, run.rates))
        run.iterations = first - 1

    def _recover(self, run: RunState, message: dict[str, Any]) -> None:
        """Record a recovery with other workers. Sums of workers are kept if their number is unchanged."""
        told = message["recovery"]
        self._count("recoveries", 1, run.operation, told["kind"])
        run.transport, run.backend = message["transport"], message["backend"]
        n_before, run.workers = run.n_workers, message["workers"]
        if run.n_workers != n_before:
            run.clear_workers()
        if message["epoch"] > run.restarts:
            self._restart(run, message["epoch"], told["resumed_after"] + 1)
        _note(run, f"{told['error']}; resumed after iteration {told['resumed_after']:,} on {run.n_workers} workers")

    def _iterate(self, run: RunState, message: dict[str, Any]) -> None:
        last, ranks = message["iteration"][-1], [*message["ranks"]]  # Dask passes lists on as tuples
        if message["epoch"] < run.restarts:  # late, from a worker that was silent: ranks may have changed
            return
        if message["epoch"] > run.restarts:
            self._restart(run, message["epoch"], message["first"])
        n = last - message["first"] + 1
        seconds = np.array([message[f"{phase}_s"] for phase in PHASES]).sum(axis=2)
        run.step_s[:, ranks] += seconds
        run.last_step_s[:, ranks] = seconds / n
        run.n_told[ranks] += n
        received = np.array(message["exchanged_bytes"]).sum(axis=1)
        run.exchanged_bytes[ranks] += received
        run.held_bytes[ranks] = message["held_bytes"]
        self._count("exchanged_bytes", float(received.sum()), run.operation)
        for rank, taken in zip(ranks, message["taken"], strict=False):  # empty if the client iterates
            for where, name in USED.items():
                run.used_bytes[where][rank] = taken.get(name, 0)
        # Workers that iterate together report equal changes; of those that share out vectors, the largest is shown.
        for iteration, change in zip(message["iteration"], message["change"], strict=True):
            if iteration > run.iterations or iteration in run.changes:
                run.changes[iteration] = max(change, run.changes.get(iteration, change))
        if last > run.iterations:
            run.phase, run.iterations = "iterate", last
            elapsed_s = float(seconds[:, 0].sum())  # of the first worker that reports it
            run.rates[last] = n / elapsed_s if elapsed_s > 0 else math.nan
            for curve in (run.changes, run.rates):
                for iteration in list(curve)[:-MOST_POINTS]:
                    del curve[iteration]
            self._count("iterations", n, run.operation)
            self._count("edges", n * run.edges, run.operation)

    def _keep(self, run: RunState, message: dict[str, Any]) -> None:
        """Record a checkpoint: its iteration, its seconds and its bytes in all; or its failure."""
        if message["error"] is not None:
            self._count("checkpoint_failures", 1, run.operation)
            _note(run, f"checkpoint after iteration {message['iteration']} failed: {message['error']}")
            return
        run.checkpoints += 1
        run.checkpoint_iteration, run.checkpointed = message["iteration"], run.changed
        self._count("checkpoints", 1, run.operation)
        self._count("checkpoint_bytes", message["n_bytes"], run.operation)
        self._histograms["checkpoint_seconds"].labels(run.operation).observe(message["seconds"])

    def _end(self, run: RunState, message: dict[str, Any]) -> None:
        run.status, run.seconds = message["status"], message.get("seconds", {})
        run.transport = message.get("transport") or run.transport
        for where, name in USED.items():
            if name in message.get("memory", {}):
                run.used_bytes[where][:] = message["memory"][name]
        if message["error"]:
            _note(run, message["error"])
        self._count("runs_ended", 1, run.operation, message["status"])
        for phase, elapsed_s in run.seconds.items():
            self._histograms["run_phase_seconds"].labels(run.operation, phase).observe(elapsed_s)


def _note(run: RunState, error: str) -> None:
    run.errors = [*run.errors, error][-MOST_ERRORS:]
