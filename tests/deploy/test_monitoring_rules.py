"""Configuration and rules for Prometheus are valid, and alerts hold when they should."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from tests.support.scraping import run_promtool

pytestmark = pytest.mark.external("promtool")

FOLDER = Path(__file__).parents[2] / "deploy" / "monitoring"
RULES = [rule for group in yaml.safe_load((FOLDER / "rules.yml").read_text())["groups"] for rule in group["rules"]]


def test_the_configuration_is_valid_with_its_rules():
    checked = run_promtool("check", "config", FOLDER / "prometheus.yml")
    assert checked.returncode == 0, checked.stdout
    assert f"{len(RULES)} rules found" in checked.stdout


def test_alerts_hold_when_they_should():
    tested = run_promtool("test", "rules", FOLDER / "rules_test.yml")
    assert tested.returncode == 0, tested.stdout


def test_every_rule_has_a_test(tmp_path):
    """One that never holds fails a test."""
    shutil.copy(FOLDER / "rules_test.yml", tmp_path)
    for name in (rule.get("alert") or rule["record"] for rule in RULES):
        groups = yaml.safe_load((FOLDER / "rules.yml").read_text())["groups"]
        [rule] = [
            rule for group in groups for rule in group["rules"] if name in (rule.get("alert"), rule.get("record"))
        ]
        rule["expr"] = "vector(0) > 1"
        (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": groups}))
        tested = run_promtool("test", "rules", tmp_path / "rules_test.yml")
        assert tested.returncode != 0, name
        assert name in tested.stdout
