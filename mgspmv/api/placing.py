"""Calls with a matrix: in this process, or on the cluster that holds it or is to hold it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from mgspmv.api.matrix import Matrix
from mgspmv.checkpoints import BEGINNING, RunProgress
from mgspmv.errors import OptionError
from mgspmv.kernels.catalogue import Backend
from mgspmv.kernels.select import choose_backend
from mgspmv.logs import log_iteration
from mgspmv.model import Event
from mgspmv.monitor.progress import ProgressOption, make_report
from mgspmv.results import Solution, describe_matrix, find_non_finite
from mgspmv.solvers.pagerank import Outcome, add_event
from mgspmv.solvers.placing import Placement

if TYPE_CHECKING:
    from mgspmv.cluster.matrix import DistributedMatrix


@dataclass(frozen=True)
class Call:
    """One call with a matrix, in the place of the matrix, and the events of its iterations."""

    A: Any
    """Opened or distributed matrix."""
    progress: ProgressOption = None
    """Function that hears of phases and iterations."""
    began: float = field(default_factory=time.perf_counter)
    """Time of the call, in seconds of `time.perf_counter`."""
    events: list[Event] = field(default_factory=list)
    """Events of the iterations."""

    def __post_init__(self) -> None:
        if self.place.is_limited and self.computes == "cpu" and not self.place.is_on_cluster:
            raise OptionError(
                "device_memory= and host_memory= limit what a run on CUDA takes, and this process computes on its "
                "host; leave them out"
            )

    @property
    def place(self) -> Placement:
        """Placement of the matrix."""
        place: Placement = self.A.place
        return place

    @cached_property
    def computes(self) -> Backend:
        """Backend of this process; `cpu` where workers compute."""
        return "cpu" if self.place.is_on_cluster else choose_backend(self.place.backend)

    def check_kernel(self, operation: str) -> None:
        """Raise `OptionError` if a kernel is asked for, which this operation chooses by itself."""
        if self.place.kernel != "auto":
            raise OptionError(
                f"{operation} chooses its kernel, but kernel={self.place.kernel!r} was passed to on() or distribute(); "
                "leave it out"
            )

    @contextmanager
    def distribute(self, A: Matrix | DistributedMatrix | None = None, **reads: Any) -> Iterator[DistributedMatrix]:
        """Distribute the matrix, or another one, for the context; a distributed one is yielded unchanged.

        Parameters
        ----------
        reads : as in `distribute_matrix`
        """
        matrix: Any = self.A if A is None else A
        if not isinstance(matrix, Matrix):
            yield matrix
            return
        with matrix.distribute_as_placed(self.progress, **reads) as distributed:
            yield distributed

    def report(self, phase: str, done: int, total: int | None) -> None:
        """Pass a phase to `progress`."""
        make_report(self.progress)(phase, done, total)

    def emit(self, event: Event) -> None:
        """Record the event of an iteration, log it and pass it to `progress`."""
        add_event(self.events, event)
        log_iteration(event)
        if callable(self.progress):
            self.progress(event)

    def count_loading(self, seconds: dict[str, float], loaded: float) -> None:
        """Add the time from the call to `loaded` to the phase `load`, or `start` where the matrix is on a cluster."""
        phase = "start" if self.place.is_distributed else "load"
        seconds[phase] = seconds.get(phase, 0.0) + loaded - self.began

    def make_solution(
        self, outcome: Outcome, options: dict[str, Any], before: RunProgress = BEGINNING, *, is_rank: bool = False
    ) -> Solution:
        """Make the solution of a run.

        Parameters
        ----------
        before : progress that the run resumed from
        is_rank : whether the values are ranks, which sum to 1
        """
        A, events = self.A, tuple(self.events)
        changes = before.changes + tuple(event.change for event in events)
        reached = (outcome.values, outcome.status, len(changes), changes, outcome.seconds, outcome.error_bound_l1)
        told = (A.info, outcome.hardware, outcome.transport)
        matrix = describe_matrix(*told, is_reversed=is_rank and A.is_transpose)
        memory = outcome.memory | ({"held_bytes": list(events[-1].memory_bytes)} if events else {})
        wrong = find_non_finite(outcome.values, A.vertex_ids, outcome.status, len(changes), is_rank=is_rank)
        found = (outcome.stability, before.iteration, wrong, outcome.underflow, outcome.recoveries)
        return Solution(*reached, A.vertex_ids, options, matrix, events, memory, *found)
