"""Backends of the workers of a cluster, and the transport of slices between them."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from distributed.comm import get_address_host

from mgspmv.cluster.dask_cluster import WorkerInfo
from mgspmv.errors import ClusterError, MissingDependencyError
from mgspmv.kernels.catalogue import Backend
from mgspmv.kernels.device import NO_CUPY

TransportName = Literal["auto", "nccl", "peer"]


@dataclass(frozen=True)
class WorkerPlacement:
    """Backend and device memory of each worker, by rank, and the transport between workers."""

    backends: tuple[Backend, ...]
    """Backend of each worker."""
    transport: Literal["nccl", "peer"]
    """Transport between workers: NCCL, or Dask's comms."""
    device_memory: tuple[int | None, ...]
    """Bytes of free device memory, shared by the workers on a device; None for workers that compute on the host."""
    may_share: bool = True
    """Whether devices of one host may write into each other's memory, in place of NCCL."""

    @property
    def backend(self) -> Backend | None:
        """Backend of all workers; None if they differ."""
        return self.backends[0] if len(set(self.backends)) == 1 else None


def choose_placement(workers: Sequence[WorkerInfo], backend: str, transport: TransportName) -> WorkerPlacement:
    """Choose backends and transport by the devices of the workers and the user's options.

    Parameters
    ----------
    backend : `auto` for devices on the workers that have one, `cpu`, or `cuda` for devices on all
    transport : `auto` for NCCL where every worker has a separate device, or memory that devices of one host share;
        `nccl` for NCCL alone; `peer`

    Raises
    ------
    MissingDependencyError : CuPy is not installed on a worker
    ClusterError : a worker has no device, or shares it with another worker, or NCCL is missing
    """
    problems = {w.member: w.device.problem for w in workers if w.device.problem is not None}
    if backend == "cuda" and problems:
        member, problem = next(iter(problems.items()))
        if problem == NO_CUPY:
            raise MissingDependencyError(
                f"backend='cuda' needs CuPy, which is not installed on worker {member}; install mgspmv[cuda12] or "
                "mgspmv[cuda13] there, or pass backend='auto'"
            )
        raise ClusterError(
            f"backend='cuda' needs a GPU on each of the {len(workers)} workers, and worker {member} has none: "
            f"{problem}; start workers with `dask cuda worker`, one for each GPU, or pass backend='auto'",
            worker=str(member.name),
            phase="join",
        )
    on_hosts = [w for w in workers if backend == "cpu" or w.member in problems]
    n_sharing = Counter(w.device.id for w in workers if w not in on_hosts)
    memory = tuple(None if w in on_hosts else w.device.memory // n_sharing[w.device.id] for w in workers)
    chosen = _choose_transport(workers, on_hosts, n_sharing, transport)
    backends: tuple[Backend, ...] = tuple("cpu" if w in on_hosts else "cuda" for w in workers)
    return WorkerPlacement(backends, chosen, memory, may_share=transport != "nccl")


def _choose_transport(
    workers: Sequence[WorkerInfo], on_hosts: Sequence[WorkerInfo], n_sharing: Counter[str], transport: TransportName
) -> Literal["nccl", "peer"]:
    shared = [w for w in workers if n_sharing[w.device.id] > 1]
    without = [w for w in workers if w.device.nccl_problem is not None]
    if transport == "peer" or (transport == "auto" and on_hosts):
        return "peer"
    if on_hosts:
        member, problem = on_hosts[0].member, on_hosts[0].device.problem or "backend='cpu'"
        what = f"worker {member} computes on its host ({problem})"
        raise ClusterError(
            f"transport='nccl' needs a GPU on each worker, and {what}; pass transport='auto'", phase="join"
        )
    if len(workers) == 1:
        return "nccl"
    if shared:
        what = f"{len(shared)} workers share GPUs, for example worker {shared[0].member} its {shared[0].device.name}"
        how = "start one for each GPU, as `dask cuda worker` does"
        if transport == "nccl":
            raise ClusterError(
                f"transport='nccl' needs a separate GPU for each worker, and {what}; {how}", phase="join"
            )
        warnings.warn(f"{what}: NCCL cannot connect them, and slices go through their hosts; {how}", stacklevel=5)
        return "peer"
    if without:
        raise ClusterError(
            f"worker {without[0].member} cannot use NCCL: {without[0].device.nccl_problem}; or pass transport='peer', "
            "which sends slices through the hosts and is many times slower",
            worker=str(without[0].member.name),
            phase="join",
        )
    machines = len({get_address_host(w.member.address) for w in workers if w.member.address.startswith("tls://")})
    if transport == "auto" and machines > 1:
        warnings.warn(
            f"the workers are on {machines} machines and connected by TLS, and NCCL does not encrypt: slices go "
            "through their hosts; pass transport='nccl' if the network between the GPUs is trusted",
            stacklevel=5,
        )
        return "peer"
    return "nccl"
