"""Notebooks as pages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any


def convert_notebook(text: str) -> str:
    """The Markdown of a notebook: its text, its code, and what that printed.

    Raises
    ------
    ValueError : a cell ended with an error
    """
    return "\n\n".join(part for cell in json.loads(text)["cells"] for part in _convert_cell(cell)) + "\n"


def _convert_cell(cell: dict[str, Any]) -> Iterator[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        yield source
    elif cell["cell_type"] == "code" and source:
        yield _fence(source, "python")
        for output in cell["outputs"]:
            yield _convert_output(output)


def _convert_output(output: dict[str, Any]) -> str:
    if output["output_type"] == "error":
        raise ValueError(f"a cell of the notebook ended with {output['ename']}: {output['evalue']}")
    if output["output_type"] == "stream":
        return _fence("".join(output["text"]), "text")
    data = {kind: value if isinstance(value, str) else "".join(value) for kind, value in output["data"].items()}
    if "image/png" in data:
        return f'<img alt="" src="data:image/png;base64,{data["image/png"].strip()}">'
    for kind in ("image/svg+xml", "text/html"):
        if kind in data:
            return f"<div>\n{data[kind].strip()}\n</div>"
    return _fence(data["text/plain"], "text")


def _fence(text: str, language: str) -> str:
    return f"```{language}\n{text.rstrip()}\n```"
