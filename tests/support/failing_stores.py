"""A store in memory that fails on request: it hangs, or refuses what it is asked for."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import zarr


class FailingStore(zarr.storage.MemoryStore):
    """Store that hangs at, or refuses, operations of which the text holds a word, as `set states/s000001/x`.

    Operations are `set`, `get`, `delete` and `list`, the last with a full stop after the folder. The words hold for all
    such stores, since Zarr makes copies of one to read.
    """

    hanging: ClassVar[str | None] = None
    refused: ClassVar[str | None] = None

    @classmethod
    def hang(cls, word: str | None) -> None:
        cls.hanging = word

    @classmethod
    def refuse(cls, word: str | None) -> None:
        cls.refused = word

    @classmethod
    def hangs(cls, operation: str) -> bool:
        return cls.hanging is not None and cls.hanging in operation

    @classmethod
    @contextmanager
    def make(cls) -> Iterator[FailingStore]:
        """Give a store, and end what hangs in it afterwards."""
        try:
            yield cls()
        finally:
            cls.hang(None)
            cls.refuse(None)

    async def _fail(self, operation: str) -> None:
        if self.refused is not None and self.refused in operation:
            raise PermissionError(errno.EACCES, "Permission denied")
        while self.hangs(operation):
            await asyncio.sleep(0.01)

    async def set(self, key: str, *given: Any, **more: Any) -> None:
        await self._fail(f"set {key}")
        await super().set(key, *given, **more)

    async def get(self, key: str, *given: Any, **more: Any) -> Any:
        await self._fail(f"get {key}")
        return await super().get(key, *given, **more)

    async def delete_dir(self, prefix: str) -> None:
        await self._fail(f"delete {prefix}")
        await super().delete_dir(prefix)

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        await self._fail(f"list {prefix.rstrip('/')}.")
        async for key in super().list_dir(prefix):
            yield key
