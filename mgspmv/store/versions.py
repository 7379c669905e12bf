"""Versions of a store: those that its root names, and no others. One writer at a time changes the root.

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
import random
import re
import secrets
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatch
from typing import Any, TypeVar

import zarr
from zarr.abc.store import Store
from zarr.buffer import default_buffer_prototype
from zarr.storage import LocalStore

from mgspmv.errors import (
    OptionError,
    StoreDamagedError,
    StoreError,
    StoreExistsError,
    StoreFormatError,
    StoreNotFoundError,
    StoreUnfinishedError,
    hide_secrets,
)
from mgspmv.files import describe_error, translating_errors
from mgspmv.model import MatrixInfo, find_version_number
from mgspmv.store.access import ZARR_ERRORS, check_links, list_dir, locate_store, open_root, reaching, wait_for
from mgspmv.store.digests import combine_digests, digest_attributes
from mgspmv.store.locations import StoreLike, describe_store, find_local_path, find_path
from mgspmv.store.stored_matrix import FORMAT_VERSION

T = TypeVar("T")
BROKEN_OFF = "zarr.*.partial"
"""Leftovers of interrupted writes of metadata: Zarr writes a file of this name and then renames it."""
MARK = ".naming-"
"""Prefix of the name of a writer's mark; random digits follow."""
NAMING_TRIES, NAMING_S = 5, 0.2
"""Tries to name a version while another writer does, and the mean of the seconds between them."""
STALE_S = 600
"""Seconds after which the mark of a writer on another host is stale; assumes that the clocks of both agree."""
ROOT = "zarr.json"
_marks: set[str] = set()
"""Marks of this process."""
KEY = "mgspmv"
_VERSION_NAME = re.compile(r"v(\d{6,})-[0-9a-f]{8}")
MEND = "ingest again or restore a copy"


def list_versions(store: StoreLike) -> list[MatrixInfo]:
    """Return the metadata of each version, oldest first; the last is the current one. Arrays are not checked.

    Parameters
    ----------
    store : path or Zarr store
        As for `open`.

    Raises
    ------
    StoreError : as for `open_store`

    Examples
    --------
    >>> import mgspmv as mg
    >>> _ = mg.ingest(([0, 1, 2], [1, 2, 0]), "web.zarr")
    >>> _ = mg.update("web.zarr", insert=[(0, 2)])
    >>> [(info.number, info.nnz) for info in mg.list_versions("web.zarr")]
    [(1, 3), (2, 4)]
    """
    return read_named(store, lambda root, names, url: [read_info(get_version(root, name, url), url) for name in names])


def read_named(store: StoreLike, read: Callable[[zarr.Group, list[str], str], T]) -> T:
    """Call a function with the root, the names of the versions and the URL; retry if these were replaced meanwhile."""
    while True:
        root, url = open_place(store)
        names = list_named(root, url)
        try:
            return read(root, names, url)
        except StoreError:
            if list_named(*open_place(store)) == names:
                raise


def check_keep(keep: int | None) -> None:
    """Raise OptionError unless `keep` is at least 1, or None to keep all versions."""
    if keep is not None and (isinstance(keep, bool) or not isinstance(keep, int) or keep < 1):
        raise OptionError(f"keep must be at least 1, not {keep!r}; the current version is never dropped")


def check_target(store: StoreLike, *, overwrite: bool) -> str | None:
    """Raise StoreExistsError unless a store may be written here; return the version it replaces, or None."""
    url = describe_store(store)
    attributes = read_root_attributes(store, url)
    if attributes is None:
        return None
    if not isinstance(ours := attributes.get(KEY), dict) or "format_version" not in ours:
        raise StoreExistsError(f"{url} is a Zarr group that mgspmv did not write; choose another place")
    current: str | None = ours.get("current")
    if current is not None and not overwrite:
        raise StoreExistsError(f"{url} holds a matrix; pass overwrite=True or choose another place")
    return current


def read_root_attributes(store: StoreLike, url: str) -> dict[str, Any] | None:
    """Read the attributes of the group at a place, None for nothing; raises StoreExistsError for anything else."""
    path = find_local_path(store)
    if path is not None and not path.exists():
        return None
    place = locate_store(store)
    try:
        return dict(open_root(place, url).attrs)
    except FileNotFoundError:
        with reaching(url):
            names = list_dir(place, "")
        # An unfinished first write of a store leaves such names.
        foreign = [name for name in names if not fnmatch(name, BROKEN_OFF) and not name.startswith(MARK)]
        if foreign or (path is not None and path.is_file()):
            raise StoreExistsError(f"{url} exists and is not a Zarr group; choose another place") from None
        return None
    except ZARR_ERRORS as error:
        raise StoreExistsError(
            f"{url} has a zarr.json that is not of a group ({error}); choose another place"
        ) from error


def is_store(group: zarr.Group) -> bool:
    """Return whether a group is a matrix store, but not one of its versions."""
    attributes = group.attrs.get(KEY)
    return isinstance(attributes, dict) and "current" in attributes


def is_version(group: zarr.Group) -> bool:
    """Return whether a group is a matrix store, or one of its versions."""
    return KEY in group.attrs


def open_place(store: StoreLike) -> tuple[zarr.Group, str]:
    """Open the root of a store; return it and the place as a user would write it."""
    url = describe_store(store)
    path = find_local_path(store)
    if path is not None and not path.exists():
        raise _not_found(url)
    if path is not None and not path.is_dir():
        raise StoreNotFoundError(f"{url} is a file, not a matrix store; ingest it first with `mgspmv ingest`")
    place = locate_store(store)
    check_links(place, "zarr.json", "versions", "versions/zarr.json")
    try:
        return open_root(place, url), url
    except FileNotFoundError as error:
        raise _not_found(url) from error
    except ZARR_ERRORS as error:
        raise StoreFormatError(
            f"{url} is not a matrix store: its zarr.json is not of a group ({error}); {MEND}"
        ) from error


def _not_found(url: str) -> StoreNotFoundError:
    return StoreNotFoundError(f"there is no matrix store at {url}; create one with `mgspmv ingest`")


def list_named(root: zarr.Group, url: str) -> list[str]:
    """List the names of the versions, oldest first; the last is the current one."""
    attributes: Any = root.attrs.get(KEY)
    if not isinstance(attributes, dict) or "format_version" not in attributes:
        raise StoreFormatError(f"{url} is a Zarr group but not a matrix store; create one with `mgspmv ingest`")
    if attributes["format_version"] != FORMAT_VERSION:
        raise StoreFormatError(
            f"{url} has store format {attributes['format_version']}, but this program reads format {FORMAT_VERSION}; "
            "ingest its source again with overwrite=True"
        )
    if attributes.get("current") is None:
        raise StoreUnfinishedError(f"{url} was begun and never finished; run its `mgspmv ingest` again")
    older = attributes.get("older", [])
    names = [*older, attributes["current"]] if isinstance(older, list) else [older]
    for name in names:  # names are joined to paths, so ".." would read or remove other folders
        if not isinstance(older, list) or not isinstance(name, str) or not _VERSION_NAME.fullmatch(name):
            raise StoreDamagedError(f"{url}: its zarr.json names the version {name!r}, not a valid name; {MEND}")
    return names


def find_version(names: list[str], version: str | int, url: str) -> str:
    """Return the name of the version with this name or number; raises StoreError if there is none."""
    for name in names:
        if version in (name, find_version_number(name)):
            return name
    raise StoreError(f"{url} has no version {version!r}; it has {', '.join(names)}")


def get_version(root: zarr.Group, name: str, url: str) -> zarr.Group:
    """Return the group of a version; raises StoreError if it is missing or a link leads out of the store."""
    path = f"versions/{name}"
    check_links(root.store, path, below=True)
    with translating_metadata_errors(url, path):
        group = root.get(path)
    if not isinstance(group, zarr.Group):
        raise StoreDamagedError(f"{url}: the version {path} is missing; {MEND}")
    return group


def number_versions(store: Store) -> dict[str, int]:
    """Return the number of each version by name, even without a zarr.json; other names are ignored."""
    matches = map(_VERSION_NAME.fullmatch, list_dir(store, "versions"))
    return {match[0]: int(match[1]) for match in matches if match}


@contextlib.contextmanager
def translating_metadata_errors(url: str, path: str) -> Iterator[None]:
    """Raise StoreDamagedError in place of the errors that Zarr raises for a damaged zarr.json."""
    try:
        yield
    except ZARR_ERRORS as error:
        raise StoreDamagedError(f"{url}: the attributes in {path}/zarr.json are damaged ({error}); {MEND}") from error


def read_info(group: zarr.Group, url: str) -> MatrixInfo:
    """Read the metadata of a version; raises StoreDamagedError."""
    attributes: Any = group.attrs.get(KEY)
    with translating_metadata_errors(url, group.path):
        if attributes.get("version") != group.basename:
            raise ValueError(f"they are those of version {attributes.get('version')!r}")
        info = MatrixInfo.from_json(attributes, url)
        recorded = attributes.get("attributes_digest")  # missing in older versions
        if recorded is not None and recorded != digest_attributes(attributes):
            raise ValueError("their digest differs from the one that was recorded")
        if combine_digests(attributes["array_digests"], attributes) != attributes["digest"]:
            raise ValueError("the digest does not match kind, shape, dtypes, order and the arrays' digests")
        return info


# --- writers ---------------------------------------------------------------------------------------------------------


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
            f"{url}: leftovers could not be removed ({describe_error(error)}); the next write tries again", stacklevel=3
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
        """Make the root name the versions that a function chooses from its names, with no other writer in between.

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
        """Return the error for a writer that another has preceded; `base` was the current version when it began."""
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
            for tries_left in reversed(range(NAMING_TRIES)):
                self._put(own, _describe_holder())  # before the others are listed: of two writers, one sees the other
                if (error := self._find_other(own)) is None:
                    break
                if not tries_left:
                    raise error
                wait_for(self.place.delete(own))  # each may have seen the other; naming takes moments
                time.sleep(NAMING_S * (0.5 + random.random()))
            yield
        finally:
            _marks.discard(own)
            with tidying(self.url):
                wait_for(self.place.delete(own))

    def _find_other(self, own: str) -> StoreError | None:
        """Return an error about another writer that may be naming its version; remove the marks of those that ended."""
        names = (name for name in list_dir(self.place, "") if name.startswith(MARK) and not name.endswith(".partial"))
        for mark in names:
            if mark == own or (text := self._get(mark)) is None:
                continue
            holder = dict.fromkeys(("pid", "host", "began"), "?")
            with contextlib.suppress(ValueError, TypeError):
                holder |= json.loads(text)
            if _is_alive(mark, holder):
                return StoreError(
                    f"{self.url} is being written by process {holder['pid']} on {holder['host']} since "
                    f"{holder['began']}; nothing was changed: run this again; if that process died, wait "
                    f"{STALE_S // 60} minutes or remove {self.url}/{mark}"
                )
            wait_for(self.place.delete(mark))
        return None


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
        import psutil

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
