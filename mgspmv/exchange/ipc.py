"""Memory that the processes of one host share: on each GPU by CUDA IPC handles, and of a client as an anonymous file.

All GPUs write into the memory of each while they compute. Values stored by one GPU are sent to the others over NVLink
or PCIe while it continues to multiply, without using its multiprocessors. Stores do not synchronize: kernels poll
flags, and a flag on the host that ends all waiting.

Workers write their elements of a vector into the memory of the client. The system frees it when the last process has
closed it, however that ends. Workers open it through the file descriptors of the client in /proc; those that cannot, as
they are on another host or in another container, send their elements as messages.
"""

from __future__ import annotations

import functools
import hashlib
import mmap
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mgspmv.errors import CapacityError
from mgspmv.store.digests import run_parts

MOST_DEVICES = 8
"""Maximum number of devices that write into each other's memory; not tested with more on one host."""
UNIT = 2 << 20
"""Allocation granularity in bytes: CUDA shares whole units, and a smaller allocation would share its neighbors too."""
_NOTE = np.dtype([("can", np.uint8), ("handle", np.uint8, 64)])


class IpcMemory:
    """Shared memory of this device, and the addresses of that of the others.

    Attributes
    ----------
    own : a CuPy `MemoryPointer`; zeros at first
    addresses : address of each device's memory, by rank
    is_given_up : address of an int32 of the host, not 0 after `give_up`
    round : number of the round, for kernels that synchronize
    n_bytes : bytes of each device's memory
    """

    def __init__(self, own: Any, addresses: tuple[int, ...], rank: int, n_bytes: int) -> None:
        import cupy

        self.own, self.addresses, self.n_bytes, self.round = own, addresses, n_bytes, 0
        self._opened = [address for k, address in enumerate(addresses) if k != rank]
        self._pinned = cupy.cuda.alloc_pinned_memory(4)
        self.is_given_up = int(self._pinned.ptr)
        self._given_up: np.ndarray = np.frombuffer(self._pinned, np.int32, 1)
        self._given_up[0] = 0

    def give_up(self) -> None:
        """End the wait of all kernels here that wait for other devices."""
        self._given_up[0] = 1

    def close(self) -> None:
        """Unmap the memory of the others, once no kernel uses it."""
        import cupy

        self.give_up()
        cupy.cuda.Device().synchronize()
        opened, self._opened = self._opened, []
        for address in opened:
            cupy.cuda.runtime.ipcCloseMemHandle(address)


def open_memory(rank: int, n_bytes: int, gather: Callable[[np.ndarray], np.ndarray]) -> IpcMemory | None:
    """Allocate memory on each device that all can write into. None if a pair of devices does not support it, or if
    writes do not arrive, as between PCIe devices isolated by the host. All devices of the host call this together.

    Parameters
    ----------
    gather : gathers (k,) uint8 of every rank into (n, k) on all ranks

    Raises
    ------
    CapacityError : it does not fit in the memory of this device
    """
    from cupy.cuda import runtime

    n_bytes = -(-n_bytes // UNIT) * UNIT
    own = _allocate(n_bytes)
    note = np.zeros(1, _NOTE)
    try:
        note["handle"] = np.frombuffer(runtime.ipcGetMemHandle(own.ptr), np.uint8)
        note["can"] = 1
    except runtime.CUDARuntimeError:  # for example a device without IPC handles
        pass
    notes = gather(note.view(np.uint8)).reshape(-1).view(_NOTE)
    if not notes["can"].all():
        return None
    addresses: list[int] = []
    for other, handle in enumerate(notes["handle"]):
        try:
            addresses.append(int(own.ptr) if other == rank else int(runtime.ipcOpenMemHandle(handle.tobytes())))
        except runtime.CUDARuntimeError:  # no peer access, or the device is not visible to this process
            break
    is_whole = len(addresses) == len(notes)
    if gather(np.array([is_whole], np.uint8)).all():
        arrives = _try_to_write(rank, addresses, gather)
        if gather(np.array([arrives], np.uint8)).all():
            return IpcMemory(own, tuple(addresses), rank, n_bytes)
    for other, address in enumerate(addresses):
        if other != rank:
            runtime.ipcCloseMemHandle(address)
    return None


def _try_to_write(rank: int, addresses: list[int], gather: Callable[[np.ndarray], np.ndarray]) -> bool:
    """Check that writes of all other devices into the memory of this one arrive."""
    n = len(addresses)
    for other, address in enumerate(addresses):
        if other != rank:
            _find_words(address + 8 * rank, 1).fill(rank + 1)
    gather(np.zeros(1, np.uint8))  # a barrier: all have written
    own = _find_words(addresses[rank], n)
    found = own.get()
    own.fill(0)
    return all(found[k] == k + 1 for k in range(n) if k != rank)


def _find_words(address: int, n: int) -> Any:
    """Return (n,) int64 at an address, for kernels of this device; the memory may be of another device."""
    import cupy

    memory = cupy.cuda.UnownedMemory(address, 8 * n, None, cupy.cuda.Device().id)
    return cupy.ndarray((n,), np.int64, cupy.cuda.MemoryPointer(memory, 0))


def _allocate(n_bytes: int) -> Any:
    """Allocate zeros outside CuPy's memory pool, whose handles would share other arrays too."""
    import cupy

    cupy.get_default_memory_pool().free_all_blocks()  # cached blocks may be needed here
    try:
        own = cupy.cuda.MemoryPointer(cupy.cuda.Memory(n_bytes), 0)
    except (cupy.cuda.runtime.CUDARuntimeError, cupy.cuda.memory.OutOfMemoryError) as error:
        raise CapacityError(
            f"the {n_bytes:,} bytes of vectors that other devices write into do not fit on this one: {error}; free "
            "some, or use more devices"
        ) from error
    own.memset(0, n_bytes)
    return own


@functools.cache
def name_host() -> str:
    """Return an id of this host, equal in all of its processes and unique among hosts."""
    try:
        name = Path("/proc/sys/kernel/random/boot_id").read_bytes()
    except OSError:
        import socket

        name = socket.gethostname().encode()
    return hashlib.sha256(name).hexdigest()


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
