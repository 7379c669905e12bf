"""Tests of ingest call the compiled functions, although their inputs are small; `test_store_writing_small` compares."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.later import serving


@pytest.fixture(autouse=True)
def compiled() -> Iterator[None]:
    with serving(True):
        yield
