"""The package's public names."""

from __future__ import annotations

import importlib
import subprocess
import sys
from types import FunctionType

import pytest

import mgspmv


def run_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "imports"),
    [
        ("ingest", ["mg.open_matrix", "import mgspmv.api", "import mgspmv.ingest.detect", "mg.ingest"]),
        ("export", ["import mgspmv.api", "import mgspmv.export", "mg.export"]),
    ],
)
def test_functions_named_as_modules_are_functions_whatever_was_imported_first(name: str, imports: list[str]) -> None:
    for first in imports:
        assert run_python(f"import mgspmv as mg\n{first}\nprint(type(mg.{name}).__name__)") == "function", first


def test_functions_named_as_modules_are_functions() -> None:
    """After the package and the module were imported here."""
    for name in ("ingest", "export"):
        importlib.import_module({"ingest": "mgspmv.ingest.open", "export": "mgspmv.export"}[name])
        assert isinstance(getattr(mgspmv, name), FunctionType)


def test_every_public_name_is_there() -> None:
    assert set(mgspmv.__all__) <= set(dir(mgspmv))
    assert all(callable(getattr(mgspmv, name)) for name in mgspmv.__all__)


def test_an_unknown_name_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="module 'mgspmv' has no attribute 'pagerang'"):
        mgspmv.pagerang  # noqa: B018  # asking raises
