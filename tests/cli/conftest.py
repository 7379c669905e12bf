"""What commands find in the folder that they run in."""

from __future__ import annotations

import pytest

from tests.support.commands import SOURCES


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "150")
    for name, text in SOURCES.items():
        (tmp_path / name).write_text(text)
    return tmp_path
