"""Matrices on clusters: products with the bits that this process computes, and how long workers hold them."""

from __future__ import annotations

import gc
import re
import shutil
import warnings
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from distributed import Client

import mgspmv as mg
from mgspmv.errors import (
    CapacityError,
    ChecksumError,
    ClosedError,
    KindError,
    MissingChunkError,
    OptionError,
    SchedulerNotFoundError,
    ShapeError,
    StoreError,
    StoreNotFoundError,
)
from mgspmv.partition import Planner, warn_of_streaming
from tests.support.clusters import find_alive, find_held
from tests.support.matrices import HARD
from tests.support.placed import call_placed
from tests.support.stores import find_group, make_scipy
from tests.support.waiting import wait_for


def store_matrix(source, path, **options):
    return mg.ingest(source, path, **{"kind": "matrix", "overwrite": True, **options})


def check_bits(got, wanted, name=""):
    assert isinstance(got, np.ndarray), name
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape), name
    assert got.tobytes() == wanted.tobytes(), name


@pytest.mark.parametrize("n_workers", [pytest.param(1, marks=pytest.mark.weekly), 3])
def test_products_of_hard_matrices(n_workers, in_process, tmp_path):
    rng, client = np.random.default_rng(1), in_process(n_workers)
    for name, hard in HARD.items():
        coo = sp.coo_array((hard.values, (hard.rows, hard.cols)), shape=hard.shape)
        A = store_matrix(coo, tmp_path / "matrix.zarr", transpose=True)
        for matrix in (A, A.T):
            x, y = rng.random((matrix.shape[1], 2)), rng.random((matrix.shape[0], 2))
            options = {"alpha": -1.5, "beta": 0.5, "y": y}
            with matrix.distribute(client) as D:
                assert D.bounds[-1] == matrix.shape[0], name
                check_bits(D @ x[:, 0], matrix @ x[:, 0], name)
                single = options | {"precision": "float32"}
                check_bits(mg.spmv(D, x, **single), mg.spmv(matrix, x, **single), name)
                if matrix is A:
                    check_bits(mg.spmv(D, x, **options), mg.spmv(matrix, x, **options), name)


@pytest.fixture(scope="module")
def rectangle(tmp_path_factory):
    """A matrix of 300 rows and 170 columns with its transpose."""
    return store_matrix(make_scipy(300, 170, 0.05), tmp_path_factory.mktemp("wide") / "matrix.zarr", transpose=True)


@pytest.fixture(scope="module")
def spread(rectangle, _client):
    """That matrix on 4 processes."""
    with rectangle.distribute(_client) as D:
        yield D


STRIDED = np.random.default_rng(0).random((340, 3))


VECTORS = {
    "integers": np.arange(170),
    "booleans": np.arange(170, dtype=np.int8) % 3 == 0,
    "float32": np.arange(170, dtype=np.float32),
    "big-endian": np.arange(170, dtype=">f8"),
    "list": list(range(170)),
    "strided": STRIDED[::2, 1],
    "backwards": STRIDED[:170, 0][::-1],
    "strided columns": STRIDED[::2],
    "Fortran": np.asfortranarray(STRIDED[:170]),
    "one column": STRIDED[:170, :1],
    "no columns": np.empty((170, 0)),
}


def test_vectors_of_every_sort(rectangle, spread, client):
    for name, x in VECTORS.items():
        before = np.array(x)
        check_bits(spread @ x, rectangle @ x, name)
        np.testing.assert_array_equal(np.array(x), before, name)


def test_y_is_not_read_when_beta_is_0(rectangle, spread, client):
    check_bits(mg.spmv(spread, np.ones(170), y=np.full(300, np.nan)), rectangle @ np.ones(170))


def test_products_are_refused_as_in_this_process(rectangle, spread, client):
    for x, options, error in [
        (np.ones(9), {}, ShapeError),
        (np.ones((9, 2)), {}, ShapeError),
        (np.ones((170, 1, 1)), {}, ShapeError),
        (1.0, {}, ShapeError),
        (np.ones(170) * 1j, {}, OptionError),
        (["a"] * 170, {}, OptionError),
        (sp.csr_array(np.ones((170, 1))), {}, OptionError),
        (np.ones(170), {"beta": 1, "y": np.ones(4)}, ShapeError),
        (np.ones(170), {"beta": 1, "y": np.ones((300, 2))}, ShapeError),
        (np.ones(170), {"beta": 1}, OptionError),
        (np.ones(170), {"kernel": "csr"}, OptionError),
        (np.ones(170), {"threads": 0}, OptionError),
        (np.ones(170), {"precision": "exact"}, OptionError),
    ]:
        with pytest.raises(error) as wanted:
            call_placed(mg.spmv, rectangle, x, **options)
        with pytest.raises(error) as caught:
            call_placed(mg.spmv, spread, x, **options)
        assert str(caught.value) == str(wanted.value), options


def test_products_from_the_left_are_refused(spread, client):
    for x in [np.ones(300), [1.0] * 300, np.ones((2, 300))]:
        with pytest.raises(KindError) as caught:
            x @ spread
        assert str(caught.value) == (
            "x @ D needs the transpose on the cluster: add it to the store with `mgspmv transpose`, distribute A.T, "
            "and compute A.T.distribute(client) @ x"
        ), type(x)


@pytest.fixture
def graph(tmp_path):
    """A graph that a test may change the store of."""
    return store_matrix(make_scipy(50, 50), tmp_path / "graph.zarr", kind="graph")


def test_close_frees_at_once(graph, client):
    held, alive = find_held(client), find_alive(client, collect=True)
    D = graph.distribute(client)
    mg.pagerank(D)
    mg.pagerank(D.on(executor="tasks"))
    D @ np.ones(50)
    assert len(find_held(client)) == 4
    assert find_held(client) != held
    D.close()
    assert find_held(client) == held
    left = {(worker, name): n for worker, counts in find_alive(client).items() for name, n in counts.items()}
    # Workers may also have freed what earlier tests left.
    assert all(n <= alive.get(worker, {}).get(name, 0) for (worker, name), n in left.items()), left


def test_what_is_not_closed_is_freed_with_the_object(graph, client):
    held = find_held(client)
    D = graph.distribute(client)
    assert find_held(client) != held
    del D
    gc.collect()
    assert wait_for(lambda: find_held(client) == held)


def test_what_is_not_closed_is_freed_with_the_client(graph, client):
    held = find_held(client)
    with Client(client.scheduler.address, set_as_default=False) as other:
        D = graph.distribute(other)
        assert find_held(client) != held
    assert wait_for(lambda: find_held(client) == held)
    for use in (lambda: D @ np.ones(50), lambda: mg.pagerank(D)):
        with pytest.raises(SchedulerNotFoundError) as caught:
            use()
        assert str(caught.value) == "the connection to the scheduler was lost; start the cluster again"
    D.close()


def test_use_after_close(graph, client):
    with graph.distribute(client) as D:
        assert repr(D) == (
            f"<DistributedMatrix: graph of shape (50, 50), {graph.nnz} entries, float64, on 4 workers of "
            f"{client.scheduler.address}>"
        )
        assert D.workers == (0, 1, 2, 3)
        assert str(D.cluster) in D._repr_html_()
    D.close()
    assert repr(D).endswith(", closed>")
    message = f"the distributed matrix of {graph.info.url} was closed; distribute it again"
    for use in (
        lambda: D @ np.ones(50),
        lambda: mg.spmv(D, np.ones(50)),
        lambda: mg.pagerank(D),
        lambda: mg.pagerank(D.on(executor="tasks")),
    ):
        with pytest.raises(ClosedError) as caught:
            use()
        assert str(caught.value) == message
    with graph.distribute(client) as again:
        check_bits(again @ np.ones(50), graph @ np.ones(50))


def test_a_cluster_is_given_as_client_address_or_object(graph, cluster, client):
    def count_clients():
        return len(cluster.scheduler.clients)

    n_clients = count_clients()
    for given in (client, cluster, cluster.scheduler_address):
        with graph.distribute(given) as D:
            check_bits(D @ np.ones(50), graph @ np.ones(50))
            assert mg.pagerank(D).digest() == mg.pagerank(graph).digest()
        assert wait_for(lambda: count_clients() == n_clients)
    assert client.status == "running"
    assert mg.pagerank(graph.on(cluster.scheduler_address)).digest() == mg.pagerank(graph).digest()


def refused(matrix, client, error):
    with pytest.raises(error) as caught:
        matrix.distribute(client)
    assert type(caught.value) is error
    return str(caught.value)


@pytest.fixture
def before_loading(monkeypatch):
    """Have something done after the matrix was planned here and before workers load it."""

    plan_rows = Planner.plan_rows

    def set_action(action):
        def plan(*args, **options):
            planned = plan_rows(*args, **options)
            action()
            return planned

        monkeypatch.setattr(Planner, "plan_rows", plan)

    yield set_action
    monkeypatch.undo()


def test_a_store_that_was_replaced(graph, client, before_loading, tmp_path):
    before_loading(lambda: mg.ingest(make_scipy(9, 9), graph.info.url, kind="graph", overwrite=True))
    message = refused(graph, client, StoreError)
    assert message.startswith("a worker cannot use the store: ")
    assert "was replaced, or this machine has another store at this path: open it again" in message
    refused(graph, client, MissingChunkError)  # found here, when it is planned
    before_loading(lambda: None)
    with mg.open_matrix(tmp_path / "graph.zarr").distribute(client) as D:
        assert D.shape == (9, 9)


def test_a_store_that_workers_do_not_see(graph, client, before_loading):
    before_loading(lambda: shutil.rmtree(graph.info.url))
    message = refused(graph, client, StoreNotFoundError)
    assert message.startswith("a worker cannot find the store: ")
    assert "graph.zarr" in message
    assert message.endswith("; the path or URL must name the same store on all workers")


@pytest.mark.parametrize(("damage", "error"), [("missing", MissingChunkError), ("flipped", ChecksumError)])
def test_a_store_that_is_damaged(damage, error, client, tmp_path):
    A = store_matrix(make_scipy(50, 50), tmp_path / "graph.zarr", kind="graph")
    [chunk] = [p for p in (find_group(tmp_path / "graph.zarr") / "indices" / "c").rglob("*") if p.is_file()]
    if damage == "missing":
        chunk.unlink()
    else:
        content = bytearray(chunk.read_bytes())
        content[len(content) // 2] ^= 1
        chunk.write_bytes(content)
    message = refused(A, client, error)
    assert message.startswith("a worker cannot use the store: ")


def test_more_than_the_memory_of_workers(graph, in_process, monkeypatch):
    need = graph.plan(4, threads=1).memory_bytes
    monkeypatch.setattr("mgspmv.cluster.agent.free_memory", lambda: 2 * need)
    message = refused(graph, in_process(2), CapacityError)
    assert "on 2 workers needs" in message
    assert re.search("; [34] workers of that size suffice$", message)
    monkeypatch.setattr("mgspmv.cluster.agent.free_memory", lambda: 2)
    assert "no number of workers of that size suffices" in refused(graph, in_process(2), CapacityError)


def test_what_proves_the_highest_must_fit_too(graph, in_process, monkeypatch):
    client, asked = in_process(2), {"stop": "topk:3", "max_iter": 500}
    need = graph.plan(2, threads=1, stop="topk:3").memory_bytes
    options = {"backend": "cpu", "threads": 1, "host_memory": need - 1}
    assert graph.plan(client=client, backend="cpu", threads=1, stop="topk:3").memory_bytes == need
    said = r"\(up to \S+ k?B of it for stop='topk:3', not needed with stop"
    assert re.search(said, graph.plan(client=client, **options, stop="topk:3").shortage)
    with pytest.raises(CapacityError, match=said):
        graph.distribute(client, **options, stop="topk:3")
    monkeypatch.setattr("mgspmv.cluster.agent.free_memory", lambda: 2 * need - 2)
    with pytest.raises(CapacityError, match=r"k?B of it for stop='topk:3'"):
        mg.pagerank(graph.on(client, threads=1), **asked)


@pytest.mark.parametrize("n_workers", [1, 3])
def test_a_plan_for_a_cluster_is_that_of_the_matrix_on_it(n_workers, graph, in_process):
    client = in_process(n_workers)
    held = find_held(client)
    plan = graph.plan(7, client=client, backend="cpu")  # as many as there are count
    assert find_held(client) == held  # nothing is loaded for it
    with graph.distribute(client, backend="cpu") as D:
        assert plan.bounds == D.bounds == D.plan.bounds
        assert plan == D.plan
    assert [(w.held, w.has_device) for w in plan.workers] == [("host", False)] * n_workers


def test_a_plan_for_a_cluster_keeps_to_the_memory_that_is_given(graph, in_process):
    need = graph.plan(2, threads=1).memory_bytes
    plan = graph.plan(client=in_process(2), backend="cpu", host_memory=need, threads=1)
    assert plan.memory_bytes == need
    options = {"backend": "cpu", "host_memory": need - 1, "threads": 1}
    said = r"on 2 workers needs \S+ k?B of host memory on one of them, which has"
    assert re.search(said, graph.plan(client=in_process(2), **options).shortage)
    with pytest.raises(CapacityError, match=said):
        graph.distribute(in_process(2), **options)


def test_memory_is_limited_by_each_call_that_distributes_a_matrix(graph, in_process):
    need = graph.plan(2, threads=1).memory_bytes
    placed = graph.on(in_process(2), backend="cpu", host_memory=need // 2, threads=1)
    for work in (lambda: mg.spmv(placed, np.ones(50)), lambda: placed @ np.ones(50), lambda: mg.pagerank(placed)):
        with pytest.raises(CapacityError, match=r"on 2 workers needs \S+ k?B of host memory on one of them, which has"):
            work()


def test_rows_that_come_by_are_warned_of(graph):
    """Not where all of them stay, in pieces for want of room to lay them out at once."""
    n = 1000
    indptr = np.arange(0, 1000 * n + 1, 1000, dtype=np.int64)
    info = replace(graph.info, shape=(n, n), nnz=1000 * n, dtype=None)

    def warn(device_memory, host_memory):
        memory = {"device_memory": device_memory, "host_memory": host_memory}
        planner = Planner(info, indptr, threads=1, lays_out=True, streams=True)
        warn_of_streaming(planner.plan_rows(2, **memory), stacklevel=1)

    rows = "the rows of 2 of 2 GPUs do not fit in GPU memory: up to"
    with pytest.warns(
        UserWarning, match=rf"^{rows} 0\.00122 GB per GPU are streamed from pinned memory in each iteration"
    ):
        warn(1_500_000, None)
    with pytest.warns(UserWarning, match=rf"^{rows} \S+ GB per GPU are streamed from the store in each iteration"):
        warn(1_500_000, 3_500_000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn(10**9, None)
        warn(5 * 10**6, None)
