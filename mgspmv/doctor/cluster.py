"""Checks of a cluster: its workers' versions, their GPUs, the links between them, and the stores that they read."""

from __future__ import annotations

import os
import time
import uuid
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import numpy as np
from distributed import get_worker

from mgspmv.cluster.agent import call_held, get_agent
from mgspmv.cluster.dask_cluster import CHECKED, Cluster, WorkerInfo, list_differences
from mgspmv.cluster.load import choose_placement
from mgspmv.cluster.worker_run import ConnectedRun
from mgspmv.doctor.machine import (
    Finding,
    Findings,
    Skipped,
    check_store,
    find_kernel_problem,
    ok,
    shorten,
    warn,
    wrong,
)
from mgspmv.errors import ClusterError, WorkerTimeoutError
from mgspmv.exchange.nccl import greet, join_group
from mgspmv.exchange.peer import AllToAll
from mgspmv.exchange.peer_comm import Member, RunSpec
from mgspmv.files import is_url

LOOK_S = 0.05
"""Seconds between two checks whether tasks have ended."""
SLICE = 1 << 17
"""Number of float64 elements that each worker sends in a check of the links."""
RESTART = "Read the logs of the named workers, and restart them."


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


def check_worker_links(reached: _Reached) -> Iterator[Finding]:
    """Check that workers exchange small vectors with all others, by the transports that runs use."""
    if not reached.workers:
        raise Skipped("no worker answers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about shared GPUs, which `check_worker_gpus` reports
        taken = choose_placement(reached.workers, "auto", "auto").transport
    yield _try_links(reached, "peer")
    if taken == "nccl":
        yield _try_links(reached, "nccl")


def _try_links(reached: _Reached, transport: Literal["peer", "nccl"]) -> Finding:
    remedy = (
        "Check that network and firewall let each worker connect to all others, on all ports; restart the named "
        "workers. Between GPUs, disable ACS or the IOMMU, or set NCCL_P2P_DISABLE=1."
    )
    try:
        _exchange(reached, transport)
    except Skipped:
        raise
    except Exception as error:  # of this package, of Dask for a lost worker, or of CuPy
        return wrong(f"by {transport}: {shorten(error)}", remedy, transport=transport, error=type(error).__name__)
    n = len(reached.workers)
    return ok(f"by {transport}: {n} workers", transport=transport, workers=n)


def _exchange(reached: _Reached, transport: Literal["peer", "nccl"]) -> None:
    """Let all workers exchange small vectors; raise the error of one of them."""
    members, run = reached.members, f"mgspmv-links-{uuid.uuid4().hex}"
    spec = RunSpec(run, tuple(members), min(reached.cluster.patience, reached.limit_s / 2))
    keys = [f"{run}-{rank}" for rank in range(len(members))]
    beginning = [partial(begin_trial, key, spec, rank) for rank, key in enumerate(keys)]
    exchanging = [partial(call_held, key, "exchange", transport) for key in keys]
    with (
        reached.cluster.lease(_check_answer),
        _do(reached, members, keys, beginning),
        _do(reached, members, [f"{key}-run" for key in keys], exchanging),
    ):
        return


def check_worker_stores(reached: _Reached, stores: Sequence[str]) -> Iterator[Finding]:
    """Check that every worker reads the stores, all at the same time."""
    for store in stores:
        found = _run(reached, reached.members, partial(check_store, store))
        for member, finding in zip(reached.members, found, strict=True):
            yield replace(finding, where=f"worker {member}")


def _run(reached: _Reached, members: Sequence[Member], task: Callable[[], Any]) -> list[Any]:
    """Run a function on each of these workers."""
    keys = [f"mgspmv-doctor-{uuid.uuid4().hex}" for _ in members]
    with reached.cluster.lease(_check_answer), _do(reached, members, keys, [task] * len(members)) as results:
        return results


@contextmanager
def _do(
    reached: _Reached, members: Sequence[Member], keys: Sequence[str], tasks: Sequence[Callable[[], Any]]
) -> Iterator[list[Any]]:
    """Run a task on each of these workers and yield the results; the futures are released at the end.

    Raises
    ------
    WorkerTimeoutError : some workers, which it names, did not finish in time
    """
    futures = [reached.cluster.submit(*own) for own in zip(members, keys, tasks, strict=True)]
    try:
        deadline, states = time.monotonic() + reached.limit_s, ["pending"]
        while "pending" in states and "error" not in states and time.monotonic() < deadline:
            time.sleep(LOOK_S)
            states = [future.status for future in futures]
        late = [str(member) for member, state in zip(members, states, strict=True) if state == "pending"]
        if late and "error" not in states:  # else they may wait for one that failed
            raise WorkerTimeoutError(
                f"{', '.join(late)} did not respond within {reached.limit_s:g} s; other tasks use all threads of a "
                "worker, or it cannot connect to the others",
                phase="doctor",
            )
        yield reached.cluster.settle(futures, members, "doctor")
    finally:
        reached.cluster.release(futures)


def _check_answer() -> None:
    """Skip the check, rather than wait for the end of another run."""
    raise Skipped("another run is using the workers; check again when it has ended")


class LinkTrial(ConnectedRun):
    """Trial exchange on one worker."""

    def __init__(self, worker: Any, rank: int, spec: RunSpec) -> None:
        super().__init__(worker, rank, spec)
        self._members = spec.members

    def exchange(self, transport: Literal["peer", "nccl"]) -> None:
        """Exchange slices with all others.

        Raises
        ------
        WorkerLostError, WorkerTimeoutError : a worker, which it names, did not answer
        ClusterError : NCCL cannot connect the devices, or a slice is wrong
        """
        n = len(self._members)
        wanted = np.arange(n * SLICE, dtype=np.float64).reshape(n, SLICE)
        with self._working("doctor"):
            turns = AllToAll(self.links, self.rank, n)
            hellos = turns.greet(dict.fromkeys(turns.others, greet(None)))
            if transport == "peer" or n == 1:
                gathered = np.concatenate(turns.gather(wanted[self.rank]))
            else:
                import cupy

                group = join_group(turns, hellos, None, may_share=True)
                try:
                    gathered = cupy.asnumpy(group.gather(cupy.asarray(wanted[self.rank]), [SLICE] * n))
                    group.gather(cupy.zeros(1, np.uint8), [1] * n)  # barrier: none closes while others receive
                finally:
                    group.close()
        for rank in np.flatnonzero((gathered.reshape(n, SLICE) != wanted).any(axis=1)):
            raise ClusterError(f"the slice of worker {self._members[rank]} was changed in transfer", phase="doctor")


def begin_trial(key: str, spec: RunSpec, rank: int) -> None:
    """Prepare a worker for connections from the others."""
    get_agent().held[key] = LinkTrial(get_worker(), rank, spec)
