"""Streaming of a matrix in pieces through a device whose memory is smaller than the matrix.

Some pieces stay on the device. The others are streamed in every pass, spread evenly among those, and prefetched
during the computation with the previous ones. Sources of streamed pieces:

    host     built once, and copied from pinned memory into two buffers in turn, on a separate stream
    store    read and built again in each pass, by two threads with a stream each
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import fields
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np

from mgspmv.heartbeat import beat
from mgspmv.kernels.device import LITTLE, release_device_memory, report_full_device
from mgspmv.plan import Streaming

AHEAD = 2
"""Number of pieces that are prefetched."""
ALIGNMENT = 256
"""Alignment of arrays in a buffer, in bytes."""

T = TypeVar("T")


class ChunkStream(Generic[T]):
    """Sequence of pieces, of which some are on the device and the others streamed.

    Parameters
    ----------
    kept : pieces that are on the device already, by number
    fetcher : fetches the others
    n : number of pieces
    """

    def __init__(self, kept: dict[int, T], fetcher: FromHost[T] | FromStore[T] | None, n: int) -> None:
        self.kept, self.n, self._fetcher = kept, n, fetcher
        self._fetched = [k for k in range(n) if k not in kept]
        self._ahead: deque[tuple[int, Any]] = deque()
        self._next = 0

    @property
    def nbytes(self) -> int:
        """Bytes on the device, without pieces that are made from the store."""
        kept: Iterable[Any] = self.kept.values()
        return sum(int(piece.nbytes) for piece in kept) + (0 if self._fetcher is None else self._fetcher.nbytes)

    @property
    def streamed_bytes(self) -> int:
        """Bytes of the pieces that are copied from pinned memory in each pass."""
        return self._fetcher.streamed_bytes if isinstance(self._fetcher, FromHost) else 0

    @property
    def is_kept(self) -> bool:
        """True if all pieces are on the device."""
        return not self._fetched

    def stream(self, *, goes_on: bool = True) -> Iterator[tuple[int, T]]:
        """Yield number and piece, one after the other; work enqueued on the current stream before the next may read it.

        Parameters
        ----------
        goes_on : whether another pass is likely to follow, so that its first pieces are prefetched
        """
        import cupy

        fetcher, n_left = self._fetcher, len(self._fetched)
        if fetcher is None:
            yield from sorted(self.kept.items())
            return
        if self._ahead and self._ahead[0][0] != self._fetched[0]:
            self.stop()  # the last pass was not completed, so the prefetched pieces are from its middle
        for k in range(self.n):
            beat()
            if k in self.kept:
                yield k, self.kept[k]
                continue
            self._fetch_ahead(fetcher, AHEAD if goes_on else min(AHEAD, n_left))
            _, coming = self._ahead.popleft()
            stream = cupy.cuda.get_current_stream()
            made = fetcher.take(coming, stream)
            try:
                yield k, made
            finally:  # also if the consumer stops early, as there are only `AHEAD` buffers
                fetcher.give_back(coming, stream)
            n_left -= 1
        if goes_on:
            self._fetch_ahead(fetcher, AHEAD)

    def stop(self) -> None:
        """Drop the pieces that are being prefetched."""
        while self._ahead:
            assert self._fetcher is not None
            self._fetcher.drop(self._ahead.pop()[1])
        self._next = 0

    def _fetch_ahead(self, fetcher: FromHost[T] | FromStore[T], n: int) -> None:
        while len(self._ahead) < n:
            k = self._fetched[self._next]
            self._ahead.append((k, fetcher.begin(k)))
            self._next = (self._next + 1) % len(self._fetched)


def choose_kept(n: int, n_kept: int) -> list[int]:
    """Choose which of n pieces stay on the device, so that the others are spread evenly among them."""
    n_fetched = n - n_kept
    return [k for k in range(n) if (k + 1) * n_fetched // n == k * n_fetched // n]


def hold_pieces(
    make: Callable[[int], T], n: int, streaming: Streaming, check: Callable[[], None] = lambda: None
) -> ChunkStream[T]:
    """Make a stream of n pieces; keep as many on the device as fit, assuming that all are as large as the first.

    Parameters
    ----------
    make : makes a piece by number, a dataclass with `nbytes`, on the current stream
    streaming : memory for pieces, and where the others are held
    check : called between two pieces; may raise

    Raises
    ------
    CapacityError : a piece is larger than assumed and does not fit on host or device
    """
    made: Any = make(0)
    stay = set(choose_kept(n, min(n, streaming.kept_bytes // max(1, made.nbytes))))
    kept: dict[int, T] = {}
    pinned: dict[int, PinnedPiece[T]] = {}
    for k in range(n):
        check()
        beat()
        release_device_memory(beyond=LITTLE)  # frees the temporary memory of the last piece
        if k > 0 and (k in stay or streaming.held == "host"):
            made = make(k)
        if k in stay:
            kept[k] = made
        elif streaming.held == "host":
            pinned[k] = PinnedPiece(made)
        made = None
    if len(kept) == n:
        return ChunkStream(kept, None, n)
    return ChunkStream(kept, FromHost(pinned) if streaming.held == "host" else FromStore(make), n)


# --- from pinned memory of the host ----------------------------------------------------------------------------------


class PinnedPiece(Generic[T]):
    """Copy of a dataclass of device arrays in pinned memory, one array after the other.

    Parameters
    ----------
    made : dataclass whose CuPy arrays are copied to the host
    """

    def __init__(self, made: T) -> None:
        import cupy

        own: Any = made
        kind: Any = type(made)
        parts = {f.name: getattr(own, f.name) for f in fields(own)}
        arrays = {name: part for name, part in parts.items() if isinstance(part, cupy.ndarray)}
        self._places: dict[str, tuple[int, tuple[int, ...], np.dtype[Any]]] = {}
        self.nbytes = 0
        for name, array in arrays.items():
            self._places[name] = self.nbytes, array.shape, array.dtype
            self.nbytes += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
        # CuPy's pool would not return the memory to the system.
        self._pointer = cupy.cuda.PinnedMemoryPointer(cupy.cuda.PinnedMemory(max(1, self.nbytes)), 0)
        others = {name: part for name, part in parts.items() if name not in arrays}
        self._make: Callable[..., T] = partial(kind, **others)
        stream = cupy.cuda.get_current_stream()
        for name, array in arrays.items():
            array.data.copy_to_host_async(self._find(self._places[name][0]), array.nbytes, stream)
        stream.synchronize()

    def copy(self, buffer: Any, stream: Any) -> None:
        """Enqueue the copy of all arrays to the beginning of a buffer on the device."""
        if self.nbytes:
            buffer.copy_from_host_async(self._find(0), self.nbytes, stream)

    def place(self, buffer: Any) -> T:
        """Return the dataclass with its arrays in a buffer on the device."""
        import cupy

        arrays = {
            name: cupy.ndarray(shape, dtype, buffer + place) for name, (place, shape, dtype) in self._places.items()
        }
        return self._make(**arrays)

    def _find(self, place: int) -> Any:
        import ctypes

        return ctypes.c_void_p(self._pointer.ptr + place)


class FromHost(Generic[T]):
    """Fetcher that copies pieces from pinned memory into `AHEAD` buffers in turn.

    Parameters
    ----------
    pieces : by number

    Raises
    ------
    CapacityError : the buffers do not fit
    """

    def __init__(self, pieces: dict[int, PinnedPiece[T]]) -> None:
        import cupy

        self._pieces, self._stream = pieces, cupy.cuda.Stream(non_blocking=True)
        size = max(piece.nbytes for piece in pieces.values())
        with report_full_device("the buffer for streamed pieces of the matrix"):
            self._free = deque(
                (cupy.cuda.alloc(max(1, size)), cupy.cuda.Event(disable_timing=True)) for _ in range(AHEAD)
            )  # buffer, and event after which it may be overwritten
        self.nbytes, self.streamed_bytes = AHEAD * size, sum(piece.nbytes for piece in pieces.values())
        cupy.cuda.get_current_stream().synchronize()  # the memory may belong to freed arrays that are still being read

    def begin(self, k: int) -> Any:
        """Begin to fetch piece k."""
        piece, (memory, is_free) = self._pieces[k], self._free.popleft()
        self._stream.wait_event(is_free)
        piece.copy(memory, self._stream)
        return piece, (memory, is_free), self._stream.record()

    def take(self, coming: Any, stream: Any) -> T:
        """Return the piece, for work enqueued on the stream from now on."""
        piece, (memory, _), is_there = coming
        stream.wait_event(is_there)
        made: T = piece.place(memory)
        return made

    def give_back(self, coming: Any, stream: Any) -> None:
        """Release the piece's buffer after the work enqueued on the stream so far."""
        _, buffer, _ = coming
        buffer[1].record(stream)
        self._free.append(buffer)

    def drop(self, coming: Any) -> None:
        """Discard a piece that will not be taken."""
        _, buffer, is_there = coming
        is_there.synchronize()
        self._free.append(buffer)


# --- from the store --------------------------------------------------------------------------------------------------


class FromStore(Generic[T]):
    """Fetcher that makes pieces from the store, `AHEAD` at a time; methods as in `FromHost`.

    Parameters
    ----------
    make : makes a piece by number, on the current stream
    """

    nbytes = 0

    def __init__(self, make: Callable[[int], T]) -> None:
        import cupy

        self._make, self._device, self._own = make, cupy.cuda.Device(), threading.local()
        self._threads = ThreadPoolExecutor(AHEAD, thread_name_prefix="mgspmv-pieces")
        self._read: deque[tuple[Any, Any]] = deque()

    def begin(self, k: int) -> Future[T]:
        while len(self._read) > 1:  # free the oldest piece, as the next one needs its memory
            self._read[0][1].synchronize()
            self._read.popleft()
        return self._threads.submit(self._run, k)

    def take(self, coming: Future[T], stream: Any) -> T:
        return coming.result()

    def give_back(self, coming: Future[T], stream: Any) -> None:
        self._read.append((coming, stream.record()))

    def drop(self, coming: Future[T]) -> None:
        if not coming.cancel():
            coming.exception()  # wait until it ends; its error no longer matters

    def _run(self, k: int) -> T:
        import cupy

        with self._device:
            if not hasattr(self._own, "stream"):
                self._own.stream = cupy.cuda.Stream(non_blocking=True)
            with self._own.stream as stream:
                made = self._make(k)
                stream.synchronize()
                release_device_memory(stream, beyond=LITTLE)  # else each thread keeps the memory of its largest piece
                return made
