"""What the documentation's site is made by: docstrings, notebooks and tables as Markdown."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

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


def test_a_notebook_is_text_code_and_what_that_printed():
    page = convert(
        {"cell_type": "markdown", "source": ["# Ranks\n", "\n", "of a graph"]},
        {"cell_type": "raw", "source": ["left out"]},
        code([]),
        code(
            ["x = 1\n", "x"],
            {"output_type": "stream", "text": ["read\n", "done\n"]},
            {"output_type": "execute_result", "data": {"text/plain": ["1"]}},
            {"output_type": "display_data", "data": {"text/plain": "a curve", "image/png": "aGk=\n"}},
            {"output_type": "display_data", "data": {"text/plain": "a table", "text/html": ["<table>\n", "</table>"]}},
            {"output_type": "display_data", "data": {"text/plain": "a drawing", "image/svg+xml": "<svg></svg>"}},
        ),
    )
    assert page == (
        "# Ranks\n\nof a graph\n\n```python\nx = 1\nx\n```\n\n```text\nread\ndone\n```\n\n```text\n1\n```\n\n"
        '<img alt="" src="data:image/png;base64,aGk=">\n\n'
        "<div>\n<table>\n</table>\n</div>\n\n<div>\n<svg></svg>\n</div>\n"
    )


def test_a_notebook_that_failed_is_no_page():
    failed = {"output_type": "error", "ename": "OptionError", "evalue": "alpha must be below 1", "traceback": []}
    with pytest.raises(ValueError, match="a cell of the notebook ended with OptionError: alpha must be below 1"):
        convert(code(["mg.pagerank(A, alpha=2)"], failed))


# Tables


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("Rows; default all.", ("Rows.", "all")),
        ("Stop when less; default 1e-6, with topk 1e-10.", ("Stop when less.", "1e-6, with topk 1e-10")),
        ("rmat: edges a vertex, default 16.", ("rmat: edges a vertex.", "16")),
        ("rmat, banded: default 1.", ("rmat, banded.", "1")),
        ("Most of it; default half. It is freed.", ("Most of it; default half. It is freed.", "")),
        ("Default by name.", ("Default by name.", "")),
        ("Most iterations.", ("Most iterations.", "")),
    ],
)
def test_the_default_has_a_column(text, parts):
    assert load("markdown_tables").split_default(text) == parts


def test_cells_hold_what_they_are_given():
    tables = load("markdown_tables")
    assert tables.escape("a|b*c_d <e> [f]\n  g `h|i_j`") == r"a\|b\*c\_d \<e> \[f] g `h|i_j`"
    assert tables.make_table(("a", "b"), [("1", "2")]) == "| a | b |\n| --- | --- |\n| 1 | 2 |\n"
