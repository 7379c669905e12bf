"""Small vectors from each worker of a cluster to each other one, by the transports that runs use, checked and timed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from distributed import get_worker

from mgspmv.distribute.agent import get_agent
from mgspmv.distribute.session import Linked, Spec
from mgspmv.exchange.nccl import greet, join_group
from mgspmv.exchange.turns import Turns

ROUNDS = 5
"""Exchanges that are timed, of which the quickest counts."""
SMALL, LARGE = 1 << 7, 1 << 17
"""Elements of float64 of each worker: for the time that an exchange takes at least, and for its throughput."""


@dataclass(frozen=True)
class Trial:
    """What a worker says of an exchange with all others."""

    problem: str | None
    """What was not as it should have been, in words."""
    latency_s: float
    """Seconds of the quickest exchange of small slices."""
    bytes_per_s: float
    """Received from all others together, in the quickest exchange of large slices."""
    is_direct: bool = False
    """Whether its device and the others write into each other's memory, which runs then do in place of NCCL."""


class LinkTrial(Linked):
    """One worker's share of an exchange."""

    def __init__(self, worker: Any, rank: int, spec: Spec) -> None:
        hello = greet(None)
        super().__init__(worker, rank, spec, lambda other: hello)
        self._members = spec.members

    def exchange(self, transport: Literal["peer", "nccl"]) -> Trial:
        """Exchange slices with all others.

        Raises
        ------
        WorkerLostError, WorkerTimeoutError : by name, who did not answer
        ClusterError : NCCL cannot connect the devices
        """
        n = len(self._members)
        with self._working("doctor"):
            hellos = self._links.connect()
            if transport == "peer" or n == 1:
                turns = Turns(self._links, self.rank, n)
                return Trial(*self._try(lambda own: [told["own"] for told in turns.gather({"own": own})]))
            import cupy

            check = self._links.check
            group = join_group(self._links, hellos, self.rank, None, check, may_share=True)
            try:
                tried = self._try(lambda own: group.gather(own, [len(own)] * n, check), cupy.asarray, cupy.asnumpy)
                is_direct = group.share(1, check) is not None
                group.gather(cupy.zeros(1, np.uint8), [1] * n, check)  # until nobody uses the memory of this device
            finally:
                group.close()
            return Trial(*tried, is_direct)

    def _try(
        self,
        gather: Callable[[Any], Any],
        put: Callable[[np.ndarray], Any] = np.asarray,
        get: Callable[[Any], np.ndarray] = np.concatenate,
    ) -> tuple[str | None, float, float]:
        """The first three fields of `Trial`."""
        n, problem, seconds = len(self._members), None, []
        for size in (SMALL, LARGE):
            times = []
            for number in range(ROUNDS):
                wanted = np.arange(n * size, dtype=np.float64).reshape(n, size) + number
                own = put(wanted[self.rank])
                began = time.perf_counter()
                gathered = gather(own)
                times.append(time.perf_counter() - began)
                for rank in np.flatnonzero((get(gathered).reshape(n, size) != wanted).any(axis=1)).tolist():
                    problem = problem or f"the slice of worker {self._members[rank]} did not arrive as it was sent"
            seconds.append(min(times))
        return problem, seconds[0], 8 * LARGE * (n - 1) / max(seconds[1], 1e-9)


def begin_trial(key: str, spec: Spec, rank: int) -> None:
    """The task that makes a worker ready for the links of the others."""
    get_agent().hold_session(key, LinkTrial(get_worker(), rank, spec))
