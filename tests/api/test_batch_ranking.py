"""Many vectors at once: each as alone, to the bit; beside NetworkX and linear systems; their ends; what is refused."""

from __future__ import annotations

import math
import tracemalloc

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp

import mgspmv as mg
from mgspmv.api import batch_ranking as api_batch
from mgspmv.errors import CapacityError, ConvergenceError, DanglingError, OptionError, ShapeError
from mgspmv.exchange.exchange import LocalExchange
from mgspmv.model import Status
from tests.support.hearing import on_both
from tests.support.oracles import rank_by_solving

PRECISIONS = ["exact", "float64", "float32"]


def make_graph(source, **options):
    return mg.ingest(source, **{"kind": "graph", **options})


@pytest.fixture(scope="module")
def weighted():
    """Dense arcs with dangling vertices, and the graph of them."""
    rng = np.random.default_rng(0)
    arcs = rng.random((60, 60)) * (rng.random((60, 60)) < 0.1)
    arcs[rng.permutation(60)[:5]] = 0
    return arcs, make_graph(arcs)


@pytest.fixture(scope="module")
def pattern():
    return mg.generate("rmat", scale=11)


def draw(A, n_vectors, seed=0):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 11, n_vectors)
    return [
        dict(zip(rng.choice(A.shape[0], s, replace=False).tolist(), rng.random(s).tolist(), strict=True)) for s in sizes
    ]


def check_alone(A, batch, vectors, alphas=None, **options):
    """That each vector is what a single run makes of it."""
    for k, vector in enumerate(vectors):
        own = options if alphas is None else options | {"alpha": alphas[k]}
        alone, found = mg.pagerank(A, personalization=vector, throw=False, **own), batch[k]
        assert found.digest() == alone.digest()
        assert (found.status, found.changes, found.iterations) == (alone.status, alone.changes, alone.iterations)
        assert found.error_bound_l1 == alone.error_bound_l1
        assert found.values.dtype == alone.values.dtype


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("graph", ["weighted", "pattern"])
def test_each_vector_is_as_alone(request, graph, precision):
    A = request.getfixturevalue(graph)
    A = A[1] if graph == "weighted" else A
    vectors = [*draw(A, 9), None]
    alphas = np.linspace(0.0, 0.95, 10)
    batch = mg.pagerank_batch(A, vectors, alpha=alphas, precision=precision, width=4, max_iter=60, throw=False)
    check_alone(A, batch, vectors, alphas, precision=precision, max_iter=60)
    assert len(set(batch.iterations.tolist())) > 4
    assert batch.options["steps"] < batch.iterations.sum()


@pytest.mark.parametrize("dangling", ["uniform", "drop", {3: 1, 5: 2}])
def test_rules_for_dangling_vertices(weighted, dangling):
    _, A = weighted
    vectors = [*draw(A, 4), None]
    batch = mg.pagerank_batch(A, vectors, dangling=dangling, width=4)
    check_alone(A, batch, vectors, dangling=dangling)
    assert batch.options["dangling"] == (dangling if isinstance(dangling, str) else "vector")


def test_width_threads_and_company_change_nothing(pattern):
    vectors = draw(pattern, 7)
    wanted = mg.pagerank_batch(pattern, vectors, width=4)
    for width, threads, order in ((2, 1, [6, 0, 3]), (4, 2, [5, 2, 1, 0, 6, 4, 3]), (2, 1, [4])):
        found = mg.pagerank_batch(pattern.on(threads=threads), [vectors[k] for k in order], width=width)
        for place, k in enumerate(order):
            assert found[place].digest() == wanted[k].digest()
            assert found[place].changes == wanted[k].changes
        assert found.options["width"] == min(width, 4 if len(order) > 2 else 2)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_linear_systems(weighted, precision):
    arcs, A = weighted
    p = np.random.default_rng(1).random((6, 60)) * (np.arange(60) % 5 == 0)
    alphas = [0.0, 0.3, 0.5, 0.85, 0.9, 0.95]
    for given in (p, sp.csr_array(p)):
        batch = mg.pagerank_batch(A, given, alpha=alphas, precision=precision, norm="fixed", max_iter=500, width=4)
        for k, alpha in enumerate(alphas):
            error = np.abs(batch.values[k] - rank_by_solving(arcs, alpha=alpha, p=p[k])).sum()
            assert error <= min(5e-6 if precision == "float32" else 1e-13, batch.error_bounds_l1[k] + 1e-15)


@pytest.mark.parametrize("name", ["karate_club_graph", "les_miserables_graph"])
def test_networkx(name):
    graph = getattr(nx, name)()
    A = make_graph(graph)
    nodes = list(graph)
    vectors = {f"from {node}": {node: 1.0, nodes[0]: 2.0} for node in nodes[1:8]}
    batch = mg.pagerank_batch(A, vectors, tol=1e-14, max_iter=1000, width=4)
    assert batch.labels == tuple(vectors)
    for label, vector in vectors.items():
        wanted = nx.pagerank(graph, personalization=vector, tol=1e-16, max_iter=1000)
        ids = range(len(graph)) if A.vertex_ids is None else A.vertex_ids
        assert sum(abs(wanted[v] - r) for v, r in zip(ids, batch[label].values, strict=True)) <= 1e-13


def test_a_vector_that_does_not_converge_is_named(weighted):
    _, A = weighted
    vectors = {"slow": [1, 2], "fast": [3]}
    with pytest.raises(ConvergenceError) as caught:
        mg.pagerank_batch(A, vectors, alpha=[0.95, 0.1], tol=1e-9, max_iter=20)
    batch = caught.value.solution
    assert [batch[label].status for label in vectors] == [Status.MAX_ITER, Status.CONVERGED]
    assert str(caught.value).startswith("1 of 2 vectors did not converge, first 'slow': L1 change ")
    again = mg.pagerank_batch(A, vectors, alpha=[0.95, 0.1], tol=1e-9, max_iter=20, throw=False)
    assert again.digest() == batch.digest()


def test_a_vector_whose_ranks_overflow_does_not_spoil_the_others():
    """Vertices 0 and 1 are a part of their own, with a weight that rank overflows over; nothing jumps there from 2."""
    A = make_graph((np.array([0, 1, 2, 3]), np.array([1, 0, 3, 2]), np.array([5e-324, 1.0, 1.0, 2.0])))
    with pytest.raises(
        ConvergenceError, match=r"1 of 2 vectors .* 0: NaN or infinite values after 1 iteration\..* sum to 4\.94e-324"
    ):
        mg.pagerank_batch(A, [0, 2], dangling="uniform")
    batch = mg.pagerank_batch(A, [0, 2], dangling="drop", throw=False)
    assert batch.statuses == (Status.NON_FINITE, Status.CONVERGED)
    assert batch.error_bounds_l1[0] == math.inf
    assert batch.error_bounds_l1[1] < 1e-5
    check_alone(A, batch, [{0: 1}, {2: 1}], dangling="drop")


def test_many_vectors_wait_for_few_columns(pattern):
    seen, told = [], []
    vectors = draw(pattern, 23)
    batch = mg.pagerank_batch(
        pattern, vectors, width=4, keep_top=1, progress=on_both(seen.append, lambda *said: told.append(said))
    )
    assert len(seen) == len(told) == batch.options["steps"]
    assert [event.iteration for event in seen] == list(range(1, len(seen) + 1))
    assert -(-batch.iterations.sum() // 4) <= len(seen) < batch.iterations.sum() / 2
    assert told[-1] == ("vectors", 23, 23)
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)
    memory = [event.memory_bytes[0] for event in seen]
    assert memory[-1] < memory[0]  # by then the pass is narrower
    assert batch.memory["held_bytes"] == [memory[0]]
    assert batch.memory["host_peak_bytes"][0] > memory[0]
    assert {"load", "compile", "product", "enter", "residual", "keep"} <= set(batch.seconds)
    assert sum(event.product_s[0] for event in seen) == pytest.approx(batch.seconds["product"])


def test_only_the_highest_are_kept(weighted):
    _, A = weighted
    vectors = {"a": [1], "b": [2, 3], "c": None}
    whole, highest = (mg.pagerank_batch(A, vectors, width=4, keep_top=top) for top in (None, 5))
    assert highest.values is None
    assert (highest.top_ids.shape, highest.top_ranks.shape) == ((3, 5), (3, 5))
    assert highest.top() == whole.top(5) == {label: whole[label].top(5) for label in vectors}
    assert mg.pagerank_batch(A, vectors, width=4, keep_top=100).top() == whole.top(100)


def test_widths_are_chosen_by_memory_and_number(weighted, monkeypatch):
    _, A = weighted
    assert mg.pagerank_batch(A, [[1], [2], [3]]).options["width"] == 4
    assert mg.pagerank_batch(A, [[1]]).options["width"] == 2
    assert mg.pagerank_batch(A, [[1]], width=64).options["width"] == 2
    room = 2 * api_batch.count_bytes(LocalExchange(60), 60, "exact", 8, 4)
    monkeypatch.setattr(api_batch, "free_memory", lambda: room)
    assert mg.pagerank_batch(A, [[k] for k in range(8)], keep_top=1).options["width"] == 4
    monkeypatch.setattr(api_batch, "free_memory", lambda: 100)
    with pytest.raises(CapacityError, match=r"a pass of 2 vectors needs [\d,]+ bytes, but may take 50"):
        mg.pagerank_batch(A, [[1]], keep_top=1)
    with pytest.raises(CapacityError, match=r"ranks of 1 vectors take 480 bytes, and 100 are free; pass keep_top=k"):
        mg.pagerank_batch(A, [[1]], width=2)


@pytest.mark.parametrize("precision", ["exact", "float32"])
def test_a_pass_takes_the_memory_that_is_planned(precision):
    n, vectors = 200_000, [[k] for k in range(7)]
    A = make_graph((np.arange(n), (np.arange(n) * 7 + 1) % n))
    options = {"precision": precision, "width": 4, "keep_top": 3, "alpha": np.linspace(0.1, 0.5, 7)}
    mg.pagerank_batch(A, vectors, **options)
    tracemalloc.start()
    try:
        mg.pagerank_batch(A, vectors, **options)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    itemsize = 8 if precision == "exact" else 4
    planned = api_batch.count_bytes(LocalExchange(n), n, precision, itemsize, 4)
    assert 0.7 * planned < peak <= planned


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"width": 3}, OptionError, "width must be one of 2, 4, 8, 16, 32, 64, not 3"),
        ({"keep_top": 0}, OptionError, "keep_top must be an integer of at least 1, not 0"),
        ({"keep_top": 1.5}, OptionError, "keep_top must be an integer of at least 1, not 1.5"),
        ({"alpha": 1.0}, OptionError, "vector 0: alpha must be at least 0 and less than 1, not 1.0"),
        ({"alpha": [0.5, 2]}, OptionError, "vector 1: alpha must be at least 0 and less than 1, not 2"),
        ({"alpha": []}, ShapeError, "alpha is an empty sequence"),
        ({"alpha": "much"}, OptionError, "vector 0: alpha must be at least 0 and less than 1, not 'much'"),
        ({"tol": 3.0}, OptionError, "vector 0: tol=3 with norm='l1' is met by any ranks"),
        ({"dangling": "error"}, DanglingError, "of 60 vertices have no out-edges"),
        ({"dangling": {99: 1}}, OptionError, "dangling has the id 99"),
    ],
)
def test_what_is_refused(weighted, options, error, message):
    with pytest.raises(error, match=message):
        mg.pagerank_batch(weighted[1], [[1], [2]], **options)


def test_places_that_are_refused(weighted, in_process):
    _, A = weighted
    for how, message in (
        ({"device_memory": "1GB"}, "device_memory= and host_memory= limit what a run on CUDA takes"),
        ({"kernel": "csr-rows"}, r"pagerank_batch chooses its kernel, but kernel='csr-rows' was passed to on\(\)"),
    ):
        with pytest.raises(OptionError, match=message):
            mg.pagerank_batch(A.on(**how), [[1], [2]])
    with pytest.raises(OptionError, match="executor='tasks' does not compute batches"):
        mg.pagerank_batch(A.on(in_process(1), executor="tasks"), [[1], [2]])
