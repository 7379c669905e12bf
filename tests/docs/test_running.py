"""A wrong page of the documentation fails, and the message names the place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.docs.test_spans import find_dead_links, find_usages, find_wrong
from tests.support.pages import Page, PageError
from tests.support.running import Elsewhere, Runner, Scene, check_scene, run_examples
from tests.support.usage import UsageError, check_line, check_names, check_usage

pytestmark = pytest.mark.docs

NOWHERE = "tcp://127.0.0.1:9"
GENERATE = "mgspmv generate rmat g.zarr --scale 4 --edge-factor 2"


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "inside").mkdir()
    monkeypatch.chdir(tmp_path / "inside")
    return tmp_path


def fence(info: str, text: str) -> str:
    return f"```{info}\n{text}\n```\n"


def run(text: str, folder: Path, scene: Scene | None = None, **names: Any) -> None:
    with Runner(Page("page.md", text), scene or Scene(), folder, NOWHERE) as runner:
        runner.run(names)


def test_a_right_page_passes(inside: Path) -> None:
    page = [
        fence('csv title="edges/e.csv"', "1,2\n2,3\n3,1"),
        fence("sh", "mgspmv ingest edges/e.csv g.zarr   # a comment\nmgspmv info g.zarr | grep -o 'rows x columns'"),
        fence("text", "g.zarr: graph, 3 x 3, ..., made in ...\nrows x  columns"),
        fence("sh", "export NAME=here\nfor k in 1 2; do\n  echo $NAME $k\ndone\nyes | head -1"),
        fence("text", "here 1\nhere 2\ny"),
        fence("python", "import mgspmv as mg\n\nwith mg.open_matrix('g.zarr') as A:\n    print(A.nnz, given)"),
        fence("text", "3 here"),
        fence("sh", "mgspmv generate rmat \\\n  g.zarr --scale 40"),
        fence("toml", '[matrix.web]\npath = "e.csv"'),
        fence("measured", "date: yesterday"),
        fence("sh", "mgspmv info nowhere.zarr") + fence("text", "error: there is no ...nowhere.zarr..."),
        fence("sh", "mgspmv plan g.zarr --cluster cuda") + fence("text", "output of what is not run here"),
    ]
    run(
        "\n".join(page),
        inside,
        Scene(smaller={"--scale 40": "--scale 4"}, afresh={"--scale 40": "g.zarr"}),
        given="here",
    )


WRONG = [
    ("no such command", fence("sh", "mgspmv ingets a b"), "page.md:2: mgspmv ingets"),
    ("no such option", "\n" + fence("sh", f"mgspmv --version\n{GENERATE} --sides 3"), "page.md:4: .*--sides"),
    ("a command that fails", fence("sh", "mgspmv info nowhere.zarr"), "page.md:2: (.|\n)*nowhere.zarr"),
    ("a shell that fails", fence("sh", "false\ntrue"), "page.md:2: exit code 1"),
    (
        "an error that does not come",
        fence("sh", "mgspmv --version") + fence("text", "error: x"),
        "page.md:2: .*\ndid not",
    ),
    ("another error", fence("sh", "mgspmv info no.zarr") + fence("text", "error: x"), "page.md:5: wanted\nerror: x\n"),
    (
        "an error of a pipe",
        fence("sh", "mgspmv info n | cat") + fence("text", "error: x"),
        "page.md:2: an error is of one",
    ),
    ("a pipe that fails", fence("sh", "mgspmv info nowhere.zarr | cat"), "page.md:2: exit code 4"),
    ("no shell", fence("sh", "for k in 1; do"), "page.md:2: bash does not understand"),
    ("another output", fence("sh", "echo 1") + fence("text", "2"), "page.md:5: wanted\n2\n\ngot\n1"),
    ("output of nothing", fence("text", "2"), "page.md:2: nothing was run"),
    ("Python that raises", fence("python", "x = 1\n\ny = z"), "page.md:4: y = z\n(.|\n)*NameError: name 'z'"),
    ("no Python", fence("python", "x = 1\ny ="), "page.md:3: no Python"),
    ("a definition", fence("toml", "[matrix.web]\npaht = 'x'"), "page.md:2: no definition: .*paht"),
    ("an unknown language", fence("console", "$ mgspmv info g.zarr"), "page.md:2: nothing is known"),
    ("an unknown info string", fence("sh not run", "mgspmv info g.zarr"), "page.md:1: ```sh not run is not"),
    ("a file elsewhere", fence('text title="../x"', "1"), "page.md:2: .*is not in the folder"),
    ("a GPU's wrong option", fence("sh", "mgspmv info g.zarr --cluster cuda"), "page.md:2: .*--cluster"),
]


@pytest.mark.parametrize(("text", "message"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG])
def test_a_wrong_page_fails(text: str, message: str, inside: Path) -> None:
    with pytest.raises(PageError, match=f"^{message}"):
        run(text, inside)


def test_a_scene_that_does_not_fit_its_page_fails(inside: Path) -> None:
    page, nothing = Page("page.md", fence("sh", GENERATE)), Elsewhere("", "")
    check_scene(page, Scene(smaller={"--scale 4": ""}, afresh={"g.zarr": ""}, elsewhere={GENERATE: nothing}))
    for scene in (Scene(smaller={"--scale 5": ""}), Scene(afresh={"h.zarr": ""}), Scene(elsewhere={"ls": nothing})):
        with pytest.raises(AssertionError, match=r"page.md: the scene names what is not on the page: \["):
            check_scene(page, scene)
    command = "mgspmv ingest https://example.org/e.csv g.zarr --fast"
    with pytest.raises(PageError, match=r"page.md:2: .*--fast"):
        run(fence("sh", command), inside, Scene(elsewhere={command: nothing}))


def test_wrong_names_in_text_fail() -> None:
    for check, text, message in (
        (check_usage, "mgspmv katz|hist STORE", "no command mgspmv hist"),
        (check_usage, "mgspmv ingest SOURCE... STORE [--kind ...] [--fats]", "mgspmv ingest has no --fats"),
        (check_usage, "make coffee", "coffee"),
        (check_usage, "dask worker ADDRESS --memory-limits 0", "dask worker has no --memory-limits"),
        (check_usage, "pip install 'mgspmv[cuda1]'", "no extra cuda1"),
        (check_usage, "pytest -m fast", "no mark fast"),
        (check_usage, "python -m benchmarks.drives --speed 3", "benchmarks.drives has no --speed"),
        (check_line, "mgspmv pagerank g.zarr --alpha much", "alpha"),
        (check_line, "rm -r .", "rm is no program"),
        (check_names, "mg.pagernak(A)", "mg has no pagernak"),
        (check_names, "mg.ingest(source, store, weigths=False)", "mg.ingest has no argument weigths"),
        (check_names, "A.T.x and A.shap", "A has no shap"),
        (check_names, "mgspmv.errors.StoreEror", "there is no mgspmv.errors.StoreEror"),
    ):
        with pytest.raises(UsageError, match=message):
            check(text)
    for right in ("mgspmv hits|katz STORE -o RANKS.{zarr,csv} [--tol T | --json]", "DAY=1 mgspmv run FILE.toml"):
        check_usage(right)


def test_commands_are_found_in_spans_and_in_indented_blocks() -> None:
    synopsis = "    mgspmv ingets A B        mgspmv info STORE\n      [--jsn]\n"
    text = f"See `mgspmv inf`.\n\n{synopsis}\n| a |\n|---|\n| `mgspmv hits\\|hist` |\n"
    wrong = find_wrong(find_usages(Page("page.md", text)), check_usage)
    assert [line.partition(": ")[0] for line in wrong] == ["page.md:1", "page.md:8", "page.md:3", "page.md:3"]


def test_dead_links_are_found() -> None:
    text = "# A `b` c\n\n[1](#a-b-c) [2](#a) [3](store.md#order) [4](none.md)\n[5](../README.md)\n[6](none.md)"
    assert find_dead_links(Page("docs/page.md", text), lambda name: Page(name, "# Store")) == [
        "docs/page.md:3: there is no heading #a",
        "docs/page.md:3: there is no heading store.md#order",
        "docs/page.md:3: there is no none.md",
        "docs/page.md:5: there is no none.md",
    ]


def test_wrong_examples_of_docstrings_fail() -> None:
    assert run_examples("right", ">>> 1 + 1\n2\n") == 1
    with pytest.raises(AssertionError, match=r"File \"wrong\", line 1(.|\n)*Expected:\n    3\nGot:\n    2"):
        run_examples("wrong", ">>> 1 + 1\n3\n")
