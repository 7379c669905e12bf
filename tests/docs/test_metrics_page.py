"""The page about metrics has every family as it is exported, every alert, and no other."""

from __future__ import annotations

import importlib
import re

import pytest
import yaml

from tests.support.pages import ROOT, find_section, read_page
from tests.support.scraping import list_run_families, list_worker_families

pytestmark = pytest.mark.docs


def test_every_family_has_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "<!-- made of the program: metrics -->" in find_section(read_page("docs/metrics.md"), "All metrics")
    monkeypatch.syspath_prepend(ROOT / "docs" / "hooks")
    scheduler, _, workers = importlib.import_module("listings").write_metrics().partition("### Workers")
    for families, table in ((list_run_families(), scheduler), (list_worker_families(), workers)):
        rows = [(f.name, f.kind, ", ".join(f"`{label}`" for label in f.labels), f.help) for f in families]
        listed = re.findall(r"^\| `mgspmv_.*$", table, re.MULTILINE)
        assert sorted(listed) == sorted(
            f"| `{name}` | {kind} | {labels} | {text} |" for name, kind, labels, text in rows
        )


def test_every_alert_has_a_row() -> None:
    groups = yaml.safe_load((ROOT / "deploy" / "monitoring" / "rules.yml").read_text())["groups"]
    alerts = [rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule]
    section = find_section(read_page("docs/metrics.md"), "Alerts")
    assert re.findall(r"^\| `(Mgspmv\w+)` \|", section, re.MULTILINE) == alerts
