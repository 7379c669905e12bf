"""HITS, Katz, eigenvector centrality, stationary vectors and the power method on clusters: in rounds the bits that this
process computes, in supersteps on any number of workers the same but for how norms and changes are rounded."""

from __future__ import annotations

import time

import numpy as np
import pytest
import scipy.sparse as sp

import mgspmv as mg
from mgspmv.errors import ClosedError, ClusterError, ConvergenceError, OptionError
from mgspmv.model import Status
from tests.support.hearing import on_both
from tests.support.placed import place

N = 60
MANY = 7
EXECUTORS = ["tasks", "supersteps"]


def store(source, path, **options):
    return mg.ingest(source, path, **{"kind": "graph", "transpose": True, **options})


def make_arcs(seed=0, density=0.08):
    """Weights, some of them negative, with vertices of many in-edges first and of many out-edges last."""
    rng = np.random.default_rng(seed)
    own = sp.random_array((N, N), density=density, rng=rng).tolil()
    own[:, -3:] = rng.random((N, 3))
    own[:2, :] = rng.random((2, N))
    own.setdiag(0.5)
    own[5, 6] = -0.25
    return own.tocsr()


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    folder = tmp_path_factory.mktemp("powers")
    steps = np.random.default_rng(1).random((N, N)) * (np.random.default_rng(2).random((N, N)) < 0.2) + np.eye(N)
    return {
        "graph": store(make_arcs(), folder / "g.zarr", order="degree"),
        "chain": store(steps / steps.sum(axis=0), folder / "c.zarr", kind="stochastic", order="dealt"),
        "matrix": store(make_arcs(3), folder / "m.zarr", kind="matrix"),
    }


@pytest.fixture(scope="module")
def placed(stores, _in_process):
    """`placed(name, n_workers)` is a stored matrix and its transpose, distributed once."""
    made = {}

    def place(name, n_workers):
        if (name, n_workers) not in made:
            client = _in_process(n_workers)
            made[name, n_workers] = [M.distribute(client) for M in (stores[name], stores[name].T)]
        return made[name, n_workers]

    yield place
    for matrices in made.values():
        for matrix in matrices:
            matrix.close()


RAMP = np.arange(1.0, N + 1)
CALLS = {
    "hits": ("graph", lambda A, AT, **o: mg.hits(A, **o, **({} if AT is None else {"transpose": AT}))),
    "hits of the transpose": (
        "graph",
        lambda A, AT, **o: mg.hits(A.T, **o) if AT is None else mg.hits(AT, transpose=A, **o),
    ),
    "katz": ("graph", lambda A, AT, **o: mg.katz(A, alpha=0.02, **o)),
    "katz with a vector": ("graph", lambda A, AT, **o: mg.katz(A, alpha=0.02, beta=RAMP, normalized=False, **o)),
    "eigenvector": ("graph", lambda A, AT, **o: mg.eigenvector_centrality(A, **o)),
    "stationary": ("chain", lambda A, AT, **o: mg.stationary(A, **o)),
    "lazy": ("chain", lambda A, AT, **o: mg.stationary(A, lazy=0.3, **o)),
    "power method": ("matrix", lambda A, AT, **o: mg.power_iteration(A, normalize="max", **o)),
    "of the transpose": (
        "matrix",
        lambda A, AT, **o: mg.power_iteration(A.T if AT is None else AT, normalize="l2", **o),
    ),
    "without a norm": ("chain", lambda A, AT, **o: mg.power_iteration(A, x=RAMP, **o)),
}


def run(name, matrices, **options):
    """The solutions of a call."""
    _, call = CALLS[name]
    others = place(matrices[0], options)[1]
    placed = [None if matrix is None else place(matrix, options)[0] for matrix in matrices]
    found = call(*placed, **({"max_iter": 300} | others))
    return [found] if isinstance(found, mg.Solution) else list(found)


PLAIN = {"katz with a vector", "without a norm"}
"""Calls that divide by no norm: no sum over all elements is in their values."""


def check_same(found, wanted, name=""):
    for own, other in zip(found, wanted, strict=True):
        assert (own.status, own.iterations) == (other.status, other.iterations), name
        assert own.values.dtype == other.values.dtype, name
        if own.options["executor"] == "tasks":
            assert (own.digest(), own.changes) == (other.digest(), other.changes), name
            continue
        close = 1e-5 if own.values.dtype == np.float32 else 1e-12
        np.testing.assert_allclose(own.values, other.values, rtol=close, err_msg=name)
        np.testing.assert_allclose(own.changes, other.changes, rtol=1e-3, atol=close, err_msg=name)
        assert name not in PLAIN or own.digest() == other.digest(), name


@pytest.mark.parametrize(
    ("n_workers", "executor", "names"),
    [
        (1, "supersteps", CALLS),
        (2, "supersteps", CALLS),
        (3, "supersteps", CALLS),
        (3, "tasks", CALLS),
        (MANY, "supersteps", ["hits", "lazy"]),
    ],
    ids=["one", "two", "three", "three, in rounds", "many"],
)
def test_results_are_those_of_this_process(n_workers, executor, names, stores, placed):
    for name in names:
        kind, tol = CALLS[name][0], {"tol": 1e-2 if executor == "tasks" else 1e-5}
        wanted = run(name, (stores[kind], None), **tol)
        assert wanted[0].iterations > 2, name
        matrices = placed(kind, n_workers)
        assert n_workers == 1 or kind != "graph" or matrices[0].bounds != matrices[1].bounds, name
        found = run(name, matrices, executor=executor, **tol)
        check_same(found, wanted, name)
        assert found[0].options == wanted[0].options | {"executor": executor}, name
        assert found[0].matrix["transport"] == {"supersteps": "peer", "tasks": "client"}[executor], name


OPTIONS = {
    "float32": {"precision": "float32", "tol": 1e-4},
    "without weights": {"weight": False, "norm": "fixed", "max_iter": 6},
    "l1_per_node": {"norm": "l1_per_node", "tol": 1e-8},
    "linf": {"norm": "linf", "tol": 1e-7},
    "relative": {"norm": "relative", "tol": 1e-5},
    "fixed": {"norm": "fixed", "max_iter": 1},
    "start": {"nstart": RAMP},
    "threads": {"threads": 2},
}


def test_options(stores, placed):
    for asked in OPTIONS:
        options = OPTIONS[asked]
        for name in {"float32": CALLS, "relative": ["hits", "stationary", "katz with a vector"]}.get(asked, ["hits"]):
            kind = CALLS[name][0]
            check_same(run(name, placed(kind, 3), **options), run(name, (stores[kind], None), **options), name)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_seconds_memory_and_events(executor, stores, client):
    A, heard, said, short = stores["graph"], [], [], {"norm": "fixed", "max_iter": 12}
    wanted = run("hits", (A, None), **short)
    with A.distribute(client) as D, A.T.distribute(client) as DT:
        began = time.perf_counter()
        listen = on_both(heard.append, lambda *news: said.append(news))
        found = run("hits", (D, DT), executor=executor, progress=listen, **short)
        elapsed_s = time.perf_counter() - began
        blocks = [sum(both) for both in zip(D.held_bytes, DT.held_bytes, strict=True)]
        planned = [a.memory_bytes + b.memory_bytes for a, b in zip(D.plan.workers, DT.plan.workers, strict=True)]
    check_same(found, wanted)
    assert found[0].events == tuple(heard)
    for event in heard:
        per_worker = (event.product_s, event.exchange_s, event.wait_s, event.exchanged_bytes, event.memory_bytes)
        assert [len(values) for values in per_worker] == [4] * 5
        assert all(value >= 0 for values in per_worker for value in values)
        assert min(event.product_s) > 0
        assert min(event.exchanged_bytes) > 0
    seconds = {"product", "exchange", "schedule", "start", "collect"} | (
        {"queue"} if executor == "supersteps" else set()
    )
    for solution in found:
        assert set(solution.seconds) == seconds
        assert 0 < sum(solution.seconds.values()) <= elapsed_s
        assert solution.edges_per_s > 0
        memory = solution.memory
        assert memory["held_bytes"] == list(heard[-1].memory_bytes)
        assert sum(memory["held_bytes"]) > 24 * A.nnz
        assert memory["planned_bytes"] == planned
        assert all(held <= most for held, most in zip(memory["held_bytes"], planned, strict=True))
        if executor == "supersteps":
            assert memory.keys() == {"host_peak_bytes", "held_bytes", "planned_bytes"}
            assert len(set(memory["host_peak_bytes"])) > 1  # each process its own
        else:
            assert memory["held_bytes"] == blocks != planned
        assert solution.matrix["hardware"] == f"4 workers {'of 1 thread' if executor == 'supersteps' else 'on hosts'}"
    assert said == ([("start", 0, None)] if executor == "supersteps" else [])


def test_supersteps_send_what_is_read_alone(client, tmp_path):
    """In a ring of pieces a worker reads one vertex of the others."""
    n = 4000
    A = store((np.arange(n), (np.arange(n) + 1) % n), tmp_path / "ring.zarr", n_vertices=n)
    with A.distribute(client) as D:
        solution = mg.katz(D, norm="fixed", max_iter=3)
    assert [event.exchanged_bytes for event in solution.events] == [(8,) * 4] * 3


@pytest.mark.parametrize("executor", EXECUTORS)
def test_runs_that_do_not_converge(executor, stores, placed):
    A, D, statuses = stores["graph"], placed("graph", 3)[0], []
    for options in ({"alpha": 1e60}, {"alpha": 0.1, "max_iter": 3, "tol": 1e-12}):
        wanted = mg.katz(A, throw=False, **options)
        with pytest.raises(ConvergenceError, match=r"^Katz centrality did not converge: .*alpha must be") as caught:
            mg.katz(D.on(executor=executor), **options)
        check_same([caught.value.solution], [wanted])
        statuses.append(wanted.status)
    assert statuses == [Status.NON_FINITE, Status.MAX_ITER]


def test_what_is_refused(stores, placed, in_process):
    D, _ = placed("graph", 3)
    with pytest.raises(OptionError, match="executor='embedded' computes in this process, not on workers; leave it out"):
        mg.katz(D.on(executor="embedded"))
    with pytest.raises(ClusterError, match="the matrix and its transpose are not on the same workers, which"):
        mg.hits(D, transpose=placed("graph", 2)[1])
    short = {"norm": "fixed", "max_iter": 3}
    found = mg.hits(D.on(executor="tasks"), transpose=placed("graph", 2)[1], **short)
    check_same(list(found), run("hits", (stores["graph"], None), **short))
    assert len(found.hubs.memory["held_bytes"]) == 5
    with stores["graph"].distribute(in_process(2)) as closed:
        pass
    for executor in EXECUTORS:
        with pytest.raises(ClosedError, match="was closed; distribute it again"):
            mg.katz(closed.on(executor=executor))
