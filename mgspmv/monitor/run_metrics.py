"""Metrics of the runs of a cluster, for Prometheus: on `/metrics` of the scheduler's own server.

Counts cover all runs, in constant memory. Metrics per run cover runs that are active or ended at most `SHOWN_S` ago,
and never more than `RUNS_KEPT`.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily

from mgspmv.metrics import ProcessMetrics, collect_registry
from mgspmv.monitor.runs import Runs, RunState

SHOWN_S = 120.0
"""Seconds for which metrics of an ended run are exported: enough for several scrapes."""

BY_WORKER = ("run", "worker", "where")
GAUGES = {
    "runs_active": ("Runs in progress, including queued ones.", ("operation",)),
    "run_info": (
        "1 for each run, with its properties as labels.",
        ("run", "operation", "matrix", "executor", "transport", "backend"),
    ),
    "run_state": ("1 for the current phase of a run, or its final status.", ("run", "state")),
    "run_worker_planned_bytes": ("Planned peak bytes of rows and vectors of a worker.", BY_WORKER),
    "run_worker_used_bytes": (
        "Bytes of the worker's process: peak on the host, including Python, and current on the device.",
        BY_WORKER,
    ),
}
"""Help and labels of metrics computed from the state of the runs at each scrape, by name without `mgspmv_`."""
NUMBERS = {
    "run_active": ("1 for a run in progress, 0 for one that ended.", "is_running"),
    "run_start_timestamp_seconds": ("Start of the run, in seconds since 1970.", "began"),
    "run_last_message_timestamp_seconds": ("Last message of the run or its workers, in seconds since 1970.", "changed"),
    "run_iterations": ("Iterations that the run has completed.", "iterations"),
    "run_change": ("Change of the last iteration, in its norm.", "change"),
    "run_tolerance": ("Change below which the run has converged, in that norm.", "threshold"),
    "run_edges_per_second": ("Stored entries multiplied per second in the last message's iterations.", "edges_per_s"),
    "run_imbalance_ratio": ("Product time of the slowest worker over the mean, in the last iterations.", "imbalance"),
    "run_checkpoints": ("Checkpoints that the run has written.", "checkpoints"),
    "run_last_checkpoint_timestamp_seconds": ("Last checkpoint of the run, in seconds since 1970.", "checkpointed"),
}
"""Help of metrics of one number per run, and the attribute of `RunState` that holds it; not exported while unknown."""


class RunsCollector(ProcessMetrics):
    """Metrics of the runs of one scheduler."""

    def __init__(self) -> None:
        super().__init__()
        self._watched: list[Runs] = []

    @property
    def runs(self) -> Runs:
        """Runs of the scheduler that started last in this process."""
        return self._watched[-1] if self._watched else Runs()

    def watch(self, runs: Runs) -> None:
        """Add the runs of a scheduler that starts."""
        self._watched.append(runs)

    def forget(self, runs: Runs) -> None:
        """Remove the runs of a scheduler that ends."""
        self._watched = [each for each in self._watched if each is not runs]

    def collect(self) -> Iterator[Metric]:
        """Yield the counts of all runs, and the metrics of single ones."""
        runs = self.runs
        yield from collect_registry(runs.counts.registry)
        named = GAUGES | {name: (text, ("run",)) for name, (text, _) in NUMBERS.items()}
        gauges = {name: GaugeMetricFamily(f"mgspmv_{name}", text, labels=own) for name, (text, own) in named.items()}
        active = Counter(run.operation for run in runs.by_id.values() if run.is_running)
        for operation in runs.begun:
            gauges["runs_active"].add_metric([operation], active[operation])
        oldest = time.time() - SHOWN_S
        for run in runs.by_id.values():
            if run.is_running or run.changed >= oldest:
                _add_run(gauges, run)
        yield from gauges.values()


def _add_run(gauges: dict[str, GaugeMetricFamily], run: RunState) -> None:
    how = [run.executor, run.transport or "", run.backend or ""]
    gauges["run_info"].add_metric([run.run, run.operation, run.matrix["url"], *how], 1)
    gauges["run_state"].add_metric([run.run, run.state], 1)
    for name, (_, attribute) in NUMBERS.items():
        value = getattr(run, attribute)
        if value is not None and not math.isnan(value):
            gauges[name].add_metric([run.run], float(value))
    for where in ("host", "device"):
        planned, used = run.planned_bytes(where), run.used_bytes(where)
        if where == "device" and not planned.any() and not used.any():
            continue
        for worker, n_planned, n_used, taken in zip(run.workers, planned, used, run.taken, strict=True):
            labels = [run.run, worker["name"], where]
            gauges["run_worker_planned_bytes"].add_metric(labels, n_planned)
            if taken:
                gauges["run_worker_used_bytes"].add_metric(labels, n_used)


COLLECTOR = RunsCollector()
"""Collector of this process."""
