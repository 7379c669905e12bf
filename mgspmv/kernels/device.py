"""CUDA device: detection, memory, transfers and compiled kernels.

CuPy is imported on first use of a device.
"""

from __future__ import annotations

import functools
import importlib.util
import struct
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from itertools import accumulate, islice
from threading import Lock
from typing import Any

import numpy as np

from mgspmv.environment import peak_memory
from mgspmv.errors import BackendError, CapacityError, MissingDependencyError
from mgspmv.kernels.modules import LEAST_ARCH, Specialization, load_module, specialize
from mgspmv.kernels.staging import Staging
from mgspmv.model import INT32_LIMIT, CsrBlock
from mgspmv.plan import HELD_PIECES
from mgspmv.store.stored_matrix import Range, StoredMatrix

LEAST_FETCHED = 1 << 25
"""Least bytes of an array that is copied to the host in such pieces."""
_ROOM = Lock()
NO_CUPY = "CuPy is not installed"
TABLE_BYTES = 256
"""Alignment of arrays that are copied to the device together."""
LITTLE = 1 << 28
"""Bytes of unused device memory that may be kept in addition to the memory that was planned."""


def has_device() -> bool:
    """Return whether this process can compute on a CUDA device."""
    return find_device_problem() is None


@functools.cache
def find_device_problem() -> str | None:
    """Return why this process cannot compute on a CUDA device, in words; None if it can. CuPy is imported only if it is
    installed."""
    if importlib.util.find_spec("cupy") is None:
        return NO_CUPY
    import cupy

    try:
        n_devices = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"CUDA found no device ({error})"
    if n_devices == 0:
        return "CUDA found no device"
    arch = int(cupy.cuda.Device().compute_capability)
    if arch >= LEAST_ARCH:
        return None
    return f"{describe_device()} has compute capability {arch / 10:.1f}, below {LEAST_ARCH / 10:.1f}"


def check_device() -> None:
    """Check that this process can compute on a CUDA device.

    Raises
    ------
    MissingDependencyError : CuPy is not installed
    BackendError : there is no usable device; the message says why
    """
    problem = find_device_problem()
    if problem == NO_CUPY:
        raise MissingDependencyError(
            "backend='cuda' needs CuPy, which is not installed; install mgspmv[cuda12] or mgspmv[cuda13], or use "
            "backend='cpu', or call on('cpu')"
        )
    if problem is not None:
        raise BackendError(f"backend='cuda' needs a CUDA GPU, but {problem}; use backend='cpu', or call on('cpu')")


def describe_device() -> str:
    """Return the name of the current device."""
    import cupy

    name: bytes = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)["name"]
    return name.decode()


def current_device() -> int:
    """Return the number of the current device."""
    import cupy

    return int(cupy.cuda.Device().id)


def use_device(number: int) -> AbstractContextManager[Any]:
    """Return a context in which a device is the current one of this thread, as another thread has chosen it."""
    import cupy

    device: AbstractContextManager[Any] = cupy.cuda.Device(number)
    return device


def device_id() -> str:
    """Return an ID of the current device that is unique across hosts."""
    import cupy

    identity: bytes = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)["uuid"]
    return identity.hex()


def free_device_memory() -> int:
    """Return the bytes of the current device that this process can still allocate."""
    import cupy

    free, _ = cupy.cuda.runtime.memGetInfo()
    return int(free + cupy.get_default_memory_pool().free_bytes())


def measure_memory(*, has_device: bool) -> dict[str, int]:
    """Measure the bytes that this process has allocated so far.

    Parameters
    ----------
    has_device : whether it computes on the current device

    Returns
    -------
    `host_peak_bytes` : peak resident on the host since the process began, including the interpreter and its libraries
    `device_bytes` : bytes that CuPy holds on the device, the maximum since it last released free memory
    """
    peak = {"host_peak_bytes": peak_memory()}
    if not has_device:
        return peak
    import cupy

    return peak | {"device_bytes": int(cupy.get_default_memory_pool().total_bytes())}


@dataclass(frozen=True)
class DeviceMemory:
    """Memory of the current device in bytes."""

    total: int
    free: int
    """Bytes not allocated by any process."""
    used: int
    """Bytes that CuPy holds for this process."""


def measure_device_memory() -> DeviceMemory:
    """Measure the memory of the current device, in a process that computes on it: in others, the call takes memory."""
    import cupy

    free, total = cupy.cuda.runtime.memGetInfo()
    return DeviceMemory(int(total), int(free), int(cupy.get_default_memory_pool().total_bytes()))


def release_device_memory(stream: Any = None, *, beyond: int = 0) -> None:
    """Release the unused memory that CuPy keeps for this process, or for one stream.

    Parameters
    ----------
    beyond : bytes up to which unused memory is kept, as releasing it is not worth the time
    """
    import cupy

    pool = cupy.get_default_memory_pool()
    if pool.free_bytes() > beyond:
        pool.free_all_blocks(stream)


@contextmanager
def report_full_device(what: str) -> Iterator[None]:
    """Turn CuPy's out-of-memory error into a `CapacityError` that names what did not fit.

    Raises
    ------
    CapacityError : `what` does not fit
    """
    import cupy

    try:
        yield
    except cupy.cuda.memory.OutOfMemoryError as error:
        raise CapacityError(
            f"{what} does not fit into the {free_device_memory():,} bytes free on {describe_device()}: {error}; "
            "free device memory, or pass kernel='csr-split' or backend='cpu'"
        ) from error


def shared_memory() -> tuple[int, int]:
    """Return the number of multiprocessors of the current device, and the bytes of shared memory of each."""
    attributes = _list_attributes(current_device())
    return attributes["MultiProcessorCount"], attributes["MaxSharedMemoryPerMultiprocessor"]


def shared_block_bytes() -> int:
    """Return the most bytes of shared memory that a thread block of the current device may request."""
    return _list_attributes(current_device())["MaxSharedMemoryPerBlockOptin"]


def cache_bytes() -> int:
    """Return the bytes of the L2 cache of the current device."""
    return _list_attributes(current_device())["L2CacheSize"]


@functools.cache
def _list_attributes(device: int) -> dict[str, int]:
    """Return the attributes of a device; to read them takes as long as a kernel."""
    import cupy

    return {name: int(value) for name, value in cupy.cuda.Device(device).attributes.items()}


def load_kernel(source: str, name: str, **types: Any) -> Any:
    """Load a kernel of a CUDA source, compiled for the current device or taken from the user's cache.

    Parameters
    ----------
    types : by macro, as for `specialize`

    Returns
    -------
    Function of (grid, block, arguments) that runs on CuPy's current stream; scalars must be NumPy's.
    """
    return _load_function(specialize(source, **types), name, current_device())


@functools.cache
def _load_function(specialization: Specialization, name: str, device: int) -> Any:
    """Load a kernel for a device, which is the current one."""
    return load_module(specialization).get_function(name)


def reclaim_memory(kernel: Any, n_bytes: int) -> None:
    """Raise the kernel's limit of dynamic shared memory to at least `n_bytes`; safe in several threads."""
    with _ROOM:
        if n_bytes > kernel.max_dynamic_shared_size_bytes:
            kernel.max_dynamic_shared_size_bytes = n_bytes


def address(array: Any) -> Any:
    """Return an array as a kernel argument; a null pointer for None."""
    return np.uint64(0) if array is None else array


def pack(*fields: Any) -> np.ndarray:
    """Pack a structure of 64-bit fields as a kernel argument by value: pointers to arrays on the device, null for None,
    doubles for floats and int64 for other numbers."""
    words = [_find_word(value) for value in fields]
    packed = struct.pack("".join(["d" if isinstance(word, float) else "q" for word in words]), *words)
    return np.frombuffer(bytearray(packed), np.dtype((np.void, len(packed))))


def _find_word(value: Any) -> int | float:
    if isinstance(value, (int, float)):
        return value
    if value is None:
        return 0
    return int(value) if isinstance(value, np.integer) else int(value.data.ptr)


def count_blocks(n: int, size: int) -> int:
    """Count the thread blocks of `size` items that n items need."""
    return -(-n // size)


def zeros(n: int, dtype: Any) -> Any:
    """Return (n,) zeros on the device."""
    import cupy

    with report_full_device(f"a vector of {n:,} elements"):
        return cupy.zeros(n, dtype)


def put(array: Any) -> Any:
    """Return the array on the device, without a copy if it is already there."""
    import cupy

    with report_full_device(f"an array of {array.nbytes:,} bytes"):
        return cupy.asarray(array)


def put_all(*arrays: Any) -> list[Any]:
    """Return arrays on the device; those on the host, which are to be small, are copied together."""
    import cupy

    parts = [array.tobytes() for array in arrays if isinstance(array, np.ndarray)]
    starts = [0, *accumulate(count_blocks(len(part), TABLE_BYTES) * TABLE_BYTES for part in parts)]
    together = bytearray(starts[-1])
    for start, part in zip(starts, parts, strict=False):
        together[start : start + len(part)] = part
    there, coming = put(np.frombuffer(together, np.uint8)).data, iter(starts)
    return [
        cupy.ndarray(array.shape, array.dtype, there + next(coming)) if isinstance(array, np.ndarray) else array
        for array in arrays
    ]


def get(array: Any) -> np.ndarray:
    """Return the array on the host; it may be of any library with `__cuda_array_interface__`."""
    import cupy

    host: np.ndarray = cupy.asnumpy(array)
    return host


def fetch(array: Any) -> np.ndarray:
    """Return an array of CuPy on the host; a large one in pieces, see `Staging.fetch`."""
    import cupy

    if array.nbytes < LEAST_FETCHED:
        return get(array)
    whole = cupy.ascontiguousarray(array).ravel()
    cupy.cuda.get_current_stream().synchronize()
    return Staging().fetch(whole).reshape(array.shape)


def put_block(block: CsrBlock) -> CsrBlock:
    """Put a block on the device: int32 row pointers below 2^31 nonzeros, indices and values aligned to 16 bytes."""
    import cupy

    offset = np.int32 if block.nnz < INT32_LIMIT else np.int64
    indptr = cupy.asarray(block.indptr.astype(offset, copy=False))
    data = None if block.data is None else _align(cupy.asarray(block.data))
    return CsrBlock(block.row_offset, block.n_cols, indptr, _align(cupy.asarray(block.indices)), data)


def read_block(stored: StoredMatrix, start: int, stop: int, dtype: Any, threads: int | None = None) -> CsrBlock:
    """Read rows `start` .. `stop` of a store to the device, as `StoredMatrix.read_block` does to the host.

    Chunks are decompressed into pinned buffers by all threads while others are copied; the host never holds the block.
    """
    with report_full_device(f"a block of rows {start} to {stop}"):
        return put_block(stored.read_block(start, stop, dtype, threads, Staging().allocate))


def make_row_reader(
    stored: StoredMatrix, start: int, indptr: np.ndarray, first_entry: int, dtype: Any, threads: int | None = None
) -> Callable[[int, int], CsrBlock]:
    """Return a function that reads rows to the device as `read_block` does, without their row pointers.

    Parameters
    ----------
    start : row that its arguments count from
    indptr : int64 row pointers from there on, less `first_entry`
    """

    def read(first: int, stop: int) -> CsrBlock:
        with report_full_device(f"a block of rows {start + first} to {start + stop}"):
            pointers = indptr[first : stop + 1] + np.int64(first_entry)
            return put_block(stored.read_entries(start + first, pointers, dtype, threads, Staging().allocate))

    return read


class PieceReader:
    """Rows in pieces, at most `HELD_PIECES` of which are on the device: threads read the next ones while one is used.
    Each pass over them goes the other way, and so begins with those already on the device.

    Parameters
    ----------
    read : returns the rows from one to another as a block on the device
    cuts : first row of each piece, and the end of the last
    """

    def __init__(self, read: Callable[[int, int], CsrBlock], cuts: Sequence[int]) -> None:
        import cupy

        self.cuts, self._read, self._order = cuts, read, range(len(cuts) - 1)
        self._device, self._stream = cupy.cuda.Device(), cupy.cuda.get_current_stream()
        self._pool = None if self.is_whole else ThreadPoolExecutor(HELD_PIECES, "mgspmv-pieces")
        self._held = dict[int, Future[CsrBlock]]()

    @property
    def is_whole(self) -> bool:
        """True if there is one piece."""
        return len(self.cuts) == 2

    def begin(self) -> None:
        """Begin to read the first pieces."""
        for k in self._order[:HELD_PIECES]:
            if k not in self._held:
                self._hold(k)

    def each(self) -> Iterator[tuple[int, CsrBlock]]:
        """Yield the number of each piece and its rows; a piece is to be let go before the next one is taken."""
        self.begin()
        order, self._order = self._order, self._order[::-1]
        coming = iter(order[HELD_PIECES:])
        for k in order:
            yield k, self._held[k].result()
            for following in islice(coming, 1):
                del self._held[k]
                release_device_memory(beyond=LITTLE)  # its memory may be too small for that piece
                self._hold(following)

    def _hold(self, k: int) -> None:
        if self._pool is None:
            self._held[k] = Future()
            self._held[k].set_result(self._read(*self.cuts))
        else:
            self._held[k] = self._pool.submit(copy_context().run, self._read_there, k)

    def _read_there(self, k: int) -> CsrBlock:
        with self._device, self._stream:  # the thread's default is device 0 and the default stream
            return self._read(self.cuts[k], self.cuts[k + 1])


def read_graph(
    stored: StoredMatrix,
    dtype: Any,
    threads: int | None = None,
    *,
    rows: tuple[int, int] | None = None,
    reads_ids: bool = False,
) -> tuple[Any, CsrBlock, Any, np.ndarray | None]:
    """Read a graph, or rows of it, to the device: row pointers, (n_rows + 1,) int64, from 0 on; the rows as
    `read_block` does; and the out-degrees of their vertices. Arrays of a store are read together.

    Parameters
    ----------
    rows : first row and end; None for all rows
    reads_ids : whether to read the ids of all vertices to the host meanwhile
    """
    info, allocate = stored.info, Staging().allocate
    start, stop = (0, info.shape[0]) if rows is None else rows
    first, last = (0, info.nnz) if rows is None else _find_entries(stored, start, stop, threads)
    ranges = [Range("indptr", start, stop + 1, allocate), Range("indices", first, last, allocate)]
    if dtype is not None and not info.is_pattern:
        ranges.append(Range("data", first, last, allocate, dtype))
    if stored.original is None:
        ranges.insert(0, Range("out_degree", start, stop, allocate))
    if reads_ids:  # first, as their chunks take longest
        ranges.insert(0, Range("vertex_ids"))
    with report_full_device(f"a block of rows {start} to {stop}"):
        found = dict(zip((own.name for own in ranges), stored.read_ranges(ranges, threads), strict=True))
        indptr, ids = found["indptr"], found.get("vertex_ids")
        if first:
            indptr -= first
        block = put_block(CsrBlock(start, info.shape[1], indptr, found["indices"], found.get("data")))
        degree = found["out_degree"] if stored.original is None else read_out_degree(stored, start, stop, threads)
        return indptr, block, degree, ids


def _find_entries(stored: StoredMatrix, start: int, stop: int, threads: int | None) -> tuple[int, int]:
    """Return the first entry of rows `start` .. `stop`, and the end of the last."""
    ends = stored.ends
    first, last = (ends[k] if k in ends else int(stored.read_pointers(k, k)[0]) for k in (start, stop))
    if first > last:  # the store is damaged, which the check of all pointers says
        stored.read_pointers(start, stop, threads)
    return first, last


def read_vector(stored: StoredMatrix, name: str, start: int, stop: int, threads: int | None = None) -> Any:
    """Read elements `start` .. `stop` of a numeric array of a store to the device, as `StoredMatrix.read_array` does to
    the host."""
    with report_full_device(f"{name} of rows {start} to {stop}"):
        return stored.read_array(name, start, stop, threads, Staging().allocate)


def read_out_degree(stored: StoredMatrix, start: int, stop: int, threads: int | None = None) -> Any:
    """Read the out-degrees of vertices to the device, as `StoredMatrix.read_out_degree` does to the host."""
    if stored.original is None:
        return read_vector(stored, "out_degree", start, stop, threads)
    with report_full_device(f"the out-degree array of columns {start} to {stop}"):
        pointers = stored.original.read_pointers(start, stop, threads, Staging().allocate)
        return pointers[1:] - pointers[:-1]


def make_copier() -> Callable[[Any], np.ndarray]:
    """Return a function that copies arrays of the current device to the host, in any thread and in a separate stream.

    Kernels in the current stream, which may still write the arrays, are waited for here.
    """
    import cupy

    device, stream = cupy.cuda.Device(), cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.get_current_stream().synchronize()

    def copy(array: Any) -> np.ndarray:
        with device, stream:  # the thread's default is device 0 and the default stream
            host: np.ndarray = array.get()
            return host

    return copy


def _align(array: Any) -> Any:
    """Return the device array, copied if it does not begin at a multiple of 16 bytes."""
    return array if array.data.ptr % 16 == 0 else array.copy()
