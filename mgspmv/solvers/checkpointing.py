"""Checkpoints of a run, written between two iterations, from which it can resume; see `mgspmv.checkpoints`.

Every owner of rows writes its slice of x. A checkpoint is complete once all slices are written and it is committed.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Thread
from typing import Any

from mgspmv.checkpoints import (
    Checkpoints,
    RestoredState,
    StateAddress,
    WrittenSlice,
    call_limited,
    describe_failure,
)
from mgspmv.model import Status
from mgspmv.run_progress import BEGINNING, EVERY_S, RunProgress

Write = Callable[[StateAddress], Sequence[WrittenSlice | str]]
"""Function by which all owners of rows write their slices of the last iteration; returns each, or why it failed."""


@dataclass(frozen=True)
class CheckpointReport:
    """Report of a checkpoint that was written, or failed."""

    iteration: int
    """Iteration after which it was written."""
    seconds: float
    """Seconds to write it."""
    n_bytes: int
    """Bytes of the ranks."""
    error: str | None = None
    """Reason of the failure; None for a written checkpoint."""


@dataclass
class Checkpointer:
    """Writer of the checkpoints of one run."""

    checkpoints: Checkpoints
    """Store of the checkpoints."""
    identity: dict[str, Any]
    """Identity of the run, as in `RunProgress`."""
    run: str
    every_s: float = EVERY_S
    """Seconds between checkpoints; 0 writes one after every iteration, or superstep of a cluster."""
    before: RunProgress = BEGINNING
    """Progress that the run resumes from."""
    notify: Callable[[CheckpointReport], None] = lambda kept: None
    """Receiver of the report of each checkpoint, written or failed."""
    blocked_s: float = 0.0
    """Seconds so far that the run waited for checkpoints."""
    kept: RunProgress | None = None
    """Progress at the last complete checkpoint of this run; None before the first."""
    _since_s: float = field(default_factory=lambda: time.monotonic())
    _warned: set[str] = field(default_factory=set)

    def look(self, write: Write, changes: Sequence[float]) -> None:
        """Write a checkpoint between two iterations if it is due; `changes` are those of all iterations of this run."""
        if time.monotonic() - self._since_s >= self.every_s:
            self._write(write, changes, None)

    def end(self, write: Write, changes: Sequence[float], status: Status) -> None:
        """Write the last checkpoint, unless no iteration was made or ranks are not finite."""
        if status != Status.NON_FINITE and changes:
            self._write(write, changes, status)

    def go_back(self) -> RestoredState | None:
        """Restore the last complete checkpoint of this run after a worker was lost; None where there is none yet.

        Raises
        ------
        CheckpointError : checkpoints were written, but none is complete any more; reading them times out
        """
        return None if self.kept is None else call_limited(self.checkpoints.restore)

    def _write(self, write: Write, changes: Sequence[float], status: Status | None) -> None:
        began = time.perf_counter()
        whole = (*self.before.changes, *map(float, changes))
        ended = None if status is None else status.value
        reached = RunProgress(len(whole), whole, self.before.epoch + 1, self.run, self.identity, ended)
        address = self.checkpoints.name_next()
        slices, failures = list[WrittenSlice](), list[str]()
        for written in write(address):
            slices.append(written) if isinstance(written, WrittenSlice) else failures.append(written)
        if failures:  # not waited for, as the place may hang
            Thread(target=self.checkpoints.drop, args=(address.name,), daemon=True).start()
        failure = failures[0] if failures else _try(self.checkpoints.commit, address, slices, reached)
        elapsed_s = time.perf_counter() - began
        if failure is not None:
            self._warn_once(
                "a failure",
                f"the checkpoint of iteration {reached.iteration} cannot be written to {self.checkpoints.url}: "
                f"{failure}; the run continues, and the previous checkpoint is kept",
            )
            self.notify(CheckpointReport(reached.iteration, 0.0, 0, failure))
        else:
            self.kept = reached
            self.notify(CheckpointReport(reached.iteration, elapsed_s, sum(own.n_bytes for own in slices)))
            if left := _try(self.checkpoints.remove_old):
                self._warn_once(
                    "older ones",
                    f"checkpoint written to {self.checkpoints.url}, but older ones cannot be removed: {left}; the run "
                    "continues, and tries again after the next checkpoint",
                )
        self.blocked_s += time.perf_counter() - began
        self._since_s = time.monotonic()

    def _warn_once(self, what: str, said: str) -> None:
        """Warn with a message, the first time that it is about this."""
        if what not in self._warned:
            self._warned.add(what)
            warnings.warn(said, stacklevel=2)


def _try(function: Callable[..., str | None], *args: Any) -> str | None:
    """Call a function of checkpoints; return why it failed, or None."""
    try:
        return call_limited(function, *args)
    except Exception as error:  # libraries of object stores raise errors of other types
        return describe_failure(error)
