"""The package's public names."""

from __future__ import annotations

import subprocess
import sys

import pytest

import mgspmv


def run_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.parametrize("first", ["mg.open_matrix", "import mgspmv.api", "import mgspmv.ingest.detect", "mg.ingest"])
def test_ingest_is_the_function_whatever_was_imported_first(first: str) -> None:
    assert run_python(f"import mgspmv as mg\n{first}\nprint(type(mg.ingest).__name__)") == "function"


@pytest.mark.parametrize("first", ["import mgspmv.api", "import mgspmv.export.write", "mg.export"])
def test_export_is_the_function_whatever_was_imported_first(first: str) -> None:
    assert run_python(f"import mgspmv as mg\n{first}\nprint(type(mg.export).__name__)") == "function"


def test_every_public_name_is_there() -> None:
    assert set(mgspmv.__all__) <= set(dir(mgspmv))
    assert all(callable(getattr(mgspmv, name)) for name in mgspmv.__all__)


def test_an_unknown_name_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="module 'mgspmv' has no attribute 'pagerang'"):
        mgspmv.pagerang  # noqa: B018  # asking raises
