"""The check of the language finds phrases in text, strings and comments; the package and its pages have none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.language import PHRASES, check_language, find_files, find_phrases, main

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("the rows that come by", "come by"),
        ("a GPU that has no room", "no room"),
        ("--resume goes on from a checkpoint", "goes on"),
        ("a store that is there", "that is there"),
        ("measured beside cuSPARSE", "beside"),
        ("a negative weight is refused", "is refused"),
        ("wanted an integer, found 'x'", "wanted"),
        ("each of its own", "of its own"),
        ("keep so many of the highest", "so many"),
        ("with the same bits", "the same bits"),
        ("whoever reaches the port", "whoever reaches"),
        ("the store is gone", "is gone"),
        ("a group of something else than ranks", "something else than"),
        ("as of `pagerank`", "as of"),
        ("x is no number", "is no"),
        ("memory, for it is full", "for it is"),
        ("edges turned round", "turned round"),
        ("normalised by columns", "normalised"),
        ("Nobody waits", "Nobody"),
        ("What is not there says so", "What is not there"),
        ("rows come\nby", "come by"),
        ("ranks have the bits of one process", "have the bits"),
        ("when nothing was computed for so long", "for so long"),
        ("whatever ended the run before", "whatever ended"),
        ("how long it takes yet", "takes yet"),
        ("all but for the last", "but for"),
        ("as of other programs", "as of"),
        ("all that there is", "all that there is"),
    ],
)
def test_phrases_are_found(text, phrase):
    assert [found for _, found, _ in find_phrases(text)] == [phrase]


@pytest.mark.parametrize(
    "text",
    [
        "there is no store",
        "it is no longer used",
        "passes by value",
        "a row of `beside`",
        "so many that none",
        "`--wanted`",
        "There are no stores",
        "as of 2026, and as of Dask 2025.1",
        "values that are all the same",
        "it says that there is none",
    ],
)
def test_plain_text_passes(text):
    assert not list(find_phrases(text))


def test_strings_and_comments_are_read_and_code_is_not(tmp_path):
    (tmp_path / "a.py").write_text('wanted = 1  # goes on\nx = f"{wanted} is refused"\n"""\nfirst\nof its own\n"""\n')
    (tmp_path / "b.cu").write_text("int wanted; // wanted\n/* two\n so many */\n")
    found = [
        (own.path.name, own.line, own.phrase) for name in ("a.py", "b.cu") for own in check_language(tmp_path / name)
    ]
    assert found == [
        ("a.py", 1, "goes on"),
        ("a.py", 2, "is refused"),
        ("a.py", 5, "of its own"),
        ("b.cu", 1, "wanted"),
        ("b.cu", 3, "so many"),
    ]


PAGE = """# Whoever reads
Rows that come
by, and `wanted` code.

```sh
mgspmv --wanted  # goes on
```

    it goes on

| head | other |
|---|---|
| so many | [as asked](beside.md) |
| plain | ![beside](beside.png) |

<!-- beside -->
- an item

  of its own
"""


def test_text_of_pages_is_read_and_code_is_not(tmp_path):
    path = tmp_path / "a.md"
    path.write_text(PAGE)
    assert [(own.line, own.phrase) for own in check_language(path)] == [
        (1, "Whoever reads"),
        (2, "come by"),
        (13, "so many"),
        (13, "as asked"),
        (14, "beside"),
        (19, "of its own"),
    ]


def test_files_and_folders_are_named(tmp_path):
    names = ["README.md", "docs/a.md", "docs/hooks/b.py", "docs/measured/c.md", "docs/d.txt"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = [path for own in ("README.md", "docs") for path in find_files(tmp_path / own)]
    assert found == [tmp_path / name for name in names[:3]]


def test_findings_are_printed(tmp_path, capsys):
    (tmp_path / "a.py").write_text('"It goes on."\n')
    assert main([str(tmp_path)]) == 1
    assert capsys.readouterr().out == (
        f"{tmp_path}/a.py:1: write 'continue, resume' instead of 'goes on'\n1 phrases in 1 files\n"
    )


def test_the_package_and_the_documentation_have_none():
    [line] = [line for line in (ROOT / "Makefile").read_text().splitlines() if "tests.support.language" in line]
    checked = line.partition("tests.support.language ")[2].split()
    assert {"mgspmv", "kernels", "docs", "README.md", "CHANGELOG.md"} <= {*checked}
    assert len(PHRASES) > 20
    assert main([str(ROOT / name) for name in checked]) == 0
