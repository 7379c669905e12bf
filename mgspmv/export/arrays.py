"""Formats of compressed arrays in the order of the source: SciPy's `.npz`, and Zarr v3 groups of AnnData and binsparse.

A graph's store has the arc i -> j in row j, so the stored matrix is the source's matrix by columns: nothing is
transposed. Entries are sorted again, within a given memory, only if rows and columns are renumbered. The attributes by
which a reader knows a group are written last.

Source: the on-disk format of anndata 0.12 (AnnData 0.1.0, csr_matrix and csc_matrix 0.1.0, dataframe 0.2.0); the Binary
Sparse Format Specification 0.1.0, whose descriptor is in the attribute `binsparse` under the key `binsparse`, as its
reference implementation in Python has it.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import IO, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute
import zarr

from mgspmv.heartbeat import prefetch_map
from mgspmv.ingest.budget import MemoryBudget
from mgspmv.ingest.entries import SortedSource
from mgspmv.ingest.store_writing import reorder_rows
from mgspmv.ingest.stored import PIECE_ROWS, StoredRows
from mgspmv.model import MatrixInfo, Progress, index_dtype
from mgspmv.order import restore
from mgspmv.store.chunks import AppendArray
from mgspmv.store.digests import CHUNK_ELEMENTS
from mgspmv.store.stored_matrix import StoredMatrix

ArrayName = Literal["indptr", "indices", "data"]
Pieces = Iterator[np.ndarray]

BINSPARSE_VERSION = "0.1.0"
"""Version with three numbers, as the draft specification and its reference implementation require; older had two."""
NAMES = 1 << 17
"""Names per chunk, few because a Python string takes far more memory than its characters."""

_BINSPARSE_NAMES = {"indptr": "pointers_to_1", "indices": "indices_1", "data": "values"}
_ANNDATA_FRAME: dict[str, Any] = {
    "encoding-type": "dataframe",
    "encoding-version": "0.2.0",
    "_index": "_index",
    "column-order": [],
}
_ANNDATA_STRINGS: dict[str, Any] = {"encoding-type": "string-array", "encoding-version": "0.2.0"}


@dataclass(frozen=True)
class SourceArray:
    """Array of a matrix in the order of its source, compressed by rows or, for a graph, by columns."""

    name: ArrayName
    n: int
    """Number of elements."""
    dtype: np.dtype
    """SciPy has one for rows, columns and pointers; entries of a pattern are True."""
    pieces: Pieces


def find_layout(info: MatrixInfo) -> Literal["csr", "csc"]:
    """Return the layout of the arrays."""
    return "csc" if info.kind == "graph" else "csr"


@contextmanager
def open_arrays(
    stored: StoredMatrix, room: MemoryBudget, report: Progress, *, has_ones: bool = True
) -> Iterator[Iterator[SourceArray]]:
    """Yield the arrays of a stored matrix, to be read one after the other.

    Parameters
    ----------
    room : memory, threads and folder for sorting entries
    report : called with ("renumber", entries done, total entries) while entries are sorted, and with ("export",
        elements done, total elements) for each piece
    has_ones : whether the entries of a pattern are an array too

    Raises
    ------
    StoreDamagedError : as in `StoredMatrix.read_pointers` and `StoredMatrix.read_array`
    CapacityError : as in `reorder_rows`, for a renumbered matrix
    """
    names: tuple[ArrayName, ...] = ("indptr", "indices", "data")
    if stored.info.is_pattern and not has_ones:
        names = names[:2]
    if stored.info.order is None:
        yield _list_arrays(stored.info, names, partial(_read_stored, stored, room.threads), report)
        return
    rows = StoredRows(stored, room.threads)
    lengths = restore(rows.count_rows(), rows.order)
    with reorder_rows(rows, "none", report, room) as (source, _):
        yield _list_arrays(stored.info, names, partial(_read_sorted, source, lengths), report)


def _list_arrays(
    info: MatrixInfo, names: tuple[ArrayName, ...], read: Callable[[ArrayName], Pieces], report: Progress
) -> Iterator[SourceArray]:
    lengths = {name: info.shape[0] + 1 if name == "indptr" else info.nnz for name in names}
    total, done = sum(lengths.values()), 0

    def generate(name: ArrayName, dtype: np.dtype) -> Pieces:
        nonlocal done
        ones = (np.ones(min(CHUNK_ELEMENTS, info.nnz - k), bool) for k in range(0, info.nnz, CHUNK_ELEMENTS))
        for piece in ones if name == "data" and info.is_pattern else read(name):
            report("export", done, total)
            yield piece.astype(dtype, copy=False)
            done += len(piece)

    for name in names:
        dtype = np.dtype(info.dtype or bool) if name == "data" else index_dtype(max(*info.shape, info.nnz))
        yield SourceArray(name, lengths[name], dtype, generate(name, dtype))
    report("export", total, total)


def _read_stored(stored: StoredMatrix, threads: int, name: ArrayName) -> Pieces:
    if name == "indptr":
        n_rows = stored.info.shape[0]
        for first in range(0, max(1, n_rows), PIECE_ROWS):
            pointers = stored.read_pointers(first, min(first + PIECE_ROWS, n_rows))
            yield pointers[1:] if first else pointers
        return
    starts = range(0, stored.info.nnz, CHUNK_ELEMENTS)

    def read(start: int) -> np.ndarray:
        return stored.read_array(name, start, min(start + CHUNK_ELEMENTS, stored.info.nnz), threads=1)

    with ThreadPoolExecutor(threads, "mgspmv-export") as pool:
        yield from prefetch_map(pool, read, starts, threads)


def _read_sorted(source: SortedSource, lengths: np.ndarray, name: ArrayName) -> Pieces:
    if name == "indptr":
        yield np.cumsum(np.append(0, lengths))
        return
    for block in source.blocks():
        if name == "indices":
            yield block.indices
        elif block.data is not None:
            yield block.data


def write_npz(info: MatrixInfo, arrays: Iterator[SourceArray], file: IO[bytes]) -> None:
    """Write a `.npz`, uncompressed, of which `scipy.sparse.load_npz` makes a csr_array or, of a graph, a csc_array."""
    with zipfile.ZipFile(file, "w") as archive:
        for array in arrays:
            with archive.open(zipfile.ZipInfo(f"{array.name}.npy"), "w", force_zip64=True) as member:
                described = {"descr": np.lib.format.dtype_to_descr(array.dtype), "fortran_order": False}
                np.lib.format.write_array_header_1_0(member, described | {"shape": (array.n,)})
                for piece in array.pieces:
                    member.write(piece.data)
        small = {"format": find_layout(info).encode(), "shape": info.shape, "_is_array": True}
        for key, value in small.items():
            content = io.BytesIO()
            np.save(content, np.array(value))
            archive.writestr(zipfile.ZipInfo(f"{key}.npy"), content.getvalue())


def write_anndata(group: zarr.Group, stored: StoredMatrix, arrays: Iterator[SourceArray], threads: int) -> None:
    """Write an AnnData: the matrix is X, and the ids are the names of its rows (obs) and columns (var)."""
    x, shape = group.create_group("X"), list(stored.info.shape)
    for array in arrays:
        _write_array(x, array.name, array, threads)
    encoding = {"encoding-type": f"{find_layout(stored.info)}_matrix", "encoding-version": "0.1.0"}
    x.update_attributes(encoding | {"shape": shape})
    for name, n in zip(("obs", "var"), shape, strict=True):
        frame = group.create_group(name)
        _write_names(frame, stored, n)
        frame.update_attributes(_ANNDATA_FRAME)
    group.update_attributes({"encoding-type": "anndata", "encoding-version": "0.1.0"})


def write_binsparse(group: zarr.Group, info: MatrixInfo, arrays: Iterator[SourceArray], threads: int) -> None:
    """Write a matrix in the format CSR or, of a graph, CSC of binsparse; a pattern has one value for all, True."""
    types = {}
    for array in arrays:
        name = _BINSPARSE_NAMES[array.name]
        _write_array(group, name, array, threads)
        types[name] = array.dtype.name
    if info.is_pattern:
        group.create_array("values", data=np.ones(1, np.uint8))
        types["values"] = "iso[bint8]"
    descriptor: dict[str, Any] = {
        "version": BINSPARSE_VERSION,
        "format": find_layout(info).upper(),
        "shape": list(info.shape),
        "number_of_stored_values": info.nnz,
        "data_types": types,
    }
    group.attrs["binsparse"] = {"binsparse": descriptor}


def _write_array(group: zarr.Group, name: str, array: SourceArray, threads: int) -> None:
    with ThreadPoolExecutor(threads, "mgspmv-write") as pool:
        target = AppendArray(group, name, array.dtype, array.n, pool, threads)
        for piece in array.pieces:
            target.append(piece)
        target.finish()


def _write_names(group: zarr.Group, stored: StoredMatrix, n: int) -> None:
    """Write the ids as strings, as anndata requires for names; numbers if the matrix is not square."""
    chunks = (min(NAMES, max(1, n)),)
    array = group.create_array("_index", shape=(n,), chunks=chunks, dtype=str, attributes=_ANNDATA_STRINGS)
    start = 0
    for ids in read_ids(stored, n):
        for k in range(0, len(ids), NAMES):
            names = pa.compute.cast(ids[k : k + NAMES], pa.large_string()).to_pylist()
            array[start : start + len(names)] = np.array(names, object)
            start += len(names)


def read_ids(stored: StoredMatrix, n: int) -> Iterator[Any]:
    """Yield the n ids in the order of the source, as Arrow arrays of integers or strings; numbers if it has no ids."""
    has_ids = stored.info.vertex_ids is not None
    for start in range(0, max(n, 1), CHUNK_ELEMENTS):
        stop = min(start + CHUNK_ELEMENTS, n)
        ids = stored.read_array("vertex_ids", start, stop) if has_ids else np.arange(start, stop)
        yield pa.array(ids, pa.large_string() if ids.dtype.kind in "OUT" else pa.int64())
