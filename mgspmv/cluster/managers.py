"""Starting workers by Dask's cluster managers: one adapter for all of their classes.

A class is configured as its documentation describes, by options and by Dask's configuration. This module adds the
features that classes lack: one worker per GPU, certificates, no memory limit apart from the plan's, pages that are not
served to other machines unencrypted, waiting for the workers, and cleanup in all cases.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import shlex
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

import dask
from distributed import Security, SpecCluster, Status

from mgspmv.cluster.connect import list_causes, make_cluster, start_cuda, start_local
from mgspmv.cluster.dask_cluster import Cluster
from mgspmv.cluster.security import MODULE, TEMPORARY, is_local, is_tls_required, list_hosts, list_variables, use_tls
from mgspmv.errors import ClusterError, MissingDependencyError, OptionError
from mgspmv.model import ignore

WAIT_S, QUEUE_S = 120.0, 600.0
"""Default seconds for workers to join: as processes, and as jobs or pods that are queued first."""
CONNECT_S, DEATH_S = 15, 60
"""Seconds for a host to answer SSH, and until a worker that does not find its scheduler exits."""
PAGES = 8787
"""Port of the dashboard."""


@dataclass(frozen=True)
class Manager:
    """Dask cluster class that starts workers."""

    target: str
    """Import path of the class, as `module:Class`."""
    prepare: Callable[..., tuple[dict[str, Any], int]] | None = None
    """Function of the name of the cluster, workers and threads as in `start_cluster`, GPUs per job, host or pod, and
    options. Returns arguments of the class and the number of workers to expect; None to pass the options alone."""
    extra: str = ""
    """Extra of mgspmv that installs its dependencies other than Dask."""
    wait_s: float = WAIT_S
    look: str = "the logs of its workers"
    """Object of "check" in messages: the source of information on why workers do not join."""


# --- arguments of each class -----------------------------------------------------------------------------------------


def _prepare_jobs(
    kind: str, workers: int | None, threads: int | None, gpus: int | None, options: dict[str, Any]
) -> tuple[dict[str, Any], int]:
    given = dict(options)

    def take(name: str) -> Any:
        configured = dask.config.get(f"jobqueue.{kind}.{name.replace('_', '-')}")
        return given.pop(name, configured)

    class ClosedJob(load(MANAGERS[kind].target).job_cls):  # type: ignore[misc]
        """Job that sets its status to closed, which Dask asserts for jobs that are still referenced at exit."""

        async def close(self) -> None:
            await super().close()
            self.status = Status.closed

    ClosedJob.__name__ = load(MANAGERS[kind].target).job_cls.__name__  # used in dask-jobqueue's messages
    words = ["--memory-limit", "0", "--no-dashboard", "--dashboard-address", "127.0.0.1:0", *_name_threads(threads)]
    prologue, directives, pages = [], [], {"dashboard_address": f"127.0.0.1:{PAGES}"}
    if gpus:
        words += ["--device-memory-limit", "0"]
        given = {"processes": gpus, "worker_command": "dask_cuda.cli"} | given
        directives = [f"--gpus-per-node={gpus}"] if kind == "slurm" else []
    if is_tls_required():
        given = {"security": Security()} | given
        prologue = [f"export {name}={shlex.quote(value)}" for name, value in list_variables().items()]
        pages = {"dashboard_address": f":{PAGES}"}
        words += ["--preload", MODULE] if gpus else []  # dask-cuda ignores the configured preloads
    own = {
        "worker_extra_args": [*take("worker_extra_args"), *words],
        "job_script_prologue": [*take("job_script_prologue"), *prologue],
        "job_extra_directives": [*directives, *take("job_extra_directives")],
        "scheduler_options": pages | take("scheduler_options"),
        "silence_logs": logging.CRITICAL,
        "job_cls": ClosedJob,
    }
    return own | given, _count_workers(kind, workers, gpus)


def _prepare_ssh(
    kind: str, workers: int | None, threads: int | None, gpus: int | None, options: dict[str, Any]
) -> tuple[dict[str, Any], int]:
    given = dict(options)
    hosts = given.pop("hosts", None) or []
    hosts = [host.strip() for host in hosts.split(",")] if isinstance(hosts, str) else [*hosts]
    if len(hosts) < 2 or workers is not None:
        raise OptionError(
            "cluster='ssh' starts a scheduler on the first host and a worker on each of the others; pass the option "
            "hosts, such as a,a,b, and leave out workers="
        )
    at = "" if is_tls_required() else "127.0.0.1"
    worker: dict[str, Any] = {"memory_limit": 0, "dashboard_address": f"{at}:0", "death_timeout": DEATH_S}
    worker |= {"nthreads": threads} if threads else {}
    if gpus:
        given = {"worker_class": "dask_cuda.CUDAWorker"} | given
        worker |= {"device_memory_limit": 0, "preload": [*dask.config.get("distributed.worker.preload")]}
    worker |= given.pop("worker_options", {})
    scheduler = {"port": 0, "dashboard_address": f"{at}:{PAGES}"} | given.pop("scheduler_options", {})
    alive = {"connect_timeout": CONNECT_S, "keepalive_interval": CONNECT_S}
    connecting = given.pop("connect_options", {})
    several = isinstance(connecting, list)
    own: dict[str, Any] = {
        "hosts": hosts,
        "connect_options": [alive | host for host in connecting] if several else alive | connecting,
        "worker_options": worker,
        "scheduler_options": scheduler,
        "silence_logs": logging.CRITICAL,
    }
    return own | given, (len(hosts) - 1) * (gpus or worker.get("n_workers", 1))


def _prepare_kubernetes(
    kind: str, workers: int | None, threads: int | None, gpus: int | None, options: dict[str, Any]
) -> tuple[dict[str, Any], int]:
    words = ["dask", "cuda", "worker", "--device-memory-limit", "0"] if gpus else ["dask", "worker"]
    words += ["--memory-limit", "0", *_name_threads(threads)]
    own = {"n_workers": _count_workers(kind, workers, gpus) // (gpus or 1), "worker_command": words, "quiet": True}
    return own | options, _count_workers(kind, workers, gpus)


def _count_workers(kind: str, workers: int | None, gpus: int | None) -> int:
    if workers is None:
        raise OptionError(f"cluster={kind!r} needs the number of workers; pass workers=")
    if workers % (gpus or 1):
        raise OptionError(f"workers={workers} is not a multiple of gpus, {gpus}; each GPU has one worker")
    return workers


def _name_threads(threads: int | None) -> list[str]:
    return ["--nthreads", str(threads)] if threads else []


def _name_queue(name: str, command: str) -> Manager:
    look = f"{command}, and the logs of jobs in the folder of the option log_directory"
    return Manager(f"dask_jobqueue:{name}", _prepare_jobs, extra="jobqueue", wait_s=QUEUE_S, look=look)


MANAGERS = {
    "local": Manager("distributed:LocalCluster"),
    "cuda": Manager("dask_cuda:LocalCUDACluster"),
    "slurm": _name_queue("SLURMCluster", "squeue"),
    "pbs": _name_queue("PBSCluster", "qstat"),
    "ssh": Manager(
        "distributed:SSHCluster",
        _prepare_ssh,
        extra="ssh",
        look="whether all hosts have the same mgspmv and Python, and reach each other at all ports",
    ),
    "kubernetes": Manager(
        "dask_kubernetes.operator:KubeCluster",
        _prepare_kubernetes,
        extra="kubernetes",
        wait_s=QUEUE_S,
        look="kubectl get pods",
    ),
}
"""Managers by the name of the cluster."""


# --- classes ---------------------------------------------------------------------------------------------------------


def find_manager(kind: str) -> Manager:
    """Return the manager of a name, or of `module:Class`."""
    if kind not in MANAGERS and not all(kind.partition(":")):
        raise OptionError(
            f"cluster must be one of {', '.join(MANAGERS)}, or module:Class of a Dask cluster class, not {kind!r}"
        )
    return MANAGERS.get(kind) or Manager(kind)


def check_shared(kind: str, tls: str | None) -> None:
    """Raise if workers on other machines would not have the requested certificates."""
    if tls == TEMPORARY and find_manager(kind).prepare is not None:
        raise OptionError(
            "temporary certificates exist on this machine only; create a folder of certificates at the same path on "
            "each machine, and use that"
        )


def load(target: str) -> Any:
    """Import the class of `module:Class`.

    dask-jobqueue sets a SIGINT handler when it is imported in the main thread, which is undone here.

    Raises
    ------
    MissingDependencyError : it cannot be imported
    """
    module, _, name = target.partition(":")
    handler = signal.getsignal(signal.SIGINT)
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        extras = [f"; install mgspmv[{own.extra}]" for own in MANAGERS.values() if own.target == target]
        raise MissingDependencyError(f"{target} cannot be imported: {error}{''.join(extras)}") from error
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, handler)


# --- clusters --------------------------------------------------------------------------------------------------------


@contextmanager
def connect(
    kind: str | None,
    address: str | None = None,
    *,
    timeout: float,
    workers: int | None = None,
    threads: int | None = None,
    options: Mapping[str, Any] = MappingProxyType({}),
    tls: str | None = None,
    on_note: Callable[[str], None] = ignore,
) -> Iterator[Any]:
    """Yield the client of a cluster that is started, and stopped at the end of the context, or of a running one.

    Parameters
    ----------
    kind : of the cluster to start, as in `start_cluster`; None for the running one at `address`
    address : of its scheduler, or the path of the scheduler's file
    timeout : seconds that a worker may be silent
    workers, threads, options : as in `start_cluster`
    tls : folder of certificates, or `temporary`
    on_note : called with a description of each wait

    Raises
    ------
    SchedulerNotFoundError : no scheduler answers at the address
    MgspmvError : errors of `start_cluster`
    """
    with ExitStack() as stack:
        stack.enter_context(use_tls(tls))
        reached: Any = address
        if kind is not None:
            check_shared(kind, tls)
            reached = stack.enter_context(start_cluster(kind, workers, threads, on_note, **options))
        cluster = Cluster(reached, timeout)
        stack.callback(cluster.close)  # before the started cluster ends, or the client would report its loss
        yield cluster.client


@contextmanager
def start_cluster(
    kind: str,
    workers: int | None = None,
    threads: int | None = None,
    on_note: Callable[[str], None] | None = None,
    **options: Any,
) -> Iterator[Any]:
    """Start a Dask cluster and wait until its workers have joined; it is stopped at the end of the context.

    Parameters
    ----------
    kind : name of `MANAGERS`, or `module:Class` of another class
    workers : total number of workers; default of the class
    threads : threads per worker; default of the class
    on_note : called with a description of each wait
    options : arguments of the class; also `wait`, seconds for workers to join, and with jobs, hosts and pods `gpus`,
        the number of GPUs of each, with one worker per GPU

    Raises
    ------
    MissingDependencyError : the class is not installed
    OptionError : an option is unknown to the class, invalid or missing
    ClusterError : it does not start, or workers do not join in time
    CapacityError : this machine does not have the memory for that many workers
    """
    manager = find_manager(kind)
    named = ("scheduler_address", "scale", "wait_for_workers", "close")
    if kind not in MANAGERS and (missing := [name for name in named if not hasattr(load(manager.target), name)]):
        raise OptionError(f"{manager.target} is not a cluster class of Dask: it has no {', '.join(missing)}")
    wait_s = options.pop("wait", manager.wait_s)
    gpus = options.pop("gpus", None) if manager.prepare else None
    for name, value in (("wait", wait_s), ("gpus", 1 if gpus is None else gpus)):
        if not isinstance(value, int | float) or not value > 0:
            raise OptionError(f"the option {name} must be a positive number, not {value!r}")
    if kind in ("local", "cuda"):
        start = start_cuda if kind == "cuda" else start_local
        with start(workers, threads, **options) as cluster:
            yield cluster
        return
    link = {}
    if manager.prepare in (_prepare_jobs, _prepare_ssh) and not is_tls_required():  # its dashboard is local
        named = dask.config.get("distributed.dashboard.link")
        link = {"distributed.dashboard.link": named.replace("{host}", "127.0.0.1")}
    if manager.prepare:
        given, n_expected = manager.prepare(kind, workers, threads, gpus, options)
    else:
        takes = is_tls_required() and "security" in inspect.signature(load(manager.target)).parameters
        given = ({"security": Security()} if takes else {}) | options
        n_expected = workers or 0  # 0: only the class knows
    with dask.config.set(link), closing(_make(manager, given)) as cluster:
        if workers is not None:
            _scale(cluster, manager, workers)
        _await_workers(cluster, manager, n_expected, wait_s, on_note)
        _warn_of_open_ports(cluster.scheduler_address)
        yield cluster


def _make(manager: Manager, given: dict[str, Any]) -> Any:
    make = load(manager.target)
    bound = [*given.get("hosts", ()), *(["0.0.0.0"] if is_tls_required() else [])]
    try:
        return make_cluster(lambda: make(**given), list_hosts(bound, ()))
    except (TypeError, ValueError) as error:
        raise OptionError(f"{manager.target} rejects its options: {_write_line(error)}") from error
    except Exception as error:
        raise _translate_error(manager, error) from error


def _scale(cluster: Any, manager: Manager, workers: int) -> None:
    async def scale() -> None:
        cluster.scale(workers)
        await cluster  # raises if a worker, or its job, cannot be started

    try:
        cluster.sync(scale) if isinstance(cluster, SpecCluster) else cluster.scale(workers)
    except Exception as error:
        raise _translate_error(manager, error) from error


def _await_workers(
    cluster: Any, manager: Manager, n_expected: int, wait_s: float, on_note: Callable[[str], None] | None
) -> None:
    planned: set[Any] = getattr(cluster, "plan", set())
    n_expected = max(1, n_expected or len(planned))
    if on_note is not None:
        on_note(f"waiting for {n_expected} workers of {manager.target}, {wait_s:g} s at most; check {manager.look}")
    try:
        cluster.wait_for_workers(n_expected, timeout=wait_s)
    except TimeoutError as error:
        joined = [worker["name"] for worker in cluster.scheduler_info["workers"].values()]
        missing = ", ".join(sorted(map(str, planned.difference(joined))))
        raise ClusterError(
            f"{n_expected - len(joined)} of {n_expected} workers of {manager.target} did not join within {wait_s:g} s"
            + (f" (missing: {missing})" if missing else "")
            + f"; check {manager.look}, or increase the option wait",
            phase="start",
        ) from error


def _translate_error(manager: Manager, error: Exception) -> ClusterError:
    return ClusterError(
        f"{manager.target} does not start: {_write_line(list_causes(error)[-1])}; check {manager.look}", phase="start"
    )


def _write_line(error: BaseException) -> str:
    """Format an error in one line; for a failed command, its output on stderr."""
    words = str(error).rpartition("stderr:")[2].split() or [type(error).__name__]
    return " ".join(words)


def _warn_of_open_ports(address: str) -> None:
    """Warn if other machines can reach a scheduler that does not require certificates."""
    url = urlsplit(address)
    host = url.hostname or ""
    if url.scheme in ("tls", "inproc") or is_local(host):
        return
    warnings.warn(
        f"any program that can connect to {host} or to a worker can run code there; pass tls= to require certificates",
        stacklevel=4,
    )
