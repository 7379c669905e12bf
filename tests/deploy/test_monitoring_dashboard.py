"""The dashboard for Grafana, and rules beside it: what they ask for is what schedulers and workers tell."""

from __future__ import annotations

import copy
import itertools
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

from mgspmv.distribute.worker_metrics import WorkerMetrics
from mgspmv.monitor.run_metrics import RunsCollector
from tests.support.scraping import run_promtool

FOLDER = Path(__file__).parents[2] / "deploy" / "monitoring"
DASHBOARD = json.loads((FOLDER / "grafana-dashboard.json").read_text())
PANELS = DASHBOARD["panels"]
DRAWN = {panel["title"]: panel for panel in PANELS if panel["type"] != "row"}
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
RULES = [rule for group in yaml.safe_load((FOLDER / "rules.yml").read_text())["groups"] for rule in group["rules"]]

TARGET = {"instance", "job"}
"""Labels that Prometheus gives, beside `worker` of the workers' targets."""
NAME = re.compile(r"\b(?:mgspmv_\w+|\w+:mgspmv_\w+:\w+|up|ALERTS)\b(?:\s*\{(?P<matchers>[^}]*)\})?")
GROUPED = re.compile(r"\b(?:by|on|without|ignoring|group_left|group_right)\s*\(([^)]*)\)")


def list_exported():
    """Of each name that there is its labels."""
    labels = {"up": {*TARGET, "worker"}, "ALERTS": {*TARGET, "worker", "run", "alertname", "alertstate"}}
    for family in RunsCollector.families:
        labels |= list_samples(family, TARGET)
    for family in WorkerMetrics.families:
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


# --- what Grafana wants ----------------------------------------------------------------------------------------------


def test_panels_have_ids_of_their_own_and_places_that_are_free():
    ids = [panel["id"] for panel in PANELS]
    assert len({*ids}) == len(ids)
    taken = {}
    for panel in PANELS:
        place = panel["gridPos"]
        assert place.keys() == {"x", "y", "w", "h"}
        assert place["x"] >= 0 < place["w"]
        assert place["x"] + place["w"] <= 24
        for cell in itertools.product(
            range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"])
        ):
            assert cell not in taken, f"{panel['title']} is over {taken[cell]}"
            taken[cell] = panel["title"]
    assert len({panel["title"] for panel in DRAWN.values()}) == len([p for p in PANELS if p["type"] != "row"])


def test_it_can_be_imported():
    assert DASHBOARD["schemaVersion"] >= 36
    assert DASHBOARD["uid"]
    assert "id" not in DASHBOARD, "Grafana gives one"
    assert {panel["type"] for panel in PANELS} <= {"row", "stat", "timeseries", "state-timeline", "table"}
    for panel in DRAWN.values():
        assert panel["description"].endswith(".")
        assert panel["fieldConfig"].keys() == {"defaults", "overrides"}
        refs = [target["refId"] for target in panel["targets"]]
        assert len({*refs}) == len(refs) > 0


def test_the_datasource_is_chosen_in_it():
    first, *others = DASHBOARD["templating"]["list"]
    assert (first["name"], first["type"], first["query"]) == ("datasource", "datasource", "prometheus")
    asked = [*others, *DASHBOARD["annotations"]["list"], *DRAWN.values()]
    asked += [target for _, target in list_targets()]
    assert all(each["datasource"] == DATASOURCE for each in asked)
    assert json.dumps(DASHBOARD).count('"datasource":') == len(asked)


def test_runs_and_operations_are_chosen_in_it():
    variables = {each["name"]: each for each in DASHBOARD["templating"]["list"]}
    for name in ("operation", "run"):
        asked = re.fullmatch(r"label_values\((.*), (\w+)\)", variables[name]["definition"])
        assert asked[2] == name
        assert name in check_expression(fill(asked[1]))
        assert variables[name]["query"]["query"] == variables[name]["definition"]
    used = {*re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD))}
    assert used <= {*variables, "__rate_interval", "__all"}


# --- keys that Grafana knows -----------------------------------------------------------------------------------------

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


def rename(thing: Any, right: str, wrong: str) -> int:
    """Give every key of this name another; how many there were."""
    if isinstance(thing, list):
        return sum(rename(value, right, wrong) for value in thing)
    if not isinstance(thing, dict):
        return 0
    renamed = sum(rename(value, right, wrong) for value in thing.values())
    if right in thing:
        thing[wrong] = thing.pop(right)
        renamed += 1
    return renamed


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("refresh", "refesh"),
        ("gridPos", "gridPosition"),
        ("unit", "untit"),
        ("decimals", "decimal"),
        ("overrides", "override"),
        ("drawStyle", "drawStile"),
        ("scaleDistribution", "scaleDistibution"),
        ("legend", "legned"),
        ("showLegend", "showLegends"),
        ("colorMode", "colourMode"),
        ("calcs", "calc"),
        ("showValue", "showValues"),
        ("expr", "expression"),
        ("legendFormat", "legendformat"),
        ("refId", "refid"),
        ("includeAll", "includeall"),
        ("iconColor", "iconColour"),
        ("schemaVersion", "schemeVersion"),
        ("transformations", "transforms"),
    ],
)
def test_a_misspelt_key_is_found(right, wrong):
    broken = copy.deepcopy(DASHBOARD)
    assert rename(broken, right, wrong) > 0
    assert any(path.endswith(wrong) for path in list_unknown(broken))


def test_misspelt_options_of_a_panel_are_found():
    for panel in (copy.deepcopy(panel) for panel in DRAWN.values()):
        panel["optoins"] = panel.pop("options")
        assert list_unknown(DASHBOARD | {"panels": [panel]}) == {*OWN, "panels.optoins"}


# --- what it asks Prometheus -----------------------------------------------------------------------------------------


def fill(expression):
    """What Grafana sends."""
    return expression.replace("$__rate_interval", "1m").replace("$operation", ".+").replace("$run", ".+")


@pytest.mark.parametrize("title", DRAWN)
def test_panels_ask_for_what_there_is(title):
    for target in DRAWN[title]["targets"]:
        known = check_expression(fill(target["expr"]))
        assert {*re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])} <= known


def test_prometheus_understands_every_expression(tmp_path):
    asked = [target["expr"] for _, target in list_targets()]
    asked += [each["expr"] for each in DASHBOARD["annotations"]["list"]]
    rules = [{"record": f"panel:{k}", "expr": fill(expression)} for k, expression in enumerate(asked)]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    checked = run_promtool("check", "rules", tmp_path / "rules.yml")
    assert checked.returncode == 0, checked.stdout
    assert f"{len(asked)} rules found" in checked.stdout


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.get("alert") or rule["record"])
def test_rules_ask_for_what_there_is(rule):
    known = check_expression(rule["expr"])
    for text in rule.get("annotations", {}).values():
        told = {*re.findall(r"\$labels\.(\w+)", text)}
        assert told <= known | {"operation", "matrix", "where"}
        assert len(re.findall(r"\{\{", text)) == len(re.findall(r"\{\{ \$(?:labels\.\w+|value \| \w+) \}\}", text))


@pytest.mark.parametrize(
    "wrong", ["mgspmv_no_such_total", 'mgspmv_run_active{operation="x"}', "sum by (phase) (mgspmv_runs_active)", "x"]
)
def test_what_there_is_not_would_be_found(wrong):
    with pytest.raises(AssertionError):
        check_expression(wrong)


WANTED = (
    "mgspmv_run_change", "mgspmv_run_tolerance", "mgspmv_run_edges_per_second", "mgspmv_run_ceiling_edges_per_second",
    "mgspmv_iterations_total", "mgspmv_worker_iteration_seconds_sum", "mgspmv_run_phase_seconds_sum",
    "mgspmv_run_imbalance_ratio", "mgspmv_run_worker_used_bytes", "mgspmv_run_worker_planned_bytes",
    "mgspmv_exchanged_bytes_total", "mgspmv_runs_ended_total", "mgspmv_checkpoint_bytes_total",
    "mgspmv_run_last_checkpoint_timestamp_seconds", "mgspmv_worker_task_failures_total", "mgspmv_workers_lost_total",
    "mgspmv_worker_device_memory_used_bytes", "mgspmv_worker_device_memory_free_bytes",
)  # fmt: skip


@pytest.mark.parametrize("name", WANTED)
def test_what_matters_has_a_panel(name):
    assert any(re.search(rf"\b{name}\b", target["expr"]) for _, target in list_targets())


def test_the_change_is_on_a_logarithmic_axis():
    [panel] = [p for p in DRAWN.values() if any("mgspmv_run_change" in target["expr"] for target in p["targets"])]
    assert panel["fieldConfig"]["defaults"]["custom"]["scaleDistribution"] == {"type": "log", "log": 10}
