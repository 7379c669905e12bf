"""The page about the design names what is there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "design.md").read_text()
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]


@pytest.mark.parametrize("contract", CONTRACTS, ids=[contract["name"] for contract in CONTRACTS])
def test_layers_are_those_that_imports_are_held_to(contract):
    assert "\n\n" + "".join(f"    {layer}\n" for layer in contract["layers"]) + "\n" in PAGE


@pytest.mark.parametrize("path", sorted(set(re.findall(r"mgspmv/[\w/]+(?:\.py)?", PAGE))))
def test_paths_are_there(path):
    assert (ROOT / path).exists()


def test_every_folder_of_the_package_is_named():
    folders = {path.parent.name for path in (ROOT / "mgspmv").glob("*/__init__.py")}
    assert {name for name in folders if f"mgspmv/{name}" not in PAGE} == set()
