"""The tutorial notebook runs from its first cell to its last, and what is stored of it is what it puts out."""

from __future__ import annotations

import copy
import os
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.support.pages import ROOT
from tests.support.waiting import HANG_S

NOTEBOOK = ROOT / "docs" / "tutorials" / "notebook.ipynb"


SIZE = re.compile(r"[\d.]+ [kMG]?B\b")
"""Sizes of memory, which depend on the number of threads."""


@pytest.mark.docs
def test_every_cell_runs_and_puts_out_what_is_stored(tmp_path: Path) -> None:
    """In order, without warnings; a cell that raises fails. Times and pictures differ from run to run."""
    committed = nbformat.read(NOTEBOOK, as_version=4)
    code = [cell for cell in committed.cells if cell.cell_type == "code"]
    assert not any("assert " in cell.source for cell in code)

    resources = {"metadata": {"path": str(tmp_path)}}
    client = NotebookClient(copy.deepcopy(committed), timeout=int(HANG_S), resources=resources)
    own = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"}  # figures are shown
    executed = client.execute(env=own | {"IPYTHONDIR": str(tmp_path / "ipython")})

    outputs = [out for cell in code for out in cell.outputs]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert {out.name for out in outputs if out.output_type == "stream"} == {"stdout"}
    assert any("image/png" in out.get("data", {}) for out in outputs)
    again = [list_outputs(cell) for cell in executed.cells if cell.cell_type == "code"]
    assert again == [list_outputs(cell) for cell in code], f"store them again: jupyter execute --inplace {NOTEBOOK}"


def list_outputs(cell: Any) -> list[tuple[str, list[str], str]]:
    """Type, formats and text of each output."""
    found = []
    for out in cell.outputs:
        data = out.get("data", {"text/plain": out.get("text")})
        found.append((out.output_type, sorted(data), SIZE.sub("... B", data["text/plain"])))
    return found
