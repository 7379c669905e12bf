"""The page about metrics lists every family as it is exported, every alert, and no other."""

from __future__ import annotations

import re

import pytest
import yaml

from tests.support.pages import ROOT, find_section, read_page
from tests.support.scraping import list_run_families, list_worker_families

pytestmark = pytest.mark.docs


def test_every_family_and_every_alert_has_a_row() -> None:
    page = read_page("docs/metrics.md")
    families = {"What the scheduler tells": list_run_families(), "What workers tell": list_worker_families()}
    for heading, own in families.items():
        rows = [(f.name, f.kind, ", ".join(f"`{label}`" for label in f.labels), f.help) for f in own]
        listed = re.findall(r"^\| `mgspmv_.*$", find_section(page, heading), re.MULTILINE)
        assert sorted(listed) == sorted(
            f"| `{name}` | {kind} | {labels} | {text} |" for name, kind, labels, text in rows
        )

    groups = yaml.safe_load((ROOT / "deploy" / "monitoring" / "rules.yml").read_text())["groups"]
    alerts = [rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule]
    assert re.findall(r"^\| `(Mgspmv\w+)` \|", find_section(page, "Alerts"), re.MULTILINE) == alerts
