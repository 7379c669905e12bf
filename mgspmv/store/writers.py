"""Writers of the root of a store, which names the versions: one writer at a time changes it.

    STORE/.naming-1f0c9a2e  mark of a writer while it reads and writes the root; has its process, host and time

Writers run concurrently until one of them has named its version; the others then find another root and fail. Between
reading and writing the root, no other writer may write it: each creates its own mark before it looks for those of
others, so that of two writers at least one sees the other.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import secrets
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import psutil
from zarr.abc.store import Store
from zarr.buffer import default_buffer_prototype
from zarr.storage import LocalStore

from mgspmv.errors import StoreError, hide_secrets
from mgspmv.files import describe_error, translating_errors
from mgspmv.store.locations import StoreLike, describe_store, find_path, list_dir, locate_store, wait_for
from mgspmv.store.versions import FORMAT_VERSION, KEY, MARK, number_versions

STALE_S = 600
"""Seconds after which the mark of a writer on another host is stale; assumes that the clocks of both agree."""
ROOT = "zarr.json"
_marks: set[str] = set()
"""Marks of this process."""


@contextlib.contextmanager
def open_writer(store: StoreLike) -> Iterator[Writer]:
    """Yield a writer of a store; a folder that is empty at the end is removed."""
    place = locate_store(store)
    try:
        yield Writer(place, hide_secrets(describe_store(store)))
    finally:
        if (folder := find_path(place)) is not None:
            with contextlib.suppress(OSError):
                folder.rmdir()


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


@dataclass(frozen=True)
class Writer:
    """Writer of the root of a store."""

    place: Store
    url: str

    def begin(self) -> bool:
        """Create a root that names no version, if there is no root; return whether it was created."""
        if self._read() is not None:
            return False
        with translating_errors("write", self.url), self._naming():
            if is_new := self._read() is None:
                self._write({"zarr_format": 3, "node_type": "group", "attributes": {KEY: _name_versions([None])}})
        return is_new

    def list_names(self) -> list[Any]:
        """List the versions that the root names, oldest first, without checking them; the last is None if none is
        current."""
        return _list_names(self._read() or {})

    def name(self, choose: Callable[[list[Any]], list[Any]]) -> list[Any]:
        """Make the root name other versions, with no other writer in between; the last is the current one.

        Parameters
        ----------
        choose : function from the names that the root has to those that it gets

        Raises
        ------
        StoreError : another writer has named its version; it is unknown whether the root names these
        """
        with self._naming():
            document = self._read()
            if document is None:
                raise self.preceded_error()
            names = choose(_list_names(document))
            attributes = document.get("attributes", {}) | {KEY: _name_versions(names)}
            try:
                self._write(document | {"attributes": attributes})
            except Exception as error:
                if not self._has_named(names, error):
                    raise
        return names

    def _has_named(self, names: list[Any], error: Exception) -> bool:
        """Return whether a write that failed has taken effect: its response may have been lost."""
        try:
            return self.list_names() == names
        except Exception as failure:
            raise UnknownOutcomeError(
                f"{self.url} cannot be read after the last write ({describe_error(failure)}), so it is unknown "
                f"whether {names[-1]} is its current version; check `mgspmv versions` before running this again"
            ) from error

    def give_up(self, name: str, *, is_new: bool) -> None:
        """Remove an unfinished version, and the root if it is new and no other writer uses it."""
        drop(self.place, name)
        if not is_new:
            return
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):  # a full disk takes no mark
                stack.enter_context(self._naming())
            # Others may have begun a version meanwhile.
            if not number_versions(self.place) and self.list_names() == [None]:
                wait_for(self.place.delete_dir("versions"))
                wait_for(self.place.delete(ROOT))

    def check_base(self, base: str | None) -> None:
        """Raise StoreError if another version than the one when this writer began is the current one."""
        if self.list_names()[-1] != base:
            raise self.preceded_error(base)

    def preceded_error(self, base: str | None = None) -> StoreError:
        """Return the error for a writer that another writer has preceded.

        Parameters
        ----------
        base : the current version when this writer began
        """
        current = self.list_names()[-1]
        found = "no version" if current is None else f"version {current}"
        expected = "" if base is None else f", not {base} as at the start"
        return StoreError(
            f"{self.url} now holds {found}{expected}; another writer changed it, and this change was discarded: run "
            "this again"
        )

    def clean(self, names: list[Any]) -> None:
        """Remove the leftovers of writers that have ended: versions that the root does not name."""
        for name in sorted(find_leftovers(self.place, names)):
            drop(self.place, name)

    def _read(self) -> dict[str, Any] | None:
        """Read the root's metadata; None if there is no root."""
        found = self._get(ROOT)
        return None if found is None else json.loads(found)

    def _write(self, document: dict[str, Any]) -> None:
        self._put(ROOT, document)

    def _get(self, key: str) -> bytes | None:
        found = wait_for(self.place.get(key, default_buffer_prototype()))
        return None if found is None else found.to_bytes()

    def _put(self, key: str, document: dict[str, Any]) -> None:
        text = json.dumps(document, indent=2).encode()
        wait_for(self.place.set(key, default_buffer_prototype().buffer.from_bytes(text)))

    @contextlib.contextmanager
    def _naming(self) -> Iterator[None]:
        """Keep other writers from the root while it is read and written."""
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
        if (text := self._get(mark)) is None:
            return
        holder = dict.fromkeys(("pid", "host", "began"), "?")
        with contextlib.suppress(ValueError, TypeError):
            holder |= json.loads(text)
        if _is_alive(mark, holder):
            raise StoreError(
                f"{self.url} is being written by process {holder['pid']} on {holder['host']} since {holder['began']}; "
                f"nothing was changed: run this again; if that process died, wait {STALE_S // 60} minutes or remove "
                f"{self.url}/{mark}"
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


def find_leftovers(place: Store, names: list[Any]) -> set[str]:
    """Return the versions that the root does not name and that no writer can finish.

    Versions with a larger number than the current one may be under construction. Unfinished ones with other numbers
    will never be named, as the root has changed since they were begun.
    """
    numbers = number_versions(place)
    last = max((numbers.get(name, 0) for name in names), default=0)
    return {name for name, number in numbers.items() if name not in names and number <= last}


def _describe_holder() -> dict[str, Any]:
    return {"pid": os.getpid(), "host": platform.node(), "began": datetime.now(UTC).isoformat(timespec="seconds")}


def _is_alive(mark: str, holder: dict[str, Any]) -> bool:
    if holder["host"] == platform.node() and isinstance(holder["pid"], int):
        return mark in _marks if holder["pid"] == os.getpid() else psutil.pid_exists(holder["pid"])
    try:
        return (datetime.now(UTC) - datetime.fromisoformat(holder["began"])).total_seconds() < STALE_S
    except (TypeError, ValueError):
        return False


def _list_names(document: dict[str, Any]) -> list[Any]:
    own = document.get("attributes", {}).get(KEY)
    return [*own.get("older", []), own.get("current")] if isinstance(own, dict) else [None]


def _name_versions(names: list[Any]) -> dict[str, Any]:
    """Return mgspmv's attributes of a root that names these versions; the last is the current one."""
    older = {"older": names[:-1]} if names[1:] else {}
    return {"format_version": FORMAT_VERSION, "current": names[-1], **older}
