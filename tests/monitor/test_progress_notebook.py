"""Bars in a notebook: pictures in HTML of a real kernel, without widgets, and nothing that stays."""

from __future__ import annotations

import os
import re
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from mgspmv.monitor.progress import is_notebook
from tests.support.waiting import HANG_S

SETUP = """
import time, warnings
warnings.simplefilter("error")
import mgspmv.monitor.progress as progress
from mgspmv.model import Event, Phase
from mgspmv.monitor.progress import ProgressLine
progress.REFRESH_S = 0.0
event = lambda k: Event("run", 0, k, 10.0**-k, (0.1,), (0.0,), (0.0,), (0,), (0,))
"""
CELLS = {
    "phases": "bars = ProgressLine()\nbars.__enter__()\nbars.hear(Phase('read <b>&[1/2]', 4, 10))",
    "iterations": "bars = ProgressLine(tol=1e-6, max_iter=100)\nbars.__enter__()\n"
    "for k in (1, 2, 3, 4):\n    bars.hear(event(k))\n    time.sleep(0.4)",
    "ended": "with ProgressLine() as bars:\n    bars.hear(Phase('read', 4, 10))",
    "seldom": "progress.REFRESH_S = 3600.0\nbars = ProgressLine()\nbars.__enter__()\n"
    "for k in range(100):\n    bars.hear(Phase('read', k, 100))",
}


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each cell shows in the end."""
    folder = tmp_path_factory.mktemp("ipython")
    cells = [nbformat.v4.new_code_cell(source) for source in (SETUP, *CELLS.values())]
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(notebook, timeout=HANG_S).execute(env=os.environ | {"IPYTHONDIR": str(folder)})
    outputs: list[list[Any]] = [cell.outputs for cell in notebook.cells]
    assert outputs[0] == []
    assert {out.output_type for own in outputs[1:] for out in own} == {"display_data"}
    return {name: "".join(out.data["text/html"] for out in own) for name, own in zip(CELLS, outputs[1:], strict=True)}


def read_text(html: str) -> str:
    return re.sub(r"<[^>]*>", "", html)


@pytest.mark.slow
def test_what_a_notebook_shows(shown: dict[str, str]) -> None:
    assert "read &lt;b&gt;&amp;[1/2]" in shown["phases"]
    assert "4/10" in read_text(shown["phases"])
    assert "<script" not in "".join(shown.values())
    said = read_text(shown["iterations"])
    assert "iterate  change 1.00e-04, about 3 to go" in said
    assert re.search(r"4/7.*[\d.]+/s, 0:00:0\d left", said, re.DOTALL)
    assert shown["ended"] == ""
    assert "99/100" not in read_text(shown["seldom"]), "pictures are not made more often than they are seen"


def test_this_is_no_notebook() -> None:
    assert not is_notebook()
