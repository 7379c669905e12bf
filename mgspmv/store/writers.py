"""Exclusion of other writers: one writer per local store, and one at a time that names versions.

    STORE/.lock             held by the writer of a local store from start to end; has its process, host and time
    STORE/.naming-1f0c9a2e  mark of a writer without a lock, while it reads and writes the root

With a lock, a second writer fails at once. Without one, writers run concurrently until one of them has named its
version; the others then find another root and fail. Between reading and writing the root, no other writer may write
it: conditional writes or marks ensure this. Each writer creates its own mark before it looks for others, so that of
two writers at least one sees the other.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import platform
import secrets
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import psutil
import zarr
from filelock import FileLock, Timeout
from zarr.abc.store import Store
from zarr.buffer import default_buffer_prototype
from zarr.storage import FsspecStore, LocalStore, ObjectStore

from mgspmv.errors import StoreError, hide_secrets
from mgspmv.files import describe_error, translating_errors
from mgspmv.store.locations import StoreLike, describe_store, find_path, list_dir, locate_store, wait_for
from mgspmv.store.read import check_version
from mgspmv.store.versions import (
    BROKEN_OFF,
    FORMAT_VERSION,
    KEY,
    LOCK,
    MARK,
    get_version,
    number_versions,
)

STALE_S = 600
"""Seconds after which the mark of a writer on another host is stale; assumes that the clocks of both agree."""
ROOT = "zarr.json"
_NONE_THERE = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}
"""Errors of file systems that have no locks."""
_marks: set[str] = set()
"""Marks of this process."""


@contextlib.contextmanager
def hold_store(store: StoreLike) -> Iterator[Writer]:
    """Lock a store for this writer, if it has locks; a folder that is empty at the end is removed.

    Raises
    ------
    StoreError : another writer holds the lock; the place cannot be written
    """
    place, url = locate_store(store), hide_secrets(describe_store(store))
    lock = None
    if (folder := find_path(place)) is not None:
        with translating_errors("write", url):
            lock = _take(folder, url)
    try:
        yield Writer(store, place, url, folder, is_locked=lock is not None)
    finally:
        if folder is not None:
            # Removed while the lock is held, so that no other writer can lock the file before its removal.
            with contextlib.suppress(OSError):
                if lock is not None:
                    (folder / LOCK).unlink()
                folder.rmdir()
        if lock is not None:
            lock.release()


@contextlib.contextmanager
def tidying(url: str) -> Iterator[None]:
    """Turn errors of the removal of leftovers into warnings."""
    try:
        yield
    except Exception as error:
        warnings.warn(
            f"{url}: leftovers could not be removed ({describe_error(error)}); the next write tries again",
            stacklevel=3,
        )


def _take(folder: Path, url: str) -> FileLock | None:
    """Acquire the lock of a folder; None if its file system has no locks."""
    path = folder / LOCK

    def introduce(opened: int) -> None:
        with contextlib.suppress(OSError):  # on a full disk the lock holds, but does not name its holder
            os.ftruncate(opened, 0)
            os.pwrite(opened, _encode(_describe_holder()), 0)

    while True:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path, thread_local=False, fallback_to_soft=False, on_acquired=introduce)
        try:
            lock.acquire(timeout=0)
            return lock
        except Timeout as error:
            try:
                holder = _read_holder(path.read_bytes())
            except FileNotFoundError:  # its holder has just ended
                continue
            raise _busy_error(url, holder, "wait until it ends, then run this again") from error
        except FileNotFoundError:  # another writer removed the folder with its unfinished store
            continue
        except OSError as error:
            if error.errno in _NONE_THERE:
                with contextlib.suppress(OSError):
                    path.unlink()
                return None
            with contextlib.suppress(OSError):  # not empty
                folder.rmdir()
            raise


def _describe_holder() -> dict[str, Any]:
    return {"pid": os.getpid(), "host": platform.node(), "began": datetime.now(UTC).isoformat(timespec="seconds")}


def _read_holder(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:  # the holder may still be writing it
        found = None
    return dict.fromkeys(("pid", "host", "began"), "?") | (found if isinstance(found, dict) else {})


def _busy_error(url: str, holder: dict[str, Any], remedy: str) -> StoreError:
    return StoreError(
        f"{url} is being written by process {holder['pid']} on {holder['host']} since {holder['began']}; nothing was "
        f"changed: {remedy}"
    )


@dataclass(frozen=True)
class Writer:
    """Writer of a store.

    Parameters
    ----------
    store : as passed by the user
    folder : of a local store; None for others
    """

    store: StoreLike
    place: Store
    url: str
    folder: Path | None
    is_locked: bool

    def begin(self) -> bool:
        """Create a root that names no version, if there is no root; return whether it was created."""
        if self._read()[0] is not None:
            return False
        with translating_errors("write", self.url), self._naming():
            document, tag = self._read()
            if document is None:
                ours = {"format_version": FORMAT_VERSION, "current": None}
                self._write({"zarr_format": 3, "node_type": "group", "attributes": {KEY: ours}}, tag)
        return document is None

    def read_own(self) -> dict[str, Any]:
        """Read mgspmv's attributes of the root, which name the versions; empty if there are none."""
        return _find_own(self._read()[0])

    def name(self, choose: Callable[[dict[str, Any]], list[str]]) -> list[str]:
        """Make the root name the versions that `choose` returns for its attributes, with no other writer in between;
        the last of them is the current one.

        Raises
        ------
        StoreError : another writer has named its version; it is unknown whether the root names these
        """
        with self._naming():
            document, tag = self._read()
            if document is None:
                raise self.preceded_error()
            before = _list_names(own := _find_own(document))
            names = choose(own)
            try:
                self._write(_name(document, names), tag)
            except Exception as error:
                if self.has_named(names, before, error):  # the write succeeded, but its response was lost
                    return names
                if self._read()[0] != document:
                    raise self.preceded_error() from error
                raise
            # Without conditional writes, another writer may have written since `_read`.
            if not (_is_conditional(self.place) or self.has_named(names, before)):
                self._mend(names)
                raise self.preceded_error()
        return names

    def has_named(self, names: list[str], before: Sequence[str] = (), error: Exception | None = None) -> bool:
        """Return whether the root names these versions, or others including the new last one, and that one exists.

        Parameters
        ----------
        before : versions that it named before
        error : error of the write whose outcome is checked

        Raises
        ------
        UnknownOutcomeError : the root cannot be read
        """
        try:
            found = _list_names(self.read_own())
            is_followed = names[-1] in found and names[-1] not in before
            return (found == names or is_followed) and self._has(names[-1])
        except Exception as failure:
            raise UnknownOutcomeError(
                f"{self.url} cannot be read after the last write ({describe_error(failure)}), so it is unknown "
                f"whether {names[-1]} is its current version; check `mgspmv versions` before running this again"
            ) from (error or failure)

    def give_up(self, name: str, *, is_new: bool) -> None:
        """Remove an unfinished version, and the root if it is new and no other writer uses it."""
        drop(self.place, name)
        if not is_new:
            return
        with self._naming():
            # Others may have begun a version meanwhile.
            if not number_versions(self.place) and self.read_own().get("current") is None:
                wait_for(self.place.delete_dir("versions"))
                wait_for(self.place.delete(ROOT))

    def preceded_error(self, base: str | None = None) -> StoreError:
        """Return the error for a writer that another writer has preceded.

        Parameters
        ----------
        base : the current version when this writer began
        """
        current = self.read_own().get("current")
        found = "no version" if current is None else f"version {current}"
        expected = "" if base is None else f", not {base} as at the start"
        return StoreError(
            f"{self.url} now holds {found}{expected}; another writer changed it, and this change was discarded: run "
            "this again"
        )

    def clean(self, names: list[str]) -> None:
        """Remove the leftovers of writers that have ended: unnamed versions, partial files and marks; after an error,
        continue with the other versions and then raise it."""
        with contextlib.ExitStack() as stack:
            for name in sorted(find_leftovers(self.place, names, is_locked=self.is_locked)):
                stack.callback(drop, self.place, name)
        if self.folder is not None:
            patterns = (BROKEN_OFF, f"{MARK}*") if self.is_locked else (BROKEN_OFF,)
            for path in (*self.folder.iterdir(), *(self.folder / "versions").iterdir()):
                if any(fnmatch(path.name, pattern) for pattern in patterns):
                    path.unlink(missing_ok=True)

    # --- the root ----------------------------------------------------------------------------------------------------

    def _read(self) -> tuple[dict[str, Any] | None, Any]:
        """Read the root's metadata and its tag for a conditional write; None if there is no root."""
        place: Any = self.place
        try:
            if isinstance(place, ObjectStore):
                import obstore

                found = obstore.get(place.store, ROOT)
                tag = {name: found.meta[name] for name in ("e_tag", "version") if found.meta.get(name)}
                return json.loads(bytes(found.bytes())), tag
            if _is_s3(place):
                path = f"{place.path}/{ROOT}"
                tag = wait_for(place.fs._info(path, refresh=True))["ETag"]
                return json.loads(wait_for(place.fs._cat_file(path))), tag
        except FileNotFoundError:
            return None, None
        got = wait_for(place.get(ROOT, default_buffer_prototype()))
        return (None if got is None else json.loads(got.to_bytes())), None

    def _write(self, document: dict[str, Any], tag: Any) -> None:
        """Write the root's metadata; with conditional writes, only if it is unchanged since `tag`."""
        place: Any = self.place
        if not _is_conditional(place):
            self._put(ROOT, document)
        elif isinstance(place, ObjectStore):
            import obstore

            obstore.put(place.store, ROOT, _encode(document), mode=tag or "create")
        else:
            condition = {"mode": "create"} if tag is None else {"IfMatch": tag}
            wait_for(place.fs._pipe_file(f"{place.path}/{ROOT}", _encode(document), **condition))

    def _put(self, key: str, document: dict[str, Any]) -> None:
        wait_for(self.place.set(key, default_buffer_prototype().buffer.from_bytes(_encode(document))))

    def _has(self, name: str) -> bool:
        return bool(wait_for(self.place.exists(f"versions/{name}/{ROOT}")))

    def _mend(self, names: list[str]) -> None:
        """Make the root name the newest existing version, if another writer removed its current one."""
        document, tag = self._read()
        if document is None or self._has(str(_find_own(document).get("current"))):
            return
        root = zarr.open_group(self.place, mode="r", zarr_format=3, use_consolidated=False)
        numbers = number_versions(self.place)
        for name in sorted(numbers, key=lambda name: (numbers[name], name), reverse=True):
            with contextlib.suppress(StoreError):
                check_version(get_version(root, name, self.url), self.store, self.url)
                older = [other for other in names if numbers.get(other, numbers[name]) < numbers[name]]
                self._write(_name(document, [*older, name]), tag)
                return

    # --- marks -------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _naming(self) -> Iterator[None]:
        """Keep other writers from the root while it is read and written."""
        if self.is_locked or _is_conditional(self.place):
            yield
            return
        own = f"{MARK}{secrets.token_hex(4)}"
        _marks.add(own)
        try:
            self._put(own, _describe_holder())  # before the others are listed: of two writers, one sees the other
            for name in list_dir(self.place, ""):
                if name.startswith(MARK) and name != own and not name.endswith(".partial"):
                    self._pass(name)
            yield
        finally:
            _marks.discard(own)
            with tidying(self.url):
                wait_for(self.place.delete(own))

    def _pass(self, mark: str) -> None:
        """Remove the mark of a writer that has ended; raise StoreError if it may still be running."""
        got = wait_for(self.place.get(mark, default_buffer_prototype()))
        if got is None:
            return
        holder = _read_holder(got.to_bytes())
        if _is_alive(mark, holder):
            raise _busy_error(
                self.url,
                holder,
                f"run this again; if that process died, wait {STALE_S // 60} minutes or remove {self.url}/{mark}",
            )
        wait_for(self.place.delete(mark))


class UnknownOutcomeError(StoreError):
    """Error of a last write that failed and may have taken effect, as the root cannot be read."""


def drop(place: Store, name: str) -> None:
    """Remove a version; of a symbolic link, only the link itself."""
    path = f"versions/{name}"
    if type(place) is LocalStore and (place.root / path).is_symlink():
        (place.root / path).unlink()
        return
    try:
        wait_for(place.delete_dir(path))
    except FileNotFoundError:  # another process removes it too
        wait_for(place.delete_dir(path))


def find_leftovers(place: Store, names: list[str], *, is_locked: bool) -> set[str]:
    """Return the versions that the root does not name and that no writer can finish.

    Unless this writer has the lock, versions with a larger number than the current one may be under construction.
    Unfinished ones with other numbers will never be named, as the root has changed since they were begun.
    """
    numbers = number_versions(place)
    last = max((numbers.get(name, 0) for name in names), default=0)
    return {name for name, number in numbers.items() if name not in names and (is_locked or number <= last)}


def _encode(document: dict[str, Any]) -> bytes:
    return json.dumps(document, indent=2).encode()


def _is_alive(mark: str, holder: dict[str, Any]) -> bool:
    if holder["host"] == platform.node() and isinstance(holder["pid"], int):
        return mark in _marks if holder["pid"] == os.getpid() else psutil.pid_exists(holder["pid"])
    try:
        return (datetime.now(UTC) - datetime.fromisoformat(holder["began"])).total_seconds() < STALE_S
    except (TypeError, ValueError):
        return False


def _find_own(document: dict[str, Any] | None) -> dict[str, Any]:
    own = {} if document is None else document.get("attributes", {}).get(KEY)
    return own if isinstance(own, dict) else {}


def _list_names(own: dict[str, Any]) -> list[Any]:
    """List what the root names, without checking that these are names of versions."""
    return [*own.get("older", []), own.get("current")]


def _name(document: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """Return the metadata of a root that names these versions."""
    older = {"older": names[:-1]} if names[1:] else {}
    own = {KEY: {"format_version": FORMAT_VERSION, "current": names[-1], **older}}
    return document | {"attributes": document.get("attributes", {}) | own}


def _is_conditional(place: Store) -> bool:
    """Return whether a store has writes that fail if another writer has written."""
    return _is_s3(place) or (isinstance(place, ObjectStore) and type(place.store).__name__ != "LocalStore")


def _is_s3(place: Store) -> bool:
    return isinstance(place, FsspecStore) and "s3" in place.fs.protocol
