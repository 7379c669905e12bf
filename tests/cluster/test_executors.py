"""PageRank on clusters: ranks bit-identical to those of this process, with every executor and any number of workers."""

from __future__ import annotations

import math
import time
from itertools import pairwise, product

import numpy as np
import pytest
import scipy.sparse as sp

import mgspmv as mg
from mgspmv.errors import ConvergenceError, DanglingError, OptionError, ShapeError
from mgspmv.kernels.host import SMALL_NNZ
from mgspmv.model import Status
from tests.support.hearing import on_events
from tests.support.matrices import GRAPHS
from tests.support.oracles import rank_by_solving, sum_arcs
from tests.support.placed import call_placed
from tests.support.stores import make_stochastic
from tests.system.test_reference import CASES, MATRIX_GRAPHS, read_cases
from tests.system.test_reference import GRAPHS as EDGE_LISTS

EXECUTORS = ["tasks", "supersteps"]
PRECISIONS = ["exact", "float64", "float32"]

SHORT = {"norm": "fixed", "max_iter": 3}
"""Enough for a second superstep."""
MANY = 7
"""Workers, more than the rows of many small graphs."""


def check_same(solution, wanted, name=""):
    """Compare bits and iterations; workers add up the bound, so its last bits may differ."""
    assert (solution.status, solution.iterations) == (wanted.status, wanted.iterations), name
    assert solution.changes == wanted.changes, name
    assert solution.values.dtype == wanted.values.dtype, name
    assert solution.digest() == wanted.digest(), name
    assert solution.error_bound_l1 == pytest.approx(wanted.error_bound_l1, rel=1e-6, abs=1e-18), name


def check_close(solution, wanted, distance_l1, name=""):
    assert (solution.status, solution.values.dtype) == (wanted.status, wanted.values.dtype), name
    assert np.abs(solution.values.astype(np.float64) - wanted.values).sum() <= distance_l1, name


CHECKS = {
    "exact": check_same,
    "float64": lambda solution, wanted, name="": check_close(solution, wanted, 1e-12, name),
    "float32": lambda solution, wanted, name="": check_close(solution, wanted, 1e-5, name),
}


def store_graph(source, path, **options):
    return mg.ingest(source, path, **{"kind": "graph", "overwrite": True, **options})


REFERENCES = [
    *(f"pagerank_ref/{name}" for name in CASES),
    *(f"graphs/{name}" for name in EDGE_LISTS),
    "graphs/harvard500.mtx",
    *(f"matrices/{name}" for name in MATRIX_GRAPHS),
]


def open_reference(name, ingested):
    """With the options of `test_reference`, whose stores these are."""
    folder, file = name.split("/")
    if folder == "pagerank_ref":
        case = read_cases()[file]
        rule = "sum" if case["weighted"] == "yes" else "keep"
        return ingested(f"pagerank_ref/{case['edges_file']}", n_vertices=int(case["n"]), duplicates=rule)
    return ingested(name) if file in EDGE_LISTS else ingested(name, kind="graph")


OFTEN = ["pagerank_ref/igraph-multigraph3", "pagerank_ref/networkit-weighted8", "graphs/celegansneural.txt.gz"]
"""Reference graphs of `make test`: one with parallel edges, one with weights, and one on processes."""


@pytest.mark.parametrize("name", [r if r in OFTEN else pytest.param(r, marks=pytest.mark.weekly) for r in REFERENCES])
def test_reference_graphs_have_one_digest(name, ingested, in_process, client):
    A = open_reference(name, ingested)
    wanted = mg.pagerank(A, **SHORT)
    is_small = A.shape[0] < 100
    clients = [in_process(n) for n in (1, 2, 3)] + [in_process(MANY) if A.shape[0] < MANY else client]
    for each in clients:
        with A.distribute(each) as D:
            for executor in EXECUTORS:
                check_same(mg.pagerank(D.on(executor=executor), **SHORT), wanted)
    if not is_small:
        check_same(mg.pagerank(A.on(client)), mg.pagerank(A))
    A.close()


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        ("graphs/celegansneural.txt.gz", "exact"),
        ("matrices/jagmesh7.mtx.gz", "float64"),
        ("graphs/celegansneural.txt.gz", "float32"),
        pytest.param("graphs/wiki-Vote.txt.gz", "exact", marks=pytest.mark.slow),
    ],
)
def test_executors_stop_at_the_same_iteration(name, precision, ingested, client):
    A = open_reference(name, ingested)
    options = {"precision": precision, "tol": 1e-6 if precision == "float32" else 1e-9, "alpha": 0.6}
    wanted = mg.pagerank(A, **options)
    assert wanted.iterations > 8
    with A.distribute(client) as D:
        for executor in EXECUTORS:
            CHECKS[precision](mg.pagerank(D.on(executor=executor), **options), wanted)


def store_hard(name, path, **options):
    hard = GRAPHS[name]
    return store_graph(sp.coo_array((hard.values, (hard.rows, hard.cols)), shape=hard.shape), path, **options)


@pytest.mark.parametrize("small", [SMALL_NNZ, 0], ids=["by NumPy", "compiled"])
def test_hard_graphs_have_one_digest(small, in_process, tmp_path, monkeypatch):
    """In each precision, with one executor by NumPy and with the other one by what is compiled."""
    monkeypatch.setattr("mgspmv.kernels.select.SMALL_NNZ", small)
    first, second = EXECUTORS if small else EXECUTORS[::-1]
    runs = [("exact", first), ("float64", second), ("float32", first)]
    for name in GRAPHS:
        A = store_hard(name, tmp_path / "sum.zarr", duplicates="sum")
        with A.distribute(in_process(3)) as D:
            for precision, executor in runs:
                options = {"precision": precision, **SHORT}
                CHECKS[precision](mg.pagerank(D.on(executor=executor), **options), mg.pagerank(A, **options), name)


@pytest.mark.parametrize("n_workers", [*(pytest.param(n, marks=pytest.mark.weekly) for n in (1, 2, 4)), MANY])
def test_hard_graphs_on_any_number_of_workers(n_workers, in_process, tmp_path):
    """In rounds of tasks only those of which workers have no rows."""
    for name in GRAPHS:
        A = store_hard(name, tmp_path / "sum.zarr", duplicates="sum")
        with A.distribute(in_process(n_workers)) as D:
            for executor in EXECUTORS if A.shape[0] < n_workers else ["supersteps"]:
                check_same(mg.pagerank(D.on(executor=executor), **SHORT), mg.pagerank(A, **SHORT), name)


@pytest.mark.parametrize(("rule", "weights"), [("keep", False), ("keep", None), ("first", False)])
def test_patterns_and_multigraphs_have_one_digest(rule, weights, in_process, tmp_path):
    for name in ("duplicates apart", "weights of 0", "self loops"):
        A = store_hard(name, tmp_path / "graph.zarr", duplicates=rule, weights=weights)
        with A.distribute(in_process(3)) as D:
            for executor in EXECUTORS:
                check_same(mg.pagerank(D.on(executor=executor), **SHORT), mg.pagerank(A, **SHORT), name)


@pytest.mark.parametrize("name", ["empty rows", "one dense column", "self loops"])
def test_the_bound_holds(name, in_process, tmp_path):
    hard = GRAPHS[name]
    wanted = rank_by_solving(sum_arcs(hard.rows, hard.cols, hard.values, hard.shape))
    with store_hard(name, tmp_path / "graph.zarr").distribute(in_process(3)) as D:
        for executor, precision in product(EXECUTORS, PRECISIONS):
            solution = mg.pagerank(D.on(executor=executor), precision=precision, norm="fixed", max_iter=8)
            distance = np.abs(solution.values - wanted).sum()
            assert 0 < distance <= solution.error_bound_l1 <= 20 * distance + 1e-5


@pytest.mark.parametrize("n_workers", [1, 3])
def test_stochastic_matrices_have_one_digest(n_workers, in_process, tmp_path):
    A = store_graph(make_stochastic(25), tmp_path / "stochastic.zarr", kind="stochastic")
    with A.distribute(in_process(n_workers)) as D:
        for executor in EXECUTORS:
            check_same(mg.pagerank(D.on(executor=executor)), mg.pagerank(A))


@pytest.mark.parametrize(
    "n_workers", [pytest.param(1, marks=pytest.mark.slow), 3, pytest.param(MANY, marks=pytest.mark.slow)]
)
def test_runs_that_stop_by_the_highest_stop_at_the_same_iteration(n_workers, in_process, tmp_path):
    rng = np.random.default_rng(8)
    arcs = sp.random_array((90, 90), density=0.06, rng=rng)
    A = store_graph(arcs, tmp_path / "graph.zarr", order="degree")
    runs = ({}, {"dangling": "uniform", "personalization": rng.random(90)}, {"dangling": "drop"})
    with A.distribute(in_process(n_workers)) as D:
        for options in runs:
            wanted = mg.pagerank(A, stop="topk:12", max_iter=300, **options)
            assert wanted.status == Status.STABLE
            for executor in EXECUTORS:
                solution = mg.pagerank(D.on(executor=executor), stop="topk:12", max_iter=300, **options)
                check_same(solution, wanted)
                assert solution.stability == wanted.stability


N = 60


@pytest.fixture(scope="module")
def named(tmp_path_factory):
    """A weighted graph of 60 vertices with names, some of them dangling."""
    rng = np.random.default_rng(0)
    source, target = rng.integers(0, N, 400), rng.integers(0, N, 400)
    source, target = source[source % 11 > 0], target[source % 11 > 0]
    lines = [f"v{i:02},v{j:02},{w:.3f}" for i, j, w in zip(source, target, rng.random(400) + 0.1, strict=False)]
    path = tmp_path_factory.mktemp("named") / "arcs.csv"
    path.write_text("\n".join(lines))
    A = store_graph(path, path.with_suffix(".zarr"), ids="string", duplicates="sum")
    assert A.shape == (N, N)
    assert A.vertex_ids[7] == "v07"
    return A


RAMP = np.arange(float(N))
OPTIONS = {
    "defaults": {},
    "alpha of 0": {"alpha": 0},
    "l1": {"norm": "l1", "tol": 1e-4},
    "l1_per_node": {"norm": "l1_per_node", "tol": 1e-6},
    "linf": {"norm": "linf", "tol": 1e-5},
    "relative": {"norm": "relative", "tol": 1e-4},
    "fixed": {"norm": "fixed", "max_iter": 5},
    "one iteration": {"norm": "fixed", "max_iter": 1},
    "personalization by array": {"personalization": RAMP},
    "personalization by name": {"personalization": {"v03": 2.0, "v59": 1.0}},
    "dangling by array": {"dangling": RAMP},
    "dangling by name": {"dangling": {"v00": 1.0}, "personalization": RAMP},
    "dangling uniform": {"dangling": "uniform", "personalization": RAMP},
    "dangling dropped": {"dangling": "drop"},
    "dangling dropped of all": {"dangling": "drop", "personalization": RAMP, "nstart": RAMP},
    "nstart by array": {"nstart": RAMP},
    "nstart by name": {"nstart": {"v41": 1.0}},
    "weights left out": {"weight": False},
    "out-weights by array": {"out_weight": 30 + RAMP},
    "out-weights of a pattern": {"out_weight": 30.5 + RAMP, "weight": False, "dangling": "drop"},
    "all vectors": {"personalization": RAMP, "dangling": RAMP[::-1], "nstart": np.ones(N), "alpha": 0.5},
    "serial kernel": {"kernel": "csr-serial"},
    "threads": {"kernel": "csr-rows", "threads": 2},
}


@pytest.fixture(scope="module")
def placed(named, _client, _in_process):
    """The named graph in the cluster of each executor: supersteps run on processes, which get pickled objects."""
    with named.distribute(_client) as on_processes, named.distribute(_in_process(4)) as on_threads:
        yield {"supersteps": on_processes, "tasks": on_threads}


def test_options(named, placed):
    for name, options in OPTIONS.items():
        options = {"alpha": 0.3, "tol": 1e-3 if options.get("norm") != "fixed" else None} | options
        wanted = call_placed(mg.pagerank, named, **options)
        assert "transport" not in wanted.matrix, name
        for executor in EXECUTORS:
            solution = call_placed(mg.pagerank, placed[executor], **options, executor=executor)
            assert solution.matrix["transport"] == {"supersteps": "peer", "tasks": "client"}[executor], name
            check_same(solution, wanted, (name, executor))
            assert solution.options == wanted.options | {"executor": executor}, name
            assert solution.ids.tolist() == wanted.ids.tolist(), executor
            assert solution.top(3) == wanted.top(3), executor
            described = ("url", "digest", "shape", "nnz", "kind", "program")
            assert {k: solution.matrix[k] for k in described} == {k: wanted.matrix[k] for k in described}, name
            assert solution.matrix["hardware"] == "4 workers of 1 thread", executor


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"alpha": 1.0}, OptionError, "alpha must be at least 0 and less than 1, not 1.0"),
        (
            {"executor": "embedded"},
            OptionError,
            "executor='embedded' computes in this process, not on workers; leave it out, or use the opened matrix "
            "without a cluster",
        ),
        ({"kernel": "csr"}, OptionError, "kernel must be 'auto' or one of csr-rows, csr-serial, not 'csr'"),
        ({"personalization": np.ones(3)}, ShapeError, None),
        ({"nstart": {"nobody": 1}}, OptionError, None),
        ({"dangling": "error"}, DanglingError, None),
    ],
)
def test_runs_that_are_refused(options, error, message, named, placed):
    if message is None:
        with pytest.raises(error) as embedded:
            mg.pagerank(named, **options)
        message = str(embedded.value)
    for executor in EXECUTORS:
        with pytest.raises(error) as caught:
            call_placed(mg.pagerank, placed[executor], **({"executor": executor} | options))
        assert str(caught.value) == message, executor
        check_same(mg.pagerank(placed[executor], **SHORT), mg.pagerank(named, **SHORT))


@pytest.mark.parametrize("executor", EXECUTORS)
def test_max_iter_reached(executor, named, placed):
    wanted = mg.pagerank(named, max_iter=4, throw=False)
    with pytest.raises(ConvergenceError, match=r"did not converge: L1 change .* after 4 iterations") as caught:
        mg.pagerank(placed[executor].on(executor=executor), max_iter=4)
    assert caught.value.solution.status is Status.MAX_ITER
    check_same(caught.value.solution, wanted)
    check_same(mg.pagerank(placed[executor].on(executor=executor), max_iter=4, throw=False), wanted)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("n_workers", [1, 3])
def test_non_finite_is_never_a_success(n_workers, executor, in_process, tmp_path):
    arcs = [(0, 1, 1e308), (0, 2, 1e308), (1, 2, 1.0), (2, 0, 1.0)]
    A = store_graph(tuple(map(np.array, zip(*arcs, strict=True))), tmp_path / "graph.zarr", duplicates="keep")
    with A.distribute(in_process(n_workers)) as D:
        with pytest.raises(
            ConvergenceError, match=r"NaN or infinite values after 1 iteration\..*0 sum to more"
        ) as caught:
            mg.pagerank(D.on(executor=executor))
        solution = caught.value.solution
        assert (solution.status, solution.error_bound_l1) == (Status.NON_FINITE, math.inf)
        assert solution.digest() == mg.pagerank(A, throw=False).digest()
        assert mg.pagerank(D.on(executor=executor), weight=False).status is Status.CONVERGED


@pytest.mark.parametrize("executor", EXECUTORS)
def test_an_error_of_the_listener_ends_the_run(executor, named, placed):
    class NoisyError(Exception):
        pass

    def listen(event):
        if event.iteration == 2:
            raise NoisyError

    with pytest.raises(NoisyError):
        mg.pagerank(placed[executor].on(executor=executor), progress=on_events(listen))
    check_same(mg.pagerank(placed[executor].on(executor=executor), **SHORT), mg.pagerank(named, **SHORT))


@pytest.fixture(scope="module")
def middle(tmp_path_factory):
    """A graph of 3000 vertices."""
    return mg.generate("uniform", tmp_path_factory.mktemp("middle") / "graph.zarr", n_vertices=3000, n_edges=30000)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_every_executor_has_the_same_events(executor, middle, client, tmp_path):
    wanted, heard = mg.pagerank(middle), []
    with middle.distribute(client) as D:
        began = time.perf_counter()
        solution = mg.pagerank(D.on(executor=executor), progress=on_events(heard.append))
        elapsed_s = time.perf_counter() - began
    assert solution.events == tuple(heard)
    of_all = [(e.epoch, e.iteration, e.change) for e in wanted.events]
    assert [(e.epoch, e.iteration, e.change) for e in heard] == of_all
    assert {e.run for e in heard} == {heard[0].run}
    assert heard[0].run != wanted.events[0].run
    for event in heard:
        per_worker = (event.product_s, event.exchange_s, event.wait_s, event.exchanged_bytes, event.memory_bytes)
        assert [len(values) for values in per_worker] == [4] * 5
        assert all(value >= 0 for values in per_worker for value in values)
        assert min(event.product_s) > 0
        assert min(event.memory_bytes) > 4 * min(b - a for a, b in pairwise(D.bounds)) * 8
    assert 0 < solution.seconds["product"] + solution.seconds["exchange"] <= elapsed_s
    phases = {"product", "exchange", "schedule", "queue", "start", "residual", "collect"}
    assert set(solution.seconds) == phases
    assert 0 < sum(solution.seconds.values()) <= elapsed_s
    memory = solution.memory
    assert memory.keys() == {"host_peak_bytes", "held_bytes", "planned_bytes"}
    assert memory["held_bytes"] == list(heard[-1].memory_bytes)
    assert memory["planned_bytes"] == [w.memory_bytes for w in D.plan.workers]
    assert all(held <= planned for held, planned in zip(memory["held_bytes"], memory["planned_bytes"], strict=True))
    assert all(20e6 < peak < 4e9 for peak in memory["host_peak_bytes"])
    assert len(set(memory["host_peak_bytes"])) > 1  # each process its own
    solution.save(tmp_path / "ranks.zarr")
    loaded = mg.load_solution(tmp_path / "ranks.zarr")
    assert (loaded.events, loaded.digest(), loaded.seconds) == (solution.events, solution.digest(), solution.seconds)
    assert loaded.memory == memory
    assert loaded.matrix["hardware"] == "4 workers of 1 thread"


def test_bytes_of_supersteps_are_those_that_the_plan_allows(middle, client):
    with middle.distribute(client) as D:
        event = mg.pagerank(D, **SHORT).events[-1]
        most = [w.exchange_bytes for w in D.plan.workers]
    assert all(0 < moved <= planned for moved, planned in zip(event.exchanged_bytes, most, strict=True))


def test_supersteps_send_what_is_needed_alone(client, tmp_path):
    """In a ring of pieces a worker reads one vertex of the others."""
    n = 4000
    ring = np.arange(n), (np.arange(n) + 1) % n
    A = store_graph(ring, tmp_path / "ring.zarr", n_vertices=n)
    with A.distribute(client) as D:
        for precision, item in (("exact", 8), ("float32", 4)):
            solution = mg.pagerank(D, precision=precision, **SHORT)
            assert [e.exchanged_bytes for e in solution.events] == [(item,) * 4] * 3
            assert solution.changes == mg.pagerank(A, precision=precision, **SHORT).changes
