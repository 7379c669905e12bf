"""Plan of a run: rows, memory and traffic of each worker, as `mgspmv.partition` predicts them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from mgspmv.display import format_bytes
from mgspmv.display.frames import render_card
from mgspmv.errors import hide_secrets
from mgspmv.model import Precision

Held = Literal["device", "host", "store"]
"""Location of a worker's rows between iterations."""

HELD_PIECES = 2
"""Pieces of rows on a device while they are read for a layout: one is used, and another read meanwhile."""


@dataclass(frozen=True)
class Streaming:
    """Streaming of rows that do not fit in a device's memory: some are kept there, the others streamed in pieces.

    Examples
    --------
    >>> import mgspmv as mg
    >>> plan = mg.generate("rmat", scale=14, kind="graph").plan(device_memory="1MB", backend="cpu")
    >>> plan.streams, plan.workers[0].streaming.held
    (True, 'host')
    """

    held: Literal["host", "store"]
    """Location of the streamed pieces: pinned memory of the host, or the store."""
    piece_entries: int
    """Approximate number of entries per piece."""
    kept_bytes: int
    """Bytes of the pieces kept on the device."""
    passing_bytes: int
    """Bytes on the device for streamed pieces, including buffers to prepare them."""
    streamed_bytes: int
    """Bytes of the pieces streamed in each iteration."""


@dataclass(frozen=True)
class WorkerPlan:
    """Rows, memory and traffic of one worker.

    Examples
    --------
    >>> import mgspmv as mg
    >>> plan = mg.generate("rmat", scale=10, kind="graph").plan(2, backend="cpu")
    >>> [(worker.start, worker.stop, worker.nnz) for worker in plan.workers]
    [(0, 513, 6041), (513, 1024, 6064)]
    """

    start: int
    """First row."""
    stop: int
    """Row after the last."""
    nnz: int
    """Number of entries in these rows."""
    block_bytes: int
    """Bytes of the CSR block."""
    vector_bytes: int
    """Bytes of ranks, out-weights and the two vectors that products read and write; x and y of a product. With several
    workers also slices in transfer and lists of rows, at their largest."""
    load_bytes: int
    """Bytes while the block is read: chunks in flight, compressed, and raw unless decoded in place; and vectors that
    exist by then; or buffers to renumber its columns, if larger."""
    id_bytes: int
    """Bytes of vertex ids and of the order of a renumbered store; 0 with several workers, which need neither."""
    exchange_bytes: int
    """Most bytes received from the other workers per iteration; rows that the block does not read are not sent."""
    held: Held = "host"
    """Location of the rows between iterations: `device`; `host`, without a device or to be streamed from pinned memory;
    or `store`, to be streamed from it."""
    streaming: Streaming | None = None
    """Set if the rows do not fit on the device; also if only the layout and its build buffers do not fit together: then
    all pieces are kept."""
    layout_bytes: int | None = None
    """Bytes of the layout for PageRank steps on a device, including buffers to build it; None for CSR."""
    piece_entries: int = 0
    """Most entries of a piece in which the device reads its rows for the layout; unless one has all, `HELD_PIECES` are
    there, before the vectors are."""
    piece_bytes: int = 0
    """Bytes of the device, beyond `device_bytes`, for these pieces and tables of the rows, more than for vectors."""
    bin_bytes: int = 0
    """Bytes of the device, beyond `device_bytes`, that products of rarely used columns may take to speed up steps."""
    watch_bytes: int = 0
    """Bytes on the host of the top-k proof; 0 without it."""
    copy_bytes: int = 0
    """Bytes on the host of the copy of ranks written as a checkpoint; 0 without checkpoints."""

    @property
    def has_device(self) -> bool:
        """True if it computes on a device; `held` is `host` in both cases."""
        return self.held != "host" or self.streaming is not None

    @property
    def streams(self) -> bool:
        """True if rows are streamed in each iteration."""
        return self.streaming is not None and self.streaming.streamed_bytes > 0

    @property
    def memory_bytes(self) -> int:
        """Peak on a worker without a device: block and ids, with the vectors or with the buffers of loading."""
        return self.block_bytes + self.id_bytes + max(self.vector_bytes + self._beside_bytes, self.load_bytes)

    @property
    def device_bytes(self) -> int:
        """Peak on the device of a worker that has one: the block, or the pieces held at a time, with its vectors."""
        if self.streaming is not None:
            return self.streaming.kept_bytes + self.streaming.passing_bytes + self.vector_bytes
        return (self.layout_bytes or self.block_bytes) + self.vector_bytes

    @property
    def host_bytes(self) -> int:
        """Peak on the host of a worker that has a device: buffers of loading, or later of top-k proof and checkpoints,
        with pieces in pinned memory."""
        pinned = 0 if self.streaming is None or self.streaming.held == "store" else self.streaming.streamed_bytes
        return max(self.load_bytes, self._beside_bytes) + pinned

    @property
    def _beside_bytes(self) -> int:
        """Bytes on the host, in addition to matrix and vectors."""
        return self.watch_bytes + self.copy_bytes


@dataclass(frozen=True)
class SharePlan:
    """Memory of one worker for its share in the vectors of a batch."""

    widest: int
    """Most vectors in a pass that fit in its memory."""
    planned_bytes: int
    """Bytes planned for a run of one vector with all rows."""


@dataclass(frozen=True)
class Plan:
    """Predicted memory and traffic of a run, per worker. Bytes are of arrays; the interpreter, its libraries and freed
    memory that the C library keeps are not included.

    Jumps and start are assumed uniform, the default: each of `personalization`, `dangling` and `nstart` that is given
    as a vector takes 8 bytes more per vertex; `personalization` without `nstart` 16, as ranks start there.

    Examples
    --------
    >>> import mgspmv as mg
    >>> plan = mg.generate("rmat", scale=10, kind="graph").plan(2, backend="cpu")
    >>> plan.fits, plan.bounds, plan.memory_bytes < 1_000_000
    (True, (0, 513, 1024), True)
    """

    url: str
    """Path or URL of the store."""
    operation: str
    """`pagerank`, or `spmv` for a store of kind `matrix`."""
    precision: Precision
    """Precision of the products."""
    workers: tuple[WorkerPlan, ...]
    """Plans of the workers, in the order of their rows."""
    shortage: str | None = None
    """Worker that lacks memory, with remedies; None if the matrix fits, also if rows are streamed."""
    least_device_memory: int | None = None
    """If rows do not fit on the devices: least bytes of each with which they are streamed; None if they fit, cannot be
    streamed, or the hosts lack memory."""
    enough_workers: int | None = None
    """If rows do not fit, or are streamed: a number of workers with the same memory that hold all rows; None if they
    fit, no number does, or workers differ in memory."""

    @property
    def fits(self) -> bool:
        """True if each worker has the memory that it needs; also without limits of memory."""
        return self.shortage is None

    @property
    def streams(self) -> bool:
        """True if rows are streamed in each iteration."""
        return any(w.streams for w in self.workers)

    @property
    def n_idle(self) -> int:
        """Number of workers without rows."""
        return sum(w.start == w.stop for w in self.workers)

    @property
    def memory_bytes(self) -> int:
        """Most bytes needed by any worker, if it has no device."""
        return max(w.memory_bytes for w in self.workers)

    @property
    def exchange_bytes(self) -> int:
        """Bytes received by all workers in an iteration."""
        return sum(w.exchange_bytes for w in self.workers)

    @property
    def bounds(self) -> tuple[int, ...]:
        """First row of each worker, and the number of rows."""
        return (*(w.start for w in self.workers), self.workers[-1].stop)

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as JSON values."""
        totals = {"fits": self.fits, "memory_bytes": self.memory_bytes, "exchange_bytes": self.exchange_bytes}
        names = ("memory_bytes", "device_bytes", "host_bytes")
        workers = [asdict(w) | {name: getattr(w, name) for name in names} for w in self.workers]
        return asdict(self) | totals | {"workers": workers}

    def __repr__(self) -> str:
        has_device = any(w.has_device for w in self.workers)
        most = max(w.device_bytes for w in self.workers if w.has_device) if has_device else self.memory_bytes
        facts = [
            f"{self.operation} of {hide_secrets(self.url)}",
            f"{count_workers(len(self.workers))}{f', {self.n_idle} of them without rows' if self.n_idle else ''}",
            f"at most {format_bytes(most)} {'on each device' if has_device else 'each'}",
            f"{format_bytes(self.exchange_bytes)} exchanged per iteration",
        ]
        facts += ["rows are streamed"] if self.streams else []
        facts += [] if self.fits else ["does not fit"]
        return f"Plan({', '.join(facts)})"

    def _repr_html_(self) -> str:
        return render_card(self)


def count_workers(n_workers: int) -> str:
    """Format a number of workers."""
    return f"{n_workers:,} worker{'s' if n_workers != 1 else ''}"
