"""The user's cache, and compiled CUDA modules in it, keyed by source, options, architecture and compiler.

The cache is the folder `$MGSPMV_CACHE`, by default the system's cache folder (`~/.cache/mgspmv` on Linux). Its files
may be deleted at any time.

CuPy would compile and cache them too, but with -ftz=true, which flushes float32 numbers below 2^-126 to zero.
"""

from __future__ import annotations

import functools
import hashlib
import os
import tempfile
import warnings
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

import platformdirs

from mgspmv.errors import StoreError
from mgspmv.files import write_beside
from mgspmv.kernels.specialize import Specialization, read_source

CACHE_VARIABLE = "MGSPMV_CACHE"
"""Environment variable that names the folder."""
_LOADING = Lock()


def find_folder() -> Path:
    """Return the folder of cached files."""
    if folder := os.environ.get(CACHE_VARIABLE):
        return Path(folder)
    return platformdirs.user_cache_path("mgspmv", appauthor=False)


def load_module(specialization: Specialization) -> Any:
    """Load CuPy's module for the current device, compiling it unless it is cached."""
    import cupy

    with _LOADING:  # else two threads may load it twice, and unload one copy while its kernel runs
        return _load_module(specialization, cupy.cuda.Device().compute_capability)


def compile_ahead(specializations: Iterable[Specialization]) -> None:
    """Begin to compile modules for the current device, side by side in threads, unless they are cached."""
    import cupy

    arch = cupy.cuda.Device().compute_capability
    for specialization in specializations:
        _begin(specialization, arch)


@functools.cache
def _load_module(specialization: Specialization, arch: str) -> Any:
    import cupy

    return cupy.RawModule(path=str(_begin(specialization, arch).result()))


@functools.cache
def _begin(specialization: Specialization, arch: str) -> Future[Path]:
    return _pool().submit(_find_compiled, specialization, arch)


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(thread_name_prefix="mgspmv-compile")


def _find_compiled(specialization: Specialization, arch: str) -> Path:
    """Return the path of a compiled module in the cache, after compiling it if it is missing."""
    from cupy.cuda import compiler, nvrtc

    source, options = read_source(specialization.source), specialization.options
    key = hashlib.sha256(repr((source, options, arch, nvrtc.getVersion())).encode()).hexdigest()
    path = find_folder() / "kernels" / f"{Path(specialization.source).stem}-{key[:32]}.cubin"
    if not path.exists():
        code, _ = compiler.compile_using_nvrtc(source, options, arch)
        path = _keep(path, code.encode() if isinstance(code, str) else code)
    return path


def _keep(path: Path, code: bytes) -> Path:
    """Write the file to the cache, or to a folder of this process if the cache is not writable."""
    try:
        with write_beside(path) as part:
            part.write_bytes(code)
    except StoreError as error:
        warnings.warn(
            f"compiled kernels cannot be cached in {path.parent} ({error.__cause__}), so every process will compile "
            f"them; set ${CACHE_VARIABLE} to a writable folder",
            stacklevel=2,
        )
        path = Path(_make_folder().name) / path.name
        path.write_bytes(code)
    return path


@functools.cache
def _make_folder() -> tempfile.TemporaryDirectory[str]:
    """Make a temporary folder that is deleted when the process ends."""
    return tempfile.TemporaryDirectory(prefix="mgspmv-kernels-")
