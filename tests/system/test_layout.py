"""Tests mirror the package: tests/a/test_b.py and tests/a/test_b_aspect.py test mgspmv/a/b.py."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from hypothesis import settings

import mgspmv

TESTS = Path(__file__).parents[1]
PACKAGE = Path(mgspmv.__file__).parent
NOT_MIRRORED = {"support", "system", "docs", "deploy", "chaos", "benchmarks"}
"""Folders of what is no folder of the package."""


def list_files() -> Iterator[Path]:
    """Paths of Python files below tests/, without those of utilities."""
    for path in sorted(TESTS.rglob("*.py")):
        relative = path.relative_to(TESTS)
        if relative.parts[0] != "support":
            yield relative


def find_stray(path: Path) -> str | None:
    """Return what is wrong with the place of a test file, or None."""
    folder, name = PACKAGE / path.parent, path.stem.removeprefix("test_")
    if not (folder / "__init__.py").exists():
        return f"tests/{path}: mgspmv/ has no folder {path.parent}"
    modules = {"init", *(own.name.removesuffix(".py") for own in folder.iterdir() if is_module(own))}
    if not any(name == module or name.startswith(f"{module}_") for module in modules):
        return f"tests/{path}: its name does not begin with that of a module of mgspmv/{path.parent}"
    return None


def is_module(path: Path) -> bool:
    return path.suffix == ".py" or (path / "__init__.py").exists()


def test_files_mirror_the_package() -> None:
    mirrored = [path for path in list_files() if path.parts[0] not in NOT_MIRRORED]
    tests = [path for path in mirrored if path.name.startswith("test_")]
    assert len(tests) > 100
    assert [stray for stray in map(find_stray, tests) if stray] == []


def test_folders_are_those_of_the_package() -> None:
    folders = {path.parts[0] for path in list_files() if len(path.parts) > 1} - NOT_MIRRORED
    assert [folder for folder in sorted(folders) if not (PACKAGE / folder / "__init__.py").exists()] == []


def test_utilities_are_in_support() -> None:
    names = {"__init__.py", "conftest.py"}
    assert [path for path in list_files() if path.name not in names and not path.name.startswith("test_")] == []


def test_generated_examples_have_no_deadline() -> None:
    pattern = re.compile(r"settings\([^)]*\bdeadline|\bdeadline\s*=\s*(None|timedelta)")
    tests = [path for path in list_files() if path.name.startswith("test_")]
    assert [path for path in tests if pattern.search((TESTS / path).read_text())] == []
    assert settings().deadline is None
