"""Diagnosis of a machine, its GPUs, its folders, a store or a cluster: problems and remedies.

Each check is a function that returns findings. None raises, and each ends within a timeout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any

from mgspmv.doctor import machine
from mgspmv.doctor.machine import Finding, Findings, run_check, shorten, wrong
from mgspmv.errors import MgspmvError
from mgspmv.model import ignore

__all__ = ["Finding", "examine"]

TIMEOUT_S = 30.0
"""Default timeout of each check, in seconds."""


def examine(
    reach: Callable[[], AbstractContextManager[Any]] | None = None,
    stores: Sequence[str] = (),
    timeout: float = TIMEOUT_S,
    on_check: Callable[[str], object] = ignore,
    warm: bool = False,
) -> list[Finding]:
    """Check this machine, stores and, where one is named, a cluster.

    Parameters
    ----------
    reach : callable, optional
        Starts or connects to a cluster, as a context manager of its client or address; None for no cluster.
    stores : sequence of str, default ()
        Paths and URLs that are read, on a cluster by all workers too.
    timeout : float, default 30.0
        Seconds for each check.
    on_check : callable, optional
        Called with the name of each check before it starts.
    warm : bool, default False
        Compile the kernels of usual runs of ingest and PageRank on this machine, and keep them.

    Returns
    -------
    At least one finding for each check.

    Examples
    --------
    >>> from mgspmv.doctor import examine
    >>> "packages" in {finding.name for finding in examine()}
    True
    """
    found: list[Finding] = []

    def run(checks: Mapping[str, Callable[[], Findings]], limit_s: float) -> None:
        for name, check in checks.items():
            on_check(name)
            found.extend(run_check(name, check, limit_s))

    run(machine.CHECKS, timeout)
    if warm:
        run({"kernels": machine.compile_kernels}, max(timeout, machine.COMPILING_S))
    for store in stores:
        run({"store": partial(machine.check_store, store)}, timeout)
    if reach is None:
        return found
    from mgspmv.cluster.dask_cluster import Cluster
    from mgspmv.doctor.cluster import make_checks

    with ExitStack() as stack:
        try:
            cluster = Cluster(stack.enter_context(reach()), timeout)
        except MgspmvError as error:
            remedy = "Start the cluster, and give the address that is printed in the log of its scheduler."
            return [*found, Finding(**vars(wrong(shorten(error), remedy)) | {"name": "workers"})]
        stack.callback(cluster.close)
        run(make_checks(cluster, stores, timeout), 4 * timeout)  # their waits have their own timeouts
    return found
