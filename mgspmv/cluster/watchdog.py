"""Thread in each worker process that finds its hanging tasks, while the worker's event loop still answers.

A task shows progress by heartbeats; see `mgspmv.heartbeat`. A task without one for longer than its limit counts as
hanging: clients and workers that wait for it get an error, and the stacks of all threads of the process are logged. The
thread of the task cannot be ended: while it hangs, runs leave the worker out. If it resumes, the worker is used again.

Limit of a task in seconds without a heartbeat, never less than a worker may be silent:

    in iterations     `SLOWEST` times the slowest iteration of the run so far
    otherwise         `BEGIN_S` plus the time of its products at `SLOW_PER_S`; each piece read or written is a heartbeat

Time in which the process was stopped, or was not scheduled, does not count.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from distributed import get_worker

from mgspmv.errors import StoreError, add_to_message
from mgspmv.heartbeat import Heartbeat, make_heartbeat
from mgspmv.logs import WORKERS
from mgspmv.os_errors import is_operators, translating

LOOK_S = 0.5
"""Seconds between two checks of the tasks."""
SLOWEST = 20.0
"""Maximum ratio of the time of an iteration to that of the slowest one so far. Other processes on the machine, and a
hot processor, slow it down by less."""
BEGIN_S = 300.0
"""Seconds without a heartbeat outside iterations: a compiler without a cache on a busy machine takes up to a minute per
kernel, and a piece of 16 MiB takes this long at 60 kB/s."""
SLOW_PER_S = 1e7
"""Multiplications per second of the slowest worker: a hundredth of the rate of one thread."""

_DASK_LOG = logging.getLogger("distributed.worker.mgspmv")
"""Logger whose records appear in Dask's log of a worker."""


@dataclass(eq=False)
class WatchedTask:
    """A task that is watched."""

    worker: Any
    """Worker of the task, a `distributed.Worker`."""
    heartbeat: Heartbeat
    patience: float
    n_seen: int = 0
    idle_s: float = 0.0
    """Seconds without a heartbeat, as of the last check or as of the one that found the hang."""
    hangs: bool = False

    @property
    def limit_s(self) -> float:
        """Maximum seconds between two heartbeats."""
        heartbeat = self.heartbeat
        if heartbeat.slowest_s is None:
            return max(self.patience, BEGIN_S + heartbeat.n_terms / SLOW_PER_S)
        return max(self.patience, SLOWEST * heartbeat.slowest_s)

    def look(self, elapsed_s: float) -> bool:
        """Return True if the task newly counts as hanging, `elapsed_s` seconds after the last check."""
        if (n := self.heartbeat.n) != self.n_seen:
            self.n_seen, self.idle_s, self.hangs = n, 0.0, False
        elif not self.hangs:
            self.idle_s += elapsed_s
            self.hangs = self.idle_s > self.limit_s
            return self.hangs
        return False

    def describe(self) -> tuple[str, str, str]:
        """Return the phase of a hanging task, and `what` and `why` for `mgspmv.exchange.peer_comm.worker_error`."""
        if self.heartbeat.waits:
            what = f"waited {self.idle_s:.3g} s for other workers, and none is working"
            return self.heartbeat.phase, what, "the log of each has the stacks of its threads"
        what = f"made no progress for {self.idle_s:.3g} s"
        return self.heartbeat.phase, what, "its log has the stacks of its threads"


class Watchdog:
    """Watchdog of the tasks of all workers of a process, with a thread while any task runs."""

    def __init__(self) -> None:
        self._tasks: set[WatchedTask] = set()
        self._lock, self._is_watching = threading.Lock(), False

    @contextmanager
    def watch(self, worker: Any, patience: float) -> Iterator[Heartbeat]:
        """Watch the work of this thread for a `distributed.Worker` within the context.

        Parameters
        ----------
        patience : seconds that a worker may be silent
        """
        with make_heartbeat() as heartbeat:
            task = WatchedTask(worker, heartbeat, patience)
            try:
                self._begin(task)
                yield heartbeat
            finally:
                with self._lock:
                    self._tasks.remove(task)

    def list_hangs(self, worker: Any) -> list[WatchedTask]:
        """Return the tasks of a worker that hang now."""
        with self._lock:
            return [task for task in self._tasks if task.worker is worker and task.hangs]

    def look(self, elapsed_s: float) -> None:
        """Find the tasks that hang, `elapsed_s` seconds after the last check."""
        with self._lock:
            found = [task for task in self._tasks if task.look(elapsed_s)]
        for task in found:
            _log_stalled(task)

    def _begin(self, task: WatchedTask) -> None:
        with self._lock:
            self._tasks.add(task)
            if not self._is_watching:
                threading.Thread(target=self._run, name="mgspmv-watchdog", daemon=True).start()
                self._is_watching = True

    def _run(self) -> None:
        looked_s = time.monotonic()
        while self._has_tasks():
            time.sleep(LOOK_S)
            now_s = time.monotonic()
            with suppress(Exception):  # logging may run out of memory; queries still report the hang
                self.look(min(now_s - looked_s, 2 * LOOK_S))  # a longer pause means that the process was stopped
            looked_s = now_s

    def _has_tasks(self) -> bool:
        """Return whether tasks are watched; if not, `_begin` starts a new thread for the next one."""
        with self._lock:
            self._is_watching = bool(self._tasks)
            return self._is_watching


def do_watched(patience: float, function: Callable[..., Any], *args: Any) -> Any:
    """Call a function in a watched task; `patience` as in `Watchdog.watch`. The worker is added to errors of the
    operating system that an operator can fix."""
    worker = get_worker()
    with WATCHDOG.watch(worker, patience):
        try:
            with translating():
                return function(*args)
        except StoreError as error:
            if not is_operators(error.__cause__):
                raise
            raise add_to_message(error, f"this is on worker {worker.name}") from error.__cause__


def describe_threads() -> str:
    """Return the stacks of all threads of this process as text."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sys._current_frames().items()
    return "\n".join(f"thread {names.get(k, k)}:\n{''.join(traceback.format_stack(frame))}" for k, frame in frames)


def _log_stalled(task: WatchedTask) -> None:
    """Log the task that hangs, with the stacks of all threads."""
    (phase, what, _), name, stacks = task.describe(), task.worker.name, describe_threads()
    WORKERS.error("worker %s %s", name, what, extra={"worker": name, "phase": phase, "stacks": stacks})
    _DASK_LOG.error("worker %s %s (during %s)\n%s", name, what, phase or "a task", stacks)


WATCHDOG = Watchdog()
"""Watchdog of this process."""
