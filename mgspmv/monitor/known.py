"""What a scheduler knows of the runs on its cluster, whoever began them."""

from __future__ import annotations

import math
from typing import Any

from distributed import Client

from mgspmv.monitor.plugin import RunsPlugin


def list_known_runs(client: Client) -> list[dict[str, Any]]:
    """The last runs of a cluster as JSON values, the newest first; none where no run was there yet.

    `run`, `operation`, `state`, `is_running`, `matrix`, `workers` (how many), `iterations`, `change`, `began` (seconds
    since 1970, by the clock of the scheduler), `seconds` from then to the last message, `checkpoint_iteration` and
    `errors`.
    """
    found: list[dict[str, Any]] = client.run_on_scheduler(_describe_runs)
    return found


def _describe_runs(dask_scheduler: Any) -> list[dict[str, Any]]:
    plugin = dask_scheduler.plugins.get(RunsPlugin.name)
    runs = [] if plugin is None else [*plugin.runs.by_id.values()]
    return [
        {
            "run": run.run,
            "operation": run.operation,
            "state": run.state,
            "is_running": run.is_running,
            "matrix": run.matrix["url"],
            "workers": run.n_workers,
            "iterations": run.iterations,
            "change": run.change if math.isfinite(run.change) else None,
            "began": run.began,
            "seconds": run.elapsed_s,
            "checkpoint_iteration": run.checkpoint_iteration,
            "errors": run.errors,
        }
        for run in reversed(runs)
    ]
