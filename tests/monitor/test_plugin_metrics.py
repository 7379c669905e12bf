"""Metrics of runs, of messages alone, beside what is known of these."""

from __future__ import annotations

import subprocess

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from mgspmv.model import Status
from mgspmv.monitor import plugin
from mgspmv.monitor.plugin import SHOWN_S, RunsCollector
from mgspmv.monitor.runs import RUNS_KEPT, Runs
from tests.support.messages import begin, checkpoint, end, iterate, miss
from tests.support.scraping import Scraped, run_promtool


class Watched:
    """Runs, and what is collected of them at some time."""

    def __init__(self):
        self.runs, self.now = Runs(), 1000.0
        self.collector = RunsCollector()
        self.collector.watched.append(self.runs)

    def hear(self, *messages):
        for message in messages:
            self.runs.hear(message, self.now)
        return self

    def scrape(self):
        registry = CollectorRegistry()
        registry.register(self.collector)
        return Scraped(generate_latest(registry).decode())


@pytest.fixture
def watched(monkeypatch):
    found = Watched()
    monkeypatch.setattr(plugin.time, "time", lambda: found.now)
    return found


def tell_all(watched):
    """A run with all that there is to tell of it, and one that failed."""
    slow = (2.0, 0.5, 0.25)
    watched.hear(begin(), begin("s", operation="HITS"), end("s", "failed", "Error: no"))
    watched.hear(iterate(0, 1, 4), iterate(1, 1, 4, seconds=slow), checkpoint(4, 0.02), checkpoint(4, 5.0))
    watched.hear(miss(5))
    return watched.scrape()


def test_counts_are_those_of_the_runs(watched):
    found = tell_all(watched)
    for name, value in {
        "mgspmv_runs_started_total": 1,
        "mgspmv_runs_active": 1,
        "mgspmv_run_restarts_total": 0,
        "mgspmv_iterations_total": 4,
        "mgspmv_edges_total": 4 * 300,
        "mgspmv_exchanged_bytes_total": 80,
        "mgspmv_checkpoints_total": 2,
        "mgspmv_checkpoint_bytes_total": 4_000_000,
        "mgspmv_checkpoint_seconds_count": 2,
        "mgspmv_checkpoint_failures_total": 1,
        "mgspmv_checkpoint_seconds_sum": 5.02,
    }.items():
        assert found.get(name, operation="pagerank") == value, name
    assert found.get("mgspmv_checkpoint_seconds_bucket", operation="pagerank", le="0.03") == 1
    assert found.get("mgspmv_runs_active", operation="HITS") == 0
    assert found.get("mgspmv_runs_ended_total", operation="HITS", status="failed") == 1
    assert found.get("mgspmv_run_phase_seconds_sum", operation="HITS", phase="product") == 2.0
    assert found.get("mgspmv_run_phase_seconds_bucket", operation="HITS", phase="start", le="1.0") == 1
    assert found.get("mgspmv_workers_lost_total") == 0


def test_numbers_of_a_run_are_what_is_known_of_it(watched):
    found = tell_all(watched)
    run = watched.runs.by_id["r"]
    for name, value in {
        "active": 1,
        "start_timestamp_seconds": 1000.0,
        "last_message_timestamp_seconds": 1000.0,
        "iterations": 4,
        "change": 0.5**4,
        "tolerance": 1e-6,
        "edges_per_second": run.edges_per_s,
        "imbalance_ratio": 2 / 1.5,
        "checkpoints": 2,
        "last_checkpoint_timestamp_seconds": 1000.0,
    }.items():
        assert found.get(f"mgspmv_run_{name}", run="r") == pytest.approx(value), name
    [info] = found.find("mgspmv_run_info", run="r")
    matrix = {"matrix": "/data/web.zarr", "operation": "pagerank"}
    assert info.labels == {"run": "r", "executor": "supersteps", "transport": "peer", "backend": "cpu"} | matrix
    assert found.get("mgspmv_run_state", run="r", state="iterate") == 1
    assert found.get("mgspmv_run_state", run="s", state="failed") == 1
    for k in (0, 1):
        labels = {"run": "r", "worker": f"w{k}", "where": "host"}
        assert found.get("mgspmv_run_worker_planned_bytes", **labels) == 1000 + k
        assert found.get("mgspmv_run_worker_used_bytes", **labels) == 5000 + k
    assert not found.find("mgspmv_run_worker_planned_bytes", where="device")


def test_devices_have_bytes_of_their_own(watched):
    message = begin()
    message["workers"][1]["device_bytes"] = 800
    told = iterate(1, 1, 1)
    told["taken"] = [{"host_peak_bytes": 7, "device_bytes": 600}]
    found = watched.hear(message, told).scrape()
    assert found.get("mgspmv_run_worker_planned_bytes", run="r", worker="w1", where="device") == 800
    assert found.get("mgspmv_run_worker_used_bytes", run="r", worker="w1", where="device") == 600
    assert [sample.labels["worker"] for sample in found.find("mgspmv_run_worker_used_bytes")] == ["w1", "w1"]


def test_what_is_not_known_is_not_told(watched):
    message = begin() | {"threshold": 0.0, "transport": None, "backend": None}
    found = watched.hear(message).scrape()
    [info] = found.find("mgspmv_run_info")
    assert (info.labels["transport"], info.labels["backend"]) == ("", "")
    unknown = ("change", "tolerance", "edges_per_second", "imbalance_ratio")
    unknown += ("last_checkpoint_timestamp_seconds", "worker_used_bytes")
    assert not [name for name in unknown if found.find(f"mgspmv_run_{name}")]
    assert found.get("mgspmv_run_iterations", run="r") == 0


def test_runs_are_there_for_a_while_after_their_end(watched):
    watched.hear(begin("r"), begin("s"), end("s"))
    watched.now += SHOWN_S
    found = watched.scrape()
    assert found.get("mgspmv_run_active", run="r") == 1
    assert found.get("mgspmv_run_active", run="s") == 0
    watched.now += 1.0
    found = watched.scrape()
    assert [sample.labels["run"] for sample in found.find("mgspmv_run_active")] == ["r"]
    assert found.get("mgspmv_runs_started_total", operation="pagerank") == 2, "counts are for ever"


def test_however_many_runs_there_are_the_series_are_bounded(watched):
    sizes = []
    for n in (RUNS_KEPT, 10 * RUNS_KEPT):
        for k in range(n):
            watched.hear(begin(f"{n}-{k}"), iterate(0, 1, 2, f"{n}-{k}"), end(f"{n}-{k}"))
        sizes.append(sum(len(family.samples) for family in watched.scrape().families))
    assert sizes[0] == sizes[1]


def test_every_end_is_told_of_from_the_first_run_on(watched):
    found = watched.hear(begin()).scrape()
    ends = {sample.labels["status"]: sample.value for sample in found.find("mgspmv_runs_ended_total")}
    assert ends == dict.fromkeys([*Status, "failed", "abandoned"], 0)


def test_restarts_and_workers_that_leave_are_counted(watched):
    watched.hear(begin("a"), begin("b"), iterate(0, 1, 8, "a"), iterate(0, 5, 2, "a", epoch=3))
    watched.runs.lose_worker("tcp://1")
    watched.runs.lose_worker("tcp://of nobody")
    watched.hear(end("a"), end("b"))
    watched.runs.lose_worker("tcp://0")
    found = watched.scrape()
    assert found.get("mgspmv_run_restarts_total", operation="pagerank") == 1
    assert found.get("mgspmv_workers_lost_total") == 1, "one of two runs, and none after their ends"
    assert found.get("mgspmv_run_iterations", run="a") == 6
    assert found.get("mgspmv_iterations_total", operation="pagerank") == 10


def test_before_the_first_run_all_families_are_there(watched):
    found = watched.scrape()
    assert {family.name for family in found.families} == {family.name for family in tell_all(Watched()).families}
    assert [sample.name for family in found.families for sample in family.samples] == ["mgspmv_workers_lost_total"]


@pytest.mark.external("promtool")
def test_promtool_has_nothing_to_say(watched):
    checked: subprocess.CompletedProcess[str] = run_promtool("check", "metrics", given=tell_all(watched).text)
    assert (checked.returncode, checked.stdout) == (0, "")
