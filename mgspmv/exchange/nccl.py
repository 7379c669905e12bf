"""Exchange of slices between devices by NCCL, on the stream of the steps, without the host; or, on one host, through
memory that the devices write into while they multiply.

All devices enqueue their exchanges in the same order. If a device is lost, the others wait inside NCCL, which does not
detect the loss: the waiting task checks the connections between the workers, and aborts. Events on the stream become
heartbeats of the task, so that the watchdog finds the device without progress, not those that wait for it.

Calls of NCCL and of the driver that may block forever are made by threads, not by tasks. A thread that does not end is
abandoned; if its device does not become idle, no later run of this process uses the device.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from itertools import accumulate, pairwise
from threading import Lock, Thread
from typing import Any

import numpy as np

from mgspmv.errors import ClusterError, WorkerTimeoutError
from mgspmv.exchange.ipc import MOST_DEVICES, IpcMemory, name_host, open_memory
from mgspmv.exchange.peer import AllToAll
from mgspmv.exchange.peer_comm import Message
from mgspmv.heartbeat import Heartbeat, find_heartbeat

CONNECT_S = 60.0
"""Seconds for the devices to connect while all of their workers are alive."""
ABORT_S = 10.0
"""Seconds to wait for NCCL and the device to become idle; they need less than one unless they hang."""
CHANNELS = ("NCCL_MAX_P2P_NCHANNELS", "4")
"""Environment variable and value, unless set, for slices sent by direct writes: NCCL's 32 channels to each other device
take 1.1 GB more on each of four H200. NCCL reads it once per process."""
LOOPBACK = ("NCCL_SOCKET_IFNAME", "lo")
"""Environment variable and value, unless set, for workers of one host with encrypted comms: the ports of NCCL require
no certificate, and on the loopback interface they are not reachable from other hosts."""
SHORT_S, LONG_S = 20e-6, 1e-3
"""Seconds between two checks whether a device is done: at first, and later."""

_last_end: list[Thread] = []
"""Last thread started to free a group of this process, or other objects on its device: their memory is in use until the
thread ends."""
_stuck: list[Thread] = []
"""Threads that did not end within `ABORT_S`."""
_noting = Lock()
"""Lock of these lists."""


def find_nccl_problem() -> str | None:
    """Describe the problem that keeps this process from using NCCL; None if it can be used."""
    if _import_nccl() is None:
        return "CuPy finds no NCCL; install mgspmv[cuda12] or mgspmv[cuda13], which include it"
    return None


def find_stuck() -> tuple[str, str] | None:
    """Return `what` and `why`, as in `mgspmv.exchange.peer_comm.worker_error`, if this process cannot use its device
    because an aborted group did not end; else None."""
    if not any(thread.is_alive() for thread in _stuck):
        return None
    return "has a GPU that does not become idle", "restart the worker"


def await_ends(wait_s: float | None = None) -> None:
    """Wait until all closed groups have freed their memory, for `wait_s` seconds at most."""
    for thread in tuple(_last_end):
        thread.join(wait_s)


def let_go(held: list[Any], release: Callable[[], None]) -> None:
    """Drop objects on the device, and release its memory when closed groups have ended. Does not wait: calls that free
    memory block until the device is idle, and so a thread makes them.

    Parameters
    ----------
    held : list that is emptied; the caller must not keep references to its objects
    release : returns unused memory of this process to the device
    """
    import cupy

    device = cupy.cuda.Device()

    def clear() -> None:
        with device:
            held.clear()

    def end() -> None:
        with device:
            release()

    _begin(end, clear)


class NcclGroup:
    """NCCL group of the devices of the workers of a matrix, each the current and only device of its process.

    Parameters
    ----------
    unique_id : made by rank 0 with `make_unique_id`
    may_share : whether the devices, then all of one host, may write into each other's memory

    Attributes
    ----------
    check : called while this device waits for others; raises when a worker is lost or the work was aborted

    Raises
    ------
    ClusterError : NCCL cannot connect the devices
    WorkerTimeoutError : NCCL does not connect them within `CONNECT_S`
    """

    def __init__(
        self, rank: int, n_devices: int, unique_id: bytes, check: Callable[[], None], *, may_share: bool
    ) -> None:
        if may_share:
            os.environ.setdefault(*CHANNELS)
        self.rank, self.n_devices, self.name, self.check = rank, n_devices, unique_id.hex(), check
        self._others = [*range(rank + 1, n_devices), *range(rank)]  # so that not all send to the same one first
        self._nccl = _import_nccl()
        self._communicator = _connect(self._nccl, rank, n_devices, unique_id, check)
        self._memory: IpcMemory | None = None
        self._can_share = may_share
        self._begun: Any = None

    @property
    def nbytes(self) -> int:
        """Bytes of the device memory that others write into."""
        return 0 if self._memory is None else self._memory.n_bytes

    @property
    def is_alive(self) -> bool:
        """True unless the group was aborted or closed."""
        return self._communicator is not None

    def exchange(self, sent: Sequence[Any], received: Sequence[Any]) -> None:
        """Send an array to each of the other devices, and receive one from each, on the current stream.

        Parameters
        ----------
        sent, received : by rank, contiguous arrays on the device; empty where the other side's is empty. The
            arrays of this rank are ignored
        """
        import cupy

        if self._communicator is None:
            raise ClusterError(f"NCCL was aborted on this device, rank {self.rank}")
        current, nccl = cupy.cuda.get_current_stream(), self._nccl
        stream, self._begun = current.ptr, self._begun or current.record()
        send, receive = self._communicator.send, self._communicator.recv
        try:
            nccl.groupStart()
            try:
                for other in self._others:
                    for array, pass_on in ((sent[other], send), (received[other], receive)):
                        if array.nbytes:
                            pass_on(array.data.ptr, array.nbytes, nccl.NCCL_UINT8, other, stream)
            finally:
                nccl.groupEnd()
        except nccl.NcclError as error:
            self.abort()
            raise self._describe(error) from error

    def wait(self, stream: Any, stages: Sequence[Any] = ()) -> None:
        """Wait until all work enqueued on a stream is done; raise when a device that others wait for is lost.

        Parameters
        ----------
        stages : events on the stream, alternately after work of this device and after the data of the others was
            received; empty for one event before and one after all exchanges

        Raises
        ------
        ClusterError : raised by `check`, or an error of NCCL. The group is then aborted on this device
        """
        is_done, pause_s = stream.record(), SHORT_S
        begun, self._begun = self._begun, None
        heartbeat, left = find_heartbeat(), deque(stages or ([] if begun is None else [begun, is_done]))
        try:
            while not is_done.done:
                self.check()
                self._communicator.check_async_error()
                if pause_s == LONG_S:
                    _follow(heartbeat, left)
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, LONG_S)
        except self._nccl.NcclError as error:
            self.abort()
            raise self._describe(error) from error
        except BaseException:
            self.abort()
            raise
        finally:
            heartbeat.waits = False
            heartbeat.beat()

    def gather(self, own: Any, sizes: Sequence[int]) -> Any:
        """Concatenate the arrays of all devices, of these sizes, on the device."""
        import cupy

        bounds = (0, *accumulate(sizes))
        gathered = cupy.empty(bounds[-1], own.dtype)
        parts = [gathered[a:b] for a, b in pairwise(bounds)]
        parts[self.rank][:] = own
        self.exchange([own] * len(parts), parts)
        self.wait(cupy.cuda.get_current_stream())
        return gathered

    def trade(self, sent: Sequence[Any]) -> Any:
        """Send an array, of any length, to each device, by rank; return the received ones, concatenated by rank."""
        import cupy

        lengths = self.gather_hosts(np.array([len(own) for own in sent], np.int64))[:, self.rank].tolist()
        bounds = (0, *accumulate(lengths))
        received = cupy.empty(bounds[-1], sent[self.rank].dtype)
        parts = [received[a:b] for a, b in pairwise(bounds)]
        parts[self.rank][:] = sent[self.rank]
        self.exchange(sent, parts)
        self.wait(cupy.cuda.get_current_stream())
        return received

    def gather_hosts(self, own: np.ndarray) -> np.ndarray:
        """Gather the host arrays of all ranks, of one dtype and length: (n_devices, len(own))."""
        import cupy

        found: np.ndarray = self.gather(cupy.asarray(own), [len(own)] * self.n_devices).get()
        return found.reshape(self.n_devices, len(own))

    def share(self, n_bytes: int) -> IpcMemory | None:
        """Return memory of all devices that each can write into, kept for later calls; None if they cannot.

        Raises
        ------
        CapacityError : it does not fit in the memory of this device
        """
        if self._can_share and (self._memory is None or self._memory.n_bytes < n_bytes):
            if self._memory is not None:
                self._memory.close()
                self.gather_hosts(np.zeros(1, np.uint8))  # until all have unmapped this device's memory
            self._memory = None
            self._memory = open_memory(self.rank, n_bytes, self.gather_hosts)
            self._can_share = self._memory is not None
        return self._memory

    def close(self) -> None:
        """Close the idle group without waiting, as NCCL may take half a second."""
        self._begin_abort()

    def _describe(self, error: Exception) -> ClusterError:
        return ClusterError(f"NCCL failed on this device, rank {self.rank}: {error}")

    def abort(self) -> None:
        """Abort the operations of this device, and wait up to `ABORT_S`; the others abort theirs."""
        _await_end(self._begin_abort())

    def _begin_abort(self) -> Thread:
        import cupy

        communicator, self._communicator = self._communicator, None
        memory, self._memory = self._memory, None
        return _begin_end(cupy.cuda.Device(), communicator, memory)


def join_group(turns: AllToAll, hellos: Mapping[int, Message], held: NcclGroup | None, *, may_share: bool) -> NcclGroup:
    """Return the group held by all workers if they still have the same one; else connect a new group.

    Parameters
    ----------
    hellos : `greet` messages of the others
    held : group held here
    may_share : whether devices of one host may write into each other's memory
    """
    rank, peer_comm = turns.rank, turns.peer_comm
    own, groups = greet(held), {hello["group"] for hello in hellos.values()}
    if held is not None and held.is_alive and groups == {own["group"]}:
        held.check = peer_comm.check
        return held
    if held is not None:
        held.abort()
    networks = {hello["network"] for hello in hellos.values()}
    if peer_comm.is_encrypted and networks == {own["network"]}:
        os.environ.setdefault(*LOOPBACK)
    unique_id = turns.gather(bytes(_import_nccl().get_unique_id()) if rank == 0 else b"")[0]
    n_devices, is_one_host = len(hellos) + 1, all(hello["host"] == own["host"] for hello in hellos.values())
    may_share = may_share and is_one_host and n_devices <= MOST_DEVICES
    return NcclGroup(rank, n_devices, bytes(unique_id), peer_comm.check, may_share=may_share)


def greet(held: NcclGroup | None) -> Message:
    """Return the entries of a worker's first message that describe its group, host and network namespace."""
    group = held.name if held is not None and held.is_alive else None
    host = network = name_host()
    with suppress(OSError):  # containers of a host have separate loopback interfaces
        network = f"{host} {os.readlink('/proc/self/ns/net')}"
    return {"group": group, "host": host, "network": network}


def _follow(heartbeat: Heartbeat, left: deque[Any]) -> None:
    """Add a heartbeat if the stream has completed stages, and note whether it now waits for the other devices."""
    n = len(left)
    while left and left[0].done:
        left.popleft()
    if len(left) < n:
        heartbeat.beat()
    heartbeat.waits = len(left) % 2 == 1


def _begin(end: Callable[[], None], first: Callable[[], None] = lambda: None) -> Thread:
    """Start a thread that calls `first`, and `end` when all threads started before have ended."""

    def run() -> None:
        first()
        for thread in before:
            thread.join()
        end()

    thread = Thread(target=run, name="mgspmv-nccl-end", daemon=True)
    with _noting:
        before = tuple(_last_end)
        thread.start()
        _last_end[:] = [thread]
    return thread


def _begin_end(device: Any, communicator: Any, memory: IpcMemory | None) -> Thread:
    """Start a thread that frees the communicator and memory of a group when its device is idle."""

    def end() -> None:
        with device:
            if memory is not None:
                memory.give_up()  # else the calls below would wait for kernels that wait
            if communicator is not None:
                communicator.abort()
            if memory is not None:
                memory.close()
            device.synchronize()

    return _begin(end)


def _await_end(thread: Thread) -> None:
    """Wait for a thread of `_begin_end`, for `ABORT_S` at most, after which it counts as stuck."""
    thread.join(ABORT_S)
    if thread.is_alive():
        with _noting:
            _stuck[:] = [*(other for other in _stuck if other.is_alive()), thread]


def _import_nccl() -> Any:
    """Import CuPy's binding of NCCL; None if NCCL is not installed."""
    from cupy.cuda import nccl

    return nccl if nccl.available else None


def _connect(nccl: Any, rank: int, n_devices: int, unique_id: bytes, check: Callable[[], None]) -> Any:
    """Make a communicator in a thread, as NCCL waits for the other devices and cannot be interrupted.

    After an error the thread is abandoned, and aborts the communicator if it is still made. It does not count as stuck
    while it waits, as its device is idle.
    """
    import cupy

    device, made, connecting = cupy.cuda.Device(), list[Any](), Future[None]()

    def connect() -> None:
        try:
            await_ends()
            if connecting.cancelled():
                return  # by now the others may wait for another group
            with device:
                made.append(nccl.NcclCommunicator(n_devices, unique_id, rank))
                if connecting.set_running_or_notify_cancel():
                    _send_to_all(nccl, made[0], rank, n_devices)
                    connecting.set_result(None)
                else:
                    _await_end(_begin_end(device, made[0], None))
        except BaseException as error:
            if not connecting.cancelled():
                connecting.set_exception(error)

    Thread(target=connect, name="mgspmv-nccl-connect", daemon=True).start()
    deadline = time.monotonic() + CONNECT_S
    try:
        while not connecting.done():
            check()
            if time.monotonic() > deadline:
                raise WorkerTimeoutError(
                    f"NCCL did not connect the devices of {n_devices} workers within {CONNECT_S:g} s (rank {rank}); "
                    "in the workers' environment NCCL_DEBUG=INFO gives details, NCCL_SOCKET_IFNAME sets the network",
                    rank=rank,
                    phase="connect",
                )
            wait([connecting], 0.01)
        if (error := connecting.exception()) is not None:
            raise ClusterError(
                f"NCCL cannot connect the devices of {n_devices} workers: {error} (rank {rank}); "
                "NCCL_DEBUG=INFO in the workers' environment gives details",
                rank=rank,
                phase="connect",
            ) from error
    except BaseException:
        if not connecting.cancel() and made:
            _await_end(_begin_end(device, made[0], None))
        raise
    return made[0]


def _send_to_all(nccl: Any, communicator: Any, rank: int, n_devices: int) -> None:
    """Send a byte between any two devices: NCCL connects a pair of devices at its first transfer, which blocks the
    host. A thread does this once, so that no task is blocked."""
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        notes = cupy.zeros(n_devices + 1, np.uint8)
        address, kind = notes.data.ptr, nccl.NCCL_UINT8
        nccl.groupStart()
        try:
            for other in {*range(n_devices)} - {rank}:
                communicator.send(address + n_devices, 1, kind, other, stream.ptr)
                communicator.recv(address + other, 1, kind, other, stream.ptr)
        finally:
            nccl.groupEnd()
        stream.synchronize()
