"""Assignment of rows to workers, and its cost: integers only, from `indptr`, before anything is loaded.

cost of rows 0..i  =  bytes_per_nonzero * indptr[i]  +  bytes_per_row * i

|------- worker 0 -------|---- worker 1 ----|--------- worker 2 ---------|      equal cost, unequal rows
"""

from __future__ import annotations

import re
import warnings
from bisect import bisect_left
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, Literal

import numpy as np

from mgspmv.display import format_bytes
from mgspmv.errors import CapacityError, OptionError
from mgspmv.model import INT32_LIMIT, MatrixInfo, Precision, check_choice, default_threads
from mgspmv.order import part_bounds
from mgspmv.plan import HELD_PIECES, Plan, Streaming, WorkerPlan, count_workers
from mgspmv.store.digests import CHUNK_ELEMENTS
from mgspmv.store.locations import find_local_path

SUMS_BYTES = 32
"""Bytes of the scalars that each worker sends to each other worker per iteration."""

DENSE = 0.5
"""Share of needed rows of another worker above which it sends all rows, without a list of rows and packing."""

ID_BYTES = {None: 0, "int64": 8, "string": 72}
"""Bytes of a vertex id, by the dtype of the stored ids; a string of eight characters is a pointer and an object."""

WATCH_BYTES, WATCH_RANKS = 41, 6
"""Memory per row of the top-k proof: bytes, and number of ranks, including those of its first check."""
TOP_BYTES = 90
"""Bytes of a vertex that workers exchange for the top-k proof."""

INDEX_RATIO = 0.5
"""Approximate ratio of stored to in-memory bytes of columns; values are assumed not to compress."""
LAID_RATIO = 1.1
"""Largest ratio of bytes per entry in a layout for steps to bytes in CSR."""
BIN_SHARE = 0.5
"""Share of the device memory that nothing else needs, which bins may take."""
LEAST_PIECE_BYTES = 1 << 10
"""Least bytes of a piece streamed to a device."""
MOST_PIECE_ENTRIES = 1 << 27
"""Most entries that a device reads at once in any case; rows with more are read in pieces."""
LEAST_PIECE_ENTRIES = 1 << 25
"""Least entries of such a piece: enough to keep the link to the host busy."""
PIECE_SHARE = 0.65
"""Share of the memory for vectors that these pieces take at most."""
ROW_TABLE_BYTES = 32
"""Bytes of tables per row while rows are read in pieces: pointers, starts, jumps and places of rows and columns."""
PASSING: dict[str, int] = {"host": 4, "store": 10}
"""Buffers for streamed pieces, in pieces: one is prepared and two are transferred; or two are prepared while others are
read."""
PASSING_SHARE: dict[str, int] = {"host": 3, "store": 1}
"""Divisor of the memory for the matrix: streamed pieces take at most its n-th part, as small ones are slow to read from
a store."""


INGEST_FIRST = (
    "use more workers, or ingest the edges into a store first, whose rows can be streamed and are read again when a "
    "worker is lost"
)
"""Remedy for matrices that are in no store."""
TRANSPOSE_FIRST = (
    "this matrix is in no store, and workers make none; ingest the edges with transpose=True, and use that matrix A"
)
"""The same where the transpose is needed."""

Pointers = Any
"""Row pointers: an array, or an object that has a length and reads them from a store."""

MOST_WORKERS = 1 << 16
"""Upper limit of the search for a sufficient number of workers."""

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


SLICE_UNIT = 4
"""Alignment of a worker's slice of z, in elements of any size."""
SLICE_SUMS = 8
"""Elements reserved at the end of a slice for the scalars, whether elements have 4 bytes or 8."""


@dataclass(frozen=True)
class Slices:
    """Layout of z: for each device a slice with its columns, then the scalars of its rows.

    | columns of 0 | sums of 0 | columns of 1 | sums of 1 | ...
    """

    counts: tuple[int, ...]
    """Number of columns per device."""

    @cached_property
    def tails(self) -> tuple[int, ...]:
        """Offsets of the scalars within each slice; never 0."""
        return tuple(SLICE_UNIT * max(1, -(-n // SLICE_UNIT)) for n in self.counts)

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """Start of each slice, and the end of the last one."""
        return (0, *accumulate(tail + SLICE_SUMS for tail in self.tails))


def split_rows(
    indptr: Pointers, n_parts: int, *, bytes_per_nonzero: int, bytes_per_row: int, cuts: np.ndarray | None = None
) -> np.ndarray:
    """Cut rows into contiguous parts of about equal bytes.

    Parameters
    ----------
    indptr : int64, shape (n_rows + 1,), starting at 0
    n_parts : at least 1; more than n_rows gives empty parts
    cuts : int64, ascending from 0 to n_rows: rows that a part may begin with; None for any

    Returns
    -------
    int64, shape (n_parts + 1,): first row of each part, then n_rows. No part costs more than its share plus one row, or
    plus the rows between two cuts.
    """
    if n_parts < 1:
        raise OptionError(f"the rows must be cut into at least 1 part, not {n_parts}")
    rows = range(len(indptr)) if cuts is None else cuts

    def cost(place: int) -> int:
        return int(indptr[rows[place]]) * bytes_per_nonzero + int(rows[place]) * bytes_per_row

    last, bounds = len(rows) - 1, [0]
    for k in range(1, n_parts):
        target = cost(last) * k // n_parts
        low = high = last * k // n_parts  # near the bound in most graphs: other pointers may have to be read first
        step = max(1, last >> 8)
        while low > 0 and cost(low) >= target:
            low, step = max(0, low - step), 2 * step
        while high < last and cost(high) < target:
            high, step = min(last, high + step), 2 * step
        above = bisect_left(range(last), target, low, high, key=cost)
        below = max(above - 1, 0)
        bounds.append(int(rows[below if target - cost(below) < cost(above) - target else above]))
    return np.array([*bounds, len(indptr) - 1], np.int64)


def parse_bytes(size: str | int, name: str = "the value") -> int:
    """Parse a size such as `141GB`, `16GiB`, `500 MB` or a number; powers of 1000 unless written with an i.

    Parameters
    ----------
    name : of the argument, for messages

    Raises
    ------
    OptionError : not a size
    """
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([kmgt]i?)?b?\s*", str(size).lower())
    if not match:
        raise OptionError(f"{name} must be a size such as 141GB, 16GiB or 500MB, not {size!r}")
    return int(Decimal(match[1]) * _UNITS[match[2] or ""])


@dataclass(eq=False)
class Planner:
    """Planner of the rows and memory of runs over any number of workers."""

    info: MatrixInfo
    indptr: Pointers
    """Row pointers of the whole matrix, of which few are used; for one worker, whose rows are not cut, none but the
    first and the last."""
    precision: Precision = "exact"
    threads: int | None = None
    """Number per worker, for the chunks in flight; None for the default."""
    lays_out: bool = False
    """Whether devices have a layout for steps of PageRank instead of CSR."""
    streams: bool = False
    """Whether rows that do not fit on a device are streamed in pieces, from the host or from the store."""
    top: int | None = None
    """Number of highest vertices to prove; None for no proof."""
    checkpoint: bool = False
    """Whether checkpoints of the ranks are written."""
    bounds: tuple[int, ...] | None = None
    """First row of each worker, and the number of rows, where workers hold rows that are in no store; None to cut
    them."""

    def __post_init__(self) -> None:
        check_choice("precision", self.precision, ("exact", "float64", "float32"))
        info, self._is_product = self.info, self.info.kind == "matrix"
        self._real = 4 if self.precision == "float32" else 8
        self._index = np.dtype(info.index_dtype).itemsize
        self._entry = self._index + (0 if info.is_pattern else self._real)
        """Bytes of an entry of the block."""
        # The float64 residual at the end needs a larger z than float32 steps do.
        self._z = 0 if self._is_product else 8
        """Bytes per column that steps read, and per own row that they write; allocated after the block is read."""
        self._row = self._real if self._is_product else self._real + 8
        """Bytes per own row of the vectors allocated before the block is read: ranks and out-weights, or y; a product
        also has x, with an element per column."""

    @property
    def costs(self) -> dict[str, int]:
        """Bytes by which rows are cut, as arguments of `split_rows`."""
        return {"bytes_per_nonzero": self._entry, "bytes_per_row": 8 + self._row + self._z}

    def plan_rows(
        self,
        n_workers: int = 1,
        *,
        device_memory: int | None = None,
        host_memory: int | None = None,
        throw: bool = True,
    ) -> Plan:
        """Plan a run over `n_workers` workers.

        Parameters
        ----------
        device_memory : bytes of each worker's device; None for workers without a device
        host_memory : bytes of each worker on the host; None for no limit
        throw : raise if it does not fit; False returns the plan, with what would fit

        Raises
        ------
        CapacityError : a worker would need more; the message names a sufficient number of workers, or a store
        """
        if n_workers < 1:
            raise OptionError(f"workers must be at least 1, not {n_workers}")
        plan = self.plan(device_memory, host_memory, n_workers)
        if plan.fits and (throw or not plan.streams):
            return plan
        if self.bounds is not None:
            raise CapacityError(f"{plan.shortage}; {INGEST_FIRST}")
        holding = replace(self, streams=False)
        enough = holding.count_enough_workers(device_memory, host_memory, n_workers)
        fitting = enough if plan.fits else self.count_enough_workers(device_memory, host_memory, n_workers)
        least = None if plan.fits else self.find_least_device_memory(device_memory, host_memory, plan)
        remedy = (
            f"{count_workers(fitting)} of that size suffice"
            if fitting is not None
            else f"no number of workers of that size suffices, because each holds a vector of all {self.info.shape[1]} "
            "columns and at least one row"
        )
        if least is not None:  # rounded up, as it is in three digits
            remedy += f"; from {format_bytes(1.005 * least)} of device memory each on rows are streamed"
        shortage = None if plan.shortage is None else f"{plan.shortage}; {remedy}"
        if throw and shortage is not None:
            raise CapacityError(shortage)
        return replace(plan, shortage=shortage, least_device_memory=least, enough_workers=enough)

    def plan(self, device: int | None, host: int | None, n_workers: int = 1) -> Plan:
        """Return the plan, with rows placed on the devices, and the first shortage of memory."""
        info = self.info
        cuts = part_bounds(info.shape[0]) if info.order == "dealt" and n_workers > 1 else None
        bounds: Any = self.bounds or (0, info.shape[0])
        if n_workers > 1 and self.bounds is None:
            bounds = split_rows(self.indptr, n_workers, **self.costs, cuts=cuts)
        workers = []
        for start, stop in pairwise(bounds):
            worker = self._plan_worker(int(start), int(stop), n_workers)
            workers.append(worker if device is None else self._place(worker, device, host))
        operation = "spmv" if self._is_product else "pagerank"
        plan = Plan(info.url, operation, self.precision, tuple(workers))
        return replace(plan, shortage=self._find_shortage(plan, device, host))

    def count_enough_workers(self, device_memory: int | None, host_memory: int | None, n_workers: int) -> int | None:
        """Return a sufficient number of workers, more than `n_workers`; None if there is none."""
        n_most = min(2 * self.info.shape[0], MOST_WORKERS)

        def suffices(n: int) -> bool:
            return self.plan(device_memory, host_memory, n).fits

        idle = Plan("", "", self.precision, (self._plan_worker(0, 0, 2),))
        if device_memory is not None:
            idle = replace(idle, workers=(replace(idle.workers[0], held="device"),))
        if self._find_shortage(idle, device_memory, host_memory) is not None:
            return None
        while n_workers < n_most:
            candidates = range(n_workers + 1, 2 * n_workers + 1)
            n_workers *= 2
            if suffices(n_workers):  # near the least: slightly more workers may need more memory each
                return candidates[bisect_left(candidates, True, key=suffices)]
        return None

    def find_least_device_memory(self, device_memory: int | None, host_memory: int | None, plan: Plan) -> int | None:
        """Return the least bytes of each device with which rows are streamed; None if they cannot be."""
        if device_memory is None or not self.streams:
            return None
        candidates = range(device_memory, max(w.device_bytes for w in plan.workers) + 1)
        n_workers = len(plan.workers)
        found = bisect_left(candidates, True, key=lambda size: self.plan(size, host_memory, n_workers).fits)
        is_streamed = found < len(candidates) and self.plan(candidates[found], host_memory, n_workers).streams
        return candidates[found] if is_streamed else None

    def _plan_worker(self, start: int, stop: int, n_workers: int) -> WorkerPlan:
        """Plan a worker that computes on its host."""
        n_rows, (n, n_cols) = stop - start, self.info.shape
        nnz = int(self.indptr[stop] - self.indptr[start])
        others = n_cols - n_rows if n_workers > 1 else 0
        made_before = self._row * n_rows + (self._real * n_cols if self._is_product else 0)
        in_flight = self._count_in_flight(max(n_rows + 1, nnz), n_workers)
        vectors = made_before + self._z * (n_rows + n_cols)
        if n_workers > 1 and not self._is_product:
            in_flight = max(in_flight, (1 + self._index) * n_cols)
            packed = int(DENSE * n_rows) * (n_workers - 1)
            vectors += self._z * (n_rows + others) + (2 * self._z + self._index) * packed
            vectors += self._index * int(DENSE * others)
        id_bytes = watch = 0
        if n_workers == 1:
            order = 0 if self.info.order is None else self._index + (2 * self._real if self._is_product else 0)
            id_bytes = (ID_BYTES[self.info.vertex_ids] + order) * n_rows
        if self.top is not None:
            told = min(n, n_workers * (self.top + 1)) if n_workers > 1 else 0
            watch = (WATCH_BYTES + WATCH_RANKS * self._real) * n_rows + TOP_BYTES * told
        return WorkerPlan(
            start=start,
            stop=stop,
            nnz=nnz,
            block_bytes=8 * (n_rows + 1) + self._entry * nnz,
            vector_bytes=vectors,
            load_bytes=made_before + in_flight,
            id_bytes=id_bytes,
            exchange_bytes=self._real * others + SUMS_BYTES * (n_workers - 1),
            watch_bytes=watch,
            # a copy of the ranks, and a chunk being written
            copy_bytes=self._real * (n_rows + 2 * min(CHUNK_ELEMENTS, n_rows)) if self.checkpoint else 0,
        )

    def _count_in_flight(self, n: int, n_workers: int) -> int:
        """Return the most bytes in flight while the larger array of the block, of n elements, is read."""
        info, threads = self.info, self.threads or default_threads()
        stored = 0 if info.dtype is None else np.dtype(info.dtype).itemsize
        if find_local_path(info.url) is None:  # others do not decode whole chunks into the target itself
            return 2 * max(self._index, stored) * min(threads * CHUNK_ELEMENTS, n)
        chunk = min(CHUNK_ELEMENTS, n)
        n_read, n_cut = min(threads * chunk, n), min(threads, 2)  # first and last chunk are read in part
        if n_workers == 1:
            last = n % chunk
            n_read, n_cut = min(n_read, (threads - 1) * chunk + (last or chunk)), int(last > 0)
        indices = int(INDEX_RATIO * self._index * n_read) + self._index * n_cut * chunk
        is_converted = info.dtype is not None and np.dtype(info.dtype) != np.dtype(f"float{8 * self._real}")
        values = stored * (2 * n_read if is_converted else n_read + n_cut * chunk)
        return max(indices, values)

    def _place(self, worker: WorkerPlan, device: int, host: int | None) -> WorkerPlan:
        """Place the rows of a worker on its device, in a layout or in CSR; in pieces if only pieces fit."""
        own = replace(worker, held="device")
        if self.lays_out:
            laid = int(LAID_RATIO * self._entry * own.nnz)
            n_rows, held, vectors = own.stop - own.start, HELD_PIECES * self._entry, own.vector_bytes
            making = (self._entry + self._index) * own.nnz  # CSR, and positions of columns
            if own.nnz > MOST_PIECE_ENTRIES:  # pieces and tables have the memory of vectors, which are made later
                making = max(0, held * LEAST_PIECE_ENTRIES + ROW_TABLE_BYTES * n_rows - vectors)
            own = replace(own, layout_bytes=laid + making, vector_bytes=vectors + self._index * n_rows)
            free = max(0, device - own.device_bytes)
            own = replace(own, bin_bytes=int(BIN_SHARE * free), piece_entries=MOST_PIECE_ENTRIES)
            if own.nnz > MOST_PIECE_ENTRIES:
                room = vectors + making - ROW_TABLE_BYTES * n_rows
                wanted = int(min(PIECE_SHARE * vectors, room + free - own.bin_bytes)) // held
                wanted = min(max(LEAST_PIECE_ENTRIES, wanted), INT32_LIMIT - 1)
                own = replace(own, piece_entries=wanted, piece_bytes=max(0, held * wanted - room))
        if not self.streams or own.device_bytes <= device:
            return own
        from_host = self._stream("host", own, device)
        if from_host.streaming is not None and (host is None or from_host.host_bytes <= host):
            return from_host
        return self._stream("store", own, device)

    def _stream(self, held: Literal["host", "store"], worker: WorkerPlan, device: int) -> WorkerPlan:
        """Return the worker with its rows in pieces; unchanged if these do not fit on its device either."""
        room, passing = device - worker.vector_bytes, PASSING[held]
        piece_bytes = min(self._entry * MOST_PIECE_ENTRIES, room // (passing * PASSING_SHARE[held]))
        if piece_bytes < LEAST_PIECE_BYTES:
            return worker
        ratio = 1.0 if worker.layout_bytes is None else LAID_RATIO
        whole = worker.block_bytes if worker.layout_bytes is None else int(ratio * self._entry * worker.nnz)
        kept = min(whole, room - passing * piece_bytes)
        streamed = int((whole - kept) / (ratio if held == "store" else 1))
        streaming = Streaming(held, piece_bytes // self._entry, kept, passing * piece_bytes, streamed)
        return replace(worker, held=held if streamed else "device", streaming=streaming)

    def _find_shortage(self, plan: Plan, device: int | None, host: int | None) -> str | None:
        for w in plan.workers:
            on_host = w.memory_bytes if device is None else w.host_bytes
            for place, have, need in (("device", device, w.device_bytes), ("host", host, on_host)):
                if have is None or need <= have:
                    continue
                each = f"{plan.operation} of {plan.url} on {count_workers(len(plan.workers))}"
                needs = f"needs {format_bytes(need)} of {place} memory on one of them, which has {format_bytes(have)}"
                said = f"{each} {needs}"
                if place == "device" or not w.watch_bytes:
                    return said
                watch = f"up to {format_bytes(w.watch_bytes)} of it for stop='topk:{self.top}'"
                return f"{said} ({watch}, not needed with stop='change')"
        return None


def choose_piece(worker: WorkerPlan, *, is_there: bool = False) -> int:
    """Return the most entries per piece when a device reads rows for its layout.

    Parameters
    ----------
    is_there : whether the device holds the rows in CSR, so that to read them at once takes no memory
    """
    if worker.streaming is not None:
        most = MOST_PIECE_ENTRIES if worker.nnz <= MOST_PIECE_ENTRIES else LEAST_PIECE_ENTRIES
        return min(most, worker.streaming.piece_entries)
    return max(1, worker.nnz) if is_there and worker.nnz < INT32_LIMIT else worker.piece_entries


def warn_of_streaming(plan: Plan, stacklevel: int) -> None:
    """Warn if rows are streamed in each iteration, which takes many times as long."""
    streamed = [own for w in plan.workers if (own := w.streaming) is not None and own.streamed_bytes]
    if streamed:
        n_bytes = max(own.streamed_bytes for own in streamed)
        kept = " and ".join(sorted({"pinned memory" if own.held == "host" else "the store" for own in streamed}))
        warnings.warn(
            f"the rows of {len(streamed)} of {len(plan.workers)} GPUs do not fit in GPU memory: up to "
            f"{n_bytes / 1e9:.3g} GB per GPU are streamed from {kept} in each iteration; use more GPUs to avoid that",
            stacklevel=stacklevel + 1,
        )


def limit(memory: int | None, most: int | None) -> int | None:
    """Return the lesser of two numbers of bytes; `memory` itself if either is None."""
    return memory if memory is None or most is None else min(memory, most)
