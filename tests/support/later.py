"""Compiled functions, or what serves small inputs in their place, whatever the size of an input."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from mgspmv.ingest import block_sorting, build, columns, numbering
from mgspmv.kernels.compiled import CompiledLater

FUNCTIONS = [
    function
    for module in (block_sorting, build, columns, numbering)
    for function in vars(module).values()
    if isinstance(function, CompiledLater)
]


@contextmanager
def serving(is_compiled: bool) -> Iterator[None]:
    """Call compiled functions wherever there are some, or none where other code does the same."""
    with ExitStack() as stack:
        for function in {id(own): own for own in FUNCTIONS}.values():
            stack.enter_context(patch.object(function, "is_worth", lambda n: is_compiled))
        yield
