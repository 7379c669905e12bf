"""What a scheduler has of runs: on one with a dashboard a page, on any other their state."""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from distributed import Client
from distributed.client import ClosedClientError

import mgspmv as mg
from mgspmv.cluster.worker_metrics import TOPIC
from mgspmv.errors import ClusterError
from mgspmv.monitor import page as module
from mgspmv.monitor.events import find_dashboard
from mgspmv.monitor.page import add_page
from mgspmv.monitor.plugin import COLLECTOR, RunsPlugin
from mgspmv.monitor.runs import Runs
from tests.support.clusters import start_cluster
from tests.support.hearing import on_events
from tests.support.messages import begin, end, iterate
from tests.support.scraping import scrape
from tests.support.waiting import HANG_S, wait_for

OWN = "data-root-id"
"""What a page of Bokeh's has."""


@pytest.fixture(scope="module")
def cluster():
    """Of one worker in this process, whose scheduler has a dashboard with a prefix."""
    with start_cluster(
        1, processes=False, dashboard_address="127.0.0.1:0", scheduler_kwargs={"http_prefix": "behind"}
    ) as started:
        yield started


def fetch(cluster, path):
    address = f"http://127.0.0.1:{cluster.scheduler.http_server.port}{path}"
    return urllib.request.urlopen(address, timeout=HANG_S).read().decode()


def find_pages(scheduler):
    return [app for app in scheduler.http_application.applications if hasattr(app, "_applications")]


@pytest.mark.slow
def test_a_run_brings_the_page_and_the_link_to_it(cluster, tmp_path):
    mg.generate("rmat", tmp_path / "web.zarr", scale=6, seed=1)
    before = len(find_pages(cluster.scheduler))
    with pytest.raises(urllib.error.HTTPError, match="404"):
        fetch(cluster, "/behind/pagerank")
    assert 'href="pagerank"' not in fetch(cluster, "/behind/status")
    with Client(cluster, set_as_default=False) as client:
        for _ in range(2):
            mg.pagerank(mg.open_matrix(tmp_path / "web.zarr").on(client))
    page = fetch(cluster, "/behind/pagerank")
    assert OWN in page
    for place in ("/behind/status", "/behind/workers", "/behind/pagerank"):
        assert fetch(cluster, place).count('href="pagerank"') == 1
    assert len(find_pages(cluster.scheduler)) == before + 1, "once"
    assert len(cluster.scheduler.plugins[RunsPlugin.name].runs.by_id) == 2


def test_what_was_published_before_is_not_lost(cluster):
    with Client(cluster, set_as_default=False) as client:
        client.log_event(TOPIC, begin("early", client=client.id))
        client.log_event(TOPIC, iterate(0, 1, 3, "early"))
        client.log_event("other", begin("not ours"))
        client.log_event(TOPIC, {"kind": "begin", "run": "of another version"})
        client.log_event(TOPIC, "of another program")
        monitor = RunsPlugin()
        client.sync(monitor.start, cluster.scheduler)
        assert [(run.run, run.iterations) for run in monitor.runs.by_id.values()][-1] == ("early", 3)
        client.register_plugin(RunsPlugin())
        kept = cluster.scheduler.plugins[RunsPlugin.name]
        client.log_event(TOPIC, begin("late", client=client.id))
        client.log_event("other", begin("not ours"))
        assert kept.runs.by_id["late"].is_running
    assert wait_for(lambda: kept.runs.by_id["late"].state == "abandoned")
    assert "not ours" not in kept.runs.by_id


def test_workers_that_leave_are_noted(cluster):
    monitor = RunsPlugin()
    monitor.runs = Runs()
    monitor.log_event(TOPIC, begin())
    monitor.remove_worker(cluster.scheduler, "tcp://0", stimulus_id="")
    monitor.log_event(TOPIC, end())
    assert monitor.runs.by_id["r"].errors == ["worker w0 (tcp://0) left the cluster"]


def test_the_runs_of_the_last_scheduler_are_on_metrics():
    """Of several, one after the other in a process; each has its own counts."""
    before = [*COLLECTOR.watched]
    for operation in ("one", "two"):
        with start_cluster(1, processes=False) as cluster, Client(cluster, set_as_default=False) as client:
            client.register_plugin(RunsPlugin())
            client.log_event(TOPIC, begin(operation=operation, client=client.id))
            found = scrape(f"127.0.0.1:{cluster.scheduler.http_server.port}")
            assert [sample.labels["operation"] for sample in found.find("mgspmv_runs_active")] == [operation]
    assert COLLECTOR.watched == before, "what has ended is not told of for ever"


@pytest.mark.parametrize("first_to_end", ["older", "newer"])
def test_one_of_two_schedulers_that_ends_leaves_the_other(first_to_end, cluster):
    with Client(cluster, set_as_default=False) as client:
        plugins = {"older": RunsPlugin(), "newer": RunsPlugin()}
        for plugin in plugins.values():
            client.sync(plugin.start, cluster.scheduler)
        assert COLLECTOR.watched[-1] is plugins["newer"].runs
        client.sync(plugins.pop(first_to_end).close)
        [left] = plugins.values()
        assert COLLECTOR.watched[-1] is left.runs
        client.sync(left.close)
        assert left.runs not in COLLECTOR.watched


def test_without_a_dashboard_there_is_no_page(in_process):
    client = in_process(1)
    scheduler = client.cluster.scheduler
    assert not add_page(scheduler, Runs())
    client.register_plugin(RunsPlugin())
    assert RunsPlugin.name in scheduler.plugins
    assert client.dashboard_link.endswith("/status")
    assert find_dashboard(client) is None


def test_the_address_of_the_page(cluster, monkeypatch):
    with Client(cluster, set_as_default=False) as client, monkeypatch.context() as patched:
        assert find_dashboard(client) == client.dashboard_link.removesuffix("status") + "pagerank"
        patched.setattr(cluster.scheduler.plugins[RunsPlugin.name], "has_page", None)
        assert find_dashboard(client) == client.dashboard_link, "its version has no place for the page"


def test_a_dashboard_that_is_unknown_is_left_alone(cluster, monkeypatch, caplog):
    def fail(scheduler, runs):
        raise AttributeError("another dashboard")

    monkeypatch.setattr(module, "add_page", fail)
    with Client(cluster, set_as_default=False) as client:
        client.sync(RunsPlugin().start, cluster.scheduler)
    said = [record.getMessage() for record in caplog.records if record.name == "mgspmv"]
    assert said == ["the dashboard has no page on runs"]


def test_a_run_whose_client_goes_away_is_abandoned(cluster, tmp_path):
    mg.generate("rmat", tmp_path / "web.zarr", scale=6, seed=1)
    with Client(cluster, set_as_default=False) as client:
        name = client.id
        asked = {"norm": "fixed", "max_iter": 100_000, "progress": on_events(lambda event: client.close())}
        with pytest.raises((ClusterError, ClosedClientError)):
            mg.pagerank(mg.open_matrix(tmp_path / "web.zarr").on(client), **asked)
    [run] = [run for run in cluster.scheduler.plugins[RunsPlugin.name].runs.by_id.values() if run.client == name]
    assert wait_for(lambda: run.state == "abandoned")
    assert run.errors == ["its client disconnected"]
    assert run.iterations > 0, "what the worker did is there"


@pytest.mark.slow
def test_a_scheduler_may_have_it_from_the_start():
    def count_pages(dask_scheduler):  # goes there as it is
        from distributed.dashboard.scheduler import template_variables

        apps = [getattr(app, "_applications", {}) for app in dask_scheduler.http_application.applications]
        return sum("/pagerank" in app for app in apps), template_variables(dask_scheduler)["pages"].count("pagerank")

    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--port", "0", "--host", "127.0.0.1"]
    command += ["--dashboard-address", "127.0.0.1:0", "--preload", "mgspmv.monitor.plugin"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
    try:
        said, found = "", None
        while found is None:
            line = process.stderr.readline()
            assert line, said
            said += line
            found = re.search(r"dashboard at: +(\S+)", said)
        address = re.search(r"Scheduler at: +(\S+)", said)[1]
        with Client(address, set_as_default=False) as client:
            assert client.run_on_scheduler(count_pages) == (1, 1)
        page = urllib.request.urlopen(found[1].replace("/status", "/pagerank"), timeout=HANG_S).read().decode()
        assert OWN in page
        address = found[1].removeprefix("http://").removesuffix("/status")
        assert scrape(address).get("mgspmv_workers_lost_total") == 0
    finally:
        process.terminate()
        process.wait()
