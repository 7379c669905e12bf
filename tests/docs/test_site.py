"""The documentation's site builds strictly and offline, and its reference is complete."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import typer

import mgspmv
from mgspmv import errors
from mgspmv.cli import app
from mgspmv.kernels.catalogue import KERNELS
from mgspmv.pipeline import definition
from tests.support.pages import ROOT

OFFLINE = """
import socket
def refuse(*_, **__): raise OSError("this build is offline")
socket.socket.connect = socket.getaddrinfo = refuse
from mkdocs.__main__ import cli
cli()
"""
TABLES = {
    "At the top": definition.Pipeline,
    "[matrix.NAME]": definition.MatrixSection,
    "[matrix.NAME.update]": definition.UpdateSection,
    "[run] and [run.NAME]": definition.RunSection,
    "[batch.NAME]": definition.BatchSection,
    "[product.NAME]": definition.ProductSection,
    "[limits]": definition.LimitsSection,
    "[cluster]": definition.ClusterSection,
    "[output]": definition.OutputSection,
}


class Reference(HTMLParser):
    """Rows of the tables of a page, by the heading above them."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.rows: dict[str, list[list[str]]] = {}
        self._heading, self._inside = "", ""
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if re.fullmatch("h[1-6]", tag):
            self._heading, self._inside = "", tag
        elif tag == "tr":
            self.rows.setdefault(self._heading, []).append([])
        elif tag in ("td", "th"):
            self.rows[self._heading][-1].append("")
            self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        if tag == self._inside:
            self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside in ("td", "th"):
            self.rows[self._heading][-1][-1] += data
        elif self._inside and data != "¶":
            self._heading += data


def read_reference(site: Path, name: str) -> dict[str, list[list[str]]]:
    return Reference(site / "reference" / f"{name}.html").rows


def walk_commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield commands that are no groups, with their full names."""
    inner = getattr(command, "commands", None)
    if inner is None:
        yield name, command
    for key, own in (inner or {}).items():
        yield from walk_commands(own, f"{name} {key}")


@pytest.mark.docs
def test_the_site_builds_strictly_and_has_every_public_name(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OFFLINE, "build", "--strict", "--site-dir", str(tmp_path)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line for line in (done.stdout + done.stderr).splitlines() if not line.startswith("INFO ")] == []

    pages = [path for path in tmp_path.rglob("*.html") if path.name != "404.html"]
    for path in pages:
        loaded = re.findall(r"<(?:script|img|iframe|link)\b[^>]*?\b(?:src|href)=\"?([^\s\">]*)", path.read_text())
        assert loaded, path
        assert [url for url in loaded if re.match(r"(https?:)?//", url)] == [], path

    calls = (tmp_path / "reference" / "api.html").read_text()
    assert [name for name in mgspmv.__all__ if f'id="mgspmv.{name}"' not in calls] == []
    assert [row[0] for row in Reference(tmp_path / "kernels.html").rows["The kernels"]] == ["kernel", *KERNELS]

    raised = (tmp_path / "reference" / "errors.html").read_text()
    codes = {row[0]: row[2].split(", ") for row in read_reference(tmp_path, "errors")["Errors and exit codes"]}
    for name, value in vars(errors).items():
        if isinstance(value, type) and issubclass(value, errors.MgspmvError):
            assert f'id="mgspmv.errors.{name}"' in raised
            assert name in codes[str(value.exit_code)]

    shown = read_reference(tmp_path, "cli")
    for name, command in walk_commands(typer.main.get_command(app), "mgspmv"):
        options = {option for parameter in command.params for option in parameter.opts if option.startswith("--")}
        listed = {word for row in shown[name] for word in re.findall(r"--[\w-]+", row[0])}
        assert options - {"--help"} <= listed, name

    tables = read_reference(tmp_path, "toml")
    assert set(tables) == set(TABLES)
    for heading, model in TABLES.items():
        rows = {row[0]: row[1:] for row in tables[heading][1:]}
        assert set(rows) == set(model.model_fields), heading
        for key, field in model.model_fields.items():
            kind, default, meaning = rows[key]
            assert kind, (heading, key)
            assert meaning, (heading, key)
            if field.is_required():
                assert default == "required", (heading, key)
            elif isinstance(field.default, str | int | float | list):
                assert default == json.dumps(field.default), (heading, key)
