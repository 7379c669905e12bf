"""Placement of a call: in this process, or on the cluster that holds its matrix or is to hold it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from mgspmv.api.arguments import check_threads, parse_size
from mgspmv.api.matrix import Matrix
from mgspmv.checkpoints import BEGINNING, RunProgress
from mgspmv.errors import OptionError
from mgspmv.kernels.catalogue import BACKENDS, Backend
from mgspmv.kernels.select import choose_backend
from mgspmv.logs import log_iteration
from mgspmv.model import Event, Progress, check_choice
from mgspmv.results import Solution, describe_matrix, find_non_finite
from mgspmv.solvers.pagerank import Outcome, add_event

if TYPE_CHECKING:
    from mgspmv.cluster.matrix import DistributedMatrix

Executor = Literal["auto", "embedded", "tasks", "supersteps"]


@dataclass(frozen=True)
class Placement:
    """Requested placement of a call with a matrix, checked, and the events of its iterations."""

    A: Any
    """Opened or distributed matrix."""
    client: Any = None
    """Client of the cluster to distribute an opened matrix on for this call; None uses the matrix as it is."""
    backend: str = "auto"
    threads: int | None = None
    device_memory: str | int | None = None
    host_memory: str | int | None = None
    timeout: float = 30.0
    transport: str = "auto"
    on_progress: Progress | None = None
    on_event: Callable[[Event], None] | None = None
    began: float = field(default_factory=time.perf_counter)
    """Time of the call, in seconds of `time.perf_counter`."""
    events: list[Event] = field(default_factory=list)
    """Events of the iterations."""

    def __post_init__(self) -> None:
        check_threads(self.threads)
        computes = self.computes
        check_choice("transport", self.transport, ("auto", "nccl", "peer"))
        if self.transport != "auto" and self.client is None:
            raise OptionError(
                "transport= applies to the workers of a cluster; pass client= too, or pass it to distribute()"
            )
        is_limited = self.device_memory is not None or self.host_memory is not None
        if is_limited and (self.is_distributed or (self.client is None and computes == "cpu")):
            raise OptionError(
                "device_memory= and host_memory= limit what a run on CUDA takes; leave them out with backend='cpu', "
                "and pass them to distribute() where the matrix is on a cluster already"
            )

    @cached_property
    def is_distributed(self) -> bool:
        """True if the matrix is on a cluster already.

        Raises
        ------
        OptionError : A is not a matrix; it is on a cluster, and `client` is given too
        """
        if isinstance(self.A, Matrix):
            return False
        if "mgspmv.cluster.matrix" in sys.modules:  # otherwise nothing was distributed; avoids importing Dask
            from mgspmv.cluster.matrix import DistributedMatrix

            if isinstance(self.A, DistributedMatrix):
                if self.client is not None:
                    raise OptionError("the matrix is on a cluster already; leave out client=")
                return True
        what = repr(self.A) if isinstance(self.A, str | os.PathLike) else f"a {type(self.A).__name__}"
        raise OptionError(f"A must be a matrix opened by open_matrix, not {what}; pass open_matrix(store)")

    @property
    def is_on_cluster(self) -> bool:
        """True if workers compute."""
        return self.is_distributed or self.client is not None

    @cached_property
    def computes(self) -> Backend:
        """Backend of this process; `cpu` where workers compute."""
        if not self.is_on_cluster:
            return choose_backend(self.backend)
        check_choice("backend", self.backend, ("auto", *BACKENDS))
        if self.is_distributed and self.backend not in ("auto", self.A.backend):
            there = self.A.backend
            where = f"backend={there!r}" if there else "some workers on hosts and others on devices"
            raise OptionError(
                f"the matrix was distributed for {where}, not for backend={self.backend!r}; leave out backend=, or "
                "pass it to distribute()"
            )
        return "cpu"

    @property
    def limits(self) -> dict[str, Any]:
        """Most bytes to take, by memory."""
        return {"device_memory": parse_size(self.device_memory), "host_memory": parse_size(self.host_memory)}

    def choose_executor(self, executor: Executor) -> Executor:
        """Return the executor of a run; `auto` is the default of its placement.

        Raises
        ------
        OptionError : the placement has no such executor
        """
        check_choice("executor", executor, ("auto", "embedded", "tasks", "supersteps"))
        if executor == "auto":
            return "supersteps" if self.is_on_cluster else "embedded"
        if self.is_on_cluster and executor == "embedded":
            raise OptionError(
                "executor='embedded' computes in this process; leave out client=, and call it with a matrix of "
                "open_matrix()"
            )
        if not self.is_on_cluster and executor != "embedded":
            raise OptionError(f"executor={executor!r} needs a cluster; pass client=, or pass a matrix of distribute()")
        return executor

    @contextmanager
    def distribute(self, A: Matrix | DistributedMatrix | None = None, **reads: Any) -> Iterator[DistributedMatrix]:
        """Distribute the matrix, or another one, for the context; a distributed one is yielded unchanged.

        Parameters
        ----------
        reads : as in `distribute_matrix`
        """
        from mgspmv.cluster.matrix import distribute_matrix

        matrix: Any = self.A if A is None else A
        if not isinstance(matrix, Matrix):
            yield matrix
            return
        asked: dict[str, Any] = {"backend": self.backend, "transport": self.transport, "threads": self.threads}
        asked |= self.limits | {"timeout": self.timeout, "on_progress": self.on_progress}
        with distribute_matrix(matrix.stored, self.client, **asked, **reads) as distributed:
            yield distributed

    def emit(self, event: Event) -> None:
        """Record the event of an iteration, log it and pass it to `on_event`."""
        add_event(self.events, event)
        log_iteration(event)
        if self.on_event is not None:
            self.on_event(event)

    def count_loading(self, seconds: dict[str, float], loaded: float) -> None:
        """Add the time from the call to `loaded` to the phase `load`, or `start` where the matrix is on a cluster."""
        phase = "start" if self.is_distributed else "load"
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
