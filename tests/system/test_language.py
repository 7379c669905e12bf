"""The check of the language: phrases are found in strings and comments, and the package has none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.language import PHRASES, check_language, find_phrases, main

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
        ("as of `pagerank`", "as of "),
        ("x is no number", "is no"),
        ("memory, for it is full", "for it is"),
        ("edges turned round", "turned round"),
        ("normalised by columns", "normalised"),
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


def test_findings_are_printed(tmp_path, capsys):
    (tmp_path / "a.py").write_text('"It goes on."\n')
    assert main([str(tmp_path)]) == 1
    assert capsys.readouterr().out == (
        f"{tmp_path}/a.py:1: write 'continue, resume' instead of 'goes on'\n1 phrases in 1 files\n"
    )


def test_the_package_has_none():
    assert len(PHRASES) > 20
    assert main([str(ROOT / "mgspmv"), str(ROOT / "kernels")]) == 0
