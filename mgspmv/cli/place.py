"""Where a command computes: in this process, or on a cluster that it starts or that runs already."""

from __future__ import annotations

import json
import logging
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import date, time
from typing import TYPE_CHECKING, Any

from mgspmv.cli.mode import MODE, say
from mgspmv.cli.options import ClusterKind, ClusterOption, Scheduler, Threads, Timeout, Workers
from mgspmv.errors import OptionError

if TYPE_CHECKING:
    from mgspmv.monitor.progress import Progress


@dataclass(frozen=True)
class Place:
    """Where a command computes; in this process when there is neither cluster nor scheduler."""

    cluster: ClusterKind = None
    """What is started for the command: a name of `MANAGERS`, or `module:Class`."""
    workers: Workers = None
    """How many of those are started; None for as many as Dask chooses."""
    threads: Threads = None
    """Of each worker."""
    cluster_option: ClusterOption = None
    """Arguments of the class, as `KEY=VALUE`."""
    scheduler: Scheduler = None
    """Address of the cluster that runs already."""
    timeout: Timeout = 30.0
    """Seconds that a worker may be silent."""

    def __post_init__(self) -> None:
        if self.cluster is not None and self.scheduler is not None:
            raise OptionError("--cluster starts a cluster and --scheduler uses one that runs; give one of them")
        if self.cluster is not None:
            from mgspmv.distribute.managers import find_manager

            find_manager(self.cluster)
        if self.options and self.cluster is None:
            raise OptionError("--cluster-option says what --cluster starts; give both or neither")
        if self.workers is not None and self.cluster is None:
            raise OptionError("--workers says how many --cluster starts; give both or neither")
        if not self.timeout > 0:
            raise OptionError(f"--timeout must be a positive number of seconds, not {self.timeout:g}")

    def choose_backend(self, backend: str) -> str:
        """What `auto` means on workers that are started: hosts for `local`, and a GPU for each of `cuda`."""
        started = {"local": "cpu", "cuda": "cuda"}
        return started.get(self.cluster or "", backend) if backend == "auto" else backend

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of the cluster's class."""
        return dict(map(parse_option, self.cluster_option or ()))

    @property
    def is_embedded(self) -> bool:
        """Whether this process computes."""
        return self.cluster is None and self.scheduler is None


def parse_option(text: str) -> tuple[str, Any]:
    """Split KEY=VALUE; the value is what it is in TOML or JSON, else text.

    Raises
    ------
    OptionError : it is no KEY=VALUE, or another option says the same
    """
    key, sign, value = (part.strip() for part in text.partition("="))
    if not (key.isidentifier() and sign):
        raise OptionError(f"--cluster-option {text}: expected KEY=VALUE, such as queue=gpu")
    if key in ("kind", "workers", "threads", "on_note"):
        raise OptionError(f"--cluster-option {key} is no argument of a class; use --cluster, --workers and --threads")
    return key, read_literal(value)


def read_literal(text: str) -> Any:
    """A value of TOML or JSON; text that is neither, or a time of day as wall times are written, as it stands."""
    with suppress(tomllib.TOMLDecodeError):
        value = tomllib.loads(f"value = {text}")["value"]
        return text if isinstance(value, date | time) else value
    with suppress(ValueError):
        return json.loads(text)
    return text


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
            from mgspmv.distribute.managers import start_cluster

            started = start_cluster(place.cluster, place.workers, place.threads, say, **place.options)
            reached = stack.enter_context(started)
        cluster = Cluster(reached, place.timeout)
        stack.callback(cluster.close)
        if cluster.dashboard_link:
            say(f"dashboard: {cluster.dashboard_link}")
        yield cluster.client
