"""Where the benchmark runs: the host with NumPy or a CUDA device with CuPy, and how time is taken there."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

import numpy as np

from benchmarks.cusparse import find_version
from benchmarks.timing import time_on_device, time_on_host
from mgspmv.kernels.catalogue import Backend
from mgspmv.kernels.device import check_device, describe_device, get

State = Literal["cold", "warm"]
"""Of the caches before a run: `warm` is what the run before left, `cold` is other data."""

FLUSHES = 4
"""How many times as large as the last cache the buffer is that is read to make it cold."""
FLUSH_ROWS = 8192
"""Rows of that buffer on a device, each read by a thread block."""


@dataclass(frozen=True)
class Rounds:
    """How often a run is timed."""

    most: int
    least: int = 3
    """At least so many times, unless `most` is less, however long they take."""
    most_s: float = 0.5
    """No further one begins after so many seconds."""

    def is_over(self, done: int, elapsed_s: float) -> bool:
        return done >= self.most or (done >= self.least and elapsed_s >= self.most_s)


@dataclass(frozen=True)
class Times:
    """Of one state of the caches."""

    median_s: float
    least_s: float
    n_rounds: int


class Machine(ABC):
    """Where arrays are and runs are timed."""

    backend: Backend
    xp: Any
    """The array module."""
    n_rounds: int
    """How often a run is timed unless asked otherwise."""

    def time(self, run: Callable[[], object], state: State, rounds: Rounds) -> Times:
        """Time single runs; the first one of all, which compiles, is to be over."""
        seconds: list[float] = []
        began = time.perf_counter()
        while not rounds.is_over(len(seconds), time.perf_counter() - began):
            seconds.append(self.time_once(run, state))
        return Times(median(seconds), min(seconds), len(seconds))

    @abstractmethod
    def time_once(self, run: Callable[[], object], state: State) -> float:
        """Seconds of one run."""

    def clock(self, run: Callable[[], object]) -> float:
        """Seconds of one run by the host's clock, from when nothing is under way until all is done that it enqueued."""
        self.wait()
        began = time.perf_counter()
        run()
        self.wait()
        return time.perf_counter() - began

    @abstractmethod
    def wait(self) -> None:
        """Wait until what was enqueued is done, on any stream."""

    @abstractmethod
    def get(self, array: Any) -> np.ndarray:
        """The array on the host."""

    @abstractmethod
    def free(self) -> None:
        """Give memory back that nothing uses any more."""

    @abstractmethod
    def describe(self) -> dict[str, str]:
        """Describe the device and its software; empty for the host."""


class Host(Machine):
    """The processors, with NumPy's arrays."""

    backend = "cpu"
    xp = np
    n_rounds = 5

    def __init__(self) -> None:
        self._buffer = np.ones(FLUSHES * _find_cache_bytes() // 8)

    def time_once(self, run: Callable[[], object], state: State) -> float:
        return time_on_host(run, self._buffer.sum if state == "cold" else None)

    def wait(self) -> None:
        pass

    def get(self, array: Any) -> np.ndarray:
        return np.asarray(array)

    def free(self) -> None:
        pass

    def describe(self) -> dict[str, str]:
        return {}


class Device(Machine):
    """The current CUDA device, with CuPy's arrays; runs are timed with its events.

    Raises
    ------
    BackendError : there is none, or no CuPy
    """

    backend = "cuda"
    n_rounds = 20

    def __init__(self) -> None:
        check_device()
        import cupy

        self.xp = cupy
        cache_bytes = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)["l2CacheSize"]
        self._buffer = cupy.ones((FLUSH_ROWS, max(1, FLUSHES * cache_bytes // (4 * FLUSH_ROWS))), np.float32)
        self._sums = cupy.empty(FLUSH_ROWS, np.float32)

    def time_once(self, run: Callable[[], object], state: State) -> float:
        return time_on_device(run, self._flush if state == "cold" else None)

    def _flush(self) -> None:
        # Read, not written: written lines would have to be stored while the run is timed.
        self._buffer.sum(axis=1, out=self._sums)

    def wait(self) -> None:
        self.xp.cuda.Device().synchronize()

    def get(self, array: Any) -> np.ndarray:
        return get(array)

    def free(self) -> None:
        self.xp.get_default_memory_pool().free_all_blocks()

    def describe(self) -> dict[str, str]:
        runtime = self.xp.cuda.runtime
        properties = runtime.getDeviceProperties(self.xp.cuda.Device().id)
        return {
            "device": f"{describe_device()}, {properties['multiProcessorCount']} multiprocessors, "
            f"{properties['totalGlobalMem'] / 2**30:.0f} GiB, {properties['l2CacheSize'] / 2**20:.0f} MiB of L2",
            "driver": f"{_find_driver()}, for CUDA {_format_cuda(runtime.driverGetVersion())}",
            "CUDA": f"{_format_cuda(runtime.runtimeGetVersion())}, cuSPARSE {find_version()}, "
            f"CuPy {self.xp.__version__}",
        }


def choose_machine(backend: Backend) -> Machine:
    """The machine of a backend.

    Raises
    ------
    BackendError : `cuda` was asked for, and CuPy or a usable device is missing
    """
    return Device() if backend == "cuda" else Host()


def _find_cache_bytes() -> int:
    """Size of the last cache; 32 MiB where the system does not tell, and at most that of 16 processors with 4 MiB."""
    sizes = [32 << 20]
    if hasattr(os, "sysconf_names") and "SC_LEVEL3_CACHE_SIZE" in os.sysconf_names:
        sizes.append(os.sysconf("SC_LEVEL3_CACHE_SIZE"))
    return min(max(sizes), 64 << 20)


def _find_driver() -> str:
    """Version of the driver, which CUDA itself does not tell."""
    if shutil.which("nvidia-smi") is None:
        return "unknown version"
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    lines = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
    return lines[0] if lines else "unknown version"


def _format_cuda(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"
