"""Tests of ingest call the compiled functions, although their inputs are small; some also what stands in for them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.later import serving

BOTH = ("test_external_sort", "test_numbering", "test_update", "test_vertices")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if (module := metafunc.module.__name__.rpartition(".")[2]) in BOTH:
        small = pytest.param(False, marks=[pytest.mark.weekly] if module == "test_update" else [])
        metafunc.parametrize("compiled", [True, small], ids=["compiled", "small"], indirect=True)


@pytest.fixture(autouse=True)
def compiled(request: pytest.FixtureRequest) -> Iterator[None]:
    with serving(getattr(request, "param", True)):
        yield
