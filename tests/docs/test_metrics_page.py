"""The page about metrics lists every family as it is exported, every alert, and no other."""

from __future__ import annotations

import re

import prometheus_client
import pytest
import yaml

from mgspmv.distribute.worker_metrics import METRICS, WorkerMetrics
from mgspmv.monitor.run_metrics import COLLECTOR, RunsCollector
from tests.support.pages import ROOT, find_section, read_page

pytestmark = pytest.mark.docs


def test_every_family_and_every_alert_has_a_row() -> None:
    page = read_page("docs/metrics.md")
    families = {"What the scheduler tells": RunsCollector.families, "What workers tell": WorkerMetrics.families}
    for heading, own in families.items():
        rows = [(f.name, f.kind, ", ".join(f"`{label}`" for label in f.labels), f.help) for f in own]
        listed = re.findall(r"^\| `mgspmv_.*$", find_section(page, heading), re.MULTILINE)
        assert listed == [f"| `{name}` | {kind} | {labels} | {text} |" for name, kind, labels, text in rows]

    for collector in (METRICS, COLLECTOR):
        collector.register()
    served = prometheus_client.generate_latest().decode()
    kinds = dict(re.findall(r"^# TYPE (mgspmv_\w+) (.*)$", served, re.MULTILINE))
    helps = dict(re.findall(r"^# HELP (mgspmv_\w+) (.*)$", served, re.MULTILINE))
    every = [family for own in families.values() for family in own]
    assert kinds == {family.name: family.kind for family in every}
    assert helps == {family.name: family.help for family in every}

    groups = yaml.safe_load((ROOT / "deploy" / "monitoring" / "rules.yml").read_text())["groups"]
    alerts = [rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule]
    assert re.findall(r"^\| `(Mgspmv\w+)` \|", find_section(page, "Alerts"), re.MULTILINE) == alerts
