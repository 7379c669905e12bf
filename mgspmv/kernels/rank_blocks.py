"""PageRank steps on row blocks: all of a step in one kernel, and steps by the dozen without the host."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from mgspmv.errors import OptionError
from mgspmv.kernels.cpu import FLOAT32_ROUNDING
from mgspmv.kernels.dense import sum_vector
from mgspmv.kernels.device import describe_device, load_kernel, report_full_device, shared_memory
from mgspmv.kernels.row_blocks import RowBlocks
from mgspmv.kernels.specialise import rank_types
from mgspmv.model import FIXED_POINT, Precision, StepSums

THREADS = 1024
RESIDENT = 1
CAPTURED_STEPS = 8
"""Steps of a captured graph."""
LEAST_ITEM = 64
"""Chunks that are worth an item of their own."""
ITEMS = 4
"""Items for each multiprocessor, about, were all entries in one block."""
FLOAT32_BITS = 27
"""Bits by which products in float32 are finer than the mean contribution: 1/nnz, for ranks that sum to 1."""

LAB: dict = {}
_RUN = np.dtype(
    [(name, np.uint64) for name in ("x", "weight", "z", "dangling", "personalization")]
    + [(name, np.int64) for name in ("d_stride", "p_stride")]
    + [(name, np.float64) for name in ("alpha", "product_unit", "per_z_unit", "threshold")]
    + [("by_largest", np.int64), ("state", np.uint64), ("history", np.uint64)]
)
_BLOCKS = np.dtype(
    [(name, np.int64) for name in ("n_rows", "n_items")]
    + [(name, np.uint64) for name in ("entries", "columns", "values", "item_blocks", "item_bounds", "item_parts")]
    + [(name, np.uint64) for name in ("parts_done", "partial")]
    + [("height", np.int64)]
)
"""The structures of kernels/rank_blocks.cu, which are passed by value."""


@dataclass(frozen=True, eq=False)
class Items:
    """What thread blocks take one after the other: chunks of one block, the longest first."""

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
    n_chunks = np.zeros(n_blocks, np.int64)
    n_chunks[: len(block_chunks) - 1] = np.diff(block_chunks)
    size = max(LEAST_ITEM, int(n_chunks.sum()) // (n_multiprocessors * ITEMS))
    parts = np.maximum(1, np.rint(n_chunks / size).astype(np.int64))
    blocks = np.repeat(np.arange(n_blocks), parts)
    number = np.arange(len(blocks)) - np.repeat(np.cumsum(parts) - parts, parts)
    first = np.zeros(n_blocks, np.int64)
    first[: len(block_chunks) - 1] = block_chunks[:-1]
    bounds = first[blocks, None] + n_chunks[blocks, None] * np.stack([number, number + 1], 1) // parts[blocks, None]
    by_length = np.argsort(bounds[:, 0] - bounds[:, 1], kind="stable")
    return Items(blocks[by_length].astype(np.int32), bounds[by_length], parts.astype(np.int32))


class RankBlocks:
    """The steps of a PageRank run on row blocks on the current device. Vectors come and go in the order of the rows.

    Sums are of integers: in `exact` the bits of the CPU's; in `float32`, products are rounded to 2^-27 of the mean
    contribution and added without more rounding. The same ranks in each run.

    Parameters
    ----------
    precision : `exact` or `float32`; float64 sums take csr-split

    Attributes
    ----------
    x : (n_rows,) ranks in the order of the places, on the device
    """

    def __init__(self, blocks: RowBlocks, precision: Precision) -> None:
        import cupy

        if precision == "float64":
            raise OptionError("row-blocks add in fixed point; for precision='float64' pass kernel='csr-split'")
        self.blocks, self.precision = blocks, precision
        self._cupy, self._stream = cupy, cupy.cuda.Stream(non_blocking=True)
        n_rows, (n_multiprocessors, _) = blocks.shape[0], shared_memory()
        self._grid = n_multiprocessors * RESIDENT
        n_blocks = -(-n_rows // blocks.height)
        items = cut_items(blocks.block_chunks, n_blocks, self._grid)
        n_shared = int(np.flatnonzero(items.parts > 1).max(initial=-1) + 1) * blocks.height
        with report_full_device("the tables of row blocks"):
            held = [cupy.asarray(a) for a in (items.blocks, items.bounds, items.parts)]
            held += [cupy.zeros(n_blocks, np.int32), cupy.zeros(n_shared, np.uint64)]
        self._held = held
        arrays = (blocks.entries, blocks.columns, blocks.values, *held)
        self._blocks = np.array((n_rows, len(items.blocks), *map(_point, arrays), blocks.height), _BLOCKS)
        self._vectors: list[Any] = []
        cupy.cuda.get_current_stream().synchronize()  # what made all this is on another stream

    @property
    def nbytes(self) -> int:
        """Bytes on the device for the matrix and the vectors."""
        return self.blocks.nbytes + sum(int(v.nbytes) for v in (*self._held, *self._vectors))

    @property
    def z_dtype(self) -> np.dtype[Any]:
        if self.precision == "float32":
            return np.dtype(np.float32)
        return np.dtype(np.int64 if self.blocks.values is None else np.float64)

    def compile(self) -> None:
        """Make the kernels of a run ready, so that no step is timed with it."""
        for name, exact in (("start", False), ("step", False), ("start", True), ("residual", True)):
            self._load(name, exact or self.precision == "exact")
        load_kernel("reduce.cu", "sum_chunks", VALUE=np.dtype(np.float64), PATTERN=0)

    def start(
        self,
        x: np.ndarray,
        weight: np.ndarray,
        dangling: np.ndarray,
        personalization: np.ndarray,
        *,
        alpha: float,
        threshold: float,
        by_largest: bool,
        max_iter: int,
    ) -> StepSums:
        """Begin a run; the sums that belong to x.

        Parameters
        ----------
        x : (n_rows,) float32 or float64, as the precision is
        weight : (n_rows,) float64 out-weights, 0 for dangling vertices; of a pattern, counts
        dangling, personalization : (n_rows,) or (1,) float64
        threshold : the run stops when the change is below; the change is the largest of a vertex, or their sum
        max_iter : most steps that will be made
        """
        cupy, n_rows = self._cupy, self.blocks.shape[0]
        with report_full_device("the vectors of a run"), self._stream:
            self._vectors.clear()
            count = np.uint32 if self.blocks.values is None else np.float64
            vectors = [self._permute(v) for v in (x, weight.astype(count), dangling, personalization)]
            self.x = vectors[0]
            self._state, self._history = cupy.zeros(4, np.int64), cupy.zeros((max_iter + 1, 4), np.int64)
            self._z = cupy.zeros((2, n_rows), self.z_dtype)
            self._vectors += [*vectors, self._state, self._history, self._z]
            self._is_exact = self.precision == "exact"
            self._alpha, self._max_iter, self._made = alpha, max_iter, 0
            strides = [int(len(v) > 1) for v in vectors[2:]]
            x_at, weight_at, *others = map(_point, vectors)
            places = (x_at, weight_at, _point(self._z), *others, *strides)
            rules = (alpha, *self._units(self._is_exact), threshold, int(by_largest))
            self._run = np.array((*places, *rules, _point(self._state), _point(self._history)), _RUN)
            self._launch("start", self._is_exact, (np.int64(n_rows), self._run), -(-n_rows // THREADS), 0)
            self._graph = self._capture()
            return StepSums(*map(int, self._history[0].get()))

    def advance(self, n: int) -> list[StepSums]:
        """Make n steps, or those up to the stop; the sums of each."""
        n = min(n, self._max_iter - self._made)
        with self._stream:
            for _ in range(n // CAPTURED_STEPS):
                self._graph.launch(self._stream)
            for _ in range(n % CAPTURED_STEPS):
                self._step()
            sums = self._history[self._made + 1 : self._made + 1 + n].get()
            made = int(self._state[2].get()) - self._made
        self._made += made
        return [StepSums(*map(int, row)) for row in sums[:made]]

    def residual(self, mass: float) -> float:
        """A bound on |G(x) - x| in L1, where G is a step, made in fixed point; no more steps can be made after it.

        Parameters
        ----------
        mass : sum of the ranks over dangling vertices
        """
        cupy, n_rows = self._cupy, self.blocks.shape[0]
        with report_full_device("the vectors of the residual"), self._stream:
            dtype = np.int64 if self.blocks.values is None else np.float64
            self._z = self._graph = None
            z, out = cupy.zeros(n_rows, dtype), cupy.zeros(n_rows, np.float64)
            self._vectors[-1] = z
            run = self._run.copy()
            run["z"], (run["product_unit"], run["per_z_unit"]) = _point(z), self._units(True)
            self._state[:] = 0
            self._launch("start", True, (np.int64(n_rows), run), -(-n_rows // THREADS), 0)
            is_rounded = self.blocks.values is not None and self.blocks.values.dtype == np.float32
            scalars = (np.float64(mass), np.float64(FLOAT32_ROUNDING if is_rounded else 0.0))
            self._launch("residual", True, (self._blocks, run, *scalars, out), self._grid, self._room)
            # Each product is rounded to 2^-62 twice at most, as z and as itself.
            return sum_vector(out) + self._alpha * self.blocks.nnz / FIXED_POINT

    def ranks(self) -> np.ndarray:
        """(n_rows,) ranks, on the host."""
        with self._stream:
            x = self.x
            if self.blocks.order is not None:
                x = self._cupy.empty_like(self.x)
                x[self.blocks.order] = self.x
            ranks: np.ndarray = x.get()
            return ranks

    def describe(self) -> str:
        """What computes."""
        return describe_device()

    @property
    def _room(self) -> int:
        """Bytes of shared memory for a block's sums; one row is for entries that are none."""
        return 8 * (self.blocks.height + 1)

    def _units(self, is_exact: bool) -> tuple[float, float]:
        """The unit of products, and units of z in 1."""
        if is_exact:
            return 1.0 / FIXED_POINT, FIXED_POINT
        bits = FLOAT32_BITS + math.ceil(math.log2(max(1, self.blocks.nnz)))
        return 2.0 ** -min(62, bits), 1.0

    def _permute(self, vector: np.ndarray) -> Any:
        """On the device, in the order of the places."""
        on_device = self._cupy.asarray(vector)
        return on_device if self.blocks.order is None or len(vector) == 1 else on_device[self.blocks.order]

    def _load(self, name: str, is_exact: bool) -> Any:
        value = None if self.blocks.values is None else self.blocks.values.dtype
        z = np.dtype(np.float32 if not is_exact else np.int64 if value is None else np.float64)
        rank = np.dtype(np.float32 if self.precision == "float32" else np.float64)
        return load_kernel("rank_blocks.cu", name, **rank_types(value, z, rank), **LAB)

    def _launch(self, name: str, is_exact: bool, arguments: tuple[Any, ...], grid: int, room: int) -> None:
        kernel = self._load(name, is_exact)
        if room:
            kernel.max_dynamic_shared_size_bytes = room
        kernel((grid,), (THREADS,), arguments, shared_mem=room)

    def _step(self) -> None:
        self._launch("step", self._is_exact, (self._blocks, self._run), self._grid, self._room)

    def _capture(self) -> Any:
        self._load("step", self._is_exact)  # not while capturing
        self._stream.begin_capture()
        for _ in range(CAPTURED_STEPS):
            self._step()
        return self._stream.end_capture()


def _point(array: Any) -> int:
    return 0 if array is None else int(array.data.ptr)
