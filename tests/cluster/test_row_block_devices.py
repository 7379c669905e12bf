"""Workers that compute on devices: the bits of this process, by any transport and executor."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from distributed import Client

import mgspmv as mg
from mgspmv.cluster.connect import start_cuda
from mgspmv.errors import CapacityError, ClusterError, OptionError, WorkerLostError
from tests.support.clusters import check_left, find_held, find_left, start_cluster
from tests.support.hearing import on_events
from tests.support.waiting import HANG_S, wait_for

pytestmark = [pytest.mark.gpu, pytest.mark.slow]


def count_devices() -> int:
    import cupy

    return int(cupy.cuda.runtime.getDeviceCount())


@pytest.fixture(scope="module", params=[1, 2, 4])
def devices(request: Any) -> Iterator[Client]:
    """A client of workers that have a device each."""
    if count_devices() < request.param:
        pytest.skip(f"needs {request.param} GPUs, and there are {count_devices()}")
    with start_cuda(request.param) as cluster, Client(cluster) as client:
        yield client


@pytest.fixture(scope="module")
def sharing() -> Iterator[Client]:
    """A client of two workers that share a device."""
    with start_cluster(2) as cluster, Client(cluster) as client:
        yield client


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Stores of graphs, with and without values, and of a matrix that is not square."""
    folder = tmp_path_factory.mktemp("stores")
    rng, n, nnz = np.random.default_rng(5), 3000, 40_000
    src, dst = rng.zipf(1.4, (2, nnz)).clip(1, n) - 1
    weights = rng.random(nnz) + 1e-3
    mg.ingest((src, dst), folder / "pattern", kind="graph", n_vertices=n)
    mg.ingest((src, dst, weights), folder / "weighted", kind="graph", n_vertices=n)
    mg.ingest((src, dst), folder / "dealt", kind="graph", n_vertices=n, order="dealt")
    mg.generate("stencil2d", folder / "grid", nx=90, ny=80, points=5, kind="graph", weights=False)
    mg.generate("rmat", folder / "rmat", scale=13, edge_factor=16, duplicates="keep")
    mg.generate("uniform", folder / "uniform", n_vertices=5000, n_edges=200_000)
    import scipy.sparse

    mg.ingest(scipy.sparse.random(700, 500, 0.05, random_state=1, format="csr"), folder / "matrix")
    return {path.name: mg.open_matrix(path) for path in folder.iterdir()}


GRAPHS = pytest.mark.parametrize("name", ["pattern", "weighted", "dealt", "grid", "rmat"])


@GRAPHS
def test_exact_ranks_have_the_bits_of_this_process(name, devices, stores):
    A = stores[name]
    options = {"tol": 1e-9, "dangling": "uniform"}
    wanted = mg.pagerank(A.on("cpu"), **options)
    with A.distribute(devices) as D:
        assert (D.backend, D.transport) == ("cuda", "nccl")
        for executor in ("supersteps", "tasks"):
            got = mg.pagerank(D.on(executor=executor), **options)
            assert got.values.tobytes() == wanted.values.tobytes()
            assert got.changes == wanted.changes
            assert got.error_bound_l1 == pytest.approx(wanted.error_bound_l1, rel=0.5)
            assert re.match(r"1 worker of |\d+ workers of ", got.matrix["hardware"])
            assert got.matrix["transport"] in (("ipc", "nccl") if executor == "supersteps" else ("client",))
    for transport in ("nccl", "peer"):
        got = mg.pagerank(A.on(devices, transport=transport), **options)
        assert got.values.tobytes() == wanted.values.tobytes()
        assert got.matrix["transport"] == transport


def test_exact_ranks_on_a_device_that_workers_share(sharing, stores):
    A = stores["weighted"]
    wanted = mg.pagerank(A.on("cpu"), tol=1e-9)
    with pytest.warns(UserWarning, match="2 workers share GPUs"):
        distributed = A.distribute(sharing)
    with distributed as D:
        assert (D.backend, D.transport) == ("cuda", "peer")
        for executor in ("supersteps", "tasks"):
            assert mg.pagerank(D.on(executor=executor), tol=1e-9).values.tobytes() == wanted.values.tobytes()
        with pytest.raises(
            OptionError, match=r"kernel='column-sorted-blocks' needs executor='supersteps' and transport='nccl', not"
        ):
            mg.pagerank(D.on(kernel="column-sorted-blocks"))
    with pytest.raises(ClusterError, match=r"transport='nccl' needs a separate GPU for each worker, and 2 workers"):
        A.distribute(sharing, transport="nccl")
    assert mg.pagerank(A.on(sharing, backend="cpu"), tol=1e-9).values.tobytes() == wanted.values.tobytes()


@pytest.mark.parametrize("name", ["weighted", "dealt"])
def test_centralities_are_the_same_with_either_executor(name, devices, stores):
    A, options = stores[name], {"tol": 1e-8, "max_iter": 1000}
    with A.distribute(devices) as D:
        for call in (mg.eigenvector_centrality, lambda M, **own: mg.katz(M, alpha=1e-4, beta=np.arange(3000.0), **own)):
            wanted = call(A.on("cpu"), **options)
            found = [call(D.on(executor=executor), **options) for executor in ("supersteps", "tasks")]
            np.testing.assert_allclose(found[1].values, found[0].values, rtol=1e-10, atol=1e-300)
            assert found[0].iterations == found[1].iterations
            np.testing.assert_allclose(found[0].values, wanted.values, rtol=1e-6, atol=1e-12)
            assert found[0].matrix["transport"] == "peer"
            assert all(n_bytes > 0 for n_bytes in found[0].memory["device_bytes"])


def test_devices_of_one_host_write_into_each_others_memory(devices, stores):
    """Where CUDA lets them, and each reads most columns; a grid, of which each reads few, goes by NCCL."""
    n = len(devices.scheduler_info(n_workers=-1)["workers"])
    for precision in ("exact", "float32"):
        with stores["uniform"].distribute(devices, precision=precision) as D:
            direct = [mg.pagerank(D, precision=precision, tol=1e-6) for _ in range(2)]
            assert {s.matrix["transport"] for s in direct} == {"ipc" if n > 1 else "nccl"}
        by_nccl = mg.pagerank(stores["uniform"].on(devices, transport="nccl"), precision=precision, tol=1e-6)
        assert {s.values.tobytes() for s in direct} == {by_nccl.values.tobytes()}
        assert by_nccl.events[-1].exchanged_bytes == direct[0].events[-1].exchanged_bytes
    assert mg.pagerank(stores["grid"].on(devices)).matrix["transport"] == "nccl"


def test_events_say_what_each_device_did(devices, stores):
    n = len(devices.scheduler_info(n_workers=-1)["workers"])
    with stores["rmat"].distribute(devices) as D:
        solution = mg.pagerank(D, norm="fixed", max_iter=33)
    for event in solution.events:
        assert len(event.product_s) == len(event.exchange_s) == len(event.wait_s) == n
        assert min(event.product_s) > 0
        assert min(event.wait_s) >= 0
        assert (min(event.exchanged_bytes) > 0) == (n > 1)
        assert min(event.memory_bytes) > 0
    assert len(solution.events) == 33
    assert {"product", "exchange", "start", "collect", "residual"} <= solution.seconds.keys()


@pytest.mark.parametrize("precision", ["float32", "float64", "exact"])
def test_precisions_and_kernels(precision, devices, stores):
    A = stores["weighted"]
    wanted = mg.pagerank(A.on("cpu"), tol=1e-5, precision=precision)
    for kernel in ("auto", "column-sorted-blocks", "sell-slices", "coo", "csr-split"):
        with A.distribute(devices, precision=precision) as D:
            if precision == "float64" and kernel in ("column-sorted-blocks", "sell-slices", "coo"):
                with pytest.raises(mg.errors.FormatError, match="adds in fixed point"):
                    mg.pagerank(D.on(kernel=kernel), tol=1e-5, precision=precision)
                continue
            got = mg.pagerank(D.on(kernel=kernel), tol=1e-5, precision=precision)
        rtol = 2e-5 if precision == "float32" else 1e-12
        np.testing.assert_allclose(got.values, wanted.values, rtol=rtol, err_msg=kernel)
        assert got.iterations == wanted.iterations, kernel


def test_several_runs_of_one_matrix(devices, stores):
    A = stores["weighted"]
    with A.distribute(devices) as D:
        for options in (
            {},
            {"weight": False},
            {"precision": "float32"},
            {"alpha": 0.5},
            {"personalization": {7: 1.0}},
        ):
            got, wanted = mg.pagerank(D, tol=1e-5, **options), mg.pagerank(A.on("cpu"), tol=1e-5, **options)
            if "precision" in options:
                np.testing.assert_allclose(got.values, wanted.values, rtol=2e-5)
            else:
                assert got.values.tobytes() == wanted.values.tobytes()


@pytest.mark.parametrize(
    ("name", "dtype"), [("matrix", np.float32), ("weighted", np.float64), ("dealt", np.float32), ("matrix", np.float64)]
)
def test_products(name, dtype, devices, stores):
    import cupy

    A = stores[name]
    rng = np.random.default_rng(0)
    x, xs, y = (rng.random(shape).astype(dtype) for shape in (A.shape[1], (A.shape[1], 3), A.shape[0]))
    matrix = A.to_scipy()
    tolerance = {"rtol": 2e-5 if dtype == np.float32 else 1e-12}
    with A.distribute(devices) as D:
        np.testing.assert_allclose(D @ x, matrix @ x, **tolerance)
        np.testing.assert_allclose(D @ xs, matrix @ xs, **tolerance)
        product = mg.spmv(D, x, alpha=2.0, beta=-0.5, y=y)
        np.testing.assert_allclose(product, 2.0 * (matrix @ x) - 0.5 * y, rtol=1e-3 if dtype == np.float32 else 1e-9)
        on_device = D @ cupy.asarray(x)
        assert isinstance(on_device, cupy.ndarray)
        np.testing.assert_allclose(cupy.asnumpy(on_device), matrix @ x, **tolerance)
    np.testing.assert_allclose(mg.spmv(A.on(devices), x), matrix @ x, **tolerance)


@pytest.mark.parametrize("name", ["grid", "rmat"])
def test_only_what_is_read_is_sent_where_that_is_little(name, devices, stores):
    """Rows of a grid read those beside them, of other devices 90 at each border."""
    A, n = stores[name], len(devices.scheduler_info(n_workers=-1)["workers"])
    with A.distribute(devices) as D:
        received = mg.pagerank(D, tol=1e-4).events[-1].exchanged_bytes
    if n == 1:
        assert received == (0,)
    elif name == "grid":
        assert max(received) <= 8 * (2 * 90 + (n - 1) * 12)
        assert min(received) >= 8 * 90
    else:
        assert min(received) > 8 * A.shape[0] / (2 * n)


def test_all_is_freed(devices, stores):
    before = find_left(devices)
    with stores["rmat"].distribute(devices) as D:
        mg.pagerank(D)
        assert find_held(devices)
    check_left(devices, before)


@pytest.mark.parametrize("action", [signal.SIGKILL, signal.SIGSTOP])
def test_a_worker_that_is_lost_in_a_collective(action, stores):
    if count_devices() < 2:
        pytest.skip("needs 2 GPUs")
    A, timeout = stores["rmat"], 8.0
    with start_cuda(2) as cluster, Client(cluster) as client, A.distribute(client, timeout=timeout) as D:
        pids = client.run(os.getpid)
        victim = pids[D.members[1].address]

        def on_event(event) -> None:
            if event.iteration > 200 and not acted:
                acted.append(time.monotonic())
                os.kill(victim, action)

        acted: list[float] = []
        try:
            with pytest.raises(ClusterError) as caught:
                mg.pagerank(D.on(recover=0), norm="fixed", max_iter=100_000_000, progress=on_events(on_event))
            elapsed_s = time.monotonic() - acted[0]
        finally:
            if action == signal.SIGSTOP:
                os.kill(victim, signal.SIGCONT)
        assert elapsed_s < timeout + HANG_S
        if action == signal.SIGKILL:
            assert isinstance(caught.value, WorkerLostError)
        assert caught.value.worker == str(D.members[1].name)
        if action == signal.SIGSTOP:  # both are there again
            wanted = mg.pagerank(A.on("cpu")).values
            assert mg.pagerank(D).values.tobytes() == wanted.tobytes()


def test_an_interrupt_leaves_the_devices_to_the_next_run(stores):
    n = min(2, count_devices())
    A = stores["rmat"]
    with start_cuda(n) as cluster, Client(cluster) as client, A.distribute(client) as D:

        def on_event(event) -> None:
            if event.iteration > 200:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            mg.pagerank(D, norm="fixed", max_iter=100_000_000, progress=on_events(on_event))
        assert mg.pagerank(D).values.tobytes() == mg.pagerank(A.on("cpu")).values.tobytes()


def draw(A: Any, n_vectors: int, seed: int = 0) -> list[Any]:
    """Vectors of some vertices each, and a uniform one."""
    rng = np.random.default_rng(seed)
    n = A.shape[0]
    seeds = [dict.fromkeys(rng.choice(n, k).tolist(), 1.0) for k in rng.integers(1, 8, n_vectors - 1)]
    return [*seeds, None]


MANY_OPTIONS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "few columns": {"width": 4, "alpha": np.linspace(0.3, 0.9, 21).tolist()},
    "many columns": {"width": 64, "keep_top": 7},
    "two columns": {"width": 2, "keep_top": 100, "dangling": "uniform"},
    "dropped": {"width": 16, "dangling": "drop"},
    "relative": {"width": 8, "dangling": {3: 1.0, 5: 2.0}, "norm": "relative", "tol": 1e-3, "throw": False},
}


def check_batch(batch: Any, wanted: Any, transport: str) -> None:
    assert batch.digest() == wanted.digest()
    assert (batch.statuses, batch.changes) == (wanted.statuses, wanted.changes)
    assert batch.error_bounds_l1 == pytest.approx(wanted.error_bounds_l1, rel=0.5)
    assert (batch.matrix["transport"], batch.options["executor"]) == (transport, "supersteps")
    assert re.match(r"1 worker of |\d+ workers of ", batch.matrix["hardware"])


@GRAPHS
def test_many_vectors_have_the_bits_of_this_process(name, devices, stores, monkeypatch):
    monkeypatch.setattr("mgspmv.cluster.vector_shares.may_share", lambda matrix: False)
    A = stores[name]
    vectors = draw(A, 21)
    for options in MANY_OPTIONS.values():
        wanted = mg.pagerank_batch(A.on("cpu"), vectors, **options)
        with A.distribute(devices) as D:
            check_batch(mg.pagerank_batch(D, vectors, **options), wanted, "nccl")
            check_batch(mg.pagerank_batch(D, vectors, **options), wanted, "nccl")
            assert mg.pagerank(D, personalization=vectors[0]).status == "converged"  # by its own layout and links
    for transport in ("auto", "nccl", "peer"):
        batch = mg.pagerank_batch(A.on(devices, transport=transport), vectors, **options)
        check_batch(batch, wanted, "peer" if transport == "peer" else "nccl")


@GRAPHS
def test_devices_share_out_vectors(name, devices, stores):
    A = stores[name]
    vectors = draw(A, 21)
    for options in MANY_OPTIONS.values():
        wanted = mg.pagerank_batch(A.on("cpu"), vectors, **options)
        with A.distribute(devices) as D:
            for _ in range(2):
                batch = mg.pagerank_batch(D, vectors, **options)
                is_alone = len(D.members) == 1
                check_batch(batch, wanted, "nccl" if is_alone else "local")
                assert batch.options["vectors"] == ("rows" if is_alone else "shared")
            assert mg.pagerank(D, personalization=vectors[0]).status == "converged"  # with its own rows and layout
    if not is_alone:
        batch = mg.pagerank_batch(A.on(devices, transport="peer"), vectors, **options)
        check_batch(batch, wanted, "local")


def test_many_vectors_on_a_device_that_workers_share(sharing, stores):
    A = stores["dealt"]
    vectors = draw(A, 7)
    with pytest.warns(UserWarning, match="2 workers share GPUs"):
        batch = mg.pagerank_batch(A.on(sharing), vectors, width=4, keep_top=9)
    check_batch(batch, mg.pagerank_batch(A.on("cpu"), vectors, width=4, keep_top=9), "local")


def test_many_vectors_need_all_rows_on_the_devices(devices, stores):
    with pytest.raises(CapacityError):
        mg.pagerank_batch(stores["rmat"].on(devices, device_memory=100_000), [[1]])


def test_workers_that_dask_cuda_starts(stores, tmp_path):
    """`dask scheduler` and `dask cuda worker`, as docs/cluster.md has them."""
    A, address_file = stores["rmat"], tmp_path / "scheduler.json"
    wanted = mg.pagerank(A.on("cpu"), tol=1e-6).values.tobytes()
    with (
        run_module("distributed.cli.dask_scheduler", "--port", "0", "--scheduler-file", address_file),
        run_module("dask_cuda.cli", "worker", "--scheduler-file", address_file, *NO_LIMITS),
    ):
        assert wait_for(lambda: address_file.exists() and address_file.read_text().endswith("}"), HANG_S)
        address = json.loads(address_file.read_text())["address"]
        with Client(address) as client:
            client.wait_for_workers(count_devices(), timeout=HANG_S)
        solution = mg.pagerank(A.on(address), tol=1e-6)
    assert solution.values.tobytes() == wanted
    assert re.match(rf"{count_devices()} workers? of ", solution.matrix["hardware"])
    assert solution.matrix["transport"] in ("ipc", "nccl")


NO_LIMITS = ("--device-memory-limit", "0", "--memory-limit", "0")


@contextmanager
def run_module(*command: Any) -> Iterator[None]:
    """A Python module as a process of its own, which is ended with the context."""
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([sys.executable, "-m", *map(str, command), "--dashboard-address", ":0"], **quiet)
    try:
        yield
    finally:
        process.terminate()
        process.wait(HANG_S)


def test_more_workers_than_devices_are_refused():
    n = count_devices()
    with pytest.raises(ClusterError, match=rf"{n + 1} GPU workers were requested, but this machine has {n} GPUs"):
        start_cuda(n + 1)


def find_worker(client: Client, name: Any) -> str:
    workers = client.scheduler_info(n_workers=-1)["workers"]
    [address] = [address for address, worker in workers.items() if worker["name"] == name]
    return str(address)


def spin(dask_worker: Any, flag_s: float) -> None:
    """Let the next step of this worker's device be followed by a kernel that does not end for so many seconds."""
    import cupy

    from mgspmv.kernels.rank_steps import RankSteps

    code = """
    extern "C" __global__ void spin(long long clocks) {
        const long long began = clock64();
        while (clock64() - began < clocks);
    }"""
    kernel, original = cupy.RawKernel(code, "spin"), RankSteps._step_unless_stopped
    clocks = int(flag_s * 1e3 * cupy.cuda.Device().attributes["ClockRate"])

    def step(self: Any, k: int) -> None:
        RankSteps._step_unless_stopped = original  # type: ignore[method-assign]
        original(self, k)
        kernel((1,), (1,), (np.int64(clocks),))

    RankSteps._step_unless_stopped = step  # type: ignore[method-assign]


@pytest.mark.parametrize("transport", ["auto", "nccl"])
@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP, "spin"], ids=["killed", "stopped", "hung"])
def test_a_device_that_does_not_come_ends_the_run_and_not_the_cluster(fault, transport, stores):
    """By memory that devices write into, and by NCCL; the next run has the digest, on who is left or back."""
    if count_devices() < 2:
        pytest.skip("needs 2 GPUs")
    A, acted = stores["rmat"], list[float]()
    wanted = mg.pagerank(A.on("cpu")).digest()
    with start_cuda(2) as cluster, Client(cluster) as client:
        victim = find_worker(client, 1)
        [pid] = client.run(os.getpid, workers=[victim]).values()

        def act(event: Any) -> None:
            if event.iteration > 200 and not acted:
                acted.append(time.monotonic())
                client.run(spin, flag_s=90.0, workers=[victim]) if fault == "spin" else os.kill(pid, fault)

        endless: dict[str, Any] = {"norm": "fixed", "max_iter": 10**8}
        try:
            with pytest.raises(ClusterError) as caught:
                mg.pagerank(A.on(client, transport=transport, recover=0), **endless, progress=on_events(act))
            assert time.monotonic() - acted[0] < HANG_S
            assert caught.value.worker == "1"
            assert caught.value.rank == 1
            if fault == "spin":
                with pytest.warns(UserWarning, match=r"worker 1 .* left out until it resumes or is restarted"):
                    left = mg.pagerank(A.on(client, transport=transport))
                assert (left.digest(), len(left.events[0].product_s)) == (wanted, 1)
        finally:
            if fault == signal.SIGSTOP:
                os.kill(pid, signal.SIGCONT)
        client.wait_for_workers(2, timeout=HANG_S)
        if fault == "spin":
            assert wait_for(lambda: time.monotonic() - acted[0] > 100.0)
        again = mg.pagerank(A.on(client, transport=transport))
        assert (again.digest(), len(again.events[0].product_s)) == (wanted, 2)
