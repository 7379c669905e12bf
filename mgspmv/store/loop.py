"""Coroutines of Zarr's stores, awaited in Zarr's own event loop.

Stores of fsspec keep connections that belong to the event loop in which they were opened, so Zarr and this package
must use the same loop. Zarr does not expose it, but awaits the methods of any store in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
from collections.abc import Coroutine
from typing import Any, TypeVar

import zarr
from zarr.abc.buffer import Buffer, BufferPrototype
from zarr.abc.store import ByteRequest, Store
from zarr.storage import MemoryStore, WrapperStore

T = TypeVar("T")


def wait_for(work: Coroutine[Any, Any, T]) -> T:
    """Await a coroutine in Zarr's event loop and return its result; must not be called from within that loop."""
    return asyncio.run_coroutine_threadsafe(work, _find_loop(os.getpid())).result()


class _Probe(WrapperStore[Store]):
    """Empty store that records the event loop in which it is called."""

    loop: asyncio.AbstractEventLoop | None = None

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        self.loop = asyncio.get_running_loop()
        return None


@functools.cache
def _find_loop(pid: int) -> asyncio.AbstractEventLoop:
    """Find the event loop of Zarr in this process; a forked process has another."""
    probe = _Probe(MemoryStore())
    with contextlib.suppress(FileNotFoundError):
        zarr.open_group(probe, mode="r+", zarr_format=3)  # mode "r" would make Zarr copy the probe
    assert probe.loop is not None
    return probe.loop
