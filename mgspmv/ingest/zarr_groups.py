"""Sparse matrices in existing Zarr groups: anndata, binsparse and plain CSR arrays.

A compressed matrix lists its entries row after row or column after column: these are its lines. binsparse is read as
in version 0.1 of its specification (https://binsparse.org), except that entries need not be sorted.
"""

from __future__ import annotations

import contextlib
import os
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from zarr.abc.store import Store
from zarr.storage import ZipStore

from mgspmv.display.numbers import format_bytes
from mgspmv.errors import CapacityError, MgspmvError, OptionError, SourceError, SourceNotFoundError, StoreError
from mgspmv.ingest.source import Layout, Source
from mgspmv.ingest.values import INT64_MAX, choose_value_dtype
from mgspmv.model import CooBatch, free_memory, index_dtype
from mgspmv.store.locations import StoreLike, check_links, describe_store, finishing_tasks, locate_store
from mgspmv.store.versions import is_store, is_version

GROUP_FORMATS = ("anndata", "binsparse", "csr")
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
        found = _ZarrGroup(name.rstrip("/"), group)
        if is_version(group):
            raise found.make_error(
                "this is a matrix store of mgspmv or one of its versions, which is not read by format= or from a .zip "
                "file; name the folder of the store, and leave out format="
            )
        chosen = format or _find_format(found)
        if n_cols is not None and chosen != "csr":
            raise OptionError(f"n_cols= applies to plain CSR arrays, but {name} is read as {chosen}; leave it out")
        describe = {"anndata": _describe_anndata, "binsparse": _describe_binsparse}
        self._matrix = _describe_csr(found, n_cols) if chosen == "csr" else describe[chosen](found)
        self.name = self._matrix.found.name

    def batches(self) -> Iterator[CooBatch]:
        """Yield all entries, in at least one batch; the pointers of all lines are in memory."""
        matrix, n_entries = self._matrix, self.n_entries
        pointers = None if matrix.pointers is None else _read_pointers(matrix.pointers, matrix.indices)
        arrays = [each for each in (matrix.indices, matrix.lines, matrix.values) if isinstance(each, _ZarrArray)]
        step = max(BATCH_ENTRIES, *(each.chunk for each in arrays))
        for start in range(0, max(1, n_entries), step):
            stop = min(start + step, n_entries)
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


# --- groups and arrays -----------------------------------------------------------------------------------------------


class _ZarrArray:
    """One-dimensional array of a group, of integers or of values.

    Raises
    ------
    SourceError : it has another dtype or more dimensions
    CapacityError : its chunks, by its metadata, are larger than the free memory
    """

    def __init__(self, source: str, name: str, array: zarr.Array[Any], *, are_integers: bool) -> None:
        self.name, self.dtype = name, array.dtype
        self._source, self._array = source, array
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


@dataclass(frozen=True)
class _ZarrGroup:
    """Zarr group, and its name for messages."""

    name: str
    group: zarr.Group

    @property
    def attributes(self) -> dict[str, Any]:
        return dict(self.group.attrs)

    def get(self, name: str) -> zarr.Group | zarr.Array[Any] | None:
        """Return the member of this name; None if there is none."""
        with _translating_damage(self.name, name):
            return self.group.get(name)

    def open_array(self, name: str, *, are_integers: bool = False) -> _ZarrArray:
        """Open an array of integers, or of numbers or booleans; raises SourceError if there is none."""
        array = self.get(name)
        if not isinstance(array, zarr.Array):
            raise self.make_error(f"the array {name!r} is missing; write the group again")
        return _ZarrArray(self.name, name, array, are_integers=are_integers)

    def read_shape(self, stated: Any) -> tuple[int, int]:
        are_sizes = isinstance(stated, list) and all(type(n) is int and 0 <= n < INT64_MAX for n in stated)
        if not are_sizes or len(stated) != 2:
            raise self.make_error(f"expected a shape of two sizes, found {stated}; write the group again")
        return stated[0], stated[1]

    def make_error(self, message: str) -> SourceError:
        return SourceError(message, source=self.name)


@dataclass(frozen=True)
class _GroupMatrix:
    """Sparse matrix, and the arrays that hold its entries; raises SourceError if their lengths do not match."""

    found: _ZarrGroup
    format: str
    """Format in which the group is read."""
    shape: tuple[int, int]
    by_columns: bool
    """True if lines are columns, False if they are rows."""
    indices: _ZarrArray
    """Position of each entry in its line."""
    pointers: _ZarrArray | None
    """Number of the first entry of each line, then the number of entries; None if `lines` is given."""
    lines: _ZarrArray | None
    """Number of each entry's line; None if `pointers` is given."""
    values: _ZarrArray | np.ndarray | None
    """Values of the entries, of shape (1,) if all are equal; None for a pattern."""
    are_flags: bool
    """Whether values are booleans."""

    def __post_init__(self) -> None:
        n_entries = len(self.indices)
        if isinstance(self.values, _ZarrArray):
            self.values.check_length(n_entries)
        if self.pointers is not None:
            self.pointers.check_length(1 + self.n_lines)
        elif self.lines is not None:
            self.lines.check_length(n_entries)

    @property
    def n_lines(self) -> int:
        return self.shape[1 if self.by_columns else 0]

    @property
    def line_length(self) -> int:
        return self.shape[0 if self.by_columns else 1]


# --- formats ---------------------------------------------------------------------------------------------------------


def _find_format(found: _ZarrGroup) -> str:
    if "binsparse" in found.attributes:
        return "binsparse"
    if "encoding-type" in found.attributes:
        return "anndata"
    if all(isinstance(found.get(name), zarr.Array) for name in ("indptr", "indices")):
        return "csr"
    raise found.make_error(
        "this group is not a sparse matrix; expected anndata, binsparse, or the arrays indptr and indices; name a "
        f"group inside it, such as {found.name}/GROUP"
    )


def _describe_anndata(found: _ZarrGroup) -> _GroupMatrix:
    attributes = found.attributes
    what = attributes.get("encoding-type")
    if what is None:
        raise found.make_error("this is not a group of anndata: its attribute encoding-type is missing")
    if what == "anndata":
        inner = found.get("X")
        if not isinstance(inner, zarr.Group):
            state = "dense" if isinstance(inner, zarr.Array) else "missing"
            raise found.make_error(
                f"X of this AnnData is {state}; name a sparse group inside it, such as {found.name}/layers/counts"
            )
        return _describe_anndata(_ZarrGroup(f"{found.name}/X", inner))
    if what not in ("csr_matrix", "csc_matrix"):
        raise found.make_error(f"this group of anndata is a {what}; supported are csr_matrix and csc_matrix")
    if (version := attributes.get("encoding-version")) != _ANNDATA_VERSION:
        raise found.make_error(f"this {what} has encoding version {version}, supported is {_ANNDATA_VERSION}")
    shape = found.read_shape(attributes.get("shape"))
    return _describe_compressed(found, f"anndata {what}", shape, what == "csc_matrix", found.open_array("data"))


def _describe_csr(found: _ZarrGroup, n_cols: int | None) -> _GroupMatrix:
    stated = found.attributes.get("shape")
    if n_cols is not None and n_cols < 0:
        raise OptionError(f"n_cols must be 0 or more, not {n_cols}")
    if stated is None and n_cols is None:
        raise found.make_error("the group does not state its number of columns; pass n_cols=")
    if stated is None:
        shape = max(0, len(found.open_array("indptr", are_integers=True)) - 1), n_cols or 0
    else:
        shape = found.read_shape(stated)
        if n_cols not in (None, shape[1]):
            raise OptionError(f"n_cols={n_cols} contradicts the shape of {found.name}, {shape}; leave it out")
    values = found.open_array("data") if found.get("data") is not None else None
    return _describe_compressed(found, "csr", shape, False, values)


def _describe_compressed(
    found: _ZarrGroup, format: str, shape: tuple[int, int], by_columns: bool, values: _ZarrArray | None
) -> _GroupMatrix:
    pointers, indices = (found.open_array(name, are_integers=True) for name in ("indptr", "indices"))
    are_flags = values is not None and values.dtype == bool
    return _GroupMatrix(found, format, shape, by_columns, indices, pointers, None, values, are_flags)


def _describe_binsparse(found: _ZarrGroup) -> _GroupMatrix:
    header = _read_header(found)
    form, types = header["format"], header["data_types"]
    is_listed = form.startswith("COO")
    ends = found.open_array("indices_0" if is_listed else "pointers_to_1", are_integers=True)
    indices = found.open_array("indices_1", are_integers=True)
    if (stated := header["number_of_stored_values"]) != len(indices):
        raise indices.make_error(f"has {len(indices)} elements, but number_of_stored_values is {stated}")
    pointers, lines = (None, ends) if is_listed else (ends, None)
    shape, stored = found.read_shape(header["shape"]), _open_binsparse_values(found, types.get("values"))
    return _GroupMatrix(found, f"binsparse {form}", shape, form.endswith("C"), indices, pointers, lines, *stored)


def _read_header(found: _ZarrGroup) -> dict[str, Any]:
    """Read the descriptor of a binsparse group, and check that it is complete and supported."""
    header = found.attributes.get("binsparse")
    if isinstance(header, dict) and "binsparse" in header:  # nested by the Python reference implementation
        header = header["binsparse"]
    if not isinstance(header, dict):
        raise found.make_error("this is not a group of binsparse: its attribute binsparse is not a JSON object")
    for key in ("version", "format", "shape", "number_of_stored_values", "data_types"):
        if key not in header:
            raise found.make_error(f"its attribute binsparse has no {key!r}; write the group again")
    if not _BINSPARSE_VERSION.fullmatch(str(header["version"])):
        raise found.make_error(f"this is binsparse {header['version']}, supported is 0.1")
    if header["format"] not in _BINSPARSE_FORMATS:
        raise found.make_error(
            f"the binsparse format {header['format']} is not supported; supported are {', '.join(_BINSPARSE_FORMATS)}"
        )
    if not isinstance(header["data_types"], dict):
        raise found.make_error("data_types of its attribute binsparse is not a JSON object; write the group again")
    if (structure := header.get("structure")) is not None:
        raise found.make_error(f"the structure {structure} is not supported; write all entries, without structure")
    if header.get("index_base", 0) != 0:
        raise found.make_error("indices that begin at 1 are not supported; write it with index_base 0")
    if header.get("fill") and (found.open_array("fill_value").read(0, 1) != 0).any():
        raise found.make_error("the fill value is not 0; write the group with fill value 0")
    return header


def _open_binsparse_values(found: _ZarrGroup, declared: Any) -> tuple[_ZarrArray | np.ndarray | None, bool]:
    """Open the values; return them and whether they are booleans."""
    text = str(declared)
    inner = text[4:-1] if text.startswith("iso[") else text
    if inner.startswith("complex["):
        raise found.make_error("complex values are not supported; write real and imaginary part as two real matrices")
    values, are_flags = found.open_array("values"), inner == "bint8"
    if inner == text:
        return values, are_flags
    values.check_length(1)
    value = values.read(0, 1)
    if are_flags:
        value = value != 0
    # By the specification, a pattern is written as a single value 1.
    return (None, False) if value[0] == 1 else (value, are_flags)


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


def _find_lines(pointers: np.ndarray, start: int, stop: int) -> np.ndarray:
    """Return the line of each entry start .. stop - 1."""
    first, last = np.searchsorted(pointers, start, "right") - 1, np.searchsorted(pointers, stop)
    lines = np.arange(first, last, dtype=index_dtype(len(pointers) - 1))
    return np.repeat(lines, np.diff(np.clip(pointers[first : last + 1], start, stop)))


def _make_batch(matrix: _GroupMatrix, start: int, lines: np.ndarray) -> CooBatch:
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
