"""Where stores are: paths, URLs and Zarr's own stores; and what leads out of them."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import zarr
from zarr.abc.store import Store
from zarr.storage import FsspecStore, LocalStore, MemoryStore, ObjectStore, WrapperStore

from mgspmv.errors import MgspmvError, MissingDependencyError, OptionError, StoreError, hide_secrets
from mgspmv.files import check_file, describe_error, find_web_options, name_extra, reach
from mgspmv.store.loop import wait_for

ZARR_ERRORS = (ArithmeticError, AttributeError, LookupError, NotImplementedError, RecursionError, TypeError, ValueError)
"""What Zarr raises for a zarr.json that is not as it was written."""
StoreLike = str | os.PathLike[str] | Store

FINISH_S = 10.0
"""Seconds to wait for reads and writes besides the one that failed, which may hang."""


def is_read_in_place(url: str) -> bool:
    """Whether whole chunks are decoded where their elements are wanted, if in their own dtype; see `chunks`."""
    return find_local_path(url) is not None


def locate_store(store: StoreLike) -> Store:
    """The Zarr store at a place.

    Raises
    ------
    OptionError : a URL that no library knows
    MissingDependencyError : the library that knows it is not installed
    """
    if isinstance(store, Store):
        return store
    url = os.fspath(store)
    try:
        if url.startswith("obstore+"):
            return _open_obstore(url.removeprefix("obstore+"))
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


def _open_obstore(url: str) -> Store:
    from obstore.exceptions import BaseError
    from obstore.store import from_url

    local = {"mkdir": True} if url.startswith("file://") else {}
    try:
        return ObjectStore(from_url(url, **local))
    except BaseError as error:
        raise ValueError(str(error).partition("\n")[0]) from error


def describe_store(store: StoreLike) -> str:
    """The place as a user would write it."""
    return str(store) if isinstance(store, Store) else os.fspath(store)


def find_local_path(store: StoreLike) -> Path | None:
    """The path that a store was named by; None for a URL or an object of Zarr."""
    if isinstance(store, Store):
        return None
    text = os.fspath(store).removeprefix("obstore+").removeprefix("file://")
    return None if "://" in text else Path(text)


def find_path(store: StoreLike) -> Path | None:
    """Where a local store is; None for what is elsewhere."""
    path = store.root if type(store) is LocalStore else find_local_path(store)
    return None if path is None else path.absolute()


def find_files(store: Store) -> Path | None:
    """The local folder that a store of Zarr has its files in, by whatever library; None for what is elsewhere."""
    store = _unwrap(store)
    if isinstance(store, LocalStore):
        return store.root.absolute()
    if isinstance(store, FsspecStore) and "file" in store.fs.protocol:
        return Path(store.path).absolute()
    if isinstance(store, ObjectStore) and type(store.store).__name__ == "LocalStore" and store.store.prefix:
        return Path(store.store.prefix).absolute()
    return None


def find_folder(store: StoreLike) -> Path | None:
    """The folder that a local store is in, or the nearest one that there is; None for what is elsewhere."""
    path = find_path(store)
    return None if path is None else next(folder for folder in path.parents if folder.is_dir())


def find_address(place: StoreLike, url: str) -> StoreLike:
    """What leads other processes to a place; raises OptionError for one in the memory of this process."""
    if is_in_memory(place):
        raise OptionError(
            f"{url} is in the memory of this process, where the workers of a cluster cannot reach it; use a path or "
            "URL that all of them can reach"
        )
    path = place.root if type(place) is LocalStore else find_local_path(place)
    return place if path is None else str(path.absolute())


def is_in_memory(store: StoreLike) -> bool:
    """Tell whether a store is in the memory of this process."""
    store = _unwrap(store) if isinstance(store, Store) else store
    if isinstance(store, FsspecStore):
        return "memory" in store.fs.protocol
    if isinstance(store, ObjectStore):
        return type(store.store).__name__ == "MemoryStore"
    if isinstance(store, Store):
        return isinstance(store, MemoryStore)
    return os.fspath(store).removeprefix("obstore+").startswith("memory://")


def _unwrap(store: Store) -> Store:
    """The store that a user's wrappers are around: locks and links are of its folder; Zarr gives it privately."""
    while isinstance(store, WrapperStore):
        store = store._store
    return store


def represent(address: Any, place: StoreLike, *others: Any) -> str:
    """For Dask, which logs what tasks that fail were given."""
    return f"{type(address).__name__}({', '.join(map(repr, (hide_secrets(describe_store(place)), *others)))})"


def list_dir(store: Store, path: str) -> list[str]:
    """Names of what is in a folder of a Zarr store, in no order; with what other processes have put there by now."""

    async def collect() -> list[str]:
        own = _unwrap(store)
        if isinstance(own, FsspecStore):  # its file systems may keep what they listed
            own.fs.invalidate_cache(f"{own.path}/{path}".rstrip("/"))
        return [name async for name in store.list_dir(path)]

    return wait_for(collect())


@contextlib.contextmanager
def finishing_tasks() -> Iterator[None]:
    """Wait, after an error, for what else Zarr has begun: writes would make removed folders again, and Zarr complains
    of reads that the end of a program cuts off."""
    try:
        yield
    except BaseException:
        wait_for(_finish_others())
        raise


async def _finish_others() -> None:
    if others := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(others, timeout=FINISH_S)


def check_links(store: Store, *paths: str, below: bool = False) -> None:
    """See that no symbolic link leads out of a local store, and that what is in it are files and folders; the store
    itself may be reached by a link. To open a pipe that nobody writes to would take forever.

    Parameters
    ----------
    paths : what is looked at
    below : whether what is in folders is, too

    Raises
    ------
    StoreError : one does, or something is a pipe, a socket or a device
    """
    store = _unwrap(store)
    if not isinstance(store, LocalStore):
        return
    root = store.root.resolve()
    for path in paths:
        for name in _list_below(root, path) if below else (path,):
            check_file(place := root / name)
            if place.is_symlink() and not place.resolve().is_relative_to(root):
                raise StoreError(
                    f"{store.root}: {name} is a symbolic link that leads out of the store, to {os.readlink(place)}; "
                    "put a copy of what it leads to in its place, or get the store anew from whom you trust"
                )


def _list_below(root: Path, path: str) -> Iterator[str]:
    """A path, and what is below it but for files; no link is followed."""
    yield path
    if (root / path).is_dir() and not (root / path).is_symlink():
        with contextlib.suppress(FileNotFoundError), os.scandir(root / path) as entries:  # it may be removed meanwhile
            for entry in entries:
                if not entry.is_file(follow_symlinks=False):
                    yield from _list_below(root, f"{path}/{entry.name}".lstrip("/"))


def open_root(store: Store, url: str) -> zarr.Group:
    """The group at a place, for reading.

    Raises
    ------
    StoreError : what is behind a URL cannot be reached, its libraries have errors of their own; as for `check_links`
    """
    check_links(store, "zarr.json")
    ask = partial(zarr.open_group, store, mode="r", zarr_format=3, use_consolidated=False)
    with explain_reaching(url):
        return reach(ask) if "://" in url else ask()


@contextlib.contextmanager
def explain_reaching(url: str) -> Iterator[None]:
    """Say what is meant where a library of an object store has an error of its own."""
    try:
        yield
    except (MgspmvError, FileNotFoundError, *ZARR_ERRORS):
        raise
    except Exception as error:
        if "://" not in url:
            raise
        raise StoreError(
            f"{url} cannot be reached: {describe_error(error)}; check the address, the connection and the credentials"
        ) from error
