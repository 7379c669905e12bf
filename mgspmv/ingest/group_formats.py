"""Descriptions of sparse matrices in Zarr groups, and their arrays: anndata, binsparse and plain CSR arrays.

A compressed matrix lists its entries row after row or column after column: these are its lines. binsparse is read as
in version 0.1 of its specification (https://binsparse.org), except that entries need not be sorted.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import zarr

from mgspmv.display.numbers import format_bytes
from mgspmv.errors import CapacityError, MgspmvError, OptionError, SourceError
from mgspmv.ingest.values import INT64_MAX, choose_value_dtype
from mgspmv.model import free_memory, index_dtype
from mgspmv.store.locations import finishing_tasks

BATCH_ENTRIES = 1 << 19
"""Entries per batch, and elements read at a time from an array whose chunks are not larger."""

_ANNDATA_VERSION = "0.1.0"
_BINSPARSE_VERSION = re.compile(r"0\.1(\.\d+)?")
_BINSPARSE_FORMATS = ("CSR", "CSC", "COO", "COOR", "COOC")


# --- groups and arrays -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ZarrGroup:
    """Zarr group, and its name for messages."""

    name: str
    group: zarr.Group

    @property
    def attributes(self) -> dict[str, Any]:
        return dict(self.group.attrs)

    def get(self, name: str) -> zarr.Group | zarr.Array[Any] | None:
        """Return the member of this name; None if there is none."""
        with translating_damage(self.name, name):
            return self.group.get(name)

    def open_array(self, name: str, *, are_integers: bool = False) -> ZarrArray:
        """Open an array of integers, or of numbers or booleans.

        Raises
        ------
        SourceError : there is no such array, or it has another dtype or more dimensions
        CapacityError : its chunks, by its metadata, are larger than the free memory
        """
        array = self.get(name)
        if not isinstance(array, zarr.Array):
            raise self.make_error(f"the array {name!r} is missing; write the group again")
        if array.ndim != 1:
            raise self.make_error(f"the array {name!r} has shape {array.shape}, expected one dimension")
        n, chunk, free = array.shape[0], array.chunks[0], free_memory()
        if n > INT64_MAX or not 0 < chunk <= INT64_MAX:
            raise self.make_error(
                f"the array {name!r} states an invalid size: {n} elements in chunks of {chunk}; write the group again"
            )
        if (n_bytes := chunk * array.dtype.itemsize) > free:
            raise CapacityError(
                f"{self.name}: the array {name!r} has chunks of {chunk:,} elements, which take {format_bytes(n_bytes)} "
                f"each, but {format_bytes(free)} of memory are free; write it with smaller chunks"
            )
        opened = ZarrArray(self.name, name, array)
        if are_integers and array.dtype.kind not in "iu":
            raise opened.make_error(f"has dtype {array.dtype}, expected integers")
        if not are_integers and array.dtype.kind != "b":
            choose_value_dtype(array.dtype, self.name)
        return opened

    def make_error(self, message: str) -> SourceError:
        return SourceError(message, source=self.name)


class ZarrArray:
    """One-dimensional array that is read by ascending ranges, so that each chunk is decoded once."""

    def __init__(self, source: str, name: str, array: zarr.Array[Any]) -> None:
        self.name, self.dtype = name, array.dtype
        self._source, self._array = source, array
        chunk = array.chunks[0]
        self._step = chunk * max(1, BATCH_ENTRIES // max(1, chunk))
        self._first, self._held = 0, np.zeros(0, self.dtype)

    def __len__(self) -> int:
        return int(self._array.shape[0])

    def check_length(self, n: int) -> None:
        """Raise SourceError unless it has n elements."""
        if len(self) != n:
            raise self.make_error(f"has {len(self)} elements, expected {n}")

    def read(self, start: int, stop: int) -> np.ndarray:
        """Read elements start .. stop; raises SourceError for a chunk that is damaged or cannot be fetched."""
        parts = []
        while start < stop:
            if not self._first <= start < self._first + len(self._held):
                self._fetch(start)
            part = self._held[start - self._first : stop - self._first]
            parts.append(part)
            start += len(part)
        return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, self.dtype), *parts])

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

    def _fetch(self, start: int) -> None:
        self._first, self._held = start // self._step * self._step, np.zeros(0, self.dtype)  # frees the old chunk first
        with translating_damage(self._source, self.name), finishing_tasks():
            self._held = np.asarray(self._array[self._first : min(len(self), self._first + self._step)])


@contextlib.contextmanager
def translating_damage(source: str, what: str) -> Iterator[None]:
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


# --- descriptions of groups ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GroupMatrix:
    """Sparse matrix, and the arrays that hold its entries.

    Raises
    ------
    SourceError : the lengths of the arrays do not match
    """

    found: ZarrGroup
    format: str
    """Format in which the group is read."""
    shape: tuple[int, int]
    by_columns: bool
    """True if lines are columns, False if they are rows."""
    indices: ZarrArray
    """Position of each entry in its line."""
    pointers: ZarrArray | None
    """Number of the first entry of each line, then the number of entries; None if `lines` is given."""
    lines: ZarrArray | None
    """Number of each entry's line; None if `pointers` is given."""
    values: ZarrArray | np.ndarray | None
    """Values of the entries, of shape (1,) if all are equal; None for a pattern."""
    are_flags: bool
    """Whether values are booleans."""

    def __post_init__(self) -> None:
        n_entries = len(self.indices)
        if isinstance(self.values, ZarrArray):
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


def find_format(found: ZarrGroup) -> str:
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


def _describe_anndata(found: ZarrGroup) -> GroupMatrix:
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
        return _describe_anndata(ZarrGroup(f"{found.name}/X", inner))
    if what not in ("csr_matrix", "csc_matrix"):
        raise found.make_error(f"this group of anndata is a {what}; supported are csr_matrix and csc_matrix")
    if attributes.get("encoding-version") != _ANNDATA_VERSION:
        raise found.make_error(
            f"this {what} has encoding version {attributes.get('encoding-version')}, supported is {_ANNDATA_VERSION}"
        )
    shape = _read_shape(found, attributes.get("shape"))
    return _describe_compressed(found, f"anndata {what}", shape, what == "csc_matrix", found.open_array("data"))


def describe_csr(found: ZarrGroup, n_cols: int | None) -> GroupMatrix:
    stated = found.attributes.get("shape")
    if n_cols is not None and n_cols < 0:
        raise OptionError(f"n_cols must be 0 or more, not {n_cols}")
    if stated is None and n_cols is None:
        raise found.make_error("the group does not state its number of columns; pass n_cols=")
    if stated is None:
        shape = max(0, len(found.open_array("indptr", are_integers=True)) - 1), n_cols or 0
    else:
        shape = _read_shape(found, stated)
        if n_cols not in (None, shape[1]):
            raise OptionError(f"n_cols={n_cols} contradicts the shape of {found.name}, {shape}; leave it out")
    values = found.open_array("data") if found.get("data") is not None else None
    return _describe_compressed(found, "csr", shape, False, values)


def _describe_compressed(
    found: ZarrGroup, format: str, shape: tuple[int, int], by_columns: bool, values: ZarrArray | None
) -> GroupMatrix:
    pointers, indices = (found.open_array(name, are_integers=True) for name in ("indptr", "indices"))
    are_flags = values is not None and values.dtype == bool
    return GroupMatrix(found, format, shape, by_columns, indices, pointers, None, values, are_flags)


def _describe_binsparse(found: ZarrGroup) -> GroupMatrix:
    header = _read_header(found)
    form, types = header["format"], header["data_types"]
    is_listed = form.startswith("COO")
    ends = found.open_array("indices_0" if is_listed else "pointers_to_1", are_integers=True)
    indices = found.open_array("indices_1", are_integers=True)
    if (stated := header["number_of_stored_values"]) != len(indices):
        raise indices.make_error(f"has {len(indices)} elements, but number_of_stored_values is {stated}")
    pointers, lines = (None, ends) if is_listed else (ends, None)
    shape, stored = _read_shape(found, header["shape"]), _open_binsparse_values(found, types.get("values"))
    return GroupMatrix(found, f"binsparse {form}", shape, form.endswith("C"), indices, pointers, lines, *stored)


DESCRIBE = {"anndata": _describe_anndata, "binsparse": _describe_binsparse}


def _read_header(found: ZarrGroup) -> dict[str, Any]:
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


def _open_binsparse_values(found: ZarrGroup, declared: Any) -> tuple[ZarrArray | np.ndarray | None, bool]:
    """Open the values; return them and whether they are booleans."""
    text = str(declared)
    inner = text[4:-1] if text.startswith("iso[") else text
    if inner.startswith("complex["):
        raise found.make_error("complex values are not supported; write real and imaginary part as two real matrices")
    values = found.open_array("values")
    are_flags = inner == "bint8"
    if inner == text:
        return values, are_flags
    values.check_length(1)
    value = values.read(0, 1)
    if are_flags:
        value = value != 0
    # By the specification, a pattern is written as a single value 1.
    return (None, False) if value[0] == 1 else (value, are_flags)


def _read_shape(found: ZarrGroup, stated: Any) -> tuple[int, int]:
    are_sizes = isinstance(stated, list) and all(type(n) is int and 0 <= n < INT64_MAX for n in stated)
    if not are_sizes or len(stated) != 2:
        raise found.make_error(f"expected a shape of two sizes, found {stated}; write the group again")
    return stated[0], stated[1]
