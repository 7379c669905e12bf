"""The documentation's site builds strictly and offline, and its reference has every public name."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import mgspmv
from mgspmv import errors
from mgspmv.kernels.catalogue import KERNELS
from tests.support.pages import ROOT

OFFLINE = """
import socket
def refuse(*_, **__): raise OSError("this build is offline")
socket.socket.connect = socket.getaddrinfo = refuse
from mkdocs.__main__ import cli
cli()
"""


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

    for name, rows in (("cli", "mgspmv pagerank"), ("toml", "[matrix.NAME]")):
        assert len(read_reference(tmp_path, name)[rows]) > 10
