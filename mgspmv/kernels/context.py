"""Early start of what a process needs of a CUDA device, in threads, while libraries are imported and files opened.

At first only modules of Python are imported.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import sys
from contextlib import suppress
from threading import Thread


@functools.cache
def begin_context() -> None:
    """Begin to create the context of the first CUDA device, in a thread, while libraries are imported and files opened.

    It takes 0.3 s, and CuPy would do it later. Where CuPy is loaded, it may have chosen another device.
    """
    if "cupy" in sys.modules or importlib.util.find_spec("cupy") is None:
        return

    def begin() -> None:
        with suppress(OSError, AttributeError):  # there is no driver, or an old one
            driver = ctypes.CDLL("libcuda.so.1")
            device, context = ctypes.c_int(), ctypes.c_void_p()
            if driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), 0) == 0:
                driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)

    Thread(target=begin, name="mgspmv-context", daemon=True).start()


@functools.cache
def begin_sorting(device: int) -> None:
    """Begin to load CuPy's sort, and the compiler of its kernels, for a device; in a thread, as it takes 80 ms."""

    def begin() -> None:
        import cupy

        with suppress(Exception), cupy.cuda.Device(device), cupy.cuda.Stream(non_blocking=True):  # is seen in its use
            int(cupy.argsort(cupy.zeros(2, "int32"), kind="stable").min())

    Thread(target=begin, name="mgspmv-sort").start()
