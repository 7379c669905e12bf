"""What a worker keeps of a batch of vectors, and the tasks that run there; see `mgspmv.iterate.batch`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np

from mgspmv.distribute.device_part import DevicePart
from mgspmv.distribute.part import Part
from mgspmv.distribute.publish import publish_iterations
from mgspmv.distribute.session import Share, Spec, find_wanted, greet_asking, say
from mgspmv.exchange.direct import name_host
from mgspmv.exchange.panels import LocalPanels, NcclPanels, Panels, PeerPanels, StagedPanels
from mgspmv.iterate.batch import Batch, Ending, Kept, ManyRows, count_bytes
from mgspmv.iterate.options import PageRankOptions
from mgspmv.iterate.queries import Query
from mgspmv.iterate.start import Start
from mgspmv.kernels.cpu_many import CpuMany
from mgspmv.kernels.device import describe_device, device_id, free_device_memory
from mgspmv.kernels.many import WIDTHS, BoundMany
from mgspmv.logs import choose_own_log
from mgspmv.model import Event, free_memory

KEPT_BYTES = 1 << 28
"""Of what is kept of vectors on all workers, after which a superstep ends, so that it goes to the client."""


@dataclass(frozen=True)
class BatchSpec(Spec):
    """What all workers of a batch are told."""

    options: PageRankOptions
    """Of all vectors, but for `alpha`."""
    threshold: float
    """Of the changes."""
    dtype: str | None
    """Of the values that are used; None for none."""
    threads: int | None
    """Of each worker; None for what the worker was given by its cluster."""
    transport: Literal["peer", "nccl"]
    """How slices go from worker to worker."""
    drops: bool
    """As for `Batch`."""
    top: int | None
    """As for `Batch`."""


@dataclass(frozen=True, eq=False)
class BatchPiece:
    """What a worker is told of its rows."""

    start: Start
    """Only d, which is empty for p of each vector, and the out-weights count."""
    queries: list[Query]
    """All vectors, with those of their entries that are in these rows."""
    order: np.ndarray | None
    """(n_rows,) source's number of each row; None where they ascend, or nobody asks."""


@dataclass(frozen=True)
class Room:
    """What a pass takes in some place, and what there is of it."""

    place: str
    """Others that name the same have the same."""
    free_bytes: int
    needed: dict[int, int]
    """Bytes by width."""


@dataclass(frozen=True, eq=False)
class BatchReport:
    """What was done in a superstep."""

    events: list[tuple[Event, int]]
    """Of each pass, and how many vectors had ended then."""
    kept: list[Kept]
    """What this worker keeps of each vector that is finished."""
    is_done: bool


class BatchSession(Share):
    """One worker's share of a batch."""

    def __init__(self, worker: Any, part: Part, spec: BatchSpec, piece: BatchPiece) -> None:
        kernel = _bind(part, spec)
        writable = partial(np.require, requirements="W")  # what came over a network is not, and kernels are for both
        weight = writable(piece.start.take_weight(lambda: part.out_weights.read(spec.dtype is not None)))
        self._rows = ManyRows(kernel, kernel.put(weight), kernel.put(writable(piece.start.dangling)))
        self._n_dangling = int(np.count_nonzero(weight == 0))
        self._worker, self._spec, self._piece = worker, spec, piece
        super().__init__(worker, part, spec, _make_hello(part, spec))
        self._panels: Panels | None = None
        self._batch: Batch | None = None
        self._kept: list[Kept] = []
        self._held_bytes = 0
        self.computes = kernel.threads if isinstance(kernel, CpuMany) else describe_device()

    def connect(self) -> tuple[int, list[Room]]:
        """Open the links to the other workers; the width that computes fastest here, and the room that there is."""
        with self._working("connect"):
            self._panels = self._make_panels(self._links.connect())
            return self._rows.kernel.best_width, self._find_room(self._panels)

    def start(self, width: int) -> None:
        """Let the first vectors in, together with all other workers."""
        with self._working("start"):
            assert self._panels is not None
            spec, piece = self._spec, self._piece
            self._batch = Batch(
                [self._rows],
                piece.queries,
                spec.options,
                spec.threshold,
                width,
                self._panels,
                n_dangling=self._n_dangling,
                drops=spec.drops,
                top=spec.top,
                order=piece.order,
                keep=partial(_keep, self._kept),
                run=spec.run,
            )
            self._batch.start()
            self._held_bytes = self._batch.held_bytes
            self.n_terms *= width

    def advance(self, n: int) -> BatchReport:
        """Make n passes, or fewer: up to the end, or until enough is kept. All workers make the same. What they did is
        published too."""
        batch = self._batch
        assert batch is not None
        most = self._count_kept()
        with self._working(f"pass {batch.steps + 1}") as marks:
            events, log = list[tuple[Event, int]](), choose_own_log(self.name)
            with self._stepping(marks):
                while len(events) < n and len(self._kept) < most and not batch.is_done:
                    events.append(batch.advance())
                    log(events[-1][0])
                    marks.end_step()
                    self._links.phase = f"pass {batch.steps + 1}"
            report = BatchReport(events, [*self._kept], batch.is_done)
            self._kept.clear()
        publish_iterations(self, [event for event, _ in events])
        return report

    def collect(self) -> tuple[list[Ending], dict[str, float], dict[str, int]]:
        """How the vectors ended, the seconds of this worker by phase, and the bytes that it took."""
        batch = self._batch
        assert batch is not None
        return batch.endings, batch.seconds, self.measure_memory() | {"held_bytes": self._held_bytes}

    def _make_panels(self, hellos: dict[int, dict[str, Any]]) -> Panels:
        part, links, kernel = self._part, self._links, self._rows.kernel
        if self._spec.transport == "nccl":
            assert isinstance(part, DevicePart)
            part.join_devices(links, hellos)
            if part.group is None:
                return LocalPanels(part.bounds[-1], kernel.zeros_many)
            return NcclPanels(part.group, part.bounds, kernel.zeros_many, links.check)
        assert part.halo is not None
        wanted = find_wanted(hellos, part.halo)
        if part.backend == "cuda":
            return StagedPanels(links, part.halo, wanted, kernel.put, kernel.get)
        return PeerPanels(links, part.halo, wanted, kernel.zeros_many)

    def _find_room(self, panels: Panels) -> list[Room]:
        kernel, part, precision = self._rows.kernel, self._part, self._spec.options.precision
        itemsize, n_rows = kernel.z_dtype.itemsize, part.stop - part.start
        needed = {w: count_bytes(panels, n_rows, precision, itemsize, w) for w in WIDTHS}
        rooms = []
        if part.backend == "cuda":
            rooms.append(Room(device_id(), free_device_memory(), needed))
            needed = {w: panels.count_staged_bytes(w, itemsize) for w in WIDTHS}
        rooms.append(Room(name_host(), free_memory(), needed))
        if (limit := self._worker.memory_manager.memory_limit) is not None:
            used = self._worker.monitor.get_process_memory()
            rooms.append(Room(self._worker.address, max(0, limit - used), needed))
        return rooms

    def _count_kept(self) -> int:
        """Vectors after which a superstep ends: the same on all workers."""
        n, top = self._part.bounds[-1], self._spec.top
        return max(1, KEPT_BYTES // (8 * n if top is None else 16 * min(top, n) * len(self._spec.members)))


def _keep(all_kept: list[Kept], kept: Kept) -> None:
    """Keep a copy of what may be overwritten. No method: a batch that held its session would outlive both."""
    all_kept.append(replace(kept, ranks=kept.ranks.copy()))


def _bind(part: Part, spec: BatchSpec) -> BoundMany:
    precision = spec.options.precision
    if spec.transport == "nccl":
        assert isinstance(part, DevicePart)
        return part.bind_many_whole(spec.dtype, precision)
    return part.bind_many(spec.dtype, precision, spec.threads)


def _make_hello(part: Part, spec: BatchSpec) -> Callable[[int], dict[str, Any]]:
    if spec.transport == "nccl":
        assert isinstance(part, DevicePart)
        return partial(say, part.greet())
    assert part.halo is not None
    return partial(greet_asking, [part.halo])
