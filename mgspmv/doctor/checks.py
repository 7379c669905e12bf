"""All checks, one after the other: of this machine, of what is named, and of a cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from mgspmv.doctor import device, host, storage
from mgspmv.doctor.apart import run_apart
from mgspmv.doctor.findings import Check, Finding, run_check
from mgspmv.errors import MgspmvError
from mgspmv.files import is_url

TIMEOUT_S = 30.0
"""Seconds for each check, unless the user says otherwise."""
LONGER = 6
"""Checks of a cluster have time-outs of their own for each part, and so many times as long in all."""
MACHINE_LONGER = 24
"""The check of other machines makes all of theirs."""

Report = Callable[[str], None]
"""Called with the name of what is checked next."""


def examine(
    reach: Callable[[], AbstractContextManager[Any]] | None = None,
    stores: Sequence[str] = (),
    timeout: float = TIMEOUT_S,
    on_check: Report | None = None,
) -> list[Finding]:
    """What is wrong with this machine and, where one is named, with a cluster.

    Parameters
    ----------
    reach : begins or reaches a cluster, and gives its client, or its address, within a `with`; None for no cluster
    stores : paths and URLs that are read here and, on a cluster, by all workers
    timeout : seconds for each check
    on_check : told what comes next

    Returns
    -------
    A finding or more for each check. Nothing is raised for what is wrong, and no check hangs for long beyond its time.
    """
    report = on_check or _ignore
    found = list(_examine_machine(timeout, report))
    found += _run_all(storage.make_store_checks(list(stores)), timeout, report)
    if reach is not None:
        found += _examine_cluster(reach, stores, timeout, report)
    return found


def examine_machine(limit_s: float) -> list[Finding]:
    """The checks of the machine that this is called on."""
    return list(_examine_machine(limit_s, _ignore))


def _examine_machine(limit_s: float, report: Report) -> Iterator[Finding]:
    yield from _run_all(host.CHECKS, limit_s, report)
    report("GPUs")
    for _, found in run_apart(device.CHECKS, limit_s):
        yield from found
    yield from _run_all(storage.CHECKS, limit_s, report)


def _run_all(checks: Sequence[Check], limit_s: float, report: Report) -> Iterator[Finding]:
    for check in checks:
        report(check.name)
        yield from run_check(check, limit_s)


def _examine_cluster(
    reach: Callable[[], AbstractContextManager[Any]], stores: Sequence[str], limit_s: float, report: Report
) -> Iterator[Finding]:
    from mgspmv.distribute.cluster import Cluster
    from mgspmv.doctor.cluster import Reached, blame_connection, check_worker_machines, make_cluster_checks
    from mgspmv.doctor.findings import name_check, ok

    connection = Check("scheduler", "cluster", lambda: ())
    with ExitStack() as stack:
        report("scheduler")
        try:
            cluster = Cluster(stack.enter_context(reach()), limit_s)
        except MgspmvError as error:
            yield connection.label(blame_connection(error))
            return
        stack.callback(cluster.close)
        yield connection.label(ok(f"the scheduler at {cluster} answers", address=str(cluster)))
        places = [store if is_url(store) else os.path.abspath(store) for store in stores]
        reached = Reached(cluster, limit_s, places, examine_machine)
        for check in make_cluster_checks(reached):
            report(check.name)
            longer = MACHINE_LONGER if check.name == name_check(check_worker_machines) else LONGER
            yield from run_check(check, longer * limit_s)


def _ignore(name: str) -> None:
    """Report to nobody."""
