"""Where a command computes: in this process, or on a cluster that it starts or that runs already."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mgspmv.cli.mode import MODE, say
from mgspmv.cli.options import (
    REMOTE_KINDS,
    ClusterKind,
    Hosts,
    JobGiven,
    Nodes,
    RemotePython,
    Scheduler,
    Threads,
    Timeout,
    Workers,
)
from mgspmv.errors import OptionError

if TYPE_CHECKING:
    from mgspmv.monitor.progress import Progress


@dataclass(frozen=True)
class Place:
    """Where a command computes; in this process when there is neither cluster nor scheduler."""

    cluster: ClusterKind = None
    """What is started for the command: `local`, `cuda` for a worker on each GPU, `ssh` for workers on hosts, or `slurm`
    and `pbs` for workers in jobs."""
    workers: Workers = None
    """How many of those are started, on each host or node where there are several; None for as many as Dask chooses."""
    threads: Threads = None
    """Of each worker."""
    hosts: Hosts = None
    """File of those that SSH reaches."""
    remote_python: RemotePython = None
    """Of the hosts or nodes."""
    nodes: Nodes = None
    """How many jobs are queued."""
    job: JobGiven = None
    """What each asks for."""
    scheduler: Scheduler = None
    """Address of the cluster that runs already."""
    timeout: Timeout = 30.0
    """Seconds that a worker may be silent."""

    def __post_init__(self) -> None:
        if self.cluster is not None and self.scheduler is not None:
            raise OptionError("--cluster starts a cluster and --scheduler uses one that runs; give one of them")
        if self.cluster not in ("local", "cuda", *REMOTE_KINDS, None):
            raise OptionError(
                f"--cluster must be local, cuda, ssh, slurm or pbs, not {self.cluster!r}; for a cluster that runs use "
                "--scheduler"
            )
        if (self.cluster == "ssh") != (self.hosts is not None):
            raise OptionError("--cluster ssh starts workers on the hosts of --hosts FILE; give both or neither")
        if (self.cluster in ("slurm", "pbs")) != (self.nodes is not None):
            raise OptionError("--cluster slurm and pbs start workers in jobs of --nodes N; give both or neither")
        if self.job is not None and self.nodes is None:
            raise OptionError("--job is what jobs of --cluster slurm or pbs ask for; leave it out, or add --nodes N")
        if self.remote_python is not None and self.cluster not in REMOTE_KINDS:
            raise OptionError("--remote-python is of other machines; add --cluster ssh, slurm or pbs, or leave it out")
        if self.workers is not None and self.cluster is None:
            raise OptionError("--workers says how many --cluster starts; give both or neither")
        if not self.timeout > 0:
            raise OptionError(f"--timeout must be a positive number of seconds, not {self.timeout:g}")

    def choose_backend(self, backend: str) -> str:
        """What `auto` means on workers that are started: hosts for `local`, and a GPU for each of `cuda`."""
        started = {"local": "cpu", "cuda": "cuda"}
        return started.get(self.cluster or "", backend) if backend == "auto" else backend

    @property
    def is_embedded(self) -> bool:
        """Whether this process computes."""
        return self.cluster is None and self.scheduler is None


def check_drive(drive: str, place: Place) -> None:
    """Refuse a drive that the place does not have before anything is started."""
    from mgspmv.model import check_choice

    check_choice("--drive", drive, ("auto", "embedded", "scheduler", "superstep"))
    if drive == "embedded" and not place.is_embedded:
        raise OptionError("--drive embedded computes in this process; leave out --cluster and --scheduler")
    if drive in ("scheduler", "superstep") and place.is_embedded:
        raise OptionError(f"--drive {drive} needs a cluster; add --cluster local or --scheduler ADDRESS")


@contextmanager
def quieten_dask() -> Iterator[None]:
    """Keep its loggers off stderr; what ends a run is raised, and printed once."""
    with _mute_others() if MODE.get().log else _mute_all():
        yield


@contextmanager
def _mute_all() -> Iterator[None]:
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(disabled)


@contextmanager
def _mute_others() -> Iterator[None]:
    """Let none but ours write: loggers of programs that are loaded have handlers of their own."""
    import distributed  # noqa: F401 (or it would be loaded later, and give its loggers handlers then)

    loggers = [logger for logger in logging.root.manager.loggerDict.values() if isinstance(logger, logging.Logger)]
    others = [logging.root, *(logger for logger in loggers if logger.name.partition(".")[0] != "mgspmv")]
    handlers = [handler for logger in others for handler in logger.handlers]
    handlers += [] if logging.lastResort is None else [logging.lastResort]
    for handler in handlers:
        handler.addFilter(_refuse)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(_refuse)


def _refuse(record: logging.LogRecord) -> bool:
    return False


@contextmanager
def open_client(place: Place, progress: Progress) -> Iterator[Any]:
    """The client of a cluster, or None where the work is done in this process; what was started ends with the context.

    Raises
    ------
    SchedulerNotFoundError : nothing answers at that address
    """
    if place.is_embedded:
        yield None
        return
    progress.phase("connecting" if place.cluster is None else "starting workers")
    from mgspmv.distribute.cluster import Cluster

    with ExitStack() as stack:
        stack.enter_context(quieten_dask())
        if place.cluster is None:
            reached: Any = place.scheduler
        else:
            reached = stack.enter_context(_start(place))
        cluster = Cluster(reached, place.timeout)
        stack.callback(cluster.close)
        if cluster.dashboard_link:
            say(f"dashboard: {cluster.dashboard_link}")
        yield cluster.client


def _start(place: Place) -> AbstractContextManager[Any]:
    from mgspmv.distribute.connect import start_cuda, start_local
    from mgspmv.distribute.ssh import read_hosts, start_ssh

    if place.nodes is not None:
        return _start_jobs(place)
    if place.hosts is not None:
        return start_ssh(read_hosts(place.hosts), place.workers, place.threads, place.remote_python)
    start = start_cuda if place.cluster == "cuda" else start_local
    started: AbstractContextManager[Any] = start(place.workers, place.threads)
    return started


def _start_jobs(place: Place) -> AbstractContextManager[Any]:
    from mgspmv.distribute.jobs import parse_job, start_jobs

    assert place.cluster is not None
    assert place.nodes is not None
    job = parse_job(place.job or ())
    return start_jobs(place.cluster, place.nodes, job, place.workers, place.threads, place.remote_python, say)
