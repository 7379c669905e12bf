"""Features of a matrix, and the CUDA kernels that suit it: the automatic choice for products.

The rules are below `rank_kernels`, each with its reason. Their bounds are where the times of all kernels on 44 matrices
on an H200 (docs/measured/h200-spmv.md) leave a margin on both sides; its geometric means say what the choice loses.
Those of csr-compact are from 13 on an H100 and an H200 (docs/measured/h100-spmv.md).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mgspmv.kernels.csr_cuts import NEAR, STEP, TILE
from mgspmv.kernels.formats import (
    ELL_ROWS,
    WARP,
    Array,
    accumulate,
    array_module,
    count_true,
    find_distinct,
    find_offsets,
    row_lengths,
    to_host,
)
from mgspmv.model import INT32_LIMIT, CsrBlock

SAMPLE_WINDOWS, SAMPLE_ROWS, SAMPLE_ENTRIES = 64, 240, 256
"""Windows of the sample, rows per window, and maximum entries per row."""

FULL_THREADS = 1 << 17
"""Threads that keep a device busy: half of those that run on an H200 at a time."""
EVEN_ROWS = 4
"""Maximum ratio of the longest row to the mean in even rows; rows of at most WARP entries are even in any case."""
NEARBY, NEARBY_SCATTERED = 0.75, 0.9
"""Minimum share of the sample in which csr-compact can number columns; and if columns are scattered."""
EMPTY_ROWS = 4
"""Rows per entry from which row pointers are most of what CSR reads."""
LONG_ROW = TILE // 8
"""Mean entries per row from which csr-vector stages no rows."""
SELL_ROW = 8
"""Mean entries per row from which the order of rows and the slice pointers are small compared with the entries."""
DIA_FILL, ELL_FILL = 0.55, 0.9
"""Minimum share of the places of a format that hold entries."""
LINE_BYTES = 128
"""Bytes of a cache line of x."""
SCATTERED, HUB_ROW = 0.15, 16
"""Cache lines of x per entry of nearby rows from which columns are scattered, and minimum ratio of all entries to those
of the longest row in a power law."""
L1_BYTES = 128 << 10
"""Bytes of x that remain in the L1 cache of a multiprocessor."""
MANY_ITEMS = 1 << 23
"""Nonzeros and row ends from which a product takes much longer than the launches of HYB and column-sorted-tiles, which
are more than those of kernels over CSR."""

COMPACT_ITEMS = 1 << 21
"""The same from which csr-compact is faster than kernels over CSR."""


@dataclass(frozen=True)
class Features:
    """Features of one block, for vectors of one dtype, that the choice of a kernel depends on."""

    n_rows: int
    n_cols: int
    nnz: int
    longest: int
    """Entries of the longest row."""
    n_filled: int
    """Number of rows with entries."""
    n_diagonals: int | None
    """Number of diagonals with entries; None if more than `most_diagonals`."""
    scatter: float
    """Cache lines of x per entry of nearby rows, estimated from a sample, at most 1."""
    nearby: float
    """Share of the sample in which the columns of about 512 adjacent entries are within 2^16, at most 1."""
    index_bytes: int
    """Bytes per column index."""
    value_bytes: int
    """Bytes per stored value; 0 for a pattern."""
    x_bytes: int
    """Bytes per element of x, and per value in formats that always store values."""

    @property
    def mean(self) -> float:
        """Mean entries per row."""
        return self.nnz / max(1, self.n_rows)

    @property
    def csr_bytes(self) -> int:
        """Bytes of the block in CSR on a device."""
        offset = 4 if self.nnz < INT32_LIMIT else 8
        return self.nnz * (self.index_bytes + self.value_bytes) + (self.n_rows + 1) * offset

    @property
    def most_diagonals(self) -> int:
        """Diagonals up to which DIA takes no more bytes than CSR, and enough of its places hold entries."""
        rows = max(1, self.n_rows)
        return int(min(self.csr_bytes / (rows * self.x_bytes), self.nnz / (rows * DIA_FILL)))

    @property
    def is_scattered(self) -> bool:
        """True if reading x limits kernels over CSR: few entries share a cache line of x, and x does not fit in L1."""
        is_far = self.scatter >= SCATTERED and self.n_cols * self.x_bytes > L1_BYTES
        return is_far and self.nnz + self.n_rows >= MANY_ITEMS

    @property
    def is_compact(self) -> bool:
        """True if columns fit in 16 bits, and the product takes so long that bytes are what it waits for."""
        if self.is_scattered and (self.nearby < NEARBY_SCATTERED or not self.value_bytes):
            return False
        return self.nearby >= NEARBY and self.nnz + self.n_rows >= COMPACT_ITEMS

    @property
    def is_even(self) -> bool:
        """True if no row keeps the others of its thread block waiting."""
        return self.longest <= max(EVEN_ROWS * self.mean, WARP)


def find_features(block: CsrBlock, dtype: Any) -> Features:
    """Find the features of a block on its device, for NumPy and CuPy arrays alike.

    All row pointers are read, and the columns of a sample of at most 64 x 240 rows; all columns are read once if the
    sample lies on so few diagonals that the whole matrix may.

    Parameters
    ----------
    dtype : float32 or float64, of x
    """
    lengths = row_lengths(block)
    sample, rows = _sample_rows(block)
    dtype = np.dtype(dtype)
    found = Features(
        n_rows=block.n_rows,
        n_cols=block.n_cols,
        nnz=block.nnz,
        longest=int(lengths.max()) if block.n_rows else 0,
        n_filled=count_true(lengths > 0),
        n_diagonals=None,
        scatter=_measure_scatter(sample, dtype),
        nearby=_measure_nearby(block),
        index_bytes=block.indices.itemsize,
        value_bytes=0 if block.data is None else block.data.itemsize,
        x_bytes=dtype.itemsize,
    )
    if len(find_distinct(sample.indices.astype(np.int64) - rows)) > found.most_diagonals:
        return found
    wide = replace(block, indptr=block.indptr.astype(np.int64, copy=False))
    n_diagonals = len(find_offsets(wide))
    return replace(found, n_diagonals=n_diagonals if n_diagonals <= found.most_diagonals else None)


def rank_kernels(f: Features) -> list[str]:
    """Rank CUDA kernels for products with such a matrix, best first; the others are fallbacks if its format does not
    fit. The last one supports every matrix and needs next to no memory besides CSR."""
    if f.nnz * EMPTY_ROWS <= f.n_rows:
        # COO reads no row pointers, which are most of CSR here.
        return ["coo", "csr-vector"]
    return _rank_for_even_rows(f) if f.is_even else _rank_for_uneven_rows(f)


def _rank_for_uneven_rows(f: Features) -> list[str]:
    """Rank kernels for matrices in which a thread with a long row would keep the others waiting."""
    # It reads two bytes fewer per entry than any other, and rows of any lengths in the same time.
    compact = ["csr-compact"] if f.is_compact else []
    # HYB processes the leading entries of rows by columns, in lockstep, and the others without a search for row ends.
    # But its COO stores a row per entry, which doubles the bytes of a pattern; and enough rows must have entries.
    is_shared = f.n_filled >= max(ELL_ROWS, f.n_rows / 3)
    hyb = ["hyb"] if f.value_bytes and is_shared and f.nnz + f.n_rows >= MANY_ITEMS else []
    # If a few rows are long and the others short, column-sorted-tiles are not faster.
    if f.is_scattered and f.longest * HUB_ROW <= f.nnz:
        return [*compact, "column-sorted-tiles", *hyb, "csr-split"]
    return [*compact, *hyb, "coo", "csr-split"] if hyb else [*compact, "csr-split"]


def _rank_for_even_rows(f: Features) -> list[str]:
    is_full = f.n_rows >= FULL_THREADS  # with fewer, one thread per row leaves most of the device idle
    # In order of preference: the reason, the kernel, and whether it suits.
    rules = (
        # No columns are read, and x is read in order.
        ("dia", is_full and f.n_diagonals is not None),
        # It reads less than one cache line of x per entry; these reads are the bottleneck of the others.
        ("column-sorted-tiles", f.is_scattered and not f.is_compact),
        # Loads of a warp are coalesced, no sums cross threads, and there is almost no padding.
        ("ell", is_full and f.nnz >= ELL_FILL * f.longest * f.n_rows),
        # As ell, with less padding. Faster if x fits in L1.
        ("sell", is_full and f.mean >= SELL_ROW and f.n_cols * f.x_bytes <= L1_BYTES),
        # Rows are too long for csr-vector to stage; it would work as csr-warp does, with more registers.
        ("csr-warp", f.mean >= LONG_ROW),
        # It reads two bytes fewer per entry than csr-vector, and rows of any lengths in the same time; but in float64
        # it computes so much per entry that those gain nothing without values.
        ("csr-compact", f.is_compact and bool(f.value_bytes or f.x_bytes == 4)),
        # All others: loads are coalesced for any row length, and no format has to be built.
        ("csr-vector", True),
    )
    return [name for name, suits in rules if suits]


# --- samples ---------------------------------------------------------------------------------------------------------


def _choose_rows(block: CsrBlock, n_own: int = SAMPLE_ROWS) -> tuple[Array, Array]:
    """Return the sampled rows, the first `n_own` of each window, and the windows that they are of."""
    xp = array_module(block.indptr)
    n_windows = min(SAMPLE_WINDOWS, max(1, block.n_rows // SAMPLE_ROWS))
    windows = xp.repeat(xp.arange(n_windows), n_own)
    rows = windows * (block.n_rows // n_windows) + xp.arange(n_windows * n_own) % n_own
    is_there = rows < block.n_rows
    return rows[is_there], windows[is_there]


def _sample_rows(block: CsrBlock) -> tuple[CsrBlock, Array]:
    """Return the first entries of sampled rows as a separate block, and the global row of each entry."""
    xp = array_module(block.indptr)
    rows, _ = _choose_rows(block)
    starts = block.indptr[rows].astype(np.int64)
    indptr = accumulate(xp.minimum(block.indptr[rows + 1] - starts, SAMPLE_ENTRIES))
    places = xp.arange(int(indptr[-1]))
    owners = xp.searchsorted(indptr, places, side="right") - 1
    indices = block.indices[starts[owners] + places - indptr[owners]]
    return CsrBlock(0, block.n_cols, indptr, indices, None), rows[owners] + block.row_offset


def _measure_scatter(sample: CsrBlock, dtype: np.dtype[Any]) -> float:
    """Return the distinct cache lines of x per entry, counted within each window of the sample."""
    xp = array_module(sample.indptr)
    windows = xp.searchsorted(sample.indptr[::SAMPLE_ROWS], xp.arange(sample.nnz), side="right")
    line = LINE_BYTES // dtype.itemsize
    lines = sample.indices.astype(np.int64) // line + windows * (sample.n_cols // line + 1)
    return len(find_distinct(lines)) / sample.nnz if sample.nnz else 0.0


def _measure_nearby(block: CsrBlock) -> float:
    """Return the share of windows of about 512 entries, but at most 240 rows, whose columns are within 2^16."""
    n_own = min(SAMPLE_ROWS, 1 + STEP * block.n_rows // max(1, block.nnz))
    rows, windows = _choose_rows(block, n_own)
    starts, ends = block.indptr[rows], block.indptr[rows + 1]
    is_filled = ends > starts
    least, most = block.indices[starts[is_filled]], block.indices[ends[is_filled] - 1]  # columns are sorted in rows
    cuts = np.flatnonzero(np.diff(to_host(windows[is_filled]), prepend=-1))
    if not len(cuts):
        return 1.0
    spans = np.maximum.reduceat(to_host(most), cuts) - np.minimum.reduceat(to_host(least), cuts)
    return float(np.mean(spans < NEAR))
