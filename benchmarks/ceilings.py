"""What a machine can do at most, measured in the same run as the kernels: copying, and reading x at random."""

from __future__ import annotations

import functools
import timeit
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.machines import Machine, Rounds
from mgspmv.kernels.cpu import CpuBlock
from mgspmv.kernels.device import load_kernel
from mgspmv.model import CsrBlock

COPIED_BYTES = 2_000_000_000
"""Of the buffer that is copied on a device."""
UPLOADED_BYTES = 1 << 28
HOST_ENTRIES = 1 << 22
"""Entries of a block that is timed on the host, and elements of its x."""
N_GATHERS = 1 << 26
"""How many elements of x are read at random on a device."""
GATHERS_PER_BLOCK = 8192
"""Of a thread block of gather.cu."""
GATHER_THREADS = 256

_ROUNDS = Rounds(10)


@dataclass(frozen=True)
class Roofline:
    """The least time of a product: of its bytes at the rate of a copy, of its gathers at the rate of random ones."""

    copy_bytes_per_s: float
    """Bytes read and written per second by a copy."""
    gathers_per_s: float
    """Random reads of an x of that length per second; the time to read their indices is in it."""

    def predict(self, nbytes: int, nnz: int) -> float:
        """Seconds that a product of minimal bytes and random columns takes at least."""
        return max(nbytes / self.copy_bytes_per_s, nnz / self.gathers_per_s)


class Ceilings:
    """Measures each rate once, when it is first asked for.

    On the host both are of products: one that reads x in order, and one that reads an x of 2^22 elements at random
    whatever the matrix.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._copy_bytes_per_s: float | None = None
        self._gathers_per_s: dict[tuple[int, str], float] = {}

    def find_roofline(self, n_cols: int, dtype: str) -> Roofline:
        """For products with an x of `n_cols` elements."""
        if self._machine.backend == "cpu":
            return measure_host()
        if (n_cols, dtype) not in self._gathers_per_s:
            self._gathers_per_s[n_cols, dtype] = measure_gather_rate(self._machine, n_cols, dtype)
        return Roofline(self.find_copy_rate(), self._gathers_per_s[n_cols, dtype])

    def find_copy_rate(self) -> float:
        """Bytes read and written per second by a copy."""
        if self._copy_bytes_per_s is None:
            is_host = self._machine.backend == "cpu"
            self._copy_bytes_per_s = measure_host().copy_bytes_per_s if is_host else measure_copy_rate(self._machine)
        return self._copy_bytes_per_s

    def to_dict(self) -> dict[str, Any]:
        """For scripts: what was measured so far."""
        gathers = [{"n_cols": n, "dtype": dtype, "per_s": rate} for (n, dtype), rate in self._gathers_per_s.items()]
        return {"copy_bytes_per_s": self.find_copy_rate(), "gathers": gathers}


@functools.cache
def measure_host() -> Roofline:
    """Time products on the host whose x is read in order, and at random."""
    per_row, n = 16, HOST_ENTRIES
    indptr = np.arange(0, n + 1, per_row, dtype=np.int64)
    in_order = CsrBlock(0, n, indptr, np.arange(n, dtype=np.int32), None)
    at_random = CsrBlock(0, n, indptr, np.random.default_rng(0).integers(0, n, n, dtype=np.int32), None)
    streamed_bytes = in_order.nbytes + 8 * n + 8 * (n // per_row)
    return Roofline(streamed_bytes / _time_product(in_order), n / _time_product(at_random))


def _time_product(block: CsrBlock) -> float:
    kernel = CpuBlock(block, "float64")
    x, y = np.ones(block.n_cols), np.empty(block.n_rows)
    kernel.multiply(x, y)
    return min(timeit.repeat(lambda: kernel.multiply(x, y), number=1, repeat=3))


def measure_copy_rate(machine: Machine) -> float:
    """Bytes read and written per second when a large buffer is copied on a device."""
    source = machine.xp.zeros(COPIED_BYTES, np.uint8)
    target = machine.xp.empty_like(source)
    machine.xp.copyto(target, source)
    return 2 * COPIED_BYTES / machine.time(lambda: machine.xp.copyto(target, source), "warm", _ROUNDS).median_s


def measure_upload_rate() -> float:
    """Bytes per second from pinned memory to the current device."""
    import cupy
    import cupyx

    pinned, target = cupyx.empty_pinned(UPLOADED_BYTES, np.uint8), cupy.empty(UPLOADED_BYTES, np.uint8)
    stream = cupy.cuda.get_current_stream()

    def upload() -> None:
        target.set(pinned, stream)
        stream.synchronize()

    stream.synchronize()
    return UPLOADED_BYTES / min(timeit.repeat(upload, number=1, repeat=3))


def measure_gather_rate(machine: Machine, n_cols: int, dtype: str) -> float:
    """Elements per second that a device reads at random places of a vector; reading the indices is timed with it.

    Parameters
    ----------
    n_cols : elements of the vector
    dtype : of the vector
    """
    xp = machine.xp
    if n_cols == 0:
        return float("inf")
    gather = load_kernel("gather.cu", "gather", VALUE=np.dtype(dtype), INDEX=np.dtype(np.int32), PATTERN=0)
    n_blocks = N_GATHERS // GATHERS_PER_BLOCK
    indices = xp.random.default_rng(1).integers(0, min(n_cols, 2**31 - 1), N_GATHERS, dtype=np.int32)
    arguments = (indices, xp.ones(n_cols, dtype), xp.empty(n_blocks * GATHER_THREADS, dtype))

    def run() -> None:
        gather((n_blocks,), (GATHER_THREADS,), arguments)

    run()
    return N_GATHERS / machine.time(run, "warm", _ROUNDS).median_s
