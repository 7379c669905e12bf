"""Memory, threads and folder for ingesting, and checks of the sizes of matrices that sources state."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from mgspmv.display.numbers import format_bytes
from mgspmv.errors import CapacityError, OptionError, StoreError
from mgspmv.ingest.entries import SortedRows
from mgspmv.ingest.scratch import MemoryBudget
from mgspmv.ingest.source import Stated
from mgspmv.model import default_threads, free_memory
from mgspmv.os_errors import describe_os_error, is_operators
from mgspmv.store.locations import StoreLike, find_folder
from mgspmv.store.space import StoreSize

LEAST_MEMORY = 1 << 30
"""Least memory budget in bytes: Python and its libraries alone use a large part of it."""
BATCH_BYTES = 80 << 20
"""Bytes per thread that reads, parses and writes: text, columns, chunks and compressed chunks."""
LEAST_SORTING = 64 << 20
"""Least bytes for sorting entries in pieces of a useful size."""
ROWS_PER_ENTRY, FREE_ROWS = 100, 1 << 23
"""Rows or columns that a source may state per entry, and the number that it may state in any case."""


def find_budget(
    store: StoreLike,
    memory: int | None = None,
    threads: int | None = None,
    scratch: str | os.PathLike[str] | None = None,
) -> MemoryBudget:
    """Return the memory, threads and folder for ingesting into a store.

    Parameters
    ----------
    memory : bytes that the whole process may use; None for its current use plus half of the free memory
    threads : greatest number of threads, fewer if memory is short; None for one per processor
    scratch : folder for files; None for that of the store, if it is local

    Raises
    ------
    OptionError : less than `LEAST_MEMORY`; a scratch that is not a folder, or not writable
    CapacityError : the process already uses nearly all of `memory`
    """
    check_memory(memory)
    folder = find_folder(store) if scratch is None else Path(scratch)
    if scratch is not None:
        check_folder(scratch)
    return make_budget(memory, free_memory() // 2, threads or default_threads(), folder)


def make_budget(memory: int | None, free: int, threads: int, folder: Path | None) -> MemoryBudget:
    """Return the memory, threads and folder for this process.

    Parameters
    ----------
    memory : bytes that it may use in total; None for its current use plus `free`
    threads : greatest number of threads, fewer if memory is short

    Raises
    ------
    CapacityError : the process already uses nearly all of `memory`
    """
    import psutil

    taken: int = psutil.Process(os.getpid()).memory_info().rss
    total = taken + free if memory is None else memory
    n_threads = max(1, min(threads, (total - taken) // (2 * BATCH_BYTES)))
    left = total - taken - n_threads * BATCH_BYTES
    if left < LEAST_SORTING:
        raise CapacityError(
            f"this process already uses {taken / 1e9:.3g} GB, which leaves too little of memory={total} for sorting; "
            "raise memory=, or run it in a separate process"
        )
    return MemoryBudget(left, n_threads, folder)


def check_memory(memory: int | None) -> None:
    """Raise OptionError if `memory` is too small for a process."""
    if memory is not None and memory < LEAST_MEMORY:
        raise OptionError(f"memory must be at least 1GiB ({LEAST_MEMORY:,} bytes), not {memory:,} bytes")


def check_folder(folder: str | os.PathLike[str]) -> None:
    """Raise OptionError unless this is a writable folder, StoreError for errors that an operator can fix."""
    if not Path(folder).is_dir():
        raise OptionError(f"scratch must be an existing folder, not {os.fspath(folder)!r}")
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        if is_operators(error):
            raise StoreError(f"cannot write to {os.fspath(folder)}: {describe_os_error(error, folder)}") from error
        raise OptionError(
            f"scratch must be a writable folder, not {os.fspath(folder)!r} ({error.strerror or error})"
        ) from error


def find_size(matrix: SortedRows, *, has_transpose: bool) -> StoreSize:
    """Return the size of a matrix in a store."""
    return StoreSize(matrix.shape, matrix.most_entries, matrix.dtype, matrix.kind != "matrix", has_transpose)


def check_stated(stated: Stated | None, size: StoreSize, *, allow_hypersparse: bool) -> None:
    """Check that a source does not state far more rows and columns than it has entries.

    A file of a few bytes can state any shape, and row pointers and degrees are written for all of it.

    Parameters
    ----------
    stated : makes an error about the place where it states the shape; None if it does not
    allow_hypersparse : whether the user allows such a shape

    Raises
    ------
    SourceError : such a shape; names the line, and the bytes that the store would take
    """
    if stated is None or allow_hypersparse or max(size.lines) <= max(FREE_ROWS, ROWS_PER_ENTRY * size.n_entries):
        return
    n_rows, n_cols = size.shape
    entries = "1 entry" if size.n_entries == 1 else f"{size.n_entries:,} entries"
    raise stated(
        f"the shape {n_rows:,} x {n_cols:,} is stated for {entries}, and would take {format_bytes(size.nbytes)} "
        f"({size.nbytes:,} bytes) before compression; correct it, or pass allow_hypersparse=True if it is intended"
    )
