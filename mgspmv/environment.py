"""Environment of this process: versions of the program and of libraries, visible GPUs, and the memory and processors
that Linux control groups, version 1 or 2, allow.

A process is in a control group, which is in another, and so on: the least limit of all of them applies, such as that of
a container, the unit of a service, or the scheduler of a cluster's jobs.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

__version__ = "0.1.0"
"""That of pyproject.toml, too: to find it among the installed packages takes 20 ms."""

LIBRARIES = (
    "numpy",
    "scipy",
    "numba",
    "zarr",
    "pyarrow",
    "dask",
    "distributed",
    "dask-cuda",
    "cupy-cuda12x",
    "cupy-cuda13x",
)
"""Distributions whose versions affect results or performance."""


@functools.cache
def find_versions() -> dict[str, str]:
    """Return the versions of the program, Python and installed `LIBRARIES`."""
    from importlib.metadata import PackageNotFoundError, version
    from platform import python_version

    found = {"mgspmv": __version__, "python": python_version()}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def find_gpus() -> dict[str, str]:
    """Return the GPUs visible to CuPy, with the versions of CUDA and its driver; or, as `gpu`, why there is none."""
    if find_spec("cupy") is None:
        return {"gpu": "none, CuPy is not installed"}
    import cupy

    runtime = cupy.cuda.runtime
    try:
        count = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        return {"gpu": f"none, {error}"}
    devices = [runtime.getDeviceProperties(k) for k in range(count)]
    named = [f"{d['name'].decode()}, {d['totalGlobalMem'] / 2**30:.0f} GiB" for d in devices]
    versions = {"CUDA": runtime.runtimeGetVersion(), "CUDA of the driver": runtime.driverGetVersion()}
    cuda = {name: f"{number // 1000}.{number % 1000 // 10}" for name, number in versions.items()}
    return cuda | {f"gpu {k}": name for k, name in enumerate(named)}


SYSTEM = Path("/")
"""Root of the folders `proc` and `sys`."""
NO_LIMIT = 1 << 60
"""Smallest limit in bytes that means unlimited; version 1 reports a number near 2^63 for no limit."""


# --- control groups and memory ---------------------------------------------------------------------------------------


def list_groups(controller: str) -> Iterator[Path]:
    """Yield the folders of the control groups of this process: its own, then its ancestors.

    Parameters
    ----------
    controller : name, such as `memory` or `cpu`
    """
    for line in read_text(SYSTEM / "proc/self/cgroup").splitlines():
        number, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = SYSTEM / "sys/fs/cgroup" / ("" if number == "0" and not controllers else controller)
        folder = top / path.lstrip("/")
        yield from (folder, *(parent for parent in folder.parents if parent.is_relative_to(top)))


def find_memory_limit() -> int | None:
    """Return the bytes this process may use; None if no group limits them."""
    return min((limit for group in list_groups("memory") if (limit := _find_limit(group)) is not None), default=None)


def find_free_memory() -> int | None:
    """Return the bytes this process may still allocate; None if no group limits them.

    Cached pages of files count as free, as the system evicts them when memory is needed.
    """
    return min((free for group in list_groups("memory") if (free := _find_free(group)) is not None), default=None)


def read_text(path: Path) -> str:
    """Read a system file; return an empty string if it is missing or unreadable."""
    try:
        return path.read_text()
    except OSError:
        return ""


def _find_limit(group: Path) -> int | None:
    text = (read_text(group / "memory.max") or read_text(group / "memory.limit_in_bytes")).strip()
    return int(text) if text.isdigit() and int(text) < NO_LIMIT else None


def _find_free(group: Path) -> int | None:
    if (limit := _find_limit(group)) is None:
        return None
    used = read_text(group / "memory.current") or read_text(group / "memory.usage_in_bytes")
    if not used:
        return None
    told = dict(line.split() for line in read_text(group / "memory.stat").splitlines())
    # In version 1, only names with `total_` include nested groups, as the memory in use does; in version 2 all do.
    of_files = sum(int(told.get(f"total_{name}", told.get(name, 0))) for name in ("inactive_file", "active_file"))
    return max(0, limit - max(0, int(used) - of_files))


def find_available_memory() -> int:
    """Return the bytes of the machine that processes may still allocate."""
    told = dict(line.split(":", 1) for line in read_text(SYSTEM / "proc/meminfo").splitlines())
    if "MemAvailable" in told:
        return int(told["MemAvailable"].split()[0]) * 1024
    import psutil  # takes longer to import than the file to read

    return int(psutil.virtual_memory().available)


def return_freed_memory() -> None:
    """Return memory that was freed to the system, of which the C library keeps pieces of up to 32 MiB for each thread.

    Only glibc has a function for it.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def peak_memory() -> int:
    """Return the peak resident memory of this process on the host, in bytes."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        lines = []
    peaks = [int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")]
    if peaks:
        return peaks[0]
    import resource  # its peak may include the program that the process ran before

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
