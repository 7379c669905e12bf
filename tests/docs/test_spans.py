"""Commands, options, names of Python, files and links that pages show exist."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from urllib.parse import unquote

import pytest

from tests.support.pages import ROOT, Page, Text, list_pages, read_page
from tests.support.running import NOT_RUN
from tests.support.usage import UsageError, check_line, check_names, check_usage, list_helps, list_options

pytestmark = pytest.mark.docs
PAGES = [*list_pages(), "CHANGELOG.md", "deploy/README.md", "kernels/README.md"]
NO_FILES = {"mgspmv/a/b.py", "tests/a/test_b.py", "mgspmv/_cuda/"}
"""Names that stand for others, and what there is in a wheel alone."""
PROGRAMS = (
    "mgspmv ",
    "dask scheduler",
    "dask worker",
    "dask cuda worker",
    "python -m tests.",
    *NOT_RUN,
)


def find_wrong(texts: Iterable[Text], check: Callable[[str], None]) -> list[str]:
    """Check all, and return where those are that fail, and why."""
    wrong = []
    for text in texts:
        try:
            check(text.text)
        except UsageError as error:
            wrong.append(str(text.fail(str(error))))
    return wrong


def find_usages(page: Page) -> list[Text]:
    """Commands in running text, and in indented blocks, in which several may stand side by side."""
    return [text for text in (*page.spans, *_cut_synopses(page)) if text.text.startswith(PROGRAMS)]


def _cut_synopses(page: Page) -> Iterator[Text]:
    for block in page.indented:
        whole = re.sub(r"\n +", " ", block.text)  # a line that begins with blanks goes on with the one before
        for number, line in enumerate(whole.splitlines()):
            yield from (Text(page.name, block.line + number, part.strip()) for part in re.split(r" {4,}", line))


def check_lone_option(text: str) -> None:
    for option in re.findall(r"--[a-z][\w-]*", text):
        if option not in list_options():
            raise UsageError(f"no command has {option}")


def check_path(text: str) -> None:
    if not (ROOT / text.partition("::")[0]).exists():
        raise UsageError(f"there is no {text}")


def find_dead_links(page: Page, read: Callable[[str], Page] = read_page) -> list[str]:
    """Return links within the repository that lead to no file or no heading."""
    wrong = []
    for link in page.links:
        if re.match(r"[a-z]+:", link.text):
            continue
        path, _, anchor = unquote(link.text).partition("#")
        target = ((ROOT / page.name).parent / path).resolve()
        if path and not target.exists():
            wrong.append(str(link.fail(f"there is no {link.text}")))
        elif anchor and anchor not in (read(str(target.relative_to(ROOT))) if path else page).anchors:
            wrong.append(str(link.fail(f"there is no heading {link.text}")))
    return wrong


def test_commands_in_text_exist() -> None:
    assert find_wrong((usage for name in PAGES for usage in find_usages(read_page(name))), check_usage) == []


def test_options_in_text_exist() -> None:
    spans = (span for name in PAGES for span in read_page(name).spans)
    assert find_wrong((span for span in spans if span.text.startswith("--")), check_lone_option) == []


def test_names_of_python_exist() -> None:
    pages = [read_page(name) for name in PAGES]
    assert find_wrong((text for page in pages for text in (*page.spans, *_cut_synopses(page))), check_names) == []


def test_files_in_text_exist() -> None:
    pattern = re.compile(r"(tests|mgspmv|docs|pipelines|kernels|deploy)/[\w./-]*(::\w+)?")
    spans = (span for name in PAGES for span in read_page(name).spans if span.text not in NO_FILES)
    assert find_wrong((span for span in spans if pattern.fullmatch(span.text)), check_path) == []


def test_links_lead_somewhere() -> None:
    assert [wrong for name in PAGES for wrong in find_dead_links(read_page(name))] == []


def test_commands_in_comments_of_pipelines_parse() -> None:
    lines = []
    for path in sorted((ROOT / "pipelines").glob("*.toml")):
        name = str(path.relative_to(ROOT))
        text = re.sub(r"\\\n# +", "", path.read_text(encoding="utf-8"))
        for number, line in enumerate(text.splitlines(), 1):
            if found := re.search(r"^#.*?((\w+=\S+ )?mgspmv (?!\[).*)$", line):
                lines.append(Text(name, number, found[1]))
    assert {line.page for line in lines} == {str(path.relative_to(ROOT)) for path in ROOT.glob("pipelines/*.toml")}
    assert find_wrong(lines, check_line) == []


def test_commands_in_helps_exist() -> None:
    named = [Text(who, 1, span) for who, text in list_helps() for span in re.findall(r"`(mgspmv [^`]+)`", text)]
    assert named
    assert find_wrong(named, check_usage) == []
