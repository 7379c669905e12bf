"""The loop of all executors: when it ends and as what, by a plain loop over the same sums; in pieces as in one go."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mgspmv.model import Status, StepSums
from mgspmv.solvers.options import PageRankOptions, RankTask
from mgspmv.solvers.pagerank import Loop
from mgspmv.solvers.steps import Times

MODES = ["l1", "l1_per_node", "linf", "relative", "fixed"]


class ScriptedSteps:
    """Gives these sums, step by step, and keeps the masses that it was given."""

    def __init__(self, first, *sums):
        self._first, self._sums = first, list(sums)
        self.masses = []

    def scale(self):
        return self._first

    def advance(self, mass, n):
        self.masses.append(mass)
        k = len(self.masses)
        return [(self._sums[k - 1], Times((float(k),), (k / 2,), (k / 4,), (10 * k,), (1000,)))]


def make_sums(l1, linf=0.0, mass=0.0, n_wrong=0):
    return StepSums(round(l1 * 2**61), round(linf * 2**61), round(mass * 2**62), n_wrong)


def run_loop(first, sums, *, mode="l1", tol=None, max_iter=100, n=10, pieces=None):
    """All events, the loop, and its steps; `pieces` are numbers of iterations, then it runs to the end."""
    options = PageRankOptions(tol=tol, norm=mode, max_iter=max_iter)
    steps = ScriptedSteps(first, *sums)
    loop = Loop(steps, RankTask("a run", options, options.threshold(n, n)))
    loop.start()
    events = []
    for piece in [*(pieces or []), None]:
        events.extend(loop.advance(piece))
    return events, loop, steps


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


def test_nothing_is_iterated_before_it_is_asked_for():
    steps = ScriptedSteps(make_sums(0, mass=0.5), make_sums(1), make_sums(1), make_sums(0))
    loop = Loop(steps, RankTask("a run", PageRankOptions(), 1e-6))
    assert (loop.iteration, loop.status, steps.masses) == (0, None, [])
    loop.start()
    assert (loop.iteration, loop.status, loop.mass, steps.masses) == (0, None, 0.5, [])
    assert list(loop.advance(0)) == []
    events = loop.advance(2)
    assert next(events).iteration == 1
    assert (loop.iteration, loop.status, len(steps.masses)) == (1, None, 1)
    assert [e.iteration for e in events] == [2]
    assert [e.iteration for e in loop.advance()] == [3]
