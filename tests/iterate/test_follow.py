"""Following changes from old ranks: the ranks of a run from the start, sooner, to the same bits everywhere."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import zarr

import mgspmv as mg
from mgspmv.api import ranking
from mgspmv.api.warm import estimate_rate
from mgspmv.errors import CapacityError, ConvergenceError, OptionError
from mgspmv.iterate import follow
from mgspmv.kernels import spread
from mgspmv.model import Followed
from tests.support.oracles import rank_by_solving
from tests.support.pairwise import cover_pairs

TIGHT = {"tol": 1e-13, "max_iter": 500}
N, GROUP = 900, 15


def make_graph(arcs, **options):
    store = zarr.storage.MemoryStore()
    mg.ingest(sp.coo_array(arcs), store, kind="graph", **options)
    return mg.open_matrix(store)


def make_arcs(seed=0, n=N):
    """Groups of vertices with arcs of random weight among each other, and few to others; a tenth are dangling."""
    rng = np.random.default_rng(seed)
    arcs = np.zeros((n, n))
    for i in rng.permutation(n)[n // 10 :]:
        arcs[i, i // GROUP * GROUP + rng.integers(0, GROUP, 4)] = rng.random(4) + 0.1
        if rng.random() < 0.01:
            arcs[i, rng.integers(n)] = 0.5
    return arcs


def change(arcs):
    """One arc less, one more, a vertex that is dangling now, and one that no longer is."""
    new = arcs.copy()
    has_arcs, has_none = np.flatnonzero(arcs.any(axis=1)), np.flatnonzero(~arcs.any(axis=1))
    new[has_arcs[3], np.flatnonzero(arcs[has_arcs[3]])[0]] = 0
    new[has_arcs[9], has_arcs[9] + 2 * GROUP] = 0.5
    new[has_arcs[20]] = 0
    new[has_none[0], 5] = 1.0
    return new


@pytest.fixture(scope="module")
def old_and_new():
    return make_graph(make_arcs()), make_graph(change(make_arcs()))


def rank_again(old, new, **options):
    before = mg.pagerank(old, **TIGHT, **options)
    return mg.pagerank(new, nstart=before, follow_changes=True, **TIGHT, **options)


@cover_pairs(precision=["exact", "float64"], weights=[True, False], personal=[False, True])
def test_the_ranks_are_the_solution(old_and_new, precision, weights, personal):
    arcs = change(make_arcs()) if weights else (change(make_arcs()) > 0).astype(float)
    p = np.where(np.arange(N) % 7 == 3, 1.0 + np.arange(N), 0.0) if personal else None
    solution = rank_again(*old_and_new, precision=precision, weights=weights, personalization=p)
    assert np.abs(solution.values - rank_by_solving(arcs, p=p)).sum() < 1e-11
    found = solution.followed
    assert found.rounds > 10
    assert found.residual_after < 1e-12 < found.residual_before
    assert solution.iterations <= 3


def test_float32_follows_as_far_as_it_reaches(old_and_new):
    asked = {"precision": "float32", "tol": 3e-6, "max_iter": 500}
    before, cold = (mg.pagerank(A, **asked) for A in old_and_new)
    solution = mg.pagerank(old_and_new[1], nstart=before, follow_changes=True, **asked)
    assert solution.values.dtype == np.float32
    assert solution.iterations < cold.iterations / 2
    assert solution.followed.rounds > 0
    assert abs(solution.values.astype(float) - cold.values).sum() <= solution.error_bound_l1 + cold.error_bound_l1


def test_where_the_rank_of_dangling_vertices_is_dropped(old_and_new):
    plain = mg.pagerank(old_and_new[1], dangling="drop", **TIGHT)
    solution = rank_again(*old_and_new, dangling="drop")
    assert solution.iterations <= 3
    assert solution.values.sum() < 0.99
    np.testing.assert_allclose(solution.values, plain.values, atol=1e-13)


def test_out_weights_that_lead_out_of_the_graph():
    old, new = make_arcs(), change(make_arcs())
    weight = 1.5 * old.sum(axis=1) + new.sum(axis=1)
    plain = mg.pagerank(make_graph(new), out_weight=weight, **TIGHT)
    solution = rank_again(make_graph(old), make_graph(new), out_weight=weight)
    assert solution.iterations <= 3
    np.testing.assert_allclose(solution.values, plain.values, atol=1e-13)


def test_vertices_that_come_and_go():
    arcs = make_arcs()
    more = np.zeros((N + 3, N + 3))
    more[:N, :N] = arcs
    more[N, :3] = more[7, N + 1] = more[N + 1, N + 2] = 1.0
    for old, new in ((arcs, more), (more, arcs)):
        solution = rank_again(make_graph(old), make_graph(new))
        assert solution.iterations <= 3
        assert np.abs(solution.values - rank_by_solving(new)).sum() < 1e-11


def test_stochastic_and_reversed():
    arcs = make_arcs()
    walk = [sp.coo_array((a / np.where(a.any(1), a.sum(1), 1)[:, None]).T) for a in (arcs, change(arcs))]
    matrices = []
    for columns in walk:
        store = zarr.storage.MemoryStore()
        mg.ingest(columns, store, kind="stochastic")
        matrices.append(mg.open_matrix(store))
    solution = rank_again(*matrices)
    assert solution.iterations <= 3
    assert np.abs(solution.values - rank_by_solving(change(arcs))).sum() < 1e-11
    old, new = (make_graph(a, transpose=True).T for a in (arcs, change(arcs)))
    assert np.abs(rank_again(old, new).values - rank_by_solving(change(arcs).T)).sum() < 1e-11


@pytest.mark.parametrize("weights", [True, False])
def test_the_same_bits_for_threads_blocks_and_orders(monkeypatch, old_and_new, weights):
    monkeypatch.setattr(spread, "SERIAL_NNZ", 1)
    old, new = old_and_new
    before, found = mg.pagerank(old, weights=weights, **TIGHT), []
    renumbered = make_graph(change(make_arcs()), order="rcm")
    for A, blocks, threads in ((new, 1, 1), (new, 3, 2), (new, 7, 5), (renumbered, 2, 4)):
        asked = {"nstart": before, "follow_changes": True, "weights": weights, "threads": threads}
        solution = mg.pagerank(A.load(blocks), **asked, **TIGHT)
        assert solution.followed.rounds > 10
        found.append((solution.digest(), solution.iterations, solution.followed.edges))
    assert len(set(found)) == 1


@pytest.mark.parametrize(("tol_mode", "tol"), [("linf", 1e-13), ("relative", 1e-9), ("l1_per_node", 1e-14)])
def test_other_norms_of_the_change(old_and_new, tol_mode, tol):
    asked = {"tol_mode": tol_mode, "tol": tol, "max_iter": 500}
    before, cold = (mg.pagerank(A, **asked) for A in old_and_new)
    solution = mg.pagerank(old_and_new[1], nstart=before, follow_changes=True, **asked)
    assert solution.iterations < cold.iterations / 2
    np.testing.assert_allclose(solution.values, cold.values, atol=1e-10)


@pytest.mark.parametrize("start", [{5: 1.0}, np.arange(1.0, N + 1)])
def test_a_start_that_is_no_ranks_is_left_to_iterations(old_and_new, start):
    plain = mg.pagerank(old_and_new[1], nstart=start, **TIGHT)
    solution = mg.pagerank(old_and_new[1], nstart=start, follow_changes=True, **TIGHT)
    assert solution.followed == Followed(0, 0, 1.0, np.inf, np.inf)
    assert solution.digest() == plain.digest()


def test_ranks_that_are_right_already_are_left_alone(old_and_new):
    before = mg.pagerank(old_and_new[0], tol=1e-13, max_iter=500)
    solution = mg.pagerank(old_and_new[0], nstart=before, follow_changes=True, tol=1e-9)
    assert (solution.iterations, solution.followed.rounds) == (1, 0)


def test_a_graph_that_is_all_over_soon_is_left_to_iterations(tmp_path):
    rng = np.random.default_rng(0)
    arcs = (rng.random((300, 300)) < 0.1).astype(float)
    new = arcs.copy()
    new[3] = rng.random(300) < 0.1
    solution = rank_again(make_graph(arcs), make_graph(new))
    assert solution.followed.rounds == 0
    assert 0 < solution.followed.residual_before == solution.followed.residual_after
    assert np.abs(solution.values - rank_by_solving(new)).sum() < 1e-11


def test_graphs_without_edges_and_alpha_of_0(old_and_new):
    empty = make_graph(np.zeros((4, 4)))
    solution = mg.pagerank(empty, nstart=np.array([0.25, 0.25, 0.25, 0.2500001]), follow_changes=True)
    np.testing.assert_allclose(solution.values, 0.25)
    solution = rank_again(*old_and_new, alpha=0.0)
    np.testing.assert_allclose(solution.values, 1 / N)


def test_with_extrapolation(old_and_new):
    solution = rank_again(*old_and_new, method="extrapolation")
    assert np.abs(solution.values - rank_by_solving(change(make_arcs()))).sum() < 1e-11


def test_what_is_said(old_and_new, tmp_path):
    solution = rank_again(*old_and_new)
    assert solution.options["follow_changes"] is True
    assert solution.seconds["follow"] > 0
    assert solution.to_dict()["followed"]["edges"] == solution.followed.edges > 0
    assert 3 < solution.followed.equivalents < 100
    assert mg.pagerank(old_and_new[0]).followed is None
    for path in (tmp_path / "r.zarr", tmp_path / "r.parquet"):
        solution.save(path)
        assert mg.load_solution(path).followed == solution.followed
    far = mg.pagerank(old_and_new[1], nstart={5: 1.0}, follow_changes=True)
    far.save(tmp_path / "far.zarr")
    assert mg.load_solution(tmp_path / "far.zarr").followed == far.followed


def test_without_convergence_the_solution_says_what_was_followed(old_and_new):
    before = mg.pagerank(old_and_new[0], **TIGHT)
    with pytest.raises(ConvergenceError) as caught:
        mg.pagerank(old_and_new[1], nstart=before, follow_changes=True, alpha=0.9, tol=1e-12, max_iter=1)
    assert caught.value.solution.followed is not None


def test_the_rate_is_that_of_the_last_iterations(old_and_new):
    solution = mg.pagerank(old_and_new[0], **TIGHT)
    c = solution.changes
    assert estimate_rate(solution, 0.85) == pytest.approx((c[-1] / c[-5]) ** 0.25)
    assert estimate_rate(solution, 0.9) is None
    assert estimate_rate(mg.pagerank(old_and_new[0], method="extrapolation", **TIGHT), 0.85) is None
    assert estimate_rate(mg.pagerank(old_and_new[0], nstart=solution), 0.85) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nstart": None}, "begins at the ranks of the graph as it was; pass nstart= too"),
        ({"stop": "topk:3"}, "goes on to the tolerance, and stop='topk:3' ends elsewhere; leave out either"),
        ({"tol_mode": "fixed"}, "goes on to the tolerance, and tol_mode='fixed' ends elsewhere"),
        ({"dangling": {3: 1.0}}, "where jumps lead, or nowhere; leave out dangling= or pass dangling='drop'"),
        ({"dangling": "uniform", "personalization": {3: 1.0}}, "leave out dangling= or pass dangling='drop'"),
        ({"client": "tcp://127.0.0.1:1"}, "computes in this process on the host, not on a cluster; leave it out"),
    ],
)
def test_what_is_refused(old_and_new, options, message):
    with pytest.raises(OptionError, match=message):
        mg.pagerank(old_and_new[1], **({"nstart": {3: 1.0}, "follow_changes": True} | options))


def test_devices_are_refused():
    with pytest.raises(OptionError, match="in this process on the host, not on CUDA; leave it out"):
        ranking._check_following(True, False, "cuda")


def test_any_dangling_goes_where_no_vertex_is(old_and_new):
    arcs = make_arcs()
    arcs[~arcs.any(axis=1), 0] = 1.0
    before = mg.pagerank(make_graph(arcs), dangling={3: 1.0}, **TIGHT)
    arcs[7, 200] = 1.0
    solution = mg.pagerank(make_graph(arcs), nstart=before, dangling={3: 1.0}, follow_changes=True, **TIGHT)
    assert solution.iterations <= 3
    assert np.abs(solution.values - rank_by_solving(arcs)).sum() < 1e-11


def test_edges_that_do_not_fit_twice(old_and_new, monkeypatch):
    monkeypatch.setattr(follow, "free_memory", lambda: 1000)
    with pytest.raises(CapacityError, match="and 1,000 are free; leave out follow_changes="):
        rank_again(*old_and_new)
