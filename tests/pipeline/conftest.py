"""What pipelines find in the folder that they run in."""

from __future__ import annotations

import pytest

from tests.support.definitions import write_sources


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_sources(tmp_path)
    return tmp_path
