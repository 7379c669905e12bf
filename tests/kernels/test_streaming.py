"""Pieces come by a device in turn, wherever they are kept; steps over them make the bits of steps over one layout."""

from __future__ import annotations

import sys
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mgspmv.errors import StoreError
from mgspmv.kernels import streaming
from mgspmv.kernels.layout import LayoutBuilder, MatrixLayout
from mgspmv.kernels.rank_steps import RankRules, RankSteps
from mgspmv.kernels.streaming import AHEAD, ChunkStream, choose_kept, hold_pieces
from mgspmv.plan import Streaming
from tests.kernels.test_rank_steps import (
    MANY,
    UNSTOPPED,
    VALUES,
    check_bits,
    make_graph,
    make_steps,
    make_vectors,
    run_beside,
)
from tests.support.blocks import read_to_device
from tests.support.matrices import naming
from tests.support.played import PlayedDevice


def test_pieces_that_come_by_are_spread_evenly():
    for n in range(1, 40):
        for n_kept in range(n + 1):
            kept = choose_kept(n, n_kept)
            assert len(kept) == n_kept
            others = sorted(set(range(n)) - set(kept))
            gaps = [b - a for a, b in pairwise(others)]
            assert not gaps or max(gaps) - min(gaps) <= 1


class Recorder:
    """A fetcher that notes what is asked of it; pieces are their numbers."""

    nbytes = 0

    def __init__(self) -> None:
        self.said: list[tuple[str, int]] = []

    def begin(self, k: int) -> int:
        self.said.append(("begin", k))
        return k

    def take(self, coming: int, stream: Any) -> Any:
        self.said.append(("take", coming))
        return coming

    def give_back(self, coming: int, stream: Any) -> None:
        self.said.append(("back", coming))

    def drop(self, coming: int) -> None:
        self.said.append(("drop", coming))


@pytest.fixture
def no_stream(monkeypatch):
    """CuPy as far as feeds ask for it."""
    cuda = SimpleNamespace(get_current_stream=lambda: None)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda))


def test_pieces_are_fetched_ahead_into_the_next_pass(no_stream):
    assert AHEAD == 2
    recorder = Recorder()
    feed: ChunkStream[Any] = ChunkStream({0: "zero", 3: "three"}, recorder, 5)
    assert list(feed.stream()) == [(0, "zero"), (1, 1), (2, 2), (3, "three"), (4, 4)]
    first = [("begin", 1), ("begin", 2), ("take", 1), ("back", 1), ("begin", 4), ("take", 2), ("back", 2)]
    assert recorder.said == [*first, ("begin", 1), ("take", 4), ("back", 4), ("begin", 2)]
    recorder.said.clear()
    assert [k for k, _ in feed.stream(goes_on=False)] == [0, 1, 2, 3, 4]
    assert recorder.said == [*first[2:], ("take", 4), ("back", 4)]
    recorder.said.clear()
    assert [k for k, _ in feed.stream()] == [0, 1, 2, 3, 4]
    assert recorder.said[:3] == first[:3]


def test_a_pass_after_one_that_was_broken_off_begins_anew(no_stream):
    recorder = Recorder()
    feed: ChunkStream[Any] = ChunkStream({}, recorder, 4)
    for k, _ in feed.stream():
        if k == 1:
            break
    assert recorder.said[-1] == ("back", 1)
    assert list(feed.stream(goes_on=False)) == [(k, k) for k in range(4)]
    assert feed.is_kept is False
    assert ChunkStream({0: "all"}, None, 1).is_kept is True


@pytest.mark.parametrize(
    ("held", "room", "kept", "made", "pinned"),
    [
        ("host", 0, [], [0, 1, 2, 3], [0, 1, 2, 3]),
        ("host", 25, [0, 2], [0, 1, 2, 3], [1, 3]),
        ("host", 1000, [0, 1, 2, 3], [0, 1, 2, 3], []),
        ("store", 0, [], [0], []),
        ("store", 39, [0, 1, 2], [0, 1, 2], []),
        ("store", 40, [0, 1, 2, 3], [0, 1, 2, 3], []),
    ],
)
def test_pieces_are_held_where_there_is_room(held, room, kept, made, pinned, monkeypatch):
    """Pieces of 10 bytes."""
    calls: list[int] = []
    checks: list[int] = []
    monkeypatch.setattr(streaming, "release_device_memory", lambda **_: None)
    monkeypatch.setattr(streaming, "PinnedPiece", lambda piece: ("pinned", piece.number))
    monkeypatch.setattr(streaming, "FromHost", lambda held: ("host", held))
    monkeypatch.setattr(streaming, "FromStore", lambda make: ("store", make))

    def make(k: int) -> Any:
        calls.append(k)
        return SimpleNamespace(number=k, nbytes=10)

    feed = hold_pieces(make, 4, Streaming(held, 1, room, 0, 0), lambda: checks.append(len(calls)))
    assert calls == made
    assert {k: piece.number for k, piece in feed.kept.items()} == {k: k for k in kept}
    assert len(checks) == 4
    assert feed.is_kept == (len(kept) == 4)
    fetcher: Any = feed._fetcher
    wanted = {"host": ("host", {k: ("pinned", k) for k in pinned}), "store": ("store", make)}[held]
    assert fetcher == (None if feed.is_kept else wanted)


HELD = pytest.mark.parametrize("held", ["host", "store"])
KINDS = {
    "blocks by degree": {"layout": "column-sorted-blocks", "order": "degree"},
    "blocks in order": {"layout": "column-sorted-blocks", "order": "none"},
    "slices": {"layout": "sell-slices"},
    "coo": {"layout": "coo"},
}
KIND = pytest.mark.parametrize("kind", KINDS)


def make_pieces(block, kind, held, n_pieces, n_kept, read=None) -> MatrixLayout:
    import cupy

    n_entries = max(1, block.nnz // n_pieces)
    rows = LayoutBuilder(block.indptr, read or read_to_device(block), piece_entries=n_entries, **KINDS[kind])
    degree = cupy.zeros(block.n_rows, np.int64)
    degree[cupy.asarray(block.indices)] = 1
    places = rows.place_streamed(degree, Streaming(held, n_entries, 0, 0, 0))
    first = rows.build_share(places, places.columns, places.n_sent, 0)
    streaming = Streaming(held, n_entries, n_kept * first.nbytes, 0, 0)
    return rows.build_layout(places, places.columns, places.n_sent, streaming)


@pytest.mark.gpu
@VALUES
@HELD
@KIND
def test_exact_steps_have_the_bits_of_the_cpu(kind, held, is_pattern):
    for name in MANY:
        with naming(name):
            check_exact_steps(name, kind, held, is_pattern)


def check_exact_steps(name, kind, held, is_pattern) -> None:
    block, weight = make_graph(name, is_pattern=is_pattern)
    for n_pieces, n_kept, vectors_kind in ((1, 0, "uniform"), (6, 3, "all"), (3, 9, "dangling")):
        laid, played = make_pieces(block, kind, held, n_pieces, n_kept), PlayedDevice(block)
        steps = RankSteps(laid, "exact")
        steps.compile()
        check_bits(
            steps, played, run_beside(steps, played, make_vectors(block.n_rows, weight, kind=vectors_kind), UNSTOPPED)
        )
        mass = 0.25
        assert steps.residual(mass) == pytest.approx(played.residual(mass), rel=1e-6, abs=1e-15)
        steps.release()


@pytest.mark.gpu
@VALUES
@HELD
@pytest.mark.parametrize("kind", ["blocks by degree", "slices", "coo"])
def test_float32_ranks_have_the_bits_of_one_layout(kind, held, is_pattern):
    block, weight = make_graph("skewed rows", is_pattern=is_pattern, dtype=np.float32)
    vectors = make_vectors(block.n_rows, weight, kind="all", dtype=np.float32)
    one = make_steps(kind, block, "float32")
    wanted = [one.start(vectors, UNSTOPPED), *one.advance(12)]
    for n_pieces, n_kept in ((4, 0), (7, 3)):
        steps = RankSteps(make_pieces(block, kind, held, n_pieces, n_kept), "float32")
        assert [steps.start(vectors, UNSTOPPED), *steps.advance(12)] == wanted
        assert steps.ranks().tobytes() == one.ranks().tobytes()


@pytest.mark.gpu
@HELD
def test_nothing_comes_by_after_the_stop_and_a_second_run_is_the_same(held):
    block, weight = make_graph("skewed rows", is_pattern=True)
    read, n_read = read_to_device(block), [0]

    def count(first: int, last: int) -> Any:
        n_read[0] += 1
        return read(first, last)

    laid = make_pieces(block, "blocks by degree", held, 4, 1, count)
    assert len(laid.feed.kept) == 1
    steps, played = RankSteps(laid, "exact"), PlayedDevice(block)
    vectors, rules = make_vectors(block.n_rows, weight), RankRules(0.85, 1e-9, by_largest=False)
    sums = run_beside(steps, played, vectors, rules, 200)
    n_made = len(sums[0]) - 1
    assert 5 < n_made < 100
    check_bits(steps, played, sums)
    steps.release()
    n_before = n_read[0]
    again = [steps.start(vectors, rules), *steps.advance(200)]
    assert again == sums[0]
    n_pieces = laid.feed.n - 1
    assert n_read[0] - n_before <= (n_pieces * (n_made + 1) + AHEAD if held == "store" else 0)
    assert steps.advance(3) == []
    steps.release()


@pytest.mark.gpu
def test_a_store_that_cannot_be_read_any_more_ends_the_step():
    block, weight = make_graph("skewed rows", is_pattern=True)
    read, is_broken = read_to_device(block), [False]

    def fail(first: int, last: int) -> Any:
        if is_broken[0]:
            raise StoreError("the disk is gone")
        return read(first, last)

    steps = RankSteps(make_pieces(block, "blocks by degree", "store", 4, 1, fail), "exact")
    vectors = make_vectors(block.n_rows, weight)
    first = [steps.start(vectors, UNSTOPPED), *steps.advance(3)]
    is_broken[0] = True
    with pytest.raises(StoreError, match="the disk is gone"):
        steps.advance(4)
    is_broken[0] = False
    steps.release()
    assert [steps.start(vectors, UNSTOPPED), *steps.advance(3)] == first
    steps.release()


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_a_piece_of_rows_that_were_read_at_once_has_its_own_entries(kind):
    import cupy

    block, _ = make_graph("skewed rows", is_pattern=True)
    rows = LayoutBuilder(block.indptr, read_to_device(block), **KINDS[kind])
    cuts = [0, 1000, 2500, block.n_rows]
    places = rows.place(cupy.ones(block.n_rows, np.int64), cuts)
    for k, (first, last) in enumerate(pairwise(cuts)):
        layout = rows.build_share(places, places.columns, places.n_sent, k)
        assert layout.shape == (last - first, block.n_rows)
        assert layout.nnz == block.indptr[last] - block.indptr[first]
