"""Scheduler plugin for Dask: state of the runs, metrics of it, and a page of the dashboard.

A run registers it with any scheduler. `dask scheduler --preload mgspmv.monitor.plugin` loads it at the start.

Metrics, for Prometheus, are on `/metrics` of the scheduler's own server. Counts cover all runs, in constant memory.
Metrics per run cover runs that are active or ended at most `SHOWN_S` ago, and never more than `RUNS_KEPT`.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from distributed import Scheduler
from distributed.diagnostics.plugin import SchedulerPlugin
from prometheus_client import REGISTRY, Metric
from prometheus_client.core import GaugeMetricFamily
from tornado.web import RequestHandler

from mgspmv.cluster import security
from mgspmv.cluster.scheduling import TAG
from mgspmv.cluster.worker_metrics import TOPIC, collect_counts
from mgspmv.monitor.runs import Runs, RunState

TARGETS = "mgspmv/targets"
"""Path of the dashboard, below its prefix, from which the `http_sd_configs` of Prometheus read the addresses of the
workers, whose servers listen on any free port."""
TRIM_EVERY = 50
"""Number of submitted graphs between two calls of `trim_spans`."""

SHOWN_S = 120.0
"""Seconds for which metrics of an ended run are exported: enough for several scrapes."""

BY_WORKER = ("run", "worker", "where")
GAUGES = {
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

logger = logging.getLogger("mgspmv")


class RunsCollector:
    """Metrics of the runs of one scheduler."""

    def __init__(self) -> None:
        self.watched: list[Runs] = []
        """Runs of the schedulers of this process; those of the one that started last are exported."""

    def collect(self) -> Iterator[Metric]:
        """Yield the counts of all runs, and the metrics of single ones."""
        runs = self.watched[-1] if self.watched else Runs()
        yield from collect_counts(runs.registry)
        named = GAUGES | {name: (text, ("run",)) for name, (text, _) in NUMBERS.items()}
        gauges = {name: GaugeMetricFamily(f"mgspmv_{name}", text, labels=own) for name, (text, own) in named.items()}
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
        planned, used = run.planned_bytes(where), run.used_bytes[where]
        if where == "device" and not planned.any() and not used.any():
            continue
        for worker, n_planned, n_used in zip(run.workers, planned, used, strict=True):
            labels = [run.run, worker["name"], where]
            gauges["run_worker_planned_bytes"].add_metric(labels, n_planned)
            if n_used:
                gauges["run_worker_used_bytes"].add_metric(labels, float(n_used))


COLLECTOR = RunsCollector()
"""Collector of this process, which Dask's servers show on `/metrics`."""
REGISTRY.register(COLLECTOR)


class RunsPlugin(SchedulerPlugin):  # type: ignore[misc]  # Dask has no types
    """Plugin that follows the runs of a cluster."""

    name = "mgspmv-monitor"
    idempotent = True

    runs: Runs
    """Runs of the scheduler, set by `start`; clients send the plugin without it."""

    def __init__(self) -> None:
        self._is_started = False
        self._n_graphs = 0
        self.has_page: bool | None = None
        """Whether the scheduler has a dashboard, with the page on runs; None if the page cannot be added to it."""

    async def start(self, scheduler: Scheduler) -> None:
        """Read messages published before, register metrics on `/metrics`, and add the page if there is a dashboard."""
        if self._is_started:  # Dask starts preloaded plugins again
            return
        self._is_started = True
        self.runs = Runs()
        for at, message in scheduler.get_events(TOPIC):
            with suppress(KeyError, TypeError):  # message of another program or another version
                self.runs.hear(message, at)
        COLLECTOR.watched.append(self.runs)
        _add_targets(scheduler)
        try:
            from mgspmv.monitor.page import add_page

            self.has_page = add_page(scheduler, self.runs)
        except Exception:  # dashboard of an unknown version; runs work without the page
            logger.warning("the dashboard has no page on runs", exc_info=True)

    async def close(self) -> None:
        """Remove the metrics of this scheduler's runs."""
        COLLECTOR.watched.remove(self.runs)

    def log_event(self, topic: str, msg: Any) -> None:
        """Process a message of a run; ignore other topics."""
        if topic == TOPIC:
            self.runs.hear(msg)

    def update_graph(self, scheduler: Scheduler, **kwargs: Any) -> None:
        """Trim the spans of tasks from time to time."""
        self._n_graphs += 1
        if self._n_graphs % TRIM_EVERY == 0:
            trim_spans(scheduler)

    def remove_client(self, scheduler: Scheduler, client: str) -> None:
        """End the runs of a client that left."""
        self.runs.lose_client(client)

    def remove_worker(self, scheduler: Scheduler, worker: str, **kwargs: Any) -> None:
        """Note the loss of a worker in its runs."""
        self.runs.lose_worker(worker)


def list_targets(scheduler: Scheduler) -> list[dict[str, Any]]:
    """Return the address of each worker's server, with the worker's name as a label."""
    served = [(ws, ws.services.get("dashboard")) for ws in scheduler.workers.values()]
    named = [(str(ws.name), f"[{ws.host}]" if ":" in ws.host else ws.host, port) for ws, port in served if port]
    return [{"targets": [f"{host}:{port}"], "labels": {"worker": name}} for name, host, port in named]


def _add_targets(scheduler: Scheduler) -> None:
    """Add the route of worker addresses to the scheduler's server, if it has one."""

    class TargetsHandler(RequestHandler):
        def get(self) -> None:
            self.set_header("Content-Type", "application/json")
            self.write(json.dumps(list_targets(scheduler)))

    served = getattr(scheduler, "http_application", None)
    if served is not None:
        served.add_handlers(".*", [(rf"/(?:.*/)?{TARGETS}", TargetsHandler)])


def trim_spans(scheduler: Scheduler) -> None:
    """Trim mgspmv's spans to task groups that have tasks, and the last finished group of each name.

    Dask adds a group whenever tasks of a name arrive while the scheduler has none, and never removes it.
    """
    spans = scheduler.extensions.get("spans")
    for span in spans.spans_search_by_tag.get(TAG, ()) if spans is not None else ():
        last = {group.name: group for group in sorted(span.groups, key=lambda group: group.stop)}
        span.groups.intersection_update(
            {group for group in span.groups if group in (last[group.name], scheduler.task_groups.get(group.name))}
        )
        if span.metadata is not None:
            del span.metadata["collections"][:-1]


async def dask_setup(scheduler: Scheduler) -> None:
    """Set up the plugin for `--preload`, including the TLS preload, which `--preload` replaces."""
    if security.is_tls_required():
        await security.dask_setup(scheduler)
    await scheduler.register_scheduler_plugin(RunsPlugin(), idempotent=True)
