"""What servers of Dask have for Prometheus, read by the programs of others: its client, `promtool`, and Prometheus."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.parser import text_string_to_metric_families

from mgspmv.cluster.worker_metrics import WorkerMetrics
from mgspmv.monitor.plugin import RunsCollector
from mgspmv.monitor.runs import Runs
from tests.support.messages import begin, checkpoint, iterate, recover
from tests.support.ports import find_free_port
from tests.support.waiting import HANG_S, wait_for


def need(program: str) -> str:
    """Where a program of Prometheus is; skips the test where it is not."""
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"there is no {program} here; install Prometheus (Debian: apt install prometheus)")
    return found


def run_promtool(*arguments: str | Path, given: str | None = None) -> subprocess.CompletedProcess[str]:
    """What `promtool` says, its stderr with its stdout."""
    command = [need("promtool"), *map(str, arguments)]
    return subprocess.run(
        command, input=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=HANG_S
    )


def fetch(address: str, path: str = "/metrics") -> str:
    """The text that a server (`host:port`) has."""
    return urllib.request.urlopen(f"http://{address}{path}", timeout=HANG_S).read().decode()


def pick_own(text: str) -> str:
    """The lines of our families; the others are Dask's and Python's."""
    own = ("mgspmv_", "# HELP mgspmv_", "# TYPE mgspmv_")
    return "".join(f"{line}\n" for line in text.splitlines() if line.startswith(own))


class Scraped:
    """Our families, as a server had them."""

    def __init__(self, text: str) -> None:
        self.text = pick_own(text)
        self.families: list[Metric] = [*text_string_to_metric_families(self.text)]

    def get(self, name: str, **labels: str) -> float:
        """The number of these labels, and of no others."""
        [value] = [sample.value for sample in self.find(name) if sample.labels == labels]
        return value

    def find(self, name: str, **labels: str) -> list[Any]:
        """All samples of a name that have these labels."""
        samples = [sample for family in self.families for sample in family.samples if sample.name == name]
        return [sample for sample in samples if labels.items() <= sample.labels.items()]


@dataclass(frozen=True)
class Family:
    """Numbers of one name, as they are exported."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str


def list_run_families() -> list[Family]:
    """What a scheduler exports, once its runs have told all that there is to tell."""
    runs, collector = Runs(), RunsCollector()
    workers = begin()["workers"]
    for message in (begin(), recover(workers, 0), *(iterate(rank, 1, 4, epoch=1) for rank in (0, 1)), checkpoint(4)):
        runs.hear(message)
    collector.watched.append(runs)
    return [_describe_family(metric) for metric in collector.collect()]


def list_worker_families() -> list[Family]:
    """What a worker exports, once a task failed."""
    registry = CollectorRegistry()
    WorkerMetrics(registry).count_failure("OptionError")
    return [_describe_family(metric) for metric in registry.collect()]


def _describe_family(metric: Metric) -> Family:
    labels = tuple(name for name in (metric.samples[0].labels if metric.samples else ()) if name != "le")
    name = f"{metric.name}_total" if metric.type == "counter" else metric.name
    return Family(name, metric.type, labels, metric.documentation)


def scrape(address: str) -> Scraped:
    return Scraped(fetch(address))


def list_workers(client: Any) -> dict[str, str]:
    """Of each worker's name the address of its server."""
    workers = client.scheduler_info(n_workers=-1)["workers"]
    return {str(worker["name"]): f"{worker['host']}:{worker['services']['dashboard']}" for worker in workers.values()}


class Prometheus:
    """A server that runs."""

    def __init__(self, address: str) -> None:
        self._address = address

    def query(self, expression: str) -> dict[tuple[tuple[str, str], ...], float]:
        """What an expression is now, by its labels without those of the target."""
        asked = urllib.parse.urlencode({"query": expression})
        found = json.loads(fetch(self._address, f"/api/v1/query?{asked}"))["data"]["result"]
        return {_list_labels(each["metric"]): float(each["value"][1]) for each in found}

    def wait_for(self, expression: str, n: int = 1) -> dict[tuple[tuple[str, str], ...], float]:
        """What it is once there are so many."""
        found: dict[tuple[tuple[str, str], ...], float] = {}

        def look() -> bool:
            found.clear()
            found.update(self.query(expression))
            return len(found) == n

        assert wait_for(look, HANG_S), f"{expression} never had {n} series: {found}"
        return found

    def ask(self, path: str) -> Any:
        """What its API answers."""
        return json.loads(fetch(self._address, f"/api/v1/{path}"))["data"]


def _list_labels(metric: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((k, v) for k, v in metric.items() if k not in ("__name__", "instance", "job")))


@contextmanager
def start_prometheus(config: Path, folder: Path) -> Iterator[Prometheus]:
    """A server on this machine with this configuration, which is ended, whatever happens."""
    address = f"127.0.0.1:{find_free_port()}"
    command = [need("prometheus"), f"--config.file={config}", f"--storage.tsdb.path={folder}"]
    with (folder.parent / "prometheus.log").open("w+") as log:
        process = subprocess.Popen([*command, f"--web.listen-address={address}"], stdout=log, stderr=log)
        try:
            assert wait_for(lambda: process.poll() is not None or _is_ready(address), HANG_S)
            assert process.poll() is None, Path(log.name).read_text()
            yield Prometheus(address)
        finally:
            process.terminate()
            try:
                process.wait(HANG_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _is_ready(address: str) -> bool:
    try:
        fetch(address, "/-/ready")
    except OSError:
        return False
    return True
