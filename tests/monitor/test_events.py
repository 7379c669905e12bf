"""What runs on a cluster tell its scheduler: what their solutions say, also when they fail."""

from __future__ import annotations

import logging
import math
import time
from types import SimpleNamespace

import numpy as np
import pytest

import mgspmv as mg
from mgspmv.cluster.worker_metrics import TOPIC
from mgspmv.model import ignore
from mgspmv.monitor import events
from mgspmv.monitor.events import publish_run
from mgspmv.monitor.plugin import RunsPlugin
from tests.support.hearing import on_events


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("stream") / "web.zarr"
    mg.generate("rmat", path, scale=7, seed=1, transpose=True)
    return path


@pytest.fixture
def A(store):
    with mg.open_matrix(store) as opened:
        yield opened


def find_run(client, solution):
    """The state that the scheduler has of the last run, which is that of the solution."""
    run = [*client.cluster.scheduler.plugins[RunsPlugin.name].runs.by_id.values()][-1]
    assert {event.run for event in solution.events} == {run.run}
    return run


def check_run(run, solution, client):
    assert run.state == solution.status
    assert run.errors == []
    assert run.client == client.id
    assert run.iterations == solution.iterations
    assert run.change == solution.changes[-1]
    assert run.changes == dict(enumerate(solution.changes, 1))
    seconds = run.mean_seconds * solution.iterations
    for phase, of_workers in zip(("product_s", "exchange_s", "wait_s"), seconds, strict=True):
        assert of_workers == pytest.approx(np.sum([getattr(e, phase) for e in solution.events], axis=0))
    received = np.sum([event.exchanged_bytes for event in solution.events], axis=0)
    assert run.exchanged_bytes.tolist() == received.tolist()
    assert run.held_bytes.tolist() == solution.memory["held_bytes"]
    if "host_peak_bytes" in solution.memory:
        assert run.used_bytes["host"].tolist() == solution.memory["host_peak_bytes"]
    for phase in ("product", "exchange", "schedule"):  # this process has more to start and to collect
        assert run.seconds[phase] == solution.seconds[phase]
    assert run.transport == solution.matrix["transport"]


@pytest.mark.parametrize("executor", ["supersteps", "tasks"])
def test_the_state_of_a_run_is_its_solution(executor, A, in_process):
    client = in_process(2)
    with A.distribute(client) as D:
        solution = mg.pagerank(D.on(executor=executor), tol=1e-9)
        run = find_run(client, solution)
        check_run(run, solution, client)
        assert (run.operation, run.executor, run.backend) == ("pagerank", executor, "cpu")
        assert (run.edges, run.matrix["shape"]) == (A.nnz, list(A.shape))
        assert run.options["alpha"] == 0.85
        assert run.threshold == 1e-9
        assert [w["rows"] for w in run.workers] == np.diff(D.bounds).tolist()
        assert [w["address"] for w in run.workers] == [member.address for member in D.members]
        assert run.planned_bytes("host").tolist() == solution.memory["planned_bytes"]


@pytest.mark.parametrize("executor", ["supersteps", "tasks"])
def test_centralities_are_runs_of_both_their_matrices(executor, A, in_process):
    client = in_process(2)
    with A.distribute(client) as D, A.T.distribute(client) as T:
        found = mg.hits(D.on(executor=executor), transpose=T, tol=1e-3)
    run = find_run(client, found.hubs)
    check_run(run, found.hubs, client)
    assert (run.operation, run.edges, run.threshold) == ("HITS", 2 * A.nnz, 1e-3)
    planned = found.hubs.memory["planned_bytes"]
    assert run.planned_bytes("host").tolist() == planned


def test_batches_are_runs_of_passes(A, in_process):
    client = in_process(2)
    solution = mg.pagerank_batch(A.on(client), [[1], [2], [3]])
    run = [*client.cluster.scheduler.plugins[RunsPlugin.name].runs.by_id.values()][-1]
    assert (run.operation, run.state) == ("pagerank_batch", "converged")
    assert run.iterations == solution.options["steps"]


def test_messages_are_on_a_topic_that_anybody_can_read(A, in_process):
    client = in_process(2)
    mg.pagerank(A.on(client), norm="fixed", max_iter=3)
    messages = [message for _, message in client.get_events(TOPIC)]
    last = messages[-1]["run"]
    kinds = [message["kind"] for message in messages if message["run"] == last]
    assert kinds[0] == "begin"
    assert kinds[-1] == "end"
    assert kinds.count("iterations") >= 2, "from each worker"
    assert {m["phase"] for m in messages if m["kind"] == "phase" and m["run"] == last} == {"start", "residual"}


def test_a_run_that_fails_says_why(A, in_process):
    client = in_process(2)

    def stop(event):
        raise ValueError("enough")

    with pytest.raises(ValueError, match="enough"):
        mg.pagerank(A.on(client), progress=on_events(stop))
    run = [*client.cluster.scheduler.plugins[RunsPlugin.name].runs.by_id.values()][-1]
    assert (run.state, run.errors) == ("failed", ["ValueError: enough"])
    assert run.iterations > 0, "what the workers did was published without the client"


def test_one_that_does_not_converge_has_ended_all_the_same(A, in_process):
    client = in_process(2)
    solution = mg.pagerank(A.on(client), max_iter=2, throw=False)
    assert find_run(client, solution).state == "max_iter"


@pytest.mark.parametrize("executor", ["supersteps", "tasks"])
def test_what_it_takes_to_tell_that_a_run_begins_is_in_its_start(executor, A, in_process, monkeypatch):
    """It is half a second for the first run of a cluster, whose scheduler is given the page."""
    told_s, install = 0.15, events.install_monitor

    def install_slowly(client):
        time.sleep(told_s)
        return install(client)

    monkeypatch.setattr(events, "install_monitor", install_slowly)
    with A.distribute(in_process(2)) as D:
        solutions = [mg.pagerank(D.on(executor=executor)), mg.eigenvector_centrality(D.on(executor=executor), tol=1e-2)]
        if executor == "supersteps":
            solutions.append(mg.pagerank_batch(D, [{3: 1.0}]))
        for solution in solutions:
            assert solution.seconds["start"] > told_s


def make_matrices(answer):
    """A matrix on a cluster of two workers, whose scheduler answers so."""
    calls = []

    def sync(function, *given, callback_timeout):
        calls.append(given)
        return answer(function)

    client = FakeClient(sync)
    own = SimpleNamespace(start=0, stop=5, nnz=10, has_device=True, host_bytes=7, device_bytes=80)
    matrix = SimpleNamespace(
        client=client,
        transport="nccl",
        backend="cuda",
        info=SimpleNamespace(url="web.zarr"),
        shape=(10, 10),
        nnz=20,
        members=[SimpleNamespace(name=k, address=f"tcp://{k}") for k in range(2)],
        plan=SimpleNamespace(workers=[own, own]),
    )
    return [matrix], calls


def make_task(**options):
    return SimpleNamespace(run="r", options=SimpleNamespace(**options), threshold=np.float64(1e-6))


def make_outcome():
    return SimpleNamespace(seconds={"start": 1.0}, memory={}, transport="nccl")


class FakeComm:
    """A connection of a client to its scheduler."""


class FakeClient:
    id, scheduler, log_event, register_plugin = "c", "a scheduler", "log_event", "register"

    def __init__(self, sync):
        self.sync, self.scheduler_comm = sync, FakeComm()

    def subscribe_topic(self, topic, handler):
        pass


def list_told(calls):
    """Messages among what was sent."""
    return [given[1] for given in calls if len(given) == 2]


def test_a_scheduler_that_refuses_is_said_and_runs_go_on(caplog):
    def answer(function):
        if function == "register":
            raise ModuleNotFoundError("No module named 'mgspmv'")

    matrices, calls = make_matrices(answer)
    with publish_run(matrices, make_task(), "pagerank", "supersteps") as news:
        news.end("converged", make_outcome())
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert "No module named 'mgspmv'" in record.getMessage()
    assert [told["kind"] for told in list_told(calls)] == ["begin", "end"]


@pytest.mark.parametrize("error", [TimeoutError("late"), OSError("gone"), RuntimeError("IOLoop is closed")])
def test_a_scheduler_that_is_gone_is_not_asked_again(error, caplog):
    def answer(function):
        if function == "log_event":
            raise error

    matrices, calls = make_matrices(answer)
    with publish_run(matrices, make_task(), "p", "supersteps") as news:
        news.report(ignore)("start", 0, None)
    assert [told["kind"] for told in list_told(calls)] == ["begin"]
    assert not caplog.records


def test_a_scheduler_that_does_not_answer_is_no_reason_to_warn(caplog):
    def answer(function):
        raise TimeoutError

    matrices, calls = make_matrices(answer)
    with publish_run(matrices, make_task(), "p", "supersteps") as news:
        news.end("converged", make_outcome())
    assert not caplog.records
    assert len(calls) == 1, "it was waited for once"


def test_options_are_what_any_program_reads():
    matrices, calls = make_matrices(lambda function: None)
    options = {"alpha": 0.5, "tol": None, "top": 3, "vector": np.ones(2), "most": math.inf}
    with publish_run(matrices, make_task(**options), "p", "supersteps"):
        pass
    assert [(w["host_bytes"], w["device_bytes"]) for w in list_told(calls)[0]["workers"]] == [(7, 80)] * 2
    assert list_told(calls)[0]["options"] == {"alpha": 0.5, "top": 3, "most": "inf"}
    assert type(list_told(calls)[0]["threshold"]) is float
