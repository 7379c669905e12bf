"""Formats of compressed arrays in the order of the source: SciPy's `.npz`, and Zarr v3 groups of AnnData and binsparse.

A graph's store has the arc i -> j in row j, so the stored matrix is the source's matrix by columns: nothing is
transposed. The arrays are made in memory, as the programs that read these formats do. The attributes by which a reader
knows a group are written last.

Source: the on-disk format of anndata 0.12 (AnnData 0.1.0, csr_matrix and csc_matrix 0.1.0, dataframe 0.2.0); the Binary
Sparse Format Specification 0.1.0, whose descriptor is in the attribute `binsparse` under the key `binsparse`, as its
reference implementation in Python has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute
import scipy.sparse
import zarr

from mgspmv.errors import CapacityError
from mgspmv.ingest.radix_sort import sort_parts
from mgspmv.model import MatrixInfo, Progress, free_memory, index_dtype
from mgspmv.store.chunks import CHUNK_ELEMENTS, AppendArray
from mgspmv.store.matrix import StoredMatrix

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


def read_matrix(stored: StoredMatrix, threads: int | None = None) -> scipy.sparse.csr_array | scipy.sparse.csc_array:
    """Read a matrix in the order of its source: by rows or, a graph, by columns; entries of a pattern are True.

    Raises
    ------
    StoreDamagedError : as in `StoredMatrix.read_array`
    CapacityError : it does not fit in the free memory
    """
    info = stored.info
    _check_memory(stored)
    indptr, indices = stored.read_array("indptr", threads=threads), stored.read_array("indices", threads=threads)
    data = np.ones(info.nnz, bool) if info.is_pattern else stored.read_array("data", threads=threads)
    order = stored.read_order(threads)
    if order is not None:
        rows = np.repeat(order, np.diff(indptr))
        block = sort_parts([(rows, order[indices], data)], 0, *info.shape)
        indptr, indices, data = block.indptr, block.indices, cast(np.ndarray, block.data)
    dtype = index_dtype(max(*info.shape, info.nnz))  # SciPy has one for rows, columns and pointers
    arrays = (data, indices.astype(dtype, copy=False), indptr.astype(dtype, copy=False))
    if info.kind == "graph":
        return scipy.sparse.csc_array(arrays, shape=info.shape)
    return scipy.sparse.csr_array(arrays, shape=info.shape)


def _check_memory(stored: StoredMatrix) -> None:
    info = stored.info
    entry_bytes = 8 + np.dtype(info.dtype or bool).itemsize
    needed = 16 * (info.shape[0] + 1) + info.nnz * entry_bytes * (1 if info.order is None else 4)
    if needed > (free := free_memory()):
        raise CapacityError(
            f"{info.url} needs {needed:,} bytes of memory in this format, but {free:,} are free; export it to Parquet, "
            "CSV or Matrix Market, which need little memory"
        )


def write_anndata(group: zarr.Group, stored: StoredMatrix, matrix: Any, threads: int, report: Progress) -> None:
    """Write an AnnData: the matrix is X, and the ids are the names of its rows (obs) and columns (var)."""
    x, shape = group.create_group("X"), list(stored.info.shape)
    _write_arrays(x, matrix, {name: name for name in _BINSPARSE_NAMES}, threads, report)
    x.update_attributes({"encoding-type": f"{matrix.format}_matrix", "encoding-version": "0.1.0", "shape": shape})
    for name, n in zip(("obs", "var"), shape, strict=True):
        frame = group.create_group(name)
        _write_names(frame, stored, n)
        frame.update_attributes(_ANNDATA_FRAME)
    group.update_attributes({"encoding-type": "anndata", "encoding-version": "0.1.0"})


def write_binsparse(group: zarr.Group, info: MatrixInfo, matrix: Any, threads: int, report: Progress) -> None:
    """Write a matrix in the format CSR or, of a graph, CSC of binsparse; a pattern has one value for all, True."""
    names = {name: own for name, own in _BINSPARSE_NAMES.items() if name != "data" or not info.is_pattern}
    _write_arrays(group, matrix, names, threads, report)
    types = {own: getattr(matrix, name).dtype.name for name, own in names.items()}
    if info.is_pattern:
        group.create_array("values", data=np.ones(1, np.uint8))
        types["values"] = "iso[bint8]"
    descriptor: dict[str, Any] = {
        "version": BINSPARSE_VERSION,
        "format": matrix.format.upper(),
        "shape": list(info.shape),
        "number_of_stored_values": info.nnz,
        "data_types": types,
    }
    group.attrs["binsparse"] = {"binsparse": descriptor}


def _write_arrays(group: zarr.Group, matrix: Any, names: Mapping[str, str], threads: int, report: Progress) -> None:
    """Write arrays of a matrix under other names; `report` is called with ("export", elements done, total)."""
    arrays = {own: getattr(matrix, name) for name, own in names.items()}
    done, total = 0, sum(map(len, arrays.values()))
    with ThreadPoolExecutor(threads, "mgspmv-write") as pool:
        for name, array in arrays.items():
            report("export", done, total)
            target = AppendArray(group, name, array.dtype, len(array), pool, threads)
            target.append(array)
            target.finish()
            done += len(array)


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
