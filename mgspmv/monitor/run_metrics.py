"""What runs of a cluster did, for Prometheus: on `/metrics` of the scheduler's own server.

Counts are of all runs that there were, and need no more room for more of them. Numbers of single runs are of those that
go on, or ended `SHOWN_S` ago at most, and so of `RUNS_KEPT` at any time.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable

from mgspmv.metrics import Collector, Family, Histogram, Sample
from mgspmv.model import RECOVERIES
from mgspmv.monitor.runs import CHECKPOINT_SECONDS, ENDS, Run, Runs

SHOWN_S = 120.0
"""Seconds that numbers of a run are there after it ended: enough for several scrapes."""

BY_OPERATION = ("operation",)
STARTED = Family("mgspmv_runs_started_total", "counter", "Runs that began.", BY_OPERATION)
ENDED = Family(
    "mgspmv_runs_ended_total",
    "counter",
    "Runs that ended, by how: a status, failed or abandoned.",
    ("operation", "status"),
)
ACTIVE = Family("mgspmv_runs_active", "gauge", "Runs that go on, also those that wait in line.", BY_OPERATION)
RESTARTS = Family(
    "mgspmv_run_restarts_total", "counter", "Restarts of runs, from checkpoints and with other workers.", BY_OPERATION
)
RECOVERIES_MADE = Family(
    "mgspmv_recoveries_total",
    "counter",
    "Runs that went on after a worker was lost or silent, or with workers that joined.",
    ("operation", "kind"),
)
LOST = Family("mgspmv_workers_lost_total", "counter", "Workers that left the cluster during a run of theirs.")
ITERATIONS = Family("mgspmv_iterations_total", "counter", "Iterations, or passes of batches.", BY_OPERATION)
EDGES = Family("mgspmv_edges_total", "counter", "Stored entries that iterations multiplied.", BY_OPERATION)
EXCHANGED = Family("mgspmv_exchanged_bytes_total", "counter", "Bytes of slices that workers received.", BY_OPERATION)
PHASE = Family(
    "mgspmv_run_phase_seconds",
    "histogram",
    "Seconds of phases of runs that ended with a result.",
    ("operation", "phase"),
)
CHECKPOINTS = Family("mgspmv_checkpoints_total", "counter", "Checkpoints that were written.", BY_OPERATION)
CHECKPOINT_BYTES = Family("mgspmv_checkpoint_bytes_total", "counter", "Bytes of checkpoints written.", BY_OPERATION)
CHECKPOINT = Family("mgspmv_checkpoint_seconds", "histogram", "Seconds that writing a checkpoint took.", BY_OPERATION)
CHECKPOINT_FAILURES = Family(
    "mgspmv_checkpoint_failures_total", "counter", "Checkpoints that could not be written.", BY_OPERATION
)

BY_RUN = ("run",)
INFO = Family(
    "mgspmv_run_info",
    "gauge",
    "1 for each run, with what it is.",
    ("run", "operation", "matrix", "drive", "transport", "backend"),
)
STATE = Family(
    "mgspmv_run_state", "gauge", "1 for the phase of a run that goes on, or for how it ended.", ("run", "state")
)
RUN_ACTIVE = Family("mgspmv_run_active", "gauge", "1 for a run that goes on, 0 for one that ended.", BY_RUN)
START = Family("mgspmv_run_start_timestamp_seconds", "gauge", "When the run began, in seconds since 1970.", BY_RUN)
MESSAGE = Family(
    "mgspmv_run_last_message_timestamp_seconds",
    "gauge",
    "When the run or a worker last told of it, in seconds since 1970.",
    BY_RUN,
)
ITERATION = Family("mgspmv_run_iterations", "gauge", "Iterations that the run has made.", BY_RUN)
CHANGE = Family("mgspmv_run_change", "gauge", "Change of the last iteration, in the norm of tol_mode.", BY_RUN)
TOLERANCE = Family("mgspmv_run_tolerance", "gauge", "Change below which the run has converged, in that norm.", BY_RUN)
RATE = Family(
    "mgspmv_run_edges_per_second",
    "gauge",
    "Stored entries multiplied per second in the last message's iterations.",
    BY_RUN,
)
CEILING = Family(
    "mgspmv_run_ceiling_edges_per_second",
    "gauge",
    "What the memories of the devices allow, reading CSR once in an iteration; not known of hosts.",
    BY_RUN,
)
IMBALANCE = Family(
    "mgspmv_run_imbalance_ratio",
    "gauge",
    "Product of the slowest worker over the mean, in the last iterations.",
    BY_RUN,
)
RUN_CHECKPOINTS = Family("mgspmv_run_checkpoints", "gauge", "Checkpoints that the run has written.", BY_RUN)
CHECKPOINTED = Family(
    "mgspmv_run_last_checkpoint_timestamp_seconds",
    "gauge",
    "When the run last wrote a checkpoint, in seconds since 1970.",
    BY_RUN,
)
BY_WORKER = ("run", "worker", "where")
PLANNED = Family(
    "mgspmv_run_worker_planned_bytes",
    "gauge",
    "Bytes of rows and vectors, at most, as planned for a worker.",
    BY_WORKER,
)
USED = Family(
    "mgspmv_run_worker_used_bytes",
    "gauge",
    "Bytes of the worker's process: most on the host, with Python itself, and now on the device.",
    BY_WORKER,
)


class RunsCollector(Collector):
    """Numbers of the runs of one scheduler.

    Parameters
    ----------
    tell_time : seconds since 1970
    """

    families = (
        *(STARTED, ENDED, ACTIVE, RESTARTS, RECOVERIES_MADE, LOST, ITERATIONS, EDGES, EXCHANGED, PHASE),
        *(CHECKPOINTS, CHECKPOINT_BYTES, CHECKPOINT, CHECKPOINT_FAILURES),
        *(INFO, STATE, RUN_ACTIVE, START, MESSAGE, ITERATION, CHANGE, TOLERANCE, RATE, CEILING, IMBALANCE),
        *(RUN_CHECKPOINTS, CHECKPOINTED, PLANNED, USED),
    )

    def __init__(self, tell_time: Callable[[], float] = time.time) -> None:
        super().__init__()
        self._tell_time = tell_time
        self._watched: list[Runs] = []

    @property
    def runs(self) -> Runs:
        """Those of the scheduler that began last, of those that there are in this process."""
        return self._watched[-1] if self._watched else Runs()

    def watch(self, runs: Runs) -> None:
        """Tell of the runs of a scheduler that begins."""
        self._watched.append(runs)

    def forget(self, runs: Runs) -> None:
        """Tell no more of those of one that ends."""
        self._watched = [each for each in self._watched if each is not runs]

    def list_samples(self) -> dict[str, list[Sample]]:
        """As of `Collector`."""
        samples: dict[str, list[Sample]] = {family.name: [] for family in self.families}
        _add_counts(samples, self.runs)
        oldest = self._tell_time() - SHOWN_S
        for run in self.runs.by_id.values():
            if run.is_running or run.changed >= oldest:
                _add_run(samples, run)
        return samples


def _add_counts(samples: dict[str, list[Sample]], runs: Runs) -> None:
    """What is counted of all runs: from the first run of an operation on also that of which there was none."""
    active = Counter(run.operation for run in runs.by_id.values() if run.is_running)
    counts = {
        STARTED: runs.begun,
        ACTIVE: active,
        RESTARTS: runs.restarts,
        ITERATIONS: runs.iterations,
        EDGES: runs.edges,
        EXCHANGED: runs.exchanged_bytes,
        CHECKPOINT_BYTES: runs.checkpoint_bytes,
        CHECKPOINT_FAILURES: runs.checkpoint_failures,
    }
    for family, counted in counts.items():
        samples[family.name] += [((operation,), counted[operation]) for operation in runs.begun]
    for operation in runs.begun:
        written = runs.checkpoint_seconds.get(operation, Histogram(CHECKPOINT_SECONDS))
        samples[CHECKPOINTS.name].append(((operation,), written.count))
        samples[CHECKPOINT.name].append(((operation,), written))
        made = runs.recoveries
        samples[RECOVERIES_MADE.name] += [((operation, kind), made[operation, kind]) for kind in RECOVERIES]
        samples[ENDED.name] += [((operation, end), runs.ended[operation, end]) for end in ENDS]
    samples[PHASE.name] += runs.seconds.items()
    samples[LOST.name].append(((), runs.lost_workers))


def _add_run(samples: dict[str, list[Sample]], run: Run) -> None:
    how = (run.drive, run.transport or "", run.backend or "")
    samples[INFO.name].append(((run.run, run.operation, run.matrix["url"], *how), 1))
    samples[STATE.name].append(((run.run, run.state), 1))
    imbalance = run.bins.imbalance
    numbers = {
        RUN_ACTIVE: run.is_running,
        START: run.began,
        MESSAGE: run.changed,
        ITERATION: run.iterations,
        CHANGE: run.change,
        TOLERANCE: run.threshold or None,
        RATE: run.edges_per_s,
        CEILING: run.ceiling_edges_per_s,
        IMBALANCE: imbalance[-1] if len(imbalance) else None,
        RUN_CHECKPOINTS: run.checkpoints,
        CHECKPOINTED: run.checkpointed,
    }
    for family, value in numbers.items():
        if value is not None and not math.isnan(value):
            samples[family.name].append(((run.run,), float(value)))
    for where in ("host", "device"):
        planned, used = run.planned_bytes(where), run.used_bytes(where)
        if where == "device" and not planned.any() and not used.any():
            continue
        labels = [(run.run, worker["name"], where) for worker in run.workers]
        samples[PLANNED.name] += zip(labels, planned.tolist(), strict=True)
        told = zip(labels, used.tolist(), run.taken, strict=True)
        samples[USED.name] += [(of_worker, n_bytes) for of_worker, n_bytes, taken in told if taken]


COLLECTOR = RunsCollector()
"""That of this process."""
