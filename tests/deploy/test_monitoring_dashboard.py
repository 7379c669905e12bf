"""The dashboard for Grafana and the rules for Prometheus ask for metrics that schedulers and workers export."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from tests.support.scraping import list_run_families, list_worker_families, run_promtool

FOLDER = Path(__file__).parents[2] / "deploy" / "monitoring"
DASHBOARD = json.loads((FOLDER / "grafana-dashboard.json").read_text())
DRAWN = {panel["title"]: panel for panel in DASHBOARD["panels"] if panel["type"] != "row"}
RULES = [rule for group in yaml.safe_load((FOLDER / "rules.yml").read_text())["groups"] for rule in group["rules"]]

TARGET = {"instance", "job"}
"""Labels that Prometheus gives, beside `worker` of the workers' targets."""
NAME = re.compile(r"\b(?:mgspmv_\w+|\w+:mgspmv_\w+:\w+|up|ALERTS)\b(?:\s*\{(?P<matchers>[^}]*)\})?")
GROUPED = re.compile(r"\b(?:by|on|without|ignoring|group_left|group_right)\s*\(([^)]*)\)")


def list_exported():
    """Of each name that there is its labels."""
    labels = {"up": {*TARGET, "worker"}, "ALERTS": {*TARGET, "worker", "run", "alertname", "alertstate"}}
    for family in list_run_families():
        labels |= list_samples(family, TARGET)
    for family in list_worker_families():
        labels |= list_samples(family, {*TARGET, "worker"})
    return labels


def list_samples(family, target):
    own = {*family.labels, *target}
    if family.kind != "histogram":
        return {family.name: own}
    return {f"{family.name}_bucket": own | {"le"}, f"{family.name}_sum": own, f"{family.name}_count": own}


EXPORTED = list_exported()
RECORDED = {rule["record"]: None for rule in RULES if "record" in rule}


def check_expression(expression):
    """Every name is one that is exported, or recorded; every label one of a name in the expression."""
    known = set()
    for found in NAME.finditer(expression):
        name = re.match(r"[\w:]+", found[0])[0]
        assert name in EXPORTED or name in RECORDED, f"{name} of {expression}"
        labels = EXPORTED.get(name, {*TARGET, "run", "worker", "where", "operation", "phase"})
        asked = re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", found["matchers"] or "")
        assert {*asked} <= labels, f"{asked} of {name}, which has {labels}"
        known |= labels
    assert known, f"nothing of ours in {expression}"
    grouped = {label.strip() for found in GROUPED.findall(expression) for label in found.split(",")}
    assert grouped <= known, f"{grouped - known} of {expression}"
    return known


def list_targets():
    return [(title, target) for title, panel in DRAWN.items() for target in panel["targets"]]


OWN = {
    "templating.list.definition": "Grafana's page of variables writes it",
    "annotations.list.titleFormat": "of annotations by Prometheus",
    "annotations.list.textFormat": "of annotations by Prometheus",
    "annotations.list.step": "of annotations by Prometheus",
}
"""Keys that Grafana has and its models have not, and whose they are."""


def list_unknown(dashboard: dict[str, Any]) -> set[str]:
    """Paths of keys that are lost when Grafana's own models read the dashboard and write it."""
    register_default_plugins()
    written = JSONEncoder(sort_keys=True, indent=None).encode(Dashboard.from_json(copy.deepcopy(dashboard)))
    return {*find_lost(dashboard, json.loads(written), ())}


def find_lost(given: Any, kept: Any, path: tuple[str, ...]) -> Iterator[str]:
    if isinstance(given, dict):
        for key, value in given.items():
            inner = (*path, key)
            yield from find_lost(value, kept[key], inner) if key in kept else (".".join(inner),)
    elif isinstance(given, list):
        for value, other in zip(given, kept, strict=True):
            yield from find_lost(value, other, path)
    elif given != kept:
        yield ".".join(path)


def test_grafana_knows_all_keys():
    assert list_unknown(DASHBOARD) == {*OWN}
    broken = copy.deepcopy(DASHBOARD)
    broken["refesh"] = broken.pop("refresh")
    broken["panels"][-1]["optoins"] = broken["panels"][-1].pop("options")
    assert list_unknown(broken) == {*OWN, "refesh", "panels.optoins"}


def fill(expression):
    """What Grafana sends."""
    return expression.replace("$__rate_interval", "1m").replace("$operation", ".+").replace("$run", ".+")


def test_queries_ask_for_metrics_that_exist():
    for title, target in list_targets():
        known = check_expression(fill(target["expr"]))
        assert {*re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])} <= known, title
    variables = {each["name"]: each for each in DASHBOARD["templating"]["list"]}
    for name in ("operation", "run"):
        asked = re.fullmatch(r"label_values\((.*), (\w+)\)", variables[name]["definition"])
        assert asked[2] == name
        assert name in check_expression(fill(asked[1]))
    assert {*re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD))} <= {*variables, "__rate_interval", "__all"}


def test_rules_ask_for_metrics_that_exist():
    for rule in RULES:
        known = check_expression(rule["expr"])
        for text in rule.get("annotations", {}).values():
            assert {*re.findall(r"\$labels\.(\w+)", text)} <= known | {"operation", "matrix", "where"}, text


@pytest.mark.external("promtool")
def test_prometheus_understands_every_expression(tmp_path):
    asked = [target["expr"] for _, target in list_targets()]
    asked += [each["expr"] for each in DASHBOARD["annotations"]["list"]]
    rules = [{"record": f"panel:{k}", "expr": fill(expression)} for k, expression in enumerate(asked)]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    checked = run_promtool("check", "rules", tmp_path / "rules.yml")
    assert checked.returncode == 0, checked.stdout
    assert f"{len(asked)} rules found" in checked.stdout
