"""Dask clusters on this machine, and what is left on them."""

from __future__ import annotations

import gc
import warnings
from collections import Counter
from typing import Any

import dask
from distributed import Client, LocalCluster

from mgspmv.cluster.forking import ENVIRON, METHOD, begin_server, choose_method
from tests.support.waiting import HANG_S, wait_for

QUIET = {
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "1s",
    "distributed.admin.system-monitor.interval": "5s",
}
"""Workers that watch themselves 100 times a second take 4 % of a processor each while nothing is done."""


PATIENT = {"distributed.scheduler.worker-ttl": None}
"""The scheduler is in this process, which a compiler may hold for minutes; workers it did not hear are not gone."""


def start_cluster(n_workers: int, *, processes: bool = True, **options: Any) -> LocalCluster:
    """A cluster of workers of one thread each, in processes, which are forked as by `start_local`, or in threads."""
    given = {"threads_per_worker": 1, "dashboard_address": None, "memory_limit": 0} | options
    method = choose_method(dask.config.get(METHOD), dask.config.get(ENVIRON))
    if processes and method == "forkserver":
        begin_server(has_devices=False)
    with warnings.catch_warnings(), dask.config.set(PATIENT | QUIET | {METHOD: method}):
        warnings.filterwarnings("ignore", "Port 8787 is already in use")
        return LocalCluster(n_workers=n_workers, processes=processes, **given)


def find_held(client: Client) -> dict[Any, list[str]]:
    """Classes of the objects that each agent holds, by its worker's address; only where there are any."""
    held: dict[Any, list[str]] = client.run(_list_held)
    return {address: names for address, names in held.items() if names}


def find_left(client: Client) -> set[str]:
    """What there is on a cluster of clients' work: keys of tasks and data, who has a lease, and what agents hold."""
    left: set[str] = set(client.run_on_scheduler(_list_keys))
    return left | {f"{worker} holds {names}" for worker, names in find_held(client).items()}


def check_left(client: Client, before: set[str], timeout_s: float = HANG_S) -> None:
    """Fail unless all is gone by and by that was not there before."""
    assert wait_for(lambda: find_left(client) <= before, timeout_s), f"left on the cluster: {find_left(client)}"


def _list_held(dask_worker: Any) -> list[str]:
    agent = dask_worker.plugins.get("mgspmv")
    return [] if agent is None else sorted(type(held).__name__ for held in agent.held.values())


def _list_keys(dask_scheduler: Any) -> list[str]:
    leases = dask_scheduler.extensions["semaphores"].leases.values()
    return [*map(str, dask_scheduler.tasks), *(f"lease {name}" for lease in leases for name in lease)]


def find_alive(client: Client, *, collect: bool = False) -> dict[Any, dict[str, int]]:
    """Row blocks, runs and connections that each worker still has in memory, whoever holds them.

    With `collect` those of earlier tests are gone that only wait for the garbage collector, which may run at any time.
    """
    if collect:
        client.run(gc.collect)
    alive: dict[Any, dict[str, int]] = client.run(_count_alive)
    return {address: counts for address, counts in alive.items() if counts}


def _count_alive() -> dict[str, int]:
    names = [type(thing).__name__ for thing in gc.get_objects()]
    return {name: n for name, n in Counter(names).items() if name.endswith(("RowBlock", "WorkerRun", "PeerComm"))}


def wait_idle(client: Client) -> bool:
    """Wait until no thread of a worker has a task, not even a cancelled one; whether it was in time."""
    return wait_for(lambda: not any(client.run(_count_running).values()))


def _count_running(dask_worker: Any) -> int:
    return len(dask_worker.active_threads)
