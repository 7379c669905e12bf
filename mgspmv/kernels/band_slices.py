"""Band slices: entries next to the diagonal, of rows that are otherwise multiplied in column-sorted blocks.

Neighboring rows that have entries next to the diagonal read neighboring elements of z, as in rings with shortcuts.
Such entries need no sorting: a thread adds those of its row, without shared memory, and they take two bytes each. 32
consecutive rows are a slice. Column-sorted blocks are built of all others.

    step      place of an entry's column in z, less that of its row; -2^15 where there is no entry
    word      two steps of one row; the k-th words of the rows of a slice are adjacent

A slice has no words of which less than half would be entries, so that these take no more than in blocks; what is left
is in blocks. kernels/band_slices.cu splits rows, kernels/rank_blocks.cu multiplies.

Source: sliced ELLPACK, Monakov, Lokhmotov, Avetisyan (HiPEAC 2010); the split of rows is this project's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mgspmv.kernels.device import address, count_blocks, load_kernel, pack
from mgspmv.kernels.formats import accumulate
from mgspmv.kernels.modules import value_types
from mgspmv.model import CsrBlock

BAND = 1 << 8
"""Distance from the diagonal, in columns, below which entries are in the band. In `exact`, 8 entries a row that are
spread over 300 columns on either side gain nothing on an H200; over 1000, they take 1.4 times as long as in blocks."""
LEAST_IN_ROW = 6
"""Entries of the band in a mean row from which slices are faster: the rows themselves take time. On an H200 graphs with
7 gained by a factor of 1.2, with 4 they gained nothing, and with 2 they took 1.2 times as long."""
SLICE = 32
"""Rows per slice."""
SLICES = 8
"""Slices per thread block."""


@dataclass(frozen=True, eq=False)
class BandSlices:
    """Entries next to the diagonal, on the device."""

    starts: Any
    """(n_slices + 1,) uint32: slice s has the words SLICE starts[s] .. SLICE starts[s + 1]."""
    words: Any
    """(SLICE starts[-1],) uint32: word SLICE (starts[s] + k) + l has steps 2 k, in its low half, and 2 k + 1 of row
    SLICE s + l."""
    values: Any | None
    """(2 SLICE starts[-1],) float32 or float64, in the order of the steps, 0 where there is no entry; None for a
    pattern."""
    nnz: int
    """Entries in the slices."""
    first_place: int
    """Place in z of the first row; the others follow."""

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return int(sum(a.nbytes for a in (self.starts, self.words, self.values) if a is not None))

    def list_fields(self) -> tuple[Any, ...]:
        """Return the fields of the structure Band of kernels/rank_blocks.cu."""
        return self.starts, self.words, self.values, self.first_place


def split_rows(
    indptr: Any, block: CsrBlock, columns: Any | None = None, first_place: int = 0
) -> tuple[BandSlices, CsrBlock]:
    """Split rows on the current device; return the entries next to the diagonal, and the others in CSR.

    Parameters
    ----------
    indptr : (n_rows + 1,) int64, on the device: of the rows
    block : the rows, on the device
    columns : as for `build_column_sorted_blocks`
    first_place : place in z of the first row
    """
    import cupy

    n_rows, value = len(indptr) - 1, None if block.data is None else block.data.dtype
    n_slices = count_blocks(n_rows, SLICE)
    rows = pack(n_rows, indptr, block.indices, block.data, columns, first_place)
    widths, n_far = cupy.empty(n_slices, np.uint32), cupy.empty(n_rows, np.int32)
    _run("measure_slices", n_slices, value, (rows, widths, n_far))
    starts, far_starts = cupy.zeros(n_slices + 1, np.uint32), accumulate(n_far)
    cupy.cumsum(widths, dtype=np.uint32, out=starts[1:])
    n_words, n_others = SLICE * int(starts[-1]), int(far_starts[-1])
    words, indices = cupy.empty(n_words, np.uint32), cupy.empty(n_others, np.int32)
    values, data = (None, None) if value is None else (cupy.zeros(2 * n_words, value), cupy.empty(n_others, value))
    _run("split_rows", n_slices, value, (rows, starts, words, address(values), far_starts, indices, address(data)))
    slices = BandSlices(starts, words, values, block.nnz - n_others, first_place)
    return slices, CsrBlock(0, block.n_cols, far_starts, indices, data)


def _run(name: str, n_slices: int, value: np.dtype[Any] | None, arguments: tuple[Any, ...]) -> None:
    kernel = load_kernel("band_slices.cu", name, BAND=BAND, **value_types(value))
    if n_slices:
        kernel((count_blocks(n_slices, SLICES),), (SLICE * SLICES,), arguments)
