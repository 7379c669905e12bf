"""Scheduler plugin for Dask: state of the runs, metrics of it, and a page of the dashboard.

A run registers it with any scheduler. `dask scheduler --preload mgspmv.monitor.plugin` loads it at the start.
"""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from typing import Any

from distributed import Scheduler
from distributed.diagnostics.plugin import SchedulerPlugin
from tornado.web import RequestHandler

from mgspmv.cluster import tls
from mgspmv.cluster.publish import TOPIC
from mgspmv.cluster.spans import TAG
from mgspmv.monitor.run_metrics import COLLECTOR
from mgspmv.monitor.runs import Runs

TARGETS = "mgspmv/targets"
"""Path of the dashboard, below its prefix, from which the `http_sd_configs` of Prometheus read the addresses of the
workers, whose servers listen on any free port."""
TRIM_EVERY = 50
"""Number of submitted graphs between two calls of `trim_spans`."""

logger = logging.getLogger("mgspmv")


class RunsPlugin(SchedulerPlugin):  # type: ignore[misc]  # Dask has no types
    """Plugin that follows the runs of a cluster."""

    name = "mgspmv-monitor"
    idempotent = True

    runs: Runs
    """Runs of the scheduler, set by `start`; clients send the plugin without it."""

    def __init__(self) -> None:
        self._is_started = False
        self._n_graphs = 0

    async def start(self, scheduler: Scheduler) -> None:
        """Read messages published before, register metrics on `/metrics`, and add the page if there is a dashboard."""
        if self._is_started:  # Dask starts preloaded plugins again
            return
        self._is_started = True
        self.runs = Runs()
        for at, message in scheduler.get_events(TOPIC):
            with suppress(KeyError, TypeError):  # message of another program or another version
                self.runs.hear(message, at)
        COLLECTOR.watch(self.runs)
        COLLECTOR.register()
        _add_targets(scheduler)
        try:
            from mgspmv.monitor.page import add_page

            add_page(scheduler, self.runs)
        except Exception:  # dashboard of an unknown version; runs work without the page
            logger.warning("the dashboard has no page on runs", exc_info=True)

    async def close(self) -> None:
        """Remove the metrics of this scheduler's runs."""
        COLLECTOR.forget(self.runs)

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


class TargetsHandler(RequestHandler):
    """Handler that returns the addresses of the servers of all connected workers."""

    def initialize(self, scheduler: Scheduler) -> None:
        """Store the scheduler passed by the route."""
        self._scheduler = scheduler

    def get(self) -> None:
        """Return the addresses in JSON."""
        self.set_header("Content-Type", "application/json")
        self.write(json.dumps(list_targets(self._scheduler)))


def list_targets(scheduler: Scheduler) -> list[dict[str, Any]]:
    """Return the address of each worker's server, with the worker's name as a label."""
    served = [(ws, ws.services.get("dashboard")) for ws in scheduler.workers.values()]
    return [
        {"targets": [_join_address(ws.host, port)], "labels": {"worker": str(ws.name)}} for ws, port in served if port
    ]


def _add_targets(scheduler: Scheduler) -> None:
    """Add the route of worker addresses to the scheduler's server, if it has one."""
    served = getattr(scheduler, "http_application", None)
    if served is not None:
        served.add_handlers(".*", [(rf"/(?:.*/)?{TARGETS}", TargetsHandler, {"scheduler": scheduler})])


def _join_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


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
    if tls.is_tls_required():
        await tls.dask_setup(scheduler)
    await scheduler.register_scheduler_plugin(RunsPlugin(), idempotent=True)
