"""Sources read into matrices in memory, without a store, for one call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np

from mgspmv.display import format_bytes
from mgspmv.errors import CapacityError
from mgspmv.ingest.budget import MemoryBudget, StoreSize, check_stated
from mgspmv.ingest.build import assemble
from mgspmv.ingest.entries import MakeDeviceSorter, SortedSource, find_size, sort_source
from mgspmv.ingest.external_sort import EntrySorter
from mgspmv.ingest.occurring_ids import IdType, find_id_type
from mgspmv.ingest.source import Layout, Source
from mgspmv.ingest.values import find_least
from mgspmv.ingest_report import make_report
from mgspmv.model import Duplicates, IngestOptions, Kind, MatrixInfo, OrderMethod, Progress, free_memory, index_dtype
from mgspmv.store.held import PLACE, HeldArrays, HeldMatrix
from mgspmv.store.stored_matrix import FORMAT_VERSION, TRANSPOSE

VERSION = "v000000-memory"
"""Version of a matrix that is not in a store."""


class HeldArray:
    """Array in memory that is built by appending.

    Parameters
    ----------
    most : number of elements for which room is reserved; pages that are not written take no memory
    """

    def __init__(self, name: str, dtype: np.dtype[Any], most: int) -> None:
        self._array: np.ndarray = np.empty(most, dtype)
        self._n = 0

    def append(self, elements: np.ndarray) -> None:
        self._array[self._n : self._n + len(elements)] = elements
        self._n += len(elements)

    def finish(self) -> np.ndarray:
        return self._array[: self._n]

    def pieces(self) -> Iterator[np.ndarray]:
        yield self._array[: self._n]


def load_source(
    source: Source,
    options: IngestOptions,
    report: Progress,
    room: MemoryBudget,
    make_device_sorter: MakeDeviceSorter | None = None,
) -> HeldMatrix:
    """Read a source into memory; the matrix is the one that `store_source` writes.

    Parameters
    ----------
    make_device_sorter : as for `sort_source`; a graph that fits on the device stays there

    Raises
    ------
    SourceError, OptionError, ShapeError : as in `sort_source`, `check_stated` and `assemble`
    CapacityError : the matrix does not fit into memory; as in `sort_source`
    """
    source.hashes_files = False
    own = replace(room, memory=room.memory // 2) if options.transpose else room
    with ExitStack() as stack:
        read = stack.enter_context(sort_source(source, options, report, own, make_device_sorter))
        size = find_size(read, has_transpose=options.transpose)
        check_stated(read.layout.stated, size, allow_hypersparse=False)
        if read.is_built_on_device:
            report("sort", 0, None)
            built = read.build(has_transpose=options.transpose)
            return hold(read, built, len(built["indices"]), find_least(built.get("data")), options)
        _check_room(size)
        transposed = stack.enter_context(EntrySorter(own.memory, own.threads, own.folder))
        made = assemble(read, HeldArray, report, transposed if options.transpose else None)
        arrays = dict(made.arrays)
        if options.transpose:
            rows = (Layout(read.shape[::-1]), read.name, transposed)
            other = assemble(SortedSource("matrix", read.dtype, "keep", *rows), HeldArray, report)
            arrays |= {f"{TRANSPOSE}{name}": array for name, array in other.arrays.items()}
        for array in arrays.values():
            array.flags.writeable = False
        return hold(read, arrays, made.nnz, made.least, options)


def hold(read: SortedSource, arrays: HeldArrays, nnz: int, least: float | None, options: IngestOptions) -> HeldMatrix:
    """Return the matrix of these arrays.

    Parameters
    ----------
    read : source of the arrays
    arrays : by name as in a store, without those of vertices
    nnz : number of entries
    least : value, as for `MatrixInfo.min_weight`
    """
    ids, made_from = read.vertex_ids, dict(read.layout.provenance)
    if ids is not None:
        arrays["vertex_ids"] = ids if isinstance(ids, np.ndarray) else ids[:]
    given: dict[str, Any] = {"weights": options.weights}
    ingested = make_report(made_from, read.counts, nnz, read.rule, given)
    nbytes = sum(array.nbytes for name, array in arrays.items() if name != "vertex_ids" and "/" not in name)
    own = read.kind, read.shape, nnz, read.dtype, read.rule, find_id_type(ids), least
    others = {"has_transpose": options.transpose, "nbytes": nbytes}
    info = describe_unstored(*own, {"source": made_from, "report": ingested}, **others)
    return HeldMatrix(info=info, place=PLACE, arrays=arrays)


def describe_unstored(
    kind: Kind,
    shape: tuple[int, int],
    nnz: int,
    dtype: np.dtype[Any] | None,
    rule: Duplicates,
    id_type: IdType | None,
    least: float | None,
    provenance: dict[str, Any],
    *,
    order: OrderMethod | None = None,
    has_transpose: bool = False,
    nbytes: int = 0,
) -> MatrixInfo:
    """Return the description of a matrix that is in no store, or not yet; arguments as in `MatrixInfo`."""
    return MatrixInfo(
        url=PLACE,
        kind=kind,
        shape=shape,
        nnz=nnz,
        dtype=None if dtype is None else dtype.name,  # type: ignore[arg-type]
        index_dtype=index_dtype(shape[1]).name,  # type: ignore[arg-type]
        duplicates=rule,
        vertex_ids=id_type,
        min_weight=least,
        has_transpose=has_transpose,
        version=VERSION,
        format_version=FORMAT_VERSION,
        digest="",
        nbytes=nbytes,
        order=order,
        provenance=provenance,
    )


def _check_room(size: StoreSize) -> None:
    """Raise CapacityError if the arrays of a matrix do not fit into free memory."""
    if (need := size.nbytes) > (free := free_memory()):
        n_rows, n_cols = size.shape
        raise CapacityError(
            f"a matrix of {n_rows:,} x {n_cols:,} with {size.n_entries:,} entries takes {format_bytes(need)} "
            f"({need:,} bytes), but {format_bytes(free)} of memory are free; ingest it into a store on disk, "
            "whose rows workers can share, or which can be streamed"
        )
