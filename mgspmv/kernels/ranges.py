"""NVTX ranges, by which Nsight Systems shows what a process was at: `mgspmv product`, `exchange` and `iterations`.

A range is around the launches of what it is named after, and Nsight projects it onto what these launched on the device.
Steps are fused: the update of the ranks is in the kernels of the product. What a CUDA graph launches has no ranges
inside, so that there `iterations` is around all that are made between two looks of the host.
"""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any


class Range:
    """A range of NVTX while the context lasts, where this process has CuPy loaded; else nothing.

    Without a profiler it takes less than a microsecond.
    """

    def __init__(self, name: str) -> None:
        self._name = f"mgspmv {name}"
        self._nvtx: Any = None

    def __enter__(self) -> None:
        self._nvtx = find_nvtx()
        if self._nvtx is not None:
            self._nvtx.RangePush(self._name)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._nvtx is not None:
            self._nvtx.RangePop()


def find_nvtx() -> Any | None:
    """CuPy's NVTX; None where CuPy is not loaded, for then nothing computes on a device, or has none."""
    nvtx = getattr(getattr(sys.modules.get("cupy"), "cuda", None), "nvtx", None)
    return nvtx if getattr(nvtx, "available", False) else None
