"""Sparse matrices in existing Zarr groups: groups of anndata and of binsparse, and plain CSR arrays.

`mgspmv.ingest.group_formats` finds the arrays of each format.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import zarr
from zarr.abc.store import Store
from zarr.storage import ZipStore

from mgspmv.errors import OptionError, SourceError, SourceNotFoundError, StoreError
from mgspmv.ingest.group_formats import (
    BATCH_ENTRIES,
    DESCRIBE,
    GroupMatrix,
    ZarrArray,
    ZarrGroup,
    describe_csr,
    find_format,
    translating_damage,
)
from mgspmv.ingest.source import Layout, Source
from mgspmv.ingest.values import choose_value_dtype
from mgspmv.model import CooBatch, index_dtype
from mgspmv.store.locations import StoreLike, check_links, describe_store, locate_store
from mgspmv.store.versions import is_store, is_version

GROUP_FORMATS = ("anndata", "binsparse", "csr")


class GroupSource(Source):
    """Sparse matrix in a Zarr group as a `Source`; a batch is read at a time, by whole chunks.

    Entries are those that are stored, including zeros and duplicates; a missing chunk holds the array's fill value, as
    in Zarr. A bool matrix is a pattern: of its True entries, without values. Other values become int64, float32 or
    float64.

    Parameters
    ----------
    source : path of a group in a local folder or .zip file, URL, Zarr store, or the group itself
    format : `anndata` for its csr_matrix and csc_matrix, or a whole AnnData, of which X is read; `binsparse`; `csr` for
        arrays `indptr`, `indices` and, unless it is a pattern, `data`; default: by the group's attributes and arrays
    n_cols : columns of plain CSR arrays, where the group has no attribute `shape`

    Raises
    ------
    SourceNotFoundError : there is no group
    SourceError : the group is incomplete or inconsistent; by `batches`, elements of its arrays are invalid
    SourceError : a group of another type
    CapacityError : a chunk of an array, by its metadata, takes more than the free memory
    OptionError : n_cols contradicts the group's shape, or is passed for a format that states it
    """

    default_kind = "matrix"

    def __init__(self, source: StoreLike | zarr.Group, *, format: str | None = None, n_cols: int | None = None) -> None:
        group = source if isinstance(source, zarr.Group) else _open_group(source)
        name = str(group.store_path) if isinstance(source, zarr.Group) else describe_store(source)
        found = ZarrGroup(name.rstrip("/"), group)
        if is_version(group):
            raise found.make_error(
                "this is a matrix store of mgspmv or one of its versions, which is not read by format= or from a .zip "
                "file; name the folder of the store, and leave out format="
            )
        chosen = format or find_format(found)
        if n_cols is not None and chosen != "csr":
            raise OptionError(f"n_cols= applies to plain CSR arrays, but {name} is read as {chosen}; leave it out")
        self._matrix = describe_csr(found, n_cols) if chosen == "csr" else DESCRIBE[chosen](found)
        self.name = self._matrix.found.name

    def batches(self) -> Iterator[CooBatch]:
        """Yield all entries, in at least one batch; the pointers of all lines are in memory."""
        matrix, n_entries = self._matrix, len(self._matrix.indices)
        pointers = None if matrix.pointers is None else _read_pointers(matrix.pointers, matrix.indices)
        for start in range(0, max(1, n_entries), BATCH_ENTRIES):
            stop = min(start + BATCH_ENTRIES, n_entries)
            if matrix.lines is not None:
                lines = matrix.lines.read_below(start, stop, matrix.n_lines)
            else:
                assert pointers is not None  # a matrix has pointers or lines
                lines = _find_lines(pointers, start, stop)
            yield _make_batch(matrix, start, lines)

    def layout(self) -> Layout:
        """Return the shape; rows and columns are numbers already."""
        matrix = self._matrix
        zarr_format = matrix.found.group.metadata.zarr_format
        header = {"shape": list(matrix.shape), "entries": len(matrix.indices), "zarr_format": zarr_format}
        provenance = {"name": self.name, "format": matrix.format, "header": header}
        return Layout(matrix.shape, provenance=provenance, stated=partial(SourceError, source=self.name))

    @property
    def n_entries(self) -> int:
        """Number of stored entries, as the group states."""
        return len(self._matrix.indices)


def find_matrix_store(source: StoreLike | zarr.Group) -> StoreLike | None:
    """Return the location of a source if it is a matrix store of mgspmv outside a .zip file; None for others.

    Raises
    ------
    SourceNotFoundError, SourceError : as for `GroupSource`, if there is no group
    """
    if isinstance(source, zarr.Group) or isinstance(_find_store(source)[0], ZipStore):
        return None
    return source if is_store(_open_group(source)) else None


def is_group_path(path: str | os.PathLike[str]) -> bool:
    """Return whether a path or URL is that of a Zarr group: by its name or, if it is local, by its contents."""
    text = os.fspath(path)
    if "://" in text:
        return any(part.endswith(".zarr") for part in text.split("/"))
    local = Path(text)
    if local.is_file():
        return local.suffix == ".zip" and _is_zipped_group(local)
    named = any(part.endswith((".zarr", ".zip")) for part in local.parts)
    return named or any((local / name).exists() for name in ("zarr.json", ".zgroup"))


def _is_zipped_group(path: Path) -> bool:
    """Return whether an archive holds a Zarr group, and not just a folder with one."""
    try:
        with zipfile.ZipFile(path) as archive:
            return not {"zarr.json", ".zgroup", ".zattrs", ".zmetadata"}.isdisjoint(archive.namelist())
    except (OSError, zipfile.BadZipFile):
        return True  # Zarr raises the error for a damaged archive


def _open_group(source: StoreLike) -> zarr.Group:
    name = describe_store(source)
    store, path = _find_store(source)
    try:
        check_links(store, path, below=True)
    except StoreError as error:
        raise SourceError(str(error), source=name) from error
    with translating_damage(name, "its metadata"):
        try:
            node = zarr.open(store, mode="r", path=path, use_consolidated=False)
        except FileNotFoundError as error:
            raise SourceNotFoundError("there is no Zarr group; check the path", source=name) from error
    if not isinstance(node, zarr.Group):
        raise SourceError("this is an array, expected a group of arrays; name the group", source=name)
    return node


def _find_store(source: StoreLike) -> tuple[Store, str]:
    """Find the store, and the path inside it if the source leads into a .zip file."""
    if isinstance(source, Store):
        return source, ""
    text = os.fspath(source).removeprefix("file://")
    if "://" in text:
        return locate_store(source), ""
    path = Path(text)
    for file in (path, *path.parents):
        if file.suffix == ".zip" and file.is_file():
            return ZipStore(file, mode="r"), "/".join(path.relative_to(file).parts)
    return locate_store(path), ""


# --- entries ---------------------------------------------------------------------------------------------------------


def _read_pointers(pointers: ZarrArray, indices: ZarrArray) -> np.ndarray:
    """Read and check the number of the first entry of each line, then the number of entries."""
    n_entries = len(indices)
    bounds = np.empty(len(pointers), index_dtype(n_entries + 1))
    for start in range(0, len(bounds), BATCH_ENTRIES):
        bounds[start : start + BATCH_ENTRIES] = pointers.read_below(
            start, min(start + BATCH_ENTRIES, len(bounds)), n_entries + 1
        )
    falls = bounds[1:] < bounds[:-1]
    if falls.any():
        k = int(falls.argmax())
        raise pointers.make_error(f"does not ascend: element {k + 1} is {bounds[k + 1]} after {bounds[k]}")
    if bounds[0] != 0:
        raise pointers.make_error(f"begins with {bounds[0]}, expected 0")
    if bounds[-1] != n_entries:
        raise pointers.make_error(f"ends with {bounds[-1]}, expected {n_entries}, the number of {indices.name}")
    return bounds


def _find_lines(pointers: np.ndarray, start: int, stop: int) -> np.ndarray:
    """Return the line of each entry start .. stop - 1."""
    first, last = np.searchsorted(pointers, start, "right") - 1, np.searchsorted(pointers, stop)
    lines = np.arange(first, last, dtype=index_dtype(len(pointers) - 1))
    return np.repeat(lines, np.diff(np.clip(pointers[first : last + 1], start, stop)))


def _make_batch(matrix: GroupMatrix, start: int, lines: np.ndarray) -> CooBatch:
    stop = start + len(lines)
    places = matrix.indices.read_below(start, stop, matrix.line_length)
    rows, cols = (places, lines) if matrix.by_columns else (lines, places)
    if matrix.values is None:
        return CooBatch(rows, cols, None)
    held = matrix.values
    values = np.repeat(held, stop - start) if isinstance(held, np.ndarray) else held.read(start, stop)
    if matrix.are_flags:
        kept = values != 0
        return CooBatch(rows[kept], cols[kept], None)
    dtype = choose_value_dtype(matrix.values.dtype, matrix.found.name)
    return CooBatch(rows, cols, values.astype(dtype, copy=False))
