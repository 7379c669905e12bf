"""When states of a run are kept, and what happens where that fails."""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import zarr

import mgspmv as mg
from mgspmv.checkpoints import Checkpointer, Checkpoints, write_slice
from mgspmv.errors import CheckpointError
from mgspmv.kernels.select import bind_kernel
from mgspmv.model import BEGINNING, Status
from mgspmv.solvers.options import PageRankOptions, RankTask
from mgspmv.solvers.pagerank import RunInputs, make_inputs, read_out_weight
from mgspmv.solvers.steps import STEPS_AT_ONCE, LocalSteps
from tests.support.hearing import on_phases
from tests.support.played import PlayedDevice, run_played, run_steps

X = np.arange(5.0)


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


class Writers:
    """Two who write, and count how often."""

    def __init__(self) -> None:
        self.n_begun = 0

    def __call__(self, address):
        self.n_begun += 1
        return [write_slice(address, a, X[a:b]) for a, b in ((0, 2), (2, 5))]


@pytest.fixture
def clock(monkeypatch):
    """Seconds, in a list, that `Checkpointer` reads."""
    now = [100.0]
    played = SimpleNamespace(monotonic=lambda: now[0], perf_counter=time.perf_counter)
    monkeypatch.setattr("mgspmv.checkpoints.time", played)
    return now


def make_keeper(place):
    checkpoints, told = Checkpoints(place), []
    checkpoints.prepare(is_shared=False)
    own = Checkpointer(checkpoints, {"matrix": "m"}, "r", 30.0, notify=told.append)
    own.told = told
    return own


def restore(keeper):
    return Checkpoints(keeper.checkpoints.place).restore()


def test_it_begins_when_it_is_time(clock, tmp_path):
    keeper, write = make_keeper(tmp_path / "c"), Writers()
    for at, changes, n_begun in [(129.0, [0.5], 0), (130.0, [0.5, 0.2], 1), (159.0, [0.5, 0.2, 0.1], 1)]:
        clock[0] = at
        keeper.look(write, changes)
        assert write.n_begun == n_begun
    assert [(kept.iteration, kept.n_bytes, kept.error) for kept in keeper.told] == [(2, 40, None)]
    restored = restore(keeper)
    assert restored.reached.changes == (0.5, 0.2)
    assert restored.x.tobytes() == X.tobytes()
    clock[0] = 160.0
    keeper.look(write, [0.5, 0.2, 0.1, 0.05])
    assert write.n_begun == 2


def test_time_for_writing_is_not_part_of_the_interval(clock, tmp_path):
    def write_slowly(address):
        clock[0] += 40.0
        return write(address)

    keeper, write = make_keeper(tmp_path / "c"), Writers()
    for k in range(1, 5):
        clock[0] += 15.0
        keeper.look(write_slowly, [0.5] * k)
    assert [kept.iteration for kept in keeper.told] == [2, 4]


def keep(keeper, iteration):
    """Keep a state after so many iterations."""
    keeper.end(Writers(), [0.5] * iteration, Status.CONVERGED)


@pytest.fixture
def place():
    with FailingStore.make() as store:
        yield store


@pytest.fixture
def failing(place):
    """A keeper of a place that fails when it is told to."""
    return make_keeper(place)


def list_states(place):
    return {key.split("/")[1] for key in place._store_dict if key.startswith("states/s")}


def test_a_state_counts_where_older_ones_cannot_be_removed(failing, place):
    place.refuse("delete ")
    keep(failing, 1)
    keep(failing, 2)
    said = r"^checkpoint written to .*, but older ones cannot be removed: .*Permission denied; the run continues"
    with pytest.warns(UserWarning, match=said):
        keep(failing, 3)
    keep(failing, 4)  # it is warned of once
    assert [(kept.iteration, kept.error) for kept in failing.told] == [(k, None) for k in range(1, 5)]
    assert (failing.kept.iteration, restore(failing).reached.iteration) == (4, 4)
    assert failing.go_back().reached.iteration == 4
    assert len(list_states(place)) == 4
    place.refuse(None)
    keep(failing, 5)
    assert len(list_states(place)) == 2


HANGS = "cannot be written to .*: no progress for 0.3 s; the run continues, and the previous checkpoint is kept"


def test_a_lost_worker_where_nothing_can_be_read(failing, place, monkeypatch):
    keep(failing, 1)
    place.hang("get ")
    monkeypatch.setattr("mgspmv.checkpoints.HANG_S", 0.3)
    with pytest.raises(CheckpointError, match=r"no progress for 0.3 s"):
        failing.go_back()


@pytest.mark.parametrize("word", ["set states/s", "c/0"])
def test_a_run_ends_where_its_place_hangs(graph, place, monkeypatch, word):
    whole = mg.pagerank(graph, throw=False, max_iter=6)

    def hang(phase, done, total):
        if phase == "checkpoint":
            place.hang(word)
            monkeypatch.setattr("mgspmv.checkpoints.HANG_S", 0.3)

    options = {"checkpoint": mg.Checkpoint(place, every_s=0), "progress": on_phases(hang)}
    with pytest.warns(UserWarning, match=HANGS) as warned:
        solution = mg.pagerank(graph, throw=False, max_iter=6, **options)
    assert len(warned) == 1
    assert solution.digest() == whole.digest()
    place.hang(None)
    assert Checkpoints(place).restore() is not None


@pytest.fixture(scope="module")
def graph():
    rng = np.random.default_rng(4)
    return mg.ingest((rng.integers(0, 50, 300), rng.integers(0, 55, 300), rng.random(300)), n_vertices=55)


def run(A, place, kind, max_iter, *, resume=False, notify=lambda kept: None):
    """Outcome, and changes of the iterations of this run, on a device or not."""
    options = PageRankOptions(tol=1e-14, max_iter=max_iter)
    start, block = make_inputs(A, options, use_weights=True), A.block("float64")
    weight, threshold = read_out_weight(A.stored, True), options.threshold(55, A.nnz)
    checkpoints = Checkpoints(place)
    checkpoints.prepare(is_shared=False)
    restored = checkpoints.restore() if resume else None
    if restored is not None:
        start = RunInputs(restored.x, start.dangling, start.personalization)
    before, events = BEGINNING if restored is None else restored.reached, []
    keeper = Checkpointer(checkpoints, {}, "r", 0.0, before, notify=notify)
    if kind == "device":
        device = PlayedDevice(block, "exact")
        steps = (options, threshold, events.append)
        outcome = run_played(device, start.on_device(weight), *steps, keeper=keeper)
    else:
        rows, task = start.bind(bind_kernel(block, "exact"), weight), RankTask("r", options, threshold)
        outcome = run_steps(LocalSteps(rows, options), task, events.append, keeper=keeper)
    return outcome, [event.change for event in events]


@pytest.mark.parametrize("first", ["device", "host"])
@pytest.mark.parametrize("second", ["device", "host"])
def test_a_device_keeps_what_it_reached(graph, tmp_path, first, second):
    whole, changes = run(graph, tmp_path / "whole", "host", 300)
    n = STEPS_AT_ONCE + 3
    _, begun = run(graph, tmp_path / "c", first, n)
    outcome, rest = run(graph, tmp_path / "c", second, 300, resume=True)
    assert begun + rest == changes
    assert outcome.values.tobytes() == whole.values.tobytes()
    again, none = run(graph, tmp_path / "c", second, 300, resume=True)
    assert (none, again.status) == ([], Status.CONVERGED)
    assert again.values.tobytes() == whole.values.tobytes()
