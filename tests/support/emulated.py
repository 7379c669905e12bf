"""CUDA kernels on a processor: the sources as they are, compiled by a C++ compiler; see emulated.hpp."""

from __future__ import annotations

import ctypes
import functools
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mgspmv.kernels import band_slices, bins, column_sorted_blocks, cuda_products, layout, rank_products, rank_steps
from mgspmv.kernels.modules import read_source, specialize
from tests.support.played_build import Array, PlayedCupy

COMPILER = shutil.which("g++") or shutil.which("clang++")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
_HEADER = Path(__file__).with_suffix(".hpp")
_KERNEL = re.compile(r'extern "C" __global__ void\s+(\w+)\(([^{]*)\)\s*\{')
_SHARED = re.compile(r"extern __shared__ (?:__align__\(\d+\) )?(\w+) (\w+)\[\];")


def load_kernel(source: str, name: str, **types: Any) -> EmulatedKernel:
    """As `mgspmv.kernels.device.load_kernel`."""
    return EmulatedKernel(getattr(_compile(source, specialize(source, **types).defines), f"launch_{name}"))


class EmulatedKernel:
    """A kernel that is begun as CuPy's are, and is done when that returns."""

    max_dynamic_shared_size_bytes, preferred_shared_memory_carveout = 1 << 20, 0

    def __init__(self, launch: Callable[..., None]) -> None:
        self._launch = launch

    def __call__(self, grid: tuple[int], threads: tuple[int], arguments: tuple[Any, ...], shared_mem: int = 0) -> None:
        held = [_find_bytes(own) for own in arguments]
        places = (ctypes.c_void_p * len(held))(*(own.ctypes.data for own in held))
        self._launch(grid[0], threads[0], ctypes.c_size_t(shared_mem), places)


def find_address(array: np.ndarray | None) -> int:
    """Address of an array's elements; 0 for None."""
    return 0 if array is None else array.ctypes.data


def pack(*fields: Any) -> np.ndarray:
    """As `mgspmv.kernels.device.pack`, of arrays of NumPy."""
    words = [find_address(own) if own is None or isinstance(own, np.ndarray) else own for own in fields]
    packed = b"".join(np.array([own], np.float64 if isinstance(own, float) else np.int64).tobytes() for own in words)
    return np.frombuffer(bytearray(packed), np.uint8).view(Packed)


class Packed(np.ndarray):
    """The bytes of a structure, which is passed by value."""


def _find_bytes(argument: Any) -> np.ndarray:
    """The bytes of an argument: a packed structure, a scalar, or the address of an array."""
    if isinstance(argument, Packed):
        return argument
    if argument is None or isinstance(argument, np.ndarray):
        return np.array([find_address(argument)], np.int64)
    return np.array([argument])


@functools.cache
def _compile(source: str, defines: tuple[tuple[str, str], ...]) -> ctypes.CDLL:
    """Compile a source with a function `launch_<kernel>` for each of its kernels."""
    assert COMPILER is not None
    given = ["-D__launch_bounds__(...)=", *(f"-D{name}={value}" for name, value in defines)]
    command = [COMPILER, "-E", "-P", "-x", "c++", *given, "-"]
    text = subprocess.run(command, input=read_source(source), capture_output=True, check=True, text=True).stdout
    launchers = []
    for name, parameters in _KERNEL.findall(text):
        kinds = [re.sub(r"\b\w+$", "", own.strip()).replace("__restrict__", "") for own in parameters.split(",")]
        own = ", ".join(f"*reinterpret_cast<{_as_pointer(kind)}>(a[{k}])" for k, kind in enumerate(kinds))
        launchers.append(
            f'extern "C" void launch_{name}(unsigned grid, unsigned threads, size_t n_shared, void** a) {{ '
            f"fibers::run_grid(grid, threads, n_shared, [=] {{ {name}({own}); }}); }}"
        )
    text = text.replace('extern "C" __global__', "static")  # else `step` would be that of the C library
    text = _SHARED.sub(r"\1* \2 = reinterpret_cast<\1*>(fibers::find_shared());", text)
    folder = Path(tempfile.mkdtemp(prefix="mgspmv-emulated-"))
    try:
        path = folder / "kernels.cpp"
        path.write_text("\n".join([f'#include "{_HEADER}"', text, *launchers]))
        options = [
            "-std=c++17",
            "-O1",
            "-U_FORTIFY_SOURCE",
            "-w",
            "-shared",
            "-fPIC",
            "-ffp-contract=off",
            "-fno-strict-aliasing",
        ]
        subprocess.run([COMPILER, *options, str(path), "-o", str(folder / "kernels.so")], check=True)
        return ctypes.CDLL(str(folder / "kernels.so"))
    finally:
        shutil.rmtree(folder)


def _as_pointer(kind: str) -> str:
    return f"std::remove_const_t<{kind.strip()}>*"


def emulate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have products, and the layouts and steps of PageRank, run on a device that is a processor."""
    replaced = {
        "load_kernel": load_kernel,
        "pack": pack,
        "put": lambda array: np.array(array).view(Array),
        "put_all": lambda *arrays: [np.array(array).view(Array) for array in arrays],
        "zeros": lambda n, dtype: np.zeros(n, dtype).view(Array),
        "fetch": np.array,
        "address": lambda array: array,
        "reclaim_memory": lambda *_: None,
        "report_full_device": lambda _: nullcontext(),
        "release_device_memory": lambda *_, **__: None,
        "shared_memory": lambda: (2, 233_472),
        "shared_block_bytes": lambda: 232_448,
        "cache_bytes": lambda: 1000,
    }
    for module in (bins, column_sorted_blocks, cuda_products, layout, band_slices, rank_products, rank_steps):
        for name in replaced.keys() & vars(module).keys():
            monkeypatch.setattr(module, name, replaced[name])
    monkeypatch.setattr(rank_steps.RankSteps, "_is_captured", False)  # nothing is enqueued that could be captured
    monkeypatch.setitem(sys.modules, "cupy", PlayedCupy())


ON_BOTH = pytest.mark.parametrize(
    "device",
    [pytest.param("real", marks=pytest.mark.gpu), pytest.param("emulated", marks=[pytest.mark.slow, needs_compiler])],
)
"""Tests that take `device` run on a CUDA device, and on the processor if `use` is called first."""


def use(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin a test of `ON_BOTH`."""
    if device == "emulated":
        emulate(monkeypatch)
