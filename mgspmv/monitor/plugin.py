"""What a scheduler of Dask keeps of runs: a plugin with their state, metrics of it, and a page of the dashboard.

A run gives it to its scheduler, whoever started that. `dask scheduler --preload mgspmv.monitor.plugin` has it from the
start.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any

from distributed import Scheduler
from distributed.diagnostics.plugin import SchedulerPlugin

from mgspmv.distribute import tls
from mgspmv.distribute.publish import TOPIC
from mgspmv.distribute.spans import TAG
from mgspmv.monitor.run_metrics import COLLECTOR
from mgspmv.monitor.runs import Runs
from mgspmv.monitor.targets import add_targets

TRIM_EVERY = 50
"""Graphs that clients submit between two looks at what spans keep."""

logger = logging.getLogger("mgspmv")


class RunsPlugin(SchedulerPlugin):  # type: ignore[misc]  # Dask has no types
    """Listens to the runs of a cluster."""

    name = "mgspmv-monitor"
    idempotent = True

    runs: Runs
    """Of the scheduler, from its start on; clients send plugins without any."""

    def __init__(self) -> None:
        self._is_started = False
        self._n_graphs = 0

    async def start(self, scheduler: Scheduler) -> None:
        """Take what was published before, count for `/metrics`, and add the page where there is a dashboard."""
        if self._is_started:  # Dask starts what was preloaded again
            return
        self._is_started = True
        self.runs = Runs()
        for at, message in scheduler.get_events(TOPIC):
            with suppress(KeyError, TypeError):  # of another program, or another version of this
                self.runs.hear(message, at)
        COLLECTOR.watch(self.runs)
        COLLECTOR.register()
        add_targets(scheduler)
        try:
            from mgspmv.monitor.page import add_page

            add_page(scheduler, self.runs)
        except Exception:  # of a dashboard that is another than we know; runs do without it
            logger.warning("the dashboard gets no page on runs", exc_info=True)

    async def close(self) -> None:
        """Numbers of runs end with their scheduler."""
        COLLECTOR.forget(self.runs)

    def log_event(self, topic: str, msg: Any) -> None:
        """Take a message; other topics are not ours."""
        if topic == TOPIC:
            self.runs.hear(msg)

    def update_graph(self, scheduler: Scheduler, **kwargs: Any) -> None:
        """Keep the spans of tasks small."""
        self._n_graphs += 1
        if self._n_graphs % TRIM_EVERY == 0:
            trim_spans(scheduler)

    def remove_client(self, scheduler: Scheduler, client: str) -> None:
        """The runs of a client end with it."""
        self.runs.lose_client(client)

    def remove_worker(self, scheduler: Scheduler, worker: str, **kwargs: Any) -> None:
        """Runs say which of their workers are gone."""
        self.runs.lose_worker(worker)


def trim_spans(scheduler: Scheduler) -> None:
    """Keep of each of our spans the task groups that have tasks, and the last one per name of those that had.

    Dask adds one each time that a scheduler without tasks of a name gets some, and keeps all.
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
    """For `--preload`, which takes the place of what the configuration for TLS preloads."""
    if tls.is_tls_required():
        await tls.dask_setup(scheduler)
    await scheduler.register_scheduler_plugin(RunsPlugin(), idempotent=True)
