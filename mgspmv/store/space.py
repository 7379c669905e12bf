"""Sizes of matrices in stores, and the space that they need."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import Any

import numpy as np

from mgspmv.display.numbers import format_bytes
from mgspmv.errors import CapacityError, DiskSpaceError
from mgspmv.model import free_memory, index_dtype
from mgspmv.store import digests
from mgspmv.store.locations import StoreLike, describe_store, find_folder, find_path, is_in_memory

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
