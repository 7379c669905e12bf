"""Hooks of the documentation's site convert docstrings and notebooks to Markdown."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.docs
HOOKS = Path(__file__).parents[2] / "docs" / "hooks"

DOCSTRING = """Rank.

Parameters
----------
A : matrix or graph
    Of kind `graph`: row i has
    the in-edges.
tol, nstart : float, default 1.0
    Stop; start.
kind
    As for `ingest`.

Raises
------
ShapeError, OptionError : no

Examples
--------
>>> {1 : 2}
{1: 2}"""

IN_THE_STYLE = """Rank.

Parameters
----------
A
    Of kind `graph`: row i has
    the in-edges.
tol
    Stop; start.
nstart
    Stop; start.
kind
    As for `ingest`.

Raises
------
ShapeError
    no
OptionError
    no

Examples
--------
>>> {1 : 2}
{1: 2}"""


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"hooks_{name}", HOOKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_descriptions_come_below_names():
    pytest.importorskip("griffe", reason="griffe is not installed (extra docs)")
    assert load("docstrings").rewrite(DOCSTRING, "None") == IN_THE_STYLE


def test_a_notebook_becomes_text_code_and_output_unless_it_failed():
    def convert(*outputs):
        cells = [
            {"cell_type": "markdown", "source": ["# Ranks\n", "\n", "of a graph"]},
            {"cell_type": "code", "source": ["x = 1\n", "x"], "outputs": outputs},
        ]
        return load("notebooks").convert_notebook(json.dumps({"cells": cells}))

    page = convert(
        {"output_type": "stream", "text": ["read\n", "done\n"]},
        {"output_type": "display_data", "data": {"text/plain": "a curve", "image/png": "aGk=\n"}},
        {"output_type": "display_data", "data": {"text/plain": "a table", "text/html": ["<table>\n", "</table>"]}},
    )
    assert page == (
        "# Ranks\n\nof a graph\n\n```python\nx = 1\nx\n```\n\n```text\nread\ndone\n```\n\n"
        '<img alt="" src="data:image/png;base64,aGk=">\n\n<div>\n<table>\n</table>\n</div>\n'
    )
    with pytest.raises(ValueError, match="a cell of the notebook ended with OptionError: alpha must be below 1"):
        convert({"output_type": "error", "ename": "OptionError", "evalue": "alpha must be below 1", "traceback": []})


def test_long_lines_of_messages_wrap_and_those_of_tables_do_not():
    def wrap(text):
        return load("long_lines").wrap_long_lines(f"<pre><span></span><code>{text}</code></pre>")

    long = "error: &quot;" + 100 * "x"
    assert wrap(long) == f'<pre class="wrapped"><span></span><code>{long}</code></pre>'
    for kept in ("short &quot;" + 90 * "x", f"──────\n{long}", f'{long}<span class="w"> </span>'):
        assert wrap(kept) == f"<pre><span></span><code>{kept}</code></pre>"
