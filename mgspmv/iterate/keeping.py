"""Keeping the states of a run beside it, from which it goes on; see `mgspmv.checkpoints`.

Between two iterations who holds rows copies its slice of x, and writes it while the next ones are made. The state
counts once all slices are there. Where writing takes longer than the time from one to the next, there are fewer.
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
    Beside,
    Checkpoints,
    Reached,
    Restored,
    StateAddress,
    WrittenSlice,
    describe_failure,
    describe_hang,
)
from mgspmv.errors import CheckpointError
from mgspmv.model import Status

EVERY_S = 30.0
"""Seconds from one checkpoint to the next, unless the user says otherwise."""


@dataclass(frozen=True)
class Kept:
    """A checkpoint that was made, or was not."""

    iteration: int
    """After which."""
    seconds: float
    """From the copy to the last write."""
    n_bytes: int
    """Of the ranks."""
    error: str | None = None
    """Why there is none."""


class Writers(Protocol):
    """Who holds the slices of x, and writes them."""

    def begin(self, address: StateAddress) -> None:
        """Let each copy its slice, as it is after the last iteration, and begin to write it."""
        ...

    def find_written(self, wait: bool) -> Sequence[WrittenSlice | str] | None:
        """What each wrote, or why it could not; None while one of them is writing.

        Parameters
        ----------
        wait : until none of them is, or those that are hang
        """
        ...


@dataclass
class _Writing:
    """A state that is being written."""

    address: StateAddress
    reached: Reached
    began_s: float
    n_bytes: int = 0
    committing: Future[str | None] | None = None
    """Gives why older states could not be removed."""
    is_current: bool = False


@dataclass
class Keeper:
    """Keeps the states of one run; a context manager, that of the run."""

    checkpoints: Checkpoints
    """Where."""
    identity: dict[str, Any]
    """Of the run, as of `Reached`."""
    run: str
    every_s: float = EVERY_S
    """Seconds from one to the next; 0 begins one as soon as the one before is there."""
    before: Reached = BEGINNING
    """What the run goes on from."""
    tell: Callable[[Kept], None] = lambda kept: None
    """Hears of each that was made, and of those that could not be."""
    blocked_s: float = 0.0
    """Seconds so far that iterations, or the end of the run, waited."""
    kept: Reached | None = None
    """Of the last state of this run that is whole."""
    limit_s: float = HANG_S
    """Seconds after which what hangs is not waited for any more, as of `Beside`."""
    _writing: _Writing | None = None
    _began_s: float = 0.0
    _has_failed: bool = False
    _has_left_old: bool = False
    _thread: Beside = field(default_factory=lambda: Beside("mgspmv-commit"))

    def begin(self) -> None:
        """The iterations begin now."""
        self._began_s = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._thread.close()

    def look(self, writers: Writers, changes: Sequence[float]) -> None:
        """Between two iterations: make current what was written, and begin the next state if it is time for it.

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
        """After the last iteration: begin the last state, unless that is what the run went on from."""
        if status == Status.NON_FINITE or not changes:
            return
        began = time.perf_counter()
        self._settle(writers, wait=True)
        self._begin(writers, changes, status)
        self.blocked_s += time.perf_counter() - began

    def finish(self, writers: Writers) -> None:
        """Wait until the last state is current, or hangs."""
        began = time.perf_counter()
        self._settle(writers, wait=True)
        self.blocked_s += time.perf_counter() - began

    def go_back(self) -> Restored | None:
        """After who wrote was lost: the last state of this run that is whole, None where there is none yet. What was
        being written is dropped, unless it only had to become current.

        Raises
        ------
        CheckpointError : there were states, and none of them is whole any more; reading them hangs
        """
        own, self._writing = self._writing, None
        if own is not None and own.committing is not None:
            self._finish_commit(own)
        elif own is not None:
            self._thread.submit(self.checkpoints.drop, own.address.name)
        return None if self.kept is None else self._restore()

    def _begin(self, writers: Writers, changes: Sequence[float], status: Status | None) -> None:
        self._began_s = time.monotonic()
        whole = (*self.before.changes, *(float(change) for change in changes))
        said = None if status is None else status.value
        reached = Reached(len(whole), whole, self.before.epoch + 1, self.run, self.identity, said)
        address = self.checkpoints.name_next()
        self._writing = _Writing(address, reached, time.perf_counter())
        writers.begin(address)

    def _settle(self, writers: Writers, *, wait: bool) -> None:
        """Go on with the state that is being written, as far as it is."""
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
            self._writing = None
            if self._finish_commit(own):
                self.tell(Kept(own.reached.iteration, time.perf_counter() - own.began_s, own.n_bytes))

    def _commit(self, own: _Writing, slices: Sequence[WrittenSlice]) -> str | None:
        """Make a state current; why older ones could not be removed."""
        self.checkpoints.commit(own.address, slices, own.reached)
        own.is_current = True
        return self.checkpoints.remove_old()

    def _finish_commit(self, own: _Writing) -> bool:
        """Wait until a state is current, and count it; whether it is. One that is not may become so late, and so it is
        removed with those before the next one, and not now."""
        failure = self._find_failure(own)
        if own.is_current:
            self.kept = own.reached
            if failure is not None:
                self._warn_of_old(failure)
        else:
            self._fail(own.reached, failure or "")
        return own.is_current

    def _find_failure(self, own: _Writing) -> str | None:
        """Why a state could not be made current or, where it is, older ones not be removed."""
        assert own.committing is not None
        if not self._thread.await_done(own.committing, self.limit_s):
            return describe_hang(self.limit_s)
        error = own.committing.exception()
        return own.committing.result() if error is None else describe_failure(error)

    def _restore(self) -> Restored | None:
        """The last state that is whole."""
        thread = Beside("mgspmv-restore")
        reading = thread.submit(self.checkpoints.restore)
        is_read = thread.await_done(reading, self.limit_s)
        thread.close()
        if not is_read:
            url, why = self.checkpoints.url, describe_hang(self.limit_s)
            raise CheckpointError(f"the checkpoint in {url} cannot be read: {why}; see that the place can be reached")
        return reading.result()

    def _warn_of_old(self, why: str) -> None:
        """Say, the first time, that states before the current one stay."""
        if not self._has_left_old:
            self._has_left_old = True
            warnings.warn(
                f"the checkpoint is kept in {self.checkpoints.url}, and older ones cannot be removed: {why}; the run "
                "goes on, and that is tried again with the next one",
                stacklevel=2,
            )

    def _fail(self, reached: Reached, why: str) -> None:
        """Say, the first time aloud, that there is no such state; the last one that was made is still there."""
        self._writing = None
        if not self._has_failed:
            self._has_failed = True
            warnings.warn(
                f"the checkpoint of iteration {reached.iteration} cannot be written to {self.checkpoints.url}: {why}; "
                "the run goes on, and the checkpoint before stays",
                stacklevel=2,
            )
        self.tell(Kept(reached.iteration, 0.0, 0, why))
