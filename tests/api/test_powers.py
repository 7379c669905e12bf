"""Power iteration with stored matrices: against NumPy, the same on clusters, and what it refuses."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.sparse as sp
from zarr.storage import MemoryStore

import mgspmv as mg
from mgspmv.api.powers import power_iteration
from mgspmv.errors import (
    AcyclicError,
    BackendError,
    ClosedError,
    ConvergenceError,
    MissingDependencyError,
    OptionError,
    ShapeError,
)
from mgspmv.kernels.device import has_device
from mgspmv.model import Status
from tests.support.hearing import on_phases


def store_matrix(source, store=None, **options):
    return mg.ingest(source, store, **{"kind": "matrix", **options})


def make_own(n=40, seed=0, density=0.2):
    """Positive numbers at random places and on the diagonal."""
    rng = np.random.default_rng(seed)
    return (sp.random_array((n, n), density=density, rng=rng) + sp.eye_array(n)).tocsr()


def find_dominant(own):
    """Eigenvector of the largest eigenvalue, with sum 1."""
    values, vectors = np.linalg.eig(own.toarray())
    found = vectors[:, np.argmax(values.real)].real
    return found / found.sum()


@pytest.fixture(scope="module")
def square(tmp_path_factory):
    own = make_own()
    return own, store_matrix(own, tmp_path_factory.mktemp("square") / "a.zarr", transpose=True)


def test_power_method(square):
    own, A = square
    for matrix, wanted in ((A, own), (A.T, own.T)):
        solution = power_iteration(matrix, normalize="l1", tol=1e-14, max_iter=300)
        np.testing.assert_allclose(solution.values, find_dominant(wanted), rtol=1e-10)
    assert solution.status is Status.CONVERGED
    assert solution.iterations == len(solution.changes) == len(solution.events)
    assert solution.error_bound_l1 == math.inf
    assert "error" not in repr(solution)
    assert solution.edges_per_s > 0
    assert set(solution.seconds) == {"load", "start", "product", "exchange", "schedule", "collect"}
    assert solution.memory.keys() == {"host_peak_bytes", "held_bytes"}
    assert solution.memory["held_bytes"] == list(solution.events[-1].memory_bytes)
    assert solution.memory["held_bytes"][0] > 12 * own.nnz + 3 * 8 * 40
    assert solution.memory["host_peak_bytes"][0] > 20e6
    assert solution.options == {
        "method": "power iteration",
        "normalize": "l1",
        "tol": 1e-14,
        "norm": "l1",
        "max_iter": 300,
        "weight": True,
        "precision": "float64",
        "executor": "embedded",
    }
    assert (solution.matrix["digest"], solution.matrix["nnz"]) == (A.info.digest, own.nnz)


def test_step_of_a_user():
    own = make_own() * 0.01
    A, b = store_matrix(own), np.arange(40.0)
    solution = power_iteration(A, lambda y, x: b + y, tol=1e-12)
    np.testing.assert_allclose(solution.values, np.linalg.solve(np.eye(40) - own.toarray(), b), rtol=1e-12)


def test_a_cluster_has_the_same_result(square, in_process):
    _, A = square
    options = {"normalize": "l2", "tol": 1e-10, "max_iter": 200}
    here, client, said = power_iteration(A, **options), in_process(3), []
    with A.distribute(client) as D:
        there = power_iteration(D, **options)
        unweighted = power_iteration(D, weight=False, **options)
    with pytest.raises(ClosedError):
        power_iteration(D)
    once = power_iteration(A.on(client), weight=False, **options, progress=on_phases(lambda *news: said.append(news)))
    np.testing.assert_allclose(there.values, here.values, rtol=1e-13)
    assert there.iterations == here.iterations
    assert there.matrix["hardware"] == "3 workers of 1 thread"
    assert once.digest() == unweighted.digest()
    np.testing.assert_allclose(once.values, power_iteration(A, weight=False, **options).values, rtol=1e-13)
    assert said[-2:] == [("load", 3, 3), ("start", 0, None)]


@pytest.mark.parametrize("order", ["none", "degree"])
def test_steps_of_users_are_made_in_the_client(order, in_process, tmp_path):
    A, b = store_matrix(make_own(), tmp_path / "a.zarr", order=order), np.arange(40.0)
    wanted = power_iteration(A, lambda y, x: 0.01 * y + b, tol=1e-9)
    with A.distribute(in_process(3)) as D:
        found = power_iteration(D, lambda y, x: 0.01 * y + b, tol=1e-9)
        with pytest.raises(
            OptionError, match="executor='supersteps' makes the steps on the workers, and update is a fun"
        ):
            power_iteration(D.on(executor="supersteps"), lambda y, x: y)
    assert (found.digest(), found.changes) == (wanted.digest(), wanted.changes)
    assert (found.options["executor"], found.matrix["transport"]) == ("tasks", "client")
    assert found.matrix["hardware"] == "3 workers on hosts"
    with pytest.raises(OptionError, match="executor='supersteps' needs a cluster"):
        power_iteration(A.on(executor="supersteps"), lambda y, x: y)


def test_without_convergence(square):
    _, A = square
    with pytest.raises(ConvergenceError, match=r"^power iteration did not converge: L1 .* after 3 iterations") as e:
        power_iteration(A, normalize="l1", tol=1e-14, max_iter=3)
    assert e.value.solution.iterations == 3
    kept = power_iteration(A, normalize="l1", tol=1e-14, max_iter=3, throw=False)
    assert (kept.status, kept.digest()) == (Status.MAX_ITER, e.value.solution.digest())
    with pytest.raises(ConvergenceError, match="did not converge: NaN or infinite values"):
        power_iteration(A, lambda y, x: 1e300 * y, max_iter=10)
    with pytest.raises(ConvergenceError, match=r"The last change is not smaller than the first: pass normalize='l2'"):
        power_iteration(A, lambda y, x: 2 * x, max_iter=10)
    with pytest.raises(ConvergenceError, match=r"Increase max_iter= or tol="):
        power_iteration(A, lambda y, x: 0.5 * x, tol=1e-14, max_iter=10)


def test_what_is_refused(square):
    _, A = square
    with pytest.raises(OptionError, match="where must be one of 'auto', 'cpu', 'cuda', not 'gpu'"):
        A.on("gpu")
    with pytest.raises(OptionError, match="power iteration chooses its kernel, but kernel='csr-rows' was passed to on"):
        power_iteration(A.on("cpu", kernel="csr-rows"))
    for wrong, message in (
        ({"update": 3}, r"update must be a function of \(y, x\), not 3"),
        ({"x": np.full(40, math.nan)}, "x must be finite; vertex 0 has nan"),
        ({"x": {77: 1.0}}, "x has the id 77, which no vertex has"),
        ({"precision": "exact"}, "precision must be one of 'float64', 'float32', not 'exact'"),
        ({"tol": -1}, "tol must be a positive number, not -1"),
        ({"normalize": "l7"}, "normalize must be one of"),
        ({"norm": "l2"}, "norm='l2' measures no change; pass what x is divided by as normalize='l2'"),
        ({"weight": "cost"}, "weight='cost' names a column or an attribute, but the matrix is stored already"),
    ):
        with pytest.raises(OptionError, match=message):
            power_iteration(A, **wrong)
    with pytest.raises(ShapeError, match=r"x has shape \(3,\) but the matrix has 40 vertices"):
        power_iteration(A, x=np.ones(3))
    with pytest.raises(ShapeError, match="is a matrix of 3 x 4, and power iteration needs a square one"):
        power_iteration(store_matrix(np.ones((3, 4))))
    with pytest.raises(OptionError, match="has no rows, so there is nothing to iterate"):
        power_iteration(store_matrix(sp.coo_array((0, 0))))


@pytest.mark.skipif(has_device(), reason="there is a CUDA device")
def test_without_a_device(square):
    with pytest.raises((BackendError, MissingDependencyError), match="backend='cuda' needs"):
        power_iteration(square[1].on("cuda"))


@pytest.mark.gpu
def test_cycles_and_katz_on_a_device():
    """A graph without cycles is told, and Katz' alpha is chosen, from arrays on the device."""
    mg.ingest((np.arange(50), np.arange(1, 51)), path := MemoryStore())
    with pytest.raises(AcyclicError):
        mg.eigenvector_centrality(mg.open_matrix(path).on("cuda"))
    rng = np.random.default_rng(5)
    A = mg.ingest(tuple(rng.integers(0, 500, (2, 4000))), n_vertices=500)
    found, wanted = (mg.katz(A.on(backend), alpha=None) for backend in ("cuda", "cpu"))
    assert found.status is wanted.status is Status.CONVERGED
    np.testing.assert_allclose(found.values, wanted.values, rtol=1e-9)


@pytest.mark.gpu
@pytest.mark.parametrize("order", ["none", "degree"])
@pytest.mark.parametrize("limits", [{}, {"device_memory": 24 << 20}], ids=["held", "streamed"])
def test_device(order, limits):
    import cupy

    n = 200_000
    own = make_own(n, density=20 / n)
    A, b, seen = store_matrix(own, order=order), np.arange(n) / n, []

    def update(y, x):
        seen.append((type(y), type(x)))
        y *= 0.01
        y += cupy.asarray(b)
        return y

    runs = [power_iteration(A.on("cuda", **limits), update, normalize="l2", norm="fixed", max_iter=5) for _ in range(2)]
    here = power_iteration(A.on("cpu"), lambda y, x: 0.01 * y + b, normalize="l2", norm="fixed", max_iter=5)
    assert set(seen) == {(cupy.ndarray, cupy.ndarray)}
    assert len({(s.digest(), s.changes) for s in runs}) == 1
    np.testing.assert_allclose(runs[0].values, here.values, rtol=1e-12)
    np.testing.assert_allclose(runs[0].changes, here.changes, rtol=1e-9, atol=1e-12)  # of 386 at first
    for norm in ("linf", "relative"):
        own, other = (
            power_iteration(A.on(k), normalize="max", norm=norm, max_iter=3, throw=False) for k in ("cuda", "cpu")
        )
        np.testing.assert_allclose(own.changes, other.changes, rtol=1e-9)
        assert own.memory["device_bytes"][0] > 0
    unweighted = [
        power_iteration(A.on(k), normalize="l1", weight=False, norm="fixed", max_iter=3) for k in ("cuda", "cpu")
    ]
    np.testing.assert_allclose(unweighted[0].values, unweighted[1].values, rtol=1e-12)
