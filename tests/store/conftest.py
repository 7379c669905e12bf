"""Stores that tests of the store begin with."""

from __future__ import annotations

from pathlib import Path

import pytest

from mgspmv.store import digests
from tests.support.arrays import write_store
from tests.support.stores import STRING_IDS, make_arrays, make_scipy, make_transpose


@pytest.fixture
def tiny_chunks(monkeypatch: pytest.MonkeyPatch) -> int:
    """Chunks of 7 elements, so that small matrices have many."""
    monkeypatch.setattr(digests, "CHUNK_ELEMENTS", 7)
    return 7


@pytest.fixture
def damaged(tiny_chunks, tmp_path: Path) -> Path:
    """A sound store with all arrays, to be damaged."""
    matrix = make_scipy(6, 6, 0.6)
    arrays = make_arrays(matrix, "graph", ids=STRING_IDS)
    write_store(tmp_path / "web.zarr", arrays, transpose=make_transpose(matrix))
    return tmp_path / "web.zarr"


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(digests, "CHUNK_ELEMENTS", 100)


@pytest.fixture
def planted(tmp_path):
    """A store, and a folder beside it that is nobody's business."""
    store, secret = tmp_path / "store", tmp_path / "secret"
    write_store(store, make_arrays(make_scipy(50, 40)))
    (secret / "v000009-00000000").mkdir(parents=True)
    (secret / "v000009-00000000" / "file").write_text("mine")
    return store, secret
