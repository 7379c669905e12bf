"""Choice and construction of the three matrix layouts for PageRank steps on a device.

Entries in coordinate format (COO) suit small matrices, which stay in the cache: they are those of CSR, with the row of
each, so that next to nothing is built, and rows are not surveyed. kernels/coo_rows.cu finds the rows, and
kernels/rank_coo.cu multiplies. Source: segmented reduction of COO, Bell and Garland, NVIDIA NVR-2008-004, 2008.

SELL slices suit short rows of similar length with nearby columns, as in grids and meshes: one thread per row, and no
sums in shared memory. 32 consecutive rows are a slice, padded to its longest row; the k-th entries of its rows are
adjacent. The order of rows and columns is kept, so that rows that read neighboring columns do so at the same time.
kernels/sell_slices.cu builds them, kernels/rank_slices.cu multiplies. Source: sliced ELLPACK, Monakov, Lokhmotov,
Avetisyan (HiPEAC 2010), with one warp per slice and rows in their order.

Column-sorted blocks suit all others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np

from mgspmv.kernels.band_slices import BAND, LEAST_IN_ROW, SLICE, split_rows
from mgspmv.kernels.bins import may_bin
from mgspmv.kernels.column_sorted_blocks import (
    KEYS,
    ColumnSortedBlocks,
    build_column_sorted_blocks,
    place_rows,
    run_rows,
)
from mgspmv.kernels.device import PieceReader, address, count_blocks, load_kernel, release_device_memory
from mgspmv.kernels.features import EVEN_ROWS
from mgspmv.kernels.formats import MatrixFormat, array_module, cut_pieces
from mgspmv.kernels.modules import value_types
from mgspmv.kernels.streaming import ChunkStream, hold_pieces
from mgspmv.model import CsrBlock
from mgspmv.plan import Streaming

LayoutName = Literal["column-sorted-blocks", "sell-slices", "coo"]
Order = Literal["none", "degree"]

SMALL_ENTRIES, SMALL_ROWS = 1 << 22, 1 << 20
"""Entries and rows up to which a matrix is small: its entries, of 8 bytes without values, are in the cache. With
more rows a step takes longer than on blocks: 0.19 ms, not 0.06, where 4 million have an entry each, on an H200."""
NEAR = 0.5
"""Share of entries near the diagonal above which rows are assumed to read the same columns as their neighbors."""
LEAST_FILL = 0.8
"""Minimum share of the places of SELL slices that hold entries, as padding is read too."""

SAMPLES = 1 << 14
SURVEYED_ENTRIES = 1 << 22
"""Entries that these are taken from, unless all rows are on the device."""
REACH = 1 << 14
"""Distance from the diagonal, in columns, below which entries are near: rows of a block have such columns in common."""
SHORT_ROW = 64
"""Entries of a row to which few threads add at a time."""

NEAR_RESIDENT = 2
"""Thread blocks that a multiprocessor runs at a time where rows are near but not even."""

_THREADS = 1024
_COO_THREADS, _COO_ITEMS = 256, 8
"""Threads of a thread block of kernels/coo_rows.cu, and entries of a thread."""


# --- SELL slices -----------------------------------------------------------------------------------------------------


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


def build_sell_slices(indptr: Any, n_cols: int, pieces: PieceReader, *, columns: Any | None = None) -> SellSlices:
    """Build SELL slices on the current device; parameters and errors as for `build_column_sorted_blocks`."""
    import cupy

    n_rows, nnz = len(indptr) - 1, int(indptr[-1])
    starts = count_places(cupy.diff(cupy.asarray(indptr)))
    placed, values = cupy.empty(SLICE * int(starts[-1]), np.int32), None
    for k, piece in pieces.each():
        first, last = pieces.cuts[k : k + 2]
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


# --- entries in coordinate format -------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class CooEntries(MatrixFormat):
    """Entries of a matrix in coordinate format, in the order of CSR, on the device."""

    shape: tuple[int, int]
    nnz: int
    rows: Any
    """(nnz,) int32, ascending."""
    columns: Any
    """(nnz,) int32: place of each column in z."""
    values: Any | None
    """(nnz,) float32 or float64; None for a pattern."""

    name: ClassVar[Literal["coo"]] = "coo"


def build_coo_entries(indptr: Any, n_cols: int, pieces: PieceReader, *, columns: Any | None = None) -> CooEntries:
    """Build COO entries on the current device; parameters and errors as for `build_column_sorted_blocks`.

    Columns and values of a single piece are not copied, unless other places of columns are given.
    """
    import cupy

    n_rows = len(indptr) - 1
    if pieces.is_whole:
        [(_, piece)] = pieces.each()
        nnz, values = piece.nnz, piece.data
        placed = piece.indices if columns is None else columns[piece.indices]
    else:
        nnz, values = int(indptr[-1]), None
        placed = cupy.empty(nnz, np.int32)
        for k, piece in pieces.each():
            first, last = (int(indptr[row]) for row in pieces.cuts[k : k + 2])
            placed[first:last] = piece.indices if columns is None else columns[piece.indices]
            if piece.data is not None:
                values = cupy.empty(nnz, piece.data.dtype) if values is None else values
                values[first:last] = piece.data
            del piece  # frees it before the next one is read
    rows, starts = cupy.empty(nnz, np.int32), cupy.asarray(indptr, np.int64)
    if nnz:
        grid = count_blocks(nnz, _COO_THREADS * _COO_ITEMS)
        load_kernel("coo_rows.cu", "expand_rows")(
            (grid,), (_COO_THREADS,), (np.int64(n_rows), np.int64(nnz), starts, rows)
        )
    return CooEntries((n_rows, n_cols), nnz, rows, placed, values)


def is_small(nnz: int, n_rows: int) -> bool:
    """Return whether a matrix is so small that its steps take COO entries, whatever its rows are."""
    return nnz <= SMALL_ENTRIES and n_rows <= SMALL_ROWS


# --- layouts ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Survey:
    """Statistics of rows that a layout is chosen by."""

    longest: int
    """Entries of the longest row."""
    n_places: int
    """Places of SELL slices, including padding."""
    near: float
    """Share of the entries that are near the diagonal, estimated from a sample."""
    in_band: float
    """Share of those that are next to it, likewise."""
    n_filled: int
    """Rows up to the last one that has entries."""

    def is_even(self, nnz: int, n_rows: int, *, may_bin: bool) -> bool:
        """Return whether no row is much longer than the mean; of rows that may be binned, than few threads add to."""
        return self.longest * n_rows <= EVEN_ROWS * nnz or (may_bin and self.longest <= SHORT_ROW)

    def has_band(self, nnz: int, n_rows: int) -> bool:
        """Return whether most entries, and enough of a row, are next to the diagonal."""
        return self.in_band > NEAR and self.in_band * nnz >= LEAST_IN_ROW * n_rows


def survey_rows(indptr: Any, piece: CsrBlock, first_row: int, row_offset: int) -> Survey:
    """Survey rows on the device, and a sample of the entries of some of them.

    Parameters
    ----------
    indptr : (n_rows + 1,) int64, on the device
    piece : the rows from `first_row` on
    row_offset : global number of the first row
    """
    import cupy

    found, n_samples = cupy.zeros(5, np.int64), min(piece.nnz, SAMPLES)
    first_entry = int(indptr[first_row]) if first_row else 0
    sample = (np.int64(first_entry), np.int64(piece.nnz), piece.indices, *map(np.int64, (n_samples, REACH, BAND)))
    run_rows("survey", len(indptr) - 1, (np.int64(row_offset), indptr, *sample, found))
    longest, places, n_near, n_in_band, n_filled = map(int, found.get())
    return Survey(longest, 32 * places, n_near / max(1, n_samples), n_in_band / max(1, n_samples), n_filled)


def choose_layout(nnz: int, n_rows: int, survey: Survey, *, may_bin: bool = False) -> tuple[LayoutName, Order]:
    """Choose the layout that suits a large square matrix, and whether column-sorted blocks place long rows first.

    Rows of even length gain nothing from that order, and where most entries are near the diagonal, it would separate
    neighboring rows, which read the same columns. Binned rows gain only if some are so long that they are added to by
    many threads at a time.

    Parameters
    ----------
    may_bin : whether cells of column-sorted blocks may be binned
    """
    is_even, is_near = survey.is_even(nnz, n_rows, may_bin=may_bin), survey.near > NEAR
    if is_even and is_near and nnz >= LEAST_FILL * survey.n_places:
        return "sell-slices", "none"
    return "column-sorted-blocks", "none" if is_even or is_near else "degree"


@dataclass(frozen=True, eq=False)
class RowOrder:
    """Order of the rows on the device, and the columns they correspond to. Rows do not move to other pieces."""

    by_place: Any | None
    """(n_rows,) int32: row at each place; None if places are rows."""
    columns: Any | None
    """(n_rows,) int32: place of each row among the `n_sent` that are columns, any for the others; None if places are
    rows, or once the layout is built."""
    rows: tuple[int, ...]
    """First row of each piece, and the number of rows."""
    sent: tuple[int, ...]
    """First column of each piece, whose rows that are columns come first, and the number of columns."""
    filled: tuple[int, ...] | None = None
    """Places of each piece up to the last row that has entries; None if they were not counted."""

    @property
    def n_sent(self) -> int:
        """Number of rows that are columns."""
        return self.sent[-1]

    @property
    def n_pieces(self) -> int:
        return len(self.sent) - 1


LayoutPiece: TypeAlias = ColumnSortedBlocks | SellSlices | CooEntries


@dataclass(frozen=True, eq=False)
class MatrixLayout:
    """Rows of a square matrix in a layout, in one or several pieces, which are on the device or streamed to it."""

    shape: tuple[int, int]
    """Number of rows, and of columns of z."""
    nnz: int
    value: np.dtype[Any] | None
    """Dtype of the values; None for a pattern."""
    name: LayoutName
    places: RowOrder
    feed: ChunkStream[LayoutPiece]

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        by_place = self.places.by_place
        return self.feed.nbytes + (0 if by_place is None else int(by_place.nbytes))


def hold_whole(layout: LayoutPiece, n_sent: int, order: Any | None = None) -> MatrixLayout:
    """Wrap a layout that is on the device in one piece.

    Parameters
    ----------
    n_sent : number of rows that are columns; these come first
    order : `by_place` of `RowOrder`
    """
    value = None if layout.values is None else layout.values.dtype
    places = RowOrder(order, None, (0, layout.shape[0]), (0, n_sent))
    return MatrixLayout(layout.shape, layout.nnz, value, layout.name, places, ChunkStream({0: layout}, None, 1))


class LayoutBuilder:
    """Builder of a layout: surveys the rows, unless they are few, then orders them, then builds.

    Parameters
    ----------
    indptr : as for `build_column_sorted_blocks`
    read : function of two rows that returns the rows from the first to the second as a block on the device
    piece_entries : most entries of a piece, unless few rows have more; None for one piece, if the matrix is on the
        device anyway
    layout, order : None for the one that suits the rows
    row_offset : global number of the first row
    bin_bytes, is_exact : as for `build_column_sorted_blocks`
    may_stream : whether the layout may be streamed: then COO entries, which take more memory than blocks, must be named

    Attributes
    ----------
    layout, order : the given ones, else those that suit the rows
    """

    def __init__(
        self,
        indptr: Any,
        read: Callable[[int, int], CsrBlock],
        *,
        layout: LayoutName | None = None,
        order: Order | None = None,
        piece_entries: int | None = None,
        row_offset: int = 0,
        bin_bytes: int = 0,
        is_exact: bool = True,
        may_stream: bool = False,
    ) -> None:
        import cupy

        there, n_rows, self._read, self._row_offset = cupy.asarray(indptr, np.int64), len(indptr) - 1, read, row_offset
        self._pieces = PieceReader(read, cut_pieces(indptr, piece_entries, SLICE))
        if self._pieces.is_whole:
            [(_, piece)] = self._pieces.each()
            self._indptr, nnz = there, piece.nnz
            if layout is None and is_small(nnz, n_rows) and not may_stream:
                layout = "coo"
        else:
            first, last = find_middle(indptr, min(SURVEYED_ENTRIES, piece_entries or SURVEYED_ENTRIES))
            piece, self._indptr, nnz = read(first, last), indptr, int(indptr[-1])
            self._survey = survey_rows(there, piece, first, row_offset)
        self._value = None if piece.data is None else piece.data.dtype
        self._bin_bytes, self._is_exact = bin_bytes, is_exact
        self.layout: LayoutName
        self.order: Order = "none"
        if layout == "coo":
            self.layout = layout
            return
        has_bins = may_bin(n_rows, bin_bytes)
        found, suited = choose_layout(nnz, n_rows, self._survey, may_bin=has_bins)
        self.layout = layout or found
        self._is_even = self._survey.is_even(nnz, n_rows, may_bin=has_bins)
        self._has_band = self._is_even and self._survey.has_band(nnz, n_rows)
        if self.layout == "column-sorted-blocks":
            self.order = order or suited

    @cached_property
    def _survey(self) -> Survey:
        """Survey of the rows of a single piece, when it is first needed: it waits for the device."""
        [(_, piece)] = self._pieces.each()
        return survey_rows(self._indptr, piece, 0, self._row_offset)

    @property
    def is_near(self) -> bool:
        """True if most entries are near the diagonal, so that few columns of other rows are read."""
        return self._survey.near > NEAR

    def mark_columns(self, n_cols: int) -> Any:
        """Return (n_cols,) bool on the device: whether each column has entries."""
        import cupy

        is_read = cupy.zeros(n_cols, np.bool_)
        for _, piece in self._pieces.each():
            is_read[piece.indices] = True
            del piece
        return is_read

    def place_streamed(self, degree: Any, streaming: Streaming | None) -> RowOrder:
        """Order the rows as `place` does, within the pieces that are streamed; else begin to read those of CSR."""
        if streaming is None:
            self._pieces.begin()
        return self.place(degree, None if streaming is None else cut_pieces(self._indptr, streaming.piece_entries))

    def place(self, degree: Any, cuts: Sequence[int] | None = None) -> RowOrder:
        """Order the rows for a layout whose columns include other rows: rows that are not columns come last.

        Parameters
        ----------
        degree : (n_rows,) int64 or float64, on the device: entries of the column of the row's number
        cuts : bounds of the pieces of the layout; None for one piece
        """
        import cupy

        n_rows = len(degree)
        assert degree.dtype.itemsize == 8
        cuts = (0, n_rows) if cuts is None else tuple(cuts)
        if self.order == "none":
            is_counted = self.layout == ColumnSortedBlocks.name and len(cuts) == 2
            return RowOrder(None, None, cuts, cuts, (self._survey.n_filled,) if is_counted else None)
        by_place, columns = cupy.empty(n_rows, np.int32), cupy.empty(n_rows, np.int32)
        found = cupy.zeros(len(cuts) * (KEYS + 1), np.uint64)
        for k, (first, last) in enumerate(pairwise(cuts)):
            indptr = cupy.asarray(self._indptr[first : last + 1], np.int64)
            place_rows(indptr, degree[first:last], first, found[k * (KEYS + 1) :], by_place, columns)
        rows = found.get().reshape(-1, KEYS + 1).astype(np.int64)
        n_columns, n_filled, n_placed = (rows[:-1, :n].sum(1) for n in (KEYS // 2, KEYS // 2 - 1, KEYS - 1))
        filled = np.where(n_placed > n_columns, n_placed, n_filled)
        return RowOrder(by_place, columns, cuts, tuple(rows[:, KEYS].tolist()), tuple(filled.tolist()))

    def build_share(self, places: RowOrder, columns: Any, n_columns: int, k: int | None = None) -> LayoutPiece:
        """Build the layout of these rows of a larger matrix, or of one piece of them.

        Parameters
        ----------
        places : of these rows
        columns : (n_cols,) int32, on the device: place in z of each column; None if that is its number
        n_columns : places in z
        k : number of the piece; None if there is only one
        """
        indptr, pieces, order = self._indptr, self._pieces, places.by_place
        bin_bytes = self._bin_bytes if k is None else 0
        if k is not None:
            first, last = places.rows[k : k + 2]
            indptr = indptr[first : last + 1] - indptr[first]
            order = None if order is None else order[first:last] - first
            read = self._read
            pieces = PieceReader(lambda start, stop: read(first + start, first + stop), (0, last - first))
        if self.layout == "coo":
            return build_coo_entries(indptr, n_columns, pieces, columns=columns)
        if self.layout == "sell-slices":
            return build_sell_slices(indptr, n_columns, pieces, columns=columns)
        n_filled = None if places.filled is None else places.filled[k or 0]
        options = {"order": order, "columns": columns, "value": self._value, "n_filled": n_filled}
        kinds: dict[str, Any] = {"is_exact": self._is_exact, "is_near": self.is_near, "is_even": self._is_even}
        if k is None and self.is_near and not self._is_even:  # smaller blocks have as many near entries
            kinds["n_resident"] = NEAR_RESIDENT
        if k is None and self._has_band and order is None and pieces.is_whole:
            [(_, piece)] = pieces.each()
            first_place = self._row_offset if columns is None else int(columns[self._row_offset])
            kinds["band"], piece = split_rows(indptr, piece, columns, first_place)
            indptr, pieces = piece.indptr, PieceReader(lambda *_: piece, pieces.cuts)
        return build_column_sorted_blocks(indptr, n_columns, pieces, **options, bin_bytes=bin_bytes, **kinds)

    def build_layout(
        self,
        places: RowOrder,
        columns: Any,
        n_columns: int,
        streaming: Streaming | None,
        check: Callable[[], None] = lambda: None,
    ) -> MatrixLayout:
        """Build the layout of these rows of a larger matrix, keeping as many pieces on the device as fit.

        Parameters
        ----------
        places : from `place_streamed`; others as for `build_share`
        streaming : memory for pieces, and where the others are held; None for all in one piece
        check : called before each piece; may raise to cancel

        Raises
        ------
        CapacityError : a piece is larger than assumed and does not fit on host or device
        """
        if streaming is None:
            return hold_whole(self.build_share(places, columns, n_columns), places.n_sent, places.by_place)
        self._pieces = PieceReader(self._read, self._pieces.cuts)  # lets go of pieces
        release_device_memory()  # frees the temporary memory of `place`
        feed = hold_pieces(partial(self.build_share, places, columns, n_columns), places.n_pieces, streaming, check)
        shape, nnz, held = (places.rows[-1], n_columns), int(self._indptr[-1]), replace(places, columns=None)
        return MatrixLayout(shape, nnz, self._value, self.layout, held, feed)


def find_middle(indptr: Any, n_entries: int) -> tuple[int, int]:
    """Return the first row and the end of some in the middle, with `n_entries` or fewer unless it is one row."""
    xp, n_rows, middle = array_module(indptr), len(indptr) - 1, int(indptr[-1]) // 2
    bounds = xp.array([middle - n_entries // 2, middle + n_entries // 2])
    first, last = map(int, xp.searchsorted(indptr, bounds))
    first = min(first, n_rows - 1)
    return first, min(n_rows, max(first + 1, last - 1))
