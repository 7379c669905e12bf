"""Smaller size constants, of which a small input makes many pieces."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

import pytest


def shrink(patch: pytest.MonkeyPatch, **constants: Mapping[str, int]) -> None:
    """Set constants of modules of `mgspmv`, named with `__` for a dot, until the patch is undone.

    Examples
    --------
    >>> with pytest.MonkeyPatch.context() as patch:
    ...     shrink(patch, store__digests={"CHUNK_ELEMENTS": 7})
    """
    for module, values in constants.items():
        for name, value in values.items():
            patch.setattr(import_module(f"mgspmv.{module.replace('__', '.')}"), name, value)
