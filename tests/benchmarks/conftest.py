"""Benchmarks run small: nothing is flushed, rates of the host are not measured, and real matrices are left out."""

from __future__ import annotations

from pathlib import Path

import pytest

import mgspmv as mg
from benchmarks.ceilings import Roofline


@pytest.fixture(autouse=True)
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MGSPMV_TEST_DATA", raising=False)
    monkeypatch.setattr("benchmarks.machines._find_cache_bytes", lambda: 1 << 16)
    monkeypatch.setattr("benchmarks.ceilings.measure_host", lambda: Roofline(1e10, 1e8))


@pytest.fixture(scope="package")
def rmat(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A stored graph of 512 vertices."""
    path = tmp_path_factory.mktemp("graph") / "rmat.zarr"
    mg.generate("rmat", path, scale=9)
    return str(path)
