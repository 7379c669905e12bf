"""New versions of a store, written completely before the root names them."""

from __future__ import annotations

import contextlib
import json
import secrets
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np
import zarr

from mgspmv.errors import StoreError, hide_secrets, translating
from mgspmv.files import translating_errors
from mgspmv.model import MatrixInfo
from mgspmv.store.access import ZARR_ERRORS, check_links, finishing_tasks, locate_store
from mgspmv.store.chunks import WrittenArray, WrittenRange, create_array, encode_checksums, finish_ranges, write_range
from mgspmv.store.digests import combine_digests, digest_attributes, is_string
from mgspmv.store.locations import StoreLike, describe_store, find_address
from mgspmv.store.read import check_version, get_member
from mgspmv.store.stored_matrix import FORMAT_VERSION
from mgspmv.store.versions import (
    KEY,
    UnknownOutcomeError,
    Writer,
    check_keep,
    check_target,
    drop,
    find_leftovers,
    list_named,
    number_versions,
    open_place,
    open_writer,
    tidying,
    translating_metadata_errors,
)


@dataclass
class Version:
    """Version under construction: no reader sees it before `commit`."""

    group: zarr.Group
    name: str
    url: str
    place: StoreLike
    writer: Writer
    base: str | None = None
    """Name of the version that it replaces, which must be the current one; None for none."""
    keep: int | None = 1
    """Number of versions to keep, counting this one and those up to `base`; None for all."""
    written: dict[str, WrittenArray] = field(default_factory=dict)
    """Arrays written so far, by name; those of the transpose begin with `transpose/`."""

    def describe(self, info: MatrixInfo) -> dict[str, Any]:
        """Return the attributes of the version, in place of those that `info` has of a version."""
        index, value = np.dtype(info.index_dtype).itemsize, 0 if info.dtype is None else np.dtype(info.dtype).itemsize
        n_of_columns = sum(name in self.written for name in ("out_degree", "out_weight"))
        of_order, (n_rows, n_cols) = 0 if info.order is None else index * info.shape[0], info.shape
        claims = {name: own for name, own in vars(info).items() if name not in ("url", "digest")} | {
            "shape": [n_rows, n_cols],
            "nbytes": (index + value) * info.nnz + 8 * (n_rows + 1 + n_of_columns * n_cols) + of_order,
            "provenance": json.loads(hide_secrets(json.dumps(info.provenance))),
            "has_transpose": any(name.startswith("transpose/") for name in self.written),
            "version": self.name,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "format_version": FORMAT_VERSION,
            "array_digests": (digests := {name: array.digest for name, array in self.written.items()}),
            "chunk_checksums": {name: encode_checksums(array.checksums) for name, array in self.written.items()},
        }
        claims["digest"] = combine_digests(digests, claims)
        return claims | {"attributes_digest": digest_attributes(claims)}

    def open_rows(self, place: str, shape: tuple[int, int], *, has_values: bool) -> zarr.Group:
        """Open the group of CSR arrays, its own or the `transpose`; with values it is an anndata csr_matrix."""
        group = self.group.require_group(place) if place else self.group
        if has_values:
            encoding = {"encoding-type": "csr_matrix", "encoding-version": "0.1.0"}
            group.update_attributes({**encoding, "shape": list(shape)})
        return group

    def write_array(self, name: str, array: Any, threads: int | None = None) -> None:
        """Write a whole array, or an object with a dtype, a length and slices like one."""
        self.written[name] = write_array(self.group, name, array, threads)

    def create_array(self, name: str, n: int, dtype: Any) -> None:
        """Create an array of n elements, of a dtype or `str`, to be written by ranges; see `VersionAddress`."""
        create_array(self.group, name, n, dtype)

    def finish_array(self, name: str, ranges: Iterable[WrittenRange]) -> None:
        """Write the chunks that no range covers alone; see `finish_ranges`."""
        self.written[name] = finish_ranges(get_member(self.group, name, self.url), ranges)

    def address(self) -> VersionAddress:
        """Return the address of this version for other processes that write its arrays.

        Raises
        ------
        OptionError : the store is in the memory of this process
        """
        return VersionAddress(find_address(self.place, self.url), self.name)

    def commit(self, attributes: dict[str, Any]) -> MatrixInfo:
        """Write the version's attributes, check that it is complete, then name it in the root: the last write.

        Returns
        -------
        Metadata of the version.

        Raises
        ------
        StoreError : `base` is no longer the current version; it is unknown whether the root names this one
        """
        self.group.attrs[KEY] = attributes
        made = check_version(self.group, self.place, self.url)

        def choose(before: list[Any]) -> list[Any]:
            if before[-1] != self.base:
                raise self.writer.preceded_error(self.base)
            return [*filter(None, before), self.name][-(self.keep or 0) :]

        self.writer.name(choose)
        return made.info


@dataclass(frozen=True)
class VersionAddress:
    """Address of a version under construction, for other processes."""

    place: StoreLike = field(repr=False)  # as in `StoreAddress`
    name: str

    def open(self, name: str) -> zarr.Array[Any]:
        """Open one of its arrays for writing."""
        path, store = f"versions/{self.name}", locate_store(self.place)
        group = zarr.open_group(store, mode="r+", path=path, use_consolidated=False)
        array: zarr.Array[Any] = get_member(group, name, describe_store(self.place))
        return array


@contextlib.contextmanager
def begin_version(store: StoreLike, *, base: str | None = None, keep: int | None = 1) -> Iterator[Version]:
    """Open a store for one new version.

    After an exception, the unfinished version is removed, and the store if it is new; on success, versions that are not
    kept are removed, and leftovers of other writers. A version that is not committed is removed too.

    Parameters
    ----------
    base : name of the version that the new one is made from or replaces, see `check_target`: if another is the current
        one, at the start or at the end, nothing is changed; None if there is none
    keep : number of versions up to `base` and the new one to keep; None for all

    Raises
    ------
    StoreExistsError : a finished store exists and `base` is None, or something that is not a store of mgspmv exists
    StoreError : the place cannot be written; another process writes it; `base` is not the current version
    """
    url, is_named = describe_store(store), False
    with translating(url, "write"), open_writer(store) as writer:
        check_target(store, overwrite=base is not None)
        check_links(writer.place, "zarr.json", "versions", "versions/zarr.json")
        is_new = writer.begin()
        name = f"v{1 + max(number_versions(writer.place).values(), default=0):06d}-{secrets.token_hex(4)}"
        try:
            # Errors are translated before the cleanup, so that they state the free space at the failure.
            with finishing_tasks(), translating(url, "write"):
                with translating_errors("write", writer.url), translating_metadata_errors(writer.url, "versions"):
                    root = zarr.open_group(writer.place, mode="r+", zarr_format=3, use_consolidated=False)
                    group = root.require_group("versions").create_group(name)
                writer.check_base(base)
                yield Version(group, name, url, store, writer, base, keep)
            with tidying(writer.url):
                names = writer.list_names()
                if name not in names:
                    drop(writer.place, name)
                if names != [None]:
                    writer.clean(names)
        except UnknownOutcomeError:
            raise
        except BaseException as error:
            with tidying(writer.url):
                is_named = name in writer.list_names()
                if not is_named:
                    writer.give_up(name, is_new=is_new)
            if is_named:
                warnings.warn(
                    f"the current version of {url} is now {name}: it was completed before the interruption, so do not "
                    "run this again",
                    stacklevel=3,
                )
            elif isinstance(error, (OSError, StoreError, *ZARR_ERRORS)):  # caused by another that replaced `base`
                writer.check_base(base)
            raise


def drop_versions(store: StoreLike, *, keep: int) -> list[str]:
    """Remove all but the newest versions, and unfinished ones; return the names of the removed versions.

    Parameters
    ----------
    store : path or Zarr store
        As for `open`.
    keep : int
        Number of versions to keep, including the current one.

    Raises
    ------
    OptionError : fewer than one
    StoreError : as for `open_store`; another process writes it

    Examples
    --------
    >>> import mgspmv as mg
    >>> _ = mg.ingest(([0, 1, 2], [1, 2, 0]), "web.zarr")
    >>> _ = mg.update("web.zarr", insert=[(0, 2)])
    >>> len(mg.drop_versions("web.zarr", keep=1)), len(mg.list_versions("web.zarr"))
    (1, 1)
    """
    check_keep(keep)
    root, url = open_place(store)
    names = list_named(root, url)
    if len(names) <= keep and not find_leftovers(root.store, names):
        return []
    with open_writer(store) as writer:
        kept = writer.name(lambda before: before[-keep:])
        with tidying(writer.url):
            writer.clean(kept)
    return [name for name in names if name not in kept]


def write_array(group: zarr.Group, name: str, array: Any, threads: int | None = None) -> WrittenArray:
    """Write a whole array, or an object with a dtype, a length and slices like one."""
    target = create_array(group, name, len(array), str if is_string(array) else array.dtype)
    own_threads = 1 if is_string(array) else threads  # strings of Python are many times as large as what is written
    return finish_ranges(target, [write_range(target, 0, array, own_threads)])
