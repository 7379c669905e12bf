"""The Python API: hard matrices from every kind of source to products, compared with SciPy; and errors."""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

import mgspmv as mg
from mgspmv.errors import (
    CapacityError,
    KindError,
    OptionError,
    ShapeError,
    SourceNotFoundError,
    StoreError,
    StoreExistsError,
    StoreNotFoundError,
)
from mgspmv.ingest.generate import UniformSource
from mgspmv.kernels.device import has_device
from mgspmv.model import Event, MatrixInfo, Status
from tests.support.hearing import on_phases
from tests.support.matrices import HARD
from tests.support.pairwise import cover_pairs
from tests.support.placed import call_placed


@pytest.fixture(autouse=True)
def _in_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def make_coo(hard, has_values=True):
    values = np.array(hard.values, np.float64) if has_values else np.ones(len(hard.entries), bool)
    places = (np.array(hard.rows, np.int64), np.array(hard.cols, np.int64))
    return sp.coo_array((values, places), shape=hard.shape)


def write_text(hard, path, has_values=True):
    field = "real" if has_values else "pattern"
    scipy.io.mmwrite(path, make_coo(hard), field=field, symmetry="general", precision=17)
    if not hard.entries:  # SciPy calls every matrix without entries real
        Path(path).write_text(Path(path).read_text().replace("real", field))
    return path


def merge(entries, rule):
    """Values by place, by the rule and in the order of the source; `keep` multiplies as `sum` does."""
    places = {}
    for row, col, value in entries:
        if rule == "first":
            places.setdefault((row, col), value)
        else:
            places[row, col] = places.get((row, col), 0) + value
    return places


def to_dense(places, shape):
    dense = np.zeros(shape)
    for place, value in places.items():
        dense[place] = value
    return dense


# --- the hard matrices, from every source ----------------------------------------------------------------------------

VALUES_AND_RULES = {
    "sum": (True, "sum"),
    "first": (True, "first"),
    "keep": (True, "keep"),
    "pattern, first": (False, "first"),
    "pattern, keep": (False, "keep"),
}
"""Whether the entries have values, and the rule for duplicates."""


@cover_pairs(route=["scipy", "text"], values_and_rule=VALUES_AND_RULES)
def test_hard_matrices_from_every_source(route, values_and_rule):
    has_values, rule = values_and_rule
    for name, hard in HARD.items():
        entries = hard.entries if has_values else [(i, j, 1.0) for i, j, _ in hard.entries]
        source = make_coo(hard, has_values) if route == "scipy" else write_text(hard, "a.mtx", has_values)
        A = mg.ingest(source, duplicates=rule, transpose=True)
        places = merge(entries, rule)
        assert (A.shape, A.kind, A.is_pattern) == (hard.shape, "matrix", not has_values), name
        assert A.nnz == (len(entries) if rule == "keep" else len(places)), name
        dense = to_dense(places, hard.shape)
        assert (A.to_scipy().toarray() == dense).all(), name
        assert (A.T.to_scipy().toarray() == dense.T).all(), name
        assert A.info.min_weight == (min(A.to_scipy().data) if has_values and A.nnz else None), name


@cover_pairs(kind=["graph", "matrix"], values_and_rule=VALUES_AND_RULES)
def test_hard_matrices_from_arrays(kind, values_and_rule):
    has_values, rule = values_and_rule
    for name, hard in HARD.items():
        if hard.shape[0] != hard.shape[1]:
            continue
        entries = hard.entries if has_values else [(i, j, 1.0) for i, j, _ in hard.entries]
        arrays = (np.array(hard.rows, int), np.array(hard.cols, int), *([np.array(hard.values)] if has_values else []))
        A = mg.ingest(arrays, duplicates=rule, kind=kind, n_vertices=hard.shape[0])
        dense = to_dense(merge(entries, rule), hard.shape)
        assert (A.shape, A.vertex_ids) == (hard.shape, None), name
        assert (A.to_scipy().toarray() == (dense.T if kind == "graph" else dense)).all(), name
        if kind == "graph":
            kept = [(i, j) for i, j, _ in entries] if rule == "keep" else list(merge(entries, rule))
            degree = Counter(i for i, _ in kept)
            assert A.stored.read_array("out_degree").tolist() == [degree[i] for i in range(hard.shape[0])], name
            if has_values:
                weight = A.stored.read_array("out_weight")
                np.testing.assert_allclose(weight, dense.sum(axis=1), rtol=1e-15, err_msg=name)


def test_arrays_without_a_number_of_vertices_are_numbered_by_the_ids_that_occur():
    for name, hard in HARD.items():
        if not hard.entries:
            continue
        rows, cols = np.array(hard.rows) * 10 - 7, np.array(hard.cols) * 10 - 7
        A = mg.ingest((rows, cols, np.array(hard.values)), kind="matrix")
        ids = np.union1d(rows, cols)
        whole = to_dense(merge(hard.entries, "sum"), (max(hard.shape),) * 2)
        assert A.vertex_ids.tolist() == ids.tolist(), name
        assert (A.to_scipy().toarray() == whole[np.ix_((ids + 7) // 10, (ids + 7) // 10)]).all(), name


def test_a_pattern_cannot_be_summed():
    for name in ("0 nonzeros", "duplicates"):
        for source in (make_coo(HARD[name], has_values=False), write_text(HARD[name], "a.mtx", has_values=False)):
            with pytest.raises(OptionError, match="duplicates='sum' has nothing to sum"):
                mg.ingest(source, duplicates="sum")


def test_the_routes_give_the_same_digest():
    for hard in (HARD[name] for name in ("duplicates apart", "unsorted", "no rows", "mixed signs")):
        one = mg.ingest(make_coo(hard)).info
        other = mg.ingest(write_text(hard, "a.mtx")).info
        assert (one.digest, one.nbytes) == (other.digest, other.nbytes)


COO = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(-5, 5)), max_size=25)


@given(entries=COO, kind=st.sampled_from(["graph", "matrix"]), dtype=st.sampled_from([np.int32, np.float32, float]))
def test_random_entries_are_those_of_scipy(entries, kind, dtype):
    rows, cols, values = (np.array([e[k] for e in entries], int) for k in range(3))
    coo = sp.coo_array((values.astype(dtype), (rows, cols)), shape=(5, 5))
    got, wanted = mg.ingest(coo, kind=kind, duplicates="sum").to_scipy(), coo.tocsr()
    wanted = (wanted.T if kind == "graph" else wanted).tocsr()
    wanted.sort_indices()
    for part in ("indptr", "indices", "data"):
        np.testing.assert_array_equal(getattr(got, part), getattr(wanted, part))
    assert got.has_sorted_indices


# --- products --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_hard_products(precision):
    for name, hard in HARD.items():
        A = mg.ingest(make_coo(hard), transpose=True)
        whole = to_dense(merge(hard.entries, "sum"), hard.shape)
        rng = np.random.default_rng(1)
        for matrix, wanted in ((A, whole), (A.T, whole.T)):
            x, y = rng.random(wanted.shape[1]), rng.random(wanted.shape[0])
            one = mg.spmv(matrix, x, alpha=-1.5, beta=0.5, y=y, precision=precision)
            error = np.abs(one - (-1.5 * (wanted @ x) + 0.5 * y))
            scale = 1.5 * (abs(wanted) @ x) + y
            assert one.dtype == precision, name
            assert (error <= 8 * np.finfo(precision).eps * scale).all(), name


@pytest.fixture(scope="module")
def wide():
    """A matrix of 3 rows and 7 columns, and SciPy's."""
    return mg.ingest(make_coo(HARD["wide"]), transpose=True), make_coo(HARD["wide"]).tocsr()


STRIDED = np.arange(42, dtype=np.float64).reshape(14, 3) / 8


VECTORS = [
    np.arange(7),
    np.arange(7, dtype=np.int8),
    np.arange(7, dtype=np.uint64),
    np.arange(7) % 2 == 0,
    [1, 2, 3, 4, 5, 6, 7],
    (0.5,) * 7,
    np.arange(7, dtype=np.float16),
    np.arange(7, dtype=">f8"),
    STRIDED[::2, 1],
    STRIDED[:7, 0][::-1],
    STRIDED[::2],
    np.asfortranarray(STRIDED[:7]),
    STRIDED[:3].reshape(1, 9).T[:7, :],
    np.arange(14).reshape(7, 2).tolist(),
    np.empty((7, 0)),
]


def test_vectors_of_every_sort(wide):
    A, matrix = wide
    for x in VECTORS:
        before = np.array(x)
        got = A @ x
        assert (got.dtype, got.flags.c_contiguous) == (np.float64, True), x
        np.testing.assert_allclose(got, matrix @ np.asarray(x, np.float64), rtol=1e-15, atol=1e-15, err_msg=f"{x}")
        np.testing.assert_array_equal(np.array(x), before)


def test_dtype_of_the_product():
    for stored, of_x, wanted in (
        ("float32", np.float32, np.float32),
        ("float32", np.float64, np.float64),
        ("float64", np.float32, np.float64),
        ("float64", np.float64, np.float64),
        (None, np.float32, np.float32),
        ("float32", np.int32, np.float64),
        (None, np.int32, np.float64),
    ):
        A = mg.ingest(make_coo(HARD["ring"]), dtype=stored, weights=False if stored is None else None)
        assert (A @ np.ones(7, of_x)).dtype == wanted, (stored, of_x)
        assert mg.spmv(A, np.ones(7, of_x), precision="float32").dtype == np.float32, (stored, of_x)
        assert mg.spmv(A, np.ones(7, of_x), precision="float64").dtype == np.float64, (stored, of_x)


@pytest.mark.parametrize("kernel", ["auto", "csr-rows", "csr-serial", "csr-split", "bsr"])
def test_alpha_beta_and_y(wide, kernel):
    A, matrix = wide
    rng = np.random.default_rng(2)
    for columns in ((), (1,), (5,)):
        x, y = rng.random((7, *columns)), rng.random((3, *columns))
        before = y.copy()
        got = mg.spmv(A.on(kernel=kernel, threads=2), x, alpha=2.0, beta=-0.5, y=y)
        np.testing.assert_allclose(got, 2 * (matrix @ x) - 0.5 * y, rtol=1e-14)
        assert (y == before).all()
        assert not np.shares_memory(got, y)


@pytest.mark.parametrize("y", [np.full(3, np.nan), np.ones(99), "no vector"], ids=["NaN", "longer", "text"])
def test_y_is_not_read_when_beta_is_0(wide, y):
    A, matrix = wide
    for precision, shape in product(("float32", "float64"), ((7,), (7, 2), (7, 0))):
        got = mg.spmv(A, np.ones(shape), beta=0.0, y=y, precision=precision)
        assert got.dtype == precision
        np.testing.assert_allclose(got, matrix @ np.ones(shape), rtol=np.finfo(precision).eps)


def test_alpha_of_0_leaves_y(wide):
    assert mg.spmv(wide[0], np.ones(7), alpha=0.0, beta=2.0, y=[1, 2, 3]).tolist() == [2, 4, 6]


@pytest.mark.parametrize(
    ("x", "options", "error", "message"),
    [
        (np.ones(9), {}, ShapeError, "x has 9 entries but the matrix has 7 columns; pass x of length n_cols"),
        (np.ones((9, 2)), {}, ShapeError, "x has 9 entries but the matrix has 7 columns; pass x of shape (n_cols, k)"),
        (np.ones((7, 1, 1)), {}, ShapeError, "x must have one or two dimensions, not 3"),
        (1.0, {}, ShapeError, "x must have one or two dimensions, not 0"),
        (np.ones(7) * 1j, {}, OptionError, "x must hold real numbers, not complex128"),
        (np.ones(7, object), {}, OptionError, "x must hold real numbers, not object"),
        (None, {}, OptionError, "x must hold real numbers, not object"),
        (np.ones(7, "M8[s]"), {}, OptionError, "x must hold real numbers, not datetime64[s]"),
        (["a"] * 7, {}, OptionError, "x must hold real numbers, not <U1"),
        (sp.csr_array(np.ones((7, 1))), {}, OptionError, "x must be dense; pass x.toarray()"),
        (
            np.ones(7),
            {"beta": 1, "y": np.ones(4)},
            ShapeError,
            "y has 4 entries but the matrix has 3 rows; pass y of length n_rows",
        ),
        (
            np.ones(7),
            {"beta": 1, "y": np.ones((3, 2))},
            ShapeError,
            "y has shape (3, 2) but A @ x has (3,); pass y of that shape",
        ),
        (
            np.ones((7, 2)),
            {"beta": 1, "y": np.ones((4, 2))},
            ShapeError,
            "y has 4 entries but the matrix has 3 rows; pass y of shape (n_rows, k)",
        ),
        (np.ones(7), {"beta": 1, "y": np.ones(3) * 1j}, OptionError, "y must hold real numbers, not complex128"),
        (np.ones(7), {"beta": 1, "y": sp.csr_array((3, 1))}, OptionError, "y must be dense; pass y.toarray()"),
        (np.ones(7), {"beta": 1, "y": 5.0}, ShapeError, "y must have one or two dimensions, not 0"),
        (np.ones(7), {"beta": 0.5}, OptionError, "beta=0.5 requires y; pass y=, or beta=0"),
        (
            np.ones(7),
            {"kernel": "ellpack"},
            OptionError,
            "kernel must be 'auto' or one of csr-rows, csr-serial, csr-scalar, csr-warp, csr-vector, csr-cached, "
            "csr-split, csr-compact, csr-many, ell, coo, dia, hyb, bsr, sell, column-sorted-tiles, not 'ellpack'",
        ),
        (np.ones(7), {"threads": 1.5}, OptionError, "threads must be an integer, not 1.5"),
        *(
            (np.ones(7), {"precision": p}, OptionError, f"precision must be one of 'float32', 'float64', not {p!r}")
            for p in ("exact", "float16", "", 32)
        ),
    ],
)
def test_products_that_are_refused(x, options, error, message):
    A = mg.ingest(make_coo(HARD["wide"]))
    with pytest.raises(error) as caught:
        call_placed(mg.spmv, A, x, **options)
    assert str(caught.value) == message


@pytest.mark.parametrize("client", [object(), 7, ["tcp://a:8786"]])
def test_what_is_no_cluster_is_refused(client):
    A = mg.ingest(make_coo(HARD["ring"]), "ring.zarr", kind="graph")
    for work in (
        lambda: mg.spmv(A.on(client), np.ones(7)),
        lambda: mg.pagerank(A.on(client)),
        lambda: A.distribute(client),
    ):
        with pytest.raises(OptionError) as caught:
            work()
        wanted = "client must be a distributed.Client, the address of a scheduler or a cluster"
        assert str(caught.value) == str(OptionError(f"{wanted}, not {client!r}"))


def test_a_name_of_weights_is_not_for_what_is_stored():
    with pytest.raises(OptionError, match="weight must be one of True, False, not 'cost'"):
        mg.ingest(make_coo(HARD["ring"])).distribute("tcp://127.0.0.1:1", weight="cost")


def test_a_matrix_in_memory_is_not_given_to_a_cluster():
    A = mg.ingest(make_coo(HARD["ring"]), kind="graph")
    for work in (
        lambda: mg.spmv(A.on("tcp://127.0.0.1:1"), np.ones(7)),
        lambda: mg.pagerank(A.on("tcp://127.0.0.1:1")),
        lambda: A.distribute("tcp://127.0.0.1:1"),
    ):
        with pytest.raises(OptionError, match="is in the memory of this process, where the workers of a cluster"):
            work()


def test_ragged_vectors(wide):
    with pytest.raises(ShapeError, match="x must be a vector or columns of equal length"):
        wide[0] @ [[1, 2], [3]]


def test_wrong_length_of_x_for_any_shape():
    for name in ("wide", "no rows", "no columns", "0 nonzeros", "1 x 1 empty"):
        A = mg.ingest(make_coo(HARD[name]))
        with pytest.raises(ShapeError, match=f"x has {A.shape[1] + 1} entries"):
            A @ np.ones(A.shape[1] + 1)


# --- the opened matrix -----------------------------------------------------------------------------------------------


def test_attributes():
    A = mg.ingest(make_coo(HARD["wide"]))
    assert (A.shape, A.ndim, A.nnz, A.kind, A.is_pattern, A.dtype) == ((3, 7), 2, 5, "matrix", False, np.float64)
    assert (A.vertex_ids, A.is_transpose) == (None, False)
    assert repr(A) == f"<Matrix: matrix of shape (3, 7), 5 entries, float64, {A.info.url}>"
    assert repr(A.info) == (
        f"<MatrixInfo: matrix of shape (3, 7), 5 entries, float64, {A.info.version} of {A.info.url}>"
    )
    assert A.info.digest in A._repr_html_()
    B = mg.ingest((np.array([10, 30]), np.array([30, 20])))
    assert repr(B) == f"<Matrix: graph of shape (3, 3), 2 entries, pattern, {B.info.url}>"
    assert (B.dtype, B.vertex_ids.tolist()) == (None, [10, 20, 30])
    assert B.vertex_ids is B.vertex_ids


def test_transpose_of_products():
    A = mg.ingest(make_coo(HARD["wide"]), transpose=True)
    matrix = make_coo(HARD["wide"]).tocsr()
    assert (A.T.shape, A.T.is_transpose, A.T.kind, A.T.nnz) == ((7, 3), True, "matrix", 5)
    np.testing.assert_allclose(A.T @ np.ones(3), matrix.T @ np.ones(3), rtol=1e-15)
    assert A.T.T is A
    np.testing.assert_allclose(A.T.T @ np.ones(7), matrix @ np.ones(7), rtol=1e-15)


def test_transpose_of_a_graph_has_its_ids():
    A = mg.ingest((np.array([10, 30]), np.array([30, 20])), transpose=True)
    assert A.T.vertex_ids.tolist() == [10, 20, 30]
    np.testing.assert_array_equal(A.T.to_scipy().toarray(), [[0, 0, 1], [0, 0, 0], [0, 1, 0]])
    assert A.T.kind == "graph"


def test_missing_transpose():
    mg.ingest(make_coo(HARD["ring"]), "a.zarr")
    with pytest.raises(KindError) as caught:
        mg.open_matrix("a.zarr").T  # noqa: B018  # asking raises
    url = mg.open_matrix("a.zarr").info.url
    assert str(caught.value) == (
        f"{url} does not hold the transpose; add it with `mgspmv transpose`, and open the store again"
    )
    assert mg.transpose("a.zarr").T.shape == (7, 7)
    A = mg.ingest(make_coo(HARD["ring"]))
    with pytest.raises(KindError, match=r"^the matrix in memory has no transpose; pass transpose=True to ingest"):
        A.T  # noqa: B018
    assert mg.transpose(A).T.shape == (7, 7)


def test_memory_is_freed_and_loaded_again():
    x = np.ones(7)
    with mg.ingest(make_coo(HARD["ring"])) as A:
        assert not A._loaded.blocks
        first = A @ x
        mg.spmv(A, x, precision="float32")
        assert {dtype for dtype, _ in A._loaded.blocks} == {"float32", "float64"}
        assert A.block("float64") is A.block("float64")
    assert not A._loaded.blocks
    assert (A @ x == first).all()
    A.close()
    A.close()
    assert not A._loaded.blocks


def test_memory_is_freed_after_an_error():
    A = mg.ingest(make_coo(HARD["ring"]))
    with pytest.raises(ShapeError), A:  # noqa: PT012  # the first product loads, the second raises
        A @ np.ones(7)
        A @ np.ones(8)
    assert not A._loaded.blocks


def test_plan():
    A = mg.ingest(UniformSource(n_vertices=500, n_edges=4000))
    plan = A.plan(workers=3, host_memory="1 GiB", device_memory=10**9)
    assert (len(plan.workers), plan.bounds[0], plan.bounds[-1]) == (3, 0, 500)
    assert sum(w.nnz for w in plan.workers) == A.nnz
    assert not A._loaded.blocks
    small = A.plan(host_memory="10kB")
    assert not small.fits
    assert re.search(r"on 1 worker needs .* kB of host memory on one of them, which has 10 kB; ", small.shortage)
    assert "of device memory" in A.plan(device_memory=1000).shortage
    with pytest.raises(OptionError, match="memory must be a size such as 141GB, 16GiB or 500MB, not 'much'"):
        A.plan(host_memory="much")
    with pytest.raises(OptionError, match="workers must be at least 1, not 0"):
        A.plan(workers=0)


def test_plan_of_a_run_that_proves_the_highest():
    A = mg.ingest(UniformSource(n_vertices=500, n_edges=4000))
    for workers in (1, 3):
        with_proof, without = (A.plan(workers, stop=stop, threads=1) for stop in ("topk:9", "change"))
        for own, other in zip(with_proof.workers, without.workers, strict=True):
            assert (own.start, own.stop, own.vector_bytes) == (other.start, other.stop, other.vector_bytes)
            assert own.watch_bytes == 89 * (own.stop - own.start) + (90 * 30 if workers > 1 else 0)
            assert other.watch_bytes == 0
        assert with_proof.memory_bytes > without.memory_bytes
        assert with_proof.to_dict()["workers"][0]["watch_bytes"] > 0
    (single,) = A.plan(stop="topk:9", precision="float32").workers
    assert single.watch_bytes == 65 * 500
    (device,) = A.plan(device_memory="1GB", backend="cpu", stop="topk:9", threads=1).workers
    assert device.device_bytes == A.plan(device_memory="1GB", backend="cpu", threads=1).workers[0].device_bytes
    assert device.host_bytes == device.watch_bytes == 89 * 500 > device.load_bytes
    short = A.plan(host_memory=with_proof.memory_bytes + 30_000, stop="topk:9", threads=1)
    assert re.search(r"\(up to 44.5 kB of it for stop='topk:9', .*\); 2 workers of that size", short.shortage)
    for stop, message in (
        ("topk", "stop must be 'change', or 'topk:100'"),
        ("topk:500", "requests the 500 highest of 500 vertices; pass less than 500"),
    ):
        with pytest.raises(OptionError, match=message):
            A.plan(stop=stop)
    with pytest.raises(OptionError, match=r"stop='topk:2' is for PageRank, but .* of kind 'matrix'; leave it out"):
        mg.ingest(sp.eye_array(5)).plan(stop="topk:2")


def test_plan_of_rows_that_may_not_come_by():
    """Those of PageRank in float64, which has no layout; of a product they may."""
    A = mg.ingest(UniformSource(n_vertices=500, n_edges=4000))
    few = {"device_memory": 40_000, "backend": "cpu"}
    assert [A.plan(**few, precision=p).workers[0].held for p in ("exact", "float32")] == ["host"] * 2
    (whole,) = A.plan(device_memory="1GB", backend="cpu", precision="float64").workers
    assert (whole.layout_bytes, whole.held) == (None, "device")
    assert (
        "kB of device memory"
        in A.plan(device_memory=whole.device_bytes - 1, backend="cpu", precision="float64").shortage
    )
    M = mg.ingest(sp.random_array((500, 500), density=0.02, rng=np.random.default_rng(1)))
    (whole,) = M.plan(device_memory="1GB", backend="cpu").workers
    (worker,) = M.plan(device_memory=whole.device_bytes - 1, backend="cpu").workers
    assert (whole.held, worker.held, worker.layout_bytes) == ("device", "host", None)


@pytest.mark.skipif(has_device(), reason="there is a CUDA device")
@pytest.mark.parametrize("work", [lambda A: mg.spmv(A, np.ones(500)), mg.pagerank], ids=["spmv", "ranks"])
def test_memory_is_limited_on_cuda_only(work):
    A = mg.ingest(UniformSource(n_vertices=500, n_edges=4000))
    for limits in ({"device_memory": "1GB"}, {"host_memory": 10**9}, {"host_memory": 0}):
        with pytest.raises(OptionError, match="limit what a run on CUDA or on a cluster takes; leave them out with"):
            A.on("cpu", **limits)
        with pytest.raises(OptionError, match="limit what a run on CUDA takes, and this process computes on its host"):
            work(A.on(**limits))
    assert not A._loaded.blocks


def test_a_matrix_that_does_not_fit_is_not_loaded(monkeypatch):
    A = mg.ingest(UniformSource(n_vertices=500, n_edges=4000))
    monkeypatch.setattr("mgspmv.api.embedded.free_memory", lambda: 1000)
    for work in (lambda: A @ np.ones(500), lambda: mg.pagerank(A)):
        with pytest.raises(CapacityError, match="which has 1 kB"):
            work()
    assert not A._loaded.blocks
    monkeypatch.setattr("mgspmv.api.embedded.free_memory", lambda: 10**9)
    assert (A @ np.ones(500)).sum() == A.nnz


# --- ingest and generate ---------------------------------------------------------------------------------------------


def test_provenance_is_that_of_a_file():
    write_text(HARD["ring"], "a.mtx")
    info = mg.ingest("a.mtx", "a.zarr", kind="graph", symmetrize=True).info
    assert isinstance(info, MatrixInfo)
    assert mg.open_matrix("a.zarr").info == info
    provenance = info.provenance
    json.dumps(provenance)
    assert provenance["source"]["name"] == "a.mtx"
    assert len(provenance["source"]["sha256"]) == 64
    asked = provenance["options"]
    assert (asked["kind"], asked["symmetrize"], asked["self_loops"], "format" in asked) == (
        "graph",
        True,
        "keep",
        False,
    )
    assert provenance["program"] == f"mgspmv {mg.__version__}"
    assert provenance["created"].endswith("+00:00")


def test_provenance_has_the_options_of_the_edge_list(tmp_path):
    (tmp_path / "a.txt").write_text("0 1\n")
    (tmp_path / "a.v").write_text("0\n1\n2\n")
    info = mg.ingest("a.txt", "a.zarr", format="edge-list", vertices=tmp_path / "a.v", ids="int").info
    asked = info.provenance["options"]
    assert (asked["format"], asked["vertices"], asked["ids"]) == ("edge-list", str(tmp_path / "a.v"), "int")
    assert info.shape == (3, 3)


def test_a_taken_place_is_refused_before_the_source_is_read():
    mg.ingest(make_coo(HARD["ring"]), "a.zarr")
    with pytest.raises(StoreExistsError, match="overwrite"):
        mg.ingest("none.mtx", "a.zarr")
    with pytest.raises(SourceNotFoundError):
        mg.ingest("none.mtx", "a.zarr", overwrite=True)
    with pytest.raises(StoreExistsError, match="overwrite"):
        mg.generate("uniform", "a.zarr", n_vertices=3, n_edges=2)
    assert mg.open_matrix("a.zarr").shape == (7, 7)


def test_overwrite_replaces_the_matrix():
    old = mg.ingest(make_coo(HARD["ring"]), "a.zarr")
    info = mg.ingest(make_coo(HARD["wide"]), "a.zarr", overwrite=True).info
    assert mg.open_matrix("a.zarr").shape == (3, 7)
    assert info.version != old.info.version
    assert mg.verify("a.zarr") == []


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreError) as caught:
        mg.ingest(make_coo(HARD["ring"]), "file/a.zarr")
    assert str(caught.value) == (
        "cannot write file/a.zarr: not a directory; a parent folder in the path is a file; choose another path"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "graf"}, "kind must be one of 'graph', 'matrix', 'stochastic', not 'graf'"),
        ({"duplicates": "last"}, "duplicates must be one of 'sum', 'first', 'keep', 'error', not 'last'"),
        ({"self_loops": True}, "self_loops must be one of 'keep', 'drop', 'error', not True"),
        ({"dtype": "int32"}, "dtype must be one of 'int64', 'float32', 'float64', not 'int32'"),
        ({"symmetrise": True}, "ingest has no option 'symmetrise'; did you mean 'symmetrize'?"),
        ({"n_vertices": 9}, "n_vertices= applies to an edge list, but this source is read as coo_array; leave it out"),
        ({"format": "npz"}, "format='npz' applies to files, not to a coo_array; leave it out"),
    ],
)
def test_options_of_ingest(options, message):
    with pytest.raises(OptionError) as caught:
        mg.ingest(make_coo(HARD["ring"]), "a.zarr", **options)
    assert str(caught.value) == message
    with pytest.raises(StoreNotFoundError):
        mg.open_matrix("a.zarr")


def test_generate():
    A = mg.generate("rmat", "a.zarr", scale=5, edge_factor=4, seed=3, symmetrize=True, self_loops="drop")
    matrix = A.to_scipy().toarray()
    assert (A.shape, A.kind) == ((32, 32), "graph")
    assert (matrix == matrix.T).all()
    assert not np.diag(matrix).any()
    assert A.info.provenance["options"]["symmetrize"] is True
    assert mg.generate("stencil3d", nx=2, ny=2, nz=2).kind == "matrix"
    assert mg.generate("stencil2d", "b.zarr", nx=3, ny=4).info.shape == (12, 12)


def test_progress():
    heard = []
    report = lambda *args: heard.append(args)  # noqa: E731  # handed on by name
    mg.ingest(make_coo(HARD["ring"]), "a.zarr", transpose=True, progress=on_phases(report))
    phases = list(dict.fromkeys(phase for phase, _, _ in heard))
    assert phases == ["read", "sort and write", "write the transpose"]
    assert [done for phase, done, _ in heard if phase == "read"] == [7]
    assert all(total is None or done <= total for _, done, total in heard)
    heard.clear()
    mg.generate("uniform", "b.zarr", n_vertices=5, n_edges=9, progress=on_phases(report))
    assert {phase for phase, _, _ in heard} == {"read", "sort and write"}
    heard.clear()
    assert mg.verify("a.zarr", progress=on_phases(report)) == []
    assert heard


# --- the package -----------------------------------------------------------------------------------------------------


def test_every_public_name_is_documented():
    for name in mg.__all__:
        assert len(getattr(mg, name).__doc__) > 20, name
    assert (mg.Event, mg.Status) == (Event, Status)


def test_public_methods_are_documented():
    plain = {"shape", "ndim", "nnz", "kind"}
    for name, member in vars(mg.Matrix).items():
        if not name.startswith("_") and name not in plain and (callable(member) or isinstance(member, property)):
            assert member.__doc__, name


def test_product_from_the_left_is_that_of_the_transpose():
    matrix = scipy.sparse.random_array((5, 3), density=0.5, rng=np.random.default_rng(8))
    A, x = mg.ingest(matrix, transpose=True), np.arange(10.0).reshape(2, 5)
    np.testing.assert_allclose(x @ A, x @ matrix.toarray())
    np.testing.assert_allclose(x[0] @ A, x[0] @ matrix.toarray())
    with pytest.raises(KindError, match=r"pass transpose=True to ingest"):
        x @ mg.ingest(matrix)
