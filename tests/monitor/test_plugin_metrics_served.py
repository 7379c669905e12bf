"""`/metrics` of a cluster of processes, during a run and after it, as Prometheus and its programs read it."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
import yaml
from distributed import Client

import mgspmv as mg
from mgspmv.cluster.connect import start_local
from mgspmv.cluster.security import use_tls
from mgspmv.cluster.worker_metrics import PHASES, TOPIC
from mgspmv.errors import ClosedError
from mgspmv.monitor.plugin import RunsPlugin
from tests.support.certificates import make_certificates
from tests.support.clusters import start_cluster
from tests.support.hearing import on_events
from tests.support.scraping import list_workers, run_promtool, scrape, start_prometheus
from tests.support.waiting import HANG_S

pytestmark = pytest.mark.slow
DEPLOYED = Path(__file__).parents[2] / "deploy" / "monitoring"
TOL = 1e-4


@pytest.fixture(scope="module")
def cluster():
    with start_cluster(2, dashboard_address="127.0.0.1:0") as started:
        yield started


@pytest.fixture(scope="module")
def client(cluster):
    with Client(cluster, set_as_default=False) as connected:
        yield connected


@pytest.fixture(scope="module")
def address(cluster):
    """Of the scheduler's server."""
    return f"127.0.0.1:{cluster.scheduler.http_server.port}"


@pytest.fixture(scope="module")
def matrix(tmp_path_factory, client):
    """A ring, along which the rank of one vertex goes round for hundreds of iterations."""
    path, n = tmp_path_factory.mktemp("served") / "ring.zarr", 1024
    mg.ingest((np.arange(n), np.roll(np.arange(n), -1)), path, kind="graph", n_vertices=n)
    with mg.open_matrix(path) as A, A.distribute(client) as D:
        yield D


class Running(threading.Thread):
    """A run that stops after its first superstep until it is let go on."""

    def __init__(self, matrix):
        super().__init__()
        self._matrix = matrix
        self.has_begun, self.may_go_on = threading.Event(), threading.Event()
        self.solution = None

    def run(self):
        asked = {"alpha": 0.99, "personalization": {0: 1.0}, "tol": TOL, "max_iter": 5000}
        self.solution = mg.pagerank(self._matrix, **asked, progress=on_events(self._pause))

    def _pause(self, event):
        self.has_begun.set()
        self.may_go_on.wait(HANG_S)

    def __enter__(self):
        self.start()
        assert self.has_begun.wait(HANG_S)
        return self

    def __exit__(self, *error):
        self.may_go_on.set()
        self.join(HANG_S)


def check_lint(*texts):
    for text in texts:
        checked = run_promtool("check", "metrics", given=text)
        assert (checked.returncode, checked.stdout) == (0, "")


def add_up(solution, name, rank=None):
    of_events = [getattr(event, name) for event in solution.events]
    return sum(sum(values) if rank is None else values[rank] for values in of_events)


@pytest.mark.external("promtool")
def test_numbers_are_those_of_the_solution(matrix, client, address):
    workers = list_workers(client)
    with Running(matrix) as running:
        before, others = scrape(address), {name: scrape(server) for name, server in workers.items()}
    after, ended = scrape(address), {name: scrape(server) for name, server in workers.items()}
    solution = running.solution
    [run] = {event.run for event in solution.events}
    check_during(before, run, solution)
    for rank, member in enumerate(matrix.members):
        name, plan = str(member.name), matrix.plan.workers[rank]
        assert 0 < others[name].get("mgspmv_worker_iterations_total") < solution.iterations
        assert others[name].get("mgspmv_worker_runs_bytes") == solution.events[0].memory_bytes[rank]
        check_worker(ended[name], solution, rank, plan.nnz)
    check_after(after, run, solution, matrix)
    check_lint(before.text, after.text, *(found.text for found in ended.values()))


def check_during(found, run, solution):
    """Its workers are as far as their first superstep, and nothing has been counted of its end."""
    assert found.get("mgspmv_run_active", run=run) == 1
    assert found.get("mgspmv_run_state", run=run, state="iterate") == 1
    assert found.get("mgspmv_runs_active", operation="pagerank") == 1
    made = int(found.get("mgspmv_run_iterations", run=run))
    assert 0 < made < solution.iterations
    assert found.get("mgspmv_run_change", run=run) == solution.changes[made - 1]
    assert found.get("mgspmv_iterations_total", operation="pagerank") == made
    assert {sample.value for sample in found.find("mgspmv_run_phase_seconds_count")} == {0}
    assert found.get("mgspmv_run_last_message_timestamp_seconds", run=run) > found.get(
        "mgspmv_run_start_timestamp_seconds", run=run
    )


def check_worker(found, solution, rank, nnz):
    assert found.get("mgspmv_worker_iterations_total") == solution.iterations
    assert found.get("mgspmv_worker_edges_total") == solution.iterations * nnz
    assert found.get("mgspmv_worker_exchanged_bytes_total") == add_up(solution, "exchanged_bytes", rank)
    for phase in PHASES:
        histogram = {"name": "mgspmv_worker_iteration_seconds_bucket", "phase": phase}
        buckets = {sample.labels["le"]: sample.value for sample in found.find(**histogram)}
        seconds = [getattr(event, f"{phase}_s")[rank] for event in solution.events]
        assert buckets == {le: sum(s <= float(le) for s in seconds) for le in buckets}
        total = found.get("mgspmv_worker_iteration_seconds_sum", phase=phase)
        assert total == pytest.approx(add_up(solution, f"{phase}_s", rank))
    assert found.get("mgspmv_worker_rows_bytes") > 0
    assert found.get("mgspmv_worker_runs_bytes") == 0


def check_after(found, run, solution, matrix):
    counts = {"iterations_total": solution.iterations, "edges_total": solution.iterations * matrix.nnz}
    counts |= {"exchanged_bytes_total": add_up(solution, "exchanged_bytes"), "runs_active": 0, "runs_started_total": 1}
    for name, value in counts.items():
        assert found.get(f"mgspmv_{name}", operation="pagerank") == value, name
    assert found.get("mgspmv_runs_ended_total", operation="pagerank", status="converged") == 1
    for phase in ("product", "exchange", "schedule"):
        total = found.get("mgspmv_run_phase_seconds_sum", operation="pagerank", phase=phase)
        assert total == pytest.approx(solution.seconds[phase])
    numbers = {"active": 0, "iterations": solution.iterations, "change": solution.changes[-1], "tolerance": TOL}
    for name, value in numbers.items():
        assert found.get(f"mgspmv_run_{name}", run=run) == value, name
    assert found.get("mgspmv_run_state", run=run, state="converged") == 1
    memory = zip(matrix.members, solution.memory["planned_bytes"], solution.memory["host_peak_bytes"], strict=True)
    for member, planned, used in memory:
        labels = {"run": run, "worker": str(member.name), "where": "host"}
        assert found.get("mgspmv_run_worker_planned_bytes", **labels) == planned
        assert found.get("mgspmv_run_worker_used_bytes", **labels) == used


def test_checkpoints_of_a_run_are_counted(client, address, tmp_path):
    mg.generate("rmat", tmp_path / "web.zarr", scale=8, seed=1)
    asked = {"checkpoint": mg.Checkpoint(tmp_path / "kept.zarr", every_s=0.0), "norm": "fixed", "max_iter": 2000}
    with mg.open_matrix(tmp_path / "web.zarr") as A:
        solution = mg.pagerank(A.on(client), **asked)
    [run] = {event.run for event in solution.events}
    told = [message for _, message in client.get_events(TOPIC) if message["run"] == run]
    written = [message for message in told if message["kind"] == "checkpoint"]
    assert written
    found = scrape(address)
    assert found.get("mgspmv_run_checkpoints", run=run) == len(written)
    assert found.get("mgspmv_checkpoints_total", operation="pagerank") == len(written)
    total = sum(message["n_bytes"] for message in written)
    assert found.get("mgspmv_checkpoint_bytes_total", operation="pagerank") == total > 0
    seconds = found.get("mgspmv_checkpoint_seconds_sum", operation="pagerank")
    assert seconds == pytest.approx(sum(message["seconds"] for message in written))
    last = found.get("mgspmv_run_last_checkpoint_timestamp_seconds", run=run)
    assert last <= found.get("mgspmv_run_last_message_timestamp_seconds", run=run)


def deploy(address, folder):
    """What is deployed, for this scheduler, and at the pace of a test."""
    config = yaml.safe_load((DEPLOYED / "prometheus.yml").read_text())
    text = yaml.safe_dump(config).replace("scheduler:8787", address).replace("15s", "200ms")
    assert text.count(address) == 2
    path = folder / "prometheus.yml"
    path.write_text(text)
    (folder / "rules.yml").write_text((DEPLOYED / "rules.yml").read_text())
    return path


@pytest.mark.external("prometheus")
def test_prometheus_answers_what_the_solution_says(matrix, client, address, tmp_path):
    mg.pagerank(matrix, norm="fixed", max_iter=10)  # there is no address for workers before the first run
    with start_prometheus(deploy(address, tmp_path), tmp_path / "data") as prometheus:
        assert len(prometheus.wait_for('up{job="mgspmv-workers"} == 1', 2)) == 2
        prometheus.wait_for('up{job="mgspmv-scheduler"} == 1')
        with Running(matrix) as running:
            [(labels, active)] = prometheus.wait_for("mgspmv_run_active == 1").items()
            prometheus.wait_for("rate(mgspmv_iterations_total[5s]) > 0")
        solution = running.solution
        [run] = {event.run for event in solution.events}
        assert (dict(labels)["run"], active) == (run, 1)
        key = (("run", run),)
        prometheus.wait_for(f'mgspmv_run_active{{run="{run}"}} == 0')
        assert prometheus.query(f'mgspmv_run_iterations{{run="{run}"}}') == {key: solution.iterations}
        assert prometheus.query(f'mgspmv_run_change{{run="{run}"}}') == {key: solution.changes[-1]}
        for rank, member in enumerate(matrix.members):
            used = f'mgspmv_run_worker_used_bytes{{run="{run}", worker="{member.name}"}}'
            assert [*prometheus.query(used).values()] == [solution.memory["host_peak_bytes"][rank]]
            done = f'mgspmv_worker_iterations_total{{worker="{member.name}"}}'
            wanted = scrape(list_workers(client)[str(member.name)]).get("mgspmv_worker_iterations_total")
            prometheus.wait_for(f"{done} == {wanted}")
        groups = prometheus.ask("rules")["groups"]
        assert {rule["health"] for group in groups for rule in group["rules"]} <= {"ok", "unknown"}
        assert sum(len(group["rules"]) for group in groups) >= 14
        assert prometheus.query('ALERTS{alertstate="firing"}') == {}
        check_failure(prometheus, matrix)


@pytest.mark.external("prometheus")
def test_with_certificates_prometheus_gets_in(tmp_path):
    own = make_certificates(tmp_path / "certificates")
    page = (DEPLOYED.parents[1] / "docs" / "metrics.md").read_text()
    files = yaml.safe_load(next(line for line in page.splitlines() if "tls_config:" in line))["tls_config"]
    files |= {key: str(tmp_path / path) for key, path in files.items() if key.endswith("_file")}
    there = dict.fromkeys(("host", "dashboard_host"), "127.0.0.2")  # an address that certificates do not have
    with use_tls(own), start_local(2, 1, **there) as started, Client(started, set_as_default=False) as client:
        client.register_plugin(RunsPlugin())
        path = deploy(f"127.0.0.2:{started.scheduler.http_server.port}", tmp_path)
        config = yaml.safe_load(path.read_text())
        for job in config["scrape_configs"]:
            job |= {"scheme": "https", "tls_config": files}
        [discovery] = job["http_sd_configs"]
        discovery |= {"url": discovery["url"].replace("http:", "https:"), "tls_config": files}
        path.write_text(yaml.safe_dump(config))
        with start_prometheus(path, tmp_path / "data") as prometheus:
            prometheus.wait_for('up{job="mgspmv-scheduler"} == 1')
            prometheus.wait_for('up{job="mgspmv-workers"} == 1', 2)


def check_failure(prometheus, matrix):
    """One that fails is told of within two rounds."""

    def stop(event):
        raise ClosedError("enough")

    with pytest.raises(ClosedError):
        mg.pagerank(matrix, progress=on_events(stop))
    [(labels, _)] = prometheus.wait_for('ALERTS{alertname="MgspmvRunFailed", alertstate="firing"}').items()
    assert dict(labels)["state"] == "failed"
