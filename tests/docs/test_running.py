"""That the tests of the documentation fail where a page is wrong, and say where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.docs.test_spans import check_each, check_links, find_usages
from tests.support.pages import Page, PageError
from tests.support.running import Elsewhere, Runner, Scene, check_scene, find_all_commands, run_examples
from tests.support.usage import UsageError, check_line, check_names, check_usage

NOWHERE = "tcp://127.0.0.1:9"


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


GENERATE = "mgspmv generate rmat g.zarr --scale 4 --edge-factor 2"


# --- blocks that do what they say ------------------------------------------------------------------------------------


def test_a_page_that_is_right(inside: Path) -> None:
    page = [
        fence('csv title="edges/e.csv"', "1,2\n2,3\n3,1"),
        fence(
            "sh", "mgspmv ingest edges/e.csv g.zarr   # with a comment\nmgspmv info g.zarr | grep -o 'rows x columns'"
        ),
        fence("text", "g.zarr: graph, 3 x 3, ..., made in ...\nrows x  columns"),
        fence("python", "import mgspmv as mg\n\nwith mg.open_matrix('g.zarr') as A:\n    print(A.nnz, given)"),
        fence("text", "3 here"),
        fence("toml", '[matrix.web]\npath = "e.csv"'),
        fence("measured", "date: yesterday"),
    ]
    run("\n".join(page), inside, given="here")


def test_blocks_share_names_and_files(inside: Path) -> None:
    run(
        fence("python", "x = 1")
        + fence("sh", "echo 2 > two")
        + fence("python", "assert x + int(open('two').read()) == 3"),
        inside,
    )


def test_lines_of_a_shell_share_what_they_set(inside: Path) -> None:
    run(
        fence("sh", "export NAME=here\nfor k in 1 2; do\n  echo $NAME $k\ndone") + fence("text", "here 1\nhere 2"),
        inside,
    )


def test_a_pipe_of_which_the_end_has_read_enough(inside: Path) -> None:
    run(fence("sh", "echo on\nyes | head -1") + fence("text", "on\ny"), inside)


def test_options_on_several_lines_are_one_command(inside: Path) -> None:
    page = Page("page.md", fence("sh", "mgspmv generate rmat \\\n  g.zarr\nmgspmv info g.zarr"))
    assert [command.line for command in find_all_commands(page)] == [2, 4]


def test_what_is_smaller_here(inside: Path) -> None:
    scene = Scene(smaller={"--scale 40": "--scale 4"}, afresh={"--scale 40": "g.zarr"})
    run(fence("sh", f"{GENERATE}\nmgspmv generate rmat g.zarr --scale 40"), inside, scene)


# --- pages that are wrong --------------------------------------------------------------------------------------------

WRONG = [
    ("no such command", fence("sh", "mgspmv ingets a b"), "page.md:2: mgspmv ingets"),
    ("no such option", "\n" + fence("sh", f"mgspmv --version\n{GENERATE} --sides 3"), "page.md:4: .*--sides"),
    ("a command that fails", fence("sh", "mgspmv info nowhere.zarr"), "page.md:2: (.|\n)*nowhere.zarr"),
    ("a shell that fails", fence("sh", "false\ntrue"), "page.md:2: exit code 1"),
    ("a function that fails", fence("sh", "f() { false; true; }\nf | cat"), "page.md:2: exit code 1"),
    ("a pipe that fails", fence("sh", "mgspmv info nowhere.zarr | cat"), "page.md:2: exit code 4"),
    ("no shell", fence("sh", "for k in 1; do"), "page.md:2: bash does not understand"),
    ("another output", fence("sh", "echo 1") + fence("text", "2"), "page.md:5: wanted\n2\n\ngot\n1"),
    ("no output", fence("python", "1 + 1") + fence("text", "2"), "page.md:5: wanted\n2"),
    ("output of nothing", fence("text", "2"), "page.md:2: nothing was run"),
    ("Python that raises", fence("python", "x = 1\n\ny = z"), "page.md:4: y = z\n(.|\n)*NameError: name 'z'"),
    ("no Python", fence("python", "x = 1\ny ="), "page.md:3: no Python"),
    ("a definition", fence("toml", "[matrix.web]\npaht = 'x'"), "page.md:2: no definition: .*paht"),
    ("no language", fence("", "mgspmv info g.zarr"), "page.md:2: nothing is known"),
    ("an unknown language", fence("console", "$ mgspmv info g.zarr"), "page.md:2: nothing is known"),
    ("an unknown info string", fence("sh not run", "mgspmv info g.zarr"), "page.md:1: ```sh not run is not"),
    ("a file elsewhere", fence('text title="../x"', "1"), "page.md:2: .*is not in the folder"),
    ("a GPU's wrong option", fence("sh", "mgspmv info g.zarr --cluster cuda"), "page.md:2: .*--cluster"),
    ("no target", fence("sh", "make coffee"), "page.md:2: .*coffee"),
    (
        "a service and a shell",
        fence("sh", "dask scheduler\necho 1 | cat"),
        "page.md:2: a block that starts a scheduler",
    ),
]


@pytest.mark.parametrize(("text", "message"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG])
def test_a_wrong_page_fails(text: str, message: str, inside: Path) -> None:
    with pytest.raises(PageError, match=f"^{message}"):
        run(text, inside)


def test_what_is_listed_is_not_run_but_looked_at(inside: Path) -> None:
    command = "mgspmv ingest https://example.org/e.csv g.zarr"
    run(fence("sh", command), inside, Scene(elsewhere={command: Elsewhere("", "")}))
    with pytest.raises(PageError, match=r"page.md:2: .*--fast"):
        run(fence("sh", f"{command} --fast"), inside, Scene(elsewhere={f"{command} --fast": Elsewhere("", "")}))


@pytest.mark.parametrize(
    "scene",
    [
        Scene(smaller={"--scale 5": "--scale 4"}),
        Scene(afresh={"h.zarr": "h.zarr"}),
        Scene(elsewhere={"mgspmv generate rmat g.zarr": Elsewhere("", "")}),
    ],
    ids=["smaller", "afresh", "elsewhere"],
)
def test_what_is_listed_must_be_on_the_page(scene: Scene) -> None:
    page = Page("page.md", fence("sh", GENERATE))
    check_scene(page, Scene(smaller={"--scale 4": ""}, afresh={"g.zarr": ""}, elsewhere={GENERATE: Elsewhere("", "")}))
    with pytest.raises(AssertionError, match=r"page.md: the scene names what is not on the page: \["):
        check_scene(page, scene)


def test_the_output_of_what_was_not_run_is_not_compared(inside: Path) -> None:
    run(fence("sh", "mgspmv plan g.zarr --cluster cuda") + fence("text", "of a GPU"), inside)


def test_a_fence_that_is_indented_too_far_fails() -> None:
    with pytest.raises(PageError, match=r"page.md:3: a fence in an indented block"):
        _ = Page("page.md", "text\n\n    ```sh\n    false\n    ```\n").indented


# --- running text ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mgspmv ingets SOURCE STORE", "no command mgspmv ingets"),
        ("mgspmv bench speed", "no command bench speed"),
        ("mgspmv katz|hist STORE", "no command mgspmv hist"),
        ("mgspmv ingest SOURCE... STORE [--kind ...] [--fats]", "mgspmv ingest has no --fats"),
        ("mgspmv spmv STORE -x Y.npy", "mgspmv spmv has no -x"),
        ("make coffee", "coffee"),
        ("dask worken ADDRESS", "dask worken is none of"),
        ("dask mgspmv ingets A B", "no command mgspmv ingets"),
        ("dask worker ADDRESS --memory-limits 0", "dask worker has no --memory-limits"),
        ("pip install 'mgspmv[cuda1]'", "no extra cuda1"),
        ("pytest -m fast", "no mark fast"),
        ("python -m benchmarks.drives --speed 3", "benchmarks.drives has no --speed"),
        ("python -m benchmarks.none", "there is no benchmarks.none"),
    ],
)
def test_a_wrong_usage(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_usage(text)


@pytest.mark.parametrize(
    "text",
    [
        "mgspmv bench spmv [STORE]...",
        "mgspmv hits|katz STORE -o RANKS.{zarr,csv} [--tol T | --json]",
        "mgspmv COMMAND --help",
        "DAY=1 mgspmv run FILE.toml [--set KEY=VALUE ...]",
        "dask scheduler --protocol ucxx",
    ],
)
def test_a_right_usage(text: str) -> None:
    check_usage(text)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("mgspmv info", "Missing parameter: store"),
        ("mgspmv pagerank g.zarr --alpha much", "alpha"),
        ("rm -r .", "rm is no program"),
    ],
)
def test_a_wrong_line(line: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_line(line)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mg.pagernak(A)", "mg has no pagernak"),
        ("mg.pagerank(A, alhpa=0.5)", "mg.pagerank has no argument alhpa"),
        ("mg.hits(A, tool=1e-3, ...)", "mg.hits has no argument tool"),
        ("mg.ingest(source, store, weigths=False)", "mg.ingest has no argument weigths"),
        ("A.T.x and A.shap", "A has no shap"),
        ("Solution.iteration", "Solution has no iteration"),
        ("mgspmv.errors.StoreEror", "there is no mgspmv.errors.StoreEror"),
        ("mg.pagerank(A, alpha=0.5 0.6)", "is no Python"),
    ],
)
def test_a_wrong_name(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_names(text)


def test_commands_are_found_in_spans_and_in_indented_blocks() -> None:
    synopsis = "    mgspmv ingets A B        mgspmv info STORE\n      [--jsn]\n"
    text = f"See `mgspmv inf`.\n\n{synopsis}\n| a |\n|---|\n| `mgspmv hits\\|hist` |\n"
    with pytest.raises(pytest.fail.Exception) as caught:
        check_each(find_usages(Page("page.md", text)), check_usage)
    lines = [line.partition(": ")[0] for line in str(caught.value).splitlines()]
    assert lines == ["page.md:1", "page.md:8", "page.md:3", "page.md:3"]


def test_links_that_lead_nowhere() -> None:
    text = "# A `b` c\n\n[1](#a-b-c) [2](#a) [3](store.md#order) [4](none.md)\n[5](../README.md)\n[6](none.md)"
    with pytest.raises(pytest.fail.Exception) as caught:
        check_links(Page("docs/page.md", text), lambda name: Page(name, "# Store"))
    assert str(caught.value).splitlines() == [
        "docs/page.md:3: there is no heading #a",
        "docs/page.md:3: there is no heading store.md#order",
        "docs/page.md:3: there is no none.md",
        "docs/page.md:5: there is no none.md",
    ]


def test_examples_of_docstrings() -> None:
    assert run_examples("right", ">>> 1 + 1\n2\n") == 1
    with pytest.raises(AssertionError, match=r"File \"wrong\", line 1(.|\n)*Expected:\n    3\nGot:\n    2"):
        run_examples("wrong", ">>> 1 + 1\n3\n")
