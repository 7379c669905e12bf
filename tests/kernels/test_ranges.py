"""NVTX ranges: what is told to CuPy's NVTX where it is, and nothing where it is not."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import mgspmv as mg
from mgspmv.kernels.ranges import Range, find_nvtx


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What an NVTX is told that stands for CuPy's."""
    said: list[str] = []
    nvtx = SimpleNamespace(available=True, RangePush=said.append, RangePop=lambda: said.append("end"))
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=SimpleNamespace(nvtx=nvtx)))  # type: ignore[misc]
    return said


@pytest.mark.parametrize(
    "cupy", [None, SimpleNamespace(), SimpleNamespace(cuda=SimpleNamespace(nvtx=SimpleNamespace(available=False)))]
)
def test_without_nvtx_nothing_is_done(monkeypatch: pytest.MonkeyPatch, cupy: Any) -> None:
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    assert find_nvtx() is None
    with Range("product"):
        pass


def test_each_iteration_has_its_product_and_its_exchange(told: list[str], tmp_path: Any) -> None:
    mg.ingest(sp.csr_array(np.roll(np.eye(5), 1, axis=1)), tmp_path / "g.zarr", kind="graph")
    ranks = mg.pagerank(mg.open_matrix(tmp_path / "g.zarr"), tol_mode="fixed", max_iter=3, backend="cpu")
    assert ranks.iterations == 3
    assert told == ["mgspmv product", "end", "mgspmv exchange", "end"] * 3


@pytest.mark.gpu
def test_iterations_of_a_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    import cupy

    said: list[str] = []
    nvtx = SimpleNamespace(available=True, RangePush=said.append, RangePop=lambda: said.append("end"))
    monkeypatch.setattr(cupy.cuda, "nvtx", nvtx)
    mg.generate("rmat", tmp_path / "g.zarr", scale=8, edge_factor=4)
    mg.pagerank(mg.open_matrix(tmp_path / "g.zarr"), tol_mode="fixed", max_iter=3, backend="cuda")
    assert said == ["mgspmv iterations", "end"]
