"""Tables of what is listed in the program: exit codes, kernels, metrics, and pipelines to copy."""

from __future__ import annotations

import re
from pathlib import Path

from markdown_tables import escape, make_table, show_code
from prometheus_client import CollectorRegistry, Metric

from mgspmv import errors
from mgspmv.cli import app
from mgspmv.cluster.worker_metrics import WorkerMetrics
from mgspmv.kernels.catalogue import KERNELS
from mgspmv.monitor.plugin import GAUGES, RunsCollector
from mgspmv.monitor.runs import COUNTERS, HISTOGRAMS, Runs

ROOT = Path(__file__).parents[2]
CODE = re.compile(r"(\d+) ([^,.]+)")


def write_exit_codes() -> str:
    """A row for each exit code that the program's help names."""
    by_code: dict[int, list[str]] = {}
    for name, value in vars(errors).items():
        if name.endswith("Error"):
            by_code.setdefault(value.exit_code, []).append(f"[`{name}`][mgspmv.errors.{name}]")
    codes = CODE.findall(str(app.info.epilog))
    rows = ((code, meaning, ", ".join(by_code.get(int(code), ()))) for code, meaning in codes)
    return make_table(("code", "means", "errors"), rows)


def write_kernels() -> str:
    """A row for each kernel."""
    rows = (
        (
            show_code(own.name),
            *map(", ".join, (own.backends, own.step_backends)),
            *map(escape, (own.summary, own.needs or "", own.literature)),
        )
        for own in KERNELS.values()
    )
    return make_table(("kernel", "products on", "PageRank on", "does", "needs", "source"), rows)


def write_metrics() -> str:
    """Two tables with a row for each metric, of the scheduler and of workers, below their headings."""
    runs, collector = Runs(), RunsCollector()
    collector.watched.append(runs)
    labels = {name: own for name, (_, *own) in (COUNTERS | HISTOGRAMS).items()}
    labels |= {name: list(own) for name, (_, own) in GAUGES.items()} | {"runs_active": ["operation"]}
    scheduler = [
        _describe_metric(own, labels.get(own.name.removeprefix("mgspmv_"), ["run"])) for own in collector.collect()
    ]

    registry = CollectorRegistry()
    WorkerMetrics(registry).count_failure("OptionError")
    named = [(own, [*own.samples[0].labels] if own.samples else []) for own in registry.collect()]
    workers = [_describe_metric(own, [label for label in names if label != "le"]) for own, names in named]

    head = ("metric", "type", "labels", "meaning")
    return f"### Scheduler\n\n{make_table(head, scheduler)}\n### Workers\n\n{make_table(head, workers)}"


def _describe_metric(metric: Metric, labels: list[str]) -> tuple[str, ...]:
    name = f"{metric.name}_total" if metric.type == "counter" else metric.name
    return show_code(name), metric.type, ", ".join(map(show_code, labels)), escape(metric.documentation)


def write_definitions() -> str:
    """Each definition as it is, below its name."""
    return "\n".join(
        f"## {path.name}\n\n[Download](pipelines/{path.name})\n\n```toml\n{path.read_text()}```\n"
        for path in sorted((ROOT / "pipelines").glob("*.toml"))
    )
