"""Checks of a cluster: its workers' versions, their GPUs, the links between them, and the stores that they read."""

from __future__ import annotations

import asyncio
import os
import uuid
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from mgspmv.cluster.dask_cluster import CHECKED, Cluster, WorkerInfo, list_differences
from mgspmv.doctor import RESTART, Finding, Findings, Skipped, check_store, find_kernel_problem, ok, warn, wrong
from mgspmv.exchange.peer_comm import Member
from mgspmv.files import is_url


@dataclass
class _Reached:
    """Cluster with the workers that answered."""

    cluster: Cluster
    limit_s: float
    workers: list[WorkerInfo] = field(default_factory=list)

    @property
    def members(self) -> list[Member]:
        return [worker.member for worker in self.workers]


def make_checks(cluster: Cluster, stores: Sequence[str], limit_s: float) -> dict[str, Callable[[], Findings]]:
    """Make the checks of a cluster by name, in the order of their dependencies."""
    reached = _Reached(cluster, limit_s)
    checks: dict[str, Callable[[_Reached], Findings]] = {
        "workers": check_workers,
        "worker-gpus": check_worker_gpus,
        "worker-links": check_worker_links,
    }
    if stores:
        places = [store if is_url(store) else os.path.abspath(store) for store in stores]
        checks["worker-stores"] = partial(check_worker_stores, stores=places)
    return {name: partial(check, reached) for name, check in checks.items()}


def check_workers(reached: _Reached) -> Iterator[Finding]:
    """Check that workers run, answer, and have the same versions as this process."""
    described = reached.cluster.describe_workers()
    answers = reached.cluster.client.get_versions(packages=[*CHECKED])["workers"]
    differences = list_differences({m: answers[m.address]["packages"] for m in described if answers.get(m.address)})
    if differences:
        yield wrong(
            "; ".join(differences), "Install the same versions on all workers as here.", differences=differences
        )
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about workers that do not answer, which are named below
        reached.workers = reached.cluster.join(devices=True)
    silent = [str(member) for member in described if member not in reached.members]
    if silent:
        yield wrong(f"workers {', '.join(silent)} are not running, or do not answer", RESTART, silent=silent)
    limited = [str(m) for m in reached.members if described.get(m, {}).get("memory_limit")]
    if limited:
        remedy = "Start workers with --memory-limit 0; otherwise Dask pauses or restarts workers that hold many rows."
        yield warn(f"Dask limits the memory of workers {', '.join(limited)}", remedy, limited=limited)
    if not (silent or limited):
        yield ok(f"{len(reached.workers)} workers answer, with the versions of this process", workers=len(described))


def check_worker_gpus(reached: _Reached) -> Iterator[Finding]:
    """Check that each worker has a separate GPU, and that a kernel computes correctly there."""
    with_gpu = [worker for worker in reached.workers if worker.device.problem is None]
    if not with_gpu:
        raise Skipped("no worker has a GPU")
    remedy = "Start exactly one worker per GPU, with `dask cuda worker`."
    without = [str(worker.member) for worker in reached.workers if worker.device.problem is not None]
    if without:
        yield warn(f"workers {', '.join(without)} have no GPU, but others do", remedy, without=without)
    counts = Counter(worker.device.id for worker in with_gpu)
    sharing = [str(worker.member) for worker in with_gpu if counts[worker.device.id] > 1]
    if sharing:
        yield warn(f"workers {', '.join(sharing)} share GPUs", remedy, sharing=sharing)
    members = [worker.member for worker in with_gpu]
    for member, problem in zip(members, _run(reached, members, find_kernel_problem), strict=True):
        if problem is not None:
            yield replace(wrong(problem, "Run `mgspmv doctor` on the machine of the worker."), where=f"worker {member}")
        elif not (without or sharing):
            yield replace(ok("a kernel of mgspmv computes correctly on its GPU"), where=f"worker {member}")


def check_worker_links(reached: _Reached) -> Finding:
    """Check that each worker can connect to all others."""
    members = reached.members
    if not members:
        raise Skipped("no worker answers")
    answers = reached.cluster.client.run(
        find_unreachable, [member.address for member in members], reached.limit_s, workers=[m.address for m in members]
    )
    named = {member.address: str(member) for member in members}
    cut = [f"{named[own]} to {named[other]}" for own, others in answers.items() for other in others]
    if cut:
        remedy = "Check that network and firewall let each worker connect to all others, on all ports."
        return wrong(f"no connection from {', '.join(cut)}", remedy, cut=cut)
    return ok(f"{len(members)} workers connect to each other", workers=len(members))


async def find_unreachable(addresses: Sequence[str], limit_s: float, dask_worker: Any) -> list[str]:
    """Return the addresses of workers to which a worker cannot connect."""

    async def reaches(address: str) -> bool:
        with suppress(OSError, TimeoutError):  # CommClosedError is an OSError
            await asyncio.wait_for(dask_worker.rpc(address).identity(), limit_s)
            return True
        return False

    answers = await asyncio.gather(*map(reaches, addresses))
    return [address for address, is_reached in zip(addresses, answers, strict=True) if not is_reached]


def check_worker_stores(reached: _Reached, stores: Sequence[str]) -> Iterator[Finding]:
    """Check that every worker reads the stores, all at the same time."""
    for store in stores:
        found = _run(reached, reached.members, partial(check_store, store))
        for member, finding in zip(reached.members, found, strict=True):
            yield replace(finding, where=f"worker {member}")


def _run(reached: _Reached, members: Sequence[Member], task: Callable[[], Any]) -> list[Any]:
    """Run a function on each of these workers, unless another run uses them."""
    cluster = reached.cluster
    keys = [f"mgspmv-doctor-{uuid.uuid4().hex}" for _ in members]
    with cluster.lease(_skip):
        futures = [cluster.submit(member, key, task) for member, key in zip(members, keys, strict=True)]
        try:
            return cluster.settle(futures, members, "doctor")
        finally:
            cluster.release(futures)


def _skip() -> None:
    """Skip the check, rather than wait for the end of another run."""
    raise Skipped("another run is using the workers; check again when it has ended")
