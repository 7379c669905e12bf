"""The loop of all drives: when it ends and as what, by a plain loop over the same sums; in pieces as in one go."""

from __future__ import annotations

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import mgspmv as mg
from mgspmv.exchange.transport import LocalTransport
from mgspmv.iterate.options import PageRankOptions
from mgspmv.iterate.pagerank import LocalSteps, Loop, Times, bound_error
from mgspmv.iterate.start import make_start, read_out_weight
from mgspmv.kernels.select import bind_kernel
from mgspmv.model import Event, Status, StepSums

MODES = ["l1", "l1_per_node", "linf", "relative", "fixed"]


class ScriptedSteps:
    """Gives these sums, step by step, and keeps the masses that it was given."""

    def __init__(self, first, *sums):
        self._first, self._sums = first, list(sums)
        self.masses = []

    def scale(self):
        return self._first

    def step(self, mass):
        self.masses.append(mass)
        k = len(self.masses)
        return self._sums[k - 1], Times((float(k),), (k / 2,), (k / 4,), (10 * k,), (1000,))


def make_sums(l1, linf=0.0, mass=0.0, n_wrong=0):
    return StepSums(round(l1 * 2**61), round(linf * 2**61), round(mass * 2**62), n_wrong)


def run_loop(first, sums, *, mode="l1", tol=None, max_iter=100, n=10, pieces=None):
    """All events, the loop, and its steps; `pieces` are numbers of iterations, then it runs to the end."""
    options = PageRankOptions(tol=tol, tol_mode=mode, max_iter=max_iter)
    steps = ScriptedSteps(first, *sums)
    loop = Loop(steps, options, options.threshold(n, n), "a run")
    loop.start()
    events = []
    for piece in [*(pieces or []), None]:
        events.extend(loop.advance(piece))
    return events, loop, steps


# --- how it ends -----------------------------------------------------------------------------------------------------


def end_of(first, sums, mode, tol, max_iter, n):
    """Iterations and status of a run, in the words of the user's manual."""
    for k, s in enumerate(sums[:max_iter], start=1):
        if first.n_wrong or s.n_wrong:
            return k, Status.NON_FINITE
        change = (s.change_linf if mode in ("linf", "relative") else s.change_l1) / 2**61
        if mode != "fixed" and change < tol * (n if mode == "l1_per_node" else 1):
            return k, Status.CONVERGED
    return max_iter, Status.COMPLETED if mode == "fixed" else Status.MAX_ITER


sizes = st.sampled_from([1.0, 1e-1, 9e-2, 1e-2, 1e-3, 1e-4, 0.0])
some_sums = st.builds(make_sums, sizes, sizes, st.sampled_from([0.0, 0.25]), st.sampled_from([0] * 9 + [1]))


@given(
    some_sums,
    st.lists(some_sums, min_size=6, max_size=6),
    st.sampled_from(MODES),
    st.sampled_from([1e-2, 1e-3]),
    st.integers(1, 6),
    st.lists(st.integers(0, 3), max_size=8),
)
def test_every_mode_ends_as_it_says_in_pieces_as_in_one_go(first, sums, mode, tol, max_iter, pieces):
    asked = {"mode": mode, "tol": None if mode == "fixed" else tol, "max_iter": max_iter, "n": 10}
    events, loop, steps = run_loop(first, sums, **asked)
    iterations, status = end_of(first, sums, mode, tol, max_iter, 10)
    assert (loop.iteration, loop.status) == (len(events), loop.status) == (iterations, status)
    norm = "change_linf" if mode in ("linf", "relative") else "change_l1"
    assert [e.change for e in events] == [getattr(s, norm) / 2**61 for s in sums[:iterations]]
    masses = [s.dangling / 2**62 for s in [first, *sums][: iterations + 1]]
    assert [*steps.masses, loop.mass] == masses

    again, other, _ = run_loop(first, sums, **asked, pieces=pieces)
    assert again == events
    assert (other.iteration, other.status, other.mass) == (loop.iteration, loop.status, loop.mass)


def test_a_change_of_just_the_tolerance_is_not_below_it():
    tol = 2.0**-10
    _, loop, _ = run_loop(make_sums(0), [make_sums(tol), make_sums(tol * (1 - 2**-30))], tol=tol)
    assert (loop.iteration, loop.status) == (2, Status.CONVERGED)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("first", "wanted"), [(1, 1), (0, 3)], ids=["in the start", "in a step"])
def test_a_wrong_rank_ends_it_although_the_change_is_small(mode, first, wanted):
    sums = [make_sums(1, 1), make_sums(0.5, 0.5), make_sums(0, 0, n_wrong=1), make_sums(0)]
    _, loop, _ = run_loop(make_sums(0, n_wrong=first), sums, mode=mode, max_iter=3)
    assert (loop.iteration, loop.status) == (wanted, Status.NON_FINITE)


def test_a_run_that_ended_goes_no_further():
    events, loop, steps = run_loop(make_sums(0), [make_sums(1), make_sums(0)])
    assert len(events) == len(steps.masses) == 2
    assert list(loop.advance()) == list(loop.advance(5)) == []
    assert len(steps.masses) == 2


def test_nothing_is_iterated_before_it_is_asked_for():
    steps = ScriptedSteps(make_sums(0, mass=0.5), make_sums(1), make_sums(1), make_sums(0))
    loop = Loop(steps, PageRankOptions(), 1e-6)
    assert (loop.iteration, loop.status, steps.masses) == (0, None, [])
    loop.start()
    assert (loop.iteration, loop.status, loop.mass, steps.masses) == (0, None, 0.5, [])
    assert list(loop.advance(0)) == []
    events = loop.advance(2)
    assert next(events).iteration == 1
    assert (loop.iteration, loop.status, len(steps.masses)) == (1, None, 1)
    assert [e.iteration for e in events] == [2]
    assert [e.iteration for e in loop.advance()] == [3]


# --- events ----------------------------------------------------------------------------------------------------------


def test_events_tell_what_the_steps_took():
    events, _, _ = run_loop(make_sums(0), [make_sums(0.5), make_sums(0)])
    assert events == [
        Event("a run", 0, 1, 0.5, (1.0,), (0.5,), (0.25,), (10,), (1000,)),
        Event("a run", 0, 2, 0.0, (2.0,), (1.0,), (0.5,), (20,), (1000,)),
    ]


# --- with the steps of a process -------------------------------------------------------------------------------------


class ThreadlessTransport(LocalTransport):
    """Others took a quarter of a second longer, and sent 100 bytes."""

    def exchange_columns(self, sums, product_s=0.0):
        self.waited_s += 0.25
        self.exchanged_bytes += 100
        return super().exchange_columns(sums, product_s)


@pytest.fixture(scope="module")
def graph():
    store = zarr.storage.MemoryStore()
    rng = np.random.default_rng(4)
    mg.ingest((rng.integers(0, 50, 300), rng.integers(0, 50, 300), rng.random(300)), store, n_vertices=55)
    return mg.open_matrix(store)


def make_steps(A, precision, n_blocks, transport=LocalTransport):
    options = PageRankOptions(precision=precision)
    start = make_start(A.stored, None, options, use_weights=True)
    weight = read_out_weight(A.stored, True)
    rows = []
    for block in A.load(n_blocks).blocks("float32" if precision == "float32" else "float64"):
        a, b = block.row_offset, block.row_offset + block.n_rows
        rows.append(start.cut(a, b).bind(bind_kernel(block, precision), weight[a:b]))
    A.load(1)
    return LocalSteps(rows, transport(A.shape[1], rows[0].kernel.z_dtype), options.alpha)


@pytest.mark.parametrize("precision", ["exact", "float64", "float32"])
def test_ranks_in_pieces_have_the_bits_of_those_in_one_go(graph, precision):
    wanted = mg.pagerank(graph, precision=precision)
    for n_blocks, size in ((1, 1), (3, 4), (5, 100)):
        steps = make_steps(graph, precision, n_blocks)
        options = PageRankOptions(precision=precision)
        loop = Loop(steps, options, options.threshold(55, graph.nnz))
        loop.start()
        changes = []
        while loop.status is None:
            changes += [e.change for e in loop.advance(size)]
        assert (loop.status, tuple(changes)) == (wanted.status, wanted.changes)
        assert np.concatenate([r.x for r in steps.rows]).tobytes() == wanted.values.tobytes()
        steps.begin_residual()
        assert bound_error(steps.residual(loop.mass), 0.85) == pytest.approx(wanted.error_bound_l1, rel=1e-9)


def test_times_of_a_step_are_those_of_its_transport(graph):
    steps = make_steps(graph, "exact", 2, ThreadlessTransport)
    steps.scale()
    for _ in range(3):
        _, times = steps.step(0.1)
        assert times.exchanged_bytes == (100,)
        assert times.product_s[0] > 0
        # It waited no longer than the exchange took, whatever the others say.
        assert times.exchange_s == (0.0,)
        assert 0 < times.wait_s[0] < 0.25
        held = sum(r.nbytes for r in steps.rows)
        assert times.memory_bytes == (held + 2 * 8 * 55,)
