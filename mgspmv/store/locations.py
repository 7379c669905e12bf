"""Locations of stores: paths, URLs and Zarr's own stores; without Zarr, which takes a second to import."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mgspmv.errors import OptionError

if TYPE_CHECKING:
    from typing_extensions import TypeIs
    from zarr import Group
    from zarr.abc.store import Store
else:
    Store = Any

StoreLike = str | os.PathLike[str] | Store


def is_zarr_store(place: object) -> TypeIs[Store]:
    """Return whether an object is a store of Zarr, which is not imported: it is where there is a store."""
    if "zarr" not in sys.modules:
        return False
    from zarr.abc.store import Store

    return isinstance(place, Store)


def is_zarr_group(source: object) -> TypeIs[Group]:
    """Return whether an object is a group of Zarr, as above."""
    if "zarr" not in sys.modules:
        return False
    from zarr import Group

    return isinstance(source, Group)


def describe_store(store: StoreLike) -> str:
    """Return the place of a store as a user would write it, without the number of one in memory."""
    if not is_zarr_store(store):
        return os.fspath(store)
    from zarr.storage import MemoryStore

    return "memory://" if type(store) is MemoryStore else str(store)


def find_local_path(store: StoreLike) -> Path | None:
    """Return the path of a store that is named by a path or file URL; None for other URLs and for Zarr stores."""
    if is_zarr_store(store):
        return None
    text = os.fspath(store).removeprefix("file://")
    return None if "://" in text else Path(text)


def find_path(store: StoreLike) -> Path | None:
    """Return the absolute path of a local store; None for other stores."""
    if not is_zarr_store(store):
        path = find_local_path(store)
        return None if path is None else path.absolute()
    from zarr.storage import LocalStore

    own = unwrap(store)
    return own.root.absolute() if isinstance(own, LocalStore) else None


def find_folder(store: StoreLike) -> Path | None:
    """Return the nearest existing folder above a local store; None for other stores."""
    path = find_path(store)
    return None if path is None else next(folder for folder in path.parents if folder.is_dir())


def find_address(place: StoreLike, url: str) -> StoreLike:
    """Return the place of a store for other processes; raises OptionError for one in the memory of this process."""
    if is_in_memory(place):
        raise OptionError(
            f"{url} is in the memory of this process, where the workers of a cluster cannot reach it; use a path or "
            "URL that all of them can reach"
        )
    if is_zarr_store(place):
        from zarr.storage import LocalStore

        return str(place.root.absolute()) if type(place) is LocalStore else place
    path = find_local_path(place)
    return place if path is None else str(path.absolute())


def is_in_memory(store: StoreLike) -> bool:
    """Return whether a store is in the memory of this process."""
    if not is_zarr_store(store):
        return os.fspath(store).startswith("memory://")
    from zarr.storage import FsspecStore, MemoryStore, ObjectStore

    own = unwrap(store)
    if isinstance(own, FsspecStore):
        return "memory" in own.fs.protocol
    if isinstance(own, ObjectStore):
        return type(own.store).__name__ == "MemoryStore"
    return isinstance(own, MemoryStore)


def unwrap(store: Store) -> Store:
    """Return the store inside a user's wrappers, whose folder has the locks and links; a private attribute of Zarr."""
    from zarr.storage import WrapperStore

    while isinstance(store, WrapperStore):
        store = store._store
    return store
