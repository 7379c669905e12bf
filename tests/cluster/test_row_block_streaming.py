"""Rows that a device has no room for: the same ranks and products, on a cluster and in this process."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse

import mgspmv as mg
from mgspmv import partition
from mgspmv.cluster.connect import start_cuda
from mgspmv.errors import CapacityError, FormatError
from mgspmv.model import default_threads
from mgspmv.solvers.options import Reads
from tests.cluster.test_row_block_devices import count_devices, devices  # noqa: F401  # a fixture
from tests.support.pairwise import cover_pairs

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

HELD = {"host": "pinned memory", "store": "the store"}
BY_HELD = pytest.mark.parametrize("held", HELD)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of stores as those of devices, but no row is a large part of what a worker has: pieces are whole rows."""
    folder = tmp_path_factory.mktemp("stores")
    rng, n, nnz = np.random.default_rng(5), 9000, 150_000
    src, dst = rng.zipf(1.4, nnz).clip(1, n) - 1, (n * rng.random(nnz) ** 1.3).astype(np.int64)
    weights = rng.random(nnz) + 1e-3
    mg.ingest((src, dst), folder / "pattern", kind="graph", n_vertices=n)
    mg.ingest((src, dst, weights), folder / "weighted", kind="graph", n_vertices=n)
    mg.ingest((src, dst), folder / "dealt", kind="graph", n_vertices=n, order="dealt")
    mg.generate("stencil2d", folder / "grid", nx=90, ny=80, points=5, kind="graph", weights=False)
    mg.generate("rmat", folder / "rmat", scale=13, edge_factor=16, duplicates="keep")
    mg.ingest(scipy.sparse.random(3500, 500, 0.05, random_state=1, format="csr"), folder / "matrix")
    return folder


@pytest.fixture
def stores(folder: Path) -> dict[str, Any]:
    """They are opened for each test: what a matrix keeps of its rows it does not tell of again."""
    return {path.name: mg.open_matrix(path) for path in folder.iterdir()}


def find_limits(A, held, *, n=1, precision="exact", lays_out=True) -> dict[str, int]:
    """Memory that holds the vectors and a share of the rows, on devices; and on hosts only what loading takes.

    The least share with which the rows of each of n workers are held there: of few rows, the longest one alone may be
    more than half of a worker's.
    """
    info, indptr = A.info, A.stored.read_array("indptr")
    options: dict[str, Any] = {"precision": precision, "threads": max(1, default_threads() // n)}
    planner = partition.Planner(info, indptr, **options, lays_out=lays_out)
    workers = planner.plan_rows(n, device_memory=1 << 50).workers
    for share in (0.4, 0.5, 0.6, 0.7, 0.8, 0.9):
        limits = {"device_memory": max(w.vector_bytes + int(share * w.block_bytes) for w in workers)}
        if held == "store":
            limits["host_memory"] = max(w.load_bytes for w in workers)
        with suppress(CapacityError):
            plan = replace(planner, streams=True).plan_rows(n, **limits)
            if {w.held for w in plan.workers} == {held}:
                return limits
    raise AssertionError(f"no limits let all rows of {n} workers stream from the {held}")


def count_workers(client) -> int:
    return len(client.scheduler_info(n_workers=-1)["workers"])


@pytest.mark.parametrize(
    ("name", "held"),
    [
        ("pattern", "host"),
        ("weighted", "store"),
        ("dealt", "host"),
        ("grid", "store"),
        ("rmat", "host"),
        ("rmat", "store"),
    ],
)
def test_ranks_have_the_bits_of_this_process(name, held, devices, stores):  # noqa: F811
    A, n = stores[name], count_workers(devices)
    options: dict[str, Any] = {"tol": 1e-3, "dangling": "uniform"}
    wanted = mg.pagerank(A.on("cpu"), **options)
    limits = find_limits(A, held, n=n)
    with pytest.warns(UserWarning, match=f"of {n} GPUs do not fit in GPU memory: up to .* from {HELD[held]}"):
        distributed = A.distribute(devices, **limits)
    with distributed as D:
        assert {w.held for w in D.plan.workers} == {held}
        got = mg.pagerank(D, **options)
        assert got.values.tobytes() == wanted.values.tobytes()
        assert got.changes == wanted.changes
        assert got.error_bound_l1 == pytest.approx(wanted.error_bound_l1, rel=0.5)
        with pytest.raises(CapacityError, match="Rows are streamed only for products, and for PageRank in exact"):
            mg.pagerank(D.on(executor="tasks"))
        assert mg.pagerank(D, **options).values.tobytes() == wanted.values.tobytes()
    with pytest.warns(UserWarning, match=f"rows of 1 of 1 GPUs do not fit in GPU memory: up to .* from {HELD[held]}"):
        here = mg.pagerank(A.on("cuda", **find_limits(A, held)), **options)
    assert here.values.tobytes() == wanted.values.tobytes()
    assert here.changes == wanted.changes


@BY_HELD
def test_float32_ranks_have_the_bits_of_a_device_with_room(held, devices, stores):  # noqa: F811
    A, n = stores["rmat"], count_workers(devices)
    options: dict[str, Any] = {"tol": 1e-3, "precision": "float32"}
    with A.distribute(devices, precision="float32") as D:
        assert {w.held for w in D.plan.workers} == {"device"}
        wanted = mg.pagerank(D, **options)
    with pytest.warns(UserWarning, match="are streamed"):
        got = mg.pagerank(A.on(devices, **find_limits(A, held, n=n, precision="float32")), **options)
    assert got.values.tobytes() == wanted.values.tobytes()
    here = mg.pagerank(A.on("cuda"), **options)
    with pytest.warns(UserWarning, match="are streamed"):
        there = mg.pagerank(A.on("cuda", **find_limits(A, held, precision="float32")), **options)
    assert here.values.tobytes() == there.values.tobytes()


@cover_pairs(name=["matrix", "weighted", "pattern"], dtype=["float32", "float64"], held=list(HELD))
def test_products(name, dtype, held, devices, stores):  # noqa: F811
    import cupy

    A, n = stores[name], count_workers(devices)
    rng = np.random.default_rng(0)
    x, xs, y = (rng.random(shape).astype(dtype) for shape in (A.shape[1], (A.shape[1], 3), A.shape[0]))
    matrix = A.to_scipy()
    tolerance: dict[str, Any] = {"rtol": 2e-5 if dtype == "float32" else 1e-12}
    limits = find_limits(A, held, n=n, precision=dtype, lays_out=False)
    with pytest.warns(UserWarning, match="are streamed"):
        distributed = A.on(devices, **limits).distribute_as_placed(Reads(dtype, build_layout=False))
    with distributed as D:
        assert {w.held for w in D.plan.workers} == {held}
        for _ in range(2):
            np.testing.assert_allclose(D @ x, matrix @ x, **tolerance)
        np.testing.assert_allclose(cupy.asnumpy(D @ cupy.asarray(xs)), matrix @ xs, **tolerance)
        product = mg.spmv(D, x, alpha=2.0, beta=-0.5, y=y)
        np.testing.assert_allclose(product, 2.0 * (matrix @ x) - 0.5 * y, rtol=1e-3 if dtype == "float32" else 1e-9)
    own = find_limits(A, held, precision=dtype, lays_out=False)
    here = A.on("cuda", **own)
    with pytest.warns(UserWarning, match="are streamed"):
        np.testing.assert_allclose(mg.spmv(here, x, precision=dtype), matrix @ x, **tolerance)
    np.testing.assert_allclose(mg.spmv(here, x, precision=dtype), matrix @ x, **tolerance)
    np.testing.assert_allclose(mg.spmv(here, xs, precision=dtype), matrix @ xs, **tolerance)
    with pytest.warns(UserWarning, match="are streamed"):
        named = mg.spmv(A.on("cuda", kernel="csr-split", **own), x, precision=dtype)
    assert mg.spmv(here, x, precision=dtype).tobytes() == named.tobytes()
    ell = pytest.raises(FormatError, match="kernel 'ell' needs all rows on the device, where they do not fit")
    with pytest.warns(UserWarning, match="are streamed"), ell:
        mg.spmv(A.on("cuda", kernel="ell", **own), x, precision=dtype)


def test_what_cannot_come_by_is_refused_before_it_is_loaded(devices, stores):  # noqa: F811
    A, n = stores["weighted"], count_workers(devices)
    limits = find_limits(A, "host", n=n)
    with pytest.raises(CapacityError, match=r"needs .* \w?B of device memory on one of them, which has"):
        A.distribute(devices, transport="peer", **limits)
    with pytest.raises(CapacityError, match=r"needs .* \w?B of device memory on one of them, which has"):
        mg.pagerank(A.on(devices, **limits), precision="float64")
    with pytest.raises(CapacityError, match="no number of workers of that size suffices"):
        mg.pagerank(A.on(devices, device_memory=1000))


@pytest.mark.parametrize("held", ["device", "host", "store"])
def test_plans_say_where_rows_are_held(held, devices, stores):  # noqa: F811
    A, n = stores["rmat"], count_workers(devices)
    limits = {} if held == "device" else find_limits(A, held, n=n)
    plan = A.plan(client=devices, **limits)
    assert [w.held for w in plan.workers] == [held] * n
    here = A.plan(backend="cuda", **({} if held == "device" else find_limits(A, held)))
    assert here.workers[0].held == held


def test_workers_of_which_one_has_room(stores):
    """Devices that have all of their rows and one that has not make the same calls."""
    if count_devices() < 2:
        pytest.skip("needs 2 GPUs")
    from distributed import Client

    A = stores["rmat"]
    wanted = mg.pagerank(A.on("cpu"), tol=1e-3)
    memory = find_limits(A, "host", n=2)["device_memory"]
    with start_cuda(2) as cluster, Client(cluster) as client, pytest.MonkeyPatch.context() as patch:
        place = partition.Planner._place

        def place_unevenly(planner: Any, worker: Any, device: int, host: int | None) -> Any:
            return place(planner, worker, memory if worker.start else 1 << 40, host)

        patch.setattr(partition.Planner, "_place", place_unevenly)
        with pytest.warns(UserWarning, match="1 of 2 GPUs do not fit"):
            distributed = A.distribute(client)
        with distributed as D:
            assert [w.held for w in D.plan.workers] == ["device", "host"]
            got = mg.pagerank(D, tol=1e-3)
            assert got.values.tobytes() == wanted.values.tobytes()
            assert len(mg.pagerank(D, norm="fixed", max_iter=33).events) == 33
