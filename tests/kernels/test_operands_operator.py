"""Stored matrices as SciPy's linear operators: what SciPy finds with them and with the same CSR of its own."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.sparse.linalg import aslinearoperator, cg, eigs, eigsh, gmres, lsqr, svds

import mgspmv as mg
from mgspmv.errors import ClosedError, KindError, OptionError


def store_matrix(source, store=None, **options):
    return mg.ingest(source, store, **{"kind": "matrix", **options})


def make_rectangle(n_rows=30, n_cols=17):
    return sp.random_array((n_rows, n_cols), density=0.2, rng=np.random.default_rng(1), format="csr")


def make_spd(n=60):
    """Of the Poisson equation on a line, with another diagonal."""
    ones = np.ones(n)
    diagonals = (-ones[1:], 2.1 + np.arange(n) / n, -ones[1:])
    return sp.diags_array(diagonals, offsets=(-1, 0, 1)).tocsr()


@pytest.fixture(scope="module")
def rectangle():
    own = make_rectangle()
    return own, store_matrix(own, transpose=True)


def test_operator_multiplies_as_the_matrix(rectangle):
    own, A = rectangle
    operator, rng = A.as_linear_operator(), np.random.default_rng(0)
    assert (operator.shape, operator.dtype) == (own.shape, np.float64)
    x, y = rng.random((17, 3)), rng.random((30, 3))
    for product, wanted in (
        (operator @ x, A @ x),
        (operator.matvec(x[:, 0]), A @ x[:, 0]),
        (operator.matvec(x[:, :1]), A @ x[:, :1]),
        (operator.rmatmat(y), A.T @ y),
        (operator.rmatvec(y[:, 0]), A.T @ y[:, 0]),
        (operator.T @ y, A.T @ y),
        (operator.H.matvec(y[:, 0]), A.T @ y[:, 0]),
        (operator.T.T @ x, A @ x),
        (A.T.as_linear_operator() @ y, A.T @ y),
        (A.T.as_linear_operator().T @ x, A @ x),
    ):
        np.testing.assert_array_equal(product, wanted)
    np.testing.assert_allclose(operator @ x, own @ x, rtol=1e-14)


def test_complex_vectors(rectangle):
    own, A = rectangle
    operator, rng = A.as_linear_operator(), np.random.default_rng(0)
    x = rng.random((17, 2)) + 1j * rng.random((17, 2))
    y = rng.random(30) - 1j * rng.random(30)
    np.testing.assert_allclose(operator @ x, own @ x, rtol=1e-14)
    np.testing.assert_allclose(operator.matvec(x[:, 0]), own @ x[:, 0], rtol=1e-14)
    np.testing.assert_allclose(operator.matvec(x[:, :1]), own @ x[:, :1], rtol=1e-14)
    np.testing.assert_allclose(operator.rmatvec(y), own.T @ y, rtol=1e-14)


def test_weights_may_be_left_out(rectangle):
    own, A = rectangle
    operator, ones = A.as_linear_operator(weight=False), (own != 0).astype(float)
    np.testing.assert_allclose(operator.matvec(np.arange(17.0)), ones @ np.arange(17.0), rtol=1e-14)
    np.testing.assert_allclose(operator.rmatvec(np.arange(30.0)), ones.T @ np.arange(30.0), rtol=1e-14)
    np.testing.assert_allclose(A.matvec(np.arange(17.0)), own @ np.arange(17.0), rtol=1e-14)


def test_without_the_transpose():
    A = store_matrix(make_rectangle())
    operator = A.as_linear_operator()
    operator.matvec(np.ones(17))
    for use in (
        lambda: operator.rmatvec(np.ones(30)),
        lambda: operator.T @ np.ones(30),
        lambda: A.rmatvec(np.ones(30)),
    ):
        with pytest.raises(KindError, match=r"pass transpose=True to ingest"):
            use()


@pytest.mark.parametrize("use", [lambda A: A, lambda A: A.as_linear_operator(), aslinearoperator])
def test_scipy_takes_the_matrix_and_its_operator(use):
    own, rng = make_spd(), np.random.default_rng(0)
    A, b, v0 = use(store_matrix(own, transpose=True)), rng.random(60), rng.random(60)
    solved = np.linalg.solve(own.toarray(), b)
    for solve in (cg, gmres):
        x, info = solve(A, b, rtol=1e-12)
        assert info == 0
        np.testing.assert_allclose(x, solved, rtol=1e-9)
    np.testing.assert_allclose(lsqr(A, b, atol=1e-13, btol=1e-13)[0], solved, rtol=1e-9)
    wanted = np.linalg.eigvalsh(own.toarray())[-3:]
    np.testing.assert_allclose(eigsh(A, k=3, v0=v0)[0], wanted, rtol=1e-12)
    np.testing.assert_allclose(np.sort(eigs(A, k=3, v0=v0)[0].real), wanted, rtol=1e-12)
    np.testing.assert_allclose(svds(A, k=3, v0=v0)[1], wanted, rtol=1e-12)


@pytest.mark.parametrize("name", ["494_bus.mtx", "west0479.mtx", "arc130.mtx", "jagmesh7.mtx.gz", "ash219.mtx"])
def test_real_matrices(name, ingested):
    A = ingested(f"matrices/{name}", transpose=True)
    own, rng = A.to_scipy().tocsr(), np.random.default_rng(0)
    v0, b = rng.random(min(A.shape)), rng.random(A.shape[0])
    wanted = svds(own, k=2, v0=v0)[1]
    np.testing.assert_allclose(svds(A.as_linear_operator(), k=2, v0=v0)[1], wanted, rtol=1e-9)
    steps = {"iter_lim": 10}
    np.testing.assert_allclose(lsqr(A, b, **steps)[0], lsqr(own, b, **steps)[0], rtol=1e-6, atol=1e-12)
    if A.shape[0] == A.shape[1]:
        found, wanted = (np.sort_complex(eigs(M, k=2, v0=v0)[0]) for M in (A.as_linear_operator(), own))
        np.testing.assert_allclose(np.abs(found), np.abs(wanted), rtol=1e-8)
    if name == "494_bus.mtx":
        np.testing.assert_allclose(eigsh(A, k=2, v0=v0)[0], eigsh(own, k=2, v0=v0)[0], rtol=1e-9)
        x, info = cg(A, b, rtol=1e-8)
        assert info == 0
        assert np.linalg.norm(own @ x - b) <= 1e-7 * np.linalg.norm(b)


def test_operator_of_a_distributed_matrix(in_process, tmp_path):
    own = make_rectangle()
    A = store_matrix(own, tmp_path / "matrix.zarr", transpose=True)
    x, y, client = np.random.default_rng(0).random(17), np.arange(30.0), in_process(3)
    with A.distribute(client) as D, A.T.distribute(client) as DT:
        alone, passed = D.as_linear_operator(), D.as_linear_operator(DT)
        for operator in (alone, passed, aslinearoperator(D)):
            np.testing.assert_array_equal(operator.matvec(x), A @ x)
        for operator in (passed, DT.as_linear_operator(D).T):
            np.testing.assert_array_equal(operator.rmatvec(y), A.T @ y)
        unweighted = D.as_linear_operator(weight=False)
        np.testing.assert_array_equal(unweighted.matvec(x), A.as_linear_operator(weight=False).matvec(x))
        np.testing.assert_allclose(svds(passed, k=2)[1], svds(own, k=2)[1], rtol=1e-12)
        with pytest.raises(KindError, match=r"distribute A\.T too, and pass that as transpose"):
            alone.rmatvec(y)
        for wrong in (D, A, DT.as_linear_operator()):
            with pytest.raises(OptionError, match=r"^transpose must be that of .*, not <"):
                D.as_linear_operator(wrong)
    with pytest.raises(ClosedError):
        alone.matvec(x)
