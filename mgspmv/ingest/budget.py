"""Memory, threads and folder for ingesting: unnamed files for data that does not fit into memory, which vanish with the
process, however it ends; and checks of the sizes of matrices that sources state.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from mgspmv.display import format_bytes
from mgspmv.errors import (
    CapacityError,
    DiskSpaceError,
    OptionError,
    SourceError,
    StoreError,
    describe_os_error,
    is_operators,
)
from mgspmv.model import default_threads, free_memory, index_dtype
from mgspmv.store import digests
from mgspmv.store.locations import StoreLike, describe_store, find_folder, find_path, is_in_memory

UNLIMITED = 1 << 62
"""Memory in bytes that stands for no limit."""
_PIECE = 1 << 20
"""Elements of an array per read."""


@dataclass(frozen=True)
class MemoryBudget:
    """Memory, threads and folder that ingesting may use."""

    memory: int = UNLIMITED
    """Bytes for entries and ids; larger data is spilled to files."""
    threads: int = 1
    folder: Path | None = None
    """Folder of the files; None for the system's temporary folder."""

    @property
    def for_ids(self) -> MemoryBudget:
        """Budget for the ids of vertices while they are read, a quarter of the memory."""
        return replace(self, memory=self.memory // 4)


ANY_ROOM = MemoryBudget()


class ScratchFile:
    """Unnamed file of arrays.

    Parameters
    ----------
    folder : folder of the file; None for the system's temporary folder

    Raises
    ------
    StoreError : the file cannot be created, written or read
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder, self.n_bytes = folder, 0
        with self._translating_errors():
            self.file = tempfile.TemporaryFile(prefix="mgspmv-", dir=self._folder, buffering=0)  # noqa: SIM115  # closed later

    def append(self, array: np.ndarray) -> int:
        """Append an array and return the byte at which it begins."""
        left, first = array.view(np.uint8).data, self.n_bytes
        with self._translating_errors():
            while left:
                left = left[self.file.write(left) or 0 :]
        self.n_bytes += array.nbytes
        return first

    def read(self, offset: int, n: int, dtype: np.dtype[Any]) -> np.ndarray:
        """Read elements that begin at a byte; thread-safe."""
        read: np.ndarray = np.empty(n, dtype)
        left = read.view(np.uint8).data
        while left:
            n_read = os.preadv(self.file.fileno(), [left], offset)
            if not n_read:
                raise StoreError(
                    "a scratch file was truncated while entries were sorted; check the disk, and run again"
                )
            left, offset = left[n_read:], offset + n_read
        return read

    def close(self) -> None:
        """Close the file, which frees its disk space."""
        self.file.close()

    @contextlib.contextmanager
    def _translating_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            folder = self._folder or tempfile.gettempdir()
            raise StoreError(
                f"cannot write a scratch file in {folder}: {describe_os_error(error, folder)}; pass another folder as "
                "scratch=, or raise memory="
            ) from error


class FileArray:
    """Array in a scratch file, which is appended to, then sliced like one in memory.

    Parameters
    ----------
    place : folder for a separate file, see `ScratchFile`; or a file, at whose end the array is appended to
    """

    def __init__(self, place: Path | ScratchFile | None, dtype: np.dtype[Any]) -> None:
        self._file = place if isinstance(place, ScratchFile) else ScratchFile(place)
        self.dtype, self._n, self._first = dtype, 0, self._file.n_bytes

    def append(self, elements: np.ndarray) -> None:
        """Append elements."""
        self._file.append(np.ascontiguousarray(elements, self.dtype))
        self._n += len(elements)

    def finish(self) -> Self:
        """Return the array itself, once all elements are appended."""
        return self

    def pieces(self) -> Iterator[np.ndarray]:
        """Yield the elements in pieces."""
        for start in range(0, self._n, _PIECE):
            yield self[start : start + _PIECE]

    def __len__(self) -> int:
        return self._n

    @property
    def nbytes(self) -> int:
        return self._n * self.dtype.itemsize

    def __getitem__(self, which: slice) -> np.ndarray:
        start, stop, _ = which.indices(self._n)
        return self._file.read(self._first + start * self.dtype.itemsize, max(0, stop - start), self.dtype)

    def take(self, places: np.ndarray) -> np.ndarray:
        """Return the elements at some places; those from the least to the greatest place are read."""
        first, last = int(places.min(initial=self._n)), int(places.max(initial=-1))
        found: np.ndarray = self[first : last + 1][places - first]
        return found

    def close(self) -> None:
        """Close the file."""
        self._file.close()


LEAST_MEMORY = 1 << 30
"""Least memory budget in bytes: Python and its libraries alone use a large part of it."""
BATCH_BYTES = 100 << 20
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


Stated = Callable[[str], SourceError]
"""Makes an error, from a message, about the place where a source states its shape, which may be larger than listed."""


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


_HYPERSPARSE = 1000
"""Number of rows per entry above which row pointers take nearly all bytes of a matrix."""


@dataclass(frozen=True)
class StoreSize:
    """Size of a matrix in a store, before its chunks are compressed and duplicates are merged."""

    shape: tuple[int, int]
    n_entries: int
    dtype: np.dtype[Any] | None
    """Dtype of the values; None for a pattern."""
    has_sums: bool
    """Whether degrees and, with values, weights of columns are stored, as those of graphs are."""
    has_transpose: bool

    @property
    def lines(self) -> list[int]:
        """Number of elements, of 8 bytes each, of each array that has one per row or column."""
        n_rows, n_cols = self.shape
        sums = [n_cols] * (self.has_sums * (1 if self.dtype is None else 2))
        return [n_rows + 1, *sums, *([n_cols + 1] if self.has_transpose else [])]

    @property
    def entries_bytes(self) -> int:
        """Bytes of indices and values."""
        value = 0 if self.dtype is None else self.dtype.itemsize
        items = [index_dtype(n).itemsize + value for n in (self.shape[::-1] if self.has_transpose else self.shape[1:])]
        return self.n_entries * sum(items)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays but ids."""
        return 8 * sum(self.lines) + self.entries_bytes

    @property
    def is_hypersparse(self) -> bool:
        """True if there are far more rows or columns than entries."""
        return max(self.shape) > _HYPERSPARSE * (self.n_entries + 1)


def check_space(store: StoreLike, size: StoreSize) -> None:
    """Check that the arrays with one element per row or column fit in free space, before anything is written.

    A source may state any number of rows and columns, whereas its entries take about as much space as in the source.
    The space is that of the disk; in memory, and for a hypersparse matrix in an object store, the memory of this
    process, which reads row pointers whole.

    Raises
    ------
    DiskSpaceError, CapacityError : they do not fit
    """
    if (path := find_path(store)) is not None:
        free, where = shutil.disk_usage(path if path.is_dir() else find_folder(store) or path).free, "disk"
    elif is_in_memory(store) or size.is_hypersparse:
        free, where = free_memory(), "memory"
    else:
        return
    if (lines_bytes := 8 * sum(size.lines)) > free:
        n_chunks = sum(-(-n // digests.CHUNK_ELEMENTS) for n in size.lines)
        n_rows, n_cols = size.shape
        kind = DiskSpaceError if where == "disk" else CapacityError
        by_numbers = "number rows and columns without gaps, as ingest numbers the vertices of an edge list, or "
        raise kind(
            f"{describe_store(store)} would take {format_bytes(size.nbytes)} ({size.nbytes:,} bytes) before "
            f"compression: {format_bytes(lines_bytes)} in {n_chunks:,} chunks for its {n_rows:,} rows and "
            f"{n_cols:,} columns even without entries, but {format_bytes(free)} of {where} are free; "
            f"{by_numbers if size.is_hypersparse else ''}free some, or choose a place with more"
        )
