"""Every feature that tests/FEATURES.md lists has tests, and these exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = re.findall(r"^\| (\w+) \| (.+?) \| (`tests/.+) \|$", (ROOT / "tests/FEATURES.md").read_text(), re.M)


def find_missing(name: str) -> bool:
    """Say whether there is no such file, or no such function in it."""
    path, _, function = name.partition("::")
    file, pattern = ROOT / path, rf"^def {function}\b" if function else "^def test_"
    return not file.is_file() or not re.search(pattern, file.read_text(), re.M)


@pytest.mark.parametrize(("area", "feature", "tests"), ROWS, ids=[feature for _, feature, _ in ROWS])
def test_it_has_tests(area: str, feature: str, tests: str) -> None:
    names = re.findall(r"`([^`]+)`", tests)
    assert [name for name in names if find_missing(name)] == []


def test_every_area_has_rows() -> None:
    assert len(ROWS) > 50
    assert find_missing("tests/system/test_features.py::test_of_nothing")
