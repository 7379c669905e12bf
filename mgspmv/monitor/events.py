"""Messages of a run on a cluster to its scheduler: start, progress and end; and the runs that the scheduler knows.

    begin        here         operation, workers, and the plan for them
    phase        here         phases outside of iterations, such as waiting
    iterations   the workers  after each task, see `mgspmv.cluster.worker_metrics`; of the executor `tasks`, here
    checkpoint   here         iteration after which the state was saved, its seconds and bytes, or the error
    recovery     here         workers that the run resumed with, and the cause
    end          here         status or error, seconds by phase, and memory

`mgspmv.monitor.runs` derives the state of all runs from them. A run continues if the scheduler cannot be reached.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from typing import Any, Literal

from distributed import Client

from mgspmv.checkpoints import CheckpointReport
from mgspmv.cluster.dask_cluster import Cluster
from mgspmv.cluster.matrix import DistributedMatrix
from mgspmv.cluster.scheduling import CANCEL_TOPIC, listen_for_cancel
from mgspmv.cluster.worker_metrics import TOPIC, pack_events
from mgspmv.errors import SchedulerNotFoundError, hide_secrets
from mgspmv.model import Event, Progress, Recovery
from mgspmv.monitor.plugin import RunsPlugin
from mgspmv.monitor.runs import PAGE
from mgspmv.solvers.batch import BatchTask
from mgspmv.solvers.options import RankTask
from mgspmv.solvers.power import PowerTask
from mgspmv.solvers.run import Outcome

TELL_S = 5.0
"""Seconds to wait for the scheduler to accept a message or the plugin."""
DASHBOARD_S = 30.0
"""Seconds to wait for the scheduler to answer a command that prints the address of the dashboard."""
LOOK_S = 0.2
"""Seconds between two checks whether a cancelled run has ended."""

logger = logging.getLogger("mgspmv")

AnyTask = RankTask | BatchTask | PowerTask
Executor = Literal["supersteps", "tasks"]


class EventPublisher:
    """Publisher of one run's messages to the scheduler of its matrices; parameters as in `publish_run`."""

    def __init__(
        self, matrices: Sequence[DistributedMatrix], task: AnyTask, operation: str, executor: Executor
    ) -> None:
        began = time.perf_counter()
        self._matrices, self._run, self._executor, self._client = matrices, task.run, executor, matrices[0].client
        self.is_heard = install_monitor(self._client)
        """Whether the scheduler answers."""
        info, shape, nnz = matrices[0].info, matrices[0].shape, matrices[0].nnz
        what: dict[str, Any] = {"operation": operation, "executor": executor, "threshold": float(task.threshold)}
        # Plain types, which any program can read.
        plain = {name: value for name, value in vars(task.options).items() if isinstance(value, str | int | float)}
        plain |= {name: str(v) for name, v in plain.items() if isinstance(v, float) and not math.isfinite(v)}
        what |= {"options": plain, "client": self._client.id}
        what["matrix"] = {"url": hide_secrets(str(info.url)), "shape": [int(n) for n in shape], "nnz": int(nnz)}
        self._notify("begin", **what, **self._describe_places())
        self._begin_s = time.perf_counter() - began  # longest for the first run of a cluster

    def publish_recovery(self, recovery: Recovery, epoch: int) -> None:
        """Publish a recovery of the run with other workers; `epoch` is that of the events that follow."""
        self._notify("recovery", epoch=epoch, recovery=asdict(recovery), **self._describe_places())

    def _describe_places(self) -> dict[str, Any]:
        first = self._matrices[0]
        workers = describe_workers(self._matrices)
        return {"transport": first.transport, "backend": first.backend, "workers": workers}

    def report(self, on_progress: Progress) -> Progress:
        """Return `on_progress` extended to publish phases too."""

        def notify(phase: str, done: int, total: int | None) -> None:
            on_progress(phase, done, total)
            if total is None:
                self._notify("phase", phase=phase)

        return notify

    def follow(self, emit: Callable[[Event], None]) -> Callable[[Event], None]:
        """Return `emit` extended to publish iterations too, if this process drives them."""
        if self._executor != "tasks":
            return emit

        def notify(event: Event) -> None:
            emit(event)
            self._notify(**pack_events([event], range(len(event.product_s))), taken=[])

        return notify

    def publish_checkpoint(self, kept: CheckpointReport) -> None:
        """Publish a checkpoint, or its failure."""
        self._notify("checkpoint", **asdict(kept))

    def end(self, status: str, outcome: Outcome) -> None:
        """Publish the end of the run; its start includes the seconds of publishing it."""
        outcome.seconds["start"] = outcome.seconds.get("start", 0.0) + self._begin_s
        plain = {phase: float(elapsed_s) for phase, elapsed_s in outcome.seconds.items()}
        taken = {name: [int(n_bytes) for n_bytes in of_workers] for name, of_workers in outcome.memory.items()}
        self._notify("end", status=str(status), error=None, seconds=plain, memory=taken, transport=outcome.transport)

    def fail(self, error: BaseException) -> None:
        """Publish the error that ended the run, unless the error is that the scheduler does not answer."""
        if isinstance(error, SchedulerNotFoundError):
            return
        said = f"{type(error).__name__}: {error}".removesuffix(": ")
        self._notify("end", status="failed", error=said, seconds={}, memory={}, transport=None)

    def _notify(self, kind: str, **fields: Any) -> None:
        if not self.is_heard:
            return
        message = {"kind": kind, "run": self._run} | fields
        try:
            self._client.sync(self._client.log_event, TOPIC, message, callback_timeout=TELL_S)
        except Exception as error:  # if the scheduler is unreachable, the run raises the error
            self.is_heard = False
            logger.debug("the scheduler does not accept a message of run %s: %r", self._run, error)


@contextmanager
def publish_run(
    matrices: Sequence[DistributedMatrix], task: AnyTask, operation: str, executor: Executor
) -> Iterator[EventPublisher]:
    """Publish a run to the scheduler, from here to the end of the context, and let other clients cancel it meanwhile
    (`mgspmv.cluster.scheduling`).

    The caller publishes the end of a successful run; a failure is published if the context ends with an error.

    Parameters
    ----------
    operation : name of the computation
    executor : for `tasks`, this process publishes the iterations
    """
    news = EventPublisher(matrices, task, operation, executor)
    try:
        with listen_for_cancel(matrices[0].client, task.run) if news.is_heard else nullcontext():
            yield news
    except BaseException as error:
        news.fail(error)
        raise


def install_monitor(client: Client, timeout_s: float = TELL_S) -> bool:
    """Install the plugin that keeps and shows the state of runs on the scheduler, if it is missing; warn on failure.

    Parameters
    ----------
    timeout_s : seconds for the scheduler to answer

    Returns
    -------
    Whether the scheduler answers.
    """
    if client.scheduler is None:  # the client is closed, and the run raises the error
        return False
    try:
        client.sync(client.register_plugin, RunsPlugin(), callback_timeout=timeout_s)
    except (OSError, TimeoutError) as error:  # if the scheduler is unreachable, the run raises the error
        logger.debug("the scheduler does not answer: %r", error)
        return False
    except Exception as error:
        logger.warning(
            "the dashboard has no page on runs: the scheduler did not load its plugin (%s: %s); install the same "
            "version of mgspmv on the scheduler, and set distributed.scheduler.pickle to true",
            type(error).__name__,
            error,
        )
    return True


def find_dashboard(client: Client) -> str | None:
    """Return the URL of the page on runs, which is added to the dashboard if it is missing; the URL of Dask's dashboard
    if the page cannot be added; None if the scheduler has no dashboard."""
    try:
        link = client.dashboard_link
    except KeyError:  # raised by Dask for a scheduler that it did not start
        return None
    if not link or not install_monitor(client, DASHBOARD_S):
        return link or None
    try:
        has_page: bool | None = client.sync(client.run_on_scheduler, _has_page, callback_timeout=DASHBOARD_S)
    except Exception as error:  # the scheduler runs no functions of clients; the run works without the page
        logger.debug("it is unknown whether the dashboard has a page on runs: %r", error)
        has_page = None
    if has_page is False:  # no dashboard; Dask has an address anyway
        return None
    return f"{link.removesuffix('/status')}/{PAGE}" if has_page and link.endswith("/status") else link


def _has_page(dask_scheduler: Any) -> bool | None:
    plugin = dask_scheduler.plugins.get(RunsPlugin.name)
    return None if plugin is None else plugin.has_page


def describe_workers(matrices: Sequence[DistributedMatrix]) -> list[dict[str, Any]]:
    """Describe the workers of a run, by rank: rows of the first matrix, entries and planned bytes of all matrices."""
    first = matrices[0]
    plans = zip(*(matrix.plan.workers for matrix in matrices), strict=False)  # the run checks that workers match
    return [
        {
            "name": str(member.name),
            "address": member.address,
            "rows": own[0].stop - own[0].start,
            "nnz": sum(w.nnz for w in own),
            "host_bytes": sum(w.host_bytes if w.has_device else w.memory_bytes for w in own),
            "device_bytes": sum(w.device_bytes for w in own if w.has_device),
        }
        for member, own in zip(first.members, plans, strict=False)
    ]


# --- runs of all clients ---------------------------------------------------------------------------------------------


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
    return [] if plugin is None else [run.describe() for run in reversed(plugin.runs.by_id.values())]


def cancel_run(client: Client, run: str, timeout_s: float) -> bool:
    """Cancel a run: ask its client to end it, as by Ctrl-C, and end it on the workers if the client does not in time.

    Returns
    -------
    True if the client ended it.
    """
    client.log_event(CANCEL_TOPIC, run)
    deadline = time.monotonic() + timeout_s
    while any(known["run"] == run and known["is_running"] for known in list_known_runs(client)):
        if time.monotonic() > deadline:
            reason = f"it was cancelled, and its client did not answer within {timeout_s:g} s"
            cluster = Cluster(client, timeout_s)
            cluster.abort(run, cluster.describe_workers(), reason)
            # Published from here, as the client of the run does not answer.
            client.log_event(TOPIC, {"kind": "end", "run": run, "status": "abandoned", "error": reason})
            return False
        time.sleep(LOOK_S)
    return True
