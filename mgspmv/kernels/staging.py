"""Copies between the host and a CUDA device through pinned buffers, which threads fill or read meanwhile."""

from __future__ import annotations

import mmap
import queue
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from threading import Lock
from typing import Any

import numpy as np

from mgspmv.store.digests import CHUNK_ELEMENTS, run_parts

STAGING_BYTES = 8 * CHUNK_ELEMENTS
"""Bytes of a pinned buffer, which holds the largest chunk of a store."""
FETCHED_BYTES = 1 << 21
"""Bytes that a thread copies to the host at a time."""
SLAB_BYTES = 1 << 26
"""Bytes of the device that are allocated at a time for arrays of `Staging.put`."""
ALIGNED_BYTES = 256
HUGE_PAGE = 1 << 21
"""Bytes of a huge page, and alignment of pinned buffers."""
_SPARE: defaultdict[int, queue.SimpleQueue[_Buffer]] = defaultdict(queue.SimpleQueue)
"""Pinned buffers that no thread fills, by device: making one takes as long as filling it."""


class DeviceArray:
    """Device array that threads fill from the host in pieces, through pinned memory.

    Parameters
    ----------
    staging : buffers that pieces are read into; several arrays may share them
    """

    def __init__(self, n: int, dtype: Any, staging: Staging) -> None:
        import cupy

        self._array, self._staging = cupy.empty(n, dtype), staging
        self._begin, self._dtype = int(self._array.data.ptr), self._array.dtype
        # The memory may belong to a freed array whose last kernel, on this stream, is still running.
        cupy.cuda.get_current_stream().synchronize()

    def piece(self, start: int, stop: int) -> AbstractContextManager[np.ndarray]:
        """Yield pinned memory for elements start .. stop; its content is sent to them at the end of the `with`."""
        return self._staging.fill(self._begin + start * self._dtype.itemsize, stop - start, self._dtype)

    def finish(self) -> Any:
        """Return the array, once all pieces have been copied to the device."""
        self._staging.finish()
        return self._array


class Staging:
    """Pinned buffers with a stream that copies full ones to the device while others are filled, one by each thread."""

    def __init__(self) -> None:
        import cupy

        self._device, self._stream = cupy.cuda.Device(), cupy.cuda.Stream(non_blocking=True)
        self._computing = cupy.cuda.get_current_stream()
        """Stream whose kernels use the arrays of `put`."""
        self._spare = _SPARE[int(self._device)]
        self._slab: Any = None
        self._at, self._taking = 0, Lock()

    def allocate(self, n: int, dtype: Any) -> DeviceArray:
        """Allocate an array that is filled through these buffers."""
        return DeviceArray(n, dtype, self)

    @contextmanager
    def fill(self, target: int, n: int, dtype: np.dtype[Any]) -> Iterator[np.ndarray]:
        """Yield pinned memory for n elements at an address of the device, to which its content is sent at the end of
        the `with`."""
        with self._borrow() as buffer:
            n_bytes = n * dtype.itemsize
            yield buffer.memory[:n_bytes].view(dtype)
            self._copy(target, buffer.address, n_bytes, buffer)

    def _copy(self, target: int, source: int, n_bytes: int, buffer: _Buffer) -> None:
        """Enqueue a copy from or to a buffer, with little of Python, which one thread at a time runs."""
        import cupy

        runtime = cupy.cuda.runtime
        with self._device:  # the thread's default is device 0
            runtime.memcpyAsync(target, source, n_bytes, runtime.memcpyDefault, self._stream.ptr)
            buffer.copied.record(self._stream)

    @contextmanager
    def _borrow(self) -> Iterator[_Buffer]:
        """Yield a pinned buffer, once its previous copy has completed."""
        try:
            buffer = self._spare.get_nowait()
        except queue.Empty:
            with self._device:
                buffer = _Buffer()
        try:
            buffer.copied.synchronize()
            yield buffer
        finally:
            self._spare.put(buffer)

    def put(self, array: Any) -> Any:
        """Return a copy of an array on the device, complete after `finish`, or an array of the device itself."""
        if not isinstance(array, np.ndarray):
            return array
        there = self._take(array.nbytes).view(array.dtype)
        begin, step = int(there.data.ptr), STAGING_BYTES // array.itemsize
        for first in range(0, len(array), step):
            own = array[first : first + step]
            with self.fill(begin + first * array.itemsize, len(own), array.dtype) as memory:
                memory[:] = own
        return there

    def fetch(self, array: Any) -> np.ndarray:
        """Return a copy of an array of one dimension on the host; kernels that write it have completed.

        Threads copy pieces of it from pinned buffers while others come: they map pages of new memory meanwhile.
        """
        host = np.empty(len(array), array.dtype)
        begin, step = int(array.data.ptr), FETCHED_BYTES // array.itemsize

        def copy(first: int) -> None:
            own = host[first : first + step]
            with self._borrow() as buffer:
                self._copy(buffer.address, begin + first * array.itemsize, own.nbytes, buffer)
                buffer.copied.synchronize()
                own[:] = buffer.memory[: own.nbytes].view(own.dtype)

        run_parts(copy, range(0, len(array), step), None)
        self.finish()
        return host

    def _take(self, n_bytes: int) -> Any:
        """Return bytes of a slab on the device: CUDA rounds each allocation up to 2 MiB."""
        import cupy

        n_taken = -(-n_bytes // ALIGNED_BYTES) * ALIGNED_BYTES
        with self._taking:
            if self._slab is None or self._at + n_taken > len(self._slab):
                with self._device:
                    self._slab, self._at = cupy.empty(max(n_taken, SLAB_BYTES), np.uint8), 0
                self._computing.synchronize()  # the memory may be that of a freed array, as in `DeviceArray`
            self._at += n_taken
            return self._slab[self._at - n_taken : self._at - n_taken + n_bytes]

    def finish(self) -> None:
        """Wait until all copies have completed."""
        self._stream.synchronize()
        with self._taking:
            self._slab = None


class _Buffer:
    """Pinned buffer of the host, for copies from and to the current device.

    It is in huge pages where the system has them, and takes a tenth of the time of CUDA's own, which is in small ones.
    """

    def __init__(self) -> None:
        import cupy

        pages = mmap.mmap(-1, STAGING_BYTES + HUGE_PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(AttributeError, OSError):  # systems without huge pages
            pages.madvise(mmap.MADV_HUGEPAGE)
        whole = np.frombuffer(pages, np.uint8)
        first = -whole.ctypes.data % HUGE_PAGE
        self.memory = whole[first : first + STAGING_BYTES]
        """(STAGING_BYTES,) uint8."""
        self.address = int(self.memory.ctypes.data)
        """Its address."""
        self.copied = cupy.cuda.Event(disable_timing=True)
        """End of the last copy."""
        self.memory[:: mmap.PAGESIZE] = 0  # maps the pages, in this thread; CUDA lets one thread at a time do it
        cupy.cuda.runtime.hostRegister(self.address, STAGING_BYTES, 1)  # for all devices
