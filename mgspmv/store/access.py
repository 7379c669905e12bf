"""Access to the places of stores with Zarr: groups, folders, checks of the links in them, and Zarr's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
from collections.abc import Coroutine, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import zarr
from zarr.abc.buffer import Buffer, BufferPrototype
from zarr.abc.store import ByteRequest, Store
from zarr.storage import FsspecStore, LocalStore, MemoryStore, WrapperStore

import mgspmv.files
from mgspmv.errors import MgspmvError, MissingDependencyError, OptionError, StoreError
from mgspmv.files import (
    check_file,
    describe_error,
    find_web_options,
    is_url,
    name_extra,
    reach,
    strip_file_scheme,
    translating_errors,
    write_beside,
)
from mgspmv.store.locations import StoreLike, find_local_path, is_zarr_store, unwrap

T = TypeVar("T")

ZARR_ERRORS = (ArithmeticError, AttributeError, LookupError, NotImplementedError, RecursionError, TypeError, ValueError)
"""Errors that Zarr raises for a damaged zarr.json."""
FINISH_S = 10.0
"""Seconds to wait for reads and writes besides the one that failed, which may hang."""


def locate_store(store: StoreLike) -> Store:
    """Return the Zarr store at a place.

    Raises
    ------
    OptionError : no library can open the URL
    MissingDependencyError : the library that can open it is not installed
    """
    if is_zarr_store(store):
        return store
    url = os.fspath(store)
    try:
        path = find_local_path(store)
        if path is not None:
            return LocalStore(path)
        return FsspecStore.from_url(url, storage_options=find_web_options(url))
    except ValueError as error:
        raise OptionError(f"{url} is not a URL that can be opened ({error}); pass a path or another URL") from error
    except ImportError as error:
        raise MissingDependencyError(
            f"{url} needs a package that is not installed ({error}){name_extra(url)}"
        ) from error


def list_dir(store: Store, path: str) -> list[str]:
    """List the names in a folder of a Zarr store, unordered, including those just created by other processes."""

    async def collect() -> list[str]:
        own = unwrap(store)
        if isinstance(own, FsspecStore):  # its file systems may keep what they listed
            own.fs.invalidate_cache(f"{own.path}/{path}".rstrip("/"))
        return [name async for name in store.list_dir(path)]

    return wait_for(collect())


@contextlib.contextmanager
def finishing_tasks() -> Iterator[None]:
    """Wait for Zarr's other tasks after an error: their writes would recreate removed folders, and Zarr reports reads
    that are interrupted when the program exits."""

    async def finish_others() -> None:
        if others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others, timeout=FINISH_S)

    try:
        yield
    except BaseException:
        wait_for(finish_others())
        raise


@contextlib.contextmanager
def create_group(url: str, attributes: dict[str, Any]) -> Iterator[zarr.Group]:
    """Yield a new group, which gets its name once it is complete, and replaces an older one; at a URL, where nothing
    can be moved, it is removed after an error.

    Raises
    ------
    MissingDependencyError : the library that can open the URL is not installed
    StoreError : it cannot be written
    """
    if not is_url(url := strip_file_scheme(url)):
        with write_beside(url) as part, finishing_tasks():
            yield _create_group(str(part), attributes)
        return
    group = _create_group(url, attributes)
    try:
        with finishing_tasks():
            yield group
    except BaseException:
        with contextlib.suppress(Exception):  # may fail as well; the error of writing is reported
            wait_for(group.store.delete_dir(""))
        raise


def _create_group(url: str, attributes: dict[str, Any]) -> zarr.Group:
    with translating_errors("write", url):
        return zarr.open_group(locate_store(url), mode="w", zarr_format=3, attributes=attributes)


def check_links(store: Store, *paths: str, below: bool = False) -> None:
    """Check that no symbolic link leads out of a local store, and that it holds only files and folders; the store
    itself may be reached by a link. Opening a pipe without a writer would block forever.

    Parameters
    ----------
    paths : to check, relative to the store
    below : whether the contents of folders are checked too

    Raises
    ------
    StoreError : a link leads out, or something is a pipe, a socket or a device
    """
    store = unwrap(store)
    if not isinstance(store, LocalStore):
        return
    root = store.root.resolve()
    for path in paths:
        for name in _list_below(root, path) if below else (path,):
            check_file(place := root / name)
            if place.is_symlink() and not place.resolve().is_relative_to(root):
                raise StoreError(
                    f"{store.root}: {name} is a symbolic link that leads out of the store, to {os.readlink(place)}; "
                    "replace it with a copy of its target, or get the store again from a trusted source"
                )


def _list_below(root: Path, path: str) -> Iterator[str]:
    """Yield a path and all that is below it, except files; links are not followed."""
    yield path
    if (root / path).is_dir() and not (root / path).is_symlink():
        with contextlib.suppress(FileNotFoundError), os.scandir(root / path) as entries:  # it may be removed meanwhile
            for entry in entries:
                if not entry.is_file(follow_symlinks=False):
                    yield from _list_below(root, f"{path}/{entry.name}".lstrip("/"))


def open_root(store: Store, url: str, zarr_format: Literal[3] | None = 3) -> zarr.Group:
    """Open the group at a place, for reading; with None also one of Zarr version 2.

    Raises
    ------
    StoreError : a URL cannot be reached, whatever its library raises; as for `check_links`
    """
    check_links(store, "zarr.json")
    ask = partial(zarr.open_group, store, mode="r", zarr_format=zarr_format, use_consolidated=False)
    with reaching(url):
        return reach(ask) if "://" in url else ask()


@contextlib.contextmanager
def reaching(url: str) -> Iterator[None]:
    """Raise StoreError with a remedy in place of errors that libraries of object stores raise."""
    try:
        yield
    except (MgspmvError, FileNotFoundError, *ZARR_ERRORS):
        raise
    except Exception as error:
        if "://" not in url:
            raise
        said = describe_error(error)
        if isinstance(error, TimeoutError) and type(error) is not TimeoutError:  # a library's, of one request
            said = f"the server sent nothing for {mgspmv.files.REACH_S:g} seconds"
        raise StoreError(
            f"{url} cannot be reached: {said}; check the address, the connection and the credentials"
        ) from error


# --- the event loop of Zarr -------------------------------------------------------------------------------------------


def wait_for(work: Coroutine[Any, Any, T]) -> T:
    """Await a coroutine of a store in Zarr's event loop; must not be called from within that loop.

    Stores of fsspec keep connections that belong to the event loop in which they were opened, so Zarr and this package
    must use the same loop. Zarr does not expose it, but awaits the methods of any store in it.
    """
    return asyncio.run_coroutine_threadsafe(work, _find_loop(os.getpid())).result()


class _Probe(WrapperStore[Store]):
    """Empty store that records the event loop in which it is called."""

    loop: asyncio.AbstractEventLoop | None = None

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        self.loop = asyncio.get_running_loop()
        return None


@functools.cache
def _find_loop(pid: int) -> asyncio.AbstractEventLoop:
    """Find the event loop of Zarr in this process; a forked process has another."""
    probe = _Probe(MemoryStore())
    with contextlib.suppress(FileNotFoundError):
        zarr.open_group(probe, mode="r+", zarr_format=3)  # mode "r" would make Zarr copy the probe
    assert probe.loop is not None
    return probe.loop
