"""Checkpoints written in the background of a run, from which it can resume; see `mgspmv.checkpoints`.

Between two iterations every owner of rows copies its slice of x, and writes it during the next ones. A checkpoint is
complete once all slices are written. Where writing takes longer than the interval, there are fewer checkpoints.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

from mgspmv.checkpoints import (
    BEGINNING,
    HANG_S,
    BackgroundThread,
    Checkpoints,
    RestoredState,
    RunProgress,
    StateAddress,
    WrittenSlice,
    describe_failure,
    describe_hang,
)
from mgspmv.errors import CheckpointError
from mgspmv.model import Status

EVERY_S = 30.0
"""Default seconds between checkpoints."""


@dataclass(frozen=True)
class CheckpointReport:
    """Report of a checkpoint that was written, or failed."""

    iteration: int
    """Iteration after which the ranks were copied."""
    seconds: float
    """Seconds from the copy to the last write."""
    n_bytes: int
    """Bytes of the ranks."""
    error: str | None = None
    """Reason of the failure; None for a written checkpoint."""


class Writers(Protocol):
    """Processes that hold the slices of x, and write them."""

    def begin(self, address: StateAddress) -> None:
        """Let each process copy its slice of the last iteration, and begin to write it."""
        ...

    def find_written(self, wait: bool) -> Sequence[WrittenSlice | str] | None:
        """Return the slice that each process wrote, or its error; None while one of them is writing.

        Parameters
        ----------
        wait : until none of them is writing, or the writes have timed out
        """
        ...


@dataclass
class _Writing:
    """Checkpoint that is being written."""

    address: StateAddress
    reached: RunProgress
    began_s: float
    n_bytes: int = 0
    committing: Future[str | None] | None = None
    """Pending commit; returns why older checkpoints could not be removed, or None."""
    is_current: bool = False


@dataclass
class Checkpointer:
    """Writer of the checkpoints of one run; a context manager around the run."""

    checkpoints: Checkpoints
    """Store of the checkpoints."""
    identity: dict[str, Any]
    """Identity of the run, as in `RunProgress`."""
    run: str
    every_s: float = EVERY_S
    """Seconds between checkpoints; 0 begins one as soon as the previous one is written."""
    before: RunProgress = BEGINNING
    """Progress that the run resumes from."""
    notify: Callable[[CheckpointReport], None] = lambda kept: None
    """Receiver of the report of each checkpoint, written or failed."""
    blocked_s: float = 0.0
    """Seconds so far that iterations, or the end of the run, waited for checkpoints."""
    kept: RunProgress | None = None
    """Progress at the last complete checkpoint of this run; None before the first."""
    limit_s: float = HANG_S
    """Seconds without progress after which a call is abandoned, as in `BackgroundThread`."""
    _writing: _Writing | None = None
    _began_s: float = 0.0
    _warned: set[str] = field(default_factory=set)
    _thread: BackgroundThread = field(default_factory=lambda: BackgroundThread("mgspmv-commit"))

    def begin(self) -> None:
        """Start the interval to the first checkpoint, when the iterations begin."""
        self._began_s = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._thread.close()

    def look(self, writers: Writers, changes: Sequence[float]) -> None:
        """Commit a written checkpoint between two iterations, and begin the next one if it is due.

        Parameters
        ----------
        changes : of all iterations of this run
        """
        began = time.perf_counter()
        self._settle(writers, wait=False)
        if self._writing is None and time.monotonic() - self._began_s >= self.every_s:
            self._begin(writers, changes, None)
        self.blocked_s += time.perf_counter() - began

    def end(self, writers: Writers, changes: Sequence[float], status: Status) -> None:
        """Begin the last checkpoint after the last iteration, unless no iteration was made or ranks are not finite."""
        if status == Status.NON_FINITE or not changes:
            return
        began = time.perf_counter()
        self._settle(writers, wait=True)
        self._begin(writers, changes, status)
        self.blocked_s += time.perf_counter() - began

    def finish(self, writers: Writers) -> None:
        """Wait until the last checkpoint is committed, or times out."""
        began = time.perf_counter()
        self._settle(writers, wait=True)
        self.blocked_s += time.perf_counter() - began

    def go_back(self) -> RestoredState | None:
        """Restore the last complete checkpoint of this run after a writer was lost; None where there is none yet.

        A checkpoint that is being written is dropped, unless only its commit is pending.

        Raises
        ------
        CheckpointError : checkpoints were written, but none is complete any more; reading them times out
        """
        own, self._writing = self._writing, None
        if own is not None and own.committing is not None:
            self._finish_commit(own, own.committing)
        elif own is not None:
            self._thread.submit(self.checkpoints.drop, own.address.name)
        return None if self.kept is None else self._restore()

    def _begin(self, writers: Writers, changes: Sequence[float], status: Status | None) -> None:
        self._began_s = time.monotonic()
        whole = (*self.before.changes, *(float(change) for change in changes))
        said = None if status is None else status.value
        reached = RunProgress(len(whole), whole, self.before.epoch + 1, self.run, self.identity, said)
        address = self.checkpoints.name_next()
        self._writing = _Writing(address, reached, time.perf_counter())
        writers.begin(address)

    def _settle(self, writers: Writers, *, wait: bool) -> None:
        """Advance the checkpoint that is being written: collect slices, then commit."""
        own = self._writing
        if own is None:
            return
        if own.committing is None:
            written = writers.find_written(wait)
            if written is None:
                return
            slices = [each for each in written if isinstance(each, WrittenSlice)]
            if failures := [each for each in written if isinstance(each, str)]:
                self._thread.submit(self.checkpoints.drop, own.address.name)
                self._fail(own.reached, failures[0])
                return
            own.n_bytes = sum(each.n_bytes for each in slices)
            own.committing = self._thread.submit(self._commit, own, slices)
        if wait or own.committing.done():
            self._finish_commit(own, own.committing)

    def _commit(self, own: _Writing, slices: Sequence[WrittenSlice]) -> str | None:
        """Commit a checkpoint; return why older ones could not be removed, or None."""
        self.checkpoints.commit(own.address, slices, own.reached)
        own.is_current = True
        return self.checkpoints.remove_old()

    def _finish_commit(self, own: _Writing, committing: Future[str | None]) -> None:
        """Wait until a checkpoint is committed, and report it. A late commit may still succeed, so a failed one is
        removed together with the older ones at the next commit, and not now."""
        self._writing, failure = None, describe_hang(self.limit_s)
        if self._thread.await_done(committing, self.limit_s):
            error = committing.exception()
            failure = (committing.result() or "") if error is None else describe_failure(error)
        if not own.is_current:
            self._fail(own.reached, failure)
            return
        self.kept = own.reached
        self.notify(CheckpointReport(own.reached.iteration, time.perf_counter() - own.began_s, own.n_bytes))
        if failure:
            self._warn_once(
                "older ones",
                f"checkpoint written to {self.checkpoints.url}, but older ones cannot be removed: {failure}; the run "
                "continues, and tries again after the next checkpoint",
            )

    def _restore(self) -> RestoredState | None:
        """Read the last complete checkpoint, with a time limit."""
        thread = BackgroundThread("mgspmv-restore")
        reading = thread.submit(self.checkpoints.restore)
        is_read = thread.await_done(reading, self.limit_s)
        thread.close()
        if not is_read:
            url, why = self.checkpoints.url, describe_hang(self.limit_s)
            raise CheckpointError(f"the checkpoint in {url} cannot be read: {why}; check that the place can be reached")
        return reading.result()

    def _fail(self, reached: RunProgress, why: str) -> None:
        """Report a failed checkpoint, the first time as a warning; the previous one is kept."""
        self._writing = None
        self._warn_once(
            "a failure",
            f"the checkpoint of iteration {reached.iteration} cannot be written to {self.checkpoints.url}: {why}; "
            "the run continues, and the previous checkpoint is kept",
        )
        self.notify(CheckpointReport(reached.iteration, 0.0, 0, why))

    def _warn_once(self, what: str, said: str) -> None:
        """Warn with a message, the first time that it is about this."""
        if what not in self._warned:
            self._warned.add(what)
            warnings.warn(said, stacklevel=2)
