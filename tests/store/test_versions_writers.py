"""Two writers of a store: one is stopped before each of its operations there, while the other does all of its work."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from zarr.abc.store import Store
from zarr.buffer import default_buffer_prototype
from zarr.storage import LocalStore, MemoryStore, ObjectStore

import mgspmv as mg
from mgspmv.errors import StoreError, StoreNotFoundError
from mgspmv.store import access, versions
from tests.support.buckets import serve_s3
from tests.support.stores import WatchingStore, list_keys, list_version_names


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


KINDS: dict[str, Callable[..., Any]] = {
    "local": lambda tmp_path, k: LocalStore(tmp_path / str(k)),
    "memory": lambda tmp_path, k: MemoryStore(),
    "objects": lambda tmp_path, k: ObjectStore(make_objects()),
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
QUICK = {("update", "update", "local")}
WEEKLY = {(*pair, "objects") for pair in PAIRS if "ingest" in pair or pair[0] in ("overwrite", "reorder", "transpose")}


@pytest.fixture(autouse=True)
def small_waits(monkeypatch):
    monkeypatch.setattr(versions, "NAMING_S", 1e-3)
    monkeypatch.setattr(access, "FINISH_S", 1.0)  # a stopped writer waits for what waits for it


def choose_marks(*case):
    return () if case in QUICK else pytest.mark.weekly if case in WEEKLY else pytest.mark.slow


def make_objects():
    return pytest.importorskip("obstore.store").MemoryStore()


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [
        pytest.param(*pair, kind, marks=choose_marks(*pair, kind))
        for pair in PAIRS
        for kind in KINDS
        if kind != "memory" or pair == ("ingest", "ingest")  # it is as a local one
    ],
)
def test_one_wins_wherever_the_other_is_stopped(first, second, kind, tmp_path):
    outcomes = set()
    for at in range(1, 1000):
        place = KINDS[kind](tmp_path, at)
        was = State()
        if first != "ingest":
            make_begun(place)
            was = BEGUN
        did: list[bool] = []
        stopped = StoppedStore(place)
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
        info = mg.update(place, insert=pack((6, 5)), keep=1).info
        assert list_version_names(place) == [info.version]
        assert [key for key in list_keys(place) if key.startswith(".")] == []
    assert at > 10
    assert (True, False) in outcomes or (False, True) in outcomes or "drop" in (first, second)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["s3", "memory"])
@pytest.mark.parametrize(("first", "second"), [("ingest", "ingest"), ("update", "update"), ("update", "drop")])
def test_one_wins_at_urls(first, second, scheme, monkeypatch):
    with serve_s3() if "s3" in scheme else contextlib.nullcontext():
        for at in (1, 2):  # of the writes of the root
            was, place = State(), f"{scheme}://bucket/by-{scheme}-{first}-{second}-{at}"
            if first != "ingest":
                make_begun(place)
                was = BEGUN
            did: list[bool] = []
            left = [at]

            def write(writer, *given, own=versions.Writer._write, did=did, left=left, place=place):
                left[0] -= 1
                if left[0] == 0:
                    did.append(attempt(second, place, B))
                own(writer, *given)

            with monkeypatch.context() as patch:
                patch.setattr(versions.Writer, "_write", write)
                is_done = attempt(first, place, A)
            if did:
                assert (is_done, did[0]) == (True, False)
            assert look(place) == follow(was, *[(first, A)] * is_done, *[(second, B)] * (did == [True]))
            assert mg.verify(place) == []


def test_what_was_written_though_an_error_came_is_a_success(monkeypatch):
    """And what another then put on top is none of its business."""
    make_begun(place := MemoryStore())

    def write(writer, *given, own=versions.Writer._write):
        own(writer, *given)
        raise OSError("the connection was lost")

    with monkeypatch.context() as patch:
        patch.setattr(versions.Writer, "_write", write)
        info = mg.update(place, insert=pack(A)).info
    assert mg.open_matrix(place).info == info


def test_what_cannot_be_told_is_said_and_left(monkeypatch):
    make_begun(place := MemoryStore())

    def write(writer, *given, own=versions.Writer._write):
        own(writer, *given)
        patch.setattr(versions.Writer, "_read", lambda self: fail())
        raise OSError("the connection was lost")

    def fail():
        raise OSError("no connection")

    with monkeypatch.context() as patch:
        patch.setattr(versions.Writer, "_write", write)
        with pytest.raises(StoreError, match=r"the last write \(no connection\), so it is unknown whether v0"):
            mg.update(place, insert=pack(A))
    assert look(place) == follow(BEGUN, ("update", A))


def test_an_interrupt_after_the_last_write_says_that_it_was_made(tmp_path, monkeypatch):
    make_begun(tmp_path / "a")

    def clean(*given):
        raise KeyboardInterrupt

    monkeypatch.setattr(versions.Writer, "clean", clean)
    with pytest.warns(match="do not run this again"), pytest.raises(KeyboardInterrupt):
        mg.update(tmp_path / "a", insert=pack(A))
    assert look(tmp_path / "a") == follow(BEGUN, ("update", A))


@pytest.mark.parametrize(
    ("holder", "is_refused"),
    [
        ({"pid": 0, "host": "elsewhere", "began": "now"}, True),
        ({"pid": 0, "host": "elsewhere", "began": "2020-01-01T00:00:00+00:00"}, False),
        ({"pid": 1, "host": "here", "began": "2020-01-01T00:00:00+00:00"}, True),
        ({"pid": 2**22 + 1, "host": "here", "began": "now"}, False),
        ({"pid": "own", "host": "here", "began": "now"}, False),
        ({}, False),
    ],
)
def test_marks_of_writers_that_are_gone(holder, is_refused):
    make_begun(place := MemoryStore())
    own = versions._describe_holder()
    known = {"host": {"here": own["host"]}, "began": {"now": own["began"]}, "pid": {"own": own["pid"]}}
    text = json.dumps({name: known[name].get(value, value) for name, value in holder.items()})
    place._store_dict[".naming-00000000"] = default_buffer_prototype().buffer.from_bytes(text.encode())
    if is_refused:
        with pytest.raises(StoreError, match=r"if that process died, wait 10 minutes or remove .*naming-00000000"):
            mg.update(place, insert=pack(A))
        assert look(place) == follow(BEGUN)
    else:
        mg.update(place, insert=pack(A))
        assert list(filter(lambda key: key.startswith("."), list_keys(place))) == []


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
