"""What commands find in the folder that they run in."""

from __future__ import annotations

import pytest

from tests.support.commands import EDGES

MATRIX_MARKET = "%%MatrixMarket matrix coordinate real general\n2 3 3\n1 1 1.5\n2 3 -2\n1 2 4\n"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "150")
    (tmp_path / "edges.txt").write_text("# arcs\n" + "".join(f"{i} {j}\n" for i, j in EDGES))
    (tmp_path / "a.mtx").write_text(MATRIX_MARKET)
    return tmp_path
