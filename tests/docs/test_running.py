"""A wrong page of the documentation fails, and the message names the place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.pages import Page, PageError
from tests.support.running import Runner, Scene
from tests.support.usage import UsageError, check_line, check_names, check_usage

pytestmark = pytest.mark.docs

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
        fence("toml", '[matrix.web]\nsource = "e.csv"'),
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
    ("a command that fails", fence("sh", "mgspmv info nowhere.zarr"), "page.md:2: (.|\n)*nowhere.zarr"),
    ("a shell that fails", fence("sh", "false\ntrue"), "page.md:2: exit code 1"),
    ("a pipe that fails", fence("sh", "mgspmv info nowhere.zarr | cat"), "page.md:2: exit code 4"),
    ("another error", fence("sh", "mgspmv info no.zarr") + fence("text", "error: x"), "page.md:5: wanted\nerror: x\n"),
    ("another output", fence("sh", "echo 1") + fence("text", "2"), "page.md:5: wanted\n2\n\ngot\n1"),
    ("Python that raises", fence("python", "x = 1\n\ny = z"), "page.md:4: y = z\n(.|\n)*NameError: name 'z'"),
    ("a definition", fence("toml", "[matrix.web]\npaht = 'x'"), "page.md:2: no definition: .*paht"),
    ("an unknown language", fence("console", "$ mgspmv info g.zarr"), "page.md:2: nothing is known"),
    ("a GPU's wrong option", fence("sh", "mgspmv info g.zarr --cluster cuda"), "page.md:2: .*--cluster"),
    ("another host's wrong option", fence("sh", "docker exec mgspmv mgspmv info --jsn"), "page.md:2: .*--jsn"),
]


@pytest.mark.parametrize(("text", "message"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG])
def test_a_wrong_page_fails(text: str, message: str, inside: Path) -> None:
    with pytest.raises(PageError, match=f"^{message}"):
        run(text, inside)


def test_wrong_names_in_text_fail() -> None:
    for check, text, message in (
        (check_usage, "mgspmv katz|hist STORE", "no command mgspmv hist"),
        (check_usage, "mgspmv ingest SOURCE... STORE [--kind ...] [--fats]", "mgspmv ingest has no --fats"),
        (check_usage, "make coffee", "coffee"),
        (check_usage, "dask worker ADDRESS --memory-limits 0", "there is no --memory-limits"),
        (check_usage, "pip install 'mgspmv[cuda1]'", "no extra cuda1"),
        (check_usage, "python -m benchmarks.executors --speed 3", "there is no --speed"),
        (check_usage, "sbatch deploy/slurm/mgspmv.sbach", "there is no deploy/slurm/mgspmv.sbach"),
        (check_line, "mgspmv pagerank g.zarr --alpha much", "alpha"),
        (check_names, "mg.pagernak(A)", "mg has no pagernak"),
        (check_names, "mgspmv.errors.StoreEror", "there is no mgspmv.errors.StoreEror"),
    ):
        with pytest.raises(UsageError, match=message):
            check(text)
    for right in ("mgspmv hits|katz STORE -o RANKS.{zarr,csv} [--tol T | --json]", "DAY=1 mgspmv run FILE.toml"):
        check_usage(right)
