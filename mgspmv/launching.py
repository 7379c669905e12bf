"""Clusters of this machine that outlive the command that starts them.

    STATE/clusters-HOST/NAME.json    `Launched`
    STATE/logs/NAME.log              stderr of its process

STATE is the folder of `mgspmv.files.find_state_folder`. The process of a cluster runs the scheduler and is the parent
of the workers. A file whose process has ended is ignored, and replaced by the next cluster of its name.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import dask
import psutil
from filelock import FileLock

from mgspmv.cluster.connect import connect_client, has_devices, start_cuda, start_local
from mgspmv.cluster.security import use_tls
from mgspmv.errors import ClusterError, OptionError, translating
from mgspmv.files import find_state_folder, write_beside
from mgspmv.monitor.events import find_dashboard

EVENTS_KEPT = "1m"
"""Time for which Dask's scheduler keeps events of clients and workers that left, unless its configuration sets another.
Each command is a client, so Dask's default of an hour would keep the events of hundreds."""
NOTIFY_VARIABLE = "NOTIFY_SOCKET"
"""Environment variable with the address of systemd's notification socket."""
SAME_S = 2.0
"""Seconds by which the recorded start of a process may differ, as the clock may be adjusted meanwhile."""
GIVE_UP_S = 10.0
"""Seconds to wait for a cluster to close after its start failed."""
ANSWER_S = 10.0
"""Seconds for a scheduler in this process to answer a client."""
KILLED_S = 30.0
"""Seconds to wait until killed processes have exited."""

_PROGRAM = "from mgspmv.cli import main; main()"
_LOOK_S = 0.05
"""Seconds between two checks whether workers have joined."""


# --- running clusters ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Launched:
    """Cluster of this machine; the fields after `began` are set when the workers have joined."""

    name: str
    pid: int
    began: float
    """Creation time of the process, in seconds since 1970."""
    backend: str = ""
    """`cpu` or `cuda`."""
    workers: int = 0
    scheduler: str | None = None
    """Address of the scheduler."""
    dashboard: str | None = None
    certificates: str | None = None
    """Folder of the certificates, if connections are encrypted."""

    @property
    def state(self) -> str:
        return "starting" if self.scheduler is None else "running"

    def find_process(self) -> psutil.Process | None:
        """Return its process; None if that has ended."""
        try:
            process = psutil.Process(self.pid)
            is_same = abs(process.create_time() - self.began) < SAME_S
            return process if is_same and process.status() != psutil.STATUS_ZOMBIE else None
        except psutil.NoSuchProcess:
            return None


def list_clusters() -> list[Launched]:
    """List the clusters of this machine whose processes are alive, by name."""
    known = []
    for path in sorted(_find_folder().glob("*.json")):
        with suppress(OSError, ValueError, TypeError):  # files that cannot be read are skipped
            known.append(Launched(**json.loads(path.read_text())))
    return [launched for launched in known if launched.find_process() is not None]


def find_cluster(name: str) -> Launched:
    """Return the running cluster of a name.

    Raises
    ------
    OptionError : no cluster has this name
    """
    known = {launched.name: launched for launched in list_clusters()}
    if name not in known:
        raise OptionError(
            f"no cluster {name!r} runs on this machine (running: {', '.join(known) or 'none'}); `mgspmv cluster start` "
            "starts one"
        )
    return known[name]


def _find_folder() -> Path:
    return find_state_folder() / f"clusters-{platform.node() or 'localhost'}"


def _write(launched: Launched) -> None:
    with write_beside(_find_folder() / f"{launched.name}.json") as part:
        part.write_text(json.dumps(asdict(launched)))


def _check_free(name: str) -> None:
    for there in list_clusters():
        if there.name == name:
            where = "" if there.scheduler is None else f", at {there.scheduler}"
            raise ClusterError(
                f"a cluster {name!r} is {there.state} on this machine already{where}, as process {there.pid}; `mgspmv "
                f"cluster stop {name}` stops it, another name= starts a second one",
                phase="start",
            )


@contextmanager
def register(launched: Launched) -> Iterator[None]:
    """Reserve the name of a cluster for the duration of the context.

    Raises
    ------
    ClusterError : another process has it
    StoreError : the state folder cannot be written
    """
    folder = _find_folder()
    with translating(folder, "write"):
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        with FileLock(folder / ".lock", mode=0o600):  # two commands may start a cluster of the same name at once
            _check_free(launched.name)
            _write(launched)
    try:
        yield
    finally:
        (folder / f"{launched.name}.json").unlink(missing_ok=True)


# --- starting and ending ---------------------------------------------------------------------------------------------


def serve(
    name: str,
    on_ready: Callable[[Launched], None],
    *,
    backend: str,
    workers: int | None,
    threads: int | None,
    protocol: str,
    tls: str | None,
    host: str,
    **serving: Any,
) -> None:
    """Run a cluster until SIGTERM or SIGINT; then end it and all of its processes.

    Parameters
    ----------
    on_ready : called when all workers have joined
    backend : `cuda` for one worker per GPU, `cpu` for CPU workers, `auto` for `cuda` if there are GPUs
    threads : number per worker
    protocol : protocol of Dask's comms between GPU workers
    tls : as in `use_tls`
    host, serving : where it listens, as in `start_local`

    Raises
    ------
    ClusterError : a cluster of the name exists, or it does not start; and what `start_local` and `start_cuda` raise
    KeyboardInterrupt : a signal arrived before the cluster had started
    """
    for number in (signal.SIGINT, signal.SIGTERM):  # the parent process may ignore them, which children inherit
        signal.signal(number, signal.default_int_handler)
    is_cuda = backend == "cuda" or (backend == "auto" and has_devices())
    launched = Launched(name, os.getpid(), psutil.Process().create_time())
    with ExitStack() as stack:
        stack.enter_context(register(launched))
        stack.enter_context(use_tls(tls))
        dask.config.update_defaults({"distributed": {"scheduler": {"events-cleanup-delay": EVENTS_KEPT}}})
        # The dashboard has no password, so it is reachable from other machines only if encrypted.
        shown = {} if tls is None else {"dashboard_host": host}
        serving |= {"host": host, "silence_logs": logging.WARNING} | shown
        if is_cuda:
            cluster: Any = start_cuda(workers, threads, protocol, **serving)
        else:
            cluster = start_local(workers, threads, **serving)
        stack.enter_context(cluster)
        dashboard = _find_dashboard(cluster)
        is_over = _catch_signals()
        certificate = dask.config.get("distributed.comm.tls.client.cert") if tls is not None else None
        launched = replace(
            launched,
            backend="cuda" if is_cuda else "cpu",
            workers=len(cluster.workers),
            scheduler=cluster.scheduler_address,
            dashboard=dashboard,
            certificates=None if certificate is None else str(Path(certificate).parent),
        )
        _write(launched)
        on_ready(launched)
        _notify(f"READY=1\nSTATUS={launched.workers} workers at {launched.scheduler}")
        is_over.wait()
        _notify("STOPPING=1")


def _find_dashboard(cluster: Any) -> str | None:
    """Add the page on runs to the dashboard of a cluster, which shows it before the first run; return its URL."""
    with connect_client(cluster, ANSWER_S) as client:
        return find_dashboard(client)


def _catch_signals() -> threading.Event:
    """Return an event that SIGINT or SIGTERM sets. A second signal changes nothing: the shutdown is not cut short."""
    is_over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: is_over.set())
    return is_over


def _notify(message: str) -> None:
    """Notify systemd, if it started this process as a service of type `notify`."""
    if where := os.environ.get(NOTIFY_VARIABLE):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
            notified.connect(f"\0{where[1:]}" if where.startswith("@") else where)
            notified.sendall(message.encode())


def start(name: str, args: Sequence[str], timeout_s: float) -> Launched:
    """Start the cluster in a detached process, which survives the terminal and this process.

    Parameters
    ----------
    args : arguments of the command line that starts it, without the program

    Returns
    -------
    The cluster when all workers have joined.

    Raises
    ------
    ClusterError : a cluster of the name exists, or it does not start in time
    """
    _check_free(name)
    log = find_state_folder() / "logs" / f"{name}.log"
    with translating(log, "write"):
        log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(log, "wb") as file:
            # -P keeps modules of the current folder from shadowing those of the program.
            command = [sys.executable, "-P", "-c", _PROGRAM, *args, "--foreground"]
            none = subprocess.DEVNULL
            child = psutil.Popen(command, stdin=none, stdout=none, stderr=file, start_new_session=True)
    deadline = time.monotonic() + timeout_s
    try:
        while child.poll() is None and time.monotonic() < deadline:
            for launched in list_clusters():
                if (launched.name, launched.pid, launched.state) == (name, child.pid, "running"):
                    return launched
            time.sleep(_LOOK_S)
    except BaseException:
        _end(child, GIVE_UP_S)
        raise
    if child.poll() is None:
        _end(child, GIVE_UP_S)
        raise _fail(name, f"its workers did not join within {timeout_s:g} s, and it was stopped; see {log}")
    said = log.read_text(errors="replace").strip().rpartition("\n")[2]
    is_error = child.returncode > 0 and said.startswith("error: ")
    error = _fail(name, said.removeprefix("error: ") if is_error else f"it ended with {child.returncode}; see {log}")
    error.exit_code = child.returncode if is_error else error.exit_code
    raise error


def _fail(name: str, why: str) -> ClusterError:
    return ClusterError(f"cluster {name!r} did not start: {why}", phase="start")


def stop(launched: Launched, patience_s: float) -> bool:
    """End the processes of a cluster and wait for them; processes still alive after `patience_s` seconds are killed.

    Returns
    -------
    Whether all ended in time.
    """
    process = launched.find_process()
    return process is None or _end(process, patience_s)


def _end(process: psutil.Process, patience_s: float) -> bool:
    try:
        # Workers are listed first: once their parent has ended, they are no longer its children.
        processes = [process, *process.children(recursive=True)]
        process.terminate()
    except psutil.NoSuchProcess:
        return True
    _, alive = psutil.wait_procs(processes, patience_s)
    for left in alive:
        left.kill()
    psutil.wait_procs(alive, KILLED_S)
    return not alive
