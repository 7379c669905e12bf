"""Two writers of a store: one is stopped before each of its operations there, while the other does all of its work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from zarr.abc.store import Store
from zarr.storage import LocalStore, MemoryStore, ObjectStore

import mgspmv as mg
from mgspmv.errors import StoreError, StoreNotFoundError
from mgspmv.store import writers
from tests.support.stores import WatchingStore, list_keys, list_version_names

# --- stopping --------------------------------------------------------------------------------------------------------


class StoppedStore(WatchingStore):
    """Has another act before the k-th operation, counted from 1."""

    at = 0
    act: Callable[[], None]

    def stop(self, at: int, act: Callable[[], None]) -> None:
        self.at, self.act = at, act

    def _with_store(self, store: Store) -> StoppedStore:
        made = StoppedStore(store, self.calls)
        made.stop(self.at, self.act)
        return made

    async def _pause(self, operation: str, key: str) -> None:
        self.calls.append((operation, key))
        if len(self.calls) == self.at:
            await asyncio.to_thread(self.act)

    async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
        await self._pause("get", key)
        return await self._store.get(key, prototype, byte_range)

    async def exists(self, key: str) -> bool:
        await self._pause("exists", key)
        return await self._store.exists(key)

    async def set(self, key: str, value: Any) -> None:
        await self._pause("set", key)
        await self._store.set(key, value)

    async def delete(self, key: str) -> None:
        await self._pause("delete", key)
        await self._store.delete(key)

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        await self._pause("list", prefix)
        async for name in self._store.list_dir(prefix):
            yield name


class StoppedObjects(ObjectStore):
    """As a `StoppedStore`, of objects, which it reads and writes past Zarr too; see `watch_root`."""

    calls: list[tuple[str, str]]
    at = 0
    act: Callable[[], None]

    def stop(self, at: int, act: Callable[[], None]) -> None:
        self.calls, self.at, self.act = [], at, act

    def with_read_only(self, read_only: bool = False) -> StoppedObjects:
        made = StoppedObjects(self.store, read_only=read_only)
        made.calls, made.at, made.act = self.calls, self.at, self.act
        return made

    def pause(self, operation: str, key: str) -> None:
        self.calls.append((operation, key))
        if len(self.calls) == self.at:
            self.act()

    async def get(self, key: str, *given: Any, **more: Any) -> Any:
        await asyncio.to_thread(self.pause, "get", key)
        return await super().get(key, *given, **more)

    async def set(self, key: str, value: Any) -> None:
        await asyncio.to_thread(self.pause, "set", key)
        await super().set(key, value)

    async def delete(self, key: str) -> None:
        await asyncio.to_thread(self.pause, "delete", key)
        await super().delete(key)


@pytest.fixture
def watch_root(monkeypatch):
    for name in ("_read", "_write"):
        own = getattr(writers.Writer, name)

        def watched(writer, *given, own=own, name=name):
            if isinstance(writer.place, StoppedObjects):
                writer.place.pause(name, "zarr.json")
            return own(writer, *given)

        monkeypatch.setattr(writers.Writer, name, watched)


# --- writers ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class State:
    """What is in a store."""

    edges: tuple[tuple[int, int], ...] = ()
    n_versions: int = 0
    is_transposed: bool = False
    order: str | None = None


def pack(*edges):
    return tuple(np.array(edges, np.int64).T)


def ingest(place, edge, **options):
    mg.ingest(pack(edge, (7, 7)), place, duplicates="keep", n_vertices=8, **options)


WRITERS: dict[str, tuple[Callable[[Any, tuple[int, int]], object], Callable[[State, tuple[int, int]], State]]] = {
    "ingest": (ingest, lambda was, edge: State((edge, (7, 7)), 1)),
    "overwrite": (lambda place, edge: ingest(place, edge, overwrite=True), lambda was, edge: State((edge, (7, 7)), 1)),
    "update": (
        lambda place, edge: mg.update(place, insert=pack(edge)),
        lambda was, edge: State((*was.edges, edge), was.n_versions + 1, was.is_transposed, was.order),
    ),
    "reorder": (
        lambda place, edge: mg.reorder(place, method="degree"),
        lambda was, edge: State(was.edges, 1, was.is_transposed, "degree"),
    ),
    "transpose": (
        lambda place, edge: mg.transpose(place),
        lambda was, edge: State(was.edges, was.n_versions + (not was.is_transposed), True, was.order),
    ),
    "drop": (
        lambda place, edge: mg.drop_versions(place, keep=1),
        lambda was, edge: State(was.edges, 1, was.is_transposed, was.order),
    ),
}
"""What each does, given an edge that tells it from others, and what is in the store then."""
BEGUN = State(((0, 1), (7, 7), (1, 2)), 2)
A, B = (2, 3), (3, 4)


def make_begun(place):
    ingest(place, (0, 1))
    mg.update(place, insert=pack((1, 2)))


def look(place):
    try:
        matrix = mg.open_matrix(place)
    except StoreNotFoundError:
        return State()
    entries = matrix.to_scipy().tocoo()
    counted = np.repeat(np.stack([entries.col, entries.row], 1), entries.data.astype(int), axis=0)
    return State(
        tuple(sorted(map(tuple, counted.tolist()))),
        len(mg.list_versions(place)),
        matrix.info.has_transpose,
        matrix.info.order,
    )


def follow(was, *done):
    for name, edge in done:
        was = WRITERS[name][1](was, edge)
    return State(tuple(sorted(was.edges)), was.n_versions, was.is_transposed, was.order)


def attempt(name, place, edge):
    try:
        WRITERS[name][0](place, edge)
    except StoreError:
        return False
    return True


KINDS: dict[str, tuple[Callable[..., Any], Callable[[Any], Any]]] = {
    "locked": (lambda tmp_path, k: LocalStore(tmp_path / str(k)), StoppedStore),
    "no locks": (lambda tmp_path, k: LocalStore(tmp_path / str(k)), StoppedStore),
    "memory": (lambda tmp_path, k: MemoryStore(), StoppedStore),
    "conditional": (lambda tmp_path, k: ObjectStore(make_objects()), lambda place: StoppedObjects(place.store)),
}
PAIRS = [
    ("ingest", "ingest"),
    ("overwrite", "overwrite"),
    ("update", "update"),
    ("update", "drop"),
    ("drop", "update"),
    ("reorder", "update"),
    ("transpose", "update"),
    ("overwrite", "update"),
]
QUICK = {("update", "update", "no locks"), ("ingest", "ingest", "memory"), ("update", "update", "conditional")}


def make_objects():
    return pytest.importorskip("obstore.store").MemoryStore()


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [
        pytest.param(*pair, kind, marks=() if (*pair, kind) in QUICK else pytest.mark.slow)
        for pair in PAIRS
        for kind in KINDS
    ],
)
def test_one_wins_wherever_the_other_is_stopped(first, second, kind, tmp_path, watch_root, monkeypatch):
    if kind == "no locks":
        monkeypatch.setattr(writers, "_take", lambda folder, url: None)
    make, stop = KINDS[kind]
    outcomes = set()
    for at in range(1, 1000):
        place = make(tmp_path, at)
        was = State()
        if first != "ingest":
            make_begun(place)
            was = BEGUN
        did: list[bool] = []
        stopped = stop(place)
        stopped.stop(at, lambda did=did, place=place: did.append(attempt(second, place, B)))
        is_done = attempt(first, stopped, A)
        if not did:
            assert is_done
            break
        outcomes.add((is_done, did[0]))
        done_first, done_second = [(first, A)] * is_done, [(second, B)] * did[0]
        serial = (follow(was, *done_first, *done_second), follow(was, *done_second, *done_first))
        assert look(place) in serial, (at, is_done, did, stopped.calls[max(0, at - 3) : at + 1])
        assert is_done or did[0], (at, stopped.calls[max(0, at - 3) : at + 1])
        assert mg.verify(place) == []
        info = mg.update(place, insert=pack((6, 5)), keep=1)
        assert list_version_names(place) == [info.version]
        assert [key for key in list_keys(place) if key.startswith(".")] == []
    assert at > 10
    assert (True, False) in outcomes or (False, True) in outcomes or "drop" in (first, second)


READERS = {
    "open": lambda place: mg.open_matrix(place).info.digest,
    "versions": lambda place: mg.list_versions(place)[-1].digest,
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("replace", ["overwrite", "update"])
def test_a_reader_that_is_overtaken_reads_the_new_version(name, replace, tmp_path):
    for at in range(1, 1000):
        make_begun(place := LocalStore(tmp_path / str(at)))
        did: list[str] = []

        def act(place=place, did=did):
            WRITERS[replace][0](place, B)
            mg.drop_versions(place, keep=1)
            did.append(mg.open_matrix(place).info.digest)

        before = mg.open_matrix(place).info.digest
        stopped = StoppedStore(place)
        stopped.stop(at, act)
        found = READERS[name](stopped)
        if not did:
            break
        assert found in (before, did[0])
    assert at > 3
