"""What is deployed for Prometheus, by its own program: it is valid, and tests beside the rules hold each of them."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import yaml

from tests.support.scraping import run_promtool

FOLDER = Path(__file__).parents[2] / "deploy" / "monitoring"
RULES = yaml.safe_load((FOLDER / "rules.yml").read_text())["groups"]
ALERTS = {rule["alert"]: rule for group in RULES for rule in group["rules"] if "alert" in rule}
RECORDED = {rule["record"]: rule for group in RULES for rule in group["rules"] if "record" in rule}


def check(*arguments):
    checked = run_promtool(*arguments)
    assert checked.returncode == 0, checked.stdout
    return checked.stdout


def test_the_configuration_is_valid_with_its_rules():
    said = check("check", "config", FOLDER / "prometheus.yml")
    assert f"{len(ALERTS) + len(RECORDED)} rules found" in said


def test_the_scheduler_and_its_workers_are_scraped():
    jobs = yaml.safe_load((FOLDER / "prometheus.yml").read_text())["scrape_configs"]
    assert [job["job_name"] for job in jobs] == ["mgspmv-scheduler", "mgspmv-workers"]
    text = (FOLDER / "rules.yml").read_text()
    assert set(re.findall(r'job="([^"]+)"', text)) == {job["job_name"] for job in jobs}


def test_alerts_do_what_they_should():
    check("test", "rules", FOLDER / "rules_test.yml")


@pytest.mark.parametrize("name", ALERTS)
def test_alerts_say_what_happened_and_what_to_do(name):
    rule = ALERTS[name]
    assert rule["annotations"].keys() == {"summary", "action"}
    assert all(text.rstrip().endswith(".") for text in rule["annotations"].values())
    assert rule["labels"]["severity"] in ("critical", "warning")


@pytest.mark.parametrize("broken", ["vector(0) > 1", "vector(1)"])
@pytest.mark.parametrize("name", [*ALERTS, *RECORDED])
def test_a_rule_that_never_or_always_holds_is_found(name, broken, tmp_path):
    groups = yaml.safe_load((FOLDER / "rules.yml").read_text())["groups"]
    [rule] = [rule for group in groups for rule in group["rules"] if name in (rule.get("alert"), rule.get("record"))]
    rule["expr"] = broken
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": groups}))
    shutil.copy(FOLDER / "rules_test.yml", tmp_path)
    tested = run_promtool("test", "rules", tmp_path / "rules_test.yml")
    assert tested.returncode != 0
    assert name in tested.stdout


@pytest.mark.parametrize(
    ("name", "was", "broken"),
    [
        ("MgspmvRunStalled", "> 120", "> 100"),
        ("MgspmvRunStalled", "> 120", "> 135"),
        ("MgspmvRunStalled", 'unless on (run) mgspmv_run_state{state="queue"}', ""),
        ("MgspmvRunStalled", "and on (run) mgspmv_run_active == 1", ""),
        ("MgspmvImbalance", "> 1.5", "> 1.4"),
        ("MgspmvImbalance", "and on (run) mgspmv_run_active == 1", ""),
        ("MgspmvMemoryAbovePlan", "> 0.95", "> 0.9"),
        ("MgspmvMemoryAbovePlan", "and on (run) mgspmv_run_active == 1", ""),
        ("MgspmvDeviceMemoryNearlyFull", "< 0.02", "< 0.03"),
        ("MgspmvSchedulerNotScraped", ' or absent(up{job="mgspmv-scheduler"})', ""),
        ("MgspmvCheckpointOverdue", "3 * ", "4 * "),
        ("MgspmvCheckpointOverdue", "300", "60"),
        ("MgspmvCheckpointOverdue", "and on (run) mgspmv_run_active == 1", ""),
    ],
)
def test_another_bound_is_found(name, was, broken, tmp_path):
    groups = yaml.safe_load((FOLDER / "rules.yml").read_text())["groups"]
    [rule] = [rule for group in groups for rule in group["rules"] if rule.get("alert") == name]
    assert was in rule["expr"]
    rule["expr"] = rule["expr"].replace(was, broken)
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": groups}))
    shutil.copy(FOLDER / "rules_test.yml", tmp_path)
    assert run_promtool("test", "rules", tmp_path / "rules_test.yml").returncode != 0


# --- files that are written wrongly ----------------------------------------------------------------------------------

CHECKS = {
    "prometheus.yml": ("check", "config"),
    "rules.yml": ("check", "rules"),
    "rules_test.yml": ("test", "rules"),
}
FLAWS = [
    ("prometheus.yml", "scrape_interval:", "scrape_intervall:", "scrape_intervall"),
    ("prometheus.yml", "static_configs:", "static_config:", "static_config"),
    ("prometheus.yml", "http_sd_configs:", "http_sd_config:", "http_sd_config"),
    ("prometheus.yml", "refresh_interval: 15s", "refresh_interval: often", "often"),
    ("prometheus.yml", "url: http://", "url: ftp://", "URL scheme"),
    ("prometheus.yml", "- targets:", "- target:", "target"),
    ("prometheus.yml", "job_name: mgspmv-workers", "job_name: mgspmv-scheduler", "mgspmv-scheduler"),
    ("prometheus.yml", "- rules.yml", "- rule.yml", "rule.yml"),
    ("rules.yml", "expr: sum", "expression: sum", "expression"),
    ("rules.yml", "for: 5m", "for: soon", "soon"),
    ("rules.yml", "keep_firing_for:", "keep_fireing_for:", "keep_fireing_for"),
    ("rules.yml", "- alert: MgspmvRunStalled", "- alerts: MgspmvRunStalled", "alerts"),
    ("rules.yml", "annotations:", "anotations:", "anotations"),
    ("rules.yml", "{{ $labels.run }}", "{{ $label.run }}", "$label"),
    ("rules.yml", "name: mgspmv-rates", "name: mgspmv-alerts", "mgspmv-alerts"),
    ("rules_test.yml", "input_series:", "input_serie:", "input_serie"),
    ("rules_test.yml", "promql_expr_test:", "promql_expr_tests:", "promql_expr_tests"),
    ("rules_test.yml", "eval_time: 3m", "eval_time: later", "later"),
    ("rules_test.yml", "exp_samples:", "exp_sample:", "exp_sample"),
    ("rules_test.yml", "values: 1x40", "values: 1y40", "bad number"),
]
"""File, what is right, what is wrong, and the word of it that `promtool` says."""


@pytest.mark.parametrize(("name", "right", "wrong", "said"), FLAWS, ids=lambda value: value.replace(" ", ""))
def test_what_is_written_wrongly_is_found(name, right, wrong, said, tmp_path):
    for path in FOLDER.glob("*.yml"):
        shutil.copy(path, tmp_path)
    text = (FOLDER / name).read_text()
    assert right in text
    (tmp_path / name).write_text(text.replace(right, wrong, 1))
    checked = run_promtool(*CHECKS[name], tmp_path / name)
    assert checked.returncode != 0
    assert said in checked.stdout
