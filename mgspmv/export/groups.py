"""Zarr v3 groups of other programs: AnnData, and binsparse.

The attributes by which a reader knows such a group are written last.

Source: the on-disk format of anndata 0.12 (AnnData 0.1.0, csr_matrix and csc_matrix 0.1.0, dataframe 0.2.0); the Binary
Sparse Format Specification 0.1.0, whose descriptor is in the attribute `binsparse` under the key `binsparse`, as its
reference implementation in Python has it.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import zarr

from mgspmv.export.arrays import ArrayName, SourceArrays
from mgspmv.export.entries import read_ids
from mgspmv.model import Progress
from mgspmv.store.append import AppendArray
from mgspmv.store.read import StoredMatrix

BINSPARSE_VERSION = "0.1.0"
"""Version with three numbers, as the draft specification and its reference implementation require; older had two."""
NAMES = 1 << 17
"""Names per chunk, few because a Python string takes far more memory than its characters."""

_BINSPARSE_NAMES: dict[ArrayName, str] = {"indptr": "pointers_to_1", "indices": "indices_1", "data": "values"}
_ANNDATA_FRAME: dict[str, Any] = {
    "encoding-type": "dataframe",
    "encoding-version": "0.2.0",
    "_index": "_index",
    "column-order": [],
}
_ANNDATA_STRINGS: dict[str, Any] = {"encoding-type": "string-array", "encoding-version": "0.2.0"}


def write_anndata(
    group: zarr.Group, stored: StoredMatrix, arrays: SourceArrays, threads: int, report: Progress
) -> None:
    """Write an AnnData: the matrix is X, and the ids are the names of its rows (obs) and columns (var)."""
    x = group.create_group("X")
    _write_arrays(x, {"indptr": "indptr", "indices": "indices", "data": "data"}, arrays, threads, report)
    shape = list(arrays.info.shape)
    x.update_attributes({"encoding-type": f"{arrays.format}_matrix", "encoding-version": "0.1.0", "shape": shape})
    for name, n in zip(("obs", "var"), shape, strict=True):
        frame = group.create_group(name)
        _write_names(frame, stored, n)
        frame.update_attributes(_ANNDATA_FRAME)
    group.update_attributes({"encoding-type": "anndata", "encoding-version": "0.1.0"})


def write_binsparse(group: zarr.Group, arrays: SourceArrays, threads: int, report: Progress) -> None:
    """Write a matrix in the format CSR or, of a graph, CSC of binsparse; a pattern has one value for all, True."""
    info = arrays.info
    names = {name: key for name, key in _BINSPARSE_NAMES.items() if name != "data" or not info.is_pattern}
    _write_arrays(group, names, arrays, threads, report)
    types = {key: arrays.find_dtype(name).name for name, key in names.items()}
    if info.is_pattern:
        group.create_array("values", data=np.ones(1, np.uint8))
        types["values"] = "iso[bint8]"
    descriptor: dict[str, Any] = {
        "version": BINSPARSE_VERSION,
        "format": arrays.format.upper(),
        "shape": list(info.shape),
        "number_of_stored_values": info.nnz,
        "data_types": types,
    }
    group.attrs["binsparse"] = {"binsparse": descriptor}


def _write_arrays(
    group: zarr.Group, names: dict[ArrayName, str], arrays: SourceArrays, threads: int, report: Progress
) -> None:
    with ThreadPoolExecutor(threads, "mgspmv-write") as pool:
        for name, pieces in arrays.read_each(names, report):
            n = arrays.find_length(name)
            array = AppendArray(group, names[name], arrays.find_dtype(name), n, pool, threads)
            for piece in pieces:
                array.append(piece)
            array.finish()


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
