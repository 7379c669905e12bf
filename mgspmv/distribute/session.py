"""What a worker keeps of a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from mgspmv.distribute.part import Part
from mgspmv.errors import ClusterError, RunAbortedError
from mgspmv.exchange.halo import Halo, find_asked
from mgspmv.exchange.links import DaskLinks, Member
from mgspmv.exchange.peer import PeerTransport
from mgspmv.exchange.relay import RelayTransport
from mgspmv.iterate.options import PageRankOptions
from mgspmv.iterate.pagerank import LocalSteps, Loop, Rows
from mgspmv.iterate.start import Start, read_out_weight
from mgspmv.model import Event, Status, StepSums


@dataclass(frozen=True)
class RunSpec:
    """What all workers of a run are told."""

    run: str
    """Run id."""
    members: tuple[Member, ...]
    """Its workers, by rank."""
    options: PageRankOptions
    """What was asked for."""
    threshold: float
    """Of the change."""
    dtype: str | None
    """Of the values that are used; None for none."""
    kernel: str
    """Name of a kernel, or `auto`."""
    threads: int | None
    """Of each worker; None for what the worker was given by its cluster."""
    patience: float
    """Seconds that a worker may be silent."""


class Session:
    """One worker's share of a run: its rows, its vectors, and its links to the other workers.

    Parameters
    ----------
    worker : the `distributed.Worker` that this is on
    start : the vectors of the part's rows
    """

    def __init__(self, worker: Any, part: Part, spec: RunSpec, start: Start) -> None:
        self._spec, self._part = spec, part
        kernel = part.bind(spec.dtype, spec.options.precision, spec.kernel, spec.threads)
        weight = read_out_weight(part.stored, spec.dtype is not None, part.start, part.stop)
        self._rows: Rows = start.bind(kernel, weight)
        assert part.halo is not None
        self._halo = part.halo
        self._links = DaskLinks(worker, spec.run, part.rank, spec.members, partial(_greet, part.halo), spec.patience)
        self._relay: RelayTransport | None = None
        self._steps: LocalSteps | None = None
        self._loop: Loop | None = None
        self._end: str | None = None
        self.is_busy = False
        """Whether a task of the run is running."""
        self._threads = kernel.threads
        kernel.compile()

    @property
    def run(self) -> str:
        """Run id."""
        return self._spec.run

    @property
    def links(self) -> DaskLinks:
        """To the other workers."""
        return self._links

    @property
    def threads(self) -> int:
        """Of the kernel."""
        return self._threads

    def close(self, reason: str) -> None:
        """End the run here: a task that waits is told the reason, and none can begin."""
        self._end = reason
        self._links.close(reason)

    # --- in lockstep with the other workers

    def advance(self, n: int) -> tuple[list[Event], Status | None]:
        """Make n iterations or fewer, up to the end, together with all other workers.

        Returns
        -------
        What each iteration did on this worker, and how the run ended, None if it did not.
        """
        with self._working("connect" if self._loop is None else f"iteration {self._loop.iteration + 1}"):
            loop = self._loop or self._connect()
            events = []
            for event in loop.advance(n):
                events.append(event)
                self._links.phase = f"iteration {loop.iteration + 1}"
            return events, loop.status

    def measure(self) -> float:
        """This worker's part of the residual, together with all other workers. No more iterations after it."""
        with self._working("residual"):
            assert self._steps is not None
            assert self._loop is not None
            self._steps.begin_residual()
            return self._steps.residual(self._loop.mass)

    def _connect(self) -> Loop:
        hellos = self._links.connect()
        n_rows = self._part.stop - self._part.start
        asked = (hellos.get(rank, {}).get("asked") for rank in range(len(self._spec.members)))
        wanted = [find_asked(bits, n_rows) for bits in asked]
        transport = PeerTransport(self._links, self._halo, wanted, self._rows.kernel.z_dtype)
        self._steps = LocalSteps([self._rows], transport, self._spec.options.alpha)
        self._links.phase = "iteration 1"
        loop = Loop(self._steps, self._spec.options, self._spec.threshold, self._spec.run)
        loop.start()
        self._loop = loop
        return loop

    # --- driven by the scheduler

    def scale(self) -> tuple[np.ndarray, StepSums]:
        """This worker's slice of the first z, and its sums."""
        with self._working("start"):
            self._relay = RelayTransport(self._halo, self._rows.kernel.z_dtype)
            self._steps = LocalSteps([self._rows], self._relay, self._spec.options.alpha)
            sums = self._steps.scale()
            return self._relay.take(), sums

    def step(self, z: np.ndarray, mass: float) -> tuple[np.ndarray, StepSums, float, int]:
        """One iteration on these rows: the slice of the next z, sums, seconds, and bytes held.

        Parameters
        ----------
        z : (n_cols,) of all workers
        mass : sum of all ranks over dangling vertices
        """
        with self._working("iteration"):
            assert self._relay is not None
            assert self._steps is not None
            self._relay.give(z)
            sums, times = self._steps.step(mass)
            return self._relay.take(), sums, times.product_s[0], times.memory_bytes[0]

    def rescale(self) -> np.ndarray:
        """This worker's slice of z in float64, for the residual."""
        with self._working("residual"):
            assert self._relay is not None
            assert self._steps is not None
            self._steps.begin_residual()
            return self._relay.take()

    def measure_given(self, z: np.ndarray, mass: float) -> float:
        """This worker's part of the residual.

        Parameters
        ----------
        z : (n_cols,) float64 of all workers
        """
        with self._working("residual"):
            assert self._relay is not None
            assert self._steps is not None
            self._relay.give(z)
            return self._steps.residual(mass)

    # --- at the end

    def collect(self) -> np.ndarray:
        """(n_rows,): the ranks."""
        return self._rows.kernel.get(self._rows.x)

    @contextmanager
    def _working(self, phase: str) -> Iterator[None]:
        if self._end is not None:
            raise RunAbortedError(self._end, phase=phase)
        if self.is_busy:
            raise ClusterError(f"two tasks of run {self._spec.run} are running on one worker", phase=phase)
        self.is_busy = True
        self._links.phase = phase
        try:
            with self._links.active():
                yield
        finally:
            self.is_busy = False


def _greet(halo: Halo, rank: int) -> dict[str, Any]:
    """The first message to the worker of a rank. No method: links that held their session would outlive both."""
    return {"asked": halo.ask(rank)}


def check_agreement(reports: Sequence[tuple[list[Event], Status | None]]) -> None:
    """Raise unless all workers made the same iterations with the same changes, as their sums were the same."""
    seen = {(status, tuple((e.iteration, e.change) for e in events)) for events, status in reports}
    if len(seen) > 1:
        raise ClusterError("the workers do not agree on the changes of this superstep; one of them computes wrongly")
