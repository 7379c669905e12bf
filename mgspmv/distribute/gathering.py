"""An all-gather of small vectors between the workers of a cluster, by the transports that runs use, checked and timed.

Each worker fills its slice with what all others know, sends it to them and looks whether what came, and the sums, are
right. Nothing is read from a store.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from distributed import get_worker

from mgspmv.distribute.agent import call_session, get_agent
from mgspmv.distribute.cluster import Cluster
from mgspmv.distribute.session import Linked, Spec
from mgspmv.errors import WorkerTimeoutError
from mgspmv.exchange.halo import Halo
from mgspmv.exchange.links import Member
from mgspmv.exchange.nccl import NcclGroup, greet, join_group
from mgspmv.exchange.peer import PeerTransport
from mgspmv.exchange.turns import Turns
from mgspmv.model import StepSums

ROUNDS = 5
"""Exchanges that are timed, of which the quickest counts."""
SMALL, LARGE = 1 << 7, 1 << 17
"""Elements of float64 of each worker: for the time that an exchange takes at least, and for its throughput."""


@dataclass(frozen=True)
class GatherSpec(Spec):
    """What all workers of an all-gather are told."""

    transport: Literal["peer", "nccl"]
    """How slices go from worker to worker."""


@dataclass(frozen=True)
class Gathered:
    """What a worker says of an all-gather."""

    problem: str | None
    """What was not as it should have been, in words."""
    latency_s: float
    """Seconds of the quickest exchange of small slices."""
    bytes_per_s: float
    """Received from all others together, in the quickest exchange of large slices."""
    is_direct: bool
    """Whether its device and the others write into each other's memory, which runs then do in place of NCCL."""


class Gathering(Linked):
    """One worker's share of an all-gather."""

    def __init__(self, worker: Any, rank: int, spec: GatherSpec) -> None:
        hello = greet(None)
        super().__init__(worker, rank, spec, lambda other: hello)
        self._rank, self._spec = rank, spec

    def gather(self) -> Gathered:
        """Exchange slices with all others.

        Raises
        ------
        WorkerLostError, WorkerTimeoutError : by name, who did not answer
        ClusterError : NCCL cannot connect the devices
        """
        with self._working("all-gather"):
            hellos = self._links.connect()
            exchange = self._gather_on_devices if self._spec.transport == "nccl" else self._gather_on_hosts
            return exchange(hellos)

    def _gather_on_hosts(self, hellos: dict[int, dict[str, Any]]) -> Gathered:
        n, rank = len(self._spec.members), self._rank
        problems, seconds = [], []
        turns = Turns(self._links, rank, n)
        for size in (SMALL, LARGE):
            bounds = tuple(range(0, (n + 1) * size, size))
            halo, dtype = Halo(rank, bounds, (None,) * n), np.dtype(np.float64)
            transport = PeerTransport(self._links, halo, [None] * n, dtype, turns=turns)
            times = []
            for number in range(ROUNDS):
                slot = transport.slot(bounds[rank], bounds[rank + 1])
                slot[:] = np.arange(bounds[rank], bounds[rank + 1]) + number
                began = time.perf_counter()
                [sums] = transport.exchange_columns([StepSums(change_l1=rank + 1, dangling=rank)])
                times.append(time.perf_counter() - began)
                wanted = StepSums(change_l1=n * (n + 1) // 2, dangling=n * (n - 1) // 2)
                problems += _compare(transport.z, number, bounds, self._spec.members)
                if sums != wanted:
                    problems.append(f"the sums of all workers are {sums}, and should be {wanted}")
            seconds.append(min(times))
        return self._report(problems, seconds, is_direct=False)

    def _gather_on_devices(self, hellos: dict[int, dict[str, Any]]) -> Gathered:
        import cupy

        n, rank = len(self._spec.members), self._rank
        if n == 1:
            return Gathered(None, 0.0, 0.0, False)
        check = self._links.check
        group: NcclGroup = join_group(self._links, hellos, rank, None, check, may_share=True)
        problems, seconds = [], []
        try:
            for size in (SMALL, LARGE):
                bounds = tuple(range(0, (n + 1) * size, size))
                times = []
                for number in range(ROUNDS):
                    own = cupy.arange(bounds[rank], bounds[rank + 1], dtype=np.float64) + number
                    cupy.cuda.Device().synchronize()
                    began = time.perf_counter()
                    gathered = group.gather(own, [size] * n, check)
                    times.append(time.perf_counter() - began)
                    problems += _compare(gathered.get(), number, bounds, self._spec.members)
                seconds.append(min(times))
            is_direct = group.share(1, check) is not None
            self._await_others(group, check)
        finally:
            group.close()
        return self._report(problems, seconds, is_direct=is_direct)

    def _await_others(self, group: NcclGroup, check: Callable[[], None]) -> None:
        """Until nobody uses the memory of this device any more."""
        import cupy

        group.gather(cupy.zeros(1, np.uint8), [1] * group.n_devices, check)

    def _report(self, problems: list[str], seconds: list[float], *, is_direct: bool) -> Gathered:
        latency_s, elapsed_s = seconds
        n_bytes = 8 * LARGE * (len(self._spec.members) - 1)
        return Gathered(problems[0] if problems else None, latency_s, n_bytes / max(elapsed_s, 1e-9), is_direct)


def _compare(z: np.ndarray, number: int, bounds: Sequence[int], members: Sequence[Member]) -> list[str]:
    """Whose slices are not what they sent in a round, in words."""
    is_wrong = z != np.arange(bounds[-1]) + number
    starts = np.flatnonzero(np.add.reduceat(is_wrong, bounds[:-1]))
    return [f"the slice of worker {members[rank]} did not arrive as it was sent" for rank in starts.tolist()]


def gather_on_cluster(
    cluster: Cluster, members: Sequence[Member], transport: Literal["peer", "nccl"], limit_s: float
) -> list[Gathered]:
    """Let workers exchange slices, all with all; what each of them says, by rank. The caller holds the lease.

    Raises
    ------
    WorkerTimeoutError : within `limit_s` some did not begin, or did not end, who are named
    ClusterError : what else keeps them from it
    """
    run = f"mgspmv-gather-{uuid.uuid4().hex}"
    spec = GatherSpec(run, tuple(members), min(cluster.patience, limit_s / 2), transport)
    keys = [f"{run}-{rank}" for rank in range(len(members))]
    beginning = [
        cluster.submit(member, key, begin_gathering, key, spec, rank)
        for rank, (member, key) in enumerate(zip(members, keys, strict=True))
    ]
    futures: list[Any] = []
    try:
        settle_within(cluster, beginning, members, "all-gather", limit_s)
        futures = [
            cluster.submit(member, f"{key}-run", call_session, key, "gather")
            for member, key in zip(members, keys, strict=True)
        ]
        found: list[Gathered] = settle_within(cluster, futures, members, "all-gather", limit_s)
        return found
    finally:
        cluster.release([*futures, *beginning])
        cluster.free(keys, members)


def settle_within(
    cluster: Cluster, futures: Sequence[Any], members: Sequence[Member], phase: str, limit_s: float
) -> list[Any]:
    """As `Cluster.settle`, for so many seconds.

    Raises
    ------
    WorkerTimeoutError : some workers have not done their tasks by then; it names them
    """
    deadline = time.monotonic() + limit_s

    def check() -> None:
        late = [rank for rank, future in enumerate(futures) if future.status == "pending"]
        if late and time.monotonic() > deadline:
            names, ranks = ", ".join(str(members[rank]) for rank in late), ", ".join(map(str, late))
            raise WorkerTimeoutError(
                f"{names} did not take part within {limit_s:g} s (during {phase}, rank {ranks}); the threads of a "
                "worker are taken by other tasks, or it cannot reach the others",
                worker=str(members[late[0]].name),
                rank=late[0],
                phase=phase,
            )

    return cluster.settle(futures, members, phase, on_tick=check)


# --- tasks -----------------------------------------------------------------------------------------------------------


def begin_gathering(key: str, spec: GatherSpec, rank: int) -> None:
    """Be ready for the links of the others."""
    get_agent().hold_session(key, Gathering(get_worker(), rank, spec))
