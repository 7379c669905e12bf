"""Iterations that workers count for Prometheus and publish: nothing of them is lost, and messages are small."""

from __future__ import annotations

import threading

import msgpack
import numpy as np
import prometheus_client
import pytest
from distributed import Client
from hypothesis import given
from hypothesis import strategies as st

import mgspmv as mg
from mgspmv.cluster import worker_metrics as module
from mgspmv.cluster.agent import call_held
from mgspmv.cluster.row_block import ProductOptions
from mgspmv.cluster.worker_metrics import MOST_GROUPS, PHASES, SECONDS, SUMMED, WorkerMetrics, pack_events
from mgspmv.kernels.device import DeviceMemory
from mgspmv.model import Event
from tests.support.clusters import start_cluster
from tests.support.scraping import Scraped, list_workers, run_promtool, scrape
from tests.support.waiting import HANG_S, wait_for


def collect(registry=prometheus_client.REGISTRY):
    return Scraped(prometheus_client.generate_latest(registry).decode())


@pytest.fixture
def registry():
    return prometheus_client.CollectorRegistry()


@pytest.fixture
def metrics(registry):
    return WorkerMetrics(registry)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("metrics") / "web.zarr"
    mg.generate("rmat", path, scale=7, seed=1, transpose=True)
    return path


def test_iterations_are_counted_by_phase(metrics, registry):
    metrics.count_iterations(np.array([[0.002, 0.02], [0.001, 0.001], [0.0, 7e6]]), 600, 80)
    metrics.count_iterations(np.full((3, 1), 0.5), 300, 40)
    found = collect(registry)
    assert found.get("mgspmv_worker_iterations_total") == 3
    assert found.get("mgspmv_worker_edges_total") == 900
    assert found.get("mgspmv_worker_exchanged_bytes_total") == 120
    assert found.get("mgspmv_worker_iteration_seconds_count", phase="product") == 3
    assert found.get("mgspmv_worker_iteration_seconds_sum", phase="product") == pytest.approx(0.522)
    assert found.get("mgspmv_worker_iteration_seconds_bucket", phase="product", le="0.0025") == 1
    assert found.get("mgspmv_worker_iteration_seconds_bucket", phase="wait", le=str(SECONDS[0])) == 1
    assert found.get("mgspmv_worker_iteration_seconds_bucket", phase="wait", le=str(SECONDS[-1])) == 2


class Holding:
    def __init__(self, *held):
        self._held = held

    def measure_held(self):
        return self._held


def test_bytes_of_all_workers_of_a_process_are_added_up(metrics, registry):
    assert collect(registry).get("mgspmv_worker_rows_bytes") == 0
    one, two = Holding(10, 5), Holding(100, 50)
    metrics.holders.update([one, two])
    found = collect(registry)
    assert found.get("mgspmv_worker_rows_bytes") == 110
    assert found.get("mgspmv_worker_runs_bytes") == 55
    del two
    assert collect(registry).get("mgspmv_worker_rows_bytes") == 10, "one that is gone holds nothing"


@pytest.mark.external("promtool")
def test_promtool_has_nothing_to_say(metrics, registry, monkeypatch):
    monkeypatch.setattr(module, "measure_device_memory", lambda: DeviceMemory(80, 30, 40))
    metrics.has_device = True
    metrics.count_failure("OptionError")
    checked = run_promtool("check", "metrics", given=collect(registry).text)
    assert (checked.returncode, checked.stdout) == (0, "")


def count_since(before, name, **labels):
    return collect().get(name, **labels) - before.get(name, **labels)


BEGUN, GO_ON = threading.Event(), threading.Event()


def fail_late():
    BEGUN.set()
    GO_ON.wait(HANG_S)
    raise ValueError


def test_a_task_that_fails_when_nobody_wants_it_any_more(store, in_process, caplog):
    """Dask keeps no error of it, and the agent does not ask for one."""
    client = in_process(2)
    with mg.open_matrix(store) as A, A.distribute(client), caplog.at_level("INFO", "distributed.worker.state_machine"):
        workers = client.cluster.workers.values()
        late = client.submit(fail_late, key="mgspmv-late")
        assert BEGUN.wait(HANG_S)
        late.release()
        assert wait_for(lambda: any("cancelled" in {t.state for t in w.state.tasks.values()} for w in workers))
        GO_ON.set()
        assert wait_for(lambda: not any("mgspmv-late" in worker.state.tasks for worker in workers))
    assert "failed with exception" not in caplog.text


@pytest.mark.parametrize("call", [mg.pagerank, mg.katz])
def test_workers_count_what_their_events_say(call, store, in_process):
    client = in_process(2)
    with mg.open_matrix(store) as A, A.distribute(client) as D:
        before = collect()
        assert before.get("mgspmv_worker_rows_bytes") > 0
        solution = call(D, norm="fixed", max_iter=20)
        assert count_since(before, "mgspmv_worker_iterations_total") == 2 * solution.iterations
        assert count_since(before, "mgspmv_worker_edges_total") == A.nnz * solution.iterations
    received = sum(sum(event.exchanged_bytes) for event in solution.events)
    assert count_since(before, "mgspmv_worker_exchanged_bytes_total") == received
    for phase in PHASES:
        elapsed_s = sum(sum(getattr(event, f"{phase}_s")) for event in solution.events)
        assert count_since(before, "mgspmv_worker_iteration_seconds_sum", phase=phase) == pytest.approx(elapsed_s)
        assert count_since(before, "mgspmv_worker_iteration_seconds_count", phase=phase) == 2 * solution.iterations


def test_passes_of_batches_count(store, in_process):
    client = in_process(2)
    before = collect()
    solution = mg.pagerank_batch(mg.open_matrix(store).on(client), [[1], [2], [3]])
    assert count_since(before, "mgspmv_worker_iterations_total") == 2 * solution.options["steps"]


def test_failures_are_counted_by_the_class_of_the_error(store, in_process):
    client = in_process(2)
    [address, *_] = client.scheduler_info()["workers"]
    with mg.open_matrix(store) as A, A.distribute(client):
        before = collect().find("mgspmv_worker_task_failures_total", error="ClosedError")
        asked = ("no part", "multiply", np.ones(1), None, ProductOptions("float64"))
        for key in ("mgspmv-test-failing", "of somebody else"):
            failing = client.submit(call_held, *asked, key=key, workers=[address], pure=False)
            assert isinstance(failing.exception(), mg.errors.ClosedError)
            failing.release()
        found = collect().get("mgspmv_worker_task_failures_total", error="ClosedError")
    assert found - sum(sample.value for sample in before) == 1, "and not what others submit"


@pytest.mark.slow
@pytest.mark.gpu
def test_memory_of_a_device_is_told_by_who_computes_on_it(store):
    with start_cluster(1) as cluster, Client(cluster, set_as_default=False) as client:
        [server] = list_workers(client).values()
        with mg.open_matrix(store) as A:
            mg.pagerank(A.on(client, backend="cpu"))
            assert not scrape(server).find("mgspmv_worker_device_memory_bytes")
            with A.distribute(client, backend="cuda") as D:
                mg.pagerank(D)
                found = scrape(server)
        total, free, used = (found.get(f"mgspmv_worker_device_memory_{name}bytes") for name in ("", "free_", "used_"))
        assert 0 < used <= total - free < total
        assert found.get("mgspmv_worker_rows_bytes") > 0


def make_events(n, n_workers=1, first=1, epoch=0):
    rng = np.random.default_rng(n)
    seconds = rng.random((n, 3, n_workers))
    return [
        Event("r", epoch, first + k, 0.5**k, *map(tuple, seconds[k].tolist()), (k,) * n_workers, (100 + k,) * n_workers)
        for k in range(n)
    ]


@given(st.integers(1, 1000), st.integers(1, 3), st.integers(1, 50))
def test_sums_and_ends_of_groups_are_those_of_the_events(n, n_workers, first):
    events = make_events(n, n_workers, first)
    packed = msgpack.unpackb(msgpack.packb(pack_events(events, range(n_workers))))
    assert (packed["kind"], packed["run"], packed["epoch"], packed["first"]) == ("iterations", "r", 0, first)
    lasts = packed["iteration"]
    assert len(lasts) == len(packed["change"]) <= MOST_GROUPS
    assert lasts[-1] == events[-1].iteration
    sizes = np.diff([first - 1, *lasts])
    assert (sizes[:-1] == sizes[0]).all()
    assert 0 < sizes[-1] <= sizes[0]
    assert packed["change"] == [events[last - first].change for last in lasts]
    for name in SUMMED:
        for rank in range(n_workers):
            assert len(packed[name][rank]) == len(lasts)
            assert sum(packed[name][rank]) == pytest.approx(sum(getattr(e, name)[rank] for e in events))
    assert packed["held_bytes"] == [100 + n - 1] * n_workers
