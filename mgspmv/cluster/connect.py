"""Connecting to a Dask cluster, and starting one on this machine."""

from __future__ import annotations

import asyncio
import errno
import importlib.util
import logging
import os
import signal
import socket
import warnings
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import dask
from distributed import Client, LocalCluster, Nanny, Security, rpc
from distributed.comm import get_address_host_port

from mgspmv.cluster.forking import ENVIRON, METHOD, begin_server, choose_method
from mgspmv.cluster.security import MODULE, guarding, is_tls_required, list_hosts
from mgspmv.errors import (
    CapacityError,
    ClusterError,
    MissingDependencyError,
    OptionError,
    SchedulerNotFoundError,
    is_operators,
    translate_os_error,
)
from mgspmv.model import check_choice, default_threads, free_memory
from mgspmv.validation import parse_json

KNOCK_S = 30.0
"""Maximum seconds for a scheduler to answer at an address, which may be wrong; the timeout if that is less."""
DASHBOARD_PORT = 8787
DRIVER = Path("/proc/driver/nvidia/version")
"""File that exists while NVIDIA's driver is loaded, even if this user may not open its devices."""
WORKER_BYTES = 200_000_000
"""Minimum bytes of a worker process before it holds rows, without memory shared with other processes."""
CLOSE_S = 1.25
"""Seconds for a worker process to end when its cluster is closed. Dask kills it after four fifths of them."""
_UNHEARD = (errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES, socket.EAI_NONAME)


def connect_client(client: Any, timeout: float) -> Client:
    """Connect a client to the scheduler at an address, or of a cluster object, without making it Dask's default client.

    Parameters
    ----------
    client : address, cluster object, or path of a scheduler file, as Dask's programs write with `--scheduler-file`
    timeout : seconds for the scheduler to answer, once one was found at the address

    Raises
    ------
    OptionError : none of these, an address that is not a scheduler's, or no certificate for it
    SchedulerNotFoundError : no scheduler answers there
    """
    if isinstance(client, str):
        client = _find_address(client)
        _knock(client, min(KNOCK_S, timeout))
    elif not hasattr(client, "scheduler_address"):
        raise OptionError(
            f"client must be a distributed.Client, the address of a scheduler or a cluster, not {client!r}"
        )
    try:
        return Client(client, timeout=timeout, set_as_default=False, name="mgspmv")
    except OSError as error:
        raise _no_answer(client, timeout, error) from error


def _find_address(named: str) -> str:
    """Return the address in a scheduler file; an address is returned unchanged."""
    if "://" in named or not Path(named).is_file():
        return named
    try:
        return str(parse_json(Path(named).read_bytes())["address"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        if is_operators(error):
            raise translate_os_error(error, named, "read") from error
        raise OptionError(
            f"{named} is not a scheduler file ({type(error).__name__}: {error}); pass a file written by `dask "
            "scheduler --scheduler-file`, or the address"
        ) from error


def _knock(address: str, wait_s: float) -> None:
    """Raise unless a scheduler answers: with another server a client would wait forever or log a traceback."""
    if address.startswith("inproc://"):
        return
    if is_tls_required() and "://" in address and not address.startswith("tls://"):
        raise OptionError(
            f"{address!r} is not an encrypted address, and connections must be encrypted; start its scheduler with "
            "certificates too, and use its new address, such as tls://10.0.0.1:8786"
        )
    try:
        get_address_host_port(address)
        security = Security().get_connection_args("client")
        with ThreadPoolExecutor(1) as thread:  # for a separate event loop: a notebook runs one in this thread
            kind = thread.submit(asyncio.run, _ask_kind(address, wait_s, security)).result()
    except (ValueError, TypeError) as error:  # TypeError: TLS was requested but is not configured
        raise OptionError(
            f"{address!r} is neither the address of a scheduler ({error}) nor a scheduler file; pass an address such "
            "as tcp://10.0.0.1:8786"
        ) from error
    except (OSError, MemoryError) as error:  # MemoryError: a reply of another protocol read as a size
        raise _no_answer(address, wait_s, error) from error
    if kind != "Scheduler":
        raise OptionError(f"{address} is the address of a {kind.lower()}, not of a scheduler")


async def _ask_kind(address: str, wait_s: float, security: dict[str, Any]) -> str:
    """Ask the server at an address for its kind: `Scheduler`, `Worker`, or another Dask server."""
    async with asyncio.timeout(wait_s), rpc(address, timeout=0.8 * wait_s, connection_args=security) as server:
        return str((await server.identity())["type"])


def _no_answer(client: Any, wait_s: float, error: BaseException) -> SchedulerNotFoundError:
    said = str(error.__cause__ or "") or str(error) or "no reply"
    reason = said.rpartition(">: ")[2]  # without the Dask object that failed
    return SchedulerNotFoundError(
        f"no Dask scheduler answers at {client} within {wait_s:g} s ({reason}); is it running, and is this its "
        "address, such as tcp://10.0.0.1:8786?"
    )


class PatientNanny(Nanny):  # type: ignore[misc]  # Dask has no types
    """Nanny that gives its worker process a second to end, kills it then, and waits for its end, however long it takes.

    Dask tells a worker to end, kills it after 4 s, and stops closing the cluster if the process still exists some
    seconds later, which is too short on a busy machine.
    """

    async def close(self, timeout: float = CLOSE_S, reason: str = "nanny-close") -> str:
        """End the worker, and close."""
        closed: str = await super().close(timeout, reason)
        return closed

    async def kill(self, timeout: float = 5, reason: str = "nanny-kill") -> None:
        """End the worker, kill it if necessary, and return when its process has ended."""
        try:
            await super().kill(timeout, reason)
        except TimeoutError:
            await super().kill(reason=reason)  # waits, now that the process was killed


def start_local(n_workers: int | None = None, threads: int | None = None, **options: Any) -> LocalCluster:
    """Start worker processes on this machine that share its processors.

    Parameters
    ----------
    n_workers : default as in Dask: few processes of few threads each
    threads : threads per worker; default one per processor for all workers together
    options : of `_start`; or of `distributed.LocalCluster`, which override those chosen here

    Raises
    ------
    CapacityError : this machine does not have the memory for that many
    ClusterError : a worker did not start, or the address cannot be listened at
    OptionError : the class takes no such options
    """
    if n_workers is not None:
        threads = _choose_threads(n_workers, threads)
    return _start(LocalCluster, **{"n_workers": n_workers, "threads_per_worker": threads} | options)


def start_cuda(
    n_workers: int | None = None, threads: int | None = None, protocol: str = "tcp", **options: Any
) -> LocalCluster:
    """Start a worker process for each GPU of this machine that `CUDA_VISIBLE_DEVICES` selects.

    Parameters
    ----------
    n_workers : default one per GPU
    threads : threads per worker, which read and decompress; default one per processor for all workers together
    protocol : protocol of Dask's comms: `tcp`, or `ucxx`
    options : of `_start`; or of `dask_cuda.LocalCUDACluster`, which override those chosen here

    Raises
    ------
    MissingDependencyError : dask-cuda, or a package for UCX, is not installed
    ClusterError : there are fewer than `n_workers` GPUs, or none; or as in `start_local`
    OptionError : TLS was requested with UCX, which does not support it; or as in `start_local`
    """
    check_choice("protocol", protocol, ("tcp", "ucxx"))
    if protocol == "ucxx" and is_tls_required():
        raise OptionError("connections must be encrypted, and protocol='ucxx' does not encrypt; use protocol='tcp'")
    _need("dask_cuda", "a cluster of GPU workers needs dask-cuda", "cuda12] or mgspmv[cuda13")
    if protocol == "ucxx":
        _need("distributed_ucxx", "protocol='ucxx' needs distributed-ucxx", "ucxx12] or mgspmv[ucxx13")
    n_devices = count_devices()
    if n_workers is None:
        n_workers = n_devices
    if not 1 <= n_workers <= n_devices:
        raise ClusterError(
            f"{n_workers} GPU workers were requested, but this machine has {n_devices} GPUs; request 1 to {n_devices}",
            phase="start",
        )
    from dask_cuda import LocalCUDACluster

    given: dict[str, int | str | None] = {"n_workers": n_workers}
    given |= {"threads_per_worker": _choose_threads(n_workers, threads)}
    given |= {"device_memory_limit": None}  # data here must not be spilled
    given |= {} if is_tls_required() else {"protocol": protocol}  # TLS is a separate one
    # NCCL does not encrypt, and GPUs of one machine need no other hosts. The environment takes precedence.
    with dask.config.set({"distributed.nanny.environ.NCCL_SOCKET_IFNAME": "lo"}):
        return _start(LocalCUDACluster, **given | options)


def _need(module: str, what: str, extra: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise MissingDependencyError(f"{what}, which is not installed; install mgspmv[{extra}]")


def has_devices() -> bool:
    """Return whether workers can use a GPU; warn if NVIDIA's driver is loaded but finds none. Without pynvml, look for
    device files: the missing package is reported when workers are started."""
    if importlib.util.find_spec("pynvml") is None:
        return Path("/dev/nvidiactl").exists() and os.environ.get("CUDA_VISIBLE_DEVICES") != ""
    try:
        return count_devices() > 0
    except ClusterError as error:
        if DRIVER.exists() and "CUDA_VISIBLE_DEVICES" not in os.environ:
            why = error.__cause__ or "it finds none"
            warnings.warn(
                f"NVIDIA's driver is loaded, but no GPU can be used ({why}): workers use processors; run nvidia-smi as "
                "this user to see the reason",
                stacklevel=2,
            )
        return False


def count_devices() -> int:
    """Count the GPUs that workers may use by `CUDA_VISIBLE_DEVICES`, without initializing CUDA."""
    import pynvml

    cause: Exception | None = None
    visible, named, why = os.environ.get("CUDA_VISIBLE_DEVICES"), list[str](), "NVIDIA's driver finds none"
    try:
        pynvml.nvmlInit()
        n_devices = int(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError as error:
        n_devices, cause, why = 0, error, f"{why} ({error})"
    if n_devices:
        why = f"CUDA_VISIBLE_DEVICES={visible!r} selects none of its {n_devices}"
    for name in map(str, range(n_devices)) if visible is None else map(str.strip, visible.split(",")):
        is_number = name.lstrip("-").isdigit()
        if not name or name in named or (is_number and not 0 <= int(name) < n_devices):
            break  # CUDA also ignores the first invalid one and all after it
        named.append(name)
    if not n_devices or not named:
        raise ClusterError(
            f"there is no GPU on this machine for workers: {why}; use cluster='local', or a machine with GPUs",
            phase="start",
        ) from cause
    return len(named)


def _start(
    kind: Callable[..., LocalCluster],
    *,
    host: str = "127.0.0.1",
    scheduler_port: int = 0,
    dashboard_host: str = "127.0.0.1",
    dashboard_port: int | None = None,
    dashboard_origins: Sequence[str] = (),
    **given: Any,
) -> LocalCluster:
    """Make a cluster on this machine; by default one that can be reached from this machine only.

    Parameters
    ----------
    host : address or name at which scheduler and workers listen
    dashboard_port : None for `DASHBOARD_PORT`, or another one if that is taken, also by the scheduler
    dashboard_origins : hosts that the dashboard answers to, in addition to its own
    given : arguments of the class, which override those chosen here
    """
    port = dashboard_port
    if port is None:
        port = 0 if scheduler_port == DASHBOARD_PORT else DASHBOARD_PORT  # Dask would bind it before the scheduler does
    loaded = dask.config.get("distributed.worker.preload")
    loaded = [loaded] if isinstance(loaded, str) else loaded
    options: dict[str, Any] = {
        "host": host,
        "scheduler_port": scheduler_port,
        "worker_class": PatientNanny,
        "memory_limit": 0,  # the plan is checked instead; a nanny would kill workers at 95 %
        "dashboard_address": f"{dashboard_host}:{port}",
        "silence_logs": logging.CRITICAL,  # errors that end a run are raised, with more detail
        # These replace the configured ones and those of dask-cuda.
        "preload": [*(name for name in loaded if name != MODULE), MODULE],
    }
    hosts = list_hosts((host, dashboard_host), dashboard_origins)
    method = choose_method(dask.config.get(METHOD), dask.config.get(ENVIRON))
    if method == "forkserver":
        begin_server(has_devices=kind is not LocalCluster)
    try:
        with dask.config.set({METHOD: method}):
            cluster = make_cluster(lambda: kind(**options | given), hosts)
    except (RuntimeError, OSError, TypeError, ValueError) as error:
        raise _translate_start_error(error, f"{host}:{scheduler_port}" if scheduler_port else host) from error
    if dashboard_port and cluster.scheduler.http_server.port != dashboard_port:
        cluster.close()
        raise ClusterError(
            f"the dashboard cannot listen at {options['dashboard_address']}, which is in use; choose another port, or "
            "none to use any free port",
            phase="start",
        )
    return cluster


def make_cluster(make: Callable[[], Any], hosts: Iterable[str]) -> Any:
    """Make a cluster whose workers ignore Ctrl-C and the end of the terminal, which signal them too: the process that
    made the workers ends them.

    Workers inherit the blocked signals of the thread that makes the cluster. Dask cannot close a partly
    started cluster, so an interrupt waits until it is complete.

    Parameters
    ----------
    hosts : hosts that its pages answer to, in addition to those of this machine
    """

    def begin() -> Any:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
        resource_tracker.ensure_running()  # else the first worker starts it and unblocks SIGINT
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        with guarding(hosts):  # workers inherit this
            return make()

    with warnings.catch_warnings(), ThreadPoolExecutor(1) as starter:
        warnings.filterwarnings("ignore", r"Port \d+ is already in use")  # another port is used
        starting = starter.submit(begin)
        try:
            return starting.result()
        except KeyboardInterrupt:
            with suppress(Exception):  # workers ended by the same signal do not start
                starting.result().close()
            raise


def _choose_threads(n_workers: int, threads: int | None) -> int:
    """Return the threads per worker; raise unless this machine has the memory for n_workers."""
    if n_workers < 1:
        raise OptionError(f"the number of workers must be at least 1, not {n_workers}")
    free = free_memory()
    if n_workers * WORKER_BYTES > free:
        raise CapacityError(
            f"{n_workers} workers take {n_workers * WORKER_BYTES / 1e9:.3g} GB before they hold rows, and this "
            f"machine has {free / 1e9:.3g} GB free; start {max(1, free // WORKER_BYTES)} at most"
        )
    return threads or max(1, default_threads() // n_workers)


def _translate_start_error(error: BaseException, where: str) -> ClusterError | OptionError:
    causes = list_causes(error)
    if isinstance(error, ValueError) or isinstance(causes[-1], TypeError):
        return OptionError(f"invalid options of the local cluster: {causes[-1]}")
    for cause in causes:
        if isinstance(cause, OSError) and cause.errno in _UNHEARD:
            return ClusterError(
                f"the scheduler cannot listen at {where}: {cause}; choose another port, or an address of this machine",
                phase="start",
            )
    return ClusterError(f"a worker of the local cluster did not start: {causes[-1]}", phase="start")


def list_causes(error: BaseException) -> list[BaseException]:
    """List an error and the chain of its causes."""
    return [error, *([] if error.__cause__ is None else list_causes(error.__cause__))]
