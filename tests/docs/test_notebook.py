"""The tutorial notebook runs from its first cell to its last."""

from __future__ import annotations

import copy
import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.support.pages import ROOT
from tests.support.waiting import HANG_S

NOTEBOOK = ROOT / "docs" / "tutorials" / "notebook.ipynb"


@pytest.mark.docs
def test_every_cell_runs(tmp_path: Path) -> None:
    """In order, without warnings; a cell that raises, also by an assert, fails."""
    committed = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in committed.cells)

    resources = {"metadata": {"path": str(tmp_path)}}
    client = NotebookClient(copy.deepcopy(committed), timeout=int(HANG_S), resources=resources)
    own = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"}  # figures are shown
    executed = client.execute(env=own | {"IPYTHONDIR": str(tmp_path / "ipython")})

    code = [cell for cell in executed.cells if cell.cell_type == "code"]
    outputs = [out for cell in code for out in cell.outputs]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert {out.name for out in outputs if out.output_type == "stream"} == {"stdout"}
    assert any("image/png" in out.get("data", {}) for out in outputs)
    assert sum("assert " in cell.source for cell in code) >= len(code) - 1
