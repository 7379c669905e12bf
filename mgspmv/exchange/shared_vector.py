"""Vector in memory of a client, into which worker processes of the same host write their elements.

The memory is an anonymous file, which the system frees when the last process has closed it, however that ends. Workers
open it through the file descriptors of the client in /proc; those that cannot, as they are on another host or in
another container, send their elements as messages.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from mgspmv.exchange.ipc import name_host
from mgspmv.store.digests import run_parts

MOST_ITEMSIZE = 8
"""Most bytes of an element."""
LEAST_BYTES = 1 << 20
"""Least bytes of a vector that is worth a file."""
WRITTEN_BYTES = 1 << 22
"""Bytes that a thread writes at a time."""


@dataclass(frozen=True)
class WrittenElements:
    """Elements that a worker has written into a shared vector."""

    dtype: str


@dataclass(frozen=True)
class VectorAddress:
    """Address of a shared vector, for the processes of its host."""

    host: str
    """Id of the host, see `name_host`."""
    pid: int
    descriptor: int
    file: tuple[int, int]
    """Device and inode, which identify the file."""

    def write(self, start: int, values: Any, threads: int | None = None) -> WrittenElements | None:
        """Write elements from `start` on; None if this process cannot.

        Parameters
        ----------
        values : (k,) array on the host
        threads : number of threads that write; None for one per processor
        """
        if not isinstance(values, np.ndarray) or values.ndim != 1 or self.host != name_host():
            return None
        descriptor = self._open()
        if descriptor is None:
            return None
        raw, first = np.ascontiguousarray(values).view(np.uint8), start * values.itemsize

        def put(place: int) -> None:
            """Write by a map, as the system lets one thread of all processes at a time call `write`."""
            own, at = raw[place : place + WRITTEN_BYTES], first + place
            skipped = at % mmap.ALLOCATIONGRANULARITY
            mapped = mmap.mmap(descriptor, skipped + len(own), offset=at - skipped)
            np.frombuffer(mapped, np.uint8)[skipped:] = own

        try:
            run_parts(put, range(0, len(raw), WRITTEN_BYTES), threads)
        finally:
            os.close(descriptor)
        return WrittenElements(values.dtype.str)

    def _open(self) -> int | None:
        try:
            descriptor = os.open(f"/proc/{self.pid}/fd/{self.descriptor}", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return None
        status = os.fstat(descriptor)
        if (status.st_dev, status.st_ino) == self.file:
            return descriptor
        os.close(descriptor)
        return None


class SharedVector:
    """Vector of n elements that workers write; a context manager, after which it can be written no longer.

    Attributes
    ----------
    address : None for a vector that is too small, or a system without such files
    """

    def __init__(self, n: int) -> None:
        self._n, self._file = n, -1
        self.address: VectorAddress | None = None
        if n * MOST_ITEMSIZE < LEAST_BYTES or not hasattr(os, "memfd_create"):
            return
        with suppress(OSError):
            self._file = os.memfd_create("mgspmv-vector", os.MFD_CLOEXEC)
            os.ftruncate(self._file, n * MOST_ITEMSIZE)
            status = os.fstat(self._file)
            file = (status.st_dev, status.st_ino)
            self.address = VectorAddress(name_host(), os.getpid(), self._file, file)

    def __enter__(self) -> SharedVector:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def join(self, parts: Sequence[Any], bounds: Sequence[int]) -> np.ndarray:
        """Return the vector, which lasts as long as it is used.

        Parameters
        ----------
        parts : elements of each worker: `WrittenElements`, or (k,) arrays as they were sent
        bounds : first element of each worker, and their number
        """
        written = next((part for part in parts if isinstance(part, WrittenElements)), None)
        if written is None:
            joined: np.ndarray = np.concatenate(parts)
            return joined
        dtype = np.dtype(written.dtype)
        vector = np.frombuffer(mmap.mmap(self._file, self._n * dtype.itemsize), dtype)
        for part, start in zip(parts, bounds[:-1], strict=True):
            if not isinstance(part, WrittenElements):
                vector[start : start + len(part)] = part
        return vector
