"""Ranks and products that others published, and real graphs and matrices against SciPy.

`data/README.md` beside the reference data says where each comes from and by which conventions it was made.
"""

from __future__ import annotations

import csv
import warnings
from functools import cache

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp

import mgspmv as mg
from mgspmv.errors import SourceError, StoreNotFoundError
from tests.support.oracles import rank_by_pushing, sum_arcs
from tests.support.reference_data import shared_data

PRECISIONS = ["exact", "float64", "float32"]

CASES = [
    "ldbc-example-directed",
    "ldbc-example-undirected",
    "cugraph-karate",
    "cugraph-path4",
    "lagraph-karate",
    "lagraph-ldbc-directed",
    "igraph-graph1",
    "igraph-graph2",
    "igraph-star11",
    "igraph-edgeless10",
    "igraph-multigraph3",
    "jgrapht-wikipedia11",
    "jgrapht-wikipedia11-undirected",
    "jgrapht-weighted-star4",
    "jgrapht-star4",
    "jgrapht-star4-isolated",
    "gds-wikipedia11",
    "networkit-weighted8",
    "mage-00-n1",
    "mage-01-n2",
    "mage-03-n1",
    "mage-04-n2",
    "mage-05-n2",
    "mage-06-n5",
    "louridas-bull",
    "louridas-chvatal",
    "louridas-coxeter",
    "louridas-diamond",
    "louridas-folkman",
    "louridas-krackhardt_kite",
    "louridas-meredith",
    "louridas-nonline",
    "louridas-petersen",
    "louridas-tutte",
    "louridas-erdos-10000",
    "louridas-barabasi-30000",
]

UNDIRECTED = [
    "ldbc-example-undirected",
    "cugraph-karate",
    "lagraph-karate",
    "igraph-graph1",
    "igraph-graph2",
    "igraph-star11",
    "igraph-edgeless10",
    "igraph-multigraph3",
    "jgrapht-wikipedia11-undirected",
    "networkit-weighted8",
]
"""Of these, each edge there and back."""

PRINTED = 1.05
"""The columns of distances have two or three digits."""
FLOAT32_L1 = 1e-6 / 0.15
"""How far float32 may stop from the ranks: at changes of 1e-6, with damping 0.85."""


def read_cases():
    with open(shared_data("pagerank_ref/CASES.tsv"), encoding="utf-8") as file:
        return {case["case"]: case for case in csv.DictReader(file, delimiter="\t")}


def test_every_case_is_listed():
    assert sorted(read_cases()) == sorted(CASES)


@pytest.mark.parametrize("name", CASES)
def test_published_ranks(name, ingested):
    case = read_cases()[name]
    expected = np.loadtxt(shared_data(f"pagerank_ref/{case['expected_file']}"), ndmin=2)
    assert (case["duplicate_rule"], case["teleport"]) == ("sum", "uniform")
    A = ingested(
        f"pagerank_ref/{case['edges_file']}",
        n_vertices=int(case["n"]),
        duplicates="sum" if case["weighted"] == "yes" else "keep",
    )
    assert (A.shape[0], A.is_pattern) == (int(case["n"]), case["weighted"] == "no")
    assert expected[:, 0].tolist() == list(range(A.shape[0]))
    for precision in PRECISIONS:
        options = {"alpha": float(case["alpha"]), "precision": precision, "dangling": case["dangling_rule"]}
        ranks = mg.pagerank(A, **options, **stop_options(case, precision)).values.astype(np.float64)
        if case["normalisation"] == "unnorm":
            ranks *= len(ranks)
        check_distance(ranks, expected[:, 1], case, precision)


@pytest.mark.parametrize("name", UNDIRECTED)
def test_published_ranks_of_edges_that_a_store_has_once(name, tmp_path, ingested):
    """The files have both arcs of each edge; here one goes to a store, of which ingest makes both."""
    case = read_cases()[name]
    with warnings.catch_warnings(action="ignore"):  # of a file without edges
        edges = np.loadtxt(shared_data(f"pagerank_ref/{case['edges_file']}"), ndmin=2)
    edges = edges if len(edges) else np.zeros((0, 2))
    once = edges[edges[:, 0] < edges[:, 1]]
    assert 2 * len(once) == len(edges) == int(case["arcs"])
    rule, n = {"duplicates": "sum" if case["weighted"] == "yes" else "keep"}, int(case["n"])
    mg.ingest((*once[:, :2].T.astype(int), *once[:, 2:].T), tmp_path / "once", n_vertices=n, **rule)
    both = mg.ingest(tmp_path / "once", tmp_path / "both", symmetrize=True, **rule).info
    assert both.digest == ingested(f"pagerank_ref/{case['edges_file']}", n_vertices=n, **rule).info.digest
    options = {"alpha": float(case["alpha"]), "dangling": case["dangling_rule"]} | stop_options(case, "exact")
    ranks = mg.pagerank(mg.open_matrix(tmp_path / "both"), **options).values
    expected = np.loadtxt(shared_data(f"pagerank_ref/{case['expected_file']}"), ndmin=2)
    check_distance(ranks, expected[:, 1], case, "exact")


def stop_options(case, precision):
    if case["iterations"] != "converged":
        return {"norm": "fixed", "max_iter": int(case["iterations"])}
    return {"tol": 1e-6 if precision == "float32" else 1e-14, "max_iter": 500}


def check_distance(ranks, expected, case, precision):
    distance = np.abs(ranks - expected)
    allowed_abs, allowed_rel = PRINTED * float(case["max_abs_diff"]), PRINTED * float(case["max_rel_diff"])
    if precision == "float32":
        assert distance.max() <= allowed_abs + FLOAT32_L1 * max(1.0, expected.sum()), precision
        return
    assert distance.max() <= allowed_abs, precision
    assert (distance / expected).max() <= allowed_rel, precision


LDBC = {
    "example-directed, 2 iterations": (
        "ldbc-example-directed.e",
        "ldbc-example-directed.v",
        "ldbc-example-directed-PR",
        {},
        2,
        1e-15,
    ),
    "example-undirected, 2 iterations": (
        "ldbc-example-undirected.e",
        "ldbc-example-undirected.v",
        "ldbc-example-undirected-PR",
        {"symmetrize": True},
        2,
        1e-15,
    ),
    "p2p-31 undirected, 10 iterations": ("p2p-31.e.gz", "p2p-31.v.gz", "p2p-31-PR.gz", {"symmetrize": True}, 10, 1e-13),
    "p2p-31 directed, 2 iterations": ("p2p-31.e.gz", "p2p-31.v.gz", "p2p-31-pagerank_nx-2iter.gz", {}, 2, 1e-13),
}
"""Edges, vertices, ranks, options of ingest, iterations, and the relative distance that `exact` and `float64` keep."""


@pytest.mark.parametrize("name", LDBC)
def test_ldbc_files(name, ingested):
    edges, vertices, ranks, options, iterations, distance = LDBC[name]
    expected = np.loadtxt(shared_data(f"graphs/{ranks}"))
    A = ingested(f"graphs/{edges}", vertices=shared_data(f"graphs/{vertices}"), **options)
    assert A.is_pattern is False
    np.testing.assert_array_equal(A.vertex_ids, np.sort(expected[:, 0]))
    wanted = expected[np.argsort(expected[:, 0]), 1]
    for precision in PRECISIONS:
        solution = mg.pagerank(A, weight=False, norm="fixed", max_iter=iterations, precision=precision)
        assert solution.status == mg.Status.COMPLETED, precision
        relative = np.abs(solution.values - wanted) / wanted
        assert relative.max() <= (1e-4 if precision == "float32" else distance), precision


def test_ldbc_weights_may_be_left_out_when_reading(ingested):
    vertices = shared_data("graphs/p2p-31.v.gz")
    read, ignored = (ingested("graphs/p2p-31.e.gz", vertices=vertices, weights=w) for w in (True, False))
    assert (read.is_pattern, ignored.is_pattern) == (False, True)
    assert mg.pagerank(read, weight=False).digest() == mg.pagerank(ignored).digest()


@pytest.mark.parametrize("name", ["rectAP", "rectRA"])
def test_published_product_column_by_column(name, ingested):
    a, b, c = (ingested(f"spmv_ref/{name}{part}.mtx.gz") for part in "abc")
    b, c = b.to_scipy().toarray(), c.to_scipy().toarray()
    for kernel in ("csr-rows", "csr-serial"):
        assert np.abs(mg.spmv(a.on(kernel=kernel), b) - c).max() <= 1e-15, kernel
        for column in range(b.shape[1]):
            product = mg.spmv(a.on(kernel=kernel), b[:, column])
            assert np.abs(product - c[:, column]).max() <= 1e-15, (kernel, column)


def test_published_block_system(ingested):
    F, Bt, B, exact, rhs = (ingested(f"spmv_ref/lsc_{part}.mtx.gz") for part in ("F", "Bt", "B", "exact", "rhs"))
    exact, rhs = exact.to_scipy().toarray().ravel(), rhs.to_scipy().toarray().ravel()
    u, p = exact[:5890], exact[5890:]
    for kernel in ("csr-rows", "csr-serial"):
        y = mg.spmv(Bt.on(kernel=kernel), p, beta=1.0, y=mg.spmv(F.on(kernel=kernel), u))
        assert np.abs(y - rhs[:5890]).max() <= 2.1e-8, kernel
        assert np.abs(mg.spmv(B.on(kernel=kernel), u) - rhs[5890:]).max() <= 2.1e-8, kernel


MATRICES = [
    "1138_bus.mtx.gz",
    "494_bus.mtx",
    "Franz6_id1959_aug.mtx.gz",
    "M1-nedelec.mtx.gz",
    "NotreDame_www.mtx.gz",
    "arc130.mtx",
    "arrow.mtx.gz",
    "ash219.mtx",
    "bayer10.mtx.gz",
    "bcspwr10.mtx.gz",
    "bcsstk13.mtx.gz",
    "cryg2500.mtx.gz",
    "jagmesh7.mtx.gz",
    "lp_afiro.mtx.gz",
    "lp_e226.mtx",
    "mdual.mtx.gz",
    "olm1000.mtx.gz",
    "rajat01.mtx.gz",
    "sherman3.mtx.gz",
    "west0479.mtx",
    "xenon1.mtx.gz",
    "zenios.mtx.gz",
]

MATRIX_GRAPHS = [
    "1138_bus.mtx.gz",
    "NotreDame_www.mtx.gz",
    "arrow.mtx.gz",
    "bcspwr10.mtx.gz",
    "jagmesh7.mtx.gz",
    "mdual.mtx.gz",
    "rajat01.mtx.gz",
    "zenios.mtx.gz",
]
"""Square, and no negative value."""


def test_every_matrix_is_listed():
    names = {path.name for path in shared_data("matrices").iterdir()}
    assert names == {*MATRICES, "young1c.mtx"}


@pytest.fixture(scope="module")
def read_by_scipy():
    return cache(lambda name: scipy.io.mmread(shared_data(name), spmatrix=False).tocsr())


@pytest.mark.parametrize("name", MATRICES)
def test_product_agrees_with_scipy(name, ingested, read_by_scipy):
    whole, stored = read_by_scipy(f"matrices/{name}"), ingested(f"matrices/{name}", transpose=True)
    assert (stored.kind, stored.shape, stored.nnz) == ("matrix", whole.shape, whole.nnz)
    for side, wanted, A in (("A @ x", whole, stored), ("A.T @ x", whole.T.tocsr(), stored.T)):
        assert A.shape == wanted.shape, side
        x = np.random.default_rng(1).standard_normal((A.shape[1], 3))
        size = abs(wanted) @ abs(x)
        terms = np.diff(wanted.indptr)[:, None]
        assert (np.abs(A @ x - wanted @ x) <= 2 * terms * 2.0**-53 * size).all(), side
        assert (np.abs(A @ x[:, 0] - wanted @ x[:, 0]) <= 2 * terms[:, 0] * 2.0**-53 * size[:, 0]).all(), side
        single = mg.spmv(A, x, precision="float32")
        assert single.dtype == np.float32, side
        assert (np.abs(single - wanted @ x) <= 4 * 2.0**-24 * size).all(), side


def test_complex_matrix_is_refused_by_name(tmp_path):
    with pytest.raises(SourceError, match=r"young1c\.mtx.*complex"):
        mg.ingest(shared_data("matrices/young1c.mtx"), tmp_path / "store.zarr")
    with pytest.raises(StoreNotFoundError):
        mg.open_matrix(tmp_path / "store.zarr")


GRAPHS = {
    "celegansneural.txt.gz": 297,
    "cnr-2000.txt.gz": 325557,
    "debian-bookworm-deps.txt.gz": 107123,
    "email-Eu-core.csv.gz": None,
    "ldbc-example-directed.e": None,
    "ldbc-example-undirected.e": None,
    "netscience.csv.gz": None,
    "p2p-31.e.gz": None,
    "pgp-strong-2009.txt.gz": 39796,
    "polblogs.txt.gz": 1490,
    "wiki-Vote.txt.gz": None,
}
"""Edge lists, with the number of vertices where they are 0..n-1; None where they are the ids that occur."""


def test_every_graph_is_listed():
    names = {path.name for path in shared_data("graphs").iterdir()}
    assert {n for n in names if ".txt" in n or ".csv" in n or ".e" in n} == set(GRAPHS)
    assert {n for n in names if ".mtx" in n} == {"harvard500.mtx"}


@pytest.fixture(scope="module")
def read_by_numpy():
    return cache(lambda name: np.loadtxt(shared_data(name), comments="#"))


ORACLE_L1 = 1e-11
"""How far the oracle's ranks may be from the exact ones: sums of 10^5 terms in float64."""


def check_ranks(A, arcs):
    wanted = rank_by_pushing(arcs)
    for precision in ("exact", "float64"):
        solution = mg.pagerank(A, tol=1e-13, max_iter=1000, precision=precision)
        assert solution.status is mg.Status.CONVERGED
        distance = np.abs(solution.values - wanted).sum()
        assert distance <= 1e-10
        assert distance <= solution.error_bound_l1 + ORACLE_L1
        assert abs(solution.values.sum() - 1) <= solution.error_bound_l1


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n == "cnr-2000.txt.gz" else ()) for n in GRAPHS]
)
def test_ranks_of_edge_lists_agree_with_scipy(name, ingested, read_by_numpy):
    columns = read_by_numpy(f"graphs/{name}").T
    ids, ends = np.unique(columns[:2], return_inverse=True)
    n = GRAPHS[name]
    source, target = columns[:2].astype(int) if n else ends.reshape(2, -1)
    weights = columns[2] if len(columns) > 2 else np.ones(columns.shape[1])
    arcs = sum_arcs(source, target, weights, (n or len(ids),) * 2)
    A = ingested(f"graphs/{name}")
    if A.is_pattern:
        arcs.data[:] = 1
    if n is None:
        np.testing.assert_array_equal(np.arange(A.shape[0]) if A.vertex_ids is None else A.vertex_ids, ids)
    assert (A.kind, A.shape, A.nnz, A.is_pattern) == ("graph", arcs.shape, arcs.nnz, len(columns) == 2)
    check_ranks(A, arcs)


@pytest.mark.parametrize("name", ["debian-bookworm-deps.txt.gz", "polblogs.txt.gz"])
def test_ranks_of_multigraphs_agree_with_scipy(name, ingested, read_by_numpy):
    source, target = read_by_numpy(f"graphs/{name}").T.astype(int)
    n = GRAPHS[name]
    A = ingested(f"graphs/{name}", duplicates="keep")
    assert A.nnz == len(source)
    check_ranks(A, sum_arcs(source, target, np.ones(len(source)), (n, n)))


@pytest.mark.parametrize("name", ["graphs/harvard500.mtx", *(f"matrices/{name}" for name in MATRIX_GRAPHS)])
def test_ranks_of_matrices_agree_with_scipy(name, ingested, read_by_scipy):
    arcs = read_by_scipy(name)
    A = ingested(name, kind="graph")
    assert (A.kind, A.shape, A.nnz) == ("graph", arcs.shape, arcs.nnz)
    check_ranks(A, arcs)


def test_other_matrices_are_no_graphs(read_by_scipy):
    """So that no graph is left out above."""
    for name in sorted({*MATRICES} - {*MATRIX_GRAPHS}):
        matrix = read_by_scipy(f"matrices/{name}")
        assert matrix.shape[0] != matrix.shape[1] or matrix.data.min() < 0, name
        assert sp.issparse(matrix), name
