"""Several devices played by one: the rows of a matrix in shares, each with its own stream and thread."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from threading import Barrier
from typing import Any

import numpy as np

from mgspmv.kernels.layout import LayoutBuilder
from mgspmv.kernels.rank_steps import RankSteps, RankVectors
from mgspmv.model import CsrBlock, RowCheck, StepSums
from mgspmv.partition import Slices
from tests.support.waiting import HANG_S


class OneDevice:
    """Shares of one device that copy their slices from each other.

    A slice is not written again before all have copied it: that is two steps later, and at the next exchange everybody
    waits for the events of all.
    """

    def __init__(self, slices: Slices, n_terms: int, is_direct: bool) -> None:
        self.slices, self.n_terms, self.is_direct = slices, n_terms, is_direct
        self.barrier = Barrier(len(slices.counts))
        self.given: dict[int, tuple[Any, Any]] = {}
        self.memory: dict[int, Any] = {}

    def share(self, rank: int) -> OneShare:
        return OneShare(self, rank)


class OneMemory:
    """What `DirectMemory` is asked for, all on one device."""

    def __init__(self, own: Any, addresses: tuple[int, ...]) -> None:
        import cupy

        self.own, self.addresses, self.round = own, addresses, 0
        self._pinned = cupy.cuda.alloc_pinned_memory(4)
        self.is_given_up = int(self._pinned.ptr)
        self.given_up: np.ndarray = np.frombuffer(self._pinned, np.int32, 1)
        self.given_up[0] = 0


class OneShare:
    """What `NcclSlices` is asked for."""

    def __init__(self, device: OneDevice, rank: int) -> None:
        self.rank, self.slices, self.n_terms, self._device = rank, device.slices, device.n_terms, device

    @property
    def received_elements(self) -> int:
        return self.slices.starts[-1] - self.slices.counts[self.rank]

    def share(self, n_bytes: int) -> OneMemory | None:
        import cupy

        device = self._device
        if not device.is_direct:
            return None
        own = cupy.zeros(n_bytes, np.uint8).data
        cupy.cuda.get_current_stream().synchronize()
        device.memory[self.rank] = own
        device.barrier.wait(HANG_S)
        addresses = tuple(int(device.memory[k].ptr) for k in range(len(self.slices.counts)))
        device.barrier.wait(HANG_S)
        return OneMemory(own, addresses)

    def enqueue(self, z: Any) -> None:
        import cupy

        stream, device = cupy.cuda.get_current_stream(), self._device
        device.given[self.rank] = z, stream.record()
        device.barrier.wait(HANG_S)
        for other, (theirs, is_made) in device.given.items():
            start = self.slices.starts[other]
            stop = start + self.slices.counts[other]
            tail = start + self.slices.tails[other]
            if other != self.rank:
                stream.wait_event(is_made)
                z[start:stop] = theirs[start:stop]
                z[tail : self.slices.starts[other + 1]] = theirs[tail : self.slices.starts[other + 1]]
        device.barrier.wait(HANG_S)

    def wait(self, stream: Any, stages: Any) -> None:
        stream.synchronize()


class Shares:
    """The steps of `RankSteps` over shares, as one device makes them.

    Parameters
    ----------
    bounds : first row of each share, and the number of rows
    read : the block of given rows of the matrix, on the device
    options : of `LayoutBuilder`, for each share, and `streaming` where its rows come by
    is_direct : whether shares write into the memory of all
    """

    def __init__(
        self,
        block: CsrBlock,
        bounds: list[int],
        read: Callable[[int, int], CsrBlock],
        precision: Any,
        options: list[dict[str, Any]],
        *,
        is_direct: bool = False,
    ) -> None:
        import cupy

        self.bounds, n = bounds, len(bounds) - 1
        degree = np.zeros(block.n_rows, np.int64)
        degree[block.indices] = 1
        laid, streaming = [], [given.get("streaming") for given in options]
        for (first, last), asked in zip(pairwise(bounds), options, strict=True):
            given = {name: value for name, value in asked.items() if name != "streaming"}
            indptr = block.indptr[first : last + 1] - block.indptr[first]
            own = (lambda start: lambda a, b: read(start + a, start + b))(first)
            laid.append(LayoutBuilder(indptr, own, row_offset=first, **given))
        places = [
            rows.place_streamed(cupy.asarray(degree[first:last]), own)
            for rows, own, (first, last) in zip(laid, streaming, pairwise(bounds), strict=True)
        ]
        self.slices = Slices(tuple(p.n_sent for p in places))
        own_columns = [cupy.arange(p.n_sent) if p.columns is None else p.columns for p in places]
        columns = cupy.concatenate([own + s for own, s in zip(own_columns, self.slices.starts, strict=False)])
        columns = columns.astype(np.int32)
        columns = columns.astype(np.int32)
        device = OneDevice(self.slices, max(block.nnz, block.n_rows), is_direct)
        self.layouts = [
            rows.build_layout(p, columns, self.slices.starts[-1], own)
            for rows, p, own in zip(laid, places, streaming, strict=True)
        ]
        self.steps = [RankSteps(layout, precision, device.share(k)) for k, layout in enumerate(self.layouts)]
        for steps in self.steps:
            steps.compile()
        self._pool = ThreadPoolExecutor(n)

    def start(self, vectors: RankVectors, rules: Any) -> StepSums:
        cut = [
            RankVectors(*(v if len(v) == 1 and name != "weight" else v[a:b] for name, v in vars(vectors).items()))
            for a, b in pairwise(self.bounds)
        ]
        for (a, b), own in zip(pairwise(self.bounds), cut, strict=True):
            assert len(own.weight) == b - a
        return self._agree([lambda s=s, v=v: s.start(v, rules) for s, v in zip(self.steps, cut, strict=True)])

    def advance(self, n: int) -> list[StepSums]:
        return self._agree([lambda s=s: s.advance(n) for s in self.steps])

    def residual(self, mass: float) -> float:
        return sum(self._call([lambda s=s: s.residual(mass) for s in self.steps]))

    def check_rows(self) -> RowCheck:
        return sum((s.check_rows() for s in self.steps), RowCheck())

    def ranks(self) -> np.ndarray:
        return np.concatenate([s.ranks() for s in self.steps])

    def _agree(self, calls: list[Callable[[], Any]]) -> Any:
        answers = self._call(calls)
        assert all(answer == answers[0] for answer in answers)
        return answers[0]

    def _call(self, calls: list[Callable[[], Any]]) -> list[Any]:
        return [future.result(HANG_S) for future in [self._pool.submit(call) for call in calls]]


def cut_evenly(n_rows: int, n: int) -> list[int]:
    """Bounds of n shares, the first of which is a little longer."""
    return [0, *(min(n_rows, n_rows * k // n + 3) for k in range(1, n)), n_rows]
