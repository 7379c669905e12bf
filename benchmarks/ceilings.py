"""What a machine can do at most, measured in the same run as the kernels: copying, and reading x at random."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.machines import Machine, Rounds
from mgspmv.kernels.device import load_kernel
from mgspmv.kernels.rates import measure_rates

COPIED_BYTES = 2_000_000_000
"""Of the buffer that is copied on a device."""
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

    On the host both are those of `mgspmv.kernels.rates`: a product that reads x in order, and one that reads an x of
    2^22 elements at random whatever the matrix.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._copy_bytes_per_s: float | None = None
        self._gathers_per_s: dict[tuple[int, str], float] = {}

    def find_roofline(self, n_cols: int, dtype: str) -> Roofline:
        """For products with an x of `n_cols` elements."""
        if self._machine.backend == "cpu":
            rates = measure_rates()
            return Roofline(rates.copy_bytes_per_s, rates.gathers_per_s)
        if (n_cols, dtype) not in self._gathers_per_s:
            self._gathers_per_s[n_cols, dtype] = measure_gather_rate(self._machine, n_cols, dtype)
        return Roofline(self.find_copy_rate(), self._gathers_per_s[n_cols, dtype])

    def find_copy_rate(self) -> float:
        """Bytes read and written per second by a copy."""
        if self._copy_bytes_per_s is None:
            is_host = self._machine.backend == "cpu"
            self._copy_bytes_per_s = measure_rates().copy_bytes_per_s if is_host else measure_copy_rate(self._machine)
        return self._copy_bytes_per_s

    def to_dict(self) -> dict[str, Any]:
        """For scripts: what was measured so far."""
        gathers = [{"n_cols": n, "dtype": dtype, "per_s": rate} for (n, dtype), rate in self._gathers_per_s.items()]
        return {"copy_bytes_per_s": self.find_copy_rate(), "gathers": gathers}


def measure_copy_rate(machine: Machine) -> float:
    """Bytes read and written per second when a large buffer is copied on a device."""
    source = machine.xp.zeros(COPIED_BYTES, np.uint8)
    target = machine.xp.empty_like(source)
    machine.xp.copyto(target, source)
    return 2 * COPIED_BYTES / machine.time(lambda: machine.xp.copyto(target, source), "warm", _ROUNDS).median_s


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
