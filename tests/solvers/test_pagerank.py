"""PageRank against a linear system, SciPy and NetworkX; how runs end; the same bits everywhere."""

from __future__ import annotations

import math
import re
import time
from fractions import Fraction

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
import zarr

import mgspmv as mg
from mgspmv.environment import peak_memory
from mgspmv.errors import ConvergenceError, DanglingError, KindError, OptionError
from mgspmv.kernels.host import SmallBlock
from mgspmv.kernels.select import bind_kernel
from mgspmv.model import Status
from tests.support.matrices import GRAPHS
from tests.support.oracles import rank_by_solving, sum_arcs
from tests.support.pairwise import cover_pairs

PRECISIONS = ["exact", "float64", "float32"]
CLOSE = {"exact": 1e-13, "float64": 1e-13, "float32": 5e-6}
"""L1 distance to the ranks after 200 iterations, on small graphs."""
FIXED = {"norm": "fixed", "max_iter": 200}


def make_graph(source, **options):
    """A graph in memory: of arcs (i, j, weight), or anything that can be ingested."""
    store = zarr.storage.MemoryStore()
    if isinstance(source, list):
        source = tuple(map(np.array, zip(*source, strict=True)))
    return mg.ingest(source, store, **{"kind": "graph", **options})


def make_hard(name, **options):
    hard = GRAPHS[name]
    return make_graph(sp.coo_array((hard.values, (hard.rows, hard.cols)), shape=hard.shape), **options)


def random_arcs(n=60, density=0.1, seed=0, dangling=5):
    """Dense weights of the arcs i -> j, some vertices without any."""
    rng = np.random.default_rng(seed)
    arcs = rng.random((n, n)) * (rng.random((n, n)) < density)
    arcs[rng.permutation(n)[:dangling]] = 0
    return arcs


def distance(solution, wanted):
    return np.abs(solution.values - wanted).sum()


STORED = {
    "sums": {"duplicates": "sum", "weights": None},
    "multigraph": {"duplicates": "keep", "weights": None},
    "pattern": {"duplicates": "first", "weights": False},
    "multigraph pattern": {"duplicates": "keep", "weights": False},
}
"""Options of an ingest: the rule for entries at one place, without and with values."""


@pytest.fixture(scope="module")
def hard_graphs():
    """Hard graphs by options of their ingest and name."""
    return {kind: {name: make_hard(name, **options) for name in GRAPHS} for kind, options in STORED.items()}


def arcs_of(hard, rule, weights):
    values = np.ones(len(hard.entries)) if weights is False else hard.values
    arcs = sum_arcs(hard.rows, hard.cols, values, hard.shape).toarray()
    return np.minimum(arcs, 1) if rule == "first" else arcs


@cover_pairs(kind=list(STORED), precision=PRECISIONS, kernel=["csr-rows", "csr-serial"])
def test_ranks_of_hard_graphs(hard_graphs, kind, precision, kernel):
    rule, weights = STORED[kind].values()
    for name, A in hard_graphs[kind].items():
        assert (A.is_pattern, A.info.duplicates) == (weights is False, rule), name
        wanted = rank_by_solving(arcs_of(GRAPHS[name], rule, weights), alpha=0.5)
        solution = mg.pagerank(A.on(kernel=kernel), alpha=0.5, precision=precision, norm="fixed", max_iter=60)
        assert solution.status is Status.COMPLETED, name
        assert distance(solution, wanted) <= min(CLOSE[precision], solution.error_bound_l1 + 1e-14), name
        assert solution.values.dtype == (np.float32 if precision == "float32" else np.float64), name


@pytest.fixture(scope="module")
def weighted():
    """Dense arcs with dangling vertices, and the graph of them."""
    arcs = random_arcs()
    return arcs, make_graph(arcs)


VECTORS = [np.arange(60.0), np.where(np.arange(60) % 7, 0.0, 3.0), np.ones(60)]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("alpha", "max_iter"), [(0.0, 2), (0.5, 60), (0.85, 250), (0.95, 700)])
def test_damping(weighted, alpha, max_iter, precision):
    arcs, A = weighted
    solution = mg.pagerank(A, alpha=alpha, precision=precision, norm="fixed", max_iter=max_iter)
    assert distance(solution, rank_by_solving(arcs, alpha=alpha)) <= CLOSE[precision]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("vector", VECTORS, ids=["ascending", "sparse", "equal"])
def test_personalization(weighted, vector, precision):
    arcs, A = weighted
    wanted = rank_by_solving(arcs, p=vector)
    mapping = {k: float(v) for k, v in enumerate(vector) if v}
    for given in (vector, 100 * vector, mapping):
        solution = mg.pagerank(A, personalization=given, precision=precision, **FIXED)
        assert distance(solution, wanted) <= CLOSE[precision]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_dangling_rules(weighted, precision):
    arcs, A = weighted
    p = np.linspace(0, 1, 60) ** 2
    wanted = {
        None: rank_by_solving(arcs, p=p),
        "uniform": rank_by_solving(arcs, p=p, d=np.full(60, 1 / 60)),
        "drop": rank_by_solving(arcs, p=p, d=np.zeros(60)),
    }
    for rule, ranks in wanted.items():
        solution = mg.pagerank(A, personalization=p, dangling=rule, precision=precision, **FIXED)
        assert distance(solution, ranks) <= CLOSE[precision]
        assert solution.options["dangling"] == (rule or "personalization")
    assert wanted["drop"].sum() < 0.99


def test_dropped_mass_starts_from_the_jump_alone():
    """r = 1 - alpha at first, unnormalised, as in programs that drop it: after one step 2 has had nothing from 0."""
    A = make_graph([(0, 1), (1, 2)])
    solution = mg.pagerank(A, dangling="drop", norm="fixed", max_iter=1)
    np.testing.assert_allclose(3 * solution.values, [0.15, 0.15 + 0.85 * 0.15, 0.15 + 0.85 * 0.15], rtol=1e-15)
    started = mg.pagerank(A, dangling="drop", nstart=np.ones(3), norm="fixed", max_iter=1)
    np.testing.assert_allclose(3 * started.values, [0.15, 1.0, 1.0], rtol=1e-15)


def test_dangling_error():
    with pytest.raises(DanglingError) as caught:
        mg.pagerank(make_graph([(10, 20), (20, 30), (20, 40)]), dangling="error")
    assert str(caught.value) == (
        "2 of 4 vertices have no out-edges, or only ones of weight 0, first 30, and dangling='error'; "
        "give them edges, or pass dangling='uniform' or 'drop'"
    )
    only_zero = make_graph([(0, 1, 1.0), (1, 0, 0.0)])
    with pytest.raises(DanglingError, match=r"^1 of 2 vertices .* first 1,"):
        mg.pagerank(only_zero, dangling="error")
    assert mg.pagerank(only_zero, dangling="error", weight=False).status is Status.CONVERGED
    assert mg.pagerank(make_graph([(0, 1), (1, 0)]), dangling="error").values.tolist() == [0.5, 0.5]


def test_start_is_normalised_and_forgotten(weighted):
    arcs, A = weighted
    vector = np.arange(60.0)
    one, other = (mg.pagerank(A, nstart=v, norm="fixed", max_iter=3) for v in (vector, 1024 * vector))
    assert one.digest() == other.digest()
    mapping = mg.pagerank(A, nstart=dict(enumerate(vector.tolist())), norm="fixed", max_iter=3)
    assert mapping.digest() == one.digest() != mg.pagerank(A, norm="fixed", max_iter=3).digest()
    assert distance(mg.pagerank(A, nstart=vector, **FIXED), rank_by_solving(arcs)) <= 1e-13


@pytest.mark.parametrize("ids", [[5, 3, 11, 2**40, -7], ["e", "c", "Ä", "bb", "a"]], ids=["integers", "strings"])
def test_networkx_with_weights_personalization_and_dangling(ids):
    rng = np.random.default_rng(2)
    graph = nx.DiGraph()
    graph.add_nodes_from(ids)
    graph.add_weighted_edges_from((a, b, float(rng.random())) for a in ids[:4] for b in ids if rng.random() < 0.6)
    A = make_graph(graph)
    personalization, dangling = {ids[0]: 2.0, ids[3]: 1}, {ids[1]: 3, ids[2]: 0.5}
    solution = mg.pagerank(A, alpha=0.9, personalization=personalization, dangling=dangling, tol=1e-15, max_iter=500)
    wanted = nx.pagerank(graph, alpha=0.9, personalization=personalization, dangling=dangling, tol=1e-16, max_iter=500)
    assert graph.out_degree(ids[4]) == 0
    assert sorted(A.vertex_ids.tolist()) == sorted(ids)
    assert sum(abs(wanted[v] - r) for v, r in zip(A.vertex_ids, solution.values, strict=True)) <= 1e-14
    assert dict(solution.top(5)).keys() == set(ids)
    assert solution.top(1)[0][0] == max(wanted, key=wanted.get)


@pytest.mark.parametrize("name", ["karate_club_graph", "les_miserables_graph", "florentine_families_graph"])
@pytest.mark.parametrize("weights", [True, False], ids=["weights", "pattern"])
def test_networkx_undirected(name, weights):
    graph = getattr(nx, name)()
    A = make_graph(graph)
    wanted = nx.pagerank(graph, weight="weight" if weights else None, tol=1e-16, max_iter=1000)
    solution = mg.pagerank(A, weight=weights, tol=1e-14, max_iter=1000)
    ids = range(len(graph)) if A.vertex_ids is None else A.vertex_ids
    assert sum(abs(wanted[v] - r) for v, r in zip(ids, solution.values, strict=True)) <= 1e-13


def test_networkx_multigraph():
    graph = nx.MultiDiGraph([(0, 1), (0, 1), (0, 2), (1, 2), (2, 0), (2, 2)])
    wanted = nx.pagerank(graph, tol=1e-16, max_iter=500)
    solution = mg.pagerank(make_graph(graph, duplicates="keep"), tol=1e-15, max_iter=500)
    np.testing.assert_allclose(solution.values, [wanted[v] for v in range(3)], rtol=1e-13)


def changes_of(arcs, n_iterations, norm):
    n = len(arcs)
    total = arcs.sum(axis=1)
    x, changes = np.full(n, 1 / n), []
    for _ in range(n_iterations):
        z = np.divide(x, total, out=np.zeros(n), where=total > 0)
        new = 0.85 * (arcs.T @ z + x[total == 0].sum() / n) + 0.15 / n
        changes.append(norm(np.abs(new - x), new))
        x = new
    return np.array(changes)


def sum_changes(changes, new):
    return changes.sum()


@pytest.mark.parametrize(
    ("mode", "tol", "threshold", "norm"),
    [
        ("l1", 1e-7, 1e-7, sum_changes),
        ("l1_per_node", 1e-7, 60e-7, sum_changes),
        ("linf", 1e-8, 1e-8, lambda changes, new: changes.max()),
        ("relative", 3e-7, 3e-7, lambda changes, new: min(2.0, (changes / new).max())),
    ],
)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_runs_end_at_the_first_change_below_the_tolerance(weighted, precision, mode, tol, threshold, norm):
    arcs, A = weighted
    solution = mg.pagerank(A, tol=tol, norm=mode, precision=precision)
    wanted = changes_of(arcs, solution.iterations, norm)
    assert solution.status is Status.CONVERGED
    assert solution.iterations == len(solution.changes)
    assert solution.changes[-1] < threshold <= min(solution.changes[:-1])
    rounding = 2e-7 if mode == "relative" else 1e-7
    np.testing.assert_allclose(solution.changes, wanted, rtol=1e-6, atol=rounding if precision == "float32" else 3e-15)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_relative_changes_of_ranks_that_vanish_are_nothing(precision):
    """All jumps go to 0, which leads to 1: the ranks of 2 and 3 are lost at once, and those of 0 and 1 settle."""
    A = make_graph([(0, 1), (1, 0), (2, 0), (3, 1)])
    asked = {"personalization": {0: 1}, "nstart": {2: 0.5, 3: 0.5}, "precision": precision}
    solution = mg.pagerank(A, norm="relative", tol=1e-6, **asked)
    assert solution.values[2:].tolist() == [0.0, 0.0]
    a = 0.85
    assert distance(solution, [1 / (1 + a), a / (1 + a), 0, 0]) < 1e-5
    assert solution.changes[0] == 1.0  # what rises from nothing is all new


@pytest.mark.parametrize("tol", [1e-3, 1e-5, 1e-6, 1e-9, 1e-12])
@pytest.mark.parametrize("name", ["karate_club_graph", "les_miserables_graph"])
def test_l1_per_node_makes_as_many_iterations_as_networkx(name, tol):
    graph = getattr(nx, name)()
    made = mg.pagerank(make_graph(graph), tol=tol, norm="l1_per_node", max_iter=500).iterations
    nx.pagerank(graph, tol=tol, max_iter=made)
    with pytest.raises(nx.PowerIterationFailedConvergence):
        nx.pagerank(graph, tol=tol, max_iter=made - 1)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_converging_on_the_last_iteration_is_converging(weighted, precision):
    _, A = weighted
    free = mg.pagerank(A, precision=precision)
    last = mg.pagerank(A, precision=precision, max_iter=free.iterations)
    assert (last.status, last.digest()) == (Status.CONVERGED, free.digest())
    with pytest.raises(ConvergenceError) as caught:
        mg.pagerank(A, precision=precision, max_iter=free.iterations - 1)
    reached = caught.value.solution
    assert caught.value.exit_code == 5
    assert (reached.status, reached.iterations) == (Status.MAX_ITER, free.iterations - 1)
    assert reached.changes == free.changes[:-1]
    assert str(caught.value) == (
        f"PageRank did not converge: L1 change {reached.changes[-1]:.3g} after {reached.iterations} iterations "
        "(tol 1e-06). Increase max_iter= or tol="
    )
    kept = mg.pagerank(A, precision=precision, max_iter=free.iterations - 1, throw=False)
    assert (kept.status, kept.digest()) == (Status.MAX_ITER, reached.digest())
    assert distance(kept, free.values) <= kept.error_bound_l1 + free.error_bound_l1


NEAR_1 = {"alpha": 0.98, "precision": "float32", "norm": "relative"}


@pytest.fixture(scope="module")
def star():
    """Walks swing between hub and leaves, so that rounding is slow to die out."""
    n = 2000
    leaves, hub = np.arange(1, n), np.zeros(n - 1, int)
    ends = np.concatenate([leaves, hub]), np.concatenate([hub, leaves])
    return make_graph(sp.coo_array((np.ones(2 * n - 2), ends), shape=(n, n)), weights=False)


def test_no_tolerance_is_named_where_rounding_has_no_bound(star):
    """For a least rank of 1e-5."""
    with pytest.raises(OptionError, match="; pass more, or a smaller alpha"):
        mg.pagerank(star, tol=1e-25, max_iter=3000, **NEAR_1)


@cover_pairs(alpha=[0.85, 0.98], precision=PRECISIONS, norm=["l1", "l1_per_node", "linf", "relative"])
def test_the_tolerance_named_for_one_out_of_reach_is_reached(star, alpha, precision, norm):
    asked = {"alpha": alpha, "precision": precision, "norm": norm}
    assert asked != NEAR_1
    with pytest.raises(OptionError) as caught:
        mg.pagerank(star, tol=1e-25, max_iter=3000, **asked)
    named = float(re.search(r"pass (\S+), which is always reached", str(caught.value))[1])
    assert mg.pagerank(star, tol=named, max_iter=3000, **asked).status is Status.CONVERGED


OVERFLOWING = {
    "one huge weight to each": [(0, 1, 1e308), (0, 2, 1e308), (1, 0, 1.0), (2, 0, 1.0)],
    "two huge weights to one": [(0, 1, 1e308), (0, 1, 1e308), (1, 0, 1.0)],
    "one tiny weight": [(0, 1, 5e-324), (1, 0, 1.0)],
    "two tiny weights to one": [(0, 1, 5e-324), (0, 1, 5e-324), (1, 0, 1.0)],
}
"""Sums of weights, or ranks over them, that leave the range of float64."""


@pytest.mark.parametrize("mode", ["l1", "fixed"])
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", OVERFLOWING)
def test_non_finite_is_never_a_success(name, precision, mode):
    A = make_graph(OVERFLOWING[name], duplicates="keep")
    if precision == "float32" and "huge" in name:
        with pytest.raises(OptionError, match="have values beyond the range of float32"):
            mg.pagerank(A, precision=precision, norm=mode)
        return
    with pytest.raises(
        ConvergenceError, match=r"NaN or infinite values after 1 iteration\..*vertex 0 sum to .*scale the weights"
    ) as caught:
        mg.pagerank(A, precision=precision, norm=mode)
    assert caught.value.solution.status is Status.NON_FINITE
    assert caught.value.solution.error_bound_l1 == math.inf
    kept = mg.pagerank(A, precision=precision, norm=mode, throw=False)
    assert (kept.status, kept.iterations) == (Status.NON_FINITE, 1)
    assert mg.pagerank(A, precision=precision, weight=False).status is Status.CONVERGED


SLACK = (1 + 0.85) / (1 - 0.85)
"""|G(x) - x| <= (1 + alpha) |x - x*|, so the bound |G(x) - x| / (1 - alpha) is no more than so many errors."""


@pytest.fixture(scope="module")
def many_graphs():
    """By name: a graph and its ranks."""
    arcs = {
        **{name: arcs_of(hard, "sum", False) for name, hard in GRAPHS.items()},
        **{f"random {seed}": random_arcs(seed=seed, dangling=seed) for seed in range(5)},
        "tenths": np.array([[0, 0.1, 0.2], [0.3, 0, 0.6], [0.7, 0.1, 0]]),
    }
    return {name: (make_graph(dense), rank_by_solving(dense)) for name, dense in arcs.items()}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("n_iterations", [1, 3, 10, 40, 200])
def test_error_bound_bounds_the_error(many_graphs, n_iterations, precision):
    for name, (A, ranks) in many_graphs.items():
        solution = mg.pagerank(A, precision=precision, norm="fixed", max_iter=n_iterations)
        error = distance(solution, ranks)
        assert error <= solution.error_bound_l1 + 1e-15, name
        if error > 1e-5:
            assert solution.error_bound_l1 <= 1.01 * SLACK * error, name
        if n_iterations == 200:
            assert solution.error_bound_l1 <= (5e-6 if precision == "float32" else 1e-13), name


@pytest.mark.parametrize("dangling", [None, "uniform", "drop"])
def test_error_bound_with_dangling_rules(weighted, dangling):
    arcs, A = weighted
    p = np.linspace(0, 1, 60) ** 2
    d = {None: None, "uniform": np.full(60, 1 / 60), "drop": np.zeros(60)}[dangling]
    solution = mg.pagerank(A, personalization=p, dangling=dangling)
    error = distance(solution, rank_by_solving(arcs, p=p, d=d))
    assert error <= solution.error_bound_l1 <= SLACK * error


def test_error_bound_counts_the_rounding_of_a_large_dangling_mass():
    """A million equal leaves are all rounded the same way, and their mass by so much."""
    n, alpha = 1_000_003, Fraction(85, 100)
    A = make_graph((np.zeros(n - 1, int), np.arange(1, n)))
    share = 1 + alpha / (n - 1)
    leaf = share * (1 - alpha) / n / (1 - share * alpha * (n - 1) / n)
    start = np.full(n, float(leaf))
    start[0] = float(leaf / share)
    for precision in PRECISIONS:
        solution = mg.pagerank(A, precision=precision, nstart=start, norm="fixed", max_iter=10)
        assert len(np.unique(solution.values[1:])) == 1
        hub_error, leaf_error = (
            abs(Fraction(float(solution.values[v])) - wanted) for v, wanted in ((0, leaf / share), (1, leaf))
        )
        assert hub_error + (n - 1) * leaf_error <= solution.error_bound_l1
        assert solution.error_bound_l1 <= (1e-7 if precision == "float32" else 1e-12)


@pytest.mark.parametrize("unit", [1e-36, 1e-38, 1e-40, 1e-42])
def test_error_bound_counts_what_float32_makes_of_tiny_weights(unit):
    rng = np.random.default_rng(8)
    arcs = (*rng.integers(0, 2000, (2, 40_000)), (rng.random(40_000) + 0.1) * unit)
    A = make_graph(arcs, n_vertices=2000)
    wanted, solution = (mg.pagerank(A, precision=p, **FIXED) for p in ("float64", "float32"))
    assert wanted.error_bound_l1 < 1e-13
    assert distance(solution, wanted.values) <= solution.error_bound_l1 < 0.1


@pytest.mark.parametrize("precision", PRECISIONS)
def test_weights_can_be_left_out(weighted, precision):
    arcs, A = weighted
    solution = mg.pagerank(A, weight=False, precision=precision, **FIXED)
    assert distance(solution, rank_by_solving((arcs > 0).astype(float))) <= CLOSE[precision]
    assert solution.options["weight"] is False
    pattern = mg.pagerank(make_graph(arcs, weights=False), precision=precision, **FIXED)
    assert solution.digest() == pattern.digest()


def test_negative_weights():
    A = make_graph([(0, 1, 1.0), (1, 0, -0.5)])
    with pytest.raises(OptionError) as caught:
        mg.pagerank(A)
    assert str(caught.value) == (
        "PageRank needs non-negative weights, but the least is -0.5; pass weight=False to count every edge as 1"
    )
    assert mg.pagerank(A, weight=False).values.tolist() == [0.5, 0.5]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_stochastic_matrix_is_used_as_it_is(precision):
    """Column j holds where the rank of j goes, so the arcs of the oracle are its transpose."""
    arcs = random_arcs()
    total = arcs.sum(axis=1, keepdims=True)
    follow = np.divide(arcs, total, out=np.zeros_like(arcs), where=total > 0)
    A = make_graph(follow.T, kind="stochastic")
    assert A.kind == "stochastic"
    solution = mg.pagerank(A, precision=precision, **FIXED)
    assert distance(solution, rank_by_solving(arcs)) <= CLOSE[precision]


@pytest.fixture(scope="module")
def large_arcs():
    """An R-MAT graph of about 450,000 arcs, as ends and weights that are no integers."""
    target, source = mg.generate("rmat", scale=15).to_scipy().nonzero()
    return source, target, np.random.default_rng(3).random(len(source)) ** 3 + 1e-3


@pytest.fixture(scope="module", params=[{"weights": False}, {}], ids=["pattern", "weights"])
def large(request, large_arcs):
    """The graph, and the graph with vertices renumbered and arcs shuffled, with the renumbering."""
    source, target, weights = large_arcs
    n, rng = 2**15, np.random.default_rng(4)
    new, order = rng.permutation(n), rng.permutation(len(source))
    made = sp.coo_array((weights, (source, target)), shape=(n, n))
    moved = sp.coo_array((weights[order], (new[source][order], new[target][order])), shape=(n, n))
    return make_graph(made, **request.param), make_graph(moved, **request.param), new


VERTEX_WEIGHTS = {
    "uniform": (None, None),
    "vectors": (np.random.default_rng(5).random(2**15) ** 4, np.random.default_rng(6).random(2**15) ** 2),
}


@pytest.mark.parametrize("vectors", VERTEX_WEIGHTS)
def test_exact_has_the_same_bits_in_any_number_of_threads(large, vectors, monkeypatch):
    """And by NumPy's functions, which the graph is small enough for."""
    A, _, _ = large
    p, d = VERTEX_WEIGHTS[vectors]
    assert isinstance(bind_kernel(A.block("float64"), "exact"), SmallBlock)
    runs = [mg.pagerank(A.on(threads=1), personalization=p, dangling=d)]
    monkeypatch.setattr("mgspmv.kernels.select.SMALL_NNZ", 0)
    for threads in (1, 2):
        assert bind_kernel(A.block("float64"), "exact", threads=threads).threads == threads
        runs.append(mg.pagerank(A.on(threads=threads), personalization=p, dangling=d))
    assert len({(s.digest(), s.changes, s.iterations) for s in runs}) == 1
    assert runs[0].error_bound_l1 == pytest.approx(runs[1].error_bound_l1, rel=1e-9)
    assert runs[0].iterations > 10


@pytest.mark.parametrize("has_weights", [True, False], ids=["weights", "pattern"])
@pytest.mark.parametrize("dangling", [None, "uniform", "drop"])
def test_exact_has_the_same_bits_for_a_renumbered_multigraph(has_weights, dangling, monkeypatch):
    """From arrays, arcs in any order, the same arc several times, vertices without arcs, a start of one's own."""
    monkeypatch.setattr("mgspmv.kernels.select.SMALL_NNZ", 0)
    n, m, rng = 5000, 100_000, np.random.default_rng(9)
    source, target, weight = rng.zipf(1.4, m) % n, rng.zipf(1.6, m) % n, rng.random(m) + 0.01
    new, order, start = rng.permutation(n), rng.permutation(m), rng.random(n) ** 3
    columns = (source, target, weight) if has_weights else (source, target)
    moved = (new[source][order], new[target][order], weight[order])[: len(columns)]
    A, B = (make_graph(arrays, n_vertices=n, duplicates="keep") for arrays in (columns, moved))
    assert A.nnz == B.nnz == m
    one = mg.pagerank(A.on(threads=2), dangling=dangling, nstart=start)
    other = mg.pagerank(B.on(threads=1), dangling=dangling, nstart=start[np.argsort(new)])
    assert one.changes == other.changes
    np.testing.assert_array_equal(other.values[new], one.values)


def test_a_solution_tells_what_it_took():
    A = mg.generate("uniform", n_vertices=20_000, n_edges=200_000)
    wanted, began = peak_memory(), time.perf_counter()
    solution = mg.pagerank(A)
    assert 0 < sum(solution.seconds.values()) <= time.perf_counter() - began
    assert min(solution.seconds[name] for name in ("load", "start", "product", "collect")) > 0
    assert solution.memory.keys() == {"host_peak_bytes", "held_bytes"}
    assert solution.memory["held_bytes"] == list(solution.events[-1].memory_bytes)
    assert wanted <= solution.memory["host_peak_bytes"][0] <= peak_memory()


@pytest.mark.parametrize(
    ("source", "kind", "message"),
    [
        (sp.coo_array((0, 0)), "graph", r"has no vertices, so there are no ranks$"),
        (np.eye(3), "stochastic", "^a stochastic matrix needs its values; pass weight=True, or ingest it with kind="),
        (
            np.eye(3),
            "matrix",
            r"is of kind 'matrix', whose rows need not be in-edges; for PageRank ingest its ",
        ),
    ],
)
def test_matrices_without_ranks(source, kind, message):
    with pytest.raises((KindError, OptionError), match=message):
        mg.pagerank(make_graph(source, kind=kind), weight=False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": 1.0}, "alpha must be at least 0 and less than 1, not 1.0"),
        ({"max_iter": 0}, "max_iter must be an integer of at least 1, not 0"),
        ({"precision": "double"}, "precision must be one of 'exact', 'float64', 'float32', not 'double'"),
        (
            {"weight": "cost"},
            "weight='cost' names a column or an attribute, but the matrix is stored already, with its values; pass "
            "weight=True, or weight=False to count each entry as 1",
        ),
        ({"tol": 3.0}, "tol=3 with norm='l1' is met by any ranks of 3 vertices; pass less than 2"),
    ],
)
def test_options_that_make_no_sense(options, message):
    with pytest.raises(OptionError) as caught:
        mg.pagerank(make_graph(np.eye(3)), **options)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("where", "how", "message"),
    [
        ("gpu", {}, "where must be one of 'auto', 'cpu', 'cuda', not 'gpu'"),
        ("cpu", {"backend": "cuda"}, "backend='cuda' sets the device of a cluster's workers; pass only 'cpu'"),
        ("auto", {"backend": "cuda"}, "backend='cuda' sets the device of a cluster's workers; pass only 'cuda'"),
        (
            "auto",
            {"executor": "lockstep"},
            "executor must be one of 'auto', 'embedded', 'tasks', 'supersteps', not 'lockstep'",
        ),
        (
            "auto",
            {"executor": "tasks"},
            "executor='tasks' needs a cluster; pass one as where=, or use a matrix of distribute()",
        ),
        (
            "cpu",
            {"executor": "supersteps"},
            "executor='supersteps' needs a cluster; pass one as where=, or use a matrix of distribute()",
        ),
        (
            "tcp://127.0.0.1:1",
            {"executor": "embedded"},
            "executor='embedded' computes in this process, not on workers; leave it out, or use the opened matrix "
            "without a cluster",
        ),
        ("auto", {"transport": "peer"}, "transport= applies to the workers of a cluster; pass one as where="),
        ("auto", {"threads": 0}, "threads must be at least 1, not 0"),
        ("auto", {"threads": -1}, "threads must be at least 1, not -1"),
        ("auto", {"recover": -1}, "recover must be an integer of 0 or more, not -1"),
        (
            "cpu",
            {"device_memory": "1GB"},
            "device_memory= and host_memory= limit what a run on CUDA or on a cluster takes; leave them out with "
            "backend='cpu'",
        ),
        ("cpu", {"kernel": "csr"}, "kernel must be 'auto' or one of csr-rows, csr-serial, not 'csr'"),
        (
            "cpu",
            {"kernel": "ell"},
            "kernel 'ell' does not support PageRank steps on backend 'cpu'; pass kernel='auto' or one of csr-rows, "
            "csr-serial",
        ),
    ],
)
def test_places_that_make_no_sense(where, how, message):
    with pytest.raises(OptionError) as caught:
        mg.pagerank(make_graph(np.eye(3)).on(where, **how))
    assert str(caught.value) == message


def test_what_is_loaded_is_shared_by_all_places():
    A = make_graph(np.eye(3), transpose=True)
    one, other = A.on("cpu", threads=1), A.on("cpu", threads=2)
    assert one.block("float64") is other.block("float64") is A.block("float64")
    assert one.T.stored is other.T.stored
    assert one.T.T.place == one.place
    assert one.on("cpu", threads=1) is one
