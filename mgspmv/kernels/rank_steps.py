"""PageRank steps on one device: one or two kernels per step, and several steps at a time without the host.

A matrix that does not fit on the device is streamed in pieces: as many kernels per piece.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from mgspmv.kernels.cuda_products import sum_vector
from mgspmv.kernels.device import (
    address,
    count_blocks,
    describe_device,
    fetch,
    load_kernel,
    pack,
    put_all,
    reclaim_memory,
    report_full_device,
    shared_memory,
)
from mgspmv.kernels.layout import MatrixLayout
from mgspmv.kernels.modules import COUNTS, rank_types
from mgspmv.kernels.rank_products import PRODUCTS, RankProduct, choose_rank, choose_z, find_bits
from mgspmv.model import FIXED_POINT, FLOAT32_ROUNDING, Precision, RowCheck, StepSums

if TYPE_CHECKING:
    from mgspmv.exchange.ipc import IpcMemory
    from mgspmv.exchange.nccl_slices import NcclSlices

RESIDENT_THREADS = 2048
"""Threads of a multiprocessor that run at a time."""
CAPTURED_STEPS = 5
"""Steps per captured graph."""
KEPT_SUMS = 256
"""Number of last steps whose sums are kept on the device."""
Pieces: TypeAlias = Iterable[tuple[int, tuple[RankProduct, np.ndarray]]]
"""Number of each piece, its launch parameters and its packed matrix."""
FLAGS_BYTES = 256
"""Bytes at the beginning of memory that devices share, for their int64 flags."""


@dataclass(eq=False)
class RankVectors:
    """Initial vectors of a run, on the host or on the device, in the order of the rows."""

    x: Any
    """(n_rows,) or (1,) ranks, float32 or float64, depending on the precision."""
    weight: Any
    """(n_rows,) float64 out-weights, 0 for dangling vertices; of a pattern, they fit `RankRules.weight`."""
    dangling: Any
    """(n_rows,) or (1,) float64: d."""
    personalization: Any
    """(n_rows,) or (1,) float64: p."""


@dataclass(frozen=True)
class RankRules:
    """Parameters of a run that the device itself needs."""

    alpha: float
    threshold: float
    """Change below which the run stops."""
    by_largest: bool
    """True if the change is the largest over vertices, False if it is the sum."""
    is_relative: bool = False
    """True if the largest change is that of |x' - x| / x'."""
    weight: np.dtype[Any] = COUNTS
    """Type of the out-weights of a pattern on the device: float64, or an integer if they are counts."""


PLAIN_RULES = RankRules(alpha=0.0, threshold=-1.0, by_largest=False)
"""Rules for timing: ranks do not change, and no step is the last."""


@dataclass(eq=False)
class _Arrays:
    """Arrays of a run, on the device."""

    vectors: list[Any] = field(default_factory=list)
    sums: Any = None
    """(1 + KEPT_SUMS, 4) int64: `state`, followed by `history`, of kernels/rank_steps.cuh."""
    z: list[Any] = field(default_factory=list)

    @property
    def state(self) -> Any:
        return self.sums[0]

    @property
    def nbytes(self) -> int:
        return sum(int(a.nbytes) for a in (*self.vectors, *self.z, self.sums) if a is not None)


class RankSteps:
    """Steps of a PageRank run on the current device. Vectors are given and returned in the order of the rows.

    Steps are enqueued on a separate stream, from which a graph can be captured. Memory is allocated on the caller's
    stream, as CuPy pools free memory by stream, and released when the separate stream is idle.

    In `exact`, results are bit-identical to the CPU's. In `float32`, ranks and z are float32; products are added in
    column-sorted blocks and COO entries as multiples of 2^-27 / max(nnz, n_rows), without further rounding, and in SELL
    slices as float64: the ranks are the same in each run.

    With several devices, each has a layout of its rows, and all make the same calls. Sums that a method returns are
    those of all rows; ranks and the residual are those of the device's rows. If the devices can write to each other's
    memory, elements of z are sent to all of them as they are computed; else slices are exchanged when complete.

    Parameters
    ----------
    layout : of a square matrix, or of its rows that belong to the current device. Pieces that are not on the
        device are streamed in each step
    precision : `exact` or `float32`; float64 sums take csr-split
    exchange : with the devices that have the other rows

    Raises
    ------
    CapacityError : its tables do not fit
    """

    def __init__(self, layout: MatrixLayout, precision: Precision, exchange: NcclSlices | None = None) -> None:
        import cupy

        self.layout, self.precision, self._exchange = layout, precision, exchange
        n_rows, self._n_columns = layout.shape
        n_terms = max(layout.nnz, n_rows) if exchange is None else exchange.n_terms
        self._bind, self._bits = PRODUCTS[layout.name], find_bits(layout.name, n_terms)
        self.seconds: list[tuple[float, float]] = []
        """Seconds of the product, and of the exchange, in each step of the last `advance`."""
        self._cupy, self._stream = cupy, cupy.cuda.Stream(non_blocking=True)
        self._arrays = _Arrays()
        self._shared: IpcMemory | None = None
        self._kernels: dict[tuple[Any, ...], Any] = {}
        self._graph: Any = None
        self._rules = PLAIN_RULES
        with report_full_device("the table of work items of the matrix"):
            self._products: dict[int, RankProduct] = {k: self._bind(p) for k, p in layout.feed.kept.items()}
            self._types = {name: size for p in self._products.values() for name, size in p.types.items()}
            if exchange is not None:
                slices = exchange.slices  # in z, the sums of each one are after its columns
                self._tails = cupy.asarray(np.add(slices.starts[:-1], slices.tails))

    @property
    def nbytes(self) -> int:
        """Bytes on the device for the matrix and the vectors."""
        held = [a for product in self._products.values() for a in product.held]
        return self.layout.nbytes + sum(int(a.nbytes) for a in held) + self._arrays.nbytes

    @property
    def received_bytes(self) -> int:
        """Bytes of slices received from other devices in a step."""
        if self._exchange is None:
            return 0
        z = self._choose_z(self.precision == "exact")
        return self._exchange.received_elements * z.itemsize

    @property
    def entry_rounding(self) -> float:
        """Largest rounding error of a product in float32 in fixed point; 0 in floating point."""
        return 0.5 * self._units(False)[0] if self.precision == "float32" and self._bits else 0.0

    @property
    def has_values(self) -> bool:
        """True if entries have values, False for a pattern."""
        return self.layout.value is not None

    @property
    def writes_there(self) -> bool:
        """True if this device writes its slice to the memory of the other devices."""
        return self._shared is not None

    @property
    def streams(self) -> bool:
        """True if pieces are streamed in each step."""
        return not self.layout.feed.is_kept

    def compile(self, rules: RankRules = PLAIN_RULES) -> None:
        """Compile or load the kernels of a run, so that no step's time includes it."""
        is_exact, self._rules = self.precision == "exact", rules
        names = [(name, is_exact) for name in ("start", "step", "check_rows", *self._first_kernels)]
        for name, own in [*names, *((name, True) for name in ("start", "residual", *self._first_kernels))]:
            self._load(name, own)
        if self._exchange is not None:  # loading would wait for kernels that wait for other devices
            for name in ("join", "meet"):
                self._load(name, is_exact)
        load_kernel("reduce.cu", "sum_chunks", VALUE=np.dtype(np.float64), PATTERN=0)

    def start(self, vectors: RankVectors, rules: RankRules) -> StepSums:
        """Begin a run and return the sums of its first x.

        Raises
        ------
        CapacityError : its vectors do not fit
        """
        cupy, n_rows, is_exact = self._cupy, self.layout.shape[0], self.precision == "exact"
        if self._arrays.vectors:  # else the layout may still be being built
            self.release()
        with report_full_device("the set of vectors of a run"):
            count = rules.weight if self.layout.value is None else np.float64
            is_same = len(vectors.x) == 1
            x = cupy.empty(n_rows, vectors.x.dtype) if is_same else self._permute(cupy.array(vectors.x))
            first = 0 if self._exchange is None else -1  # the first `join` completes step 0
            sums = np.zeros((1 + KEPT_SUMS, 4), np.int64)
            sums[0, 2] = first
            rest = (vectors.dangling, vectors.personalization) if n_rows else (np.zeros(1), np.zeros(1))  # read anyway
            *others, sums, first_x = put_all(*rest, sums, vectors.x[:1])
            others = [self._permute(v) for v in (vectors.weight.astype(count), *others)]
            z = self._make_z(is_exact)
            self._allocate_bins(is_exact)
        self._arrays, self._rules, self._made = _Arrays([x, *others], sums, z), rules, 0
        self._runs = self._pack_runs(is_exact)
        self._await_current_stream()
        with self._stream:
            self._run_rows("start", is_exact, self._runs, address(first_x if is_same else None))
            if self._exchange is not None:
                self._exchange.enqueue(z[0])
                self._join()
                self._rest()
            return StepSums(*map(int, sums[1].get()))

    def advance(self, n: int) -> list[StepSums]:
        """Make n steps, or fewer if the run stops, and return the sums of each."""
        sums: list[StepSums] = []
        with self._stream:
            self.seconds = []
            while len(sums) < n:
                k = min(n - len(sums), KEPT_SUMS // 2)  # sums must not be overwritten before they are read
                made = self._make(k)
                sums += made
                if len(made) < k:
                    break
        return sums

    def _make(self, n: int) -> list[StepSums]:
        began = time.perf_counter()
        times = None if self._exchange is None else [self._step_together(k) for k in range(n)]
        if times is None:
            self._enqueue(n)
        self._rest([event for _, between, after in times or () for event in (between, after)])
        sums = self._arrays.sums.get()
        state, history = sums[0], sums[1:]
        first, self._made = self._made, int(state[2])
        n_made = self._made - first
        if times is None:
            self.seconds += [((time.perf_counter() - began) / max(1, n_made), 0.0)] * n_made
        else:
            elapsed = self._cupy.cuda.get_elapsed_time
            self.seconds += [(elapsed(a, b) / 1e3, elapsed(b, c) / 1e3) for a, b, c in times[:n_made]]
        return [StepSums(*map(int, history[k % KEPT_SUMS])) for k in range(first + 1, self._made + 1)]

    def _enqueue(self, n: int) -> None:
        """Enqueue n steps, as graphs if possible; the graph is captured while the device makes the first ones."""
        n_left = n
        if self._is_captured and n >= CAPTURED_STEPS:
            if self._graph is None:
                pieces, n_left = list(self._multiply()), n - CAPTURED_STEPS
                for _ in range(CAPTURED_STEPS):
                    self._step(pieces)
                self._stream.begin_capture()  # of kernels that are loaded by now, which is impossible while capturing
                for _ in range(CAPTURED_STEPS):
                    self._step(pieces)
                self._graph = self._stream.end_capture()
            for _ in range(n_left // CAPTURED_STEPS):
                self._graph.launch(self._stream)
            n_left %= CAPTURED_STEPS
        for k in range(n_left):
            self._step_unless_stopped(k)

    def _step_together(self, k: int) -> tuple[Any, ...]:
        """Enqueue step k of an `advance`, and the exchange; return events before, between and after the two."""
        assert self._exchange is not None
        before = self._stream.record()
        self._step_unless_stopped(k)
        between = self._stream.record()
        if self._shared is not None:
            self._meet(self._shared)
        else:
            self._exchange.enqueue(self._arrays.z[(self._made + k + 1) % 2])
            self._join()
        return before, between, self._stream.record()

    def _step_unless_stopped(self, k: int) -> None:
        """Enqueue step k of an `advance`. Kernels do nothing after the stop, but pieces would be streamed for them."""
        if k > 0 and self.streams:
            self._rest()
            if int(self._arrays.state[3]):
                return
        self._step(self._multiply())

    def _join(self) -> None:
        assert self._exchange is not None
        tails = (np.int64(len(self._exchange.slices.counts)), self._tails)
        self._load("join", self.precision == "exact")((1,), (4,), (self._runs[0], *tails))  # a thread per sum

    def _meet(self, shared: IpcMemory) -> None:
        assert self._exchange is not None
        shared.round += 1
        flag_of, *sums_of = self._meeting
        meeting = pack(self._exchange.rank, shared.round, shared.own.ptr, flag_of, *sums_of, shared.is_given_up)
        tails = (np.int64(len(self._exchange.slices.counts)), self._tails)
        self._load("meet", self.precision == "exact")((1,), (32,), (self._runs[0], *tails, meeting))

    def _make_z(self, is_exact: bool) -> list[Any]:
        """Make two z, in memory that other devices can write into, if they support it."""
        cupy, n, dtype = self._cupy, self._n_columns + 1, self._choose_z(is_exact)
        size = -(-n * dtype.itemsize // FLAGS_BYTES) * FLAGS_BYTES
        self._shared = None if self._exchange is None else self._exchange.share(FLAGS_BYTES + 2 * size)
        if self._exchange is None or self._shared is None:
            both = cupy.zeros(2 * size // dtype.itemsize, dtype)
            return [both[:n], both[-(size // dtype.itemsize) :][:n]]
        places = [FLAGS_BYTES, FLAGS_BYTES + size]
        z = [cupy.ndarray((n,), dtype, self._shared.own + place) for place in places]
        for each in z:
            each.fill(0)
        slices, rank, addresses = self._exchange.slices, self._exchange.rank, np.array(self._shared.addresses)
        tail = (slices.starts[rank] + slices.tails[rank]) * dtype.itemsize
        self._meeting = put_all(*(addresses + place for place in (8 * rank, *(place + tail for place in places))))
        first = slices.starts[rank] + np.array(self.layout.places.sent[:-1], np.int64)[:, None]
        others = np.delete(addresses, rank) + first * dtype.itemsize
        self._there = put_all(*(others + place for place in reversed(places)))  # even steps write the odd z
        return z

    def _allocate_bins(self, is_exact: bool) -> None:
        for product in self._products.values():
            product.bins.allocate(self._choose_z(is_exact))

    def _rest(self, stages: Sequence[Any] = ()) -> None:
        """Wait until all enqueued work is done; `stages` as in `NcclSlices.wait`."""
        if self._exchange is None:
            self._stream.synchronize()
        else:
            self._exchange.wait(self._stream, stages)

    def residual(self, mass: float) -> float:
        """Return a bound on |G(x) - x| in L1, where G is a step in fixed point; no more steps can be made after it.

        Parameters
        ----------
        mass : sum of the ranks over dangling vertices
        """
        cupy, n_rows, arrays, layout = self._cupy, self.layout.shape[0], self._arrays, self.layout
        self._stream.synchronize()
        with report_full_device("the set of vectors of the residual"):
            self._graph = None
            arrays.z = []  # free both z first, as the new one may be twice as wide
            arrays.z, out = [cupy.zeros(self._n_columns + 1, self._choose_z(True))], cupy.zeros(n_rows, np.float64)
            self._allocate_bins(True)
            arrays.state[:] = 0
        runs = self._pack_runs(True)
        self._await_current_stream()
        with self._stream:
            self._run_rows("start", True, runs, address(None))
            if self._exchange is not None:
                self._exchange.enqueue(arrays.z[0])
            scalars = (np.float64(mass), np.float64(FLOAT32_ROUNDING if layout.value == np.float32 else 0.0))
            for k, (product, matrix) in self._multiply(goes_on=False):
                self._launch("residual", True, product, (matrix, runs[k], *scalars, out[layout.places.rows[k] :]))
                arrays.state[0] = 0  # the item counter, which only `step` resets
        self._rest()
        # Each product is rounded to 2^-62 at most twice: first z, then the product.
        return float(sum_vector(out)) + self._rules.alpha * layout.nnz / FIXED_POINT

    def check_rows(self) -> RowCheck:
        """Sum the ranks of this device's rows, and count the rows where z does not match; call before `residual`."""
        found = self._cupy.zeros(3, np.uint64)
        self._await_current_stream()
        with self._stream:
            self._run_rows("check_rows", self.precision == "exact", self._runs, found)
            return RowCheck(*found.get().tolist())

    def ranks(self) -> np.ndarray:
        """Return (n_rows,) ranks on the host."""
        self._stream.synchronize()
        x, order = self._arrays.vectors[0], self.layout.places.by_place
        if order is not None:
            placed, x = x, self._cupy.empty_like(x)
            x[order] = placed
        return fetch(x)

    def release(self) -> None:
        """Free the memory of the run, but keep the matrix."""
        self._stream.synchronize()
        self.layout.feed.stop()
        self._arrays, self._graph, self._shared = _Arrays(), None, None
        for product in self._products.values():
            product.bins.release()

    def describe(self) -> str:
        """Describe the device."""
        return describe_device()

    def _await_current_stream(self) -> None:
        """Make the run's stream wait for the work enqueued on the caller's stream."""
        self._stream.wait_event(self._cupy.cuda.get_current_stream().record())

    def _choose_z(self, is_exact: bool) -> np.dtype[Any]:
        return choose_z(self.layout.value, is_exact)

    def _pack_runs(self, is_exact: bool) -> list[np.ndarray]:
        """Pack the structure Run of kernels/rank_steps.cuh for each piece."""
        arrays, rules, layout = self._arrays, self._rules, self.layout
        x, weight, *shares = arrays.vectors
        strides = [int(len(share) > 1) for share in shares]
        z, z_next = arrays.z[0], arrays.z[-1]
        writes_there = self._shared is not None and len(arrays.z) == 2  # the residual's z is exchanged
        start, shared = 0, (None, None)
        if self._exchange is not None:
            slices, rank = self._exchange.slices, self._exchange.rank
            start, tail = slices.starts[rank], slices.starts[rank] + slices.tails[rank]
            shared = (z[tail:], z_next[tail:])
        rule = (rules.alpha, *self._units(is_exact), rules.threshold, int(rules.by_largest))
        runs = []
        pieces = zip(pairwise(layout.places.rows), pairwise(layout.places.sent), strict=True)
        for k, ((row, end), (column, after)) in enumerate(pieces):
            own = [_skip(share, row * stride) for share, stride in zip(shares, strides, strict=True)]
            first = start + column
            z_slices = (_skip(z_next, first), _skip(z, first))
            vectors = (_skip(x, row), _skip(weight, row), z, z_next, *z_slices, *shared, *own)
            judges = self._exchange is None and k == layout.feed.n - 1
            sizes = (end - row, after - column, *strides, *rule, int(judges))
            there = (
                (self._there[0].shape[1], *(places[k] for places in self._there)) if writes_there else (0, None, None)
            )
            runs.append(pack(*vectors, *sizes, arrays.state, arrays.sums[1:], KEPT_SUMS, *there))
        return runs

    def _units(self, is_exact: bool) -> tuple[float, float]:
        """Return the unit of products, and the number of units of z in 1."""
        return (1.0 / FIXED_POINT, FIXED_POINT) if is_exact else (2.0**-self._bits, 1.0)

    def _permute(self, vector: Any) -> Any:
        """Return the vector on the device, in the order of the places."""
        on_device = self._cupy.asarray(vector)
        order = self.layout.places.by_place
        return on_device if order is None or len(vector) == 1 else on_device[order]

    def _load(self, name: str, is_exact: bool) -> Any:
        key = name, is_exact, self._rules.is_relative, self._rules.weight
        if key not in self._kernels:
            own = self.layout.value, self._choose_z(is_exact), choose_rank(self.precision)
            types = rank_types(*own, is_relative=self._rules.is_relative, weight=self._rules.weight)
            self._kernels[key] = load_kernel(self._bind.source, name, **types, **self._types)
        return self._kernels[key]

    def _launch(self, name: str, is_exact: bool, product: RankProduct, arguments: tuple[Any, ...]) -> None:
        kernel = self._load(name, is_exact)
        if product.first_kernel is not None:
            first = self._load(product.first_kernel, is_exact)
            product.launch_first(first, self._choose_z(is_exact), arguments[:2])
        if product.room:
            reclaim_memory(kernel, product.room)
        kernel((product.grid,), (product.threads,), arguments, shared_mem=product.room)

    def _run_rows(self, name: str, is_exact: bool, runs: list[np.ndarray], *arguments: Any) -> None:
        kernel, threads = self._load(name, is_exact), self._types.get("THREADS", self._bind.threads)
        most = shared_memory()[0] * RESIDENT_THREADS // threads
        for run, (first, last) in zip(runs, pairwise(self.layout.places.rows), strict=True):
            grid = max(1, min(most, count_blocks(last - first, threads)))
            kernel((grid,), (threads,), (run, *arguments))

    def _step(self, pieces: Pieces) -> None:
        """Enqueue a step; `pieces` as `_multiply` yields them."""
        for k, (product, matrix) in pieces:
            self._launch("step", self.precision == "exact", product, (matrix, self._runs[k]))

    def _multiply(self, *, goes_on: bool = True) -> Pieces:
        """Yield each piece's number, launch parameters and packed matrix, while the piece is on the device."""
        for k, laid in self.layout.feed.stream(goes_on=goes_on):
            if k not in self._products:
                self._products[k] = self._bind(laid)
            yield k, (self._products[k], self._products[k].pack(laid))

    @property
    def _first_kernels(self) -> set[str]:
        """Kernels that are launched before `step` and `residual`; also for pieces that are streamed."""
        return {p.first_kernel for p in (self._bind, *self._products.values()) if p.first_kernel is not None}

    @property
    def _is_captured(self) -> bool:
        """True if steps are launched as graphs: on one device, without streaming."""
        return self._exchange is None and not self.streams


def _skip(array: Any, n: int) -> Any:
    """Return the array from element n on."""
    return array[n:] if n else array  # a slice takes time
