"""The site of the documentation builds strictly and offline, has every public name, and is searched from files."""

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
from tests.support.browser import find_browser, needs_browser, start_browser
from tests.support.pages import ROOT
from tests.support.usage import list_helps
from tests.support.waiting import wait_for

OFFLINE = """
import socket
def refuse(*_, **__): raise OSError("this build is offline")
socket.socket.connect = socket.getaddrinfo = refuse
from mkdocs.__main__ import cli
cli()
"""

SEARCH = """
const query = document.querySelector("[data-md-component=search-query]");
query.focus();
query.value = "personalization";
query.dispatchEvent(new KeyboardEvent("keyup"));
"""
"""Types into the search box."""
FOUND = "[...document.querySelectorAll('.md-search-result__link')].map(link => link.href)"


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


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the site, built without a network and without warnings."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-c", OFFLINE, "build", "--strict", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line for line in (done.stdout + done.stderr).splitlines() if not line.startswith("INFO ")] == []
    return folder


@pytest.mark.docs
def test_the_site_loads_nothing_from_elsewhere_and_has_every_public_name(site: Path) -> None:
    pages = [path for path in site.rglob("*.html") if path.name != "404.html"]
    for path in pages:
        loaded = re.findall(r"<(?:script|img|iframe|link)\b[^>]*?\b(?:src|href)=\"?([^\s\">]*)", path.read_text())
        assert loaded, path
        assert [url for url in loaded if re.match(r"(https?:)?//", url)] == [], path

    calls = (site / "reference" / "api.html").read_text()
    assert [name for name in mgspmv.__all__ if f'id="mgspmv.{name}"' not in calls] == []
    assert [row[0] for row in Reference(site / "gpus.html").rows["Kernels"]] == ["kernel", *KERNELS]

    raised = (site / "reference" / "errors.html").read_text()
    codes = {row[0]: row[2].split(", ") for row in read_reference(site, "errors")["Errors and exit codes"]}
    for name, value in vars(errors).items():
        if isinstance(value, type) and issubclass(value, errors.MgspmvError):
            assert f'id="mgspmv.errors.{name}"' in raised
            assert name in codes[str(value.exit_code)]

    listed = [row[0].split()[-1] for row in read_reference(site, "cli")["Commands"]]
    assert {*listed} == {"command"} | {who for who, _ in list_helps() if " " not in who and who != "mgspmv"}

    for name, rows in (("cli", "mgspmv pagerank"), ("toml", "[matrix.NAME]")):
        assert len(read_reference(site, name)[rows]) > 10


@pytest.mark.docs
@needs_browser
@pytest.mark.parametrize("page", ["index.html", "reference/cli.html"])
def test_search_finds_pages_that_are_opened_as_files(site: Path, tmp_path: Path, page: str) -> None:
    with start_browser(str(find_browser()), tmp_path) as browser:
        browser.show(site / page)
        browser.evaluate(SEARCH)
        assert wait_for(lambda: browser.evaluate(FOUND)), browser.complaints
        found = browser.evaluate(FOUND)
        assert any(url.startswith(f"{site.as_uri()}/reference/cli.html?h=personalization") for url in found), found
        assert [text for text in browser.complaints if not text.startswith(("file:", "data:"))] == []
