"""Hooks of the documentation's site convert docstrings, notebooks and tables to Markdown."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytestmark = pytest.mark.docs
HOOKS = Path(__file__).parents[2] / "docs" / "hooks"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"hooks_{name}", HOOKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# Docstrings

DOCSTRING = """Rank.

    x' = alpha A x

Parameters
----------
A : of kind `graph`: row i has
    the in-edges
tol, nstart : stop; start
more

Returns
-------
Solution with `values`,
one a vertex

Raises
------
ShapeError, OptionError : no"""

IN_THE_STYLE = """Rank.

    x' = alpha A x

Parameters
----------
A
    of kind `graph`: row i has
    the in-edges
tol
    stop; start
nstart
    stop; start
more

Returns
-------
tuple[Solution, int]
    Solution with `values`,
    one a vertex

Raises
------
ShapeError
    no
OptionError
    no"""


def test_descriptions_come_below_names():
    pytest.importorskip("griffe", reason="griffe is not installed (extra docs)")
    assert load("docstrings").rewrite(DOCSTRING, "tuple[Solution, int]") == IN_THE_STYLE
    assert load("docstrings").rewrite("Rank.\n\nNo section : here", "int") == "Rank.\n\nNo section : here"


# Notebooks


def convert(*cells: dict[str, Any]) -> str:
    return load("notebooks").convert_notebook(json.dumps({"cells": cells}))


def code(source: list[str], *outputs: dict[str, Any]) -> dict[str, Any]:
    return {"cell_type": "code", "source": source, "outputs": outputs}


def test_a_notebook_becomes_text_code_and_output():
    page = convert(
        {"cell_type": "markdown", "source": ["# Ranks\n", "\n", "of a graph"]},
        {"cell_type": "raw", "source": ["left out"]},
        code(
            ["x = 1\n", "x"],
            {"output_type": "stream", "text": ["read\n", "done\n"]},
            {"output_type": "display_data", "data": {"text/plain": "a curve", "image/png": "aGk=\n"}},
            {"output_type": "display_data", "data": {"text/plain": "a table", "text/html": ["<table>\n", "</table>"]}},
        ),
    )
    assert page == (
        "# Ranks\n\nof a graph\n\n```python\nx = 1\nx\n```\n\n```text\nread\ndone\n```\n\n"
        '<img alt="" src="data:image/png;base64,aGk=">\n\n<div>\n<table>\n</table>\n</div>\n'
    )


def test_a_notebook_that_failed_is_no_page():
    failed = {"output_type": "error", "ename": "OptionError", "evalue": "alpha must be below 1", "traceback": []}
    with pytest.raises(ValueError, match="a cell of the notebook ended with OptionError: alpha must be below 1"):
        convert(code(["mg.pagerank(A, alpha=2)"], failed))


# Tables


def test_cells_of_tables() -> None:
    tables = load("markdown_tables")
    assert tables.split_default("rmat: edges a vertex, default 16.") == ("rmat: edges a vertex.", "16")
    assert tables.split_default("Most iterations.") == ("Most iterations.", "")
    assert tables.escape("a|b*c_d <e> [f]\n  g `h|i_j`") == r"a\|b\*c\_d \<e> \[f] g `h|i_j`"
    assert tables.make_table(("a", "b"), [("1", "2")]) == "| a | b |\n| --- | --- |\n| 1 | 2 |\n"
