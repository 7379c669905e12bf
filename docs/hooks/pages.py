"""Content of the site in addition to the files of docs/: pages from the folder above, and tables of the program."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from posixpath import dirname, join, normpath, relpath
from typing import Any

from cli_reference import write_commands
from listings import write_definitions, write_exit_codes, write_kernels, write_metrics
from long_lines import wrap_long_lines
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from notebooks import convert_notebook
from toml_reference import write_keys

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"(?<=\]\()[^)\s#:]+(?=[)#])")
NAMED = re.compile(r"(?<=\[)[\w/.-]+\.md(?=\]\(([^)\s#:]+))")
"""Names of files that stand for the titles of their pages."""
MADE = re.compile(r"<!-- made of the program: (\w+) -->")

ELSEWHERE = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "README.md": "index.md",
    "SECURITY.md": "trust.md",
    "pipelines": "definitions.md",
}
"""Pages of the site by what they are in the repository."""

ABOVE = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
"""Pages that are not in docs/."""

MAKERS: dict[str, Callable[[], str]] = {
    "commands": write_commands,
    "definitions": write_definitions,
    "exit_codes": write_exit_codes,
    "kernels": write_kernels,
    "keys": write_keys,
    "metrics": write_metrics,
}
"""What takes the place of the marks in pages."""


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages from above docs/, the definitions as files, and notebooks as pages."""
    for name in ABOVE:
        files.append(File.generated(config, ELSEWHERE[name], abs_src_path=str(ROOT / name)))
    for path in (ROOT / "pipelines").iterdir():
        files.append(File.generated(config, f"pipelines/{path.name}", abs_src_path=str(path)))
    for file in [file for file in files if file.src_uri.endswith(".ipynb")]:
        text = (
            f'{convert_notebook(file.content_string)}\n<a href="{file.name}.ipynb" download>Download the notebook</a>\n'
        )
        files.append(File.generated(config, _place(f"docs/{file.src_uri}"), content=text))
    return files


def on_page_markdown(markdown: str, *, page: Page, files: Files, **_: Any) -> str:
    """Put links right, and what the program says of itself where the page has a mark for it."""
    name = page.file.src_uri
    is_above = name in [ELSEWHERE[own] for own in ABOVE]
    placed = place_links(markdown, "" if is_above else dirname(f"docs/{name}"), dirname(name))
    titled = NAMED.sub(lambda found: _find_title(files, join(dirname(name), found[1])) or found[0], placed)
    return MADE.sub(lambda found: MAKERS[found[1]](), titled)


def on_page_content(html: str, **_: Any) -> str:
    """Wrap long lines of messages."""
    return wrap_long_lines(html)


def place_links(markdown: str, folder: str, shown_in: str) -> str:
    """Links of a file in a folder of the repository as they are from a folder of the site."""

    def place(found: re.Match[str]) -> str:
        return relpath(_place(normpath(join(folder, found[0]))), shown_in or ".")

    return LINK.sub(place, markdown)


def _find_title(files: Files, path: str) -> str | None:
    file = files.get_file_from_path(normpath(path))
    return None if file is None or file.page is None else str(file.page.title)


def _place(path: str) -> str:
    """Where on the site something of the repository is."""
    inside = path.removeprefix("docs/")
    return ELSEWHERE.get(path) or (inside.removesuffix(".ipynb") + ".md" if path.endswith(".ipynb") else inside)
