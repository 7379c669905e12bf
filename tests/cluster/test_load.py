"""Where workers compute, what goes between them, and what follows from it: chosen from what they say they have."""

from __future__ import annotations

import warnings

import pytest

from mgspmv.cluster.dask_cluster import DeviceInfo, WorkerInfo
from mgspmv.cluster.executors import join_events
from mgspmv.cluster.load import WorkerPlacement, choose_placement
from mgspmv.errors import ClusterError, MissingDependencyError
from mgspmv.exchange.peer_comm import Member
from mgspmv.kernels.device import NO_CUPY
from mgspmv.model import Event

NO_GPU = DeviceInfo("CUDA found no device (cudaErrorNoDevice)")
NO_NCCL = "CuPy finds no NCCL; install it"


def gpu(number, memory=1000, nccl_problem=None):
    return DeviceInfo(None, "NVIDIA H200", f"GPU-{number}", memory, nccl_problem)


def make_workers(*devices):
    return [WorkerInfo(Member(k, f"tcp://10.0.0.{k}:40"), 8, 10**9, device) for k, device in enumerate(devices)]


def choose(workers, backend="auto", transport="auto"):
    """What is chosen without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return choose_placement(workers, backend, transport)


def test_a_worker_without_cupy():
    with pytest.raises(MissingDependencyError, match=r"needs CuPy, which is not installed on worker 1 \(tcp"):
        choose(make_workers(gpu(0), DeviceInfo(NO_CUPY)), "cuda")


def refused(workers, backend="auto", transport="auto"):
    with pytest.raises(ClusterError) as caught:
        choose(workers, backend, transport)
    assert caught.value.phase == "join"
    return str(caught.value), caught.value.worker


def test_hosts():
    for backend in ["auto", "cpu"]:
        for transport in ["auto", "peer"]:
            assert choose(make_workers(NO_GPU, NO_GPU), backend, transport) == WorkerPlacement("cpu", "peer")


@pytest.mark.parametrize(
    ("scheme", "hosts", "taken"),
    [("tls", 2, "peer"), ("tcp", 2, "nccl"), ("tls", 1, "nccl")],
)
def test_machines_whose_connections_are_encrypted(scheme, hosts, taken):
    """NCCL encrypts nothing: it is for one machine, or for who says so."""
    workers = [WorkerInfo(Member(k, f"{scheme}://10.0.0.{k % hosts}:40{k}"), 8, 10**9, gpu(k)) for k in range(4)]
    assert choose(workers, transport="nccl").transport == "nccl"
    assert choose(workers, transport="peer").transport == "peer"
    if taken == "nccl":
        assert choose(workers).transport == taken
        return
    with pytest.warns(UserWarning, match="on 2 machines and connected by TLS, and NCCL does not encrypt"):
        assert choose_placement(workers, "auto", "auto").transport == taken


def test_a_device_for_each():
    for backend in ["auto", "cuda"]:
        for transport in ["auto", "nccl"]:
            workers = make_workers(gpu(0, 1000), gpu(1, 3000))
            wanted = WorkerPlacement("cuda", "nccl", 1000, transport == "auto")
            assert choose(workers, backend, transport) == wanted, (transport, backend)


def test_one_worker_sends_nothing_and_needs_no_nccl():
    for transport in ["auto", "nccl"]:
        workers = make_workers(gpu(0, nccl_problem=NO_NCCL))
        assert choose(workers, "auto", transport) == WorkerPlacement("cuda", "nccl", 1000, transport == "auto")


def test_hosts_beside_devices():
    """All compute on hosts; NCCL is not missed there, nor are devices that workers share worth a warning."""
    workers = make_workers(gpu(0, 1001), NO_GPU, gpu(0, 901), gpu(1, nccl_problem=NO_NCCL))
    for transport in ["auto", "peer"]:
        with pytest.warns(
            UserWarning, match=r"^1 of 4 workers have no GPU, for example worker 1 \(.*, so all compute on"
        ):
            assert choose_placement(workers, "auto", transport) == WorkerPlacement("cpu", "peer")
    assert choose(workers, "cpu") == WorkerPlacement("cpu", "peer")


def test_devices_that_workers_share():
    workers = make_workers(gpu(0), gpu(1, 1001), gpu(1, 901), gpu(1, 100))
    with pytest.warns(UserWarning, match="share GPUs") as warned:
        places = choose_placement(workers, "auto", "auto")
    assert places == WorkerPlacement("cuda", "peer", 33)
    assert [str(w.message) for w in warned] == [
        "3 workers share GPUs, for example worker 1 (tcp://10.0.0.1:40) its NVIDIA H200: NCCL cannot connect them, and "
        "slices go through their hosts; start one for each GPU, as `dask cuda worker` does"
    ]


def test_a_worker_without_a_device_is_named_where_all_must_have_one():
    for transport in ["auto", "nccl", "peer"]:
        assert refused(make_workers(gpu(0), NO_GPU, NO_GPU), "cuda", transport) == (
            "backend='cuda' needs a GPU on each of the 3 workers, and worker 1 (tcp://10.0.0.1:40) has none: CUDA "
            "found no device (cudaErrorNoDevice); start workers with `dask cuda worker`, one for each GPU, or pass "
            "backend='auto'",
            "1",
        ), transport


def test_nccl_between_workers_that_share_a_device():
    message, _ = refused(make_workers(gpu(0), gpu(1), gpu(1)), "auto", "nccl")
    assert message == (
        "transport='nccl' needs a separate GPU for each worker, and 2 workers share GPUs, for example worker 1 "
        "(tcp://10.0.0.1:40) its NVIDIA H200; start one for each GPU, as `dask cuda worker` does"
    )


def test_nccl_between_hosts():
    for devices, backend, what in [
        (
            (gpu(0), NO_GPU),
            "auto",
            "worker 1 (tcp://10.0.0.1:40) computes on its host (CUDA found no device (cudaErrorNoDe",
        ),
        (
            (NO_GPU,),
            "auto",
            "worker 0 (tcp://10.0.0.0:40) computes on its host (CUDA found no device (cudaErrorNoDevice))",
        ),
        ((gpu(0), gpu(1)), "cpu", "worker 0 (tcp://10.0.0.0:40) computes on its host (backend='cpu')"),
    ]:
        message, _ = refused(make_workers(*devices), backend, "nccl")
        assert message.startswith(f"transport='nccl' needs a GPU on each worker, and {what}"), (devices, backend, what)
        assert message.endswith("); pass transport='auto'"), (devices, backend, what)


def test_a_worker_without_nccl_is_named_with_what_to_do():
    for transport in ["auto", "nccl"]:
        assert refused(make_workers(gpu(0), gpu(1, nccl_problem=NO_NCCL), gpu(2)), "auto", transport) == (
            "worker 1 (tcp://10.0.0.1:40) cannot use NCCL: CuPy finds no NCCL; install it; or pass transport='peer', "
            "which sends slices through the hosts and is many times slower",
            "1",
        ), transport


def make_event(product_s, exchange_s, wait_s, number):
    return Event("run", 0, 3, 0.5, (product_s,), (exchange_s,), (wait_s,), (10 * number,), (100 * number,))


def test_devices_wait_in_their_exchange_for_the_slowest():
    """As long as that took longer, unless the exchange was shorter than that."""
    events = (make_event(0.5, 4.5, 0.0, 1), make_event(3.0, 1.0, 0.0, 2), make_event(2.0, 0.25, 0.0, 3))
    joined = join_events(events)
    assert joined.product_s == (0.5, 3.0, 2.0)
    assert joined.wait_s == (2.5, 0.0, 0.25)
    assert joined.exchange_s == (2.0, 1.0, 0.0)
    assert (joined.exchanged_bytes, joined.memory_bytes) == ((10, 20, 30), (100, 200, 300))
    assert (joined.run, joined.epoch, joined.iteration, joined.change) == ("run", 0, 3, 0.5)
