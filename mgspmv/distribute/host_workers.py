"""The workers of one host, as a program that SSH starts there; they end when its standard input does.

The first line of its input says what is wanted, as JSON: the versions that it must have, and `Asked`. The answer is a
line on its output after `MARK`: how many workers are being started, or why none. Whatever becomes of who asked, its end
of the input is closed then.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import dask
from distributed.comm import get_address_host_port

from mgspmv.distribute.connect import check_room, has_devices, list_devices, need_dask_cuda, share_processors
from mgspmv.distribute.tls import use_tls
from mgspmv.errors import ClusterError, MgspmvError, VersionMismatchError
from mgspmv.version import __version__

MARK = "mgspmv-host-workers "
"""What an answer begins with: shells may say something of their own before it."""
REACH_S = 10.0
"""Seconds for a connection from here to the scheduler."""
JOIN_S = 60
"""Seconds in which a worker that does not find its scheduler gives up."""
END_S = 10.0
"""Seconds that workers have to end before they are killed."""


@dataclass(frozen=True)
class Asked:
    """What is wanted of a host."""

    scheduler: str
    """Its address."""
    name: str
    """Of its workers; with a number behind it where there are several."""
    workers: int | None = None
    """Default one for each GPU, or as Dask chooses."""
    threads: int | None = None
    """Of each worker."""
    certificates: str | None = None
    """Folder of those by which everything is encrypted."""


def find_versions() -> list[str]:
    """Of mgspmv and Python here."""
    return [__version__, ".".join(platform.python_version_tuple()[:2])]


def main() -> int:
    """Be the workers of this host; the exit code where there are none."""
    with ExitStack() as stack:
        try:
            wanted, given = json.loads(sys.stdin.readline())
            _check_versions(wanted)
            asked = Asked(**given)
            stack.enter_context(use_tls(asked.certificates))
            n_workers, run = _plan(asked)
        except MgspmvError as error:
            _answer({"kind": type(error).__name__, "error": str(error)})
            return error.exit_code
        threading.Thread(target=_end_with_input, daemon=True).start()
        _answer({"workers": n_workers})
        run()
    return 0


def _check_versions(wanted: list[str]) -> None:
    own = find_versions()
    if own != wanted:
        raise VersionMismatchError(
            f"it has mgspmv {own[0]} on Python {own[1]}, and here are {wanted[0]} and {wanted[1]}; install the same "
            "on both"
        )


def _plan(asked: Asked) -> tuple[int, Callable[[], None]]:
    """How many workers there will be, and Dask's own program that is these."""
    address = _find_own_address(asked.scheduler)
    options = ["--name", asked.name, "--host", address, "--no-dashboard", "--dashboard-address", f"{address}:0"]
    if not has_devices():
        from distributed.cli.dask_worker import main as worker

        n_workers, threads = share_processors(asked.workers, asked.threads)
        options += ["--nworkers", str(n_workers), "--death-timeout", str(JOIN_S)]
    else:
        need_dask_cuda()
        from dask_cuda.cli import worker

        devices = list_devices()
        n_workers = asked.workers or len(devices)
        if n_workers > len(devices):
            raise ClusterError(f"{n_workers} workers are asked for and {len(devices)} GPUs are there; ask for fewer")
        _, threads = share_processors(n_workers, asked.threads)
        options += ["--device-memory-limit", "0"]  # nothing of ours is to be spilled
        for module in dask.config.get("distributed.worker.preload"):  # else dask-cuda's own takes its place
            options += ["--preload", module]
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(devices[:n_workers])
    check_room(n_workers)
    options += ["--nthreads", str(threads), "--memory-limit", "0"]
    return n_workers, lambda: worker([asked.scheduler, *options])


def _find_own_address(scheduler: str) -> str:
    """That of the interface by which the scheduler is reached, at which the other workers find these."""
    host, port = get_address_host_port(scheduler)
    try:
        with socket.create_connection((host, port), REACH_S) as connection:
            return str(connection.getsockname()[0])
    except OSError as error:
        raise ClusterError(
            f"it does not reach the scheduler at {scheduler} ({error}); let firewalls pass connections between all of "
            "the machines"
        ) from error


def _end_with_input() -> None:
    while os.read(0, 1024):  # and not by sys.stdin, whose lock a thread may not have when Python ends
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(END_S)
    os._exit(1)  # workers notice that


def _answer(answer: dict[str, Any]) -> None:
    print(MARK + json.dumps(answer), flush=True)


if __name__ == "__main__":
    sys.exit(main())
