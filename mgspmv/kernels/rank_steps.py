"""PageRank steps on one device: all of a step in one kernel, and steps by the dozen without the host.

Two layouts of the matrix serve them. Row slices suit short rows of much the same length whose columns are near each
other, as of grids and meshes: a thread a row, nothing to add up in shared memory. Row blocks suit all others.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal, Protocol

import numpy as np

from mgspmv.errors import OptionError
from mgspmv.kernels.cpu import FLOAT32_ROUNDING
from mgspmv.kernels.dense import sum_vector
from mgspmv.kernels.device import describe_device, load_kernel, pack, put_all, report_full_device, shared_memory
from mgspmv.kernels.features import EVEN_ROWS
from mgspmv.kernels.row_blocks import Order, RowBlocks, Survey, build_row_blocks, cut_pieces, survey_rows
from mgspmv.kernels.row_slices import SLICE, RowSlices, build_row_slices
from mgspmv.kernels.specialise import rank_types
from mgspmv.model import FIXED_POINT, INT32_LIMIT, CsrBlock, Precision, StepSums
from mgspmv.partition import Slices

Layout = Literal["row-blocks", "row-slices"]

CAPTURED_STEPS = 5
"""Steps of a captured graph."""
KEPT_SUMS = 256
"""Steps whose sums the device keeps."""
FLOAT32_BITS = 27
"""Bits by which products of row blocks in float32 are finer than a mean contribution or rank: 1 / max(nnz, n_rows)."""

BLOCK_THREADS = 1024
LEAST_ITEM = 64
"""Chunks that are worth an item of their own."""
ITEMS = 4
"""Items for each multiprocessor, about, were all entries in one block."""
SLICE_THREADS = 256
SLICE_GRIDS = {True: 4, False: 2}
"""Thread blocks of row slices on each multiprocessor, all of them resident: of a pattern, and with values."""

NEAR = 0.5
"""Share of the entries near the diagonal above which rows are taken to read the columns of their neighbours."""
LEAST_FILL = 0.8
"""Share of the places of row slices that have entries: the others are read for nothing."""


# --- layouts ---------------------------------------------------------------------------------------------------------


def choose_layout(nnz: int, n_rows: int, survey: Survey) -> tuple[Layout, Order]:
    """The layout that suits a square matrix, and whether row blocks place long rows first.

    Rows that are even gain nothing by that, and where most entries are near the diagonal, rows that are neighbours
    read the same columns, which another order would part.
    """
    is_even, is_near = survey.longest * n_rows <= EVEN_ROWS * nnz, survey.near > NEAR
    if is_even and is_near and nnz >= LEAST_FILL * survey.n_places:
        return "row-slices", "none"
    return "row-blocks", "none" if is_even or is_near else "degree"


def build_layout(
    indptr: Any,
    n_cols: int,
    read: Callable[[int, int], CsrBlock],
    *,
    layout: Layout | None = None,
    order: Order | None = None,
    piece_entries: int | None = None,
) -> RowBlocks | RowSlices:
    """The layout that suits a square matrix, or the one that is named, made on the current device.

    Parameters and errors as for `build_row_blocks`.
    """
    rows = LaidRows(indptr, read, layout=layout, order=order, piece_entries=piece_entries)
    return rows.build(n_cols)


@dataclass(frozen=True, eq=False)
class Places:
    """An order of rows, on the device, and the columns that they are."""

    by_place: Any | None
    """(n_rows,) int32: the row at each place; None where places are rows."""
    columns: Any
    """(n_rows,) int32: the place of each row among the `n_sent` that are columns; 0 for the others."""
    n_sent: int
    """Rows that are somebody's columns: the first ones."""


class LaidRows:
    """Rows on their way into a layout: looked at, then put in order, then built.

    Parameters
    ----------
    row_offset : which row of the matrix the first one is
    others : as for `build_layout`

    Attributes
    ----------
    layout, order : what suits the rows, or what was named
    """

    def __init__(
        self,
        indptr: Any,
        read: Callable[[int, int], CsrBlock],
        *,
        layout: Layout | None = None,
        order: Order | None = None,
        piece_entries: int | None = None,
        row_offset: int = 0,
    ) -> None:
        import cupy

        there = cupy.asarray(indptr, np.int64)
        cuts = cut_pieces(indptr, piece_entries)
        middle = (len(cuts) - 1) // 2
        piece = read(cuts[middle], cuts[middle + 1])
        self._survey = survey_rows(there, piece, cuts[middle], row_offset)
        nnz = int(indptr[-1]) if len(cuts) > 2 else piece.nnz
        self._indptr, self._read, self._piece_entries = indptr, read, piece_entries
        if len(cuts) == 2:
            self._indptr, self._read = there, lambda *_: piece
        found, suited = choose_layout(nnz, len(indptr) - 1, self._survey)
        self.layout: Layout = layout or found
        self.order: Order = "none" if self.layout == "row-slices" else order or suited

    @property
    def is_near(self) -> bool:
        """Whether most entries are near the diagonal, so that few columns of other rows are read."""
        return self._survey.near > NEAR

    def mark_columns(self, n_cols: int) -> Any:
        """(n_cols,) bool, on the device: columns that have entries."""
        import cupy

        is_read = cupy.zeros(n_cols, np.bool_)
        for first, last in pairwise(cut_pieces(self._indptr, self._piece_entries)):
            is_read[self._read(first, last).indices] = True
        return is_read

    def build(self, n_cols: int) -> RowBlocks | RowSlices:
        """The layout of a square matrix, whose columns go with its rows."""
        if self.layout == "row-slices":
            return build_row_slices(self._indptr, n_cols, self._read, piece_entries=self._piece_entries)
        options: Any = {"order": self.order, "piece_entries": self._piece_entries, "survey": self._survey}
        return build_row_blocks(self._indptr, n_cols, self._read, **options)

    def place(self, is_read: Any) -> Places:
        """Order the rows for a layout whose columns are of other rows too: those that nobody reads come last.

        Parameters
        ----------
        is_read : (n_rows,) bool, on the device: whether there are entries in the column of the row's number
        """
        import cupy

        n_rows = len(is_read)
        in_order = cupy.arange(n_rows, dtype=np.int32)
        if self.order == "none":
            return Places(None, in_order, n_rows)
        lengths = cupy.diff(cupy.asarray(self._indptr, np.int64))
        by_place = cupy.argsort(cupy.where(is_read, 0, INT32_LIMIT) - lengths, kind="stable").astype(np.int32)
        columns, n_sent = cupy.zeros(n_rows, np.int32), int(cupy.count_nonzero(is_read))
        columns[by_place[:n_sent]] = in_order[:n_sent]
        return Places(by_place, columns, n_sent)

    def build_share(self, places: Places, columns: Any, n_columns: int) -> RowBlocks | RowSlices:
        """The layout of these rows of a larger matrix.

        Parameters
        ----------
        places : of these rows
        columns : (n_cols,) int32, on the device: the place in z of each column
        n_columns : places in z
        """
        options: Any = {"columns": columns, "piece_entries": self._piece_entries}
        if self.layout == "row-slices":
            return build_row_slices(self._indptr, n_columns, self._read, **options)
        order: Any = "none" if places.by_place is None else places.by_place
        return build_row_blocks(self._indptr, n_columns, self._read, order=order, survey=self._survey, **options)


@dataclass(frozen=True, eq=False)
class Items:
    """What thread blocks take one after the other: chunks of one row block, the longest first."""

    blocks: np.ndarray
    """(n_items,) int32."""
    bounds: np.ndarray
    """(n_items, 2) int64: first chunk and the one after the last."""
    parts: np.ndarray
    """(blocks,) int32: items of each block, also of those that have rows only."""


def cut_items(block_chunks: np.ndarray, n_blocks: int, n_multiprocessors: int) -> Items:
    """Cut the blocks into items of about equal size.

    Parameters
    ----------
    block_chunks : of `RowBlocks`
    n_blocks : with those that have no entries
    """
    n_chunks, first = np.zeros(n_blocks, np.int64), np.zeros(n_blocks, np.int64)
    n_chunks[: len(block_chunks) - 1], first[: len(block_chunks) - 1] = np.diff(block_chunks), block_chunks[:-1]
    size = max(LEAST_ITEM, int(n_chunks.sum()) // (n_multiprocessors * ITEMS))
    parts = np.maximum(1, np.rint(n_chunks / size).astype(np.int64))
    blocks = np.repeat(np.arange(n_blocks), parts)
    number = np.arange(len(blocks)) - np.repeat(np.cumsum(parts) - parts, parts)
    bounds = first[blocks, None] + n_chunks[blocks, None] * np.stack([number, number + 1], 1) // parts[blocks, None]
    by_length = np.argsort(bounds[:, 0] - bounds[:, 1], kind="stable")
    return Items(blocks[by_length].astype(np.int32), bounds[by_length], parts.astype(np.int32))


class _Product(Protocol):
    """How the kernels of a layout are begun."""

    source: str
    matrix: np.ndarray
    """The structure that says where the matrix is."""
    grid: int
    threads: int
    room: int
    """Bytes of shared memory."""
    bits: int
    """Of products in float32 after the point; 0 where they are added as numbers."""
    held: tuple[Any, ...]
    """Arrays beside the layout."""


class _BlockProduct:
    source, threads = "rank_blocks.cu", BLOCK_THREADS

    def __init__(self, blocks: RowBlocks, n_terms: int) -> None:
        import cupy

        self.grid, _ = shared_memory()
        n_blocks = -(-blocks.shape[0] // blocks.height)
        items = cut_items(blocks.block_chunks, n_blocks, self.grid)
        n_shared = int(np.flatnonzero(items.parts > 1).max(initial=-1) + 1) * blocks.height
        tables = put_all(items.blocks, items.bounds, items.parts, np.zeros(n_blocks, np.int32))
        self.held = (*tables, cupy.zeros(n_shared, np.uint64))
        arrays = (blocks.entries, blocks.columns, blocks.values, *self.held)
        self.matrix = pack(len(items.blocks), *arrays, blocks.height)
        self.room = 8 * (blocks.height + 1)  # a row is for entries that are none
        self.bits = min(62, FLOAT32_BITS + math.ceil(math.log2(max(1, n_terms))))


class _SliceProduct:
    source, threads, room, bits = "rank_slices.cu", SLICE_THREADS, 0, 0
    held: tuple[Any, ...] = ()

    def __init__(self, slices: RowSlices, n_terms: int) -> None:
        n_slices = len(slices.starts) - 1
        n_multiprocessors, _ = shared_memory()
        self.grid = max(
            1, min(n_multiprocessors * SLICE_GRIDS[slices.values is None], -(-n_slices * SLICE // SLICE_THREADS))
        )
        arrays = (slices.starts, slices.columns, slices.values)
        self.matrix = pack(n_slices, *arrays, slices.shape[1])


# --- several devices -------------------------------------------------------------------------------------------------


class Exchange(Protocol):
    """Brings the slices of z together that several devices make, each on its own stream."""

    rank: int
    """Which of the devices this is."""
    slices: Slices
    n_terms: int
    """Entries of the whole matrix, or rows, if those are more."""

    @property
    def received_elements(self) -> int:
        """Elements of z that come from others."""
        ...

    def enqueue(self, z: Any) -> None:
        """On the current stream: send this device's slice of z to the others, and get theirs.

        Parameters
        ----------
        z : (slices.starts[-1] + 1,), on the device
        """
        ...

    def wait(self, stream: Any) -> None:
        """Until the stream is at rest, or raise when a device is gone that others wait for."""
        ...


# --- steps -----------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class RankVectors:
    """What a run starts with, on the host or on the device, in the order of the rows."""

    x: Any
    """(n_rows,) or (1,) float32 or float64, as the precision is."""
    weight: Any
    """(n_rows,) float64 out-weights, 0 for dangling vertices; of a pattern, counts."""
    dangling: Any
    """(n_rows,) or (1,) float64."""
    personalization: Any
    """(n_rows,) or (1,) float64."""


@dataclass(frozen=True)
class RankRules:
    """What the device itself has to know of a run."""

    alpha: float
    threshold: float
    """The run stops when the change is below."""
    by_largest: bool
    """The change is the largest of a vertex, and not their sum."""


@dataclass(eq=False)
class _Arrays:
    """Of a run, on the device."""

    vectors: list[Any] = field(default_factory=list)
    state: Any = None
    history: Any = None
    z: list[Any] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        return sum(int(a.nbytes) for a in (*self.vectors, *self.z, self.state, self.history) if a is not None)


class RankSteps:
    """The steps of a PageRank run on the current device. Vectors come and go in the order of the rows.

    Steps are enqueued on a stream of their own, of which a graph can be captured. Memory is taken on the caller's, for
    CuPy keeps what is free by streams, and given back when the other stream has come to rest.

    In `exact` the bits are the CPU's. In `float32` ranks and z are float32; products are added in row blocks as
    multiples of 2^-27 / max(nnz, n_rows), without more rounding, and in row slices as float64: the same ranks in each
    run.

    On several devices each has a layout of its rows, and all make the same calls. Sums that a method gives are those of
    all rows; ranks and the residual are of the own ones.

    Parameters
    ----------
    layout : of a square matrix, on the current device; or of its rows that belong to this device
    precision : `exact` or `float32`; float64 sums take csr-split
    exchange : with the devices that have the other rows

    Raises
    ------
    CapacityError : its tables do not fit
    """

    def __init__(
        self,
        layout: RowBlocks | RowSlices,
        precision: Precision,
        exchange: Exchange | None = None,
    ) -> None:
        import cupy

        if precision == "float64":
            raise OptionError(f"{name_layout(layout)} is for precision='exact' and 'float32'; pass kernel='csr-split'")
        self.layout, self.precision, self._exchange = layout, precision, exchange
        n_rows, self._n_columns = layout.shape
        n_terms = max(layout.nnz, n_rows) if exchange is None else exchange.n_terms
        self.seconds: list[tuple[float, float]] = []
        """Of each step of the last `advance`: in the product, and in the exchange."""
        self._cupy, self._stream = cupy, cupy.cuda.Stream(non_blocking=True)
        self._arrays = _Arrays()
        self._kernels: dict[tuple[str, bool], Any] = {}
        with report_full_device("the tables of the matrix"):
            make: Any = _BlockProduct if isinstance(layout, RowBlocks) else _SliceProduct
            self._product: _Product = make(layout, n_terms)
            self._tails = None if exchange is None else cupy.asarray(_find_tails(exchange.slices))
        self._await_current_stream()

    @property
    def nbytes(self) -> int:
        """Bytes on the device for the matrix and the vectors."""
        return self.layout.nbytes + sum(int(a.nbytes) for a in self._product.held) + self._arrays.nbytes

    @property
    def received_bytes(self) -> int:
        """Bytes of slices that come from other devices in a step."""
        if self._exchange is None:
            return 0
        z = self._choose_z(self.precision == "exact")
        return self._exchange.received_elements * z.itemsize

    def compile(self) -> None:
        """Make the kernels of a run ready, so that no step is timed with it."""
        is_exact = self.precision == "exact"
        for name, exact in (("start", is_exact), ("step", is_exact), ("start", True), ("residual", True)):
            self._load(name, exact)
        load_kernel("reduce.cu", "sum_chunks", VALUE=np.dtype(np.float64), PATTERN=0)

    def start(self, vectors: RankVectors, rules: RankRules) -> StepSums:
        """Begin a run; the sums that belong to its first x.

        Raises
        ------
        CapacityError : its vectors do not fit
        """
        cupy, n_rows, is_exact = self._cupy, self.layout.shape[0], self.precision == "exact"
        self.release()
        with report_full_device("the vectors of a run"):
            count = np.uint32 if self.layout.values is None else np.float64
            x = cupy.full(n_rows, vectors.x[0]) if len(vectors.x) == 1 else self._permute(cupy.array(vectors.x))
            first = 0 if self._exchange is None else -1
            sums = (np.array([0, 0, first, 0]), np.zeros((KEPT_SUMS, 4), np.int64))
            rest = (vectors.dangling, vectors.personalization) if n_rows else (np.zeros(1), np.zeros(1))  # one is read
            *others, state, history = put_all(*rest, *sums)
            others = [self._permute(v) for v in (vectors.weight.astype(count), *others)]
            z = [cupy.zeros(self._n_columns + 1, self._choose_z(is_exact)) for _ in range(2)]
        self._arrays, self._rules, self._made = _Arrays([x, *others], state, history, z), rules, 0
        self._run = self._pack_run(is_exact)
        self._await_current_stream()
        with self._stream:
            self._start(is_exact, self._run)
            if self._exchange is None:
                self._graph = self._capture()
            else:
                self._exchange.enqueue(z[0])
                self._join()
            self._rest()
            return StepSums(*map(int, history[0].get()))

    def advance(self, n: int) -> list[StepSums]:
        """Make n steps, or those up to the stop; the sums of each."""
        sums: list[StepSums] = []
        with self._stream:
            self.seconds = []
            while len(sums) < n:
                k = min(n - len(sums), KEPT_SUMS // 2)
                made = self._make(k)
                sums += made
                if len(made) < k:
                    break
        return sums

    def _make(self, n: int) -> list[StepSums]:
        began = time.perf_counter()
        times = None if self._exchange is None else [self._step_together(k) for k in range(n)]
        if times is None:
            for _ in range(n // CAPTURED_STEPS):
                self._graph.launch(self._stream)
            for _ in range(n % CAPTURED_STEPS):
                self._step()
        self._rest()
        history, state = self._arrays.history.get(), self._arrays.state.get()
        first, self._made = self._made, int(state[2])
        n_made = self._made - first
        if times is None:
            self.seconds += [((time.perf_counter() - began) / max(1, n_made), 0.0)] * n_made
        else:
            self.seconds += [_read_times(events) for events in times[:n_made]]
        return [StepSums(*map(int, history[k % KEPT_SUMS])) for k in range(first + 1, self._made + 1)]

    def _step_together(self, k: int) -> tuple[Any, ...]:
        """Enqueue step k of an `advance`, with the exchange; events before, between and after the two."""
        assert self._exchange is not None
        before = self._stream.record()
        self._step()
        between = self._stream.record()
        self._exchange.enqueue(self._arrays.z[(self._made + k + 1) % 2])
        self._join()
        return before, between, self._stream.record()

    def _join(self) -> None:
        assert self._exchange is not None
        tails = (np.int64(len(self._exchange.slices.counts)), self._tails)
        self._load("join", self.precision == "exact")((1,), (4,), (self._run, *tails))

    def _rest(self) -> None:
        """Wait until all that was enqueued is done."""
        if self._exchange is None:
            self._stream.synchronize()
        else:
            self._exchange.wait(self._stream)

    def residual(self, mass: float) -> float:
        """A bound on |G(x) - x| in L1, where G is a step, made in fixed point; no more steps can be made after it.

        Parameters
        ----------
        mass : sum of the ranks over dangling vertices
        """
        cupy, n_rows, arrays, layout = self._cupy, self.layout.shape[0], self._arrays, self.layout
        self._stream.synchronize()
        with report_full_device("the vectors of the residual"):
            self._graph = None
            arrays.z = []
            arrays.z, out = [cupy.zeros(self._n_columns + 1, self._choose_z(True))], cupy.zeros(n_rows, np.float64)
            arrays.state[:] = 0
        run = self._pack_run(True)
        self._await_current_stream()
        with self._stream:
            self._start(True, run)
            if self._exchange is not None:
                self._exchange.enqueue(arrays.z[0])
            is_rounded = layout.values is not None and layout.values.dtype == np.float32
            scalars = (np.float64(mass), np.float64(FLOAT32_ROUNDING if is_rounded else 0.0))
            self._launch("residual", True, (self._product.matrix, run, *scalars, out))
        self._rest()
        # Each product is rounded to 2^-62 twice at most, as z and as itself.
        return float(sum_vector(out)) + self._rules.alpha * layout.nnz / FIXED_POINT

    def ranks(self) -> np.ndarray:
        """(n_rows,) ranks, on the host."""
        self._stream.synchronize()
        x, order = self._arrays.vectors[0], self.layout.order
        if order is not None:
            placed, x = x, self._cupy.empty_like(x)
            x[order] = placed
        ranks: np.ndarray = x.get()
        return ranks

    def release(self) -> None:
        """Free what belongs to the run, and keep the matrix."""
        self._stream.synchronize()
        self._arrays, self._graph = _Arrays(), None

    def describe(self) -> str:
        """What computes."""
        return describe_device()

    def _await_current_stream(self) -> None:
        """What was made on the caller's stream comes before what will be made on the run's."""
        self._stream.wait_event(self._cupy.cuda.get_current_stream().record())

    def _choose_z(self, is_exact: bool) -> np.dtype[Any]:
        if not is_exact:
            return np.dtype(np.float32)
        return np.dtype(np.int64 if self.layout.values is None else np.float64)

    def _pack_run(self, is_exact: bool) -> np.ndarray:
        """The structure Run of kernels/rank_steps.cuh."""
        arrays, rules, n_rows = self._arrays, self._rules, self.layout.shape[0]
        x, weight, dangling, personalization = arrays.vectors
        n_sent, tail, start = n_rows, 0, 0
        if self._exchange is not None:
            slices, rank = self._exchange.slices, self._exchange.rank
            n_sent, tail, start = slices.counts[rank], slices.tails[rank], slices.starts[rank]
        z, z_next = arrays.z[0], arrays.z[-1]
        vectors = (x, weight, z, z_next, z_next[start:], z[start:], dangling, personalization)
        strides = (n_rows, n_sent, tail, int(len(dangling) > 1), int(len(personalization) > 1))
        rule = (rules.alpha, *self._units(is_exact), rules.threshold, int(rules.by_largest))
        return pack(*vectors, *strides, *rule, arrays.state, arrays.history, KEPT_SUMS)

    def _units(self, is_exact: bool) -> tuple[float, float]:
        """The unit of products, and units of z in 1."""
        return (1.0 / FIXED_POINT, FIXED_POINT) if is_exact else (2.0**-self._product.bits, 1.0)

    def _permute(self, vector: Any) -> Any:
        """On the device, in the order of the places."""
        on_device = self._cupy.asarray(vector)
        order = self.layout.order
        return on_device if order is None or len(vector) == 1 else on_device[order]

    def _load(self, name: str, is_exact: bool) -> Any:
        if (name, is_exact) not in self._kernels:
            value = None if self.layout.values is None else self.layout.values.dtype
            rank = np.dtype(np.float32 if self.precision == "float32" else np.float64)
            kernel = load_kernel(self._product.source, name, **rank_types(value, self._choose_z(is_exact), rank))
            if self._product.room and name not in ("start", "join"):
                kernel.max_dynamic_shared_size_bytes = self._product.room
            self._kernels[name, is_exact] = kernel
        return self._kernels[name, is_exact]

    def _launch(self, name: str, is_exact: bool, arguments: tuple[Any, ...]) -> None:
        product = self._product
        self._load(name, is_exact)((product.grid,), (product.threads,), arguments, shared_mem=product.room)

    def _start(self, is_exact: bool, run: np.ndarray) -> None:
        grid = max(1, -(-self.layout.shape[0] // self._product.threads))
        self._load("start", is_exact)((grid,), (self._product.threads,), (run,))

    def _step(self) -> None:
        self._launch("step", self.precision == "exact", (self._product.matrix, self._run))

    def _capture(self) -> Any:
        self._load("step", self.precision == "exact")  # not while capturing
        self._stream.begin_capture()
        for _ in range(CAPTURED_STEPS):
            self._step()
        return self._stream.end_capture()


def _find_tails(slices: Slices) -> np.ndarray:
    """(n,) int64: where in z the sums of each slice are."""
    return np.array([start + tail for start, tail in zip(slices.starts, slices.tails, strict=False)])


def _read_times(events: tuple[Any, ...]) -> tuple[float, float]:
    """Seconds from the first event to the second, and from there to the third."""
    from cupy.cuda import get_elapsed_time

    before, between, after = events
    return get_elapsed_time(before, between) / 1e3, get_elapsed_time(between, after) / 1e3


def name_layout(layout: RowBlocks | RowSlices) -> Layout:
    """What a user calls it."""
    return "row-blocks" if isinstance(layout, RowBlocks) else "row-slices"
