"""The page about metrics has every family as it is exported, every alert, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import prometheus_client
import yaml

from mgspmv.distribute.worker_metrics import METRICS, WorkerMetrics
from mgspmv.monitor.run_metrics import COLLECTOR, SHOWN_S, RunsCollector
from mgspmv.monitor.runs import RUNS_KEPT

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "metrics.md").read_text()


def find_section(heading: str) -> str:
    return PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def list_rows(heading: str) -> list[str]:
    return re.findall(r"^\| `mgspmv_.*$", find_section(heading), re.MULTILINE)


def test_every_family_has_a_row() -> None:
    for heading, families in (
        ("What the scheduler tells", RunsCollector.families),
        ("What workers tell", WorkerMetrics.families),
    ):
        rows = [(f.name, f.kind, ", ".join(f"`{label}`" for label in f.labels), f.help) for f in families]
        assert list_rows(heading) == [f"| `{name}` | {kind} | {labels} | {text} |" for name, kind, labels, text in rows]


def test_families_are_exported_as_the_page_says() -> None:
    """By name, kind and help, on what Dask serves."""
    for collector in (METRICS, COLLECTOR):
        collector.register()
    served = prometheus_client.generate_latest().decode()
    helps = dict(re.findall(r"^# HELP (mgspmv_\w+) (.*)$", served, re.MULTILINE))
    kinds = dict(re.findall(r"^# TYPE (mgspmv_\w+) (.*)$", served, re.MULTILINE))
    rows = [
        row.strip("| ").split(" | ")
        for row in [*list_rows("What the scheduler tells"), *list_rows("What workers tell")]
    ]
    assert {row[0].strip("`"): row[1] for row in rows} == kinds
    assert {row[0].strip("`"): row[-1] for row in rows} == helps


def test_bounds_are_those_of_the_program() -> None:
    assert SHOWN_S == 120, "two minutes"
    assert f"at most {RUNS_KEPT} at a time" in PAGE
    assert f"at most {4 * RUNS_KEPT} times the workers" in PAGE


def test_every_alert_has_a_row() -> None:
    groups = yaml.safe_load((ROOT / "deploy" / "monitoring" / "rules.yml").read_text())["groups"]
    alerts = [rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule]
    assert re.findall(r"^\| `(Mgspmv\w+)` \|", find_section("Alerts"), re.MULTILINE) == alerts
