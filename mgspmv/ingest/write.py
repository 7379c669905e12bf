"""From a source to a store, within a given memory: rows are written as they are sorted."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from mgspmv.errors import CapacityError, OptionError
from mgspmv.ingest.build import (
    Assembled,
    Report,
    SortedSource,
    assemble,
    estimate_column_bytes,
    sort_source,
)
from mgspmv.ingest.sorter import EntrySorter
from mgspmv.ingest.source import Layout, Source
from mgspmv.model import IngestOptions, default_threads, free_memory, index_dtype
from mgspmv.store import GrowingArray, StoreLike, Version, begin_version, find_folder, mark_values

LEAST_MEMORY = 1 << 30
"""Bytes: less is not worth the name of a budget beside what Python and its libraries take."""
BATCH_BYTES = 80 << 20
"""What a thread takes that reads, parses and writes: text, columns, chunks and what is compressed of them."""
LEAST_SORTING = 64 << 20
"""Bytes with which entries can be sorted in pieces of a useful size."""


def find_room(memory: int | None, threads: int | None) -> int:
    """Bytes that entries may take, of what the whole process may.

    Parameters
    ----------
    memory : of the process; None for half of what is free, beside what it has

    Raises
    ------
    OptionError : less than `LEAST_MEMORY`
    CapacityError : the process takes nearly as much already
    """
    import psutil

    if memory is not None and memory < LEAST_MEMORY:
        raise OptionError(f"memory must be at least 1GiB ({LEAST_MEMORY:,} bytes), not {memory:,} bytes")
    taken: int = psutil.Process(os.getpid()).memory_info().rss
    total = taken + free_memory() // 2 if memory is None else memory
    room = total - taken - (threads or default_threads()) * BATCH_BYTES
    if room < LEAST_SORTING:
        raise CapacityError(
            f"this process takes {taken / 1e9:.3g} GB already, and with memory={total:,} nothing is left to sort with; "
            "allow more, or ingest in a process of its own"
        )
    return room


def find_scratch(store: StoreLike, scratch: str | os.PathLike[str] | None) -> Path | None:
    """The folder for what does not fit into memory: the one that is asked for, else that of the store, else None.

    Raises
    ------
    OptionError : it is no folder
    """
    if scratch is None:
        return find_folder(store)
    if not Path(scratch).is_dir():
        raise OptionError(f"scratch must be a folder that is there, and {os.fspath(scratch)!r} is none")
    return Path(scratch)


def store_source(
    source: Source,
    store: StoreLike,
    options: IngestOptions,
    describe: Callable[[Layout], dict[str, Any]],
    report: Report,
    *,
    overwrite: bool,
    memory: int,
    threads: int | None = None,
    folder: Path | None = None,
) -> None:
    """Read a source and write it as the new version of a store, in the order of the source.

    Parameters
    ----------
    describe : gives the provenance
    memory : bytes that entries may take; what takes more goes to files
    folder : for these

    Raises
    ------
    SourceError, OptionError : as for `sort_source` and `assemble`
    CapacityError : what is added up for columns takes more than the memory
    StoreExistsError : a finished store is there and `overwrite` is false, or something that is no store of mgspmv
    """
    n, share = threads or default_threads(), memory // 2 if options.transpose else memory
    with sort_source(source, options, report, memory=share, threads=n, folder=folder) as matrix:
        column_bytes = estimate_column_bytes(matrix)
        if share - column_bytes < LEAST_SORTING:
            raise CapacityError(
                f"degrees and weights of {matrix.shape[1]:,} vertices take {column_bytes / 1e9:.3g} GB of memory, and "
                f"{share / 1e9:.3g} GB are left for them; allow more (memory=, --memory)"
            )
        matrix.sorter.reserve(column_bytes)
        with begin_version(store, overwrite=overwrite) as version:
            version.commit(_write_version(version, matrix, options, describe(matrix.layout), report, share, n, folder))


def _write_version(
    version: Version,
    matrix: SortedSource,
    options: IngestOptions,
    provenance: dict[str, Any],
    report: Report,
    memory: int,
    threads: int,
    folder: Path | None,
) -> dict[str, Any]:
    """Write all arrays, and give the attributes."""
    with ThreadPoolExecutor(threads, "mgspmv-write") as pool, EntrySorter(memory, threads, folder) as transposed:
        made = _write_rows(version.group, matrix, report, pool, threads, transposed if options.transpose else None)
        digests = dict(made.arrays)
        beside = {"out_degree": made.out_degree, "out_weight": made.out_weight, "vertex_ids": matrix.layout.vertex_ids}
        own = {name: array for name, array in beside.items() if array is not None}
        digests |= {name: version.write_array(name, array, threads) for name, array in own.items()}
        if options.transpose:
            matrix.sorter.close()
            other = replace(matrix, kind="matrix", shape=matrix.shape[::-1], rule="keep", positions=None)
            group = version.group.create_group("transpose")
            written = _write_rows(
                group, replace(other, sorter=transposed), report, pool, threads, phase="write the transpose"
            )
            digests |= {f"transpose/{name}": digest for name, digest in written.arrays.items()}
    index, ids = index_dtype(matrix.shape[1]), matrix.layout.vertex_ids
    item = index.itemsize + (0 if matrix.dtype is None else matrix.dtype.itemsize)
    of_columns = sum(array.nbytes for array in (made.out_degree, made.out_weight) if array is not None)
    return version.describe(
        digests,
        kind=matrix.kind,
        shape=list(matrix.shape),
        nnz=made.nnz,
        dtype=None if matrix.dtype is None else matrix.dtype.name,
        index_dtype=index.name,
        duplicates=matrix.rule,
        vertex_ids=None if ids is None else "int64" if ids.dtype == np.int64 else "string",
        order=None,
        min_weight=made.least,
        nbytes=8 * (matrix.shape[0] + 1) + item * made.nnz + of_columns,
        provenance=provenance,
    )


def _write_rows(
    group: zarr.Group,
    matrix: SortedSource,
    report: Report,
    pool: ThreadPoolExecutor,
    threads: int,
    transposed: EntrySorter | None = None,
    phase: str = "sort and write",
) -> Assembled:
    """The arrays of CSR, of which there are the digests then."""
    if matrix.dtype is not None:
        mark_values(group, matrix.shape)
    make = partial(GrowingArray, group, pool=pool, n_ahead=threads)
    return assemble(matrix, make, report, transposed, phase)
