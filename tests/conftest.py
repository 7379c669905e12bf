"""Fixtures and marks shared by all tests."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

_DATA = Path(os.environ.get("MGSPMV_TEST_DATA", Path(__file__).parents[2] / "shared" / "data"))


def shared_data(name: str) -> Path:
    """Path of a reference file, relative to the data folder; skips the test, naming the file, where it is absent.

    The folder is `$MGSPMV_TEST_DATA`, or `shared/data` beside the checkout.
    """
    path = _DATA / name
    if not path.exists():
        pytest.skip(f"reference data {name} is not here; set MGSPMV_TEST_DATA to the folder that holds it")
    return path


@pytest.fixture(scope="session")
def ingested(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """`ingested(name, **options)` opens the store of a reference file, which is made once in a session."""
    import mgspmv as mg

    stores: dict[str, Path] = {}

    def open_ingested(name: str, **options: Any) -> Any:
        key = f"{name} {sorted(options.items())}"
        if key not in stores:
            store = tmp_path_factory.mktemp("ingested") / "store.zarr"
            mg.ingest(shared_data(name), store, **options)
            stores[key] = store
        return mg.open_matrix(stores[key])

    return open_ingested
