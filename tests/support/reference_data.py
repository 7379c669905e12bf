"""Real graphs and matrices, some with results, that tests use where they are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_DATA = Path(os.environ.get("MGSPMV_TEST_DATA", Path(__file__).parents[3] / "shared" / "data"))
_CASES = Path(os.environ.get("MGSPMV_TEST_CASES", Path(__file__).parents[3] / "shared" / "cases"))


def shared_data(name: str) -> Path:
    """Path of a reference file, relative to the data folder; skips the test, naming the file, where it is absent.

    The folder is `$MGSPMV_TEST_DATA`, or `shared/data` beside the checkout.
    """
    path = _DATA / name
    if not path.exists():
        pytest.skip(f"reference data {name} is not here; set MGSPMV_TEST_DATA to the folder that holds it")
    return path


def shared_cases(name: str) -> Path:
    """Path of a small file with a known answer; skips the test, naming the file, where it is absent.

    The folder is `$MGSPMV_TEST_CASES`, or `shared/cases` beside the checkout.
    """
    path = _CASES / name
    if not path.exists():
        pytest.skip(f"the case {name} is not here; set MGSPMV_TEST_CASES to the folder that holds it")
    return path
