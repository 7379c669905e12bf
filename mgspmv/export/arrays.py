"""Three arrays of a compressed matrix in the order of its source, piece by piece, for formats that store such arrays:
SciPy's `.npz`, and the groups of other programs.

A graph's store has the arc i -> j in row j, so the stored matrix is the source's matrix by columns: nothing is
transposed. Entries are sorted again, within a given memory, only if rows and columns are renumbered.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Literal

import numpy as np

from mgspmv.ingest.entries import SortedSource
from mgspmv.ingest.prefetch import prefetch_map
from mgspmv.ingest.renumber import reorder_rows
from mgspmv.ingest.scratch import MemoryBudget
from mgspmv.ingest.stored import PIECE_ROWS, StoredRows
from mgspmv.model import MatrixInfo, Progress, index_dtype
from mgspmv.order import restore
from mgspmv.store.chunks import CHUNK_ELEMENTS
from mgspmv.store.read import StoredMatrix

ArrayName = Literal["indptr", "indices", "data"]
Pieces = Iterator[np.ndarray]


@dataclass(frozen=True)
class SourceArrays:
    """Matrix in the order of its source, compressed by rows or, for a graph, by columns."""

    info: MatrixInfo
    _read: Callable[[ArrayName], Pieces]
    """Function that yields an array in the order of the source, piece by piece."""

    @property
    def format(self) -> Literal["csr", "csc"]:
        return "csc" if self.info.kind == "graph" else "csr"

    def find_dtype(self, name: ArrayName) -> np.dtype:
        """Return the dtype of an array. SciPy has one for rows, columns and pointers; entries of a pattern are True."""
        if name == "data":
            return np.dtype(self.info.dtype or np.bool_)
        return index_dtype(max(*self.info.shape, self.info.nnz))

    def find_length(self, name: ArrayName) -> int:
        """Return the number of elements of an array."""
        return self.info.shape[0] + 1 if name == "indptr" else self.info.nnz

    def read_each(self, names: Iterable[ArrayName], report: Progress) -> Iterator[tuple[ArrayName, Pieces]]:
        """Yield arrays by name, piece by piece; report ("export", elements done, total elements) for each piece."""
        total, done = sum(map(self.find_length, names)), 0

        def read(name: ArrayName) -> Pieces:
            nonlocal done
            for piece in self.read(name):
                report("export", done, total)
                yield piece
                done += len(piece)

        for name in names:
            yield name, read(name)
        report("export", total, total)

    def read(self, name: ArrayName) -> Pieces:
        """Yield an array, piece by piece.

        Raises
        ------
        StoreDamagedError : as in `StoredMatrix.read_pointers` and `StoredMatrix.read_array`
        CapacityError : duplicate entries of a renumbered matrix do not fit in memory
        """
        n, dtype = self.find_length(name), self.find_dtype(name)
        if name == "data" and self.info.is_pattern:
            return (np.ones(min(CHUNK_ELEMENTS, n - start), dtype) for start in range(0, n, CHUNK_ELEMENTS))
        return (piece.astype(dtype, copy=False) for piece in self._read(name))


@contextmanager
def open_arrays(stored: StoredMatrix, room: MemoryBudget, report: Progress) -> Iterator[SourceArrays]:
    """Yield the arrays of a stored matrix.

    Parameters
    ----------
    room : memory, threads and folder for sorting entries
    report : called with ("renumber", entries done, total entries) while entries are sorted

    Raises
    ------
    CapacityError : as in `reorder_rows`, for a renumbered matrix
    """
    if stored.info.order is None:
        yield SourceArrays(stored.info, lambda name: _read_stored(stored, name, room.threads))
        return
    rows = StoredRows(stored, room.threads)
    lengths = restore(rows.count_rows(), rows.order)
    with reorder_rows(rows, "none", report, room) as (source, _):
        yield SourceArrays(stored.info, lambda name: _read_sorted(source, name, lengths))


def _read_stored(stored: StoredMatrix, name: ArrayName, threads: int) -> Pieces:
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


def _read_sorted(source: SortedSource, name: ArrayName, lengths: np.ndarray) -> Pieces:
    if name == "indptr":
        yield np.cumsum(np.append(0, lengths))
        return
    for block in source.blocks():
        if name == "indices":
            yield block.indices
        elif block.data is not None:
            yield block.data


def write_npz(arrays: SourceArrays, file: IO[bytes], report: Progress) -> None:
    """Write a `.npz`, uncompressed, of which `scipy.sparse.load_npz` makes a csr_array or, of a graph, a csc_array."""
    names: tuple[ArrayName, ...] = ("indices", "indptr", "data")
    with zipfile.ZipFile(file, "w") as archive:
        for name, pieces in arrays.read_each(names, report):
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                member.write(_make_header(arrays.find_dtype(name), arrays.find_length(name)))
                for piece in pieces:
                    member.write(piece.data)
        small = {"format": arrays.format.encode(), "shape": arrays.info.shape, "_is_array": True}
        for key, value in small.items():
            content = io.BytesIO()
            np.save(content, np.array(value))
            archive.writestr(zipfile.ZipInfo(f"{key}.npy"), content.getvalue())


def _make_header(dtype: np.dtype, n: int) -> bytes:
    """Return the header of a `.npy` of n elements."""
    header = io.BytesIO()
    described = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (n,)}
    np.lib.format.write_array_header_1_0(header, described)
    return header.getvalue()
