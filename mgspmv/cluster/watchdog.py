"""Watchdog of the tasks of a worker, called by its event loop: it finds those that hang while the loop still answers.

A task shows progress by heartbeats; see `mgspmv.heartbeat`. A task without one for longer than its limit counts as
hanging: clients that wait for it get an error, and the stacks of all threads of the process are logged. The
thread of the task cannot be ended: while it hangs, runs leave the worker out. If it resumes, the worker is used again.

Limit of a task in seconds without a heartbeat, never less than a worker may be silent:

    in iterations     `SLOWEST` times the slowest iteration of the run so far
    otherwise         `BEGIN_S` plus the time of its products at `SLOW_PER_S`; each piece read or written is a heartbeat

A task that waits for other workers may do so `WAITS` times as long: by then those that work, and hang, were found.
Time in which the process was stopped, or was not scheduled, does not count.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from distributed import Worker

from mgspmv.heartbeat import Heartbeat, make_heartbeat
from mgspmv.logs import WORKERS

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
WAITS = 2.0
"""Ratio of the limits of a task that waits for other workers and of one that works."""
Hang = tuple[str, str, str, int | None]
"""Phase of a hanging task; `what` and `why` for `mgspmv.exchange.peer_comm.worker_error`; and the rank of the worker
that they are about, if it is another one, which keeps this one waiting."""

_DASK_LOG = logging.getLogger("distributed.worker.mgspmv")
"""Logger whose records appear in Dask's log of a worker."""


@dataclass(eq=False)
class WatchedTask:
    """A task that is watched."""

    heartbeat: Heartbeat
    patience: float
    n_seen: int = 0
    idle_s: float = 0.0
    """Seconds without a heartbeat, at the last check or at the one that found the hang."""
    hangs: bool = False

    @property
    def limit_s(self) -> float:
        """Maximum seconds between two heartbeats."""
        heartbeat = self.heartbeat
        slowest_s = heartbeat.slowest_s
        own_s = BEGIN_S + heartbeat.n_terms / SLOW_PER_S if slowest_s is None else SLOWEST * slowest_s
        return max(self.patience, own_s) * (WAITS if heartbeat.waits else 1.0)

    def look(self, elapsed_s: float) -> bool:
        """Return True if the task newly counts as hanging, `elapsed_s` seconds after the last check."""
        if (n := self.heartbeat.n) != self.n_seen:
            self.n_seen, self.idle_s, self.hangs = n, 0.0, False
        elif not self.hangs:
            self.idle_s += elapsed_s
            self.hangs = self.idle_s > self.limit_s
            return self.hangs
        return False

    def describe(self) -> Hang:
        """Describe the hang of this task."""
        heartbeat = self.heartbeat
        if not heartbeat.waits:
            what = f"made no progress for {self.idle_s:.3g} s"
            return heartbeat.phase, what, "its log has the stacks of its threads", None
        if heartbeat.awaited is None:
            what = f"waited {self.idle_s:.3g} s for other workers, and none made progress"
            return heartbeat.phase, what, "the log of each has the stacks of its threads", None
        what = f"was silent for {self.idle_s:.3g} s"
        return heartbeat.phase, what, "it hangs, or other tasks occupy its threads", heartbeat.awaited


class Watchdog:
    """Watchdog of the tasks of a worker."""

    def __init__(self, worker: Worker) -> None:
        self._worker, self._tasks = worker, set[WatchedTask]()
        self._looked_s = time.monotonic()

    @contextmanager
    def watch(self, patience: float) -> Iterator[None]:
        """Watch the work of this thread within the context.

        Parameters
        ----------
        patience : seconds that a worker may be silent
        """
        with make_heartbeat() as heartbeat:
            task = WatchedTask(heartbeat, patience)
            self._tasks.add(task)
            try:
                yield
            finally:
                self._tasks.remove(task)

    def list_hangs(self) -> list[WatchedTask]:
        """Return the tasks that hang now."""
        return [task for task in [*self._tasks] if task.hangs]

    def look(self) -> None:
        """Find the tasks that hang, and log them, with the stacks of all threads."""
        now_s = time.monotonic()
        # A longer pause means that the process was stopped.
        elapsed_s, self._looked_s = min(now_s - self._looked_s, 2 * LOOK_S), now_s
        for task in [*self._tasks]:
            if task.look(elapsed_s):
                (phase, what, _, awaited), name, stacks = task.describe(), self._worker.name, describe_threads()
                about = f"worker {name}" if awaited is None else f"worker {name} waits for rank {awaited}, which"
                WORKERS.error("%s %s", about, what, extra={"worker": name, "phase": phase, "stacks": stacks})
                _DASK_LOG.error("%s %s (during %s)\n%s", about, what, phase or "a task", stacks)


def describe_threads() -> str:
    """Return the stacks of all threads of this process as text."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sys._current_frames().items()
    return "\n".join(f"thread {names.get(k, k)}:\n{''.join(traceback.format_stack(frame))}" for k, frame in frames)
