"""Sparse matrices in existing Zarr groups: anndata, binsparse and plain CSR arrays.

A compressed matrix lists its entries row after row or column after column: these are its lines. binsparse is read as
in version 0.1 of its specification (https://binsparse.org), except that entries need not be sorted.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from zarr.abc.store import Store
from zarr.storage import ZipStore

from mgspmv.display import format_bytes
from mgspmv.errors import CapacityError, MgspmvError, OptionError, SourceError, SourceNotFoundError, StoreError
from mgspmv.ingest.source import Layout, Source, choose_value_dtype
from mgspmv.ingest.tokens import INT64_MAX
from mgspmv.model import CooBatch, free_memory, index_dtype
from mgspmv.store.access import check_links, finishing_tasks, locate_store
from mgspmv.store.locations import StoreLike, describe_store, is_zarr_store
from mgspmv.store.versions import is_store, is_version

BATCH_ENTRIES = 1 << 19
"""Entries per batch, unless a chunk has more."""
_ANNDATA_VERSION = "0.1.0"
_BINSPARSE_VERSION = re.compile(r"0\.1(\.\d+)?")
_BINSPARSE_FORMATS = ("CSR", "CSC", "COO", "COOR", "COOC")


class GroupSource(Source):
    """Sparse matrix in a Zarr group as a `Source`; a batch is read at a time.

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
        self.name = name = name.rstrip("/")
        if is_version(group):
            raise SourceError(
                "this is a matrix store of mgspmv or one of its versions, which is not read by format= or from a .zip "
                "file; name the folder of the store, and leave out format=",
                source=name,
            )
        chosen = format or _find_format(group, name)
        if n_cols is not None and chosen != "csr":
            raise OptionError(f"n_cols= applies to plain CSR arrays, but {name} is read as {chosen}; leave it out")
        describe = {"anndata": _describe_anndata, "binsparse": _describe_binsparse}
        self._matrix = _describe_csr(group, name, n_cols) if chosen == "csr" else describe[chosen](group, name)
        self.name, self._zarr_format = self._matrix.name, group.metadata.zarr_format

    def batches(self) -> Iterator[CooBatch]:
        """Yield all entries, in at least one batch; the pointers of all lines are in memory."""
        matrix, n_entries = self._matrix, self.n_entries
        pointers = None if matrix.is_listed else _read_pointers(matrix.lines, matrix.indices)
        arrays = (matrix.indices, matrix.values, *([matrix.lines] if matrix.is_listed else []))
        step = max(BATCH_ENTRIES, *(each.chunk for each in arrays if isinstance(each, _ZarrArray)))
        for start in range(0, max(1, n_entries), step):
            stop = min(start + step, n_entries)
            if pointers is None:
                lines = matrix.lines.read_below(start, stop, matrix.n_lines)
            else:  # the line of each entry
                first, last = np.searchsorted(pointers, start, "right") - 1, np.searchsorted(pointers, stop)
                own = np.arange(first, last, dtype=index_dtype(matrix.n_lines))
                lines = np.repeat(own, np.diff(np.clip(pointers[first : last + 1], start, stop)))
            places = matrix.indices.read_below(start, stop, matrix.shape[0 if matrix.by_columns else 1])
            rows, cols = (places, lines) if matrix.by_columns else (lines, places)
            if matrix.values is None:
                yield CooBatch(rows, cols, None)
                continue
            held = matrix.values
            values = np.repeat(held, stop - start) if isinstance(held, np.ndarray) else held.read(start, stop)
            if matrix.are_flags:
                yield CooBatch(rows[values != 0], cols[values != 0], None)
            else:
                yield CooBatch(rows, cols, values.astype(choose_value_dtype(held.dtype, matrix.name), copy=False))

    def layout(self) -> Layout:
        """Return the shape; rows and columns are numbers already."""
        matrix = self._matrix
        header = {"shape": list(matrix.shape), "entries": self.n_entries, "zarr_format": self._zarr_format}
        provenance = {"name": self.name, "format": matrix.format, "header": header}
        return Layout(matrix.shape, provenance=provenance, stated=partial(SourceError, source=self.name))

    @property
    def n_entries(self) -> int:
        """Number of stored entries, as the group states."""
        return len(self._matrix.indices)


# --- places of groups ------------------------------------------------------------------------------------------------


def find_matrix_store(source: StoreLike | zarr.Group) -> StoreLike | None:
    """Return the location of a source if it is a matrix store of mgspmv outside a .zip file; None for others.

    Raises
    ------
    SourceNotFoundError, SourceError : as for `GroupSource`, if there is no group
    """
    if isinstance(source, zarr.Group) or isinstance(_find_store(source)[0], ZipStore):
        return None
    return source if is_store(_open_group(source)) else None


def _open_group(source: StoreLike) -> zarr.Group:
    name = describe_store(source)
    store, path = _find_store(source)
    try:
        check_links(store, path, below=True)
    except StoreError as error:
        raise SourceError(str(error), source=name) from error
    with _translating_damage(name, "its metadata"):
        try:
            node = zarr.open(store, mode="r", path=path, use_consolidated=False)
        except FileNotFoundError as error:
            raise SourceNotFoundError("there is no Zarr group; check the path", source=name) from error
    if not isinstance(node, zarr.Group):
        raise SourceError("this is an array, expected a group of arrays; name the group", source=name)
    return node


def _find_store(source: StoreLike) -> tuple[Store, str]:
    """Find the store, and the path inside it if the source leads into a .zip file."""
    if is_zarr_store(source):
        return source, ""
    text = os.fspath(source).removeprefix("file://")
    if "://" in text:
        return locate_store(source), ""
    path = Path(text)
    for file in (path, *path.parents):
        if file.suffix == ".zip" and file.is_file():
            return ZipStore(file, mode="r"), "/".join(path.relative_to(file).parts)
    return locate_store(path), ""


@contextlib.contextmanager
def _translating_damage(source: str, what: str) -> Iterator[None]:
    """Convert errors of codecs and of access to SourceError."""
    try:
        yield
    except MgspmvError:
        raise
    except Exception as error:  # codecs and libraries that fetch raise errors of many types
        text = f"{type(error).__name__}: {error}".rstrip(": ")
        raise SourceError(
            f"{what} cannot be read ({text}); check the path and the connection, or write it again", source=source
        ) from error


# --- arrays ----------------------------------------------------------------------------------------------------------


class _ZarrArray:
    """One-dimensional array of a group, of integers or of values.

    Raises
    ------
    SourceError : it is missing, or has another dtype or more dimensions
    CapacityError : its chunks, by its metadata, are larger than the free memory
    """

    def __init__(self, group: zarr.Group, source: str, name: str, *, are_integers: bool = False) -> None:
        self.name, self._source = name, source
        array = _find_member(group, source, name)
        if not isinstance(array, zarr.Array):
            raise SourceError(f"the array {name!r} is missing; write the group again", source=source)
        self._array, self.dtype = array, array.dtype
        if array.ndim != 1:
            raise self.make_error(f"has shape {array.shape}, expected one dimension")
        self._n, self.chunk = array.shape[0], array.chunks[0]
        if self._n > INT64_MAX or not 0 < self.chunk <= INT64_MAX:
            raise self.make_error(f"states an invalid size: {self._n} elements in chunks of {self.chunk}")
        n_bytes, free = self.chunk * array.dtype.itemsize, free_memory()
        if n_bytes > free:
            raise CapacityError(
                f"{source}: the array {name!r} has chunks of {self.chunk:,} elements, which take "
                f"{format_bytes(n_bytes)} each, but {format_bytes(free)} of memory are free; write it with smaller "
                "chunks"
            )
        if are_integers and array.dtype.kind not in "iu":
            raise self.make_error(f"has dtype {array.dtype}, expected integers")
        if not are_integers and array.dtype.kind != "b":
            choose_value_dtype(array.dtype, source)

    def __len__(self) -> int:
        return int(self._n)

    def check_length(self, n: int) -> None:
        """Raise SourceError unless it has n elements."""
        if len(self) != n:
            raise self.make_error(f"has {len(self)} elements, expected {n}")

    def read(self, start: int, stop: int) -> np.ndarray:
        """Read elements start .. stop - 1; raises SourceError for a chunk that is damaged or cannot be fetched."""
        with _translating_damage(self._source, self.name), finishing_tasks():
            return np.asarray(self._array[start:stop])

    def read_below(self, start: int, stop: int, limit: int) -> np.ndarray:
        """Read integers that must be in 0 .. limit-1, as int32 or int64.

        Raises
        ------
        SourceError : one is outside, or as for `read`
        """
        found = self.read(start, stop)
        if len(found) and (found.min() < 0 or found.max() >= limit):
            k = int(np.flatnonzero((found < 0) | (found >= limit))[0])
            raise self.make_error(f"has {found[k]} as element {start + k}, which is outside 0..{limit - 1}")
        return found.astype(index_dtype(limit), copy=False)

    def make_error(self, message: str) -> SourceError:
        return SourceError(f"the array {self.name!r} {message}; write the group again", source=self._source)


def _find_member(group: zarr.Group, source: str, name: str) -> zarr.Group | zarr.Array[Any] | None:
    with _translating_damage(source, name):
        return group.get(name)


def _check_shape(stated: Any, source: str) -> tuple[int, int]:
    are_sizes = isinstance(stated, list) and all(type(n) is int and 0 <= n < INT64_MAX for n in stated)
    if not are_sizes or len(stated) != 2:
        raise SourceError(f"expected a shape of two sizes, found {stated}; write the group again", source=source)
    return stated[0], stated[1]


@dataclass(frozen=True)
class _GroupMatrix:
    """Sparse matrix, and the arrays that hold its entries; raises SourceError if their lengths do not match."""

    name: str
    """Path or URL of its group."""
    format: str
    """Format in which the group is read."""
    shape: tuple[int, int]
    by_columns: bool
    """True if lines are columns, False if they are rows."""
    is_listed: bool
    """True if `lines` has the number of each entry's line; False if it has the number of the first entry of each line,
    then the number of entries."""
    lines: _ZarrArray
    indices: _ZarrArray
    """Position of each entry in its line."""
    values: _ZarrArray | np.ndarray | None
    """Values of the entries, of shape (1,) if all are equal; None for a pattern."""
    are_flags: bool
    """Whether values are booleans."""

    def __post_init__(self) -> None:
        if isinstance(self.values, _ZarrArray):
            self.values.check_length(len(self.indices))
        self.lines.check_length(len(self.indices) if self.is_listed else 1 + self.n_lines)

    @property
    def n_lines(self) -> int:
        return self.shape[1 if self.by_columns else 0]


# --- formats ---------------------------------------------------------------------------------------------------------


def _find_format(group: zarr.Group, name: str) -> str:
    if "binsparse" in group.attrs:
        return "binsparse"
    if "encoding-type" in group.attrs:
        return "anndata"
    if all(isinstance(_find_member(group, name, array), zarr.Array) for array in ("indptr", "indices")):
        return "csr"
    raise SourceError(
        "this group is not a sparse matrix; expected anndata, binsparse, or the arrays indptr and indices; name a "
        f"group inside it, such as {name}/GROUP",
        source=name,
    )


def _describe_anndata(group: zarr.Group, name: str) -> _GroupMatrix:
    what, version = (group.attrs.get(f"encoding-{fact}") for fact in ("type", "version"))
    if what == "anndata":
        inner = _find_member(group, name, "X")
        if isinstance(inner, zarr.Group):
            return _describe_anndata(inner, f"{name}/X")
        raise SourceError(
            f"X of this AnnData is {'missing' if inner is None else 'dense'}; name a sparse group inside it, such as "
            f"{name}/layers/counts",
            source=name,
        )
    if what not in ("csr_matrix", "csc_matrix") or version != _ANNDATA_VERSION:
        raise SourceError(
            f"this group of anndata is a {what} of version {version}; supported are csr_matrix and csc_matrix of "
            f"version {_ANNDATA_VERSION}",
            source=name,
        )
    shape = _check_shape(group.attrs.get("shape"), name)
    return _describe_compressed(group, name, f"anndata {what}", shape, _ZarrArray(group, name, "data"))


def _describe_csr(group: zarr.Group, name: str, n_cols: int | None) -> _GroupMatrix:
    stated = group.attrs.get("shape")
    if n_cols is not None and n_cols < 0:
        raise OptionError(f"n_cols must be 0 or more, not {n_cols}")
    if stated is None and n_cols is None:
        raise SourceError("the group does not state its number of columns; pass n_cols=", source=name)
    if stated is None:
        shape = max(0, len(_ZarrArray(group, name, "indptr", are_integers=True)) - 1), n_cols or 0
    else:
        shape = _check_shape(stated, name)
        if n_cols not in (None, shape[1]):
            raise OptionError(f"n_cols={n_cols} contradicts the shape of {name}, {shape}; leave it out")
    values = None if _find_member(group, name, "data") is None else _ZarrArray(group, name, "data")
    return _describe_compressed(group, name, "csr", shape, values)


def _describe_compressed(
    group: zarr.Group, name: str, format: str, shape: tuple[int, int], values: _ZarrArray | None
) -> _GroupMatrix:
    pointers, indices = (_ZarrArray(group, name, array, are_integers=True) for array in ("indptr", "indices"))
    are_flags = values is not None and values.dtype == bool
    return _GroupMatrix(name, format, shape, "csc_matrix" in format, False, pointers, indices, values, are_flags)


def _describe_binsparse(group: zarr.Group, name: str) -> _GroupMatrix:
    header: Any = group.attrs.get("binsparse")
    if isinstance(header, dict) and "binsparse" in header:  # nested by the Python reference implementation
        header = header["binsparse"]
    _check_header(header, name)
    form = header["format"]
    if header.get("fill") and (_ZarrArray(group, name, "fill_value").read(0, 1) != 0).any():
        raise SourceError("the fill value is not 0; write the group with fill value 0", source=name)
    is_listed = form.startswith("COO")
    lines = _ZarrArray(group, name, "indices_0" if is_listed else "pointers_to_1", are_integers=True)
    indices = _ZarrArray(group, name, "indices_1", are_integers=True)
    if (stated := header["number_of_stored_values"]) != len(indices):
        raise indices.make_error(f"has {len(indices)} elements, but number_of_stored_values is {stated}")
    shape = _check_shape(header["shape"], name)
    declared = str(header["data_types"].get("values"))
    values: _ZarrArray | np.ndarray | None = (held := _ZarrArray(group, name, "values"))
    are_flags = "bint8" in declared
    if declared.startswith("iso["):
        held.check_length(1)
        value = held.read(0, 1)
        value = value != 0 if are_flags else value
        values = None if value[0] == 1 else value  # by the specification, a pattern is written as a single value 1
        are_flags = are_flags and values is not None
    by_columns = form.endswith("C")
    return _GroupMatrix(name, f"binsparse {form}", shape, by_columns, is_listed, lines, indices, values, are_flags)


def _check_header(header: Any, name: str) -> None:
    """Raise SourceError for a descriptor of binsparse that is incomplete or not supported."""
    if not isinstance(header, dict):
        raise SourceError("this is not a group of binsparse: its attribute binsparse is not a JSON object", source=name)
    supported: dict[str, Callable[[Any], bool]] = {
        "version": lambda given: _BINSPARSE_VERSION.fullmatch(str(given)) is not None,
        "format": lambda given: given in _BINSPARSE_FORMATS,
        "shape": lambda given: given is not None,
        "number_of_stored_values": lambda given: given is not None,
        "data_types": lambda given: isinstance(given, dict) and "complex" not in str(given.get("values")),
        "structure": lambda given: given is None,
        "index_base": lambda given: given in (None, 0),
    }
    for key, is_supported in supported.items():
        if not is_supported(header.get(key)):
            raise SourceError(
                f"its attribute binsparse has {key} {header.get(key)!r}; supported is version 0.1 in the formats "
                f"{', '.join(_BINSPARSE_FORMATS)}, with all entries, indices from 0 and real values",
                source=name,
            )


# --- entries ---------------------------------------------------------------------------------------------------------


def _read_pointers(pointers: _ZarrArray, indices: _ZarrArray) -> np.ndarray:
    """Read and check the number of the first entry of each line, then the number of entries."""
    n_entries = len(indices)
    bounds = pointers.read_below(0, len(pointers), n_entries + 1)
    falls = bounds[1:] < bounds[:-1]
    if falls.any():
        k = int(falls.argmax())
        raise pointers.make_error(f"does not ascend: element {k + 1} is {bounds[k + 1]} after {bounds[k]}")
    if bounds[0] != 0:
        raise pointers.make_error(f"begins with {bounds[0]}, expected 0")
    if bounds[-1] != n_entries:
        raise pointers.make_error(f"ends with {bounds[-1]}, expected {n_entries}, the number of {indices.name}")
    return bounds
