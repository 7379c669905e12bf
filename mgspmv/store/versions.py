"""Versions of a store: those that its root names, and no others."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatch
from typing import Any, TypeVar

import zarr
from zarr.abc.store import Store

from mgspmv.errors import (
    OptionError,
    StoreDamagedError,
    StoreError,
    StoreExistsError,
    StoreFormatError,
    StoreNotFoundError,
    StoreUnfinishedError,
)
from mgspmv.model import MatrixInfo, find_version_number
from mgspmv.store.locations import (
    ZARR_ERRORS,
    StoreLike,
    check_links,
    describe_store,
    find_local_path,
    list_dir,
    locate_store,
    open_root,
    reaching,
)
from mgspmv.validation import digest_json

T = TypeVar("T")
FORMAT_VERSION = 1
BROKEN_OFF = "zarr.*.partial"
"""Leftovers of interrupted writes of metadata: Zarr writes a file of this name and then renames it."""
MARK = ".naming-"
"""Prefix of the name of a writer's mark, see `mgspmv.store.writers`; random digits follow."""
KEY = "mgspmv"
_VERSION_NAME = re.compile(r"v(\d{6,})-[0-9a-f]{8}")
MEND = "ingest again or restore a copy"


def list_versions(store: StoreLike) -> list[MatrixInfo]:
    """Return the metadata of each version, oldest first; the last is the current one. Arrays are not checked.

    Raises
    ------
    StoreError : as for `open_store`
    """
    return read_named(store, lambda root, names, url: [read_info(get_version(root, name, url), url) for name in names])


def read_named(store: StoreLike, read: Callable[[zarr.Group, list[str], str], T]) -> T:
    """Call a function with the root, the names of the versions and the URL; retry if these were replaced meanwhile.

    Raises
    ------
    StoreError : as for `open_store`, and what the function raises while the versions are unchanged
    """
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
    """Read the attributes of the group at a place; None if nothing exists there.

    Raises
    ------
    StoreExistsError : something other than a group exists there
    """
    path = find_local_path(store)
    if path is not None and not path.exists():
        return None
    place = locate_store(store)
    try:
        return dict(open_root(place, url).attrs)
    except FileNotFoundError:
        with reaching(url):
            names = list_dir(place, "")
        if (path is not None and path.is_file()) or any(map(_is_foreign, names)):
            raise StoreExistsError(f"{url} exists and is not a Zarr group; choose another place") from None
        return None
    except ZARR_ERRORS as error:
        raise StoreExistsError(
            f"{url} has a zarr.json that is not of a group ({error}); choose another place"
        ) from error


def _is_foreign(name: str) -> bool:
    """Return whether a name is not one that an unfinished first write of a store creates."""
    return not any(fnmatch(name, pattern) for pattern in (BROKEN_OFF, f"{MARK}*"))


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
    return parse_names(root.attrs.get(KEY), url)


def parse_names(attributes: Any, url: str) -> list[str]:
    """List the versions that the attributes of a root name, oldest first."""
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
        check_attributes(attributes)
        return info


# --- digests of matrices ---------------------------------------------------------------------------------------------


def combine_digests(digests: Mapping[str, str], claims: Mapping[str, Any]) -> str:
    """Return the digest of a matrix, over its arrays' digests and the metadata needed to read them.

    Parameters
    ----------
    claims : kind, shape, dtype, index_dtype, vertex_ids and order as in `MatrixInfo`; other keys are ignored
    """
    own = {name: digest for name, digest in digests.items() if not name.startswith("transpose/")}
    claimed = {name: claims[name] for name in ("kind", "shape", "dtype", "index_dtype", "vertex_ids")}
    if claims.get("order") is not None:  # older stores have no order and keep their digest
        claimed["order"] = claims["order"]
    return digest_json(claimed | {"arrays": own})


def digest_attributes(attributes: Mapping[str, Any]) -> str:
    """Return the SHA-256 of all attributes of a version except this digest."""
    return digest_json({name: value for name, value in attributes.items() if name != "attributes_digest"})


def check_attributes(attributes: Mapping[str, Any]) -> None:
    """Raise ValueError if the attributes of a version do not match their recorded digests."""
    recorded = attributes.get("attributes_digest")  # missing in older versions
    if recorded is not None and recorded != digest_attributes(attributes):
        raise ValueError("their digest differs from the one that was recorded")
    if combine_digests(attributes["array_digests"], attributes) != attributes["digest"]:
        raise ValueError("the digest does not match kind, shape, dtypes, order and the arrays' digests")
