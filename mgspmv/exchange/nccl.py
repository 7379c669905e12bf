"""Slices from device to device through NCCL, on the stream of the steps, without the host.

What the devices send each other is enqueued by each of them in the same order. A device that never comes leaves the
others waiting inside NCCL, which does not notice by itself: who waits here looks at the workers' links meanwhile, and
aborts.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from threading import Thread
from typing import Any

import numpy as np

from mgspmv.errors import ClusterError
from mgspmv.exchange.links import DaskLinks
from mgspmv.partition import Slices

CONNECT_S = 60.0
"""Seconds for the devices to find each other, all of whose workers are alive."""
SHORT_S, LONG_S = 20e-6, 1e-3
"""Seconds between two looks at whether a device is done: at first, and later on."""


def find_nccl_problem() -> str | None:
    """What keeps this process from using NCCL, in words; None when nothing does."""
    nccl = _import_nccl()
    if nccl is None:
        return "CuPy finds no NCCL; install nvidia-nccl-cu12 or nvidia-nccl-cu13, which mgspmv[cuda12] and [cuda13] do"
    return None


class NcclGroup:
    """The devices of the workers of a matrix, each the current one of its process, of which it has no other.

    Parameters
    ----------
    unique_id : what rank 0 made by `make_unique_id`
    check : raises when a worker is gone or the work was given up

    Raises
    ------
    ClusterError : NCCL cannot connect the devices, or does not within `CONNECT_S`
    """

    def __init__(self, rank: int, n_devices: int, unique_id: bytes, check: Callable[[], None]) -> None:
        self.rank, self.n_devices, self.name = rank, n_devices, unique_id.hex()
        self._others = [*range(rank + 1, n_devices), *range(rank)]  # not all send to the same one first
        self._nccl = _import_nccl()
        self._communicator = _connect(self._nccl, rank, n_devices, unique_id, check)

    @property
    def is_alive(self) -> bool:
        """Whether it can be used; one that was aborted cannot."""
        return self._communicator is not None

    def exchange(self, array: Any, starts: tuple[int, ...], stops: tuple[int, ...]) -> None:
        """On the current stream: send `array[starts[rank]:stops[rank]]` to all others, and get their parts of it.

        Parameters
        ----------
        array : of one dimension, of the same size on every device
        """
        import cupy

        stream, nccl, size = cupy.cuda.get_current_stream().ptr, self._nccl, array.itemsize
        places = [(array.data.ptr + a * size, (b - a) * size) for a, b in zip(starts, stops, strict=True)]
        own, n_own = places[self.rank]
        nccl.groupStart()
        for other in self._others:
            theirs, n_theirs = places[other]
            if n_own:
                self._communicator.send(own, n_own, nccl.NCCL_UINT8, other, stream)
            if n_theirs:
                self._communicator.recv(theirs, n_theirs, nccl.NCCL_UINT8, other, stream)
        nccl.groupEnd()

    def wait(self, stream: Any, check: Callable[[], None]) -> None:
        """Until all is done that was enqueued on a stream.

        Raises
        ------
        ClusterError : what `check` raises, or NCCL's error. The group is aborted then, here
        """
        is_done, pause_s = stream.record(), SHORT_S
        try:
            while not is_done.done:
                check()
                self._communicator.check_async_error()
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, LONG_S)
        except self._nccl.NcclError as error:
            self.abort()
            raise ClusterError(f"NCCL failed on this device, rank {self.rank}: {error}") from error
        except BaseException:
            self.abort()
            raise

    def abort(self) -> None:
        """End what is under way, here; the others end theirs."""
        communicator, self._communicator = self._communicator, None
        if communicator is not None:
            communicator.abort()


def join_group(
    links: DaskLinks, hellos: dict[int, dict[str, Any]], rank: int, held: NcclGroup | None, check: Callable[[], None]
) -> NcclGroup:
    """The group that all workers still have, or a new one.

    Parameters
    ----------
    hellos : the first messages of the others, whose `group` is the name of the group that each holds
    held : here
    """
    own = greet(held)["group"]
    if own is not None and held is not None and all(hello["group"] == own for hello in hellos.values()):
        return held
    if held is not None:
        held.abort()
    if rank == 0:
        unique_id = _import_nccl().get_unique_id()
        links.send({other: {"unique_id": unique_id} for other in hellos})
    else:
        unique_id = links.receive([0])[1]["unique_id"]
    return NcclGroup(rank, len(hellos) + 1, bytes(unique_id), check)


def greet(held: NcclGroup | None) -> dict[str, Any]:
    """What a worker's first message says of its group."""
    return {"group": held.name if held is not None and held.is_alive else None}


class NcclExchange:
    """Slices of z by NCCL; every device gets all of them.

    Parameters
    ----------
    n_terms : entries of the whole matrix, or rows, if those are more
    check : as for `NcclGroup`
    """

    def __init__(self, group: NcclGroup, slices: Slices, n_terms: int, check: Callable[[], None]) -> None:
        self.rank, self.slices, self.n_terms = group.rank, slices, n_terms
        self._group, self._check = group, check

    @property
    def received_elements(self) -> int:
        """Elements of z that come from others."""
        starts = self.slices.starts
        return starts[-1] - (starts[self.rank + 1] - starts[self.rank])

    def enqueue(self, z: Any) -> None:
        """On the current stream: send this device's slice of z to the others, and get theirs."""
        self._group.exchange(z, self.slices.starts[:-1], self.slices.starts[1:])

    def wait(self, stream: Any) -> None:
        """Until the stream is at rest; raises when a device is gone that others wait for."""
        self._group.wait(stream, self._check)


def gather_columns(group: NcclGroup, own: Any, bounds: tuple[int, ...], check: Callable[[], None]) -> Any:
    """(n_cols,) int32, on the device: what each device has of its rows, from all of them.

    Parameters
    ----------
    own : (n_rows,) int32, on the device
    bounds : first row of each device, and the number of rows
    """
    import cupy

    gathered = cupy.empty(bounds[-1], np.int32)
    gathered[bounds[group.rank] : bounds[group.rank + 1]] = own
    group.exchange(gathered, bounds[:-1], bounds[1:])
    group.wait(cupy.cuda.get_current_stream(), check)
    return gathered


def _import_nccl() -> Any:
    """CuPy's binding; None where there is no NCCL."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what CuPy says of it is said by `find_nccl_problem`
        from cupy.cuda import nccl
    return nccl if nccl.available else None


def _connect(nccl: Any, rank: int, n_devices: int, unique_id: bytes, check: Callable[[], None]) -> Any:
    """A communicator. NCCL waits for others and cannot be interrupted: in a thread, which may be left behind."""
    import cupy

    device, found = cupy.cuda.Device(), []

    def connect() -> None:
        try:
            with device:
                found.append(nccl.NcclCommunicator(n_devices, unique_id, rank))
        except Exception as error:
            found.append(error)

    thread = Thread(target=connect, name="mgspmv-nccl-connect", daemon=True)
    thread.start()
    deadline = time.monotonic() + CONNECT_S
    while thread.is_alive():
        check()
        if time.monotonic() > deadline:
            raise ClusterError(
                f"NCCL did not connect the devices of {n_devices} workers within {CONNECT_S:g} s (rank {rank}); "
                "NCCL_DEBUG=INFO in the workers' environment says more, NCCL_SOCKET_IFNAME chooses the network",
                phase="connect",
            )
        thread.join(0.01)
    if isinstance(found[0], Exception):
        raise ClusterError(
            f"NCCL cannot connect the devices of {n_devices} workers: {found[0]} (rank {rank}); NCCL_DEBUG=INFO in the "
            "workers' environment says more",
            phase="connect",
        ) from found[0]
    return found[0]
