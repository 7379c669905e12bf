"""Server process that worker processes of this machine are forked from, with the modules of workers loaded.

Loading takes seconds, and as long as all else that starts a cluster. The server begins to load before this process does
the same, and does it once for all workers. It has one thread and uses no device, so that it can be forked.

Only modules of Python are imported here.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Mapping
from multiprocessing import forkserver, resource_tracker

METHOD = "distributed.worker.multiprocessing-method"
"""Dask configuration key of the way that nannies start worker processes."""
METHOD_VARIABLE = "DASK_DISTRIBUTED__WORKER__MULTIPROCESSING_METHOD"
"""Environment variable of the same: with `spawn` there is no server."""
ENVIRON = "distributed.nanny.pre-spawn-environ"
"""Dask configuration key of variables that must be set before a worker process is started."""
VARIABLES = {
    "MALLOC_TRIM_THRESHOLD_": "65536",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONHASHSEED": "6640",
}
"""Those of Dask, and the seed by which nannies let workers agree on hashes of strings."""
MODULES = ("distributed.nanny", "mgspmv.cluster.agent", "mgspmv.cluster.iterations", "mgspmv.cli")
"""Modules that workers load. PyArrow starts a thread, and is left out."""
DEVICE_MODULES = ("dask_cuda", "dask_cuda.initialize", "cupy", "cupy.cuda.nccl")
"""Modules that workers with a device load; none of them uses it."""

MOST_PATH = 103
"""Longest path of a socket, in bytes, on any system."""
SOCKET = "/pymp-xxxxxxxx/listener-xxxxxxxx"
"""Path of the server's socket in the folder of temporary files, as long as Python makes it."""

_environment: dict[str, str] = {}
"""Environment of the server; empty before it is begun."""


def begin_server(*, has_devices: bool) -> None:
    """Start the server, which loads modules while this process continues; no effect if it runs, or cannot.

    It and the workers ignore Ctrl-C and the end of the terminal, which signal them too: this process ends them.

    Parameters
    ----------
    has_devices : whether each worker has a device; the first call decides
    """
    if not _can_listen():
        return
    if not _environment:
        _environment.update(_find_environment())
    forkserver.set_forkserver_preload([*MODULES, *(DEVICE_MODULES if has_devices else ())])
    missing = {name: value for name, value in VARIABLES.items() if name not in os.environ}
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        resource_tracker.ensure_running()  # which unblocks SIGINT
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        os.environ.update(missing)
        forkserver.ensure_running()
    finally:
        for name in missing:
            del os.environ[name]
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def choose_method(configured: str, environ: Mapping[str, object]) -> str:
    """Return the way to start worker processes: from the server, with its environment, unless another was asked for, or
    the path of temporary files is too long for its socket.

    Parameters
    ----------
    configured, environ : values of `METHOD` and `ENVIRON` in Dask's configuration
    """
    is_usual = all(VARIABLES.get(name) == str(value) for name, value in environ.items())
    is_same = not _environment or _environment == _find_environment()
    is_asked = configured != "spawn" or METHOD_VARIABLE in os.environ
    return "forkserver" if is_usual and is_same and not is_asked and _can_listen() else configured


def _can_listen() -> bool:
    return len(os.fsencode(tempfile.gettempdir() + SOCKET)) <= MOST_PATH


def _find_environment() -> dict[str, str]:
    """Return the environment variables, without those that Dask and dask-cuda set in this process."""
    set_here = (*VARIABLES, "__DASK_PARENT_PID", "RAPIDS_NO_INITIALIZE")
    return {name: value for name, value in os.environ.items() if name not in set_here}
