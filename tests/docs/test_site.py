"""The documentation's site is built strictly and offline, and its reference is complete."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from inspect import signature
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from typer.models import ArgumentInfo, OptionInfo

import mgspmv
from mgspmv import errors
from mgspmv.cli import app
from mgspmv.kernels.select import KERNELS
from mgspmv.pipeline import definition

ROOT = Path(__file__).parents[2]
OFFLINE = """
import socket
def refuse(*_, **__): raise OSError("this build is offline")
socket.socket.connect = socket.getaddrinfo = refuse
from mkdocs.__main__ import cli
cli()
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of the site, and what MkDocs said; network connections are refused while it is built."""
    pytest.importorskip("mkdocs", reason="mkdocs is not installed (extra docs)")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-c", OFFLINE, "build", "--strict", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, done.stdout + done.stderr


@pytest.fixture(scope="module")
def site(built: tuple[Path, str]) -> Path:
    return built[0]


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


# --- the site --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_strict_build_warns_of_nothing(built):
    lines = built[1].splitlines()
    assert [line for line in lines if not line.startswith("INFO ")] == []
    assert lines[-1].startswith("INFO    -  Documentation built in ")


@pytest.mark.slow
def test_pages_fetch_nothing_from_elsewhere(site):
    pages = [path for path in site.rglob("*.html") if path.name != "404.html"]
    assert len(pages) >= 28
    for path in pages:
        text = path.read_text()
        loaded = re.findall(r"<(?:script|img|iframe|link)\b[^>]*?\b(?:src|href)=\"?([^\s\">]*)", text)
        assert loaded
        assert [url for url in loaded if re.match(r"(https?:)?//", url)] == []
        assert 'class="mermaid"' not in text  # whose program would be fetched
    for path in site.rglob("*.css"):
        assert not re.search(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", path.read_text())


@pytest.mark.slow
def test_pages_are_light_and_dark_and_searched(site):
    home = (site / "index.html").read_text()
    assert {"default", "slate"} <= set(re.findall(r'data-md-color-scheme="(\w+)"', home))
    found = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    assert {"reference/cli.html#mgspmv-katz", "pagerank.html#dangling-vertices"} <= {
        entry["location"] for entry in found
    }


@pytest.mark.slow
def test_what_is_above_docs_is_there(site):
    guide = (site / "pipelines.html").read_text()
    assert 'href="definitions.html"' in guide
    assert '<a href="updates.html">Updates</a>' in guide
    assert 'href="pipelines/mgspmv.schema.json"' in guide
    assert "Keep a Changelog" in (site / "changelog.html").read_text()
    assert "Adding a kernel" in (site / "contributing.html").read_text()
    assert not list(site.rglob("*.py"))
    shown = (site / "definitions.html").read_text()
    for path in (ROOT / "pipelines").iterdir():
        assert (site / "pipelines" / path.name).read_bytes() == path.read_bytes()
        assert path.suffix != ".toml" or f'href="pipelines/{path.name}"' in shown


# --- the command line ------------------------------------------------------------------------------------------------


def list_callbacks(of: Any = app, prefix: str = "mgspmv") -> Iterator[tuple[str, Any]]:
    """Each command with the function that it is."""
    for info in of.registered_commands:
        yield f"{prefix} {info.name or info.callback.__name__.replace('_', '-')}", info.callback
    for group in of.registered_groups:
        yield from list_callbacks(group.typer_instance, f"{prefix} {group.name}")


def list_parameters(callback: Any) -> Iterator[tuple[ArgumentInfo | OptionInfo, list[str], Any]]:
    """What a command takes: how it is declared, how it is spelt, and its default."""
    hints = get_type_hints(callback, include_extras=True)
    for name, parameter in signature(callback).parameters.items():
        annotated = hints[name]
        [info] = [own for own in annotated.__metadata__ if isinstance(own, ArgumentInfo | OptionInfo)]
        default = None if parameter.default is parameter.empty else parameter.default
        if isinstance(info, ArgumentInfo):
            yield info, [(info.metavar or name.upper()).strip("[].")], default
        else:
            declared = [info.default, *(info.param_decls or ())]  # in Annotated the first is taken for a default
            spelt = [own for own in declared if isinstance(own, str)] or [f"--{name.replace('_', '-')}"]
            yield info, [part.strip() for own in spelt for part in own.split("/")], default


COMMANDS = dict(list_callbacks())


@pytest.mark.slow
def test_every_command_is_there(site):
    shown = set(read_reference(site, "cli")) - {"Commands"}
    groups = {f"mgspmv {group.name}" for group in app.registered_groups}
    assert shown == set(COMMANDS) | groups


@pytest.mark.slow
def test_every_option_is_there_with_its_default(site):
    pages = read_reference(site, "cli")
    for command, callback in COMMANDS.items():
        rows = {name: row for row in pages[command] for name in re.sub(r"\.\.\.|[\[\]]", "", row[0]).split(", ")}
        given = {name for info, names, default in list_parameters(callback) for name in names}
        assert given <= set(rows), command
        for info, names, default in list_parameters(callback):
            row = rows[names[0]]
            assert all(rows[name] is row for name in names), (command, names)
            if default is not None and not isinstance(default, bool):
                assert row[-2] == f"{default}", (command, names)
            choices = [] if isinstance(info, ArgumentInfo) else (info.metavar or "").split("|")
            assert all(choice in row[1] for choice in choices), (command, names)
            bounds = [bound for bound in (info.min, info.max) if bound is not None]
            assert all(f" {bound:g}" in row[-1] for bound in bounds), (command, names)
            meaning = re.split(r"[;,:]? default ", (info.help or "").replace("`", ""))[0].rstrip(".")
            assert row[-1].startswith(" ".join(meaning.split())), (command, names)


@pytest.mark.slow
def test_exit_codes_have_their_errors(site):
    rows = {row[0]: row[1:] for row in read_reference(site, "errors")["Errors and exit codes"]}
    text = (site / "reference" / "errors.html").read_text()
    epilog = str(app.info.epilog)
    assert len(rows) == 1 + len(re.findall(r"\d+ ", epilog))
    for name, value in vars(errors).items():
        if isinstance(value, type) and issubclass(value, errors.MgspmvError):
            meaning, listed = rows[str(value.exit_code)]
            assert name in listed.split(", ")
            assert f"{value.exit_code} {meaning}" in epilog
            assert f'id="mgspmv.errors.{name}"' in text


# --- definitions -----------------------------------------------------------------------------------------------------

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


@pytest.mark.slow
def test_every_key_is_there_with_its_default(site):
    pages = read_reference(site, "toml")
    assert set(pages) == set(TABLES)
    for heading, model in TABLES.items():
        rows = {row[0]: row for row in pages[heading][1:]}
        assert set(rows) == set(model.model_fields), heading
        for key, field in model.model_fields.items():
            _, kind, default, meaning = rows[key]
            assert kind, (heading, key)
            assert meaning, (heading, key)
            if field.is_required():
                assert default == "required"
            elif isinstance(field.default, str | int | float | list):
                assert default == json.dumps(field.default), (heading, key)


@pytest.mark.slow
def test_types_of_keys(site):
    rows = {(heading, row[0]): row[1] for heading, page in read_reference(site, "toml").items() for row in page}
    assert rows["[run] and [run.NAME]", "alpha"] == "number; or a list"
    assert rows["[cluster]", "kind"] == '"local", "cuda", "ssh", "slurm", "pbs", "address"'
    assert rows["[cluster]", "timeout"] == "number above 0"
    assert rows["[limits]", "memory"].startswith("bytes: ")
    assert rows["[limits]", "side_by_side"] == "integer of at least 1"
    assert rows["[output]", "formats"] == 'list of "zarr", "parquet", "csv", "jsonl"'
    assert rows["[matrix.NAME]", "parameters"] == "table"
    assert rows["At the top", "matrix"] == "tables by name"
    assert [row[0] for row in read_reference(site, "toml")["[matrix.NAME]"][1:]][:2] == ["path", "generate"]


# --- the API ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def documented(site: Path) -> set[str]:
    """Paths that links find, by all the names that something has."""
    from mkdocstrings import Inventory

    with (site / "objects.inv").open("rb") as file:
        return set(Inventory.parse_sphinx(file))


@pytest.mark.slow
def test_every_public_name_is_there(site, documented):
    text = (site / "reference" / "api.html").read_text()
    assert [name for name in mgspmv.__all__ if f'id="mgspmv.{name}"' not in text] == []
    assert "mgspmv.Matrix.distribute" in documented


NOT_SHOWN = {"mgspmv.pipeline.definition.Pipeline"}
"""The page on TOML has it."""


@pytest.mark.slow
def test_what_calls_take_and_give_is_there(documented):
    """Every class and type of the package that a signature on the page names."""
    import griffe

    package = griffe.load("mgspmv", search_paths=[str(ROOT)])

    def find(path: str) -> Any:
        found = package[path.removeprefix("mgspmv.")]
        return found.final_target if found.is_alias else found

    def list_annotations(path: str) -> Iterator[Any]:
        own = find(path)
        if own.is_function:
            yield from (own.returns, *(parameter.annotation for parameter in own.parameters))
        elif own.is_attribute:
            yield own.annotation

    missing = set()
    for path in documented - {name for name in documented if name.startswith("mgspmv.errors")}:
        for annotation in list_annotations(path):
            parts = annotation.iterate(flat=True) if isinstance(annotation, griffe.Expr) else ()
            named = {part.canonical_path for part in parts if isinstance(part, griffe.ExprName)}
            missing |= {find(name).path for name in named if name.startswith("mgspmv.")} - documented
    assert missing == NOT_SHOWN


@pytest.mark.slow
def test_every_kernel_is_there(site):
    rows = [row[0] for row in read_reference(site, "api")["Kernels"]]
    assert rows == ["kernel", *KERNELS]


# --- the repository --------------------------------------------------------------------------------------------------


def list_anchors(path: Path) -> set[str]:
    """Of headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_work_in_a_browser_of_the_repository():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    for page in pages:
        for target in re.findall(r"\]\(([^)\s:]+)\)", page.read_text()):
            name, _, anchor = target.partition("#")
            path = (page.parent / name).resolve() if name else page
            assert path.exists(), f"{page.relative_to(ROOT)}: {target}"
            assert not anchor or anchor in list_anchors(path), f"{page.relative_to(ROOT)}: {target}"
