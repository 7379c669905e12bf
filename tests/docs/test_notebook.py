"""The notebook among the tutorials runs from its first cell to its last, and what its cells assert is so."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[2] / "docs" / "tutorials" / "notebook.ipynb"


def list_code(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@pytest.fixture(scope="module")
def committed() -> Any:
    return nbformat.read(NOTEBOOK, as_version=4)


@pytest.fixture(scope="module")
def executed(committed: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The notebook with what its cells gave; a cell that raises, an assert among them, fails all tests of it."""
    folder = tmp_path_factory.mktemp("notebook")
    client = NotebookClient(copy.deepcopy(committed), timeout=120, resources={"metadata": {"path": str(folder)}})
    own = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"}  # figures are to be shown
    return client.execute(env=own | {"IPYTHONDIR": str(folder / "ipython")})


def test_it_is_committed_without_outputs(committed: Any) -> None:
    assert not any(cell.outputs or cell.execution_count for cell in list_code(committed))


def test_every_cell_runs_in_order(executed: Any) -> None:
    cells = list_code(executed)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))


def test_no_cell_warns(executed: Any) -> None:
    streams = [out.name for cell in list_code(executed) for out in cell.outputs if out.output_type == "stream"]
    assert set(streams) == {"stdout"}


def test_figures_and_tables_are_shown(executed: Any) -> None:
    shown = [kind for cell in list_code(executed) for out in cell.outputs for kind in out.get("data", {})]
    assert shown.count("image/png") == 2
    assert shown.count("text/html") == 4


def test_results_are_checked_in_the_cells(executed: Any) -> None:
    assert sum("assert " in cell.source for cell in list_code(executed)) >= len(list_code(executed)) - 1
