"""Exchange of small vectors between all workers of a cluster, by the transports that runs use."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from distributed import get_worker

from mgspmv.cluster.agent import get_agent
from mgspmv.cluster.worker_run import ConnectedRun
from mgspmv.exchange.all_to_all import AllToAll
from mgspmv.exchange.nccl import greet, join_group
from mgspmv.exchange.peer_comm import RunSpec

SLICE = 1 << 17
"""Number of float64 elements that each worker sends."""


class LinkTrial(ConnectedRun):
    """Trial exchange on one worker."""

    def __init__(self, worker: Any, rank: int, spec: RunSpec) -> None:
        hello = greet(None)
        super().__init__(worker, rank, spec, lambda other: hello)
        self._members = spec.members

    def exchange(self, transport: Literal["peer", "nccl"]) -> str | None:
        """Exchange slices with all others; return a description of a wrong slice, or None.

        Raises
        ------
        WorkerLostError, WorkerTimeoutError : a worker, which it names, did not answer
        ClusterError : NCCL cannot connect the devices
        """
        n = len(self._members)
        wanted = np.arange(n * SLICE, dtype=np.float64).reshape(n, SLICE)
        with self._working("doctor"):
            hellos = self.links.connect()
            if transport == "peer" or n == 1:
                told = AllToAll(self.links, self.rank, n).gather({"own": wanted[self.rank]})
                gathered = np.concatenate([slices["own"] for slices in told])
            else:
                import cupy

                group = join_group(self.links, hellos, self.rank, None, may_share=True)
                try:
                    gathered = cupy.asnumpy(group.gather(cupy.asarray(wanted[self.rank]), [SLICE] * n))
                    group.gather(cupy.zeros(1, np.uint8), [1] * n)  # barrier: none closes while others receive
                finally:
                    group.close()
        wrong = np.flatnonzero((gathered.reshape(n, SLICE) != wanted).any(axis=1)).tolist()
        return f"the slice of worker {self._members[wrong[0]]} was changed in transfer" if wrong else None


def begin_trial(key: str, spec: RunSpec, rank: int) -> None:
    """Prepare a worker for connections from the others."""
    get_agent().held[key] = LinkTrial(get_worker(), rank, spec)
