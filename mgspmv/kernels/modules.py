"""CUDA sources, the types that they are compiled for, and compiled modules in the user's cache.

The cache is the folder `$MGSPMV_CACHE`, by default the system's cache folder (`~/.cache/mgspmv` on Linux). Its files
may be deleted at any time. Modules are keyed there by source, options, architecture and compiler.

CuPy would compile and cache them too, but with -ftz=true, which flushes float32 numbers below 2^-126 to zero.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import platformdirs

from mgspmv.errors import MgspmvError, StoreError
from mgspmv.files import write_beside
from mgspmv.model import Precision

CACHE_VARIABLE = "MGSPMV_CACHE"
"""Environment variable that names the folder."""
LEAST_ARCH = 70
"""Minimum compute capability, times 10, of all kernels; none needs more, so there are no fallbacks."""

_LOADING = Lock()
_LISTENERS: list[Callable[[], object]] = []
_PACKAGE = Path(__file__).parents[1]
_SUFFIXES = (".cu", ".cuh")
_NAMES = {
    "float32": "float",
    "float64": "double",
    "int32": "int",
    "int64": "int64",
    "uint8": "unsigned char",
    "uint32": "unsigned",
}
_INCLUDE = re.compile(r'^#include "(\w+\.cuh)"$', re.MULTILINE)


@contextmanager
def watch_compiling(hear: Callable[[], object]) -> Iterator[None]:
    """Call a function, in any thread, when kernels of CPU or GPU are compiled in the context, not when they load."""
    _LISTENERS.append(hear)
    try:
        yield
    finally:
        _LISTENERS.remove(hear)


def report_compiling() -> None:
    """Call the functions that wait for kernels to be compiled."""
    for hear in tuple(_LISTENERS):
        hear()


@dataclass(frozen=True)
class Specialization:
    """CUDA source and the types that it is compiled for."""

    source: str
    """File name, such as `csr_vector.cu`."""
    defines: tuple[tuple[str, str], ...]
    """Macros and their values, sorted by name."""

    @property
    def options(self) -> tuple[str, ...]:
        """Compiler options, without contraction, so that products are bit-identical to their CPU references."""
        return ("-std=c++17", "--fmad=false", *(f"-D{name}={value}" for name, value in self.defines))


@functools.cache
def specialize(source: str, **types: Any) -> Specialization:
    """Return the specialization of a source for these types.

    Parameters
    ----------
    types : by macro; dtypes become CUDA's names, other values are passed unchanged
    """
    named = {macro: _NAMES[value.name] if isinstance(value, np.dtype) else str(value) for macro, value in types.items()}
    return Specialization(source, tuple(sorted(named.items())))


def find_cuda_sources(package: Path = _PACKAGE) -> dict[str, Path]:
    """Find the CUDA C++ sources that belong to this installation.

    Parameters
    ----------
    package : folder of the package `mgspmv`; another one only to inspect another installation

    Returns
    -------
    File name to path of every `.cu` and `.cuh` file, in order of names: those of `mgspmv/_cuda`, where a wheel has
    them, else those of the checkout's `kernels`.

    Raises
    ------
    MgspmvError : neither folder holds a source
    """
    folders, checkout = [package / "_cuda"], package.parent
    if (checkout / "pyproject.toml").is_file():  # in site-packages, `kernels` would belong to another project
        folders.append(checkout / "kernels")
    for folder in folders:
        found = {path.name: path for path in sorted(folder.glob("*")) if path.suffix in _SUFFIXES}
        if found:
            return found
    raise MgspmvError(
        f"this installation has no CUDA sources: expected .cu files in {package / '_cuda'}, or in the folder "
        "kernels of a checkout; use backend='cpu', or install a build of mgspmv with CUDA kernels"
    )


def read_source(name: str) -> str:
    """Read a CUDA source with its includes expanded: the text that is compiled and that keys the cache of modules."""
    sources = find_cuda_sources()
    included: set[str] = set()

    def include(match: re.Match[str]) -> str:
        if match[1] in included:
            return ""
        included.add(match[1])
        return _INCLUDE.sub(include, sources[match[1]].read_text().replace("#pragma once\n", ""))

    return _INCLUDE.sub(include, sources[name].read_text())


def find_many_words(width: int, dtype: np.dtype[Any]) -> int:
    """Return the columns of X per thread of csr-many in a panel of this width: 16 bytes, but 4 threads per row."""
    return max(1, min(width // 4, 16 // dtype.itemsize))


COUNTS, SMALL_COUNTS = np.dtype(np.uint32), np.dtype(np.uint8)
"""Types of out-degrees on a device, and of those that are below 256."""
MANY_WEIGHTS = 1 << 20
"""Out-weights from which it saves time to find out whether they are below 256."""


def choose_weight(counts: Any) -> np.dtype[Any]:
    """Choose the type of out-weights that are counts, of NumPy or CuPy."""
    is_small = len(counts) >= MANY_WEIGHTS and float(counts.max()) <= np.iinfo(SMALL_COUNTS).max
    return SMALL_COUNTS if is_small else COUNTS


def value_types(value: np.dtype[Any] | None) -> dict[str, Any]:
    """Return the macros for the type of a matrix' values, or for a pattern."""
    return {"VALUE": value or np.dtype(np.float32), "PATTERN": int(value is None)}


def rank_types(
    value: np.dtype[Any] | None,
    z: np.dtype[Any],
    rank: np.dtype[Any],
    *,
    is_relative: bool = False,
    weight: np.dtype[Any] = COUNTS,
) -> dict[str, Any]:
    """Return the types of a PageRank step on column-sorted blocks or SELL slices.

    Parameters
    ----------
    is_relative : changes are relative to the new ranks
    weight : of out-weights; those of a matrix with values are float64
    """
    own = weight if value is None else np.dtype(np.float64)
    return value_types(value) | {"Z": z, "RANK": rank, "WEIGHT": own, "RELATIVE": int(is_relative)}


def product_types(precision: Precision, value: np.dtype[Any] | None, *, many: bool = False) -> dict[str, Any]:
    """Return the types of the product A z of a PageRank step.

    Parameters
    ----------
    value : dtype of the block's values; None for a pattern
    many : of many vectors; in float32 the product is then stored as float32, in the place where the next z goes
    """
    types = {"VALUE": value or np.dtype(np.float64), "PATTERN": int(value is None)}
    if precision != "exact":
        z = np.dtype(precision)
        own = {"Y": z} if many and precision == "float32" else {}
        return types | {"X": z, "SUM": np.dtype(np.float64)} | own
    x = np.dtype(np.int64 if value is None else np.float64)
    return types | {"X": x, "SUM": np.dtype(np.int64), "EXACT": int(value is not None)}


def step_types(
    precision: Precision,
    value: np.dtype[Any] | None,
    rank: np.dtype[Any],
    *,
    is_relative: bool = False,
    many: bool = False,
) -> dict[str, Any]:
    """Return the types of the rest of a PageRank step: of the ranks, of z' and of the product.

    Parameters
    ----------
    rank : dtype of the ranks; of float32 ones the residual is made in float64
    is_relative : as for `rank_types`
    many : as for `product_types`
    """
    types = product_types(precision, value, many=many)
    product = types.get("Y", types["SUM"])
    return {"RANK": rank, "Z": types["X"], "PRODUCT": product, "RELATIVE": int(is_relative)}


# --- compiled modules ------------------------------------------------------------------------------------------------


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
        report_compiling()
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
