"""Runs of all clients of a cluster, as known to its scheduler, and their cancellation."""

from __future__ import annotations

import time
from typing import Any

from distributed import Client

from mgspmv.cluster import cancellation
from mgspmv.cluster.agent import ABORT_RUN_OP
from mgspmv.cluster.dask_cluster import Cluster
from mgspmv.cluster.publish import TOPIC
from mgspmv.monitor.plugin import RunsPlugin

LOOK_S = 0.2
"""Seconds between two checks whether a cancelled run has ended."""


def list_known_runs(client: Client) -> list[dict[str, Any]]:
    """Return the last runs of a cluster as JSON values, the newest first; an empty list if there was no run yet.

    `run`, `operation`, `state`, `is_running`, `matrix`, `workers` (their number), `iterations`, `change`, `began`
    (seconds since 1970, by the clock of the scheduler), `seconds` from then to the last message,
    `checkpoint_iteration` and `errors`.
    """
    found: list[dict[str, Any]] = client.run_on_scheduler(_describe_runs)
    return found


def _describe_runs(dask_scheduler: Any) -> list[dict[str, Any]]:
    plugin = dask_scheduler.plugins.get(RunsPlugin.name)
    runs = [] if plugin is None else [*plugin.runs.by_id.values()]
    return [run.describe() for run in reversed(runs)]


def cancel_run(client: Client, run: str, timeout_s: float) -> bool:
    """Cancel a run: ask its client to end it, as by Ctrl-C, and end it on the workers if the client does not in time.

    Returns
    -------
    True if the client ended it.
    """
    client.log_event(cancellation.TOPIC, run)
    deadline = time.monotonic() + timeout_s
    while _is_running(client, run):
        if time.monotonic() > deadline:
            _abort(client, run, timeout_s)
            return False
        time.sleep(LOOK_S)
    return True


def _is_running(client: Client, run: str) -> bool:
    return any(known["run"] == run and known["is_running"] for known in list_known_runs(client))


def _abort(client: Client, run: str, timeout_s: float) -> None:
    reason = f"it was cancelled, and its client did not answer within {timeout_s:g} s"
    cluster = Cluster(client, timeout_s)
    message = {"op": ABORT_RUN_OP, "run": run, "reason": reason, "wait_s": timeout_s / 2}
    cluster.ask_each(cluster.describe_workers(), message, timeout_s)
    # Published from here, as the client of the run does not answer.
    client.log_event(TOPIC, {"kind": "end", "run": run, "status": "abandoned", "error": reason})
