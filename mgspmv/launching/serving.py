"""The process of a cluster of this machine: scheduler and workers, from their start until somebody ends them."""

from __future__ import annotations

import ipaddress
import logging
import os
import platform
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import dask

from mgspmv.distribute.connect import Serving, has_devices, start_cuda, start_local
from mgspmv.distribute.dashboards import parse_host
from mgspmv.distribute.tls import TEMPORARY, use_tls, write_temporary
from mgspmv.errors import OptionError
from mgspmv.launching.state import Launched, claim, tell
from mgspmv.model import check_choice
from mgspmv.processes import Process
from mgspmv.version import __version__

EVENTS_KEPT = "1m"
"""Time that Dask's scheduler keeps events of clients and workers that left, unless its configuration says otherwise.
Each command is a client, so Dask's hour would keep those of hundreds."""
NOTIFY_VARIABLE = "NOTIFY_SOCKET"
"""Environment variable by which systemd says where it listens."""


@dataclass(frozen=True)
class Asked:
    """What a cluster is to be."""

    name: str = "default"
    backend: str = "auto"
    """`cuda` for a worker on each GPU, `cpu` for others, `auto` for `cuda` where there are GPUs."""
    workers: int | None = None
    threads: int | None = None
    """Of each worker."""
    protocol: str = "tcp"
    """Of Dask's comms between GPU workers."""
    host: str = "127.0.0.1"
    port: int = 0
    tls: str | None = None
    """As for `use_tls`; temporary certificates are in the cluster's folder, where others find them."""
    dashboard_port: int | None = None
    dashboard_origins: tuple[str, ...] = ()
    """Hosts that the dashboard answers to, besides its own."""

    def __post_init__(self) -> None:
        check_choice("--backend", self.backend, ("auto", "cpu", "cuda"))
        check_choice("--protocol", self.protocol, ("tcp", "ucxx"))
        if self.protocol == "ucxx" and self.backend == "cpu":
            raise OptionError("--protocol ucxx is for workers on GPUs; leave it out, or --backend cpu")
        if self.port and self.port == self.dashboard_port:
            raise OptionError(
                f"--port and --dashboard-port are both {self.port}; choose another one for the dashboard, or leave "
                "--dashboard-port out"
            )
        for origin in self.dashboard_origins:
            _check_origin(origin)

    @property
    def is_local(self) -> bool:
        """Whether only processes of this machine reach it."""
        try:
            return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def serving(self) -> Serving:
        """The dashboard, which has no password, leaves this machine only encrypted."""
        dashboard_host = self.host if self.tls is not None else Serving.dashboard_host
        return Serving(
            self.host, self.port, dashboard_host, logging.WARNING, self.dashboard_port, self.dashboard_origins
        )


def _check_origin(origin: str) -> None:
    try:
        parse_host(origin)
    except ValueError as error:
        raise OptionError(
            "--dashboard-origin takes a host as the browser's address has it, such as dash.example.org or "
            f"dash.example.org:8443, not {origin!r}"
        ) from error


def describe(asked: Asked) -> Launched:
    """What this process can say of a cluster that it is about to start."""
    return Launched(asked.name, platform.node(), Process.find(os.getpid()), time.time(), __version__)


def serve(asked: Asked, on_ready: Callable[[Launched], None]) -> None:
    """Be a cluster until SIGTERM or SIGINT; then end it, and all of its processes.

    Parameters
    ----------
    on_ready : called when all workers have joined

    Raises
    ------
    ClusterError : one of the name is there, or it does not start; and what `start_local` and `start_cuda` raise
    KeyboardInterrupt : a signal came before that
    """
    for number in (signal.SIGINT, signal.SIGTERM):  # who starts may have ignored them, which children inherit
        signal.signal(number, signal.default_int_handler)
    is_cuda = asked.backend == "cuda" or (asked.backend == "auto" and has_devices())
    launched = describe(asked)
    with ExitStack() as stack:
        stack.enter_context(claim(launched))
        certificates = asked.tls
        if asked.tls == TEMPORARY:
            (folder := launched.folder / "certificates").mkdir(mode=0o700)
            certificates = str(write_temporary(folder).folder)
        stack.enter_context(use_tls(certificates))
        dask.config.update_defaults({"distributed": {"scheduler": {"events-cleanup-delay": EVENTS_KEPT}}})
        if is_cuda:
            cluster: Any = start_cuda(asked.workers, asked.threads, asked.protocol, asked.serving)
        else:
            cluster = start_local(asked.workers, asked.threads, asked.serving)
        stack.enter_context(cluster)
        is_over = _catch_signals()
        launched = replace(
            launched,
            backend="cuda" if is_cuda else "cpu",
            n_workers=len(cluster.workers),
            threads=next(iter(cluster.worker_spec.values()))["options"]["nthreads"],
            scheduler=cluster.scheduler_address,
            dashboard=cluster.dashboard_link,
            certificates=None if certificates is None else str(Path(certificates).resolve()),
        )
        tell(launched, cluster.scheduler.identity())
        on_ready(launched)
        _notify(f"READY=1\nSTATUS={launched.n_workers} workers at {launched.scheduler}")
        is_over.wait()
        _notify("STOPPING=1")


def _catch_signals() -> threading.Event:
    """What is set by SIGINT or SIGTERM from now on. A second one changes nothing: the cluster ends in its time."""
    is_over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: is_over.set())
    return is_over


def _notify(message: str) -> None:
    """Tell systemd, where it started this process as a service of type `notify`."""
    if where := os.environ.get(NOTIFY_VARIABLE):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
            notified.connect(f"\0{where[1:]}" if where.startswith("@") else where)
            notified.sendall(message.encode())
