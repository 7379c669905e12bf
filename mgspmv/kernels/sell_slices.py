"""SELL slices: the layout of a matrix of short, even rows for fast PageRank steps on a device.

32 consecutive rows are a slice, padded to its longest row; the k-th entries of its rows are adjacent. The order of rows
and columns is kept, so that rows that read neighboring columns do so at the same time. kernels/sell_slices.cu builds
them, kernels/rank_slices.cu multiplies.

Source: sliced ELLPACK, Monakov, Lokhmotov, Avetisyan (HiPEAC 2010), with one warp per slice and rows in their order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Literal

import numpy as np

from mgspmv.kernels.device import address, load_kernel, pack, shared_memory
from mgspmv.kernels.formats import MatrixFormat, array_module, cut_pieces
from mgspmv.kernels.specialize import value_types
from mgspmv.model import CsrBlock

SLICE = 32
"""Rows per slice."""
_THREADS = 1024
GRIDS = {True: 4, False: 2}
"""Resident thread blocks per multiprocessor that multiply: for a pattern (True), and with values (False)."""


@dataclass(frozen=True, eq=False)
class SellSlices(MatrixFormat):
    """Matrix in SELL slices, on the device."""

    shape: tuple[int, int]
    nnz: int
    starts: Any
    """(n_slices + 1,) uint32: slice s has the places SLICE starts[s] .. SLICE starts[s + 1]."""
    columns: Any
    """(SLICE starts[-1],) int32: entry k of row SLICE s + l is at SLICE (starts[s] + k) + l; n_cols for padding."""
    values: Any | None
    """(SLICE starts[-1],) float32 or float64, in the order of `columns`, 0 for padding; None for a pattern."""

    name: ClassVar[Literal["sell-slices"]] = "sell-slices"


def count_places(lengths: Any) -> Any:
    """Return (n_slices + 1,) uint32 `starts` for rows of these lengths, on the same device."""
    xp = array_module(lengths)
    n_slices = -(-len(lengths) // SLICE)
    padded = xp.zeros(n_slices * SLICE, lengths.dtype)
    padded[: len(lengths)] = lengths
    starts = xp.zeros(n_slices + 1, np.uint32)
    if n_slices:
        xp.cumsum(padded.reshape(n_slices, SLICE).max(axis=1), out=starts[1:])
    return starts


def build_sell_slices(
    indptr: Any,
    n_cols: int,
    read: Callable[[int, int], CsrBlock],
    *,
    columns: Any | None = None,
    piece_entries: int | None = None,
) -> SellSlices:
    """Build SELL slices on the current device; parameters and errors as for `build_column_sorted_blocks`."""
    import cupy

    n_rows, nnz = len(indptr) - 1, int(indptr[-1])
    starts = count_places(cupy.diff(cupy.asarray(indptr)))
    placed, values = cupy.empty(SLICE * int(starts[-1]), np.int32), None
    for first, last in pairwise(cut_pieces(indptr, piece_entries, SLICE)):
        piece = read(first, last)
        value = None if piece.data is None else piece.data.dtype
        indices = piece.indices if columns is None else columns[piece.indices]
        if value is not None and values is None:
            values = cupy.empty(len(placed), value)
        kernel = load_kernel("sell_slices.cu", "lay_out_rows", OFFSET=piece.indptr.dtype, **value_types(value))
        sizes = (np.int64(first), np.int64(last - first), np.int64(n_cols))
        arrays = (piece.indptr, indices, address(piece.data), starts, placed, address(values))
        if last > first:
            kernel((-(-(last - first) // _THREADS),), (_THREADS,), (*sizes, *arrays))
        del piece, indices, arrays  # frees them before the next one is read
    return SellSlices((n_rows, n_cols), nnz, starts, placed, values)


class SliceProduct:
    """Launch parameters of the kernels of sell-slices, as in `BlockProduct`."""

    source, threads, room = "rank_slices.cu", 256, 0
    held: tuple[Any, ...] = ()

    def __init__(self, slices: SellSlices) -> None:
        n_slices = len(slices.starts) - 1
        n_multiprocessors, _ = shared_memory()
        self.grid = max(1, min(n_multiprocessors * GRIDS[slices.values is None], -(-n_slices * SLICE // self.threads)))

    def pack(self, layout: Any) -> np.ndarray:
        arrays = (layout.starts, layout.columns, layout.values)
        return pack(len(layout.starts) - 1, *arrays, layout.shape[1])
