"""Checkpoints: the last two states of a run, in a Zarr group, from which it resumes; written between two iterations.

    PLACE/                            attributes: format_version
      states/s000012-1f0c9a2e/        attributes: `RunProgress`, the slices, and a SHA-256 of both; written last
        x000000000000  x000001048576  slices of x in the order of the stored rows, each written by the worker that owns
                                      these rows, and named by the first of them

A state is valid once its attributes are written, which is the last write: a rename on a disk, and one object in an
object store. Each state has a unique name, so that a late write of an abandoned run never reaches another state. A
complete state is never changed. Older states are removed when the next but one is complete, and their removal is not
part of it. Chunks have checksums and slices digests: truncated or corrupted data is detected when it is read, and then
the state before is used.
"""

from __future__ import annotations

import re
import secrets
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from contextvars import copy_context
from dataclasses import asdict, dataclass, field
from threading import Thread
from typing import Any, TypeVar

import numpy as np
import zarr
from zarr.errors import ContainsGroupError

from mgspmv.errors import CheckpointError, StoreExistsError, describe_os_error, hide_secrets, is_operators, translating
from mgspmv.files import describe_error
from mgspmv.heartbeat import beat, make_heartbeat
from mgspmv.model import BEGINNING, EVERY_S, RunProgress, Status, find_version_number
from mgspmv.store.access import ZARR_ERRORS, check_links, list_dir, locate_store
from mgspmv.store.chunks import find_chunk_fault, find_chunks
from mgspmv.store.digests import cut_pieces, digest_array, run_parts
from mgspmv.store.locations import StoreLike, describe_store, find_address, find_local_path
from mgspmv.store.versions import read_root_attributes
from mgspmv.store.write import write_array
from mgspmv.validation import check_fields, check_seal, seal

FORMAT_VERSION = 1
STATES_KEPT = 2
"""Most recent states that are kept."""
MARK_S = 1.0
"""Seconds between two checks whether an operation makes progress."""
HANG_S = 60.0
"""Seconds without a mark until an operation counts as hanging; each piece of 8 MiB read or written sets a mark."""

R = TypeVar("R")

_KEY, _STATE_KEY = "mgspmv_checkpoints", "mgspmv_state"
_STATE_NAME = re.compile(r"s(\d{6,})-[0-9a-f]{8}")


@dataclass(frozen=True, eq=False)
class RestoredState:
    """State read from a checkpoint."""

    reached: RunProgress
    x: np.ndarray
    """Vector, (n,), in the order of the stored rows, bit-identical; empty if it belongs to a matrix other than the
    requested one."""


@dataclass(frozen=True)
class WrittenSlice:
    """Slice of a vector, as written by the worker that owns its rows."""

    start: int
    """Index of the first row."""
    n: int
    dtype: str
    digest: str
    """SHA-256 of the slice, as computed by `mgspmv.store.digests.digest_array`."""
    n_bytes: int
    """Bytes, uncompressed."""

    @property
    def name(self) -> str:
        """Name of the array."""
        return _name_slice(self.start)


@dataclass(frozen=True)
class StateAddress:
    """Address that a state is written to; can be pickled."""

    place: StoreLike = field(repr=False)  # as in `StoreAddress`
    name: str

    def open(self) -> zarr.Group:
        """Open the group of the state for writing; create it if it is missing."""
        store, path = locate_store(self.place), f"states/{self.name}"
        try:
            return zarr.open_group(store, mode="a", path=path, use_consolidated=False)
        except ContainsGroupError:  # created concurrently by another process
            return zarr.open_group(store, mode="r+", path=path, use_consolidated=False)


def write_slice(address: StateAddress, start: int, x: np.ndarray) -> WrittenSlice | str:
    """Write a slice of the vector of a state, by one thread; return it, or why it cannot be written.

    Parameters
    ----------
    start : number of its first row
    """
    try:
        return call_limited(_write_slice, address, start, x)
    except Exception as error:  # libraries of object stores raise errors of other types
        return describe_failure(error)


def _write_slice(address: StateAddress, start: int, x: np.ndarray) -> WrittenSlice:
    name = _name_slice(start)
    with translating(describe_store(address.place), "write"):
        digest = write_array(address.open(), name, x, 1).digest if len(x) else digest_array(x, 1)
    return WrittenSlice(start, len(x), x.dtype.name, digest, int(x.nbytes))


def call_limited(function: Callable[..., R], *args: Any) -> R:
    """Call a function in another thread, and wait for it as long as it makes progress.

    Raises
    ------
    CheckpointError : it made no mark for `HANG_S` seconds, and is abandoned
    """
    done = Future[R]()

    def call() -> None:
        try:
            done.set_result(function(*args))
        except BaseException as error:
            done.set_exception(error)

    with make_heartbeat() as heartbeat:
        context = copy_context()
    # A daemon, as a thread that hangs would keep the program from ending.
    Thread(target=context.run, args=(call,), name="mgspmv-checkpoint", daemon=True).start()
    step_s, idle_s, n_seen = min(MARK_S, HANG_S), 0.0, 0
    while wait([done], step_s).not_done:
        idle_s += step_s
        if heartbeat.n != n_seen:
            idle_s, n_seen = 0.0, heartbeat.n
            beat()
        elif idle_s >= HANG_S:
            raise CheckpointError(f"no progress for {HANG_S:g} s")
    return done.result()


def describe_failure(error: BaseException) -> str:
    """Describe an error in one line."""
    if is_operators(error) and error.filename is not None:
        return hide_secrets(describe_os_error(error))
    return hide_secrets(" ".join(str(error).split())) or type(error).__name__


class Checkpoints:
    """Checkpoints of a run at a place.

    Parameters
    ----------
    place : local path, URL or Zarr store, as in `mgspmv.store.read.open_store`
    matrix : description of the run's matrix, as in the identity of `RunProgress`
    n_rows : number of rows of the matrix, to detect damaged states; None if it is unknown
    """

    def __init__(self, place: StoreLike, matrix: str | None = None, n_rows: int | None = None) -> None:
        self.place, self.url = place, hide_secrets(describe_store(place))
        self._matrix, self._n_rows = matrix, n_rows
        self._kept: list[str] = []
        self._number = 0

    def prepare(self, *, is_shared: bool) -> None:
        """Check that checkpoints can be written to the place, and create their group if it is missing.

        Parameters
        ----------
        is_shared : whether other processes write to it too

        Raises
        ------
        StoreExistsError : the place holds other data
        CheckpointError : they are of another format version, or the place is not writable
        OptionError : the place is in the memory of this process, and other processes are to write to it
        """
        if is_shared:
            self.place = find_address(self.place, self.url)
        if self._look():
            self._number = max(map(find_version_number, self._list_states()), default=0)
            return
        try:
            root = zarr.open_group(locate_store(self.place), mode="a", attributes={_KEY: None}, use_consolidated=False)
            root.require_group("states")
            root.attrs[_KEY] = {"format_version": FORMAT_VERSION}
        except Exception as error:  # libraries of object stores raise errors of other types
            if (folder := find_local_path(self.place)) is not None:
                with suppress(OSError):  # other files in the folder belong to the user
                    folder.rmdir()
            said = describe_os_error(error, self.url) if is_operators(error) else describe_error(error)
            raise CheckpointError(
                f"checkpoints cannot be written to {self.url}: {said}; choose another place"
            ) from error

    def restore(self) -> RestoredState | None:
        """Return the last complete state, and warn of later ones that are damaged; None if there was never one.

        Raises
        ------
        StoreExistsError : the place holds other data
        CheckpointError : none is complete; they are of another format version
        """
        damaged: list[str] = []
        for name in self._list_states() if self._look() else []:
            try:
                found = self._read(name)
            except _DamagedError as error:
                damaged.append(str(error))
                continue
            if found is None:
                continue
            self._kept = [name]
            for said in damaged:
                used = f"resuming from iteration {found.reached.iteration} instead"
                warnings.warn(f"the last checkpoint in {self.url} cannot be used: {said}; {used}", stacklevel=2)
            return found
        if damaged:
            raise CheckpointError(
                f"{self.url} holds no usable checkpoint: {'; '.join(damaged)}; leave out resume=True to start from the "
                "beginning"
            )
        return None

    def name_next(self) -> StateAddress:
        """Return the address of the next state; call it after `prepare`."""
        self._number += 1
        return StateAddress(self.place, f"s{self._number:06d}-{secrets.token_hex(4)}")

    def commit(self, address: StateAddress, slices: Sequence[WrittenSlice], reached: RunProgress) -> None:
        """Make a state current, once all of its slices are written: the last write.

        Raises
        ------
        CheckpointError : slices are missing, because a worker wrote them to a local folder of the same name
        """
        present = set(list_dir(locate_store(self.place), f"states/{address.name}"))
        if missing := sum(own.n > 0 and own.name not in present for own in slices):
            raise CheckpointError(
                f"{missing} of the {len(slices)} slices written by workers are missing; choose a place for checkpoint= "
                "that all workers can reach"
            )
        described: Any = {"reached": asdict(reached), "slices": [asdict(own) for own in slices]}
        with translating(self.url, "write"):
            address.open().attrs[_STATE_KEY] = seal(described)
        # Sorted, because an abandoned operation that hung may still complete late.
        self._kept = sorted({*self._kept, address.name}, key=find_version_number)[-STATES_KEPT:]

    def remove_old(self) -> str | None:
        """Remove states older than the last ones committed; return why some could not be removed, or None."""
        failure = None
        for name in self._list_states():
            # An abandoned operation may still be writing a state with a higher number.
            if name not in self._kept and find_version_number(name) <= find_version_number(self._kept[-1]):
                failure = self.drop(name) or failure
        return failure

    def drop(self, name: str) -> str | None:
        """Remove a state; return why it cannot be removed, or None."""
        try:
            states = zarr.open_group(locate_store(self.place), mode="r+", path="states", use_consolidated=False)
            del states[name]
        except Exception as error:  # libraries of object stores raise errors of other types
            return describe_failure(error)
        return None

    def _look(self) -> bool:
        """Return whether the place may hold checkpoints."""
        check_links(locate_store(self.place), "", below=True)
        attributes = read_root_attributes(self.place, self.url)
        if attributes is None or (attributes.get(_KEY, 0) is None):  # creating it was interrupted
            return False
        if _KEY not in attributes:
            raise StoreExistsError(f"{self.url} is a Zarr group without checkpoints; choose another place")
        found = attributes[_KEY].get("format_version") if isinstance(attributes[_KEY], dict) else None
        if found != FORMAT_VERSION:
            raise CheckpointError(
                f"{self.url} holds checkpoints of format version {found}, but this program writes version "
                f"{FORMAT_VERSION}; resume with the program that wrote them, or choose another place"
            )
        return True

    def _list_states(self) -> list[str]:
        """Return the names of the states, incomplete ones included, the last one first."""
        names = filter(_STATE_NAME.fullmatch, list_dir(locate_store(self.place), "states"))
        return sorted(names, key=find_version_number, reverse=True)

    def _read(self, name: str) -> RestoredState | None:
        """Read a state; return None if its write was interrupted."""
        try:
            place, path = locate_store(self.place), f"states/{name}"
            group = zarr.open_group(place, mode="r", path=path, zarr_format=3, use_consolidated=False)
            described: Any = dict(group.attrs)
        except FileNotFoundError:
            return None
        except _DAMAGES as error:
            raise _DamagedError(f"state {name} cannot be read ({describe_failure(error)})") from error
        if not described:
            return None
        try:
            claims = described[_STATE_KEY]
            check_seal(claims)
            reached = check_fields(RunProgress, claims["reached"])
            if len(reached.changes) != reached.iteration:
                raise ValueError(f"there are {len(reached.changes)} changes of {reached.iteration} iterations")
            slices = sorted(check_fields(list[WrittenSlice], claims["slices"]), key=lambda own: (own.start, own.n))
            if self._n_rows is not None and reached.identity.get("matrix") != self._matrix:
                return RestoredState(reached, np.empty(0))  # not read: the caller rejects it by its identity
            _check_slices(slices, self._n_rows)
            x = np.empty(sum(own.n for own in slices), slices[0].dtype)
            for own in slices:
                _read_slice(group, own, x[own.start : own.start + own.n])
            return RestoredState(reached, x)
        except _DAMAGES as error:
            raise _DamagedError(f"state {name} is damaged ({describe_failure(error)})") from error


class _DamagedError(Exception):
    """State that differs from what was written."""


_DAMAGES = (*ZARR_ERRORS, RuntimeError, OSError)
"""Exceptions that reading metadata and chunks raises if they are damaged or missing."""


def _check_slices(slices: list[WrittenSlice], n_rows: int | None) -> None:
    """Check that the slices cover a vector exactly, before memory is allocated for the sizes they state."""
    ends = [0, *(own.start + own.n for own in slices)]
    if not slices or any(own.start != end for own, end in zip(slices, ends, strict=False)):
        raise ValueError("its slices do not cover the vector")
    if n_rows not in (None, ends[-1]):
        raise ValueError(f"its slices have {ends[-1]} rows, but the matrix has {n_rows}")
    if wrong := {own.dtype for own in slices} - {"float32", "float64"}:
        raise ValueError(f"its slices have dtype {wrong.pop()}, expected float32 or float64")


def _read_slice(group: zarr.Group, own: WrittenSlice, out: np.ndarray) -> None:
    if own.n:
        array = group[own.name]
        if not isinstance(array, zarr.Array) or (array.shape, array.dtype.name) != ((own.n,), out.dtype.name):
            raise ValueError(f"{own.name} has another shape or dtype than was written")
        if fault := find_chunk_fault(array):
            raise ValueError(f"{own.name} {fault}")
        chunks = find_chunks(array)
        run_parts(lambda piece: chunks.read(piece, out[piece]), cut_pieces(0, own.n), 1)
    if (digest_array(out), out.dtype.name) != (own.digest, own.dtype):
        raise ValueError(f"{own.name} does not match its digest")


def _name_slice(start: int) -> str:
    return f"x{start:012d}"


# --- the checkpoints of a run -----------------------------------------------------------------------------------------

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
