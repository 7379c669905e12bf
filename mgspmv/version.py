"""Versions of the program and its dependencies, and visible GPUs."""

from __future__ import annotations

import functools
import platform
from importlib.util import find_spec

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

    found = {"mgspmv": __version__, "python": platform.python_version()}
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
