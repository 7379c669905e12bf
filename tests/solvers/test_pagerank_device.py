"""Runs whose steps a device makes by the dozen: they are the runs of this process, step for step."""

from __future__ import annotations

import math
import time
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest

import mgspmv as mg
from mgspmv.kernels.select import bind_kernel
from mgspmv.model import FIXED_POINT, Status
from mgspmv.solvers.options import PageRankOptions, RankTask
from mgspmv.solvers.pagerank import make_inputs, read_out_weight
from mgspmv.solvers.steps import STEPS_AT_ONCE, LocalSteps
from tests.support.pairwise import cover_pairs
from tests.support.played import PlayedDevice, run_played, run_steps

N = 55
MODES = ["l1", "l1_per_node", "linf", "relative", "fixed"]
VECTORS = {
    "uniform": {},
    "dangling uniform": {"personalization": np.arange(N), "dangling": "uniform"},
    "dangling dropped": {"dangling": "drop"},
    "vectors": {"personalization": {3: 1, 50: 2}, "dangling": np.arange(N)[::-1], "nstart": np.arange(N) % 7},
}


@pytest.fixture(scope="module")
def graph():
    """50 vertices with arcs, 5 that are dangling."""
    rng = np.random.default_rng(4)
    return mg.ingest((rng.integers(0, 50, 300), rng.integers(0, N, 300), rng.random(300)), n_vertices=N)


def prepare(A, options, *, use_weights=True, **vectors):
    """Block, start, weights and threshold of a run."""
    start = make_inputs(A, options, **vectors, use_weights=use_weights)
    dtype = None if not use_weights else "float32" if options.precision == "float32" else "float64"
    block = A.block(dtype)
    return block, start, read_out_weight(A.stored, use_weights), options.threshold(*A.shape[:1], A.nnz)


def run_both(A, options, **given):
    """Outcome and events of the run in this process and of the one on a device, and the device."""
    block, start, weight, threshold = prepare(A, options, **given)
    device = PlayedDevice(block, options.precision)
    runs = []
    for run in (
        lambda emit: run_played(device, start.on_device(weight), options, threshold, emit, name="a run"),
        lambda emit: run_steps(
            LocalSteps(start.bind(bind_kernel(block, options.precision), weight), options),
            RankTask("a run", options, threshold),
            emit,
        ),
    ):
        events = []
        runs.append((run(events.append), events))
    return *runs, device


def check_same(one, other) -> None:
    """Two runs with their events; but for what they took."""
    (got, events), (wanted, expected) = one, other
    assert (got.status, got.error_bound_l1) == (wanted.status, wanted.error_bound_l1)
    assert got.values.tobytes() == wanted.values.tobytes()
    assert got.values.dtype == wanted.values.dtype
    told = [(e.run, e.epoch, e.iteration, e.change) for e in events]
    assert told == [(e.run, e.epoch, e.iteration, e.change) for e in expected]
    assert [e.iteration for e in events] == list(range(1, len(events) + 1))


@cover_pairs(mode=MODES, vectors=list(VECTORS), precision=["exact", "float32"])
def test_a_run_on_a_device_is_that_of_this_process(graph, mode, vectors, precision):
    asked = {"norm": mode, "precision": precision, "max_iter": 30 if mode == "fixed" else 100}
    for use_weights in (True, False):
        options = PageRankOptions(tol=None if mode == "fixed" else 1e-5, **asked)
        one, other, device = run_both(graph, options, use_weights=use_weights, **VECTORS[vectors])
        check_same(one, other)
        assert one[0].status is (Status.COMPLETED if mode == "fixed" else Status.CONVERGED)
        assert len(one[1]) == device.n_made == sum(device.asked[:-1]) + (len(one[1]) - 1) % STEPS_AT_ONCE + 1
        assert one[0].hardware == "a played device"


@pytest.mark.parametrize("vectors", VECTORS)
def test_the_highest_are_proven_at_the_same_iteration(graph, vectors):
    options = PageRankOptions(stop="topk:10", max_iter=300)
    one, other, device = run_both(graph, options, **VECTORS[vectors])
    check_same(one, other)
    assert one[0].status is Status.STABLE
    assert one[0].stability == other[0].stability
    assert one[0].stability.is_proven
    assert len(one[1]) == device.n_made  # none is made that is not looked at
    assert one[0].seconds["look"] > 0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("max_iter", [1, STEPS_AT_ONCE - 1, STEPS_AT_ONCE, STEPS_AT_ONCE + 1, 2 * STEPS_AT_ONCE + 3])
def test_no_more_steps_are_asked_for_than_are_left(max_iter, mode):
    """On a star, whose walks swing between hub and leaves."""
    leaves, hub = np.arange(1, 9), np.zeros(8, int)
    A = mg.ingest((np.concatenate([leaves, hub]), np.concatenate([hub, leaves])))
    options = PageRankOptions(alpha=0.99, norm=mode, max_iter=max_iter)
    one, other, device = run_both(A, options, use_weights=False)
    check_same(one, other)
    assert one[0].status is (Status.COMPLETED if mode == "fixed" else Status.MAX_ITER)
    assert len(one[1]) == device.n_made == max_iter
    full, rest = divmod(max_iter, STEPS_AT_ONCE)
    assert device.asked == [STEPS_AT_ONCE] * full + [rest] * (rest > 0)


def test_steps_are_looked_at_one_by_one_where_rows_come_by(graph, monkeypatch):
    monkeypatch.setattr(PlayedDevice, "streams", True)
    one, other, device = run_both(graph, PageRankOptions(tol=1e-6))
    check_same(one, other)
    assert device.asked == [1] * len(one[1])
    assert len(one[1]) > 5


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("begin", "wanted"), [(2, 1), (1, 1), (0, 2)], ids=["start", "first step", "second step"])
def test_ranks_that_are_not_finite(begin, wanted, mode):
    """Rank goes round from a vertex on, and at the last one it is divided by a weight that is next to nothing."""
    A = mg.ingest((np.arange(3), np.array([1, 2, 0]), np.array([1.0, 1.0, 5e-324])))
    options = PageRankOptions(norm=mode)
    one, other, device = run_both(A, options, nstart={begin: 1}, personalization={0: 1})
    check_same(one, other)
    assert (one[0].status, one[0].error_bound_l1) == (Status.NON_FINITE, math.inf)
    assert (len(one[1]), device.n_made) == (wanted, wanted)
    assert device.calls == ["compile", "start", "ranks", "release"]


def test_the_device_is_compiled_first_and_released_last(graph):
    _, _, device = run_both(graph, PageRankOptions())
    assert device.calls == ["compile", "start", "residual", "ranks", "release"]


def test_events_come_for_each_iteration_with_the_seconds_of_the_device(graph, monkeypatch):
    block, start, weight, threshold = prepare(graph, options := PageRankOptions(norm="fixed", max_iter=33))
    device, heard = PlayedDevice(block), []
    clock = count(step=7.0)  # seconds between two looks at it
    played = SimpleNamespace(perf_counter=lambda: next(clock), monotonic=time.monotonic)
    for module in ("pagerank", "run"):
        monkeypatch.setattr(f"mgspmv.solvers.{module}.time", played)

    def emit(event) -> None:
        heard.append((event, device.n_made))

    outcome = run_played(device, start.on_device(weight), options, threshold, emit, name="x")
    assert [event.iteration for event, _ in heard] == list(range(1, 34))
    assert [made for _, made in heard] == [20] * 20 + [33] * 13
    for event, _ in heard:
        assert (event.run, event.exchange_s, event.wait_s, event.exchanged_bytes) == ("x", (0.0,), (0.0,), (0,))
        assert event.memory_bytes == (PlayedDevice.nbytes,)
    assert [event.product_s for event, _ in heard] == [(0.5,)] * 33
    other = {"compile": 7, "start": 14, "residual": 7, "collect": 7}
    assert outcome.seconds == {"product": pytest.approx(16.5), "exchange": 0, "schedule": 0, **other}


class Scripted(PlayedDevice):
    """Gives the bound that is set."""

    def residual(self, mass: float) -> float:
        self.mass = mass
        return 2.0**-40


def test_the_error_bound_counts_the_rounding_of_the_dangling_mass(graph):
    """Half a unit of fixed point for each dangling vertex, which the device does not know of."""
    block, start, weight, threshold = prepare(graph, options := PageRankOptions(alpha=0.75))
    device = Scripted(block)
    outcome = run_played(device, start.on_device(weight), options, threshold, lambda _: None)
    n_dangling = int((weight == 0).sum())
    assert n_dangling >= 5
    assert outcome.error_bound_l1 == (2.0**-40 + 0.75 * n_dangling * 0.5 / FIXED_POINT) / 0.25
    ranks = outcome.values[weight == 0].sum()
    assert device.mass == pytest.approx(ranks, rel=1e-14)
